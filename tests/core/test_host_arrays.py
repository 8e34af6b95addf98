"""Tests of arrays that JAX itself does not take as they are.

Such arrays are big-endian ones, as in FITS files, and integers of 64 bits if JAX is not in 64-bit mode.
"""

import functools
import re

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import finite_volume, io, particles, pde, plot, solve, spectral

from helpers import make_mesh, random_field


SHAPE = (4, 4, 4)
SCALAR, VECTOR = random_field(SHAPE), random_field((3, *SHAPE))
COMPLEX = random_field(SHAPE, np.complex128)
MESH = make_mesh((2, 2))
DEC = dops.Decomposition(MESH, shape=SHAPE, backend="native")  # Its programs compile in less time than by XLA.
REAL, KEY = dops.FFT3D(DEC, real=True), jax.random.key(0)


@functools.cache
def cases(dops) -> dict[str, tuple]:
    """Return a function of an array for each entry, and an array. `dops` is decompops, with or without beartype."""
    volumes, nn, pde, spectral = dops.finite_volume, dops.nn, dops.pde, dops.spectral
    dec = dops.Decomposition(MESH, shape=SHAPE, backend="native")
    fft, real = dops.FFT3D(dec), dops.FFT3D(dec, real=True)
    halo, body = dops.HaloExchange(dec, 1), volumes.Body(SCALAR, "dirichlet")
    bases = dops.Chebyshev(), dops.Fourier(), dops.Fourier(half=True)
    walls = dops.Transform(dec, bases=bases, box=dops.Box(1.0))
    stencil = dops.Stencil(dec, lambda h: h[..., 2:, :, :], (1, 0, 0))
    return {
        "shard": (dec.shard, SCALAR),
        "layout.shard": (fft.out_layout.shard, COMPLEX),
        "gather": (dec.gather, SCALAR),
        "sum": (dec.sum, SCALAR),
        "mean": (dec.mean, SCALAR),
        "norm": (dec.norm, COMPLEX.astype(np.complex64)),
        "vdot": (lambda u: dec.vdot(u, u), COMPLEX),
        "fft": (fft, COMPLEX),
        "fft of floats": (fft, SCALAR.astype(np.float32)),
        "inverse": (fft.inverse, COMPLEX.astype(np.complex64)),
        "composition": (fft.inverse @ fft, COMPLEX),
        "halo": (halo, np.arange(64, dtype=np.int32).reshape(SHAPE)),
        "transpose": (dops.Transpose(dec, "z", "x"), np.arange(64, dtype=np.int16).reshape(SHAPE)),
        "stencil": (stencil, SCALAR),
        "stencil.H": (stencil.H, SCALAR),
        "transform.volume_mean": (real.volume_mean, SCALAR),
        "poisson": (spectral.Poisson(real), SCALAR),
        "gradient": (spectral.Gradient(real), SCALAR),
        "divergence.H": (spectral.Divergence(real).H, SCALAR),
        "power_spectrum": (lambda u: spectral.power_spectrum(real, u), SCALAR),
        "mean_square": (lambda k: spectral.mean_square(fft, k), COMPLEX),
        "function": (dops.fft.fftn, COMPLEX),
        "function on a mesh": (lambda u: dops.fft.rfftn(u, mesh=MESH), SCALAR),
        "fftshift": (dops.fft.fftshift, SCALAR),
        "state": (pde.NavierStokes(real, 0.1).state, VECTOR),
        "layer": (nn.SpectralConv3D(real, 3, 2, 2, key=KEY), VECTOR),
        "coefficient": (lambda a: volumes.Diffusion(dec, a)(SCALAR), SCALAR**2 + 1),
        "reaction": (lambda c: volumes.Diffusion(dec, c=c)(SCALAR), SCALAR**2),
        "distance": (
            lambda d: volumes.Diffusion(dec, body=volumes.Body(d)).volumes,
            SCALAR,
        ),
        "values on a body": (
            lambda v: volumes.Diffusion(dec, body=body).source(None, None, None, body=v),
            SCALAR,
        ),
        "mask of a body": (lambda m: pde.Penalisation(real, m, time=1.0, dealiasing=None).mask(), SCALAR),
        "values at a wall": (
            lambda v: spectral.Helmholtz(walls, 1.0, "dirichlet").solution(SCALAR, v),
            SCALAR[0],
        ),
        "kernel": (lambda k: spectral.Convolution(real, k)(SCALAR), random_field((8, 8, 8))),
        "convolution": (nn.HaloConv3D(dec, 3, 2, 3, key=KEY), VECTOR),
    }


