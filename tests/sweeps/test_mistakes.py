"""Mistakes that users make, and what the error tells them to type instead."""

import functools
import re
from types import SimpleNamespace

import equinox as eqx
import jax
import numpy as np
import pytest

from helpers import make_mesh


N = 12  # A half spectrum of 12 cells has other lengths than a field, also with padding.
MESH = make_mesh((2, 4))
VECTOR = np.zeros((3, N, N, N), np.float32)


@pytest.fixture
def given(plain):
    """Return objects of decompops without type checks, as users have them."""
    walls = (plain.Chebyshev(), plain.Fourier(), plain.Fourier(half=True))
    box = plain.Box((2.0, 6.0, 6.0))
    fft = plain.FFT3D(MESH, (N, N, N), real=True)
    flow = plain.pde.NavierStokes(fft, 0.01)
    return SimpleNamespace(
        fft=fft,
        periodic=flow,
        between_walls=plain.pde.Channel(plain.Transform(MESH, shape=(13, N, N), bases=walls, box=box, pad=True), 0.01),
        stepper=plain.pde.ETDRK(flow, 0.01),
        particles=plain.particles.ParticleMesh(plain.Decomposition(MESH, (N, N, N), box=plain.Box(1.0))),
    )


def says(text, error, call, *args, **options):
    with pytest.raises(error, match=re.escape(text)):
        call(*args, **options)


def test_a_field_where_a_state_is_meant(given):
    for call, args in (
        (given.periodic, (0.0, VECTOR)),
        (given.stepper.step, (0.0, VECTOR)),
        (given.stepper.rollout, (VECTOR, 3)),
    ):
        says("For a field, pass `equation.state(field)`.", TypeError, call, *args)


@pytest.mark.parametrize("lead", [(), (1,), (2,), (4,), (3, 1)])
@pytest.mark.parametrize("name", ["periodic", "between_walls"])
def test_fields_without_their_components(given, name, lead):
    equation = getattr(given, name)
    fields = np.zeros((*lead, *equation.fft.decomposition.shape), np.float32)
    text = f"`fields` of `{type(equation).__name__}` must have shape (*batch, 3, nx, ny, nz); got {fields.shape}."
    says(text, ValueError, equation.state, fields)


@pytest.mark.parametrize("force", [VECTOR, jax.numpy.asarray(VECTOR)], ids=["NumPy", "JAX"])
def test_an_array_as_forcing(plain, given, force):
    """The error does not print thousands of numbers."""
    text = "got an array float32[3, 12, 12, 12]. For a constant array, pass `lambda t, u, args: force`."
    says(text, TypeError, plain.pde.NavierStokes, given.fft, 0.01, forcing=force)


def test_a_forcing_that_returns_nothing(plain, given):
    forced = plain.pde.NavierStokes(given.fft, 0.01, forcing=lambda t, u, args: None)
    says("`forcing` must return a spectrum", TypeError, forced, 0.0, forced.state(VECTOR))


def takers_of_keys(plain, given):
    fft, nn = given.fft, plain.nn
    return {
        "white_noise": lambda key: plain.spectral.white_noise(fft.decomposition, key),
        "GaussianRandomField": plain.spectral.GaussianRandomField(fft, lambda k: k),
        "HaloConv": lambda key: nn.HaloConv3D(MESH, 1, 1, kernel_size=3, key=key),
        "SpectralConv": lambda key: nn.SpectralConv3D(fft, 1, 1, modes=4, key=key),
        "FNO": lambda key: nn.FNO3D(fft, 1, 1, width=2, modes=4, depth=1, key=key),
        "sample": lambda key: given.particles.sample(np.ones((N, N, N)), key, capacity=1000),
    }


@pytest.mark.parametrize(("key", "number"), [(7, 7), (np.uint32(7), 7), (0.5, 0), (None, 0)], ids=str)
def test_a_number_as_key(plain, given, key, number):
    for take in takers_of_keys(plain, given).values():
        says(f"`key` must be a key of JAX, such as `jax.random.key({number})`; got {key!r}.", TypeError, take, key)


def test_keys_of_both_kinds(plain, given):
    """The functions get real keys, and are only traced, because compiling would take most of the time."""
    for take in takers_of_keys(plain, given).values():
        for key in (jax.random.key(7), jax.random.PRNGKey(7)):
            eqx.filter_eval_shape(lambda take=take, key=key: take(key))


