"""Tests of `ParticleMesh`: against plain NumPy code on one device, for hostile distributions, and in every context."""

import functools
import re
from collections import Counter

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import particles
from jax.test_util import check_grads

import clouds
from helpers import make_mesh, thinned


COUNT = 300
# Slabs, pencils and one device; even and uneven grids of one to three axes; periodic and open axes.
GRIDS = {
    "pencils": ((2, 4), (8, 8, 8), (True, True, True)),
    "uneven pencils": ((2, 4), (9, 10, 5), (True, False, True)),
    "open pencils": ((2, 2), (6, 7, 8), (False, False, False)),
    "slabs": ((8,), (16, 6), (False, True)),
    "uneven slabs": ((8,), (11, 6), (True, True)),
    "one device": ((1,), (7, 6, 5), (True, True, False)),
    "one axis": ((1,), (13,), (True,)),
}
# By default, these grids are tested with these distributions of particles, and other grids with all distributions.
DISTRIBUTIONS = {"uneven pencils": ("random", "edges"), "slabs": ("one cell",), "one device": ("random",)}
DISTRIBUTIONS |= {"open pencils": ("edges",), "uneven slabs": ("edges",)}
MOVES = [("pencils", "random"), ("pencils", "one cell"), ("uneven slabs", "random"), ("one device", "random")]


def grid_of(name: str, *, kind: str = "auto", **options) -> tuple[dops.Decomposition, tuple[bool, ...]]:
    sizes, shape, periodic = GRIDS[name]
    box = dops.Box(tuple(1.0 + axis for axis in range(len(shape))))
    return dops.Decomposition(make_mesh(sizes, kind), shape=shape, box=box, pad=True, **options), periodic


def positions_of(distribution: str, dec: dops.Decomposition, seed: int = 0) -> np.ndarray:
    rng, lengths = np.random.default_rng(seed), np.array(dec.box_lengths)
    uniform = rng.uniform(size=(COUNT, dec.ndim))
    match distribution:
        case "random":  # Also outside the box.
            return (2 * uniform - 0.5) * lengths
        case "one cell":  # The last one: all other devices have no particle.
            return lengths * (1 - 1e-3 * uniform)
        case "edges":  # On the edges of cells and blocks, the end of the box included.
            return np.floor(uniform * (np.array(dec.shape) + 1)) / dec.shape * lengths
    raise ValueError(distribution)


@pytest.mark.parametrize(
    ("grid", "distribution", "window"),
    thinned(
        [(g, d, w) for g in GRIDS for d in ("random", "one cell", "edges") for w in clouds.WIDTHS],
        lambda g, d, w: (
            ((d, w) in {("random", "pcs"), ("one cell", "cic"), ("edges", "tsc")} and d in DISTRIBUTIONS.get(g, d))
            or (g == "pencils" and (d, w) in {("random", "ngp"), ("edges", "ngp"), ("edges", "cic")})
        ),
    ),
)
def test_deposit_and_read(request, grid, distribution, window):
    by_xla = window == "ngp" or (window == "tsc" and grid == "open pencils")  # This takes longer to compile.
    dec, periodic = grid_of(grid, backend="xla" if by_xla else "native")
    x = positions_of(distribution, dec)
    if (distribution, window) == ("edges", "ngp"):
        x = x + 1e-9  # Halfway between two points, rounding decides which one is the nearest.
    rng = np.random.default_rng(1)
    m, v, field = rng.normal(size=COUNT), rng.normal(size=(COUNT, 2)), rng.normal(size=(2, *dec.shape))
    pm = particles.ParticleMesh(dec, window, periodic)
    p = pm.place(x, capacity=COUNT, id=np.arange(COUNT), m=m, v=v)  # All distributions share the programs of a grid.
    expected = (dec.shape, dec.box_lengths, periodic)
    got = dec.gather(pm.deposit(p, p["m"]))
    np.testing.assert_allclose(got, clouds.deposit(window, x, m, *expected), atol=1e-12)
    if "pencils" in grid or request.node.get_closest_marker("sweep"):
        several = dec.gather(pm.deposit(p, p["v"]))
        wanted = np.stack([clouds.deposit(window, x, v[:, component], *expected) for component in range(2)])
        np.testing.assert_allclose(several, wanted, atol=1e-12)
    values = pm.gather(p.replace(r=pm.read(p, dec.shard(field))))["r"]
    for component in range(2):
        wanted = clouds.read(window, x, field[component], dec.box_lengths, periodic)
        np.testing.assert_allclose(values[:, component], wanted, atol=1e-12)


