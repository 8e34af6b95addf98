"""Tests of `NUFFT`: against sums of waves term by term, on one and on eight devices, and against FFTs."""

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import particles
from decompops._core.window import Window
from decompops.particles._semicircle import error, semicircle
from decompops.particles._windows import spline
from scipy.integrate import quad

import waves
from helpers import make_mesh, thinned


COUNT = 60
# Pencils, slabs and one device; even and odd numbers of modes along one to three axes.
GRIDS = {
    "pencils": ((2, 4), (8, 8, 8)),
    "uneven pencils": ((2, 4), (5, 10, 7)),
    "slabs": ((8,), (12, 7)),
    "one device": ((1,), (6, 5, 8)),
    "one axis": ((1,), (13,)),
    "one mode": ((2,), (1, 9)),
}
TOLERANCES = [10.0**-digits for digits in (2, 4, 6, 8, 10, 12)]
# The distributions, tolerances, oversamplings and kinds of values that are tested on pencils and on one axis, and the
# distribution that is tested on each other grid.
SOME = {("random", 1e-6, 2.0, True), ("edges", 1e-4, 1.25, False), ("one cell", 1e-12, 2.0, False)}
FEW = {tolerance for _, tolerance, *_ in SOME}
OTHER = {"uneven pencils": "one cell", "slabs": "random", "one device": "edges", "one mode": "one cell"}


def nufft_of(grid: str, tolerance: float = 1e-6, *, kind: str = "auto", backend="native", **options):
    sizes, shape = GRIDS[grid]
    box = dops.Box((1.0, 2.0, 3.0)[: len(shape)])
    dec = dops.Decomposition(make_mesh(sizes, kind), shape=shape, box=box, pad=True, backend=backend)
    return particles.NUFFT(dec, tolerance, **options)


def positions_of(distribution: str, nufft: particles.NUFFT, seed: int = 0) -> np.ndarray:
    dec = nufft.decomposition
    uniform = np.random.default_rng(seed).uniform(size=(COUNT, dec.ndim))
    match distribution:
        case "random":  # Also outside the box.
            return (4 * uniform - 1.5) * dec.box_lengths
        case "one cell":  # The last one: all other devices have no particle.
            return dec.box_lengths * (1 - 1e-3 * uniform)
        case "edges":  # On the points of the fine grid, the end of the box included.
            fine = nufft.particle_mesh.decomposition.shape
            return np.floor(uniform * (np.array(fine) + 1)) / fine * dec.box_lengths
    raise ValueError(distribution)


def numbers(shape, *, real: bool = False, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=shape) if real else rng.normal(size=shape) + 1j * rng.normal(size=shape)


def distance(got, expected) -> float:
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


def sums(nufft: particles.NUFFT, x):
    """Return functions that sum waves term by term, of strengths and of a spectrum."""
    dec = nufft.decomposition
    arguments = (dec.shape, dec.box_lengths)
    return (
        lambda c: waves.type1(x, c, *arguments, real=nufft.real),
        lambda f: waves.type2(x, f, *arguments, real=nufft.real),
    )


