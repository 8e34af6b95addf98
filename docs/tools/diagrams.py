"""Diagrams for the pages: plans and calls of kernels, meshes, padding, derivatives of halos, and shells of modes.

`python docs/tools/pictures.py` draws them. All of them show plans, arrays and numbers of real operators.
"""

import functools
import itertools
from collections.abc import Sequence
from types import SimpleNamespace

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
from decompops import nn, spectral
from decompops.extend import LocalTransform
from decompops.tools.bench.order import children
from decompops.tools.hlo import collectives
from svg import (
    CELL,
    COLOURS,
    FAINT,
    INK,
    PADDING,
    arrow,
    borders,
    box,
    cube,
    ink_on,
    label,
    owners_of,
    picture,
    shape_text,
    square,
)


def draw(mesh: jax.sharding.Mesh) -> dict[str, str]:
    """Return the text of each SVG file by its name, for a mesh of eight devices."""
    return {
        "layers.svg": layers(mesh),
        "order.svg": order(),
        "meshes.svg": meshes(),
        "sizes.svg": sizes(mesh),
        "adjoint.svg": adjoint(mesh),
        "shells.svg": shells(),
        "batches.svg": batches(),
        "reach.svg": reach(),
        "machines.svg": machines(mesh),
        "local.svg": local(mesh),
        "sent.svg": sent(mesh),
        "ranks.svg": ranks(),
    }


def layers(mesh: jax.sharding.Mesh) -> str:
    """A call of a transform: the stages of its plan, the call of XLA, the steps of a rank, and a tile of lines."""
    stages = dops.FFT3D(mesh, shape=(32, 32, 32), backend=dops.XLA()).plan().stages
    left, width, gap = 30, 96, 8
    centres = [left + width / 2 + (width + gap) * i for i in range(len(stages))]
    middle, whole = (centres[0] + centres[-1]) / 2, centres[-1] - centres[0] + width
    names = []
    for stage in stages:
        if isinstance(stage, LocalTransform):
            names.append("FFT " + "".join("xyz"[axis] for axis in stage.axes))
        else:
            names.append("reorder" if stage.gathered is None else "exchange")
    titles = (
        "1. Python: the plan of FFT3D, a list of stages",
        "2. XLA: one call of an FFI target for the whole plan",
        "3. Compiler: the program of a rank, a list of steps",
        "4. Pool: threads carry out a step, a tile of lines at a time",
    )
    tops = [20 + 100 * i for i in range(len(titles))]
    parts = [label(left, top + 12, title, 18, "start") for top, title in zip(tops, titles)]
    parts += [box(x, tops[0] + 26, name, 0, width) for x, name in zip(centres, names)]
    parts.append(box(middle, tops[1] + 26, "decompops_native or decompops_mpi", 5, whole))
    # The last stage only changes the storage order, which the sweep before it does while it stores its lines.
    for x, name in zip(centres, names):
        if name == "reorder":
            continue
        last = name == names[-2] and x == centres[-2]
        step = name.replace("FFT", "sweep") + (", in new order" if last else "")
        shift = (width + gap) / 2 if last else 0
        parts.append(box(x + shift, tops[2] + 26, step, 0, width + 2 * shift))
    third = (whole - 2 * 36) / 3
    for i, name in enumerate(("load the lines", "FFTW, MKL or DUCC", "store, or fill messages")):
        x = left + third / 2 + (third + 36) * i
        parts.append(box(x, tops[3] + 26, name, 0, third))
        if i:
            parts.append(_link(x - third / 2 - 32, tops[3] + 42, x - third / 2 - 5, tops[3] + 42))
    for top in tops[1:]:
        parts.append(_link(middle, top - 36, middle, top - 8))
    return picture(680, tops[-1] + 78, parts)


