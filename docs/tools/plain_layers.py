"""Measure the table of docs/plain_layers.md: what plain layers communicate if their field is sharded.

python docs/tools/plain_layers.py            # writes the table into the page
python docs/tools/plain_layers.py --check    # fails if the page has another table

The script compiles each layer and its gradient on 8 devices, and counts the bytes of their collectives. It also runs
each layer, and compares the result with the result on one device.
"""

import argparse
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from decompops import nn, spectral
from decompops.tools.hlo import collectives
from jax.tree_util import Partial


PAGE = Path(__file__).parents[1] / "plain_layers.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of the table -->\n"
HEAD = """
| plain layer | value | gradient | Explicit mesh | decompops | value, decompops | gradient, decompops |
|---|---|---|---|---|---|---|
"""
CHANNELS, CELLS = 8, 32
FEWER_CELLS = 16  # for attention, whose memory grows with the square of the number of points
LETTERS = {"all-gather": "G", "all-reduce": "R", "all-to-all": "A", "collective-permute": "P"}
jax.config.update("jax_num_cpu_devices", 8)
KEY = jax.random.key(0)


def over_points(layer: Callable) -> Callable:
    """Return a layer that applies `layer` to the channels of each point."""
    for _ in range(3):
        layer = jax.vmap(layer, -1, -1)
    return layer


def attention(u: jax.Array) -> jax.Array:
    """Attend from each point to all points."""
    points = u.reshape(len(u), -1).T[:, None]
    return jax.nn.dot_product_attention(points, points, points).T.reshape(u.shape)


def normalized(u: jax.Array) -> jax.Array:
    """Subtract the mean of each channel, and divide by the standard deviation."""
    axes = (-3, -2, -1)
    return (u - u.mean(axes, keepdims=True)) / jnp.sqrt(u.var(axes, keepdims=True) + 1e-5)


C = CHANNELS
# Each row: the name of a plain layer, and a function that makes it; the name of a layer of decompops, and a function
# that makes it from a decomposition. The last two are `None` if the plain layer is as good.
ROWS: dict[str, tuple[Callable[[], Any], str | None, Callable[[Any], Any] | None]] = {
    "`jax.nn.gelu`, other pointwise functions": (lambda: jax.nn.gelu, None, None),
    "`eqx.nn.Dropout`": (lambda: Partial(eqx.nn.Dropout(0.5), key=KEY), None, None),
    "`eqx.nn.Linear`, `vmap` over points": (lambda: over_points(eqx.nn.Linear(C, C, key=KEY)), None, None),
    "`eqx.nn.Conv3d`, kernel 1": (lambda: eqx.nn.Conv3d(C, C, 1, key=KEY), None, None),
    "`jnp.einsum` over channels": (lambda: lambda u: jnp.einsum("oi,ixyz->oxyz", jnp.ones((C, C)), u), None, None),
    "`jnp.concatenate` of channels": (lambda: lambda u: jnp.concatenate([u, u]), None, None),
    "`u[:, ::2, ::2, ::2]`": (lambda: lambda u: u[:, ::2, ::2, ::2], None, None),
    "`eqx.nn.LayerNorm`, `vmap` over points": (lambda: over_points(eqx.nn.LayerNorm(C)), None, None),
    "`u.mean()`, `jnp.sum`, `jnp.max`": (lambda: jnp.mean, "`dec.mean`", lambda dec: dec.mean),
    "`u.mean(axes)`, `u.var(axes)` (batch norm)": (
        lambda: normalized,
        "`GroupNorm`",
        lambda dec: nn.GroupNorm(dec, C, C),
    ),
    "`eqx.nn.GroupNorm`": (lambda: eqx.nn.GroupNorm(4, C), "`GroupNorm`", lambda dec: nn.GroupNorm(dec, 4, C)),
    "`eqx.nn.LayerNorm` of the field": (
        lambda: eqx.nn.LayerNorm((C, CELLS, CELLS, CELLS)),
        "`LayerNorm`",
        lambda dec: nn.LayerNorm(dec, C),
    ),
    '`eqx.nn.Conv3d`, kernel 3, `"SAME"`': (
        lambda: eqx.nn.Conv3d(C, C, 3, padding="SAME", key=KEY),
        '`HaloConv`, `"ZEROS"`',
        lambda dec: nn.HaloConv(dec, C, C, 3, padding_mode="ZEROS", key=KEY),
    ),
    '`eqx.nn.Conv3d`, kernel 3, `"CIRCULAR"`': (
        lambda: eqx.nn.Conv3d(C, C, 3, padding="SAME", padding_mode="CIRCULAR", key=KEY),
        "`HaloConv`",
        lambda dec: nn.HaloConv(dec, C, C, 3, key=KEY),
    ),
    "`eqx.nn.Conv3d`, kernel 3, stride 2": (
        lambda: eqx.nn.Conv3d(C, C, 3, stride=2, padding=1, key=KEY),
        '`HaloConv`, `"ZEROS"`, stride 2',
        lambda dec: nn.HaloConv(dec, C, C, 3, stride=2, padding_mode="ZEROS", key=KEY),
    ),
    "`eqx.nn.ConvTranspose3d`, kernel 2, stride 2": (
        lambda: eqx.nn.ConvTranspose3d(C, C, 2, stride=2, key=KEY),
        "`HaloConvTranspose`",
        lambda dec: nn.HaloConvTranspose(dec, C, C, 2, stride=2, key=KEY),
    ),
    "`eqx.nn.AvgPool3d(2, 2)`": (lambda: eqx.nn.AvgPool3d(2, 2), "`AvgPool`", lambda dec: nn.AvgPool(dec, (2, 2, 2))),
    "`eqx.nn.MaxPool3d(2, 2)`": (lambda: eqx.nn.MaxPool3d(2, 2), "`MaxPool`", lambda dec: nn.MaxPool(dec, (2, 2, 2))),
    "`jnp.repeat` along x": (
        lambda: lambda u: jnp.repeat(u, 2, 1),
        "`Upsample`",
        lambda dec: nn.Upsample(dec, (2, 1, 1)),
    ),
    '`jax.image.resize`, `"linear"`': (
        lambda: lambda u: jax.image.resize(u, (len(u), *(2 * n for n in u.shape[1:])), "linear"),
        "`spectral.Resample`",
        lambda dec: spectral.Resample(dops.FFT3D(dec, real=True), tuple(2 * n for n in dec.shape)),
    ),
    "`jnp.roll` along x": (
        lambda: lambda u: jnp.roll(u, 1, 1),
        "`Roll`",
        lambda dec: dops.Roll(dec, (1, 0, 0)),
    ),
    "`jnp.fft.rfftn`": (
        lambda: lambda u: jnp.fft.rfftn(u, axes=(1, 2, 3)),
        "`FFT3D(real=True)`",
        lambda dec: dops.FFT3D(dec, real=True),
    ),
    "attention between all points": (lambda: attention, None, None),
}


