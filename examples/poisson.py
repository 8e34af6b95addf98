"""Poisson's equation with a known solution: the error falls faster than any power of the grid spacing.

    python examples/poisson.py                                  # on 8 virtual CPU devices: ten seconds
    python examples/poisson.py --sizes 8 16 24 32 --mesh 2x4

The program solves ∇²u = f in a periodic box of lengths 2π, π and 4π. The solution u = exp(sin x + cos 2y) sin(z/2) is
chosen, and f is its Laplacian, derived by hand (the method of manufactured solutions).

Source: Trefethen, Spectral Methods in MATLAB (SIAM, 2000), chapter 4, explains this spectral accuracy.
"""

from pathlib import Path

import decompops as dops
import jax
import numpy as np
from decompops.spectral import Poisson

from options import Parser, at_least, figure, make_mesh, mesh_shape, progress


LENGTHS = (2 * np.pi, np.pi, 4 * np.pi)


def manufactured(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return u and f on n³ points of the box."""
    x, y, z = np.meshgrid(*(length * np.arange(n) / n for length in LENGTHS), indexing="ij")
    u = np.exp(np.sin(x) + np.cos(2 * y)) * np.sin(z / 2)
    along_x = np.cos(x) ** 2 - np.sin(x)
    along_y = 4 * np.sin(2 * y) ** 2 - 4 * np.cos(2 * y)
    return u, (along_x + along_y - 1 / 4) * u


def solve(mesh: jax.sharding.Mesh, f: np.ndarray) -> np.ndarray:
    """Return the solution u of ∇²u = f whose mean is zero."""
    fft = dops.FFT3D(mesh, shape=f.shape, box=dops.Box(LENGTHS), pad=True, real=True)
    return fft.decomposition.gather(jax.jit(Poisson(fft))(fft.decomposition.shard(f)))


def plot(sizes: list[int], errors: list[float], path: Path) -> None:
    """Draw the errors, and for comparison the errors of a second-order method."""
    second = {"a second-order method": (np.array(sizes), errors[0] * (np.array(sizes) / sizes[0]) ** -2.0)}
    axes = dops.plot.curves(
        np.array(sizes),
        {"spectral": np.array(errors)},
        references=second,
        xlabel="points along each axis",
        label="greatest error",
        title="Solution of Poisson's equation",
        log="y",
        style="o-",
    )
    axes.figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> list[float]:
    """Run the example. Returns the greatest error on each grid."""
    parser = Parser(__doc__)
    parser.add_argument(
        "--sizes",
        type=at_least(2),
        nargs="+",
        default=[8, 12, 16, 20, 24, 32, 40],
        help="points along each axis of each grid",
    )
    parser.add_argument("--mesh", type=mesh_shape, help="devices along x and y, such as 2x4 (all along y)")
    parser.add_argument("--out", type=figure, default="poisson.png", help="file of the figure (poisson.png)")
    args = parser.parse_args(argv)
    mesh = make_mesh(parser, args.mesh, x=2, y=4)

    errors = []
    with jax.set_mesh(mesh), progress("solving", len(args.sizes)) as report:
        for n in args.sizes:
            u, f = manufactured(n)
            errors.append(float(np.abs(solve(mesh, f) - u).max()))
            print(f"{n:4d}³ points: greatest error {errors[-1]:.2e}", flush=True)
            report(len(errors))
    plot(args.sizes, errors, args.out)
    print(f"Figure: {args.out}")
    return errors


if __name__ == "__main__":
    main()