def order() -> str:
    """Two independent calls on four ranks: when XLA asks for them, the announcements, and when they run."""
    asked = {"A": (1.0, 5.0, 1.5, 3.0), "B": (2.5, 0.0, 4.0, 0.5)}
    size, overhead, latency, work = 4, 0.7, 1.0, 3.0
    left, scale, row = 92, 31, 76
    place = lambda time: left + scale * time
    height = lambda rank: 60 + row * rank
    colours = {"A": COLOURS[1], "B": COLOURS[5]}
    parts = [label(20, height(rank) + 6, f"rank {rank}", 18, "start") for rank in range(size)]
    parts += [f'<path d="M{left} {height(rank) + 16}H650" stroke="{FAINT}"/>' for rank in range(size)]
    free = [0.0] * size
    # The first rank runs calls in the order in which they reach it.
    for call in sorted(asked, key=lambda call: asked[call][0]):
        heard, begin = [max(asked[call][0], free[0])] + [0.0] * (size - 1), [0.0] * size
        # The children of a rank have larger numbers than the rank.
        for rank in range(size):
            now = heard[rank]
            for child in children(rank, size):
                now += overhead
                heard[child] = max(now + latency, free[child])
                ends = (place(now), height(rank) + 16, place(now + latency), height(child) + 16)
                parts.append(_link(*ends, dashed=True))
            begin[rank] = max(now, asked[call][rank])
        # An exchange ends when all ranks have come to it.
        end = max(begin) + work
        for rank in range(size):
            x, y = place(begin[rank]), height(rank)
            ready, done = place(begin[rank] + work) - x, place(end) - x
            for length, opacity in ((done, 0.35), (ready, 1)):
                shape = f'x="{x:g}" y="{y - 10:g}" width="{length:g}" height="26"'
                parts.append(f'<rect {shape} fill="{colours[call]}" fill-opacity="{opacity}"/>')
            parts.append(label(x + ready / 2, y + 9, call, 18, fill="white"))
            at = place(asked[call][rank])
            parts.append(f'<path d="M{at:g} {y - 12}l-6 -11h12z" fill="{colours[call]}"/>')
            parts.append(label(at, y - 27, call, 15, fill=colours[call]))
        free = [end] * size
    notes = (
        "Triangle: XLA asks this rank for call A or B. Dashed: announcements of the order.",
        "Bar: the call runs. Pale: it waits for other ranks. Time runs to the right.",
    )
    parts += [label(20, 352 + 24 * i, note, 16, "start") for i, note in enumerate(notes)]
    return picture(680, 392, parts)


def meshes() -> str:
    """The blocks of one field on three meshes of eight devices, and the exchanges of a transform."""
    parts = []
    for i, size in enumerate(((2, 4), (8, 1), (1, 8))):
        fft = dops.FFT3D(jax.make_mesh(size, ("x", "y")), shape=(32, 32, 32), backend=dops.XLA())
        u = fft.decomposition.shard(np.zeros((32, 32, 32), np.complex64))
        count = sum(getattr(stage, "gathered", None) is not None for stage in fft.plan().stages)
        x = 112 + 225 * i
        parts += [label(x + 8, 30, f"{size[0]} × {size[1]} devices", 19), cube(u, x, 160, numbers=1 not in size)]
        parts.append(label(x + 8, 308, shape_text(u.addressable_shards[0].data.shape), 18))
        parts.append(label(x + 8, 334, f"{count} exchange{'s' * (count > 1)}", 18))
    return picture(690, 352, parts)


def sizes(mesh: jax.sharding.Mesh) -> str:
    """The cells along the axis that is cut, with padding, for 30 cells on 4 devices and 9 planes on 8 devices."""
    parts = []
    line = jax.make_mesh((8,), ("x",))
    for i, (title, devices, shape, axis) in enumerate(
        (("30 cells along y on 4 devices: 2 are padding", mesh, (30, 30, 30), 1),
         ("9 planes along x on 8 devices: 3 devices hold only padding", line, (9, 32, 32), 0))
    ):  # fmt: skip
        dec = dops.Decomposition(devices, shape=shape, pad=True, backend=dops.XLA())
        owners = np.moveaxis(owners_of(dec.shard(np.zeros(shape, np.float32))), axis, 0)[:, 0, 0]
        top = 50 + 110 * i
        parts.append(label(20, top - 18, title, 19, "start"))
        for owner in np.unique(owners):
            here = np.flatnonzero(owners == owner)
            for colour, some in ((COLOURS[owner], here < shape[axis]), (PADDING, here >= shape[axis])):
                path = "".join(square(20 + CELL * place, top) for place in here[some])
                parts.append(f'<path d="{path}" fill="{colour}" stroke="white"/>')
            frame = f'x="{20 + CELL * here[0]}" y="{top}" width="{CELL * len(here)}" height="{CELL}"'
            parts.append(f'<rect {frame} fill="none" stroke="{INK}" stroke-width="1.5"/>')
            parts.append(label(20 + CELL * (here[0] + len(here) / 2), top + 42, f"{owner}", 17))
    note = "padding: stored as zeros"
    parts += [f'<path d="{square(440, 160)}" fill="{PADDING}" stroke="{FAINT}"/>', label(468, 176, note, 17, "start")]
    return picture(680, 225, parts)


