"""Tests of `NUFFTType3`: against sums of waves term by term, on one and on eight devices."""

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import particles

from helpers import make_mesh, thinned


COUNT, WAVES = 50, 40
# Pencils, slabs and one device; one to three axes.
GRIDS = {
    "pencils": ((2, 4), (8, 8, 8)),
    "uneven pencils": ((2, 4), (5, 10, 7)),
    "slabs": ((8,), (12, 7)),
    "one device": ((1,), (6, 5, 8)),
    "one axis": ((1,), (13,)),
}
TOLERANCES = [10.0**-digits for digits in (2, 4, 6, 8, 10, 12)]


def nufft_of(grid: str, tolerance: float = 1e-6, oversampling: float = 2.0, *, kind: str = "auto", backend="native"):
    sizes, shape = GRIDS[grid]
    box = dops.Box((1.0, 2.0, 3.0)[: len(shape)])
    dec = dops.Decomposition(make_mesh(sizes, kind), shape=shape, box=box, pad=True, backend=backend)
    return particles.NUFFTType3(dec, tolerance, oversampling)


def limits(nufft: particles.NUFFTType3) -> tuple[np.ndarray, np.ndarray]:
    """Return how far points and wavenumbers reach along each axis."""
    dec = nufft.decomposition
    return np.array(dec.box_lengths) / 2, np.pi * np.array(dec.shape) / np.array(dec.box_lengths)


