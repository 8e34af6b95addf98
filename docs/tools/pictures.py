"""Draw which parts of an array each device holds, bodies between cells, and diagrams, as pictures in docs/pictures.

All parts are shards of real arrays, and all lengths are those of real operators.

python docs/tools/pictures.py            # draw the pictures
python docs/tools/pictures.py --check    # fail if a committed picture differs from a new one
"""

import argparse
import itertools
import sys
from pathlib import Path

import curves
import decompops as dops
import diagrams
import fields
import jax
import jax.numpy as jnp
import numpy as np
from decompops import finite_volume
from svg import (
    COLOURS,
    FAINT,
    INK,
    PADDING,
    arrow,
    axis_names,
    borders,
    box,
    cells,
    cube,
    label,
    owners_of,
    picture,
    plane_of,
    shape_text,
    spec_text,
    square,
)


FOLDER = Path(__file__).parents[1] / "pictures"


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw what each device holds, from the shards of real arrays.")
    parser.add_argument("--check", action="store_true", help="compare the committed pictures with new ones")
    args = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 8)
    pictures = draw()
    if args.check:
        old = [name for name, text in pictures.items() if not _is_file_with(FOLDER / name, text)]
        sys.exit(f"draw {', '.join(old)} again: python docs/tools/pictures.py" if old else 0)
    FOLDER.mkdir(exist_ok=True)
    for name, text in pictures.items():
        (FOLDER / name).write_text(text)


def draw() -> dict[str, str]:
    """Return the text of each SVG file by its name."""
    mesh = jax.make_mesh((2, 4), ("x", "y"))
    fft = dops.FFT3D(mesh, shape=(32, 32, 32), backend=dops.XLA())
    u = fft.decomposition.shard(np.zeros((32, 32, 32), np.complex64))
    middle = dops.Transpose(fft.decomposition, "z", "y")(u)
    return {
        "shards.svg": shards(u),
        "transform.svg": transform((u, middle, fft(u))),
        "padding.svg": padding(mesh),
        "halo.svg": halo(mesh),
        "bodies.svg": bodies(),
        "bases.svg": bases(),
        "modes.svg": modes(mesh),
        "equations.svg": equations(),
        **diagrams.draw(mesh),
        **curves.draw(),
        **fields.draw(),
    }


def shards(u: jax.Array) -> str:
    """The blocks of one array as parts of a cube, with the shape of a block."""
    notes = [
        f"Global shape {shape_text(u.shape)}",
        f"Sharding {spec_text(u)}",
        f"Each device holds {shape_text(u.addressable_shards[0].data.shape)}",
    ]
    text = [label(310, 105 + 34 * i, note, 20, "start") for i, note in enumerate(notes)]
    return picture(640, 260, [cube(u, 145, 128), *text])


def transform(arrays: tuple[jax.Array, jax.Array, jax.Array]) -> str:
    """The three pencils that a field passes through in a Fourier transform."""
    titles = ("z-pencils", "y-pencils", "x-pencils")
    steps = ("FFTs along z", "FFTs along y", "FFTs along x")
    parts = []
    for i, (array, title, step) in enumerate(zip(arrays, titles, steps)):
        x = 125 + 270 * i
        parts += [cube(array, x, 210), label(x + 15, 30, title, 24), label(x + 15, 56, spec_text(array), 18)]
        parts.append(label(x + 15, 350, step, 20))
    for i, (before, after) in enumerate(itertools.pairwise(array.sharding.spec for array in arrays)):
        x = 230 + 270 * i
        (moved,) = (name for name in before if name is not None and before.index(name) != after.index(name))
        parts += [arrow(x, 375, x + 90), label(x + 45, 402, f'all-to-all along "{moved}"', 18)]
    return picture(820, 420, parts)


def padding(mesh: jax.sharding.Mesh) -> str:
    """The cells of a padded field in the x-y plane, and the modes of its half spectrum in the y-z plane."""
    fft = dops.FFT3D(mesh, shape=(6, 10, 12), real=True, pad=True)
    panels = []
    for layout, plane, left, title in (
        (fft.in_layout, (0, 1), 50, "Field: 10 cells along y"),
        (fft.out_layout, (1, 2), 370, "Spectrum: 7 modes along z"),
    ):
        inside = layout.gather(layout.shard(np.ones(layout.true_shape))).shape
        owners = plane_of(owners_of(layout.shard(np.zeros(layout.true_shape))), plane)
        true = np.zeros(owners.shape, bool)
        true[: inside[plane[0]], : inside[plane[1]]] = True
        panels += [cells(np.where(true, owners, -1), left, 70), borders(owners, left, 70)]
        panels += [label(left, 30, title, 20, "start"), *axis_names(left, 70, plane)]
    legend = [
        f'<path d="{square(50, 295)}" fill="{PADDING}" stroke="{FAINT}"/>',
        label(80, 311, "padding: stored as zeros, ignored by operators", 20, "start"),
    ]
    return picture(640, 335, panels + legend)