def adjoint(mesh: jax.sharding.Mesh) -> str:
    """How many blocks hold a copy of each cell after a halo exchange, computed by the derivative of the exchange."""
    exchange = dops.HaloExchange(mesh, halo=(1, 1, 0), shape=(8, 16, 4), backend=dops.XLA())
    field = exchange.decomposition.shard(np.zeros((8, 16, 4), np.float32))
    extended, backward = jax.vjp(exchange, field)
    counts = np.asarray(backward(jnp.ones_like(extended))[0])[:, :, 0].astype(int)
    side, left, top = 38, 30, 54
    shades = {1: "#eff4fa", 2: "#b5d4ea", 4: "#2f7fc0"}
    parts = [label(left, 32, "The gradient of the sum of all cells after a halo exchange", 19, "start")]
    for (i, j), count in np.ndenumerate(counts):
        frame = f'x="{left + side * j}" y="{top + side * i}" width="{side}" height="{side}"'
        parts.append(f'<rect {frame} fill="{shades[int(count)]}" stroke="white"/>')
        ink = "white" if count == 4 else INK
        parts.append(label(left + side * (j + 0.5), top + side * (i + 0.5) + 6, str(count), 17, fill=ink))
    for shard in field.addressable_shards:
        row, column = (index.indices(size)[0] for index, size in zip(shard.index, field.shape[:2]))
        rows, columns = shard.data.shape[:2]
        frame = f'x="{left + side * column}" y="{top + side * row}" width="{side * columns}" height="{side * rows}"'
        parts.append(f'<rect {frame} fill="none" stroke="{INK}" stroke-width="1.5"/>')
    return picture(670, top + side * 8 + 20, parts)


def shells() -> str:
    """The modes of a plane kz = 0, in the colours of their shells of |k|, and the number of modes of each shell."""
    n, edges = 16, np.arange(0.5, 6)
    fft = dops.FFT3D(jax.make_mesh((1,), ("x",)), shape=(n, n, n), backend=dops.XLA())
    kx, ky, _ = (np.asarray(k).ravel() for k in fft.wavenumbers())
    modes = np.asarray(spectral.power_spectrum(fft, jnp.zeros((n, n, n)), edges=edges).modes)
    shell = np.searchsorted(edges, np.hypot(*np.meshgrid(np.sort(kx), np.sort(ky), indexing="ij")), side="right") - 1
    shell[shell >= len(modes)] = -1
    left, top, side = 40, 56, 20
    parts = [label(left, 32, "Modes with kz = 0", 19, "start")]
    for number in range(-1, len(modes)):
        here = np.argwhere(shell == number)
        path = "".join(square(left + side * j, top + side * i) for i, j in here)
        parts.append(f'<path d="{path}" fill="{COLOURS[number] if number >= 0 else PADDING}" stroke="white"/>')
    parts.append(label(430, 32, "Shells, and their modes in 3-D", 19, "start"))
    for number, count in enumerate(modes):
        y = top + 34 * number
        parts.append(f'<path d="{square(430, y)}" fill="{COLOURS[number]}"/>')
        parts.append(label(462, y + 16, f"{edges[number]} ≤ |k| &lt; {edges[number + 1]}", 18, "start"))
        parts.append(label(660, y + 16, f"{int(count)}", 18, "end"))
    notes = ("Each mode belongs to one shell.", "Grey modes belong to none.")
    parts += [label(430, top + 34 * len(modes) + 30 + 24 * i, note, 17, "start") for i, note in enumerate(notes)]
    parts += [label(left - 18, top + 40, "kx", 17, style="italic"), label(left + 26, top - 6, "ky", 17, style="italic")]
    return picture(700, top + side * n + 24, parts)


def batches() -> str:
    """The blocks of four fields on two groups of four devices."""
    mesh = jax.make_mesh((2, 2, 2), ("c", "x", "y"))
    dec = dops.Decomposition(mesh, shape=(16, 16, 16), backend=dops.XLA())
    fields = dec.shard(np.zeros((4, 16, 16, 16), np.float32))
    parts = []
    for i in range(4):
        here = [shard for shard in fields.addressable_shards if i in range(*shard.index[0].indices(4))]
        blocks = [SimpleNamespace(index=shard.index[1:], device=shard.device) for shard in here]
        x, y = 112 + 215 * i, 160
        (group, *_), *_ = np.argwhere(mesh.device_ids == blocks[0].device.id)
        field = SimpleNamespace(shape=(16, 16, 16), addressable_shards=blocks)
        parts += [label(x + 8, y - 130, f"field {i}", 19), cube(field, x, y)]
        parts.append(label(x + 8, y + 148, f"group c = {group}", 18))
    return picture(890, 330, parts)


