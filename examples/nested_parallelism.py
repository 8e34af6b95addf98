"""An ensemble of simulations, each on several devices: nested parallelism with `jax.vmap`.

    python examples/nested_parallelism.py            # 4 flows in 2 groups of 2x2 virtual CPU devices, or GPUs: a minute
    python examples/nested_parallelism.py --n 64 --members 8 --mesh 4x1x2

The devices form a mesh with the axes c, x and y. Operators shard each grid over x and y. `jax.vmap` turns a solver for
one flow into a solver for an ensemble. If the ensemble is sharded over c, each group of devices along x and y computes
its own members. The groups do not communicate with each other: the example checks this in its compiled program.

The flows are incompressible. Each flow is in a periodic box, and has a viscosity ν of its own. With the projection P
onto divergence-free fields, the flows obey

    ∂u/∂t = -P((u·∇)u) + ν∇²u.

Source: Antuono (J. Fluid Mech. 890, 2020) gives the exact solution that each flow is compared with.
"""

import math
import re

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
from decompops import spectral
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import options


END = 2.0
HIGHEST = 0.2  # The highest viscosity.


def solve(fft: dops.FFT, viscosity: Array, u: Array) -> Array:
    """Return one flow (3, n, n, n) at the time `END`, by the classical fourth-order Runge–Kutta method."""
    steps = math.ceil(END * HIGHEST * 3 * (u.shape[-1] / 3) ** 2 / 2.5)  # The method is stable for νk²dt < 2.78.
    dt = END / steps
    gradient = spectral.Gradient(fft)
    laplacian = spectral.Laplacian(fft)
    project = spectral.LerayProjection(fft)

    def rate(u):
        return viscosity * laplacian(u) - project(jnp.sum(u * gradient(u), axis=1))  # gradient(u)[i, j] = ∂uᵢ/∂xⱼ

    def step(u, _):
        k1 = rate(u)
        k2 = rate(u + dt / 2 * k1)
        k3 = rate(u + dt / 2 * k2)
        k4 = rate(u + dt * k3)
        return u + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

    return jax.lax.scan(step, u, length=steps)[0]


def ensemble(fft: dops.FFT, viscosities: Array, flows: Array) -> Array:
    """Return all flows (members, 3, n, n, n) at the time `END`."""
    return jax.vmap(lambda viscosity, u: solve(fft, viscosity, u))(viscosities, flows)


def exact(n: int, viscosities: np.ndarray, time: float) -> np.ndarray:
    """Return Antuono's solutions on the points of the grid, of shape (members, 3, n, n, n)."""
    points = 2 * np.pi * np.arange(n) / n
    grid = np.meshgrid(points, points, points, indexing="ij")
    a, b = 5 * np.pi / 6, np.pi / 6

    def component(x, y, z):
        return np.sin(x - a) * np.cos(y - b) * np.sin(z) - np.cos(z - a) * np.sin(x - b) * np.sin(y)

    start = np.stack([component(*(grid[(axis + i) % 3] for i in range(3))) for axis in range(3)])
    decay = np.exp(-3 * viscosities * time).reshape(-1, 1, 1, 1, 1)
    return 4 * 2**0.5 / (3 * 3**0.5) * decay * start


def collectives(text: str) -> list[tuple[str, list[set[int]]]]:
    """Return the kind of each collective in a compiled program, and the groups of devices that take part."""
    kinds = "all-to-all|all-gather|all-reduce|reduce-scatter|collective-permute|collective-broadcast"
    found = []
    for kind, rest in re.findall(rf"({kinds})(?:-start)?\((.*)", text):
        if listed := re.search(r"(?:replica_groups|source_target_pairs)=\{(\{.*?\})\}", rest):  # {{0,1},{2,3}}
            groups = [integers(group) for group in re.findall(r"\{(.*?)\}", listed[1])]
        elif iota := re.search(r"replica_groups=\[(.*?)\]<=\[(.*?)\](?:T\((.*?)\))?", rest):  # [2,2]<=[2,2]T(1,0)
            source = integers(iota[2])
            devices = np.arange(math.prod(source)).reshape(source)
            groups = devices.transpose(integers(iota[3]) if iota[3] else None).reshape(integers(iota[1])).tolist()
        elif named := re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}:]*)\}", rest):  # mesh['x'=2,'y'=2] {'y'}
            sizes = {name: int(size) for name, size in (axis.split("=") for axis in named[1].split(","))}
            devices = np.arange(math.prod(sizes.values())).reshape(*sizes.values())
            along = [list(sizes).index(name) for name in named[2].split(",")]
            last = np.moveaxis(devices, along, range(-len(along), 0))
            groups = last.reshape(-1, math.prod(last.shape[-len(along) :])).tolist()
        else:
            raise ValueError(f"unknown replica groups: {rest}")
        found.append((kind, [set(group) for group in groups]))
    return found


def integers(text: str) -> list[int]:
    """Return the numbers in a text such as "0,1"."""
    return [int(number) for number in text.split(",")]


