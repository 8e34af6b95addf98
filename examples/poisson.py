"""Poisson's equation with a manufactured solution: the error falls faster than any power of the grid spacing.

    python examples/poisson.py --sizes 8 16 24 32 --mesh 2x4

∇²u = f in a periodic box, where u = exp(sin x + cos 2y) sin z is known and f follows from it by hand.
"""

import decompops as dops
import jax
import numpy as np
from decompops.spectral import Poisson

from options import Parser, at_least, figure, make_mesh, mesh_shape


LENGTHS = (2 * np.pi, np.pi, 4 * np.pi)


def manufactured(n: int) -> tuple[np.ndarray, np.ndarray]:
    """u and f on n³ points. The box is π long along y, and 4π along z."""
    x, y, z = np.meshgrid(*(length * np.arange(n) / n for length in LENGTHS), indexing="ij")
    u = np.exp(np.sin(x) + np.cos(2 * y)) * np.sin(z / 2)
    along_x = np.cos(x) ** 2 - np.sin(x)
    along_y = 4 * np.sin(2 * y) ** 2 - 4 * np.cos(2 * y)
    return u, (along_x + along_y - 1 / 4) * u


def solve(mesh: jax.sharding.Mesh, f: np.ndarray) -> np.ndarray:
    """The zero-mean solution u of ∇²u = f."""
    fft = dops.FFT3D(mesh, shape=f.shape, pad=True, real=True)
    poisson = Poisson(fft, dops.Box(LENGTHS))
    return fft.decomposition.gather(jax.jit(poisson)(fft.decomposition.shard(f)))


def plot(sizes: list[int], errors: list[float], path) -> None:
    second = {"second order": (np.array(sizes), errors[0] * (np.array(sizes) / sizes[0]) ** -2.0)}
    axes = dops.plot.curves(
        np.array(sizes),
        {"spectral": np.array(errors)},
        references=second,
        xlabel="points along each axis",
        label="greatest error",
        title="Poisson's equation",
        log="y",
        style="o-",
    )
    axes.figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> list[float]:
    parser = Parser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--sizes", type=at_least(2), nargs="+", default=[8, 12, 16, 20, 24, 32, 40], help="grids")
    parser.add_argument("--mesh", type=mesh_shape, help="devices along x and y, such as 2x4 (all along y)")
    parser.add_argument("--out", type=figure, default=figure("poisson.png"), help="the figure (poisson.png)")
    args = parser.parse_args(argv)
    mesh = make_mesh(parser, args.mesh, x=2, y=4)

    errors = []
    with jax.set_mesh(mesh):
        for n in args.sizes:
            u, f = manufactured(n)
            errors.append(float(np.abs(solve(mesh, f) - u).max()))
            print(f"{n:4d}³ points: greatest error {errors[-1]:.2e}")
    plot(args.sizes, errors, args.out)
    print(f"Figure: {args.out}")
    return errors


if __name__ == "__main__":
    main()