@pytest.mark.parametrize("grid", ["pencils", "one device"])
def test_the_kernel_deposits_in_one_call(grid):
    """With `Native()`, a program that deposits has one call of the kernel for points, and no scatter and no loop."""
    dec, periodic = grid_of(grid, backend="native")
    pm = particles.ParticleMesh(dec, "cic", periodic)
    p = pm.place(positions_of("random", dec), capacity=COUNT)
    program = jax.jit(lambda p: pm.deposit(p)).lower(p).compile().as_text()
    calls = Counter(re.findall(r'custom_call_target="(\w+)"', program))
    assert calls == {"decompops_points": 1, "decompops_native": 1}  # The second call adds up the halos.
    assert not re.search(r" (scatter|while)\(", program)


# By XLA, an exchange between devices compiles for seconds. Without the sweep, test_exchange.py does so once.
@pytest.mark.parametrize(
    ("grid", "distribution", "backend"),
    thinned([(*m, b) for m in MOVES for b in ("native", "xla")], lambda g, _, b: b == "native" or g == "one device"),
)
def test_exchange(grid, distribution, backend):
    """All attributes of each particle come to its device, also if all particles leave one device for another one."""
    dec, periodic = grid_of(grid, backend=backend)
    x, y = positions_of(distribution, dec), positions_of(distribution, dec, 1)
    y = dec.box_lengths - y if distribution == "one cell" else y  # A jump across the whole box.
    rng = np.random.default_rng(2)
    given = {
        "id": rng.permutation(COUNT),
        "spin": rng.normal(size=(COUNT, 2, 3)).astype(np.float32),
        "phase": rng.normal(size=COUNT) + 1j,
        "bound": rng.random(COUNT) < 0.5,
    }
    pm = particles.ParticleMesh(dec, "cic", periodic)
    p = pm.place(x, capacity=COUNT, **given)
    moved = pm.exchange(p.replace(jax.device_put(pm.place(x, capacity=COUNT, y=y)["y"])))
    found, order = pm.gather(moved.check()), np.argsort(given["id"])
    np.testing.assert_array_equal(found.pop("positions"), y[order])
    assert found.keys() == given.keys()
    for name, values in given.items():
        np.testing.assert_array_equal(found[name], values[order])
    blocks = dec.blocks(-1)
    core = [blocks.core(axis) for axis in range(dec.ndim)]
    home = clouds.owners(y, dec.shape, dec.box_lengths, periodic, core)
    counts = np.bincount(np.ravel_multi_index(home.T, blocks.parts), minlength=moved.counts.size)
    np.testing.assert_array_equal(moved.counts, counts)


@pytest.mark.parametrize(
    ("grid", "per_axis", "offset"),
    thinned(
        [
            (grid, *case)
            for grid in ("pencils", "uneven pencils", "uneven slabs", "one device")
            for case in ((1, 0), (2, 0), (1, 0.5), (2, 0.999999))
        ],
        lambda grid, per_axis, offset: (grid in ("pencils", "one device")) == (offset in (0, 0.5) and per_axis == 1),
    ),
)
def test_lattice(grid, per_axis, offset):
    dec, periodic = grid_of(grid, backend="native" if per_axis == 2 or grid == "pencils" else "xla")
    pm = particles.ParticleMesh(dec, "cic", periodic)
    p = pm.lattice(per_axis, offset=offset)
    along = zip([per_axis * n for n in dec.shape], dec.box_lengths)
    points = [(np.arange(n) + offset) * length / n for n, length in along]
    expected = np.stack(np.meshgrid(*points, indexing="ij"), axis=-1).reshape(-1, dec.ndim)
    np.testing.assert_allclose(pm.gather(p)["positions"], expected, atol=1e-14)
    moved = pm.exchange(p).check()
    np.testing.assert_array_equal(pm.gather(moved)["id"], np.arange(len(expected)))
    np.testing.assert_array_equal(moved.counts, p.counts)
    if per_axis == 1 and (offset == 0 or all(periodic)):
        np.testing.assert_allclose(dec.gather(pm.deposit(p)), 1, atol=1e-12)


