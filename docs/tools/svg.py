"""Parts of the pictures: cubes, cells in the colours of their devices, images, lines, texts and arrows, as SVG."""

import itertools

import jax
import numpy as np


# One colour for each device: blue where x = 0 on the mesh, orange where x = 1.
COLOURS = ("#08519c", "#2f7fc0", "#6aaed6", "#b5d4ea", "#a63603", "#e6550d", "#fd9243", "#fdc692")
INK, FAINT, PADDING = "#222", "#999", "#e4e4e4"


def _finer(colours: tuple[str, ...]) -> tuple[str, ...]:
    """Colours, with the mean of each two neighbours between them."""
    rgb = np.array([list(bytes.fromhex(colour[1:])) for colour in colours])
    all_rgb = np.insert(rgb, range(1, len(rgb)), (rgb[1:] + rgb[:-1]) // 2, axis=0)
    return tuple("#" + bytes(one.tolist()).hex() for one in all_rgb)


# Colours of numbers: from negative to positive ones with zero in the middle, and from zero upwards.
SIGNED = _finer((*COLOURS[:4], "#f4f4f4", *COLOURS[:3:-1]))
UPWARDS = SIGNED[len(SIGNED) // 2 :: -1]
# The axes x, y, z of a cube point in these directions on the screen, so the face at the end of each axis is visible.
DIRECTIONS = np.array([(-0.42, 0.36), (0.86, 0.3), (0.0, -1.0)])
SIDE, GAP, CELL = 118, 0.06, 20


def owners_of(array: jax.Array) -> np.ndarray:
    """Return the number of the device that holds each element of an array."""
    owners = np.full(array.shape, -1)
    for shard in array.addressable_shards:
        owners[shard.index] = shard.device.id
    return owners


def cube(array: jax.Array, x: float, y: float, numbers: bool = True) -> str:
    """The blocks of an array of three axes as parts of a cube, whose centre is at (x, y).

    With `numbers`, each block shows the number of its device.
    """
    blocks = []
    for shard in array.addressable_shards:
        ends = [index.indices(size)[:2] for index, size in zip(shard.index, array.shape)]
        low, high = (np.array([end[i] / size for end, size in zip(ends, array.shape)]) for i in (0, 1))
        gap = GAP / 2 * ~((low == 0) & (high == 1))
        blocks.append((low + gap, high - gap, shard.device.id))
    # A block that lies further along an axis covers the blocks behind it.
    blocks.sort(key=lambda block: tuple(block[0]))
    return "".join(_block(*block, np.array((x, y)), numbers) for block in blocks) + _cube_axes(x, y)


def _block(low: np.ndarray, high: np.ndarray, device: int, centre: np.ndarray, numbers: bool) -> str:
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
        if numbers and axis == whole:
            x, y = np.mean(corners, axis=0)
            parts.append(label(x, y + 6, str(device), 17, fill=ink_on(device)))
    return "".join(parts)


def _cube_axes(x: float, y: float) -> str:
    """The names of the axes, next to the edges of a cube."""
    places = ((0.5, 1.13, -0.08), (1.13, 0.5, -0.08), (1.1, -0.12, 0.5))
    marks = (_screen(np.array(place), np.array((x, y))) for place in places)
    return "".join(label(at[0], at[1] + 6, name, 20, style="italic") for name, at in zip("xyz", marks))


def _screen(point: np.ndarray, centre: np.ndarray) -> np.ndarray:
    return centre + SIDE * (point - 0.5) @ DIRECTIONS * 1.15


def cells(owners: np.ndarray, left: float, top: float, holder: int | None = None) -> str:
    """The cells of a plane as squares in the colours of their owners; -1 is padding.

    Cells that `holder` holds for other owners are pale.
    """
    parts = []
    for owner in np.unique(owners):
        here = np.argwhere(owners == owner)
        path = "".join(square(left + CELL * column, top + CELL * row) for row, column in here)
        if owner < 0:
            parts.append(f'<path d="{path}" fill="{PADDING}" stroke="white"/>')
            continue
        is_own = holder in (None, owner)
        opacity = 1 if is_own else 0.5
        parts.append(f'<path d="{path}" fill="{COLOURS[owner]}" fill-opacity="{opacity}" stroke="white"/>')
        if is_own:
            y, x = np.floor(np.mean(here, axis=0)) * CELL + (top + CELL / 2 + 6, left + CELL / 2)
            parts.append(label(x, y, str(owner), 17, fill=ink_on(owner)))
    return "".join(parts)


def borders(owners: np.ndarray, left: float, top: float, holder: int | None = None) -> str:
    """A line around the cells of each owner, or of `holder` alone."""
    parts = []
    for owner in np.unique(owners) if holder is None else (holder,):
        here = np.argwhere(owners == owner)
        (y, x), (rows, columns) = here.min(axis=0), np.ptp(here, axis=0) + 1
        box = f'x="{left + CELL * x}" y="{top + CELL * y}" width="{CELL * columns}" height="{CELL * rows}"'
        parts.append(f'<rect {box} fill="none" stroke="{INK}" stroke-width="1.5"/>')
    return "".join(parts)


def axis_names(left: float, top: float, plane: tuple[int, int]) -> list[str]:
    down, right = ("xyz"[axis] for axis in plane)
    return [
        label(left - 20, top + 46, down, 20, style="italic"),
        label(left + 60, top - 8, right, 20, style="italic"),
    ]


def plane_of(owners: np.ndarray, plane: tuple[int, int]) -> np.ndarray:
    return owners[tuple(slice(None) if axis in plane else 0 for axis in range(3))]


def square(x: float, y: float) -> str:
    return f"M{x:g} {y:g}h{CELL}v{CELL}h-{CELL}z"


def image(values: np.ndarray, left: float, top: float, side: float, limits: tuple[float, float], colours) -> str:
    """Numbers as squares, in as many colours as `colours` has; the first axis goes down, the second to the right."""
    low, high = limits
    levels = np.clip((values - low) / (high - low) * len(colours), 0, len(colours) - 1).astype(int)
    paths = [""] * len(colours)
    for i, row in enumerate(levels):
        starts = [0, *np.flatnonzero(np.diff(row)) + 1, len(row)]
        for j, end in itertools.pairwise(starts):
            length = side * (end - j)
            paths[row[j]] += f"M{left + side * j:g} {top + side * i:g}h{length:g}v{side:g}h-{length:g}z"
    # Without smooth edges, no lines are visible between squares of the same colour.
    parts = [f'<path d="{path}" fill="{colour}"/>' for path, colour in zip(paths, colours) if path]
    return f'<g shape-rendering="crispEdges">{"".join(parts)}</g>'


def frame(left: float, top: float, width: float, height: float) -> str:
    at = f'x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}"'
    return f'<rect {at} fill="none" stroke="{INK}"/>'


def line(points, colour: str) -> str:
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>'


def arrow(x: float, y: float, end: float) -> str:
    head = "m-9 -6l9 6l-9 6" if end > x else "m9 -6l-9 6l9 6"
    return f'<path d="M{x} {y}H{end}{head}" fill="none" stroke="{INK}" stroke-width="2"/>'


def box(x: float, y: float, name: str, colour: int, width: float = 210) -> str:
    """A frame with a name, whose upper edge is centred at (x, y)."""
    frame = f'x="{x - width / 2:g}" y="{y:g}" width="{width:g}" height="32" rx="6"'
    rectangle = f'<rect {frame} fill="none" stroke="{COLOURS[colour]}" stroke-width="2"/>'
    return rectangle + label(x, y + 21, name, 16)


def label(x, y, text: str, size: int, anchor: str = "middle", fill: str = INK, style: str = "normal") -> str:
    at = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{fill}" font-style="{style}"'
    return f"<text {at}>{text}</text>"


def _shaded(device: int, shade: float) -> str:
    """The colour of a device, lighter for a positive shade and darker for a negative one."""
    towards = 255 if shade > 0 else 0
    mixed = (round(c + abs(shade) * (towards - c)) for c in bytes.fromhex(COLOURS[device][1:]))
    return "#" + bytes(mixed).hex()


def ink_on(device: int) -> str:
    return "white" if sum(bytes.fromhex(COLOURS[device][1:])) < 420 else INK


def shape_text(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))


def spec_text(array: jax.Array) -> str:
    names = (*array.sharding.spec, *(None,) * (array.ndim - len(array.sharding.spec)))
    return "P(" + ", ".join("None" if name is None else f'"{name}"' for name in names) + ")"


def picture(width: int, height: int, parts: list[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">\n'
        f'<rect width="{width}" height="{height}" rx="8" fill="white"/>\n{body}\n</svg>\n'
    )