def mesh_of(kind: str) -> jax.sharding.Mesh:
    return jax.make_mesh((2, 4), ("x", "y"), (getattr(jax.sharding.AxisType, kind),) * 2)


def measured(layer: Any, cells: int, mesh: jax.sharding.Mesh, *, gradient: bool) -> tuple[str, Callable[[], Any]]:
    """Return what a compiled layer communicates, and a function that runs it."""
    with jax.set_mesh(mesh):
        field = jnp.asarray(np.random.default_rng(0).standard_normal((CHANNELS, *(cells,) * 3)), jnp.float32)
        field = jax.device_put(field, jax.NamedSharding(mesh, jax.P(None, "x", "y", None)))
        weights, rest = eqx.partition(layer, eqx.is_inexact_array)
        weights = jax.device_put(weights, jax.NamedSharding(mesh, jax.P()))

        def value(weights, field):
            return eqx.combine(weights, rest)(field)

        def loss(weights, field):
            return jnp.sum(jnp.abs(value(weights, field)) ** 2)

        program = jax.jit(jax.grad(loss, (0, 1)) if gradient else value)
        compiled = program.lower(weights, field).compile()
    blocks = Counter()
    for one in collectives(compiled.as_text() or ""):
        blocks[LETTERS[one.kind]] += one.times * one.bytes * mesh.size / field.nbytes
    # The mean and the variance of a channel are no data of the grid.
    text = " + ".join(f"{amount:.2f} {letter}" for letter, amount in sorted(blocks.items()) if amount >= 0.01)
    if not text:
        text = "< 0.01" if sum(blocks.values()) else "0"
    return text, lambda: compiled(weights, field)


def check_values(name: str, layer: Any, cells: int, result: Any) -> None:
    """Compare a result on 8 devices with the result on one device."""
    field = np.random.default_rng(0).standard_normal((CHANNELS, *(cells,) * 3)).astype(np.float32)
    np.testing.assert_allclose(result, jax.jit(lambda u: layer(u))(field), rtol=1e-3, atol=1e-3, err_msg=name)


def row(name: str) -> str:
    """Return a row of the table."""
    make, ours, make_ours = ROWS[name]
    cells, layer = FEWER_CELLS if name.startswith("attention") else CELLS, make()
    mesh = mesh_of("Auto")
    value, run = measured(layer, cells, mesh, gradient=False)
    check_values(name, layer, cells, run())
    gradient, _ = measured(layer, cells, mesh, gradient=True)
    own = "–", "–"
    if make_ours is not None:
        own_layer = make_ours(dops.Decomposition(mesh, (cells,) * 3, backend=dops.XLA()))
        own = tuple(measured(own_layer, cells, mesh, gradient=gradient)[0] for gradient in (False, True))
    found = value, gradient, explicit(layer, cells, gradient), ours or "–", *own
    return f"| {name} | {' | '.join(found)} |\n"


def explicit(layer: Any, cells: int, gradient: str) -> str:
    """Return what differs if the axes of the mesh are Explicit."""
    mesh, text = mesh_of("Explicit"), "raises an error"
    try:
        measured(layer, cells, mesh, gradient=False)
        text = "the gradient raises an error"
        found, _ = measured(layer, cells, mesh, gradient=True)
    except Exception:  # `ShardingTypeError` has no public name.
        return text
    return "the same" if found == gradient else f"gradient {found}"


def table() -> list[str]:
    """Return the rows of the table."""
    return [row(name) for name in ROWS]


def shown() -> list[str]:
    """Return the rows of the table on the page."""
    return re.findall(r"^\|.*\n", PAGE.read_text().partition(BEGIN)[2].partition(END)[0], re.MULTILINE)[2:]


def check() -> None:
    """Fail if the page has another table."""
    on_page = shown()
    different = [line for line in table() if line not in on_page]
    assert not different, "Run docs/tools/plain_layers.py: the page has other rows than\n" + "".join(different)
    assert len(on_page) == len(ROWS)


def write() -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + HEAD + "".join(table()) + END + rest.partition(END)[2])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure the table of docs/plain_layers.md.")
    parser.add_argument("--check", action="store_true", help="compare with the page instead of writing into it")
    options = parser.parse_args()
    check() if options.check else write()