@pytest.mark.parametrize("offset", [0.5, 1 - 2.0**-24])
@pytest.mark.parametrize("grid", ["pencils", "uneven pencils"])
def test_lattice_at_the_edges_of_cells(grid, offset):
    """In single precision, the largest offset rounds to the next edge, which another device may own."""
    dec, periodic = grid_of(grid, backend="native")
    pm = particles.ParticleMesh(dec, "cic", periodic)
    p = pm.lattice(offset=offset, dtype=np.float32)
    x = pm.gather(p)["positions"].astype(float)
    expected = clouds.deposit("cic", x, np.ones(len(x)), dec.shape, dec.box_lengths, periodic)
    np.testing.assert_allclose(dec.gather(pm.deposit(p)), expected, atol=1e-5)
    moved = pm.exchange(p).check()
    np.testing.assert_array_equal(pm.gather(moved)["id"], np.arange(len(x)))
    np.testing.assert_allclose(dec.gather(pm.deposit(moved)), expected, atol=1e-5)


def test_room():
    """Slots for particles that arrive: a part of those on the fullest device, and at least eight."""
    dec, periodic = grid_of("pencils")
    pm, x = particles.ParticleMesh(dec, "cic", periodic), positions_of("one cell", dec)
    for room, more in ((0.25, 75), (0.5, 150), (1, 300), (0, 8)):
        assert pm.place(x, room=room).capacity == COUNT + more
        assert pm.lattice(4, room=room).capacity == 4**3 * 64 + max(int(4**3 * 64 * room), 8)
    assert pm.place(x).capacity == pm.place(x, room=0.25).capacity
    assert pm.place(x, capacity=COUNT, room=1).capacity == COUNT


@pytest.mark.parametrize("grid", ["pencils", "uneven slabs", "one device"])
def test_sum_and_mean(grid):
    """Sum and mean count each particle once, and no slot without a particle. They have derivatives."""
    dec, periodic = grid_of(grid)
    x, v = positions_of("one cell", dec), np.random.default_rng(1).normal(size=(COUNT, 2))
    pm = particles.ParticleMesh(dec, "cic", periodic)
    p = pm.place(x, v=v, id=np.arange(COUNT))
    p = p.replace(v=jnp.where(p["v"] == 0, jnp.nan, p["v"]))  # Slots without a particle hold zeros at first.
    np.testing.assert_allclose(pm.sum(p, p["v"]), v.sum(0), rtol=1e-12)
    np.testing.assert_allclose(pm.mean(p, p["v"]), v.mean(0), rtol=1e-12)
    assert pm.sum(p, p["id"]) == COUNT * (COUNT - 1) // 2
    for dtype in (bool, np.int8, np.uint16):  # Sums as in NumPy, which do not fit this dtype.
        assert pm.sum(p, jnp.full(len(p.positions), 100, dtype)) == np.full(COUNT, 100, dtype).sum()
    slopes = jax.jit(jax.grad(lambda v: pm.sum(p, v**2)[1]))(p["v"])
    np.testing.assert_allclose(pm.gather(p.replace(slopes=slopes))["slopes"], v * [0, 2])
    with pytest.raises(ValueError, match="`values` must have one row for each of"):
        pm.sum(p, np.ones(3))


def test_positions_that_round_up_to_the_length_belong_to_cell_0():
    dec, _ = grid_of("pencils")
    pm = particles.ParticleMesh(dec)
    x = np.array([[-1e-30, 0.0, 0.0], [1.0, 2.0, 3.0]])
    p = pm.place(x)
    np.testing.assert_array_equal(p.counts, [2, *[0] * 7])
    np.testing.assert_allclose(dec.gather(pm.deposit(p))[0, 0, 0], 2)