@pytest.mark.parametrize("written", ["field", "spectrum"])
def test_the_other_space_in_a_file(plain, given, written, tmp_path):
    space = {"field": "spectrum", "spectrum": "field"}[written]
    array = given.fft.decomposition.shard(VECTOR[0])
    array = given.fft(array) if written == "spectrum" else array
    text = f'Pass `space="{written}"`.'
    says(text, ValueError, plain.io.write, tmp_path / "a.zarr", {"u": array}, given.fft, space=space)


def test_an_operator_and_its_inverse(plain):
    fft = plain.FFT3D(MESH, (N, N, N))
    real = plain.FFT3D(MESH, (N, N, N), real=True)
    cosine = plain.Transform(MESH, shape=(N, N, N), bases=(plain.Cosine(2),) * 3)
    says("do you mean the operator without `.inverse`?", ValueError, real.inverse, VECTOR)
    assert fft.inverse(VECTOR).shape == cosine.inverse(VECTOR).shape == VECTOR.shape


def test_walls_of_a_periodic_transform(plain, given):
    says("Build `fft` with `bases=(Chebyshev(), ...)`", ValueError, plain.pde.Channel, given.fft, 0.01)


@pytest.mark.parametrize("lengths", [8, 6.28, (1.0, 2.0, 3.0)])
def test_lengths_as_dtype(given, lengths):
    for call in (given.fft.wavenumbers, given.fft.coordinates):
        says(f"pass `box=Box({lengths})` with its `shape`.", TypeError, call, lengths)
    assert given.fft.wavenumbers(np.float32)[0].dtype == np.float32


def test_the_shape_may_stand_after_the_mesh(plain):
    for make in (plain.FFT3D, plain.FFT, plain.Decomposition):
        made = make(MESH, (N, N, N))
        assert getattr(made, "decomposition", made).shape == (N, N, N)
    assert plain.FFT2D(make_mesh((4,)), (N, N)).decomposition.shape == (N, N)


@pytest.mark.parametrize("kind", [np.int64, np.array, jax.numpy.asarray], ids=["NumPy", "array", "JAX"])
def test_integers_of_any_kind(plain, given, kind):
    """Static options are hashable, and equal to those from integers of Python."""
    two, mesh = kind(2), given.particles
    multiply = plain.Multiply(mesh.decomposition, np.ones((N, N, N)))
    makes = [
        lambda n: plain.Chebyshev(n),
        lambda n: plain.Cosine(n, orthogonal=True),
        lambda n: plain.pde.SBDF(given.periodic, 0.01, order=n),
        lambda n: plain.pde.ETDRK(given.periodic, 0.01, n),
        lambda n: plain.pde.KolmogorovForcing(given.fft, n),
        lambda n: plain.particles.Gravity(mesh, laplacian=n, gradient=n, deconvolutions=n),
        lambda n: plain.particles.Deconvolution(given.fft, "cic", n),
        lambda n: plain.solve.GMRES(multiply, restart=n, max_steps=n),
        lambda n: plain.HaloExchange(MESH, n),
        lambda n: plain.HaloExchange(MESH, (n, (1, n), 0)),
        lambda n: plain.pde.OrnsteinUhlenbeckForcing(
            given.fft, jax.random.key(0), amplitude=1.0, time=1.0, shell=(1, n)
        ),
    ]
    for make in makes:
        assert jax.tree.structure(make(two)) == jax.tree.structure(make(2))
        assert hash(jax.tree.structure(make(two))) == hash(jax.tree.structure(make(2)))
    assert hash(plain.XLA(overlap=two)) == hash(plain.XLA(overlap=2))
    assert hash(plain.Native(threads=two)) == hash(plain.Native(threads=2))


@pytest.mark.parametrize("kind", [list, np.array, jax.numpy.asarray], ids=["list", "NumPy", "JAX"])
def test_numbers_of_axes_in_any_container(plain, given, kind):
    numbers, flow = (0.0, 0.0, 2.0), given.periodic
    for make in (
        lambda v: plain.pde.Coriolis(given.fft, v),
        lambda v: plain.pde.Buoyancy(given.fft, v),
        lambda v: plain.pde.PassiveScalar(flow, 0.1, mean_gradient=v),
        lambda v: plain.pde.GrayScott(given.fft, v[:2], 0.1, 0.1),
    ):
        assert jax.tree.structure(make(kind(numbers))) == jax.tree.structure(make(numbers))
        assert jax.tree.leaves(make(kind(numbers))) == jax.tree.leaves(make(numbers))
    for make in (
        lambda n: plain.nn.MaxPool(given.fft.decomposition, n),
        lambda n: plain.nn.HaloConv3D(MESH, 1, 1, n, dilation=n, key=jax.random.key(0)),
        lambda n: given.fft.replace(modes=n),
    ):
        assert jax.tree.structure(make(kind((3, 2, 1)))) == jax.tree.structure(make((3, 2, 1)))