@pytest.mark.parametrize(
    ("grid", "distribution", "tolerance", "oversampling", "real"),
    thinned(
        [
            (grid, distribution, tolerance, oversampling, real)
            for grid in GRIDS
            for distribution in ("random", "one cell", "edges")
            for tolerance in TOLERANCES
            for oversampling in (2.0, 1.25)
            for real in (False, True)
            if oversampling == 2.0 or tolerance > 1e-9
        ],
        lambda grid, distribution, tolerance, oversampling, real: (
            ((grid, distribution, oversampling, real) == ("one axis", "random", 2.0, False) and tolerance not in FEW)
            or ((distribution, tolerance, oversampling, real) in SOME and distribution == OTHER.get(grid, distribution))
        ),
    ),
)
def test_sums_of_waves(request, grid, distribution, tolerance, oversampling, real):
    nufft = nufft_of(grid, tolerance, oversampling=oversampling, real=real)
    x, pm = positions_of(distribution, nufft), nufft.particle_mesh
    p = pm.place(x, id=np.arange(COUNT), c=numbers(COUNT, real=real), several=numbers((COUNT, 2), real=real))
    type1, type2 = sums(nufft, x)
    fft = dops.FFT(nufft.decomposition, real=real)
    layout, attributes = fft.out_layout, pm.gather(p)
    spectrum = nufft.type1(p, p["c"])
    assert spectrum.shape == layout.shape
    assert spectrum.sharding.is_equivalent_to(layout.sharding, spectrum.ndim)
    expected = type1(attributes["c"])
    assert distance(layout.gather(spectrum), expected) < 3 * tolerance
    # This takes a third of the time, so CI does it on two grids only.
    if grid in ("pencils", "one axis") or request.node.get_closest_marker("sweep"):
        both = layout.gather(nufft.type1(p, p["several"]))
        for component in range(2):
            assert distance(both[component], type1(attributes["several"][:, component])) < 3 * tolerance
    values = pm.gather(p.replace(v=nufft.type2(p, np.stack([expected, 2 * expected]))))["v"]
    assert distance(values[:, 0], type2(expected)) < 3 * tolerance
    np.testing.assert_allclose(values[:, 1], 2 * values[:, 0], rtol=1e-12, atol=1e-12 * np.abs(values).max())
    assert values.dtype == (np.float64 if real else np.complex128)


@pytest.mark.parametrize(
    ("grid", "real", "backend"),
    thinned(
        [(g, r, b) for g in ("pencils", "uneven pencils", "slabs") for r in (False, True) for b in ("xla", "native")],
        lambda *case: (
            case in {("uneven pencils", True, "xla"), ("slabs", False, "native"), ("pencils", True, "native")}
        ),
    ),
)
def test_points_of_the_grid_have_the_fft(grid, real, backend):
    nufft = nufft_of(grid, 1e-8, real=real, backend=backend)
    dec, pm = nufft.decomposition, nufft.particle_mesh
    u = numbers(dec.shape, real=real)
    points = np.stack(np.meshgrid(*[np.arange(n) / n for n in dec.shape], indexing="ij"), axis=-1)
    x = points.reshape(-1, dec.ndim) * dec.box_lengths
    p = pm.place(x, u=u.ravel(), id=np.arange(u.size))
    spectrum = (np.fft.rfftn if real else np.fft.fftn)(u)
    layout = dops.FFT(dec, real=real).out_layout
    assert distance(layout.gather(nufft.type1(p, p["u"])), spectrum) < 3e-8
    values = pm.gather(p.replace(v=nufft.type2(p, spectrum)))["v"]
    assert distance(values / u.size, u.ravel()) < 3e-8


@pytest.mark.parametrize(
    ("grid", "real"),
    thinned(
        [(grid, real) for grid in ("pencils", "uneven pencils", "slabs", "one device") for real in (False, True)],
        lambda grid, real: real == (grid in ("uneven pencils", "slabs")),
    ),
)
def test_type2_is_the_adjoint_of_type1(grid, real):
    """Exactly, whatever the tolerance. In a half spectrum, each mode counts as often as it is in the whole one."""
    nufft = nufft_of(grid, 1e-2, real=real)
    dec, pm = nufft.decomposition, nufft.particle_mesh
    c, f = numbers(COUNT, real=real), (np.fft.rfftn if real else np.fft.fftn)(numbers(dec.shape, real=real))
    p = pm.place(positions_of("random", nufft), c=c, id=np.arange(COUNT))
    spectrum = dops.FFT(dec, real=real).out_layout.gather(nufft.type1(p, p["c"]))
    values = pm.gather(p.replace(v=nufft.type2(p, f)))["v"]
    weighted = spectrum * waves.multiplicity(dec.shape) if real else spectrum
    product = np.vdot(weighted, f)
    np.testing.assert_allclose(np.vdot(c, values), product.real if real else product, rtol=1e-12)