def reach() -> str:
    """The cells on which one value of a convolution depends, by the derivative of this value."""
    mesh = jax.make_mesh((4,), ("x",), devices=jax.devices()[:4])
    fine = dops.Decomposition(mesh, shape=(16, 16), backend=dops.XLA())
    coarse = dops.Decomposition(mesh, shape=(8, 8), backend=dops.XLA())
    key = jax.random.key(0)
    same = nn.HaloConv(fine, 1, 1, 3, key=key)
    down, after = nn.HaloConv(fine, 1, 1, 3, stride=2, key=key), nn.HaloConv(coarse, 1, 1, 3, key=key)
    field = fine.shard(np.zeros((1, 16, 16), np.float32))
    owners = owners_of(field)[0]
    parts = []
    for left, title, layers, cell in (
        (20, "Two HaloConv, kernel 3", (same, same), (8, 8)),
        (370, "HaloConv(stride=2), then HaloConv", (down, after), (4, 4)),
    ):
        network = lambda u, layers=layers: layers[1](layers[0](u))
        value, backward = jax.vjp(network, field)
        one = np.zeros(value.shape, np.float32)
        one[(0, *cell)] = 1
        touched = np.asarray(backward(jax.device_put(one, value.sharding))[0])[0] != 0
        parts.append(label(left, 32, title, 19, "start"))
        for owner in np.unique(owners):
            for opacity, mask in ((0.3, ~touched), (1, touched)):
                path = "".join(square(left + CELL * j, 50 + CELL * i) for i, j in np.argwhere(mask & (owners == owner)))
                parts.append(f'<path d="{path}" fill="{COLOURS[owner]}" fill-opacity="{opacity}" stroke="white"/>')
        parts.append(borders(owners, left, 50))
    return picture(710, 390, parts)