CASES = cases(dops)


@pytest.mark.parametrize("name", CASES)
def test_every_entry_takes_big_endian_arrays(name):
    function, x = CASES[name]
    big = x.astype(x.dtype.newbyteorder(">"))
    assert not big.dtype.isnative
    expected, results = jax.tree.leaves(function(x)), jax.tree.leaves(function(big))
    for result, wanted in zip(results, expected, strict=True):
        assert result.dtype == wanted.dtype
        np.testing.assert_array_equal(np.asarray(result), np.asarray(wanted))


@pytest.mark.parametrize("name", CASES)
def test_no_entry_drops_a_mask(name):
    """`np.asarray` would show what a masked array hides. netCDF4 returns masked arrays that hide nothing."""
    function, x = CASES[name]
    hidden = np.zeros(x.shape, bool)
    np.testing.assert_array_equal(*(jax.tree.leaves(function(given))[0] for given in (x, np.ma.array(x, mask=hidden))))
    hidden[..., -1, -1] = True
    message = re.compile("must hide no values|Type-check error whilst checking the parameter")
    with pytest.raises((ValueError, TypeError), match=message):
        function(np.ma.array(x, mask=hidden))


@pytest.mark.parametrize("name", CASES)
def test_every_entry_refuses_what_holds_no_numbers(name, plain):
    function, x = cases(plain)[name]
    keys = jax.random.wrap_key_data(jnp.zeros((*x.shape, 2), np.uint32))
    with pytest.raises(TypeError, match=r"`\w+` must hold numbers; got key.*pass `jax.random.key_data\(\w+\)`"):
        function(keys)
    for given in (np.full(x.shape, "text"), np.full(x.shape, None), np.full(x.shape, np.datetime64(1, "s"))):
        if name != "gather":  # It returns NumPy arrays as they are.
            with pytest.raises(TypeError, match=r"`\w+` must be an array of numbers; got array"):
                function(given)


@pytest.mark.parametrize("value", [None, np.ma.masked_less([0.25, 0.75], 0.5)], ids=["nothing", "masked"])
def test_errors_call_an_array_as_the_user_does(value, plain):
    mesh = plain.particles.ParticleMesh(dec := plain.Decomposition(MESH, shape=SHAPE))
    p = mesh.place(np.full((2, 3), 0.25), mass=np.ones(2))
    calls = {
        "times": lambda: plain.particles.KickDriftKick(mesh, lambda p: p.positions, value),
        "density": lambda: mesh.sample(value, KEY, capacity=8),
        "strengths": lambda: plain.particles.NUFFT(dec).type1(p, value),
        "spectrum": lambda: plain.particles.NUFFT(dec).type2(p, value),
        "b": lambda: plain.spectral.tridiagonal_solve(1.0, 2.0, 1.0, value, axis=0),
    }
    for name, call in calls.items():
        with pytest.raises((TypeError, ValueError), match=f"^`{name}` must (be an array of numbers|hide no values)"):
            call()