def losses(nufft: particles.NUFFT, p: particles.Particles):
    """Return two functions of positions, strengths, a spectrum and lengths: by `nufft`, and by sums of waves."""
    weights = numbers(dops.FFT(nufft.decomposition, real=nufft.real).out_layout.true_shape, seed=5)
    shape, real = nufft.decomposition.shape, nufft.real

    def total(spectrum, values):
        padded = np.pad(weights, [(0, n - m) for n, m in zip(spectrum.shape, weights.shape)])
        return jnp.sum(jnp.real(spectrum * padded) ** 2) / 100 + jnp.sum(jnp.sin(jnp.abs(values) ** 2 / 1000))

    def by_nufft(x, c, f, lengths):
        dec = dops.Decomposition(nufft.decomposition, box=dops.Box(lengths))
        here = particles.NUFFT(dec, nufft.tolerance, nufft.oversampling, real)
        q = here.particle_mesh.exchange(p.replace(x, c=c))
        return total(here.type1(q, q["c"]), here.type2(q, f))

    def by_sums(x, c, f, lengths):
        return total(waves.type1(x, c, shape, lengths, real=real), waves.type2(x, f, shape, lengths, real=real))

    return by_nufft, by_sums


@pytest.mark.parametrize(
    ("sizes", "kind", "real"),
    [
        ((2, 4), "auto", False),
        ((1,), "auto", True),
        pytest.param((2, 4), "explicit", True, marks=pytest.mark.sweep),
        pytest.param((1, 1), "auto", True, marks=pytest.mark.sweep),
        pytest.param((8,), "auto", False, marks=pytest.mark.sweep),
    ],
)
def test_derivatives(sizes, kind, real):
    """First and second derivatives by positions, strengths, the spectrum and the lengths of the box.

    The grid has one axis more than the mesh.
    """
    shape = (6, 5, 4)[: len(sizes) + 1]
    dec = dops.Decomposition(make_mesh(sizes, kind), shape=shape, box=dops.Box(1.0), pad=True, backend="native")
    nufft = particles.NUFFT(dec, 1e-9, real=real)
    rng, pm = np.random.default_rng(3), nufft.particle_mesh
    x, c = rng.uniform(size=(8, len(shape))), numbers(8, real=real)
    f = (np.fft.rfftn if real else np.fft.fftn)(numbers(shape, real=real, seed=4))
    p = pm.place(x, capacity=8, c=c, id=np.arange(8), dx=rng.normal(size=x.shape), dc=numbers(8, real=real, seed=6))
    lengths = tuple(map(jnp.float64, (1.0, 1.1, 0.9)[: len(shape)]))
    by_nufft, by_sums = losses(nufft, p)

    def derivatives(loss):
        def along(x, c, f, lengths, dx, dc):
            gradient = jax.grad(loss, argnums=(0, 1, 2, 3))
            first, second = jax.jvp(lambda x, c: gradient(x, c, f, lengths), (x, c), (dx, dc))
            return first, second

        return jax.jit(along)

    layout = dops.FFT(dec, real=real).out_layout
    found = derivatives(by_nufft)(p.positions, p["c"], layout.shard(f), lengths, p["dx"], p["dc"])
    q = pm.gather(p)
    expected = derivatives(by_sums)(q["positions"], q["c"], f, lengths, q["dx"], q["dc"])
    for (gx, gc, gf, gl), (ex, ec, ef, el) in zip(found, expected):
        back = pm.gather(p.replace(gx=gx, gc=gc))
        for got, wanted in ((back["gx"], ex), (back["gc"], ec), (layout.gather(gf), ef), (np.array(gl), np.array(el))):
            assert distance(got, wanted) < 1e-6


