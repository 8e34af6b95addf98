"""Draw which parts of an array each device holds, and bodies between cells, as pictures in docs/pictures.

All parts are shards of real arrays, and all lengths are those of real operators.

python docs/tools/pictures.py            # draw the pictures
python docs/tools/pictures.py --check    # fail if a committed picture differs from a new one
"""

import argparse
import itertools
import sys
from pathlib import Path

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
from decompops import finite_volume


FOLDER = Path(__file__).parents[1] / "pictures"
# One colour for each device: blue where x = 0 on the mesh, orange where x = 1.
COLOURS = ("#08519c", "#2f7fc0", "#6aaed6", "#b5d4ea", "#a63603", "#e6550d", "#fd9243", "#fdc692")
INK, FAINT, PADDING = "#222", "#999", "#e4e4e4"
# The axes x, y, z of a cube point in these directions on the screen, so the face at the end of each axis is visible.
DIRECTIONS = np.array([(-0.42, 0.36), (0.86, 0.3), (0.0, -1.0)])
SIDE, GAP, CELL = 118, 0.06, 20


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
    }


def shards(u: jax.Array) -> str:
    """The blocks of one array as parts of a cube, with the shape of a block."""
    notes = [
        f"Global shape {_shape(u.shape)}",
        f"Sharding {_spec(u)}",
        f"Each device holds {_shape(u.addressable_shards[0].data.shape)}",
    ]
    text = [_text(310, 105 + 34 * i, note, 20, "start") for i, note in enumerate(notes)]
    return _svg(640, 260, [cube(u, 145, 128), *text])


def transform(arrays: tuple[jax.Array, jax.Array, jax.Array]) -> str:
    """The three pencils that a field passes through in a Fourier transform."""
    titles = ("z-pencils", "y-pencils", "x-pencils")
    steps = ("FFTs along z", "FFTs along y", "FFTs along x")
    parts = []
    for i, (array, title, step) in enumerate(zip(arrays, titles, steps)):
        x = 125 + 270 * i
        parts += [cube(array, x, 210), _text(x + 15, 30, title, 24), _text(x + 15, 56, _spec(array), 18)]
        parts.append(_text(x + 15, 350, step, 20))
    for i, (before, after) in enumerate(itertools.pairwise(array.sharding.spec for array in arrays)):
        x = 230 + 270 * i
        (moved,) = (name for name in before if name is not None and before.index(name) != after.index(name))
        parts += [_arrow(x, 375, x + 90), _text(x + 45, 402, f'all-to-all along "{moved}"', 18)]
    return _svg(820, 420, parts)


def padding(mesh: jax.sharding.Mesh) -> str:
    """The cells of a padded field in the x-y plane, and the modes of its half spectrum in the y-z plane."""
    fft = dops.FFT3D(mesh, shape=(6, 10, 12), real=True, pad=True)
    panels = []
    for layout, plane, left, title in (
        (fft.in_layout, (0, 1), 50, "Field: 10 cells along y"),
        (fft.out_layout, (1, 2), 370, "Spectrum: 7 modes along z"),
    ):
        inside = layout.gather(layout.shard(np.ones(layout.true_shape))).shape
        owners = _plane(owners_of(layout.shard(np.zeros(layout.true_shape))), plane)
        true = np.zeros(owners.shape, bool)
        true[: inside[plane[0]], : inside[plane[1]]] = True
        panels += [cells(np.where(true, owners, -1), left, 70), _borders(owners, left, 70)]
        panels += [_text(left, 30, title, 20, "start"), *_axes(left, 70, plane)]
    legend = [
        f'<path d="{_square(50, 295)}" fill="{PADDING}" stroke="{FAINT}"/>',
        _text(80, 311, "padding: stored as zeros, ignored by operators", 20, "start"),
    ]
    return _svg(640, 335, panels + legend)