@pytest.mark.parametrize("grid", ["pencils", "uneven pencils", "open pencils"])
def test_rounding_at_the_edges_of_blocks(grid):
    """Particles on an edge, or a few rounding errors beside it, are at home for every program, and keep their mass."""
    dec, periodic = grid_of(grid, backend="xla" if grid == "uneven pencils" else "native")
    edges = np.linspace(0, 1, 2 * dec.shape[0] + 1)[:, None] * np.array(dec.box_lengths)
    x = np.concatenate([edges * (1 + k * 2.0**-23) for k in range(-8, 9)]).astype(np.float32)
    pm = particles.ParticleMesh(dec, "cic", periodic)
    for p in (pm.place(x, capacity=len(x)), jax.jit(pm.exchange)(pm.place(x, capacity=len(x)))):
        got = dec.gather(pm.deposit(p))
        expected = clouds.deposit("cic", x.astype(float), np.ones(len(x)), dec.shape, dec.box_lengths, periodic)
        np.testing.assert_allclose(got, expected, atol=1e-3)


@pytest.mark.parametrize("backend", ["native", pytest.param("xla", marks=pytest.mark.sweep)])
def test_one_more_than_capacity(backend):
    """Nothing is lost or doubled: no particle moves, and the error says which capacity suffices."""
    dec, periodic = grid_of("slabs", backend=backend)
    pm = particles.ParticleMesh(dec, "cic", periodic)
    x = np.stack([np.repeat(np.arange(8) / 8, 4) + 0.01, np.linspace(0, 1.9, 32)], axis=1)
    p = pm.place(x, capacity=6, id=np.arange(32))
    everywhere = p.replace(p.positions.at[:, 0].set(jnp.where(p["id"] < 7, 0.51, p.positions[:, 0])))
    moved = jax.jit(lambda p: pm.exchange(p))(everywhere)
    assert bool(moved.overflows)
    for name, values in pm.gather(everywhere).items():
        np.testing.assert_array_equal(pm.gather(moved)[name], values)
    with pytest.raises(ValueError, match=r"at least 11, the number of particles on device 4; got 6. No particle was"):
        moved.check()
    assert np.isnan(dec.gather(pm.deposit(moved))).any()
    assert np.isnan(pm.read(moved, jnp.ones(dec.shape))).any()
    settled = pm.exchange(pm.grow(moved, 11)).check()
    np.testing.assert_array_equal(settled.counts, [0, 1, 4, 4, 11, 4, 4, 4])
    np.testing.assert_array_equal(pm.gather(settled)["id"], np.arange(32))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_positions_that_are_not_finite(value):
    dec, periodic = grid_of("pencils", backend="native")
    pm = particles.ParticleMesh(dec, "cic", periodic)
    x = positions_of("random", dec)
    p = pm.place(x, id=np.arange(COUNT))
    moved = pm.exchange(p.replace(jnp.where(p["id"][:, None] == 7, value, p.positions + 0.3)))
    with pytest.raises(ValueError, match=r"`positions` must be finite; got 1 particles with NaN"):
        moved.check()
    np.testing.assert_array_equal(pm.gather(moved)["id"], np.arange(COUNT))
    assert np.isnan(dec.gather(pm.deposit(moved))).any()
    x[7, 1] = value
    with pytest.raises(ValueError, match=r"`positions` must be finite; got .* for particle 7"):
        pm.place(x)


def loss_of(pm: particles.ParticleMesh, p: particles.Particles, steps: int):
    """Return a function of positions, masses, a field and lengths: particles move, exchange, deposit and read."""

    def loss(x, m, field, lengths):
        home = particles.ParticleMesh(
            dops.Decomposition(pm.decomposition, box=dops.Box(lengths)), pm.window, pm.periodic
        )
        q = home.exchange(p.replace(x, m=m))
        for _ in range(steps):
            q = home.exchange(q.replace(q.positions + 0.4 * home.read(q, field)))
        return jnp.sum(home.deposit(q, q["m"]) ** 3) + jnp.sum(jnp.sin(home.read(q, field)) * q["m"][:, None])

    return loss