def data_of(nufft: particles.NUFFTType3, *, edges: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return points and wavenumbers, at random or at the ends of their boxes."""
    rng = np.random.default_rng(0)
    draw = (lambda shape: rng.choice([-1.0, 0.0, 1.0], shape)) if edges else (lambda shape: rng.uniform(-1, 1, shape))
    half, most = limits(nufft)
    return draw((COUNT, len(half))) * half, draw((WAVES, len(most))) * most


def numbers(*shape: int, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=shape) + 1j * rng.normal(size=shape)


def placed(nufft: particles.NUFFTType3, x, k, **attributes):
    p = nufft.particle_mesh.place(x, id=np.arange(len(x)), **attributes)
    return p, nufft.wavenumber_mesh.place(k, id=np.arange(len(k)))


def gathered(nufft: particles.NUFFTType3, q: particles.Particles, values) -> np.ndarray:
    return nufft.wavenumber_mesh.gather(q.replace(values=values))["values"]


def sums(x, c, k):
    """Return the sum of `c_j exp(-i k x_j)` for each wavenumber, by NumPy, and by JAX if `x` is its array."""
    library = jnp if isinstance(x, jax.Array) else np
    waves = library.exp(-1j * library.einsum("ka,ja->kj", k, x).astype(complex))
    return library.einsum("kj,j...->k...", waves, c.astype(complex))


def distance(got, expected) -> float:
    return float(np.linalg.norm(np.asarray(got) - np.asarray(expected)) / np.linalg.norm(expected))


@pytest.mark.parametrize(
    ("grid", "tolerance", "oversampling", "edges"),
    thinned(
        [
            (grid, tolerance, oversampling, edges)
            for grid in GRIDS
            for tolerance in TOLERANCES
            for oversampling in (2.0, 1.25)
            for edges in (False, True)
            if oversampling == 2.0 or tolerance > 1e-9
        ],
        lambda grid, tolerance, oversampling, edges: (
            ((grid, oversampling, edges) == ("slabs", 2.0, False) and tolerance not in (1e-4, 1e-8))
            or ((tolerance, oversampling, edges) == (1e-8, 2.0, True) and grid in ("pencils", "one device"))
            or ((tolerance, oversampling, edges) == (1e-4, 1.25, False) and grid in ("uneven pencils", "one axis"))
        ),
    ),
)
def test_sums_of_waves(grid, tolerance, oversampling, edges):
    nufft = nufft_of(grid, tolerance, oversampling)
    x, k = data_of(nufft, edges=edges)
    c = numbers(COUNT)
    p, q = placed(nufft, x, k, c=c)
    # At the largest wavenumbers along all axes, the division by the window enlarges errors most.
    allowed = tolerance * (30 if edges else 3)
    assert distance(gathered(nufft, q, nufft(p, p["c"], q)), sums(x, c, k)) < allowed


@pytest.mark.parametrize(
    ("grid", "kind", "backend", "everything"),
    [
        ("slabs", "auto", "xla", False),
        ("uneven pencils", "explicit", "native", True),
        pytest.param("slabs", "auto", "xla", True, marks=pytest.mark.sweep),
    ],
)
def test_kinds_of_strengths(grid, kind, backend, everything):
    """Several components; with `everything`, also real strengths, single precision, inside jit and vmap."""
    nufft = nufft_of(grid, 1e-5, kind=kind, backend=backend)
    x, k = data_of(nufft)
    several = numbers(COUNT, 2, 3)
    p, q = placed(nufft, x, k, several=several, real=several.real[:, 0, 0])
    values = gathered(nufft, q, nufft(p, p["several"], q))
    assert values.shape == (WAVES, 2, 3)
    assert distance(values, sums(x, several, k)) < 3e-5
    if not everything:
        return
    of_real = nufft(p, p["real"], q)
    assert distance(gathered(nufft, q, of_real), sums(x, several.real[:, 0, 0], k)) < 3e-5
    if kind == "explicit":
        scaled = jax.jit(jax.vmap(lambda factor: nufft(p, factor * p["real"], q)))(jnp.array([1.0, 2.0]))
        np.testing.assert_allclose(scaled[1], 2 * of_real, rtol=1e-12, atol=1e-12)
    p, q = placed(nufft, x.astype(np.float32), k.astype(np.float32), c=several[:, 0, 0].astype(np.complex64))
    values = nufft(p, p["c"], q)
    assert values.dtype == np.complex64
    assert distance(gathered(nufft, q, values), sums(x, several[:, 0, 0], k)) < 3e-5


@pytest.mark.parametrize("sizes", [(2, 4), pytest.param((1,), marks=pytest.mark.sweep)])
def test_derivatives(sizes):
    """First and second derivatives by points, strengths and wavenumbers. The box has no influence on the sum."""
    dec = dops.Decomposition(make_mesh(sizes), shape=(6, 5, 4), box=dops.Box(1.0), pad=True, backend="native")
    nufft = particles.NUFFTType3(dec, 1e-9)
    x, k = data_of(nufft)
    c, rng = numbers(COUNT), np.random.default_rng(3)
    p, q = placed(nufft, 0.9 * x, 0.9 * k, c=c, dx=rng.normal(size=x.shape), dc=numbers(COUNT, seed=2))
    q = nufft.wavenumber_mesh.place(0.9 * k, id=np.arange(WAVES), dk=rng.normal(size=k.shape))
    weigh = lambda values: jnp.sum(jnp.sin(jnp.abs(values) ** 2 / 1000))

    def by_nufft(x, c, k, length):
        here = particles.NUFFTType3(dops.Decomposition(dec, box=dops.Box(length)), 1e-9)
        return weigh(here(p.replace(x), c, q.replace(k)))

    def derivatives(loss):
        gradient = jax.grad(loss, argnums=(0, 1, 2, 3))
        along = lambda x, c, k, tangents: jax.jvp(lambda *args: gradient(*args, jnp.float64(1.0)), (x, c, k), tangents)
        return jax.jit(along)

    found = derivatives(by_nufft)(p.positions, p["c"], q.positions, (p["dx"], p["dc"], q["dk"]))
    a, b = nufft.particle_mesh.gather(p), nufft.wavenumber_mesh.gather(q)
    by_sums = derivatives(lambda x, c, k, length: weigh(sums(x, c, k)))
    expected = by_sums(a["positions"], a["c"], b["positions"], (a["dx"], a["dc"], b["dk"]))
    for (gx, gc, gk, gl), (ex, ec, ek, _) in zip(found, expected):
        back = nufft.particle_mesh.gather(p.replace(gx=gx, gc=gc))
        assert distance(back["gx"], ex) < 1e-6
        assert distance(back["gc"], ec) < 1e-6
        assert distance(gathered(nufft, q, gk), ek) < 1e-6
        assert abs(gl) < 1e-6 * np.abs(ek).sum()


def test_the_transpose():
    """The transpose by JAX is exact, whatever the tolerance: `<y, A c> = <A^T y, c>` without conjugation."""
    nufft = nufft_of("uneven pencils", 1e-2)
    p, q = placed(nufft, *data_of(nufft), c=numbers(COUNT))
    transform = lambda c: nufft(p, c, q)
    y = numbers(len(q.positions), seed=2)
    (back,) = jax.linear_transpose(transform, p["c"])(jnp.asarray(y))
    np.testing.assert_allclose(jnp.sum(back * p["c"]), jnp.sum(y * transform(p["c"])), rtol=1e-12)


def test_what_is_out_of_range():
    """Too large a wavenumber has no value; one point outside the box leaves none. Empty slots hold zeros."""
    nufft = nufft_of("pencils")
    (x, k), (half, most) = data_of(nufft), limits(nufft)
    k[3, 1], k[5, 0] = 1.001 * most[1], 3 * most[0]
    p, q = placed(nufft, x, k, c=numbers(COUNT))
    q = q.replace(jnp.where(jnp.all(q.positions == 0, axis=1, keepdims=True), jnp.nan, q.positions))
    values = nufft(p, p["c"], q)
    found = gathered(nufft, q, values)
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(found)), [3, 5])
    assert np.count_nonzero(np.asarray(values)) == WAVES
    for far in (1.001 * half[2], 40 * half[2], np.nan):
        outside = p.replace(p.positions.at[:, 2].set(jnp.where(p["id"] == 7, far, p.positions[:, 2])))
        moved = nufft.particle_mesh.exchange(outside)
        assert np.isnan(gathered(nufft, q, nufft(moved, moved["c"], q))).all()


def test_nothing_is_gathered():
    nufft = nufft_of("pencils", kind="explicit")
    p, q = placed(nufft, *data_of(nufft), c=numbers(COUNT))
    loss = lambda x, c, k: jnp.sum(jnp.abs(nufft(p.replace(x), c, q.replace(k))) ** 2)
    text = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(p.positions, p["c"], q.positions).compile().as_text()
    assert "all-to-all" in text or "decompops" in text
    assert "all-gather" not in text


def test_errors(plain):
    make = plain.particles.NUFFTType3
    dec = plain.Decomposition(make_mesh((2, 4)), shape=(8, 8, 8))
    with pytest.raises(TypeError, match="`decomposition` must be a `Decomposition`; got"):
        make(dec.mesh)
    with pytest.raises(ValueError, match="`tolerance` must be between 0 and 1; got 2"):
        make(dec, 2)
    nufft = make(dec, 1e-9)
    p, q = nufft.particle_mesh.place(np.zeros((3, 3))), nufft.wavenumber_mesh.place(np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"`values` must have one row for each of \d+ slots; got \(3,\)"):
        nufft(p, np.ones(3), q)
    with pytest.raises(TypeError, match="`strengths` must be real or complex floating-point numbers; got int"):
        nufft(p, np.ones(len(p.positions), int), q)
    low = nufft.wavenumber_mesh.place(np.zeros((2, 3), np.float32))
    with pytest.raises(ValueError, match=r"`tolerance` must be at least 1e-06 for float32 positions; got 1e-09"):
        nufft(p, np.ones(len(p.positions)), low)
    nufft = make(dec, 1e-6, 1.25)
    p, q = (mesh.place(np.zeros((2, 3), np.float32)) for mesh in (nufft.particle_mesh, nufft.wavenumber_mesh))
    with pytest.raises(ValueError, match=r"above rounding errors of .* with `oversampling=1.25` for float32 positions"):
        nufft(p, np.ones(len(p.positions), np.float32), q)
