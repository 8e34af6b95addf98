"""Gradients through halos: particles painted on a sharded grid, and a derivative that is right or wrong.

    python examples/halo_gradient.py                 # 32³ particles on 8 virtual CPU devices, or on GPUs
    pip install jaxdecomp                            # then the script shows jaxDecomp's gradient, too

Particles start on the points of a periodic grid and are displaced by less than `--halo` cells. Each particle shares its
mass among the eight cells around it (cloud in cell), as in particle-mesh codes for cosmology. The loss is the variance
of the density. The example computes its gradient with respect to the displacements on one device, with `jax.numpy`, and
on a mesh.

On the mesh, each device paints its own particles on its block and a halo. The mass in the halo belongs to the blocks of
the neighbouring devices.

- decompops: `HaloExchange.T`, the transpose of the halo exchange, adds this mass to the neighbours' blocks.
- jaxDecomp has no such operator. JaxPM, a particle-mesh code on top of jaxDecomp, makes the halo twice as wide, calls
  `jaxdecomp.halo_exchange` to get the neighbours' halos, and adds them. This example does the same.

Both densities are right. The gradient goes backwards through the exchange, so it needs the transpose of the exchange.
jaxDecomp 0.3.1 and 0.3.4, which both ran here, use the exchange itself instead of its transpose. Finite differences
show which gradient is right.
"""

import importlib.metadata
import itertools
import math
from collections.abc import Callable
from functools import partial

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import options


FIELD, VECTOR = P("x", "y", None), P(None, "x", "y", None)
Painter = Callable[[Array], Array]


def paint(displacement: Array, halo: int = 0) -> Array:
    """Return the density of displaced particles on the grid where they start, extended by a halo along x and y."""
    widths = (halo, halo, 0)
    shape = tuple(n + 2 * width for n, width in zip(displacement.shape[1:], widths))
    starts = jnp.indices(displacement.shape[1:], dtype=displacement.dtype)
    places = [d + i + width for d, i, width in zip(displacement, starts, widths)]
    density = jnp.zeros(shape, displacement.dtype)
    for corner in itertools.product((0, 1), repeat=3):
        cells = [(jnp.floor(x).astype(int) + side) % n for x, side, n in zip(places, corner, shape)]
        shares = [x - jnp.floor(x) if side else 1 - (x - jnp.floor(x)) for x, side in zip(places, corner)]
        density = density.at[tuple(cells)].add(math.prod(shares))
    return density


def with_decompops(mesh: Mesh, halo: int) -> Painter:
    """Paint on blocks with a halo; the transpose of the halo exchange adds the halo to the neighbours' blocks."""
    on_blocks = jax.shard_map(partial(paint, halo=halo), mesh=mesh, in_specs=VECTOR, out_specs=FIELD)
    exchange = dops.HaloExchange(mesh, (halo, halo, 0))
    return lambda displacement: exchange.T(on_blocks(displacement))


def with_jaxdecomp(mesh: Mesh, halo: int) -> Painter:
    """Paint on blocks with a halo of twice the width, exchange the outer half, and add it, as JaxPM does."""
    import jaxdecomp  # pyright: ignore[reportMissingImports]  (not needed by the rest of the example)

    def add_halos(block: Array) -> Array:
        for axis in (0, 1):
            block = jnp.moveaxis(block, axis, 0)
            block = block.at[2 * halo : 3 * halo].add(block[:halo]).at[-3 * halo : -2 * halo].add(block[-halo:])
            block = jnp.moveaxis(block[2 * halo : -2 * halo], 0, axis)
        return block

    on_blocks = jax.shard_map(partial(paint, halo=2 * halo), mesh=mesh, in_specs=VECTOR, out_specs=FIELD)
    to_owners = jax.shard_map(add_halos, mesh=mesh, in_specs=FIELD, out_specs=FIELD)
    return lambda u: to_owners(jaxdecomp.halo_exchange(on_blocks(u), (halo, halo), (True, True)))


def displacements(n: int, largest: float, seed: int) -> np.ndarray:
    """Return random displacements (3, n, n, n), smooth over about two cells, of at most `largest` cells per axis."""
    noise = np.random.default_rng(seed).standard_normal((3, n, n, n))
    k = 2 * np.pi * np.fft.fftfreq(n)
    smoothing = np.exp(-(k[:, None, None] ** 2 + k[:, None] ** 2 + k**2) * 2)
    smooth = np.fft.ifftn(np.fft.fftn(noise, axes=(1, 2, 3)) * smoothing, axes=(1, 2, 3)).real
    return smooth * largest / abs(smooth).max()


def clumping(painter: Painter) -> Callable[[Array], tuple[Array, Array]]:
    """Return a function of the displacements: the variance of the density and its gradient. The mean density is 1."""
    return jax.jit(jax.value_and_grad(lambda displacement: jnp.mean((painter(displacement) - 1) ** 2)))