def test_no_list_drops_a_mask(plain):
    """Lists of numbers are no fields, but may be masked arrays, too."""
    real = plain.FFT3D(MESH, shape=SHAPE, real=True)
    numbers = np.ma.array([0, 2, 4], mask=[0, 1, 0])
    for name, call in {
        "edges": lambda: plain.spectral.power_spectrum(real, SCALAR, edges=numbers),
        "orders": lambda: plain.spectral.power_multipoles(real, SCALAR, axis="z", orders=numbers),
        "triangles": lambda: plain.spectral.bispectrum(real, SCALAR, [0.5, 1.5, 2.5], triangles=numbers[None] // 4),
        "separations": lambda: plain.spectral.structure_functions(real, VECTOR, separations=numbers),
        "faces": lambda: plain.Cells(numbers / 4),
        "at": lambda: plain.plot.slice(real, SCALAR, "z", at=numbers),
    }.items():
        with pytest.raises(ValueError, match=f"^`{name}` must hide no values, because its mask would be lost; got 1 "):
            call()
    np.testing.assert_array_equal(plain.Cells(np.ma.array([0, 0.5, 1])).faces, (0, 0.5, 1))


def test_positions_and_files_are_not_unmasked(tmp_path):
    masked = np.ma.masked_less(np.random.default_rng(0).random((5, 3)), 0.5)
    with pytest.raises(ValueError, match=f"got {masked.mask.sum()} hidden ones"):
        particles.ParticleMesh(DEC).place(masked)
    with pytest.raises(ValueError, match=r"`arrays\[.u.\]` must hide no values"):
        io.write(tmp_path / "u.h5", {"u": np.ma.masked_less(SCALAR, 0)}, DEC)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", ["h5", "zarr"])
def test_files_hold_big_endian_arrays(tmp_path, suffix):
    path = tmp_path / f"field.{suffix}"
    io.write(path, {"u": SCALAR.astype(">f8")}, DEC)
    np.testing.assert_array_equal(np.asarray(io.read(path, DEC).arrays["u"]), SCALAR)


@pytest.fixture
def single(double_precision):
    """Leave 64-bit mode."""
    with jax.enable_x64(False):
        yield


@pytest.mark.parametrize("name", [name for name in CASES if name != "gather"])  # It returns NumPy arrays as they are.
def test_no_entry_cuts_integers(name, single):
    """JAX would drop the upper half of these integers in silence."""
    function, x = CASES[name]
    message = re.compile("must hold integers that fit int32|Type-check error whilst checking the parameter")
    with pytest.raises((ValueError, TypeError), match=message):
        function(np.full(x.shape, 2**40 + 1))


@pytest.mark.parametrize("value", [2**31 - 1, -(2**31), 2**31, -(2**31) - 1])
def test_integers_that_fit_are_taken(value, single):
    numbers = np.zeros(SHAPE, np.int64)
    numbers[-1, -1, -1] = value
    if -(2**31) <= value < 2**31:
        np.testing.assert_array_equal(DEC.gather(DEC.shard(numbers)), numbers)
    else:
        with pytest.raises(ValueError, match=rf"^`array` must hold integers that fit int32, .*; got {value}\."):
            DEC.shard(numbers)
    with pytest.raises(ValueError, match=r"fit uint32, .*; got 4294967296\."):
        DEC.shard(numbers.astype(np.uint64) + np.uint64(2**32))
    assert DEC.shard(np.zeros((0, *SHAPE), np.int64)).shape == (0, *SHAPE)


@pytest.mark.parametrize("kind", [int, np.int64, np.array])
def test_no_option_cuts_an_integer(kind, plain, single):
    """JAX would raise its own error for an integer of Python, and drop the upper half of one of NumPy in silence."""
    number, dec = kind(10**10), plain.Decomposition(MESH, shape=SHAPE)
    fft = plain.FFT3D(dec, real=True)
    makes = [
        lambda: plain.spectral.Helmholtz(fft, number),
        lambda: plain.spectral.turbulence_scales(fft, np.ones((3, *SHAPE)), number),
        lambda: plain.pde.NavierStokes(fft, 0.1, drag=number),
        lambda: plain.pde.Diffusion(fft, (1.0, 1.0, number)),
        lambda: plain.pde.ETDRK(plain.pde.Diffusion(fft, 1.0), number),
        lambda: plain.finite_volume.Robin(number),
        lambda: plain.finite_volume.Diffusion(dec, number),
    ]
    for make in makes:
        with pytest.raises(ValueError, match="must be a float if it does not fit int32; got 10000000000"):
            make()


def test_no_array_of_another_library_is_cut(single):
    """A series of pandas is such an array: neither of NumPy nor of JAX."""

    class Series:
        shape = (4,)

        def __array__(self, dtype=None, copy=None):
            return np.full(4, 10**10)

    p = particles.ParticleMesh(DEC).place(np.ones((1, 3), np.float32), capacity=1)
    with pytest.raises(ValueError, match=r"must hold integers that fit int32, .*; got 10000000000"):
        p.replace(id=Series())


def test_an_array_on_devices_stays_there(plain):
    """Arrays of other libraries tell JAX where they are. If NumPy read them first, they would be copied to the host."""

    class Wrapper:
        def __init__(self, array):
            self.array, self.shape, self.dtype = array, array.shape, array.dtype

        def __jax_array__(self):
            return self.array

        def __array__(self, dtype=None, copy=None):
            raise AssertionError("The array was copied to the host.")

    dec = plain.Decomposition(MESH, shape=SHAPE)
    fft, x = plain.FFT3D(dec, real=True), dec.shard(SCALAR)
    for function in (
        fft,
        plain.Stencil(dec, lambda h: h[..., 2:, :, :], (1, 0, 0)),
        plain.spectral.Poisson(fft),
        lambda u: plain.finite_volume.Diffusion(dec, u)(x),
    ):
        np.testing.assert_array_equal(function(Wrapper(x)), function(x))


def test_no_coefficient_is_cut(single):
    wide = np.full(SHAPE[0], 10**10)
    with pytest.raises(ValueError, match="must hold integers that fit int32"):
        spectral.tridiagonal_solve(0 * wide, wide, 0 * wide, np.ones(SHAPE[0], np.float32), axis=0)
    with pytest.raises(ValueError, match="must hold integers that fit int32"):
        finite_volume.Diffusion(DEC, boundary="neumann", cells=(wide, None, None))
    diffusion = finite_volume.Diffusion(DEC, boundary="neumann")
    with pytest.raises(ValueError, match="must hold integers that fit int32"):
        diffusion.source((np.full(SHAPE[1:], 10**10), None), None, None)


def test_numbers_of_particles_are_not_cut(single):
    pm = particles.ParticleMesh(DEC)
    positions = np.random.default_rng(0).random((5, 3))
    with pytest.raises(ValueError, match=r"^`number` must hold integers that fit int32"):
        pm.place(positions, number=np.arange(5) + 2**40)
    p = pm.place(positions, number=np.arange(5))
    with pytest.raises(ValueError, match="must hold integers that fit int32"):
        p.replace(number=np.full(len(p.positions), 2**40))


@pytest.mark.parametrize("suffix", ["h5", "zarr"])
def test_files_with_larger_integers(tmp_path, suffix, single):
    """They are refused on devices, and read as NumPy arrays."""
    path, numbers = tmp_path / f"numbers.{suffix}", np.arange(64).reshape(SHAPE) + 2**40
    io.write(path, {"number": numbers}, DEC)
    with pytest.raises(ValueError, match=r"^`number` must hold integers that fit int32"):
        io.read(path, DEC)
    with pytest.raises(ValueError, match=r"^`number` must hold integers that fit int32"):
        io.Samples([path], DEC)[0]
    np.testing.assert_array_equal(io.read(path).arrays["number"], numbers)


def test_pictures_of_big_endian_arrays():
    pytest.importorskip("matplotlib")
    ours, wanted = (plot.slice(DEC, u).images[0].get_array() for u in (SCALAR.astype(">f8"), SCALAR))
    np.testing.assert_array_equal(ours, wanted)


@pytest.mark.parametrize("kind", [lambda x: np.asarray(x)[()], np.asarray, jnp.asarray], ids=["NumPy", "array", "JAX"])
def test_options_that_are_numbers_of_arrays(plain, kind):
    """They equal numbers of Python, and raise no warning that an array is static."""
    pm = particles.ParticleMesh(DEC, "cic")
    matrix = finite_volume.Diffusion(DEC, 1.0, 1.0)
    flow = plain.pde.NavierStokes(plain.FFT3D(MESH, shape=SHAPE, real=True), 0.1)
    for build, options in (
        (lambda **o: solve.CG(matrix, **o), {"rtol": 1e-3, "atol": 0.5, "max_steps": 9, "component_axes": 1}),
        (lambda **o: solve.GMRES(matrix, **o), {"restart": 5}),
        (lambda **o: particles.NUFFT(DEC, **o), {"tolerance": 1e-3, "oversampling": 2.0}),
        (lambda **o: particles.NUFFTType3(DEC, **o), {"tolerance": 1e-3, "oversampling": 2.0}),
        (lambda **o: particles.Gravity(pm, **o), {"gradient": 4, "laplacian": 2, "deconvolutions": 1}),
        (lambda **o: particles.Deconvolution(REAL, "cic", **o), {"times": 2}),
        (lambda **o: plain.pde.ETDRK(flow, 0.1, **o), {"order": 2}),
        (lambda **o: pde.SBDF(pde.NavierStokes(REAL, 0.1), 0.1, **o), {"order": 3}),
        (lambda **o: pde.KolmogorovForcing(REAL, **o), {"mode": 1}),
        (lambda **o: pde.PowerForcing(REAL, 1.0, **o), {"shell": (1.0, 1.5)}),
        (lambda **o: pde.Buoyancy(REAL, (0.0, 0.0, 1.0), **o), {"scalar": 1}),
        (lambda **o: pde.VariableViscosity(REAL, np.exp, **o), {"scalar": 1}),
    ):
        built = build(**{name: tuple(map(kind, x)) if name == "shell" else kind(x) for name, x in options.items()})
        for name, value in options.items():
            found = getattr(built, name)
            assert (found, type(found)) == (value, type(value))