def halo(mesh: jax.sharding.Mesh) -> str:
    """The blocks of a field in the x-y plane, and the same blocks after a halo exchange, coloured by owner."""
    exchange = dops.HaloExchange(mesh, halo=(1, 1, 0), shape=(8, 16, 4), backend=dops.XLA())
    owners = owners_of(exchange.decomposition.shard(np.zeros((8, 16, 4), np.float32)))
    before = plane_of(owners, (0, 1))
    parts = [label(50, 30, "Field: every cell has one owner", 20, "start"), cells(before, 50, 70)]
    parts += [borders(before, 50, 70), *axis_names(50, 70, (0, 1))]
    # The halo exchange copies the numbers of the owners, so the colour of a halo cell shows from which owner it came.
    extended = exchange(exchange.decomposition.shard(owners.astype(np.float32)))
    parts.append(label(50, 280, "After the halo exchange: copies of the neighbours’ cells", 20, "start"))
    for shard in extended.addressable_shards:
        block = np.asarray(shard.data)[:, :, 0].astype(int)
        row, column = (index.start // size for index, size in zip(shard.index, block.shape))
        left, top = 50 + column * 142, 300 + row * 142
        parts += [cells(block, left, top, shard.device.id), borders(block, left, top, shard.device.id)]
    return picture(640, 590, parts)


def bodies() -> str:
    """The open fractions of cells and faces around a "neumann" body, and the links to the surface of a "dirichlet" one.

    All lengths are those of the operators: the second axis of the grid points to the right, the first one down.
    """
    n, size, top, centre, radius = 7, 40, 70, (3.7, 3.3), 2.15
    dec = dops.Decomposition(jax.make_mesh((1,), ("x",)), shape=(n, n), box=dops.Box(float(n)), backend=dops.XLA())
    ball = lambda x, y: jnp.sqrt((x - centre[0]) ** 2 + (y - centre[1]) ** 2) - radius
    cut, given = (finite_volume.Body(ball, kind) for kind in ("neumann", "dirichlet"))
    volumes = np.asarray(finite_volume.Diffusion(dec, boundary="neumann", body=cut).volumes)
    openings = np.asarray(finite_volume.Gradient(dec, boundary="neumann", body=cut).openings)
    operator = finite_volume.Diffusion(dec, boundary="neumann", body=given)
    parts = []
    for left, title in ((30, "“neumann”: cut cells and faces"), (350, "“dirichlet”: links to the surface")):
        at = f'cx="{left + size * centre[1]:g}" cy="{top + size * centre[0]:g}" r="{size * radius:g}"'
        parts += [label(left, 40, title, 20, "start"), f'<circle {at} fill="{PADDING}" stroke="{INK}"/>']
        lines = "".join(f"M{left} {top + size * i}h{size * n}M{left + size * i} {top}v{size * n}" for i in range(n + 1))
        parts.append(f'<path d="{lines}" fill="none" stroke="{FAINT}" stroke-width="0.5"/>')
    faces = ""
    for i, j in np.ndindex(n, n):
        x, y, share = 30 + size * j, top + size * i, volumes[i, j]
        if 0 < share < 1:
            parts.append(label(x + size / 2, y + size / 2 + 5, f"{share:.2f}", 13))
        # A face that is cut is drawn from its open end.
        for opening, start, along in ((openings[0, i, j], (i, j), 1), (openings[1, i, j], (i, j), 0)):
            ends = [ball(*(start[axis] + (axis == along) * step for axis in (0, 1))) for step in (0, 1)]
            first = 0 if ends[0] > 0 else 1 - opening
            if start[1 - along] and opening > 0:
                shift, length = size * first, size * opening
                faces += f"M{x + shift:.1f} {y}h{length:.1f}" if along else f"M{x} {y + shift:.1f}v{length:.1f}"
    parts.append(f'<path d="{faces}" fill="none" stroke="{COLOURS[1]}" stroke-width="2.5"/>')
    dots, links = "", ""
    is_open = np.asarray(operator.open_cells)
    for axis, conductances in enumerate(map(np.asarray, operator.around.conductances)):
        for place in np.argwhere(conductances > 0):
            length = 1 / conductances[tuple(place)]  # The cells have unit sides.
            lower = place - np.eye(2, dtype=int)[axis]
            sign, cell = (1, lower) if is_open[tuple(lower)] else (-1, place)
            x, y = 350 + size * (cell[1] + 0.5), top + size * (cell[0] + 0.5)
            links += f"M{x:g} {y:g}" + f"{'vh'[axis]}{sign * size * length:.1f}"
    for i, j in np.argwhere(is_open):
        dots += f"M{350 + size * (j + 0.5) - 3:g} {top + size * (i + 0.5):g}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0"
    parts.append(f'<path d="{links}" fill="none" stroke="{COLOURS[5]}" stroke-width="3"/>')
    parts.append(f'<path d="{dots}" fill="{COLOURS[1]}"/>')
    notes = ("Numbers: the open fraction of a cell.", "Blue: the open part of each face.")
    parts += [label(30, 378 + 24 * i, note, 17, "start") for i, note in enumerate(notes)]
    notes = ("Blue: centres outside, with a value each.", "Orange: to the surface, at its distance.")
    parts += [label(350, 378 + 24 * i, note, 17, "start") for i, note in enumerate(notes)]
    return picture(670, 420, parts)


def bases() -> str:
    """The points of each basis, at their places between the two ends of an axis."""
    n, left, length = 12, 170, 440
    kinds = {"Fourier()": dops.Fourier(), "Cosine(2)": dops.Cosine(2), "Sine(2)": dops.Sine(2)}
    kinds |= {"Chebyshev()": dops.Chebyshev(), "Cells.clustered": dops.Cells.clustered(n, 2.0)}
    parts = [label(x, 24, name, 17) for x, name in ((left, "first end"), (left + length, "second end"))]
    parts += [f'<path d="M{x} 36V{52 + 40 * len(kinds)}" stroke="{INK}"/>' for x in (left, left + length)]
    for row, (name, basis) in enumerate(kinds.items()):
        y = 62 + 40 * row
        parts += [label(20, y + 6, name, 17, "start"), f'<path d="M{left} {y}h{length}" stroke="{FAINT}"/>']
        places = left + length * np.asarray(basis.points(n))
        parts += [f'<circle cx="{x:.1f}" cy="{y}" r="5" fill="{COLOURS[0]}"/>' for x in places]
    return picture(670, 60 + 40 * len(kinds), parts)


def modes(mesh: jax.sharding.Mesh) -> str:
    """The modes along y and z that each device holds, of a full transform and of one that keeps some modes."""
    parts = []
    for kept, left, title in ((None, 50, "All modes of 16³ cells"), (8, 400, "modes=8: the lowest")):
        fft = dops.FFT3D(mesh, shape=(16, 16, 16), modes=kept, backend=dops.XLA())
        owners = plane_of(owners_of(fft.out_layout.shard(np.zeros(fft.out_layout.true_shape))), (1, 2))
        parts += [cells(owners, left, 70), borders(owners, left, 70), label(left, 30, title, 20, "start")]
        parts += axis_names(left, 70, (1, 2))
    return picture(760, 410, parts)


def equations() -> str:
    """What some equations multiply, and which are built of another equation."""
    columns = (
        ("nothing", ("Diffusion", "Advection", "Dispersion", "HyperDiffusion", "Wave")),
        ("a velocity", ("NavierStokes", "Burgers", "KortewegDeVries", "ShallowWater", "Channel")),
        ("slopes", ("VorticityNavierStokes", "QuasiGeostrophic", "HasegawaWakatani", "KuramotoSivashinsky")),
        ("values at a point", ("AllenCahn", "CahnHilliard", "SwiftHohenberg", "GrayScott", "GrossPitaevskii")),
    )
    parts = []
    for i, (title, names) in enumerate(columns):
        x = 130 + 250 * i
        parts.append(label(x, 32, f"multiply {title}", 16, style="italic"))
        parts += [box(x, 50 + 42 * j, name, 0) for j, name in enumerate(names)]
    taken = {130: "PassiveScalar", 380: "Magnetohydrodynamics", 630: "RayleighBenard", 880: "ImaginaryTime"}
    parts.append(label(30, 298, "Built of another equation:", 16, "start", style="italic"))
    parts += [box(x, 312, name, 5) for x, name in taken.items()]
    sources = ("takes any flow, or itself", "takes NavierStokes", "adds heat to Channel", "takes GrossPitaevskii")
    parts += [label(x, 368, source, 15) for x, source in zip(taken, sources)]
    return picture(1010, 390, parts)


def _is_file_with(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


if __name__ == "__main__":
    main()
