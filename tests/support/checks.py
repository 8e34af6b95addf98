"""Checks of operators with compiled kernels. A check runs on every rank, or on all devices of one process."""

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from typing import Any

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops._core.decomposition import storage_order
from decompops.testing import tolerance
from decompops.tools.hlo import collectives
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from helpers import assert_close, extended, make_mesh, random_field, surrounded


XLA = dops.XLA()
ALL_PAIRS = list(itertools.permutations("xyz", 2))
EVEN, UNEVEN, PRIMES, TINY = (8, 4, 12), (9, 10, 11), (13, 17, 19), (3, 5, 2)
ONE, LONG = (1, 3, 2), (5, 6, 1030)


def meshes() -> list[Mesh]:
    n = jax.device_count()
    grids = [(n,), (n, 1), (1, n)] + ([(2, n // 2)] if n > 2 and n % 2 == 0 else [])
    return [make_mesh(sizes) for sizes in grids]


def distributed(array: np.ndarray, mesh: Mesh, spec: P, shape: tuple[int, ...]) -> jax.Array:
    """Return `array`, zero-padded to `shape` and sharded over the mesh."""
    array = np.pad(array, [(0, have - want) for have, want in zip(shape, array.shape)])
    return jax.make_array_from_callback(shape, NamedSharding(mesh, spec), lambda index: array[index])


def assert_block(field: jax.Array, expected: np.ndarray) -> None:
    """Assert that this process's blocks of `field` are close to `expected`, and that their padding is zero."""
    expected = np.pad(expected, [(0, have - want) for have, want in zip(field.shape, expected.shape)])
    atol = tolerance(field.dtype) * np.abs(expected).max()
    for shard in field.addressable_shards:
        np.testing.assert_allclose(shard.data, expected[shard.index], rtol=0, atol=atol)


def assert_exact(field: jax.Array, expected: np.ndarray) -> None:
    """Assert that this process's blocks of `field` equal `expected` to the last bit, and that their padding is zero."""
    expected = np.pad(expected, [(0, have - want) for have, want in zip(field.shape, expected.shape)])
    assert field.dtype == expected.dtype
    for shard in field.addressable_shards:
        assert np.array_equal(shard.data, expected[shard.index])


def assert_same(ours: jax.Array, theirs: jax.Array) -> None:
    """Assert equality to the last bit."""
    assert ours.dtype == theirs.dtype
    for own, other in zip(ours.addressable_shards, theirs.addressable_shards, strict=True):
        assert np.array_equal(own.data, other.data)


def assert_alike(ours: jax.Array, theirs: jax.Array) -> None:
    """Assert equality up to rounding."""
    for own, other in zip(ours.addressable_shards, theirs.addressable_shards, strict=True):
        assert_close(own.data, np.asarray(other.data))


def operators(backend) -> None:
    """Test every operator against NumPy. Operators that only move cells must agree to the last bit."""
    slab, *_, grid = meshes()
    on_two = [(slab, UNEVEN, False), (grid, PRIMES, True), (grid, TINY, False)]
    for mesh, shape, contiguous in [*(on_two if jax.device_count() == 2 else []), (grid, UNEVEN, False)]:
        check_fft(backend, mesh, shape, contiguous)
        check_transposes(backend, mesh, shape, contiguous)
        if not contiguous:
            check_halos(backend, mesh, shape)
    for shape, contiguous in itertools.product((ONE, LONG), (False, True)):
        check_transposes(backend, slab if shape == LONG else grid, shape, contiguous, ["zx", "xz", "yz"])
    move = dops.Transpose(grid, "z", "x", shape=EVEN, backend=backend)
    values = [random_field(EVEN).astype(d) for d in (np.bool_, np.int8, np.float16, jnp.bfloat16, np.int32, complex)]
    for moved, u in zip(jax.jit(lambda fields: [move(field) for field in fields])(values), values):
        assert_exact(moved, u)
    exchange = dops.HaloExchange(grid, 1, shape=EVEN, backend=backend)
    target, parts = exchange.plan().target, exchange.in_layout.blocks.parts
    whole = np.round(8 * random_field(target.shape))  # Sums of these numbers are exact.
    values = [whole.astype(d) for d in (np.int16, np.float16, jnp.bfloat16, np.float32, np.complex64)]
    fields = [distributed(y, grid, target.spec, y.shape) for y in values]
    for added, y in zip(jax.jit(lambda fields: [exchange.T(field) for field in fields])(fields), values):
        assert_exact(added, folded(whole, EVEN, parts, exchange.halo, exchange.periodic).astype(y.dtype))


def check_fft(backend, mesh: Mesh, shape: tuple, contiguous: bool) -> None:
    for real, dtype, norm in (
        (False, np.complex128, "ortho"),
        (True, np.float64, "backward"),
        (True, np.float32, "forward"),
    ):
        if dtype == np.float32 and contiguous:
            continue
        options = {"pad": True, "real": real, "norm": norm, "axis_contiguous": contiguous, "backend": backend}
        fft = dops.FFT3D(mesh, shape=shape, **options)
        plan, transposed = fft.plan(), dtype != np.float32

        @jax.jit
        def everything(u, t, fft=fft, transposed=transposed):
            k = fft(u)
            return k, fft.inverse(k), (fft.T(t), fft.H(t), fft.inverse.T(u)) if transposed else ()

        stored = lambda k, order=plan.target.order: k.transpose(order)
        u = random_field(shape, dtype)
        expected = (np.fft.rfftn if real else np.fft.fftn)(u, norm=norm)
        t = random_field(expected.shape, np.complex128, 1)
        field = distributed(stored(t), mesh, plan.target.spec, plan.target.shape)
        k, back, others = everything(fft.decomposition.shard(u), field)
        assert_block(k, stored(expected))
        assert_block(back, u)
        by_t, by_h, by_inverse = transposes(u, t, norm)
        for found, values in zip(others, (by_t, by_h, stored(by_inverse))):
            assert_block(found, values)


def transposes(u: np.ndarray, t: np.ndarray, norm: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return by NumPy `fft.T(t)` and `fft.H(t)` of a spectrum, and `fft.inverse.T(u)` of a field.

    A real transform stands for the real part of its result where its values are real. Its inverse adds all modes of a
    half spectrum twice, except those that are their own conjugates along the last axis.
    """
    other = {"backward": "forward", "forward": "backward", "ortho": "ortho"}[norm]
    if np.iscomplexobj(u):
        return np.fft.fftn(t, norm=norm), np.fft.ifftn(t, norm=other), np.fft.ifftn(u, norm=norm)
    modes, n = t.shape[-1], u.shape[-1]
    full = np.pad(t, [(0, 0)] * (t.ndim - 1) + [(0, n - modes)])
    times = np.where(2 * np.arange(modes) % n == 0, 1, 2)
    inverse = times * np.fft.rfftn(u, norm=other).conj()
    return np.fft.fftn(full, norm=norm).real, np.fft.ifftn(full, norm=other).real, inverse


def in_pieces(backend, overlap: int) -> Any:
    """Return `backend` with this `overlap`. A backend without the option `overlap` is returned unchanged."""
    return replace(backend, overlap=overlap) if "overlap" in {option.name for option in fields(backend)} else backend


def check_overlap(backend, mesh: Mesh) -> None:
    """Compare with NumPy the transforms whose exchanges run in pieces.

    A single field is cut along a grid axis. A batch is cut into single fields.
    """
    fft = dops.FFT3D(mesh, shape=UNEVEN, pad=True, real=True, backend=in_pieces(backend, 2))
    u = random_field((3, *UNEVEN))
    spectrum = fft(fft.decomposition.shard(u[0]))
    assert_block(spectrum, np.fft.rfftn(u[0]))
    assert_block(fft.inverse(spectrum), u[0])
    source = fft.plan().source
    batch = distributed(u, mesh, P(None, *source.spec), (3, *source.shape))
    assert_block(fft(batch), np.fft.rfftn(u, axes=(1, 2, 3)))


def check_transposes(backend, mesh: Mesh, shape: tuple, contiguous: bool, pairs: Iterable = ALL_PAIRS) -> None:
    options = {"shape": shape, "pad": True, "axis_contiguous": contiguous, "backend": backend}
    transposes = [dops.Transpose(mesh, *pair, **options) for pair in pairs]
    layouts = [(transpose.plan().source, transpose.plan().target) for transpose in transposes]
    u = random_field(shape, np.float32)
    fields = [distributed(u.transpose(source.order), mesh, source.spec, source.shape) for source, _ in layouts]
    results = jax.jit(lambda fields: [transpose(field) for transpose, field in zip(transposes, fields)])(fields)
    for result, (_, target) in zip(results, layouts):
        assert_exact(result, u.transpose(target.order))


def check_halos(backend, mesh: Mesh, shape: tuple) -> None:
    for width, periodic in ((1, True), (((2, 1), (0, 3), (1, 1)), (True, False, False)), ((9, 0, 4), True)):
        exchange = dops.HaloExchange(mesh, width, periodic=periodic, shape=shape, pad=True, backend=backend)
        values, parts, target = random_field(shape), exchange.in_layout.blocks.parts, exchange.plan().target
        y = random_field(target.shape, seed=1)

        @jax.jit
        def everything(u, y, exchange=exchange):
            h, empty = exchange(u), exchange.crop.T(u)
            return h, exchange.crop(h), empty, exchange.update(empty), exchange.T(y)

        field = distributed(y, mesh, target.spec, target.shape)
        h, cropped, empty, updated, added = everything(exchange.decomposition.shard(values), field)
        assert_exact(h, extended(values, parts, exchange.halo, exchange.periodic))
        assert_exact(cropped, values)
        assert_exact(empty, surrounded(values, parts, exchange.halo))
        assert_same(updated, h)
        assert_block(added, folded(y, shape, parts, exchange.halo, exchange.periodic))


def folded(y: np.ndarray, shape: tuple[int, ...], parts, halo, periodic) -> np.ndarray:
    """Return the sums of all copies of each cell in a field with halo layers: the transpose of `extended`."""
    cells = extended(np.arange(1, 1 + math.prod(shape)).reshape(shape), parts, halo, periodic)  # 0 is outside.
    sums = np.zeros(1 + math.prod(shape), y.dtype)
    np.add.at(sums, cells, y)
    return sums[1:].reshape(shape)


ROUND = ("zx", "xz", "zy", "yx", "xy", "yz")  # All pairs, of which each begins with the pencil that the last one gave.


def matrix(backend, *, everything: bool, thin: bool = False) -> None:
    """Run cuDecomp's own test cases with decompops on every process grid of the ranks, and compare with NumPy.

    Transposes run in both storage orders. Halos have 1, 3 and 2 layers along the axes x, y and z. With `everything`,
    each test runs in all dtypes of cuDecomp. Without `everything`, each test has only one dtype, and two tests run on
    only one process grid: the test of halos in all pencils, and the test of transposes of fields with halo layers.
    With `thin`, each other process grid has only one of the two storage orders, and halos with or without periods.

    One program runs all transposes of a dtype, one after the other. Before each of them, numbers are added in the halo
    layers of the last result.
    """
    dtypes = (np.float32, np.float64, np.complex64, np.complex128)
    turn, widths = itertools.cycle(dtypes), ((1, 1), (3, 3), (2, 2))
    for mesh in meshes()[1:]:
        dec = dops.Decomposition(mesh, shape=UNEVEN, pad=True, backend=backend)
        whole = everything or mesh == meshes()[-1]
        both = (mesh.shape["x"] == 1,) if thin and not whole else (False, True)
        for contiguous in both:
            halo = widths if whole and not contiguous else ((0, 0),) * 3
            options = {"axis_contiguous": contiguous, "source_halo": halo, "target_halo": halo}
            transposes = [dops.Transpose(dec, *pair, **options) for pair in ROUND]
            plans = [transpose.plan() for transpose in transposes]

            def run(field, halos, transposes=transposes):
                results = []
                for transpose, layers in zip(transposes, halos):
                    results.append(transpose(field + layers))
                    field = results[-1]
                return results

            for dtype in dtypes if everything else (next(turn),):
                u = random_field(UNEVEN, dtype)
                cells = [surrounded(u, p.source.parts, halo).transpose(p.source.order) for p in plans]
                extends = [extended(u, p.source.parts, halo, (True,) * 3).transpose(p.source.order) for p in plans]
                fields = [cells[0], *(large - core for large, core in zip(extends, cells))]
                sources = [plans[0].source, *(plan.source for plan in plans)]
                first, *layers = (distributed(x, mesh, s.spec, s.shape) for x, s in zip(fields, sources))
                results = compiled(run, first, layers)(first, layers)
                for result, plan in zip(results, plans, strict=True):
                    target = plan.target
                    assert_exact(result, surrounded(u, target.parts, halo).transpose(target.order))
        for pencil, periodic in itertools.product("xyz" if whole else "z", both):
            order = storage_order(3, pencil, axis_contiguous=periodic)
            exchange = dops.HaloExchange(dec, widths, periodic=periodic, pencil=pencil, order=order)
            blocks = exchange.in_layout.blocks
            for dtype in dtypes if everything else (next(turn),):
                u = random_field(UNEVEN, dtype)
                field = exchange.in_layout.shard(u)
                expected = extended(u, blocks.parts, widths, (periodic,) * 3).transpose(order)
                assert_exact(compiled(exchange, field)(field), expected)


def compiled(function: Callable, *arguments: Any) -> Callable:
    """Compile a function whose program must not move data by XLA."""
    program = jax.jit(function).lower(*arguments).compile()
    assert collectives(program.as_text()) == []
    return program


def stress(backend) -> None:
    """Start many programs with several operators, then wait for all programs.

    All ranks start the programs in the same order.
    """
    mesh = meshes()[-1]
    fft = dops.FFT3D(mesh, shape=UNEVEN, pad=True, backend=backend)
    exchange = dops.HaloExchange(mesh, 1, shape=UNEVEN, pad=True, backend=backend)
    values = [random_field(UNEVEN, np.complex128, seed) for seed in range(3)]
    blocks = [fft.decomposition.shard(u) for u in values]
    # `turned` multiplies the modes between the transforms. Otherwise, the errors of two wrong transforms could cancel.
    turned = np.exp(1j * np.arange(UNEVEN[1]))[None, :, None]
    both = jax.jit(lambda u, v: (fft.inverse(turned * fft(v)), exchange(u), fft(u)))
    under_way = []
    for i in np.random.default_rng(0).integers(3, size=60).tolist():
        under_way.append((i, both(blocks[i], blocks[i - 1]), fft(blocks[i - 2])))
    widths = ((1, 1),) * 3
    for i, (back, halo, k), other in under_way:
        assert_block(back, np.fft.ifftn(turned * np.fft.fftn(values[i - 1])))
        assert_exact(halo, extended(values[i], exchange.decomposition.layout().blocks.parts, widths, (True,) * 3))
        assert_block(k, np.fft.fftn(values[i]))
        assert_block(other, np.fft.fftn(values[i - 2]))


# Every dtype of JAX, except those without arrays in JAX, and one without a zero for the padding.
NOT_TESTED = {"int1", "uint1", "float6_e2m3fn", "float6_e3m2fn", "float8_e8m0fnu"}
DTYPES = sorted({np.dtype(v).name for v in vars(jnp).values() if isinstance(v, type(jnp.int8))} - NOT_TESTED)


def check_dtype(backend, name: str) -> None:
    """Operators are right for numbers of this dtype, or refuse it."""
    mesh, dtype = meshes()[-1], jnp.dtype(name)
    u = (np.arange(math.prod(UNEVEN)).reshape(UNEVEN) % 3 % 2 + (name != "bool")).astype(dtype)
    options: dict[str, Any] = {"shape": UNEVEN, "pad": True, "backend": backend}
    fft, transpose = dops.FFT3D(mesh, **options), dops.Transpose(mesh, "z", "x", **options)
    exchange = dops.HaloExchange(mesh, ((1, 0), (0, 0), (0, 0)), **options)
    parts = exchange.decomposition.layout().blocks.parts
    ones = np.ones(surrounded(u, parts, ((1, 0), (0, 0), (0, 0))).shape, dtype)
    if name.strip("u").startswith(("int2", "int4", "float4")):
        for operator, x in ((fft, u), (transpose, u), (exchange, u), (exchange.T, ones)):
            with pytest.raises(TypeError, match=f"`x` must hold numbers of at least one byte; got {name}"):
                operator(jnp.asarray(x))
        return
    assert_exact(transpose(u), u)
    assert_exact(exchange(u), extended(u, parts, ((1, 0), (0, 0), (0, 0)), (True,) * 3))
    assert_block(fft(u), np.fft.fftn(u.astype(np.complex128)))
    if name == "bool" or (name.startswith("float8") and backend != XLA):
        with pytest.raises(TypeError, match=r"`x` must hold numbers that .*can .*add.*; got"):
            exchange.T(ones)
        return
    # Along x, the last cell of each block gets the cell of its neighbour's halo as well.
    cells = -(-UNEVEN[0] // parts[0])
    twice = (np.arange(UNEVEN[0]) % cells == cells - 1) | (np.arange(UNEVEN[0]) == UNEVEN[0] - 1)
    assert_exact(exchange.T(ones), (1 + twice[:, None, None] + np.zeros(UNEVEN)).astype(dtype))


def transformations(backend) -> None:
    """Test derivatives, batches, groups of devices, and a mesh with the ranks in reversed order."""
    n = jax.device_count()
    check_derivatives(backend, make_mesh((n // 2, 2), "auto" if n == 2 else "explicit"))
    groups = make_mesh((2, n // 2))
    for axes in (("x",), ("y",)):
        u = random_field((n, 8, 4, 6), np.complex128)
        fft = dops.FFT3D(groups, shape=(8, 4, 6), axes=axes, backend=backend)
        spec = P("x" if axes == ("y",) else "y", *fft.in_spec)
        field = distributed(u, groups, spec, u.shape)
        assert_block(jax.jit(jax.vmap(fft))(field), np.fft.fftn(u, axes=(1, 2, 3)))
    backwards = Mesh(np.array(jax.devices())[::-1], ("x",))  # The ranks are in reverse order.
    fft = dops.FFT3D(backwards, shape=PRIMES, pad=True, backend=backend)
    u = random_field(PRIMES, np.complex128)
    assert_block(fft(fft.decomposition.shard(u)), np.fft.fftn(u))


def check_derivatives(backend, mesh: Mesh) -> None:
    shape = (10, 14, 9)
    x, y, z = np.meshgrid(*(2 * np.pi * np.arange(m) / m for m in shape), indexing="ij")
    u = np.sin(2 * x) * np.cos(3 * y) * np.sin(z)
    fft = dops.FFT3D(mesh, shape=shape, pad=True, real=True, backend=backend)
    with jax.set_mesh(mesh):

        def loss(v):  # sum (du/dx)^2 / 2, whose gradient is -d^2u/dx^2 = 4 u
            kx, _, _ = fft.wavenumbers()
            k = fft(v)
            return jnp.sum(fft.inverse(1j * kx.astype(k.dtype) * k) ** 2) / 2

        field = fft.decomposition.shard(u)
        gradient = jax.jit(jax.grad(loss))
        assert_block(gradient(field), 4 * u)
        assert_block(jax.jit(lambda v: jax.jvp(gradient, (v,), (v,))[1])(field), 4 * u)
        batch = fft.decomposition.shard(np.stack([u, 2 * u]))
        expected = np.fft.rfftn(np.stack([u, 2 * u]), axes=(1, 2, 3))
        assert_block(jax.jit(jax.vmap(fft))(batch), expected)
        scanned, _ = jax.jit(lambda v: lax.scan(lambda c, _: (fft.inverse(fft(c)), None), v, length=3))(field)
        assert_block(scanned, u)
    check_local(mesh, fft, u)


def check_local(mesh: Mesh, fft: dops.FFT3D, u: np.ndarray) -> None:
    """Test `.local` inside the user's own `shard_map`: values, derivatives, batches."""
    plan = fft.plan()

    def mapped(function, batch=()):
        specs = (P(*batch, *plan.source.spec), P(*batch, *plan.target.spec))
        return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=specs[0], out_specs=specs[1]))

    field = fft.decomposition.shard(u)
    assert_block(mapped(fft.local)(field), np.fft.rfftn(u))
    two = fft.decomposition.shard(np.stack([u, 3 * u]))
    assert_block(mapped(jax.vmap(fft.local), (None,))(two), np.fft.rfftn(np.stack([u, 3 * u]), axes=(1, 2, 3)))
    _, derivative = jax.jvp(mapped(fft.local), (field,), (field,))
    assert_block(derivative, np.fft.rfftn(u))
    _, pull = jax.vjp(mapped(fft.local), field)
    k = fft(field)
    assert_alike(pull(k)[0], fft.T(k))