def state_of(sizes, kind="auto", window="tsc", backend=None):
    shape = (8, 6, 5)
    dec = dops.Decomposition(make_mesh(sizes, kind), shape=shape, box=dops.Box(1.0), pad=True, backend=backend)
    rng = np.random.default_rng(3)
    pm = particles.ParticleMesh(dec, window)
    p = pm.place(rng.uniform(size=(20, 3)), capacity=20, m=rng.normal(size=20), id=np.arange(20))
    field = dec.shard(rng.normal(size=(3, *shape)))
    return pm, p, (p.positions, p["m"], field, (jnp.float64(1.0), jnp.float64(1.1), jnp.float64(0.9)))


@pytest.mark.parametrize("backend", ["native", pytest.param("xla", marks=pytest.mark.sweep)])
def test_derivatives(backend):
    """Derivatives by positions, masses, fields and lengths, against finite differences."""
    pm, p, arguments = state_of((2, 4), window="pcs", backend=backend)
    loss = jax.jit(loss_of(pm, p, steps=1))
    order = 1 if backend == "native" else 2
    check_grads(loss, arguments, order=order, eps=1e-6, rtol=1e-4, atol=1e-4)


# By XLA, the second derivatives take ten times longer to compile.
@pytest.mark.parametrize("backend", ["native", pytest.param("xla", marks=pytest.mark.sweep)])
def test_second_derivatives(backend):
    pm, p, (x, m, field, _) = state_of((2,), window="pcs", backend=backend)
    loss = lambda x, m, u: jnp.sum(pm.deposit(q := p.replace(x), m) ** 2) + jnp.sum(pm.read(q, u) ** 2)
    check_grads(jax.jit(loss), (x, m, field), order=2, modes=["rev"], eps=1e-6, rtol=1e-4, atol=1e-4)


@functools.cache
def gradients(sizes, kind, steps, backend):
    pm, p, arguments = state_of(sizes, kind, "cic", backend)
    loss = loss_of(pm, p, steps)
    loss = jax.checkpoint(loss) if steps else loss  # `checkpoint` exchanges twice.
    value, (x, m, field, lengths) = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3)))(*arguments)
    by_particle = pm.gather(p.replace(gx=x, gm=m))
    return value, by_particle["gx"], by_particle["gm"], pm.decomposition.gather(field), *lengths


FEW = [((2, 4), "auto", 1, "native"), ((2,), "auto", 0, "xla")]  # By XLA, each exchange compiles for a second.
MORE = [((2, 4), "auto", 1, "xla"), ((2, 4), "explicit", 2, "xla"), ((8,), "auto", 2, "xla")]


@pytest.mark.parametrize(("sizes", "kind", "steps", "backend"), thinned([*FEW, *MORE], lambda *case: case in FEW))
def test_gradients_are_those_on_one_device(sizes, kind, steps, backend):
    for got, expected in zip(gradients(sizes, kind, steps, backend), gradients((1,), "auto", steps, "native")):
        np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-12 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("kind", "backend"),
    thinned([(k, b) for k in ("explicit", "auto") for b in ("native", "xla")], lambda *c: c == ("explicit", "native")),
)
def test_scan_vmap_and_jvp(kind, backend):
    pm, p, (*_, field, _) = state_of((2, 4), kind, "cic", backend)

    def step(p, _):
        p = pm.exchange(p.replace(p.positions + 0.1 * pm.read(p, field)))
        return p, p.overflows

    @jax.jit
    def run(p):
        return jax.lax.scan(step, p, length=3)

    last, overflows = run(p)
    assert not np.any(overflows)
    one = p
    for _ in range(3):
        one, _ = step(one, None)
    for name, values in pm.gather(one).items():
        np.testing.assert_allclose(pm.gather(last)[name], values, rtol=1e-13)
    scaled = lambda factor: pm.deposit(p, factor * p["m"])
    np.testing.assert_allclose(jax.vmap(scaled)(jnp.array([1.0, 2.0]))[1], scaled(2.0), rtol=1e-13)
    shifted = lambda shift: jnp.sum(pm.deposit(pm.exchange(p.replace(p.positions + shift)), p["m"]) ** 2)
    every = jax.vmap(shifted)(jnp.array([0.0, 0.3]))
    np.testing.assert_allclose(every, [shifted(0.0), shifted(0.3)], rtol=1e-12)
    _, tangent = jax.jvp(shifted, (0.3,), (1.0,))
    np.testing.assert_allclose(tangent, (shifted(0.3 + 1e-6) - shifted(0.3 - 1e-6)) / 2e-6, rtol=1e-5)


