"""Tests of the exchange of particles: any moves, any attributes, and all transformations of JAX."""

import functools
import itertools
from dataclasses import dataclass
from typing import ClassVar

import decompops as dops
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import particles

import checks
import clouds
import exchanges
from helpers import make_mesh


COUNT = exchanges.COUNT


def mesh_of(
    backend: str | dops.Native | dops.XLA, sizes: tuple[int, ...] | None = None, kind: str = "auto"
) -> particles.ParticleMesh:
    """Return slabs, by default on eight devices, or by XLA on four, because its exchanges take longer to compile."""
    sizes = sizes or ((4,) if isinstance(backend, dops.XLA) or backend == "xla" else (8,))
    return exchanges.mesh_of(make_mesh(sizes, kind), backend)


# With `wire`, exchanges of fields round. Particles move unchanged.
@pytest.mark.parametrize("backend", [dops.Native(), dops.XLA(wire="bfloat16")], ids=["native", "xla"])
@pytest.mark.parametrize("moves", exchanges.MOVES)
def test_any_moves(moves, backend):
    exchanges.check(mesh_of(backend), moves)


@dataclass(frozen=True)
class Unfinished(dops.XLA):
    """A backend that says that its kernels move rows, but has no method for this."""

    moves_rows: ClassVar[bool] = True


def test_a_backend_that_moves_rows_must_have_the_method():
    pm = mesh_of(Unfinished())
    with pytest.raises(NotImplementedError, match="`Unfinished` moves rows, and must have a method `move_rows`"):
        exchanges.check(pm, "few")


@pytest.mark.parametrize("moves", ["few", "all to one"])
def test_groups_of_devices(moves):
    """Devices along a mesh axis that does not shard the grid have particles of their own."""
    mesh = make_mesh((2, 4), "auto", ("copies", "x"))
    dec = dops.Decomposition(mesh, shape=(8, 3), axes=("x",), box=dops.Box((1.0, 1.0)), pad=True, backend="native")
    exchanges.check(particles.ParticleMesh(dec), moves)


@pytest.mark.parametrize("moves", ["few", "rotated", "random", "none"])
def test_only_true_counts_are_sent(moves):
    exchanges.check_counts(mesh_of("native"), moves)


def losses(backend: str, moves: str = "random"):
    """Return a function of an attribute, which depends on where each particle is after two exchanges, and its input."""
    pm = mesh_of(backend)
    _, _, p = exchanges.start(pm, moves)
    p = particles.Particles(p.positions, {"id": p["id"]}, p.counts, p.needed, p.invalid)
    slot = lambda q, v: jnp.sin(q["id"].astype(v.dtype))[:, None] + q.positions[:, :1].astype(v.dtype)

    def loss(v):
        q = pm.exchange(p.replace(v=v))
        q = pm.exchange(q.replace(1 - q.positions, v=q["v"] ** 2 * slot(q, v)))
        return jnp.sum(pm.sum(q, jnp.sin(q["v"]) * slot(q, v)))

    v = pm.gather(p)["id"][:, None] * np.array([0.01, 0.02]) + 0.3
    numbers = np.zeros((*p["id"].shape, 2))
    live = (np.arange(p.capacity) < np.asarray(p.counts)[:, None]).ravel()
    numbers[live] = v[np.searchsorted(np.arange(COUNT), np.asarray(p["id"])[live])]
    return pm, p, loss, jax.device_put(numbers, pm.sharding)