@pytest.mark.parametrize("kind", ["explicit", pytest.param("auto", marks=pytest.mark.sweep)])
def test_jit_vmap_and_jvp(kind):
    nufft = nufft_of("pencils", 1e-6, kind=kind)
    x = positions_of("random", nufft)
    p = nufft.particle_mesh.place(x, c=numbers(COUNT))
    scaled = jax.jit(lambda factor: nufft.type1(p, factor * p["c"]))
    every = jax.jit(jax.vmap(scaled))(jnp.array([1.0 + 0j, 2.0j]))
    one = nufft.type1(p, p["c"])
    np.testing.assert_allclose(every[1], 2j * one, rtol=1e-12, atol=1e-12)
    moved = jax.jit(lambda shift: nufft.type2(nufft.particle_mesh.exchange(p.replace(p.positions + shift)), one))
    shifts = np.array([0.0, 0.3])
    expected = np.stack([moved(shift) for shift in shifts])
    np.testing.assert_allclose(jax.jit(jax.vmap(moved))(shifts), expected, rtol=1e-12)
    _, tangent = jax.jit(lambda shift: jax.jvp(moved, (shift,), (1.0,)))(0.3)
    step = np.asarray(moved(0.3 + 1e-6)) - np.asarray(moved(0.3 - 1e-6))
    assert distance(tangent, step / 2e-6) < 1e-5


def test_points_that_move():
    nufft = nufft_of("uneven pencils", 1e-8)
    pm, x, y = nufft.particle_mesh, positions_of("random", nufft), positions_of("random", nufft, 7)
    p = pm.place(x, capacity=COUNT, c=numbers(COUNT), y=y)
    moved = p.replace(p["y"])
    assert np.isnan(nufft.type1(moved, p["c"])).any()  # Not yet at home.
    home = pm.exchange(moved).check()
    spectrum = dops.FFT(nufft.decomposition).out_layout.gather(nufft.type1(home, home["c"]))
    q = pm.gather(home)
    assert distance(spectrum, sums(nufft, q["positions"])[0](q["c"])) < 3e-8


@pytest.mark.parametrize("backend", [pytest.param("xla", marks=pytest.mark.sweep), "native"])
def test_single_precision(backend):
    nufft = nufft_of("pencils", 1e-6, backend=backend)
    x, c = positions_of("random", nufft).astype(np.float32), numbers(COUNT).astype(np.complex64)
    p = nufft.particle_mesh.place(x, c=c, id=np.arange(COUNT))
    spectrum = nufft.type1(p, p["c"])
    assert spectrum.dtype == np.complex64
    type1, type2 = sums(nufft, x.astype(float))
    assert distance(np.asarray(spectrum), type1(c)) < 1e-5
    values = nufft.type2(p, spectrum)
    assert values.dtype == np.complex64
    assert distance(nufft.particle_mesh.gather(p.replace(v=values))["v"], type2(type1(c))) < 1e-5


# Numbers of modes, oversamplings, and tolerances below which rounding errors in single precision are larger.
ROUGH = [((120,), 1.1, 3e-5), ((40, 40), 1.25, 1e-5), ((24, 24, 24), 1.25, 3e-5), ((24, 24, 24), 2.0, 1e-6)]


@pytest.mark.parametrize(("shape", "oversampling", "least"), ROUGH)
def test_tolerances_below_rounding_errors_are_refused(plain, shape, oversampling, least):
    """The division by the transform of the window enlarges rounding errors, the more so with each axis."""
    dec = plain.Decomposition(make_mesh((1,)), shape=shape)
    for tolerance in (1e-4, least, least / 4):
        nufft = plain.particles.NUFFT(dec, tolerance, oversampling)
        x = np.random.default_rng(0).uniform(0, 2 * np.pi, (COUNT, len(shape))).astype(np.float32)
        p = nufft.particle_mesh.place(x, c=numbers(COUNT).astype(np.complex64))
        if tolerance < least:
            with pytest.raises(ValueError, match=r"for float32 positions; got .* Pass a larger tolerance"):
                nufft.type1(p, p["c"])
            continue
        f = numbers(shape).astype(np.complex64)
        type1, type2 = sums(nufft, x.astype(float))
        spectrum = np.asarray(nufft.type1(p, p["c"]))
        values = np.asarray(nufft.type2(p, dec.shard(f)))[:COUNT]
        assert distance(spectrum, type1(numbers(COUNT))) < 6 * least + 2 * tolerance
        assert distance(values, type2(f)) < 6 * least + 2 * tolerance