def test_nothing_has_the_size_of_all_particles():
    """The only thing that every device gets is how many particles each device sends to each other one."""
    dec, periodic = grid_of("open pencils")
    pm = particles.ParticleMesh(dec, "cic", periodic)
    p = pm.place(np.random.default_rng(0).uniform(size=(4096, 3)), m=np.ones(4096))
    step = lambda p: pm.read(p := pm.exchange(p), pm.deposit(p, p["m"]))
    text = jax.jit(step).lower(p).compile().as_text()
    gathered = re.findall(r"= s32\[([\d,]+)\]\S* all-gather", text)
    assert len(gathered) == len(re.findall("all-gather\\(|all-gather-start\\(", text))
    assert all(np.prod([int(n) for n in shape.split(",")]) <= 4 * 5 for shape in gathered)


def test_errors(plain):
    dec, _ = grid_of("slabs")
    mesh = plain.particles.ParticleMesh
    with pytest.raises(TypeError, match="`decomposition` must be a `Decomposition`; got"):
        mesh(dec.mesh)
    dec = plain.Decomposition(dec.mesh, shape=dec.shape)
    with pytest.raises(ValueError, match=r"one of \('ngp', 'cic', 'tsc', 'pcs'\) or a `Window`; got 'cubic'"):
        mesh(dec, "cubic")
    with pytest.raises(ValueError, match="`periodic` must be a bool, or one for each of 2 axes; got"):
        mesh(dec, "cic", (True,))
    pm = mesh(dec, "cic")
    for positions in (np.zeros((3, 3)), np.zeros(2), np.zeros((3, 2), int)):
        with pytest.raises(ValueError, match=r"`positions` must be real numbers of shape \(n, 2\); got"):
            pm.place(positions)
    with pytest.raises(ValueError, match=r"`m` must have one row for each of 3 particles; got \(2,\)"):
        pm.place(np.zeros((3, 2)), m=np.ones(2))
    with pytest.raises(ValueError, match=r"`capacity` must be at least 3, the number of particles on device 0; got 2"):
        pm.place(np.zeros((3, 2)), capacity=2)
    with pytest.raises(ValueError, match=r"`room` must be a finite number of at least 0; got -0\.1"):
        pm.lattice(room=-0.1)
    for offset in (-0.5, 1.0):
        with pytest.raises(ValueError, match=f"`offset` must be at least 0 and less than 1; got {offset}"):
            pm.lattice(offset=offset)
    p = pm.place(np.zeros((3, 2)), id=np.arange(3))
    with pytest.raises(ValueError, match=r"`values` must have one row for each of \d+ slots; got \(3,\)"):
        pm.deposit(p, np.ones(3))
    with pytest.raises(TypeError, match="`values` must be real or complex floating-point numbers; got int"):
        pm.deposit(p, p["id"])
    with pytest.raises(ValueError, match=r"`id` must have one row for each of \d+ slots; got \(3,\)"):
        p.replace(id=np.arange(3))
    with pytest.raises(ValueError, match="`capacity` must be at least 11, the present one; got 3"):
        pm.grow(p, 3)
    with pytest.raises(TypeError, match=r"`p` must not be traced.*; use `overflows` inside"):
        jax.jit(lambda p: p.check())(p)