@pytest.mark.parametrize("value", [np.array(["V", "x"]), np.ones(2), ["x"], 2.5, True], ids=str)
@pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
def test_choices_of_another_type(plain, given, value):
    """An array has no truth value, a list is not hashable, and True is one: the error still names the argument."""
    fft, dec, fv = given.fft, given.fft.decomposition, plain.finite_volume
    ones = np.ones((N, N, N))
    for name, call in (
        ("norm", lambda v: plain.FFT3D(MESH, (N, N, N), norm=v)),
        ("planning", lambda v: plain.Native(planning=v)),
        ("wire", lambda v: plain.XLA(wire=v)),
        ("type", plain.Cosine),
        ("type", plain.Chebyshev),
        ("order", lambda v: plain.pde.ETDRK(given.periodic, 0.1, v)),
        ("order", lambda v: plain.pde.SBDF(given.periodic, 0.1, v)),
        ("boundary", lambda v: fv.Body(ones, v)),
        ("boundary", lambda v: fv.Diffusion(dec, 1.0, boundary=v)),
        ("cycle", lambda v: plain.solve.Multigrid(fv.Diffusion(dec, 1.0), cycle=v)),
        ("null_space", lambda v: plain.solve.CG(fv.Diffusion(dec, 1.0), null_space=v)),
        ("if_unconverged", lambda v: plain.solve.CG(fv.Diffusion(dec, 1.0), if_unconverged=v)),
        ("padding_mode", lambda v: plain.nn.HaloConv(MESH, 1, 1, 3, padding_mode=v, key=jax.random.key(0))),
        ("components", lambda v: plain.pde.Penalisation(fft, ones, time=0.1, components=v)),
        ("of", lambda v: plain.pde.KolmogorovForcing(fft, 1, of=v)),
        ("window", lambda v: plain.particles.Deconvolution(fft, v)),
        ("laplacian", lambda v: plain.particles.Gravity(given.particles, laplacian=v)),
    ):
        with pytest.raises(ValueError, match=rf"^`{name}` must be "):
            call(value)


def test_huge_counts(plain, given):
    """They end in an error at once, not in one of a compiler. `2**depth` would need all memory."""
    huge, key, fft = 10**30, jax.random.key(0), given.fft
    channels = functools.partial(plain.nn.FNO, fft, width=1, modes=1, depth=1, key=key)
    for name, call in (
        ("threads", lambda: plain.Native(threads=huge)),
        ("overlap", lambda: plain.XLA(overlap=huge)),
        ("in_channels", lambda: channels(huge, 1)),
        ("depth", lambda: plain.nn.UNet(fft.decomposition, 1, 1, width=1, depth=10**12, key=key)),
        ("unets", lambda: channels(1, 1, unets=-0.0)),
        ("unets", lambda: channels(1, 1, unets=np.ones(2))),
        ("unet_depth", lambda: channels(1, 1, unet_depth="two")),
    ):
        says(f"`{name}` must be ", ValueError, call)


def test_the_name_of_an_attribute_as_values(given):
    mesh = given.particles
    p = mesh.place(np.zeros((3, 3)), mass=np.ones(3))
    for call in (mesh.deposit, mesh.sum, mesh.mean, mesh.contrast):
        says("must be an array of numbers; got 'mass'. Pass `p['mass']`.", TypeError, call, p, "mass")
    says(
        "`values` must be an array of numbers; got 'm'. Pass one of the attributes ('mass',).",
        TypeError,
        mesh.sum,
        p,
        "m",
    )