@pytest.mark.parametrize("kind", ["auto", pytest.param("explicit", marks=pytest.mark.sweep)])
def test_nothing_is_gathered(kind):
    nufft = nufft_of("pencils", kind=kind)
    p = nufft.particle_mesh.place(positions_of("random", nufft), c=numbers(COUNT))
    both = lambda p: nufft.type2(p, nufft.type1(p, p["c"]))
    loss = lambda x, c: jnp.sum(jnp.abs(both(p.replace(x, c=c))) ** 2)
    text = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(p.positions, p["c"]).compile().as_text()
    assert "all-to-all" in text or "decompops" in text
    assert "all-gather" not in text


@pytest.mark.parametrize("oversampling", [1.25, 1.5, 2.0])
@pytest.mark.parametrize("tolerance", [1e-2, 1e-5, 1e-8])
def test_the_window_is_an_exponential_of_a_semicircle(tolerance, oversampling):
    window = semicircle(tolerance, oversampling)
    width, beta = window.width, 0.97 * np.pi * (1 - 0.5 / oversampling) * window.width
    shape = lambda s: np.exp(beta * (np.sqrt(1 - (2 * s / width) ** 2) - 1))
    for t in np.linspace(0, 1, 7):
        distances = t + width / 2 - 1 - np.arange(width)
        np.testing.assert_allclose(window.shares(jnp.float64(t), 0), shape(distances), atol=2 * tolerance)
    frequency = np.pi / oversampling
    expected, _ = quad(lambda s: shape(s) * np.cos(frequency * s), -width / 2, width / 2, epsabs=1e-12)
    np.testing.assert_allclose(window.transform(np.array(frequency)), expected, atol=3 * tolerance)
    assert error(window, oversampling) <= tolerance < error(Window(window.pieces[1:]), oversampling)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_the_transform_of_a_spline_is_a_power_of_sinc(width):
    frequencies = np.linspace(0, 12, 25)
    found = spline(width).transform(frequencies)
    np.testing.assert_allclose(found, np.sinc(frequencies / (2 * np.pi)) ** width, atol=1e-14)


def test_errors(plain):
    dec = plain.Decomposition(make_mesh((2, 4)), shape=(8, 8, 8))
    make = plain.particles.NUFFT
    with pytest.raises(TypeError, match="`decomposition` must be a `Decomposition`; got"):
        make(dec.mesh)
    for tolerance in (0.0, -1e-6, 1.0, float("nan")):
        with pytest.raises(ValueError, match="`tolerance` must be"):
            make(dec, tolerance)
    with pytest.raises(
        ValueError, match=r"at most 16 cells reaches; got 1e-12 with `oversampling=1.25`. Pass a larger"
    ):
        make(dec, 1e-12, 1.25)
    with pytest.raises(ValueError, match=r"`oversampling` must be a finite number of at least 1.1; got 1.0"):
        make(dec, oversampling=1.0)
    with pytest.raises(TypeError, match="`real` must be True or False; got 1"):
        make(dec, real=1)
    nufft = make(dec, 1e-9, real=True)
    p = nufft.particle_mesh.place(np.zeros((3, 3)), id=np.arange(3))
    slots = len(p.positions)
    with pytest.raises(TypeError, match="`strengths` must be real with `real=True`; got complex128"):
        nufft.type1(p, np.ones(slots, complex))
    with pytest.raises(TypeError, match="`strengths` must be real or complex floating-point numbers; got int"):
        nufft.type1(p, p["id"])
    with pytest.raises(ValueError, match=r"`tolerance` must be at least 1e-06 for float32 strengths; got 1e-09"):
        nufft.type1(p, np.ones(slots, np.float32))
    with pytest.raises(ValueError, match=r"for float32 positions; got 1e-09. Pass a larger tolerance, or positions of"):
        nufft.type1(nufft.particle_mesh.place(np.zeros((3, 3), np.float32)), np.ones(slots))
    with pytest.raises(ValueError, match=r"`spectrum` must have shape \(\*batch, 8, 8, 5\) or \(\*batch, 8, 8, 8\)"):
        nufft.type2(p, np.ones((8, 8, 6), complex))
    with pytest.raises(ValueError, match=r"`values` must have one row for each of \d+ slots; got \(3,\)"):
        nufft.type1(p, np.ones(3))