def check(mesh: Mesh, found: list[tuple[str, list[set[int]]]]) -> None:
    """Print the collectives of a program. Stop unless all are all-to-alls within one group of devices."""
    own = [set(devices.tolist()) for devices in np.arange(mesh.size).reshape(mesh.shape["c"], -1)]
    for kind, groups in sorted({(kind, str(groups)[1:-1]) for kind, groups in found}):
        print(f"  {kind} within each of {groups}")
    if not all(kind == "all-to-all" and any(group <= o for o in own) for kind, groups in found for group in groups):
        raise SystemExit(f"The program contains more than all-to-alls within {own}.")
    print(f"All {len(found)} collectives are all-to-alls within {' or '.join(map(str, own))}.")


def plot(dec: dops.Decomposition, u: Array, viscosities: np.ndarray, path: options.Path) -> None:
    """Draw a plane of each member, with the blocks of the devices."""
    n, columns = u.shape[2], min(2, len(viscosities))
    rows = math.ceil(len(viscosities) / columns)
    title = "First velocity component of each flow in the plane z = π/2, and its devices"
    panels = dops.plot.panels(rows, columns, size=(4, 3.6), title=title).ravel()
    for axes in panels[len(viscosities) :]:
        axes.remove()
    panels = panels[: len(viscosities)]
    titles = [f"ν = {viscosity:.3f}" for viscosity in viscosities]
    grid = dops.Decomposition(dec, box=dops.Box(n))  # Coordinates are in cells.
    dops.plot.slice(grid, u[:, 0], "z", index=n // 4, limits=(-1.4, 1.4), ax=panels, title=titles)
    for axes in panels:
        axes.images[0].set_interpolation("bicubic")
        axes.set(xlabel="x [cells]", ylabel="y [cells]")
    for shard in u.addressable_shards:
        members, _, x, y, _ = (range(*index.indices(length)) for index, length in zip(shard.index, u.shape))
        for axes in panels[members.start : members.stop]:
            axes.axvline(x.start - 0.5, color="black")
            axes.axhline(y.start - 0.5, color="black")
            axes.text(x.start + n / 40, y.start + n / 40, f"device {shard.device.id}")
    panels[0].figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> np.ndarray:
    """Run the example. Returns the flows (members, 3, n, n, n) at the time `END`."""
    parser = options.Parser(__doc__)
    parser.add_argument("--n", type=options.at_least(8), default=24, help="cells along each axis (24)")
    parser.add_argument("--members", type=options.at_least(1), default=4, help="flows in the ensemble (4)")
    parser.add_argument("--mesh", type=options.mesh_shape, help="groups, and devices along x and y in each (2x2x2)")
    parser.add_argument("--out", type=options.figure, default="nested_parallelism.png", help="file of the figure")
    args = parser.parse_args(argv)
    mesh = options.make_mesh(parser, args.mesh, c=2, x=2, y=2)
    if args.members % mesh.shape["c"]:
        parser.error(f"argument --members: must be a multiple of {mesh.shape['c']}, the groups; got '{args.members}'")

    backend = dops.XLA()  # The compiled program shows XLA's collectives; other backends communicate inside kernels.
    fft = dops.FFT3D(mesh, shape=(args.n,) * 3, pad=True, real=True, backend=backend)
    fft = spectral.dealiased(fft)  # By the 2/3 rule.
    values = np.geomspace(HIGHEST / 10, HIGHEST, args.members)
    viscosities = jax.device_put(values, NamedSharding(mesh, P("c")))
    flows = fft.decomposition.shard(exact(args.n, values, 0.0))  # Sharded over c, x and y.
    with jax.set_mesh(mesh), options.progress("compiling and simulating", 2) as report:
        program = jax.jit(ensemble).lower(fft, viscosities, flows).compile()
        report(1)
        flows = jax.block_until_ready(program(fft, viscosities, flows))

    print(
        f"{args.members} flows of {args.n}³ cells on {mesh.size} {jax.default_backend()} devices, {flows.sharding.spec}"
    )
    for shard in flows.addressable_shards:
        members, _, x, y, _ = (index.indices(length)[:2] for index, length in zip(shard.index, flows.shape))
        print(f"  device {shard.device.id}: members {members}, x {x}, y {y}")
    check(mesh, collectives(str(program.as_text())))
    result, expected = fft.decomposition.gather(flows), exact(args.n, values, END)
    errors = abs(result - expected).max(axis=(1, 2, 3, 4)) / abs(expected).max(axis=(1, 2, 3, 4))
    for viscosity, error in zip(values, errors):
        print(f"  ν = {viscosity:.3f}: relative error {error:.1e} against the exact solution")
    if not (errors < 1e-4).all():
        raise SystemExit("An error is larger than 1e-4; use a larger --n.")
    plot(fft.decomposition, flows, values, args.out)
    print(f"Figure: {args.out}")
    return result


if __name__ == "__main__":
    main()
