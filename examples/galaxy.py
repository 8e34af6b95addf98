"""A galaxy in open space: its rotation curve against the exact one, and against the one in a periodic box.

    python examples/galaxy.py                       # on 8 virtual CPU devices: ten seconds
    python examples/galaxy.py --n 96 --mesh 2x4

The galaxy is a bulge and two discs, each a Gaussian that is flattened along z. The speed v of stars on circular orbits
follows from `v² = R ∂Φ/∂R`. The potential Φ solves `∇²Φ = 4πGρ` and is zero at infinity. In a periodic box, the images
of the galaxy pull outwards, so its stars would move too slowly. Lengths are in kpc, masses in 10¹⁰ solar masses.

Source: Cappellari, MNRAS 333 (2002), equations 17 and 18, has the potential of a flattened Gaussian as an integral.
"""

from pathlib import Path

import decompops as dops
import jax
import numpy as np
from decompops.spectral import Convolution, Gradient, Poisson, PoissonKernel

from options import Parser, at_least, figure, make_mesh, mesh_shape


G = 4.30091e4  # in kpc (km/s)² per 10¹⁰ solar masses
BOX = 40.0
# The mass, the width along x and y, and the ratio of the width along z to the width along x of each part.
PARTS = ((1.0, 1.0, 1.0), (3.0, 2.5, 0.4), (1.5, 3.2, 0.35))


def density(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Return the density of the galaxy."""
    total = np.zeros(np.broadcast_shapes(x.shape, y.shape, z.shape))
    for mass, width, ratio in PARTS:
        square = x**2 + y**2 + (z / ratio) ** 2
        total += mass / ratio * np.exp(-square / (2 * width**2)) / (2 * np.pi * width**2) ** 1.5
    return total


def exact_speeds(radii: np.ndarray) -> np.ndarray:
    """Return the speeds of circular orbits in the plane of the discs, by a quadrature of the exact integral."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    t, squared = (nodes + 1) / 2, np.zeros(radii.shape)
    for mass, width, ratio in PARTS:
        pull = t**2 * np.exp(-((radii[:, None] * t) ** 2) / (2 * width**2)) / np.sqrt(1 - (1 - ratio**2) * t**2)
        squared += G * mass * np.sqrt(2 / np.pi) / width**3 * radii**2 * (pull @ (weights / 2))
    return np.sqrt(squared)


def speeds(mesh: jax.sharding.Mesh, n: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the radii along x, and the speeds there: in open space, and in a periodic box."""
    fft = dops.FFT3D(mesh, shape=(n, n, n), box=dops.Box((BOX, BOX, BOX)), pad=True, real=True)
    x = (np.arange(n) - n // 2) * (BOX / n)
    rho = fft.decomposition.shard(density(x[:, None, None], x[None, :, None], x[None, None, :]))
    slope = 4 * np.pi * G * Gradient(fft)(rho)[0]  # The gradient of the potential is the potential of the gradient.
    found = {}
    for name, solve in {"open space": Convolution(fft, PoissonKernel()), "periodic box": Poisson(fft)}.items():
        pull = fft.decomposition.gather(solve(slope))[n // 2 + 1 :, n // 2, n // 2]
        found[name] = np.sqrt(np.maximum(x[n // 2 + 1 :] * pull, 0))
    return x[n // 2 + 1 :], found


def plot(radii: np.ndarray, found: dict[str, np.ndarray], path: Path) -> None:
    """Draw the rotation curves."""
    axes = dops.plot.curves(
        radii,
        found,
        references={"exact": (radii, exact_speeds(radii))},
        xlabel="distance from the centre (kpc)",
        label="speed of circular orbits (km/s)",
        title="Rotation curve of a galaxy",
        style="o-",
    )
    axes.figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> float:
    """Run the example. Returns the greatest error of the speed in open space, relative to the greatest speed."""
    parser = Parser(__doc__)
    parser.add_argument("--n", type=at_least(8), default=64, help="points along each axis (64)")
    parser.add_argument("--mesh", type=mesh_shape, help="devices along x and y, such as 2x4 (all along y)")
    parser.add_argument("--out", type=figure, default="galaxy.png", help="file of the figure (galaxy.png)")
    args = parser.parse_args(argv)
    mesh = make_mesh(parser, args.mesh, x=2, y=4)

    with jax.set_mesh(mesh):
        radii, found = speeds(mesh, args.n)
    exact = exact_speeds(radii)
    errors = {name: float(np.abs(v - exact).max() / exact.max()) for name, v in found.items()}
    for name, error in errors.items():
        print(f"{name}: greatest error {error:.1e} of the greatest speed, {exact.max():.0f} km/s")
    plot(radii, found, args.out)
    print(f"Figure: {args.out}")
    return errors["open space"]


if __name__ == "__main__":
    main()