def test_options_of_another_type(plain, given):
    """The error names the argument. A string is true for Python, and True is one."""
    fft, ones = given.fft, np.ones(4)
    diffuse = functools.partial(plain.finite_volume.Diffusion, fft.decomposition)
    solve = functools.partial(plain.spectral.tridiagonal_solve, 0 * ones, ones, 0 * ones, ones)
    for name, error, call in (
        ("half", TypeError, lambda: plain.Fourier("no")),
        ("type", ValueError, lambda: plain.Cosine([2])),
        ("type", ValueError, lambda: plain.Chebyshev(True)),
        ("order", ValueError, lambda: plain.pde.SBDF(given.periodic, 0.01, order=2.0)),
        ("row_sums", TypeError, lambda: solve(axis=0, row_sums="no")),
        ("axis", ValueError, lambda: solve(axis=None)),
        ("open", ValueError, lambda: plain.spectral.Convolution(fft, plain.spectral.PoissonKernel(), open=True)),
        ("operators", TypeError, lambda: plain.Compose(fft)),
        ("dtype", TypeError, lambda: plain.nn.GroupNorm(MESH, 1, 1, dtype="flot32")),
        ("groups", ValueError, lambda: plain.nn.GroupNorm(MESH, True, 1)),
        ("rows", ValueError, lambda: plain.plot.panels(True, 2)),
        ("shape", ValueError, lambda: plain.Decomposition(MESH, (True, 8, 8))),
        ("fft", TypeError, lambda: plain.spectral.Helmholtz(None, 1.0)),
        ("fft", TypeError, lambda: plain.pde.Coriolis(None, (0.0, 0.0, 1.0))),
        ("equation", TypeError, lambda: plain.pde.PassiveScalar(fft, 0.1)),
        ("velocity", TypeError, lambda: plain.pde.CFL(velocity=1.0)),
        ("folder", TypeError, lambda: plain.io.Checkpoints(3)),
        ("path", TypeError, lambda: plain.io.read(3)),
        ("path", TypeError, lambda: plain.io.write_series(3, "a.h5")),
        ("distance", ValueError, lambda: diffuse(1.0, body=plain.finite_volume.Body(VECTOR))),
        ("cells", TypeError, lambda: diffuse(1.0, cells=(np.ones(N, complex), None, None))),
        ("cells", TypeError, lambda: diffuse(1.0, cells=(np.ones(N, bool), None, None))),
        ("a", ValueError, lambda: diffuse(np.nan)),
        ("c", ValueError, lambda: diffuse(1.0, complex(0, np.inf))),
    ):
        says(f"`{name}` must be ", error, call)
    state, text = given.periodic.state(VECTOR), "`observe` must return numbers or arrays of numbers; got 'u'."
    says(text, TypeError, given.stepper.rollout, state, 1, observe=lambda t, u: "u")


@pytest.mark.parametrize("given_field", [None, "field", np.zeros((3, N, N, N + 1))], ids=["None", "text", "shape"])
def test_statistics_of_no_field(plain, given, given_field):
    """The error calls the argument by its own name."""
    s, fft, u = plain.spectral, given.fft, VECTOR[0]
    for name, call in (
        ("u", lambda x: s.power_spectrum(fft, x)),
        ("u", lambda x: s.energy_spectrum(fft, x)),
        ("v", lambda x: s.cross_spectrum(fft, u, x)),
        ("u", lambda x: s.power_multipoles(fft, x)),
        ("u", lambda x: s.correlation_function(fft, x)),
        ("u", lambda x: s.bispectrum(fft, x, (1, 2, 3))),
        ("u", lambda x: s.energy_transfer(fft, x)),
        ("u", lambda x: s.structure_functions(fft, x, (1,))),
        ("factor", lambda x: plain.Multiply(fft.decomposition, x)),
        ("a", lambda x: plain.finite_volume.Diffusion(fft.decomposition, x)),
    ):
        with pytest.raises((TypeError, ValueError), match=f"^`{name}` must "):
            call(given_field)


def test_a_class_of_numbers(plain, given):
    """Classes such as `np.float32` have the attributes of arrays, but no values."""
    fft, kind = given.fft, np.float32
    for name, call in (
        ("norm", lambda: plain.FFT3D(fft.decomposition, norm=kind)),
        ("halo", lambda: plain.HaloExchange(fft.decomposition, kind)),
        ("open", lambda: plain.spectral.Convolution(fft, VECTOR[0], open=kind)),
        ("acceleration", lambda: plain.pde.Buoyancy(fft, kind)),
        ("diffusivity", lambda: plain.pde.Diffusion(fft, kind)),
        ("shell", lambda: plain.pde.LinearForcing(fft, 1.0, kind)),
        ("type", lambda: plain.Cosine(kind)),
        ("key", lambda: plain.nn.HaloConv3D(fft.decomposition, 1, 1, 3, key=np.uint32)),
    ):
        with pytest.raises((TypeError, ValueError), match=f"^`{name}` must "):
            call()