def machines(mesh: jax.sharding.Mesh) -> str:
    """The blocks of a field on two machines of four devices, and the devices that exchange data in a transform."""
    fft = dops.FFT3D(mesh, shape=(16, 16, 16), backend=dops.XLA())
    u = fft.decomposition.shard(np.zeros((16, 16, 16), np.complex64))
    compiled = jax.jit(fft).lower(u).compile().as_text()
    within, between = (one.groups for one in collectives(compiled or "") if one.kind == "all-to-all")
    per_machine, size, left, tops = 4, 50, 300, (66, 206)
    # Processes have consecutive devices.
    place = lambda device: (left + 25 + 90 * (device % per_machine), tops[device // per_machine])
    parts = [cube(u, 132, 172), label(20, 34, "A field on 2 × 4 devices", 19, "start")]
    parts.append(label(left, 34, "Two machines, one process on each", 19, "start"))
    for top in tops:
        parts.append(f'<rect x="{left}" y="{top - 15}" width="370" height="80" rx="8" fill="none" stroke="{INK}"/>')
    for groups, colour, dashed in ((within, INK, False), (between, COLOURS[5], True)):
        for group in groups:
            for one, other in itertools.pairwise(group):
                (x, y), (to_x, to_y) = place(one), place(other)
                middle = size / 2
                ends = (
                    (x + size, y + middle, to_x, to_y + middle)
                    if y == to_y
                    else (x + middle, y + size, to_x + middle, to_y)
                )
                path = "M{} {}L{} {}".format(*ends)
                dashes = ' stroke-dasharray="5 4"' if dashed else ""
                parts.append(f'<path d="{path}" stroke="{colour}" stroke-width="2.5"{dashes}/>')
    for device in mesh.device_ids.ravel():
        x, y = place(int(device))
        parts.append(f'<rect x="{x}" y="{y}" width="{size}" height="{size}" fill="{COLOURS[device]}"/>')
        parts.append(label(x + size / 2, y + size / 2 + 6, str(device), 19, fill=ink_on(device)))
    notes = (
        (INK, "", "all-to-all along “y”: within a machine"),
        (COLOURS[5], ' stroke-dasharray="5 4"', "all-to-all along “x”: over the network"),
    )
    for i, (colour, dashes, note) in enumerate(notes):
        y = 306 + 28 * i
        parts.append(f'<path d="M{left} {y}h40" stroke="{colour}" stroke-width="2.5"{dashes}/>')
        parts.append(label(left + 52, y + 6, note, 17, "start"))
    return picture(700, 356, parts)


def local(mesh: jax.sharding.Mesh) -> str:
    """A field, the block of one device, and the block of the spectrum that the local transform returns there."""
    fft = dops.FFT3D(mesh, shape=(16, 16, 16), real=True, backend=dops.XLA())
    u = fft.decomposition.shard(np.zeros((16, 16, 16), np.float32))
    device, parts = 6, []
    for i, (title, array, alone) in enumerate(
        (("u", u, False), ("block", u, True), ("fft.local(block)", fft(u), True))
    ):
        shards = [one for one in array.addressable_shards if one.device.id == device or not alone]
        x, shape = 115 + 240 * i, shards[0].data.shape if alone else array.shape
        parts += [label(x + 8, 32, title, 19), label(x + 8, 314, shape_text(shape), 18)]
        parts.append(cube(SimpleNamespace(shape=array.shape, addressable_shards=shards), x, 172))
    parts += [arrow(x, 26, x + 90) for x in (190, 418)]
    parts.append(label(123, 342, "all devices", 17, style="italic"))
    parts.append(label(483, 342, f"inside of shard_map, on device {device}", 17, style="italic"))
    return picture(720, 360, parts)


def sent(mesh: jax.sharding.Mesh) -> str:
    """What one device sends in a transform of `jnp.fft` and of `dops.fft`, in units of its block."""
    u = jax.device_put(np.zeros((32, 32, 32), np.complex64), jax.NamedSharding(mesh, jax.P("x", "y")))
    left, unit, parts = (
        150,
        74,
        [label(20, 32, "What each of eight devices sends, in blocks of the field", 19, "start")],
    )
    functions = {"jnp.fft.fftn": jnp.fft.fftn, "dops.fft.fftn": functools.partial(dops.fft.fftn, backend=dops.XLA())}
    for i, (name, function) in enumerate(functions.items()):
        found = collectives(jax.jit(function).lower(u).compile().as_text() or "")
        blocks = sum(one.times * one.bytes for one in found) * mesh.size / u.nbytes
        (kind,) = {one.kind for one in found}
        top = 50 + 62 * i
        parts.append(label(20, top + 26, name, 17, "start"))
        shape = f'x="{left}" y="{top}" width="{unit * blocks:g}" height="40"'
        parts.append(f'<rect {shape} fill="{COLOURS[(5, 1)[i]]}"/>')
        place, ink = (left + 14, "white") if blocks > 3 else (left + unit * blocks + 14, INK)
        parts.append(label(place, top + 26, f"{blocks:g} blocks: {kind}", 17, "start", ink))
    return picture(690, 170, parts)


def ranks() -> str:
    """The slabs of a real field and of its spectrum on four ranks."""
    mesh = jax.make_mesh((4,), ("x",), devices=jax.devices()[:4])
    fft = dops.FFT3D(mesh, shape=(64, 64, 64), real=True, backend=dops.XLA())
    u = fft.decomposition.shard(np.zeros((64, 64, 64), np.float32))
    parts = [arrow(258, 170, 440), label(349, 154, "one exchange over MPI", 18)]
    for x, title, array in ((130, "u on four ranks", u), (560, "fft(u)", fft(u))):
        block = shape_text(array.addressable_shards[0].data.shape)
        parts += [label(x + 8, 32, title, 19), cube(array, x, 170), label(x + 8, 316, f"each rank: {block}", 18)]
    return picture(700, 336, parts)


def _link(x: float, y: float, to_x: float, to_y: float, dashed: bool = False) -> str:
    """An arrow in any direction."""
    direction = np.array((to_x - x, to_y - y)) / np.hypot(to_x - x, to_y - y)
    across = np.array((-direction[1], direction[0]))
    tip = np.array((to_x, to_y))
    head = _path([tip - 9 * direction + 5 * across, tip, tip - 9 * direction - 5 * across])
    style = f'fill="none" stroke="{INK}" stroke-width="1.6"'
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<path d="{_path([np.array((x, y)), tip])}" {style}{dashes}/><path d="{head}" {style}/>'


def _path(points: Sequence[np.ndarray]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