def plot(mesh: Mesh, density: Array, errors: dict[str, np.ndarray], path: options.Path) -> None:
    """Draw the density, and the error of each gradient relative to the gradient's size, both as means along z."""
    panels = dops.plot.panels(1, 1 + len(errors), size=(4.4, 3.8)).ravel()
    dec = dops.Decomposition(mesh, shape=density.shape, box=dops.Box(density.shape))  # Lengths are in cells.
    dops.plot.projection(dec, density, "z", "mean", ax=panels[0], title="density, mean along z", label="1 + δ")
    for panel, (name, error) in zip(panels[1:], errors.items()):
        size = dec.shard(np.maximum(np.sqrt(np.mean(error**2, axis=0)), 1e-18))  # no zeros, for the logarithm
        style = {"log": True, "limits": (1e-17, 10), "cmap": "magma", "label": "relative error of the gradient"}
        dops.plot.projection(dec, size, "z", "mean", **style, ax=panel, title=name)
    for panel in panels:
        panel.set(xlabel="x [cells]", ylabel="y [cells]")
    panels[0].figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> dict[str, tuple[float, float, float]]:
    """Run the example. Returns the relative errors of value, gradient and slope for each library."""
    parser = options.Parser(__doc__)
    parser.add_argument("--n", type=options.at_least(8), default=32, help="cells and particles along each axis (32)")
    parser.add_argument("--halo", type=options.at_least(1), default=2, help="cells that a particle may move (2)")
    parser.add_argument("--seed", type=options.at_least(0), default=0, help="of the random numbers (0)")
    parser.add_argument("--mesh", type=options.mesh_shape, help="devices along x and y (2x4)")
    parser.add_argument(
        "--out", type=options.figure, default="halo_gradient.png", help="the figure (halo_gradient.png)"
    )
    args = parser.parse_args(argv)
    mesh = options.make_mesh(parser, args.mesh, x=2, y=4)
    mesh = Mesh(mesh.devices, mesh.axis_names)  # with Auto axes: jaxDecomp does not take Explicit ones
    if any(args.n % parts or args.n // parts < args.halo for parts in mesh.axis_sizes):
        parser.error(
            f"argument --n: must be a multiple of the devices along x and y, {mesh.axis_sizes}, and blocks must be at "
            f"least {args.halo} cells wide; got '{args.n}'"
        )

    print(f"{args.n}³ particles on {'x'.join(map(str, mesh.axis_sizes))} {jax.default_backend()} devices", flush=True)
    painters = {"decompops": with_decompops(mesh, args.halo)}
    if min(mesh.axis_sizes) == 1:
        print("jaxDecomp is left out: this example needs at least two devices along x and along y for it.")
    else:
        try:
            painters["jaxDecomp"] = with_jaxdecomp(mesh, args.halo)
        except ImportError:
            print("jaxDecomp is left out: it is not installed (pip install jaxdecomp).")

    found, errors = {}, {}
    with options.progress("computing and drawing gradients", 2 + len(painters)) as report:
        start = jnp.asarray(displacements(args.n, args.halo - 0.01, args.seed))
        alone = clumping(paint)
        value, gradient = alone(start)
        direction, eps = gradient / jnp.max(jnp.abs(gradient)), 1e-7
        # The step is small, because the slope jumps where a particle passes from cell to cell.
        slope = float(alone(start + eps * direction)[0] - alone(start - eps * direction)[0]) / (2 * eps)
        print(f"One device: variance of the density {value:.10f}")
        print(f"Its slope along the gradient: {np.sum(gradient * direction):.10f}, by finite differences {slope:.10f}")
        print("\nrelative error of      the value   the gradient   the slope, beside finite differences")
        report(1)

        sharded = jax.device_put(start, NamedSharding(mesh, VECTOR))
        for done, (name, painter) in enumerate(painters.items(), start=2):
            title = name if name == "decompops" else f"{name} {importlib.metadata.version(name.lower())}"
            sharded_value, sharded_gradient = clumping(painter)(sharded)
            difference = np.asarray(sharded_gradient) - np.asarray(gradient)
            errors[title] = difference / np.sqrt(np.mean(np.square(gradient)))
            found[name] = (
                abs(float(sharded_value / value) - 1),
                float(np.linalg.norm(difference) / np.linalg.norm(gradient)),
                abs(float(np.sum(np.asarray(sharded_gradient) * direction)) / slope - 1),
            )
            print(f"{title:<19}" + "".join(f"{error:13.1e}" for error in found[name]), flush=True)
            report(done)
        if not (max(found["decompops"][:2]) < 1e-12 and found["decompops"][2] < 1e-4):
            raise SystemExit("A check failed.")
        plot(mesh, jax.jit(painters["decompops"])(sharded), errors, args.out)
    print(f"Figure: {args.out}")
    return found


if __name__ == "__main__":
    main()