def by_hand(v: np.ndarray, number: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the gradient of the loss for each particle, by calculus. Both positions are in single precision."""
    first, last = (np.sin(number)[:, None] + place.astype(float) for place in (y, 1 - y))
    return np.cos(v**2 * first) * 2 * v * first * last


@pytest.mark.parametrize("backend", ["native", pytest.param("xla", marks=pytest.mark.sweep)])
def test_gradients(backend):
    """Reverse, forward and second derivatives, also with `checkpoint`, against calculus."""
    pm, p, loss, v = losses(backend)
    found = pm.gather(p.replace(v=v, g=jax.jit(jax.grad(jax.checkpoint(loss)))(v)))
    expected = by_hand(found["v"], found["id"].astype(float), found["positions"][:, :1])
    np.testing.assert_allclose(found["g"], expected, rtol=1e-10)
    if backend == "native":
        u = jnp.cos(3 * v)
        slope = jax.jit(lambda v: jax.jvp(loss, (v,), (u,))[1])(v)
        np.testing.assert_allclose(slope, np.sum(expected * pm.gather(p.replace(u=u))["u"]), rtol=1e-10)
        curve = jax.jit(lambda v: jax.jvp(jax.grad(loss), (v,), (u,))[1])(v)
        step = 1e-6
        grad = jax.jit(jax.grad(loss))
        numeric = (grad(v + step * u) - grad(v - step * u)) / (2 * step)
        np.testing.assert_allclose(curve, numeric, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["native", "xla"])
@pytest.mark.parametrize("moves", ["few", "all to one", "rotated", "emptied"])
def test_the_transpose_is_the_adjoint(moves, backend):
    """Also for what slots without a particle contain: they do not move, and get no cotangent."""
    pm = mesh_of(backend)
    _, _, p = exchanges.start(pm, moves)
    p = particles.Particles(p.positions, {}, p.counts, p.needed, p.invalid)
    rng = np.random.default_rng(0)
    v, w = (jax.device_put(rng.normal(size=(*p.positions.shape[:1], 2)), pm.sharding) for _ in range(2))
    moved, pullback = _linear(pm)(p, v, w)
    live = (np.arange(p.capacity) < np.asarray(p.counts)[:, None]).ravel()
    np.testing.assert_allclose(np.sum(np.asarray(moved) * w), np.sum(np.asarray(pullback) * v), rtol=1e-12)
    assert not np.asarray(pullback)[~live].any()
    assert np.sum(np.asarray(moved).any(axis=1)) == COUNT


@functools.cache
def _linear(pm: particles.ParticleMesh):
    @jax.jit
    def both(p, v, w):
        moved, back = jax.vjp(lambda v: pm.exchange(p.replace(v=v))["v"], v)
        return moved, back(w)[0]

    return both


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_vmap_and_scan(kind):
    """Some arrays, or the moves themselves, have a batch axis; a scan repeats exchanges."""
    pm = mesh_of("native", (2, 4), kind)
    _, _, p = exchanges.start(pm, "random")
    p = particles.Particles(p.positions, {"id": p["id"]}, p.counts, p.needed, p.invalid)
    factors = jnp.array([1.0, 2.0, 3.0], np.float32)
    scaled = lambda f: pm.exchange(p.replace(v=f * p.positions))
    batch = jax.jit(jax.vmap(scaled))(factors)
    for i, factor in enumerate(factors):
        one = jax.tree.map(lambda x, i=i: x[i], batch)
        found = pm.gather(one)
        np.testing.assert_array_equal(found["id"], np.arange(COUNT))
        np.testing.assert_allclose(found["v"], factor * found["positions"], rtol=1e-6)
    shifts = jnp.array([0.0, 0.25, 0.5], np.float32)
    shifted = jax.jit(jax.vmap(lambda s: pm.exchange(p.replace(p.positions + s))))(shifts)
    for i, shift in enumerate(shifts):
        found = pm.gather(jax.tree.map(lambda x, i=i: x[i], shifted))
        np.testing.assert_array_equal(found["id"], np.arange(COUNT))
        np.testing.assert_array_equal(found["positions"], pm.gather(p)["positions"] + shift)
    turn = lambda q, _: (pm.exchange(q.replace(q.positions + np.float32(0.125))), q.counts)
    last, counts = jax.jit(lambda p: jax.lax.scan(turn, p, length=8))(pm.exchange(p))
    np.testing.assert_array_equal(last.counts, counts[0])  # Each particle has been on every device.
    np.testing.assert_allclose(pm.gather(last)["positions"], pm.gather(p)["positions"] + 1, rtol=1e-6)


def test_an_exported_program_has_no_kernel():
    pm = mesh_of("native", (2,))
    _, _, p = exchanges.start(pm, "few")
    exported = jax.export.export(jax.jit(lambda x, v, c: jax.tree.leaves(pm.exchange(_particles(x, v, c)))))(
        p.positions, p["spin"], p.counts
    )
    assert "decompops_" not in exported.mlir_module()
    for got, expected in zip(
        exported.call(p.positions, p["spin"], p.counts),
        jax.tree.leaves(pm.exchange(_particles(p.positions, p["spin"], p.counts))),
    ):
        np.testing.assert_array_equal(got, expected)


def _particles(x, v, counts) -> particles.Particles:
    return particles.Particles(x, {"v": v}, counts, counts, jnp.zeros_like(counts))


@pytest.mark.parametrize(("dtype", "backend"), [(np.float16, "native"), (jnp.bfloat16, "native"), (np.float32, "xla")])
def test_positions_of_few_digits_deposit_where_they_are(dtype, backend):
    """NumPy does not count bfloat16 as a floating-point number. Cells and shares have more digits than positions."""
    shape, lengths, rng = (32, 8), (1.0, 2.0), np.random.default_rng(0)
    dec = dops.Decomposition(make_mesh((4,)), shape=shape, box=dops.Box(lengths), backend=backend)
    pm, positions = particles.ParticleMesh(dec, "pcs"), (rng.random((40, 2)) * lengths).astype(dtype)
    p = pm.place(positions, m=rng.random(40), id=np.arange(40), capacity=40)
    assert p.positions.dtype == dtype
    m, exact = pm.gather(p)["m"], positions.astype(np.float64)
    # Coordinates have single precision, and values double precision.
    expected = clouds.deposit("pcs", exact, m, shape, lengths, (True, True))
    np.testing.assert_allclose(dec.gather(pm.deposit(pm.exchange(p).check(), p["m"])), expected, atol=2e-5)
    np.testing.assert_allclose(np.sum(pm.deposit(p, p["m"])), np.sum(m), rtol=1e-13)
    ones = pm.gather(p.replace(read=pm.read(p, jnp.ones(shape))))["read"]
    np.testing.assert_allclose(ones, 1, rtol=1e-13)
    assert jax.grad(lambda x: pm.deposit(p.replace(x))[3, 1])(p.positions).dtype == dtype


@pytest.mark.parametrize("count", [0, 12])
@pytest.mark.parametrize(
    ("columns", "dtype"), [((), np.int32), ((1,), np.int32), ((2, 2), np.uint16), ((), jnp.bfloat16)]
)
def test_gathered_particles_are_in_the_order_of_all_columns_of_their_identifiers(columns, dtype, count):
    pm = particles.ParticleMesh(dops.Decomposition(make_mesh((2, 2)), shape=(8, 8), box=dops.Box(1.0)))
    rng = np.random.default_rng(0)
    names = rng.permutation(np.array(list(itertools.product(range(2), repeat=4)))[:count].reshape(count, 4))
    ids = names if columns == (2, 2) else names @ [8, 4, 2, 1]
    p = pm.place(rng.random((count, 2)), id=ids.reshape(count, *columns).astype(dtype), m=names @ [8, 4, 2, 1])
    found = pm.gather(p)
    np.testing.assert_array_equal(found["m"], np.arange(count))
    assert found["id"].shape == (count, *columns)


@pytest.mark.parametrize("dtype", [np.int32, np.complex64, bool])
def test_positions_that_are_not_real_are_refused(dtype, plain):
    """With integers, the number of cells in one unit of length would be rounded to an integer."""
    pm = plain.particles.ParticleMesh(plain.Decomposition(make_mesh((2,)), shape=(8, 8), box=plain.Box(1.0)))
    p = pm.place(np.zeros((3, 2)))
    with pytest.raises(ValueError, match=rf"`positions` must be real numbers of shape .*; got .* {np.dtype(dtype)}"):
        p.replace(np.zeros(p.positions.shape, dtype))


def test_attributes_of_any_dtype_move_and_others_are_refused(plain):
    """Attributes have any dtype of JAX, except keys and numbers of less than one byte."""
    dec = plain.Decomposition(make_mesh((8,)), shape=(8, 4), box=plain.Box(1.0), backend="native")
    pm, rng = plain.particles.ParticleMesh(dec), np.random.default_rng(0)
    refused = [name for name in checks.DTYPES if name.strip("u").startswith(("int2", "int4", "float4"))]
    values = {n: jnp.asarray(rng.integers(0, 2, (40, 2)), n) for n in checks.DTYPES}
    p = pm.place(rng.random((40, 2)), id=np.arange(40), **{n: values[n] for n in set(values) - set(refused)})
    moved = pm.gather(pm.exchange(p.replace(p.positions + 0.3)))
    for name in set(values) - set(refused):
        np.testing.assert_array_equal(moved[name], np.asarray(values[name]))
        assert moved[name].dtype == values[name].dtype

    keys = jax.random.split(jax.random.key(0), p.positions.shape[0])
    for given in (*(jnp.ones(p.positions.shape, name) for name in refused), keys):
        wanted = "numbers; got key.*key_data" if given is keys else rf"numbers of at least one byte; got {given.dtype}"
        for call in (
            lambda x=given: pm.place(np.zeros((len(x), 2)), x=x),
            lambda x=given: p.replace(x=x),
            lambda x=given: pm.sum(p, x),
            lambda x=given: dec.sum(jnp.broadcast_to(x.ravel()[0], dec.shape)),
        ):
            with pytest.raises(TypeError, match=rf"^`\w+` must hold {wanted}"):
                call()
    assert len(refused) >= 4