def halo(mesh: jax.sharding.Mesh) -> str:
    """The blocks of a field in the x-y plane, and the same blocks after a halo exchange, coloured by owner."""
    exchange = dops.HaloExchange(mesh, halo=(1, 1, 0), shape=(8, 16, 4), backend=dops.XLA())
    owners = owners_of(exchange.decomposition.shard(np.zeros((8, 16, 4), np.float32)))
    before = _plane(owners, (0, 1))
    parts = [_text(50, 30, "Field: every cell has one owner", 20, "start"), cells(before, 50, 70)]
    parts += [_borders(before, 50, 70), *_axes(50, 70, (0, 1))]
    # The halo exchange copies the numbers of the owners, so the colour of a halo cell shows from which owner it came.
    extended = exchange(exchange.decomposition.shard(owners.astype(np.float32)))
    parts.append(_text(50, 280, "After the halo exchange: copies of the neighbours’ cells", 20, "start"))
    for shard in extended.addressable_shards:
        block = np.asarray(shard.data)[:, :, 0].astype(int)
        row, column = (index.start // size for index, size in zip(shard.index, block.shape))
        left, top = 50 + column * 142, 300 + row * 142
        parts += [cells(block, left, top, shard.device.id), _borders(block, left, top, shard.device.id)]
    return _svg(640, 590, parts)


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
        parts += [_text(left, 40, title, 20, "start"), f'<circle {at} fill="{PADDING}" stroke="{INK}"/>']
        lines = "".join(f"M{left} {top + size * i}h{size * n}M{left + size * i} {top}v{size * n}" for i in range(n + 1))
        parts.append(f'<path d="{lines}" fill="none" stroke="{FAINT}" stroke-width="0.5"/>')
    faces = ""
    for i, j in np.ndindex(n, n):
        x, y, share = 30 + size * j, top + size * i, volumes[i, j]
        if 0 < share < 1:
            parts.append(_text(x + size / 2, y + size / 2 + 5, f"{share:.2f}", 13))
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
    parts += [_text(30, 378 + 24 * i, note, 17, "start") for i, note in enumerate(notes)]
    notes = ("Blue: centres outside, with a value each.", "Orange: to the surface, at its distance.")
    parts += [_text(350, 378 + 24 * i, note, 17, "start") for i, note in enumerate(notes)]
    return _svg(670, 420, parts)


def bases() -> str:
    """The points of each basis, at their places between the two ends of an axis."""
    n, left, length = 12, 170, 440
    kinds = {"Fourier()": dops.Fourier(), "Cosine(2)": dops.Cosine(2), "Sine(2)": dops.Sine(2)}
    kinds |= {"Chebyshev()": dops.Chebyshev(), "Cells.clustered": dops.Cells.clustered(n, 2.0)}
    parts = [_text(x, 24, name, 17) for x, name in ((left, "first end"), (left + length, "second end"))]
    parts += [f'<path d="M{x} 36V{52 + 40 * len(kinds)}" stroke="{INK}"/>' for x in (left, left + length)]
    for row, (name, basis) in enumerate(kinds.items()):
        y = 62 + 40 * row
        parts += [_text(20, y + 6, name, 17, "start"), f'<path d="M{left} {y}h{length}" stroke="{FAINT}"/>']
        places = left + length * np.asarray(basis.points(n))
        parts += [f'<circle cx="{x:.1f}" cy="{y}" r="5" fill="{COLOURS[0]}"/>' for x in places]
    return _svg(670, 60 + 40 * len(kinds), parts)


def modes(mesh: jax.sharding.Mesh) -> str:
    """The modes along y and z that each device holds, of a full transform and of one that keeps some modes."""
    parts = []
    for kept, left, title in ((None, 50, "All modes of 16³ cells"), (8, 400, "modes=8: the lowest")):
        fft = dops.FFT3D(mesh, shape=(16, 16, 16), modes=kept, backend=dops.XLA())
        owners = _plane(owners_of(fft.out_layout.shard(np.zeros(fft.out_layout.true_shape))), (1, 2))
        parts += [cells(owners, left, 70), _borders(owners, left, 70), _text(left, 30, title, 20, "start")]
        parts += _axes(left, 70, (1, 2))
    return _svg(760, 410, parts)


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
        parts.append(_text(x, 32, f"multiply {title}", 16, style="italic"))
        parts += [_box(x, 50 + 42 * j, name, 0) for j, name in enumerate(names)]
    taken = {130: "PassiveScalar", 380: "Magnetohydrodynamics", 630: "RayleighBenard", 880: "ImaginaryTime"}
    parts.append(_text(30, 298, "Built of another equation:", 16, "start", style="italic"))
    parts += [_box(x, 312, name, 5) for x, name in taken.items()]
    sources = ("takes any flow, or itself", "takes NavierStokes", "adds heat to Channel", "takes GrossPitaevskii")
    parts += [_text(x, 368, source, 15) for x, source in zip(taken, sources)]
    return _svg(1010, 390, parts)


def _box(x: float, y: float, name: str, colour: int) -> str:
    box = f'x="{x - 105}" y="{y}" width="210" height="32" rx="6"'
    rectangle = f'<rect {box} fill="none" stroke="{COLOURS[colour]}" stroke-width="2"/>'
    return rectangle + _text(x, y + 21, name, 16)


def owners_of(array: jax.Array) -> np.ndarray:
    """Return the number of the device that holds each element of an array."""
    owners = np.full(array.shape, -1)
    for shard in array.addressable_shards:
        owners[shard.index] = shard.device.id
    return owners


def cube(array: jax.Array, x: float, y: float) -> str:
    """The blocks of an array of three axes as parts of a cube, whose centre is at (x, y)."""
    blocks = []
    for shard in array.addressable_shards:
        ends = [index.indices(size)[:2] for index, size in zip(shard.index, array.shape)]
        low, high = (np.array([end[i] / size for end, size in zip(ends, array.shape)]) for i in (0, 1))
        gap = GAP / 2 * ~((low == 0) & (high == 1))
        blocks.append((low + gap, high - gap, shard.device.id))
    # A block that lies further along an axis covers the blocks behind it.
    blocks.sort(key=lambda block: tuple(block[0]))
    return "".join(_block(*block, np.array((x, y))) for block in blocks) + _cube_axes(x, y)


def _block(low: np.ndarray, high: np.ndarray, device: int, centre: np.ndarray) -> str:
    """A block as its three visible faces, with the number of its device on the face that no other block covers."""
    whole = int(np.argmax(high - low))
    parts = []
    for axis, shade in ((0, 0.0), (1, -0.18), (2, 0.2)):
        a, b = (other for other in range(3) if other != axis)
        corners = []
        for at_a, at_b in ((0, 0), (1, 0), (1, 1), (0, 1)):
            corner = high.copy()
            corner[a], corner[b] = (low[a], high[a])[at_a], (low[b], high[b])[at_b]
            corners.append(_screen(corner, centre))
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
        parts.append(f'<polygon points="{points}" fill="{_shaded(device, shade)}" stroke="white"/>')
        if axis == whole:
            x, y = np.mean(corners, axis=0)
            parts.append(_text(x, y + 6, str(device), 17, fill=_ink_on(device)))
    return "".join(parts)


def _cube_axes(x: float, y: float) -> str:
    """The names of the axes, next to the edges of a cube."""
    places = ((0.5, 1.13, -0.08), (1.13, 0.5, -0.08), (1.1, -0.12, 0.5))
    marks = (_screen(np.array(place), np.array((x, y))) for place in places)
    return "".join(_text(at[0], at[1] + 6, name, 20, style="italic") for name, at in zip("xyz", marks))


def _screen(point: np.ndarray, centre: np.ndarray) -> np.ndarray:
    return centre + SIDE * (point - 0.5) @ DIRECTIONS * 1.15


def cells(owners: np.ndarray, left: float, top: float, holder: int | None = None) -> str:
    """The cells of a plane as squares in the colours of their owners; -1 is padding.

    Cells that `holder` holds for other owners are pale.
    """
    parts = []
    for owner in np.unique(owners):
        here = np.argwhere(owners == owner)
        path = "".join(_square(left + CELL * column, top + CELL * row) for row, column in here)
        if owner < 0:
            parts.append(f'<path d="{path}" fill="{PADDING}" stroke="white"/>')
            continue
        is_own = holder in (None, owner)
        opacity = 1 if is_own else 0.5
        parts.append(f'<path d="{path}" fill="{COLOURS[owner]}" fill-opacity="{opacity}" stroke="white"/>')
        if is_own:
            y, x = np.floor(np.mean(here, axis=0)) * CELL + (top + CELL / 2 + 6, left + CELL / 2)
            parts.append(_text(x, y, str(owner), 17, fill=_ink_on(owner)))
    return "".join(parts)


def _borders(owners: np.ndarray, left: float, top: float, holder: int | None = None) -> str:
    """A line around the cells of each owner, or of `holder` alone."""
    parts = []
    for owner in np.unique(owners) if holder is None else (holder,):
        here = np.argwhere(owners == owner)
        (y, x), (rows, columns) = here.min(axis=0), np.ptp(here, axis=0) + 1
        box = f'x="{left + CELL * x}" y="{top + CELL * y}" width="{CELL * columns}" height="{CELL * rows}"'
        parts.append(f'<rect {box} fill="none" stroke="{INK}" stroke-width="1.5"/>')
    return "".join(parts)


def _axes(left: float, top: float, plane: tuple[int, int]) -> list[str]:
    down, right = ("xyz"[axis] for axis in plane)
    return [
        _text(left - 20, top + 46, down, 20, style="italic"),
        _text(left + 60, top - 8, right, 20, style="italic"),
    ]


def _plane(owners: np.ndarray, plane: tuple[int, int]) -> np.ndarray:
    return owners[tuple(slice(None) if axis in plane else 0 for axis in range(3))]


def _square(x: float, y: float) -> str:
    return f"M{x:g} {y:g}h{CELL}v{CELL}h-{CELL}z"


def _arrow(x: float, y: float, end: float) -> str:
    return f'<path d="M{x} {y}H{end}m-9 -6l9 6l-9 6" fill="none" stroke="{INK}" stroke-width="2"/>'


def _text(x, y, text: str, size: int, anchor: str = "middle", fill: str = INK, style: str = "normal") -> str:
    at = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{fill}" font-style="{style}"'
    return f"<text {at}>{text}</text>"


def _shaded(device: int, shade: float) -> str:
    """The colour of a device, lighter for a positive shade and darker for a negative one."""
    towards = 255 if shade > 0 else 0
    mixed = (round(c + abs(shade) * (towards - c)) for c in bytes.fromhex(COLOURS[device][1:]))
    return "#" + bytes(mixed).hex()


def _ink_on(device: int) -> str:
    return "white" if sum(bytes.fromhex(COLOURS[device][1:])) < 420 else INK


def _shape(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))


def _spec(array: jax.Array) -> str:
    names = (*array.sharding.spec, *(None,) * (array.ndim - len(array.sharding.spec)))
    return "P(" + ", ".join("None" if name is None else f'"{name}"' for name in names) + ")"


def _svg(width: int, height: int, parts: list[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">\n'
        f'<rect width="{width}" height="{height}" rx="8" fill="white"/>\n{body}\n</svg>\n'
    )


def _is_file_with(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


if __name__ == "__main__":
    main()
