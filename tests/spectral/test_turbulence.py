"""Tests of the statistics of turbulence against closed forms and NumPy."""

import itertools

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import pde, spectral
from decompops.tools.hlo import collectives

from helpers import assert_close, finite_difference, make_mesh, random_field, thinned


LENGTHS = (2 * np.pi, 4.0, 3.0)
MESHES = thinned(
    [((1,), "auto"), ((2, 4), "auto"), ((4, 2), "explicit"), ((8,), "auto")], lambda sizes, _: sizes == (4, 2)
)


def transform(shape, sizes=(1,), kind="auto", **options) -> dops.FFT:
    return dops.FFT(make_mesh(sizes, kind), shape=shape, pad=True, **({"real": True} | options))


def wavenumbers(shape, lengths) -> np.ndarray:
    along = (2 * np.pi * np.fft.fftfreq(n, length / n) for n, length in zip(shape, lengths))
    return np.stack(np.meshgrid(*along, indexing="ij"))


def solenoidal(shape, lengths) -> np.ndarray:
    """Return a velocity with a mean and without divergence or Nyquist modes, computed by NumPy."""
    k, axes = wavenumbers(shape, lengths), tuple(range(1, len(shape) + 1))
    hat = np.fft.fftn(random_field((len(shape), *shape)), axes=axes)
    for axis, n in enumerate(shape):
        if n % 2 == 0:
            np.moveaxis(hat, axis + 1, 0)[n // 2] = 0
    square = np.sum(k**2, 0)
    hat -= k * np.sum(k * hat, 0) / np.where(square == 0, 1, square)
    return np.fft.ifftn(hat, axes=axes).real


def finer(u) -> np.ndarray:
    """Return a velocity on a grid with twice as many points along each axis, by its Fourier series."""
    shape, axes = u.shape[1:], tuple(range(1, u.ndim))
    hat = np.fft.fftshift(np.fft.fftn(u, axes=axes), axes=axes)
    # The mode n // 2 of `fftshift` is the mean, which a grid of 2 n points has at n.
    hat = np.pad(hat, [(0, 0), *((n - n // 2, n - (n - n // 2)) for n in shape)])
    return np.fft.ifftn(np.fft.ifftshift(hat, axes=axes), axes=axes).real * 2 ** len(shape)


@pytest.mark.xla
@pytest.mark.parametrize(("sizes", "kind"), MESHES)
def test_the_transfer_of_energy_is_equal_to_numpy(sizes, kind):
    """The transfer equals NumPy's, from products on a grid of twice as many points. It conserves energy."""
    shape = (8, 9, 10)
    fft = transform(shape, sizes, kind, box=dops.Box(LENGTHS))
    u = solenoidal(shape, LENGTHS)
    fine, k = finer(u), wavenumbers(tuple(2 * n for n in shape), LENGTHS)
    spectrum = lambda f: np.fft.fftn(f, axes=(-3, -2, -1)) / (8 * np.prod(shape))
    hat = spectrum(fine)
    convection = np.stack([sum(1j * k[j] * spectrum(fine[i] * fine[j]) for j in range(3)) for i in range(3)])
    density = -np.sum((np.conj(hat) * convection).real, 0)
    length = np.sqrt(np.sum(k**2, 0))
    edges = np.array([1.5, 3.0, 4.0, 7.0])
    rates = [density[(lower <= length) & (length < upper)].sum() for lower, upper in itertools.pairwise(edges)]
    with jax.set_mesh(fft.decomposition.mesh):
        batch = fft.decomposition.shard(np.stack([u, 2 * u]))
        run = jax.jit(lambda u: (spectral.energy_transfer(fft, u, edges=edges), spectral.energy_transfer(fft, u)))
        program = run.lower(batch).compile()
        some, every = program(batch)
        assert not [c for c in collectives(program.as_text()) if c.kind == "all-gather"]
    scale = abs(density).sum()
    np.testing.assert_allclose(some.transfer[0] * some.width, rates, atol=1e-12 * scale)
    np.testing.assert_allclose(
        some.flux[0], [-density[length < upper].sum() for upper in edges[1:]], atol=1e-12 * scale
    )
    assert_close(some.transfer[1], 8 * some.transfer[0], 1e-12)
    np.testing.assert_allclose(every.flux[:, -1], 0, atol=1e-10 * scale)
    energy = spectral.energy_spectrum(fft, batch)
    assert_close(every.k, energy.k, 1e-12)
    assert_close(every.width, energy.width, 1e-12)


def test_the_transfer_is_a_term_of_the_balance_of_energy():
    """The derivative of E(k) in time, by JAX, is `T - 2 ν k² E`; with the rule of the equation, for all its modes."""
    fft = transform((12, 12), (4,))
    equation = pde.NavierStokes(fft, 0.05)
    u = equation.state(fft.decomposition.shard(solenoidal((12, 12), LENGTHS[:1] * 2)))

    @jax.jit
    def balance(u):
        spectrum = lambda u: spectral.energy_spectrum(fft, equation.fields(u)).energy
        _, rate = jax.jvp(spectrum, (u,), (equation(0.0, u),))
        decay = spectral.energy_spectrum(fft, spectral.Gradient(fft)(equation.fields(u)).reshape(4, 12, 12)).energy
        transfer = spectral.energy_transfer(fft, equation.fields(u), dealiasing=equation.dealiasing)
        return rate, transfer.transfer - 0.1 * decay

    assert_close(*balance(u), 1e-12)


@pytest.mark.parametrize(("sizes", "kind"), MESHES)
def test_the_scales_of_two_shells(sizes, kind):
    """Two flows of Arnold, Beltrami and Childress, with |k| = 1 and 3 and a mean flow, have scales in closed form."""
    shape, nu = (9, 8, 10), 0.02
    x, y, z = np.meshgrid(*[2 * np.pi * np.arange(n) / n for n in shape], indexing="ij")
    abc = lambda k, a, b, c: np.stack(
        [
            a * np.sin(k * z) + c * np.cos(k * y),
            b * np.sin(k * x) + a * np.cos(k * z),
            c * np.sin(k * y) + b * np.cos(k * x),
        ]
    )
    u = abc(1, 1.0, 0.7, 0.5) + abc(3, 0.3, 0.2, 0.4) + 0.6
    first, third = (1.0 + 0.49 + 0.25) / 2, (0.09 + 0.04 + 0.16) / 2
    energy, dissipation = first + third, 2 * nu * (first + 9 * third)
    velocity = np.sqrt(2 * energy / 3)
    integral = np.pi / (2 * velocity**2) * (first + third / 3)
    taylor = np.sqrt(15 * nu / dissipation) * velocity
    fft = transform(shape, sizes, kind)
    with jax.set_mesh(fft.decomposition.mesh):
        batch = fft.decomposition.shard(np.stack([u, 2 * u]))
        found = jax.jit(lambda u: spectral.turbulence_scales(fft, u, nu))(batch)
        single = spectral.turbulence_scales(fft, batch.astype(np.float32), nu)
    expected = [energy, dissipation, velocity, integral, taylor, (nu**3 / dissipation) ** 0.25]
    expected += [np.sqrt(nu / dissipation), integral / velocity, velocity * taylor / nu]
    np.testing.assert_allclose([one[0] for one in found], expected, rtol=1e-12)
    assert_close(found.reynolds[1], 2 * found.reynolds[0], 1e-12)
    assert all(one.dtype == np.float32 for one in single)
    assert_close(single.taylor_scale, np.float32(found.taylor_scale), 1e-5)


def test_scales_in_two_dimensions_and_their_derivatives():
    """The scales of cells `(cos(x) sin(y), -sin(x) cos(y))` agree with the longitudinal correlation `cos(r)`."""
    fft = transform((8, 12), (2,))
    x, y = np.meshgrid(2 * np.pi * np.arange(8) / 8, 2 * np.pi * np.arange(12) / 12, indexing="ij")
    u = np.stack([np.cos(x) * np.sin(y), -np.sin(x) * np.cos(y)])
    found = spectral.turbulence_scales(fft, fft.decomposition.shard(u), 0.1)
    assert_close(found.energy, 0.25, 1e-12)
    assert_close(found.dissipation, 0.1 * 2 * 0.5, 1e-12)  # ν |∇u|², with k² = 2.
    # In two dimensions, <(∂u_x/∂x)²> = <|∇u|²> / 8 for isotropic flows.
    assert_close(found.taylor_scale, np.sqrt(0.25 / (1.0 / 8)), 1e-12)
    assert_close(found.integral_scale, 2 / 0.25 * 0.25 / np.sqrt(2), 1e-12)
    noise, direction = random_field((2, 8, 12)), random_field((2, 8, 12), seed=1)
    loss = jax.jit(lambda u, nu: sum(jnp.log(one) for one in spectral.turbulence_scales(fft, u, nu)))
    by_field, by_viscosity = jax.jit(jax.grad(loss, (0, 1)))(noise, 0.1)
    numeric = finite_difference(lambda u: loss(u, 0.1), noise, direction, 1e-5)
    assert np.sum(np.asarray(by_field) * direction) == pytest.approx(numeric, rel=1e-6)
    assert by_viscosity == pytest.approx((loss(noise, 0.1 + 1e-5) - loss(noise, 0.1 - 1e-5)) / 2e-5, rel=1e-6)


@pytest.mark.xla
@pytest.mark.parametrize(("sizes", "kind"), MESHES)
def test_structure_functions_are_equal_to_numpy(sizes, kind):
    shape = (9, 9, 9)
    fft = transform(shape, sizes, kind)
    u = random_field((2, 3, *shape))
    cells, orders = (1, 2, 4, 11), (1, 2, 3, 4)

    def moments(axis, i, n, p):
        return np.mean((np.roll(u[:, i], -n, axis + 1) - u[:, i]) ** p, (1, 2, 3))

    def expected(axes, same):
        table = [
            [[moments(a, i, n, p) for a in axes for i in range(3) if (i == a) == same] for n in cells] for p in orders
        ]
        return np.moveaxis(np.mean(table, 2), -1, 0)

    with jax.set_mesh(fft.decomposition.mesh):
        field = fft.decomposition.shard(u)
        run = jax.jit(
            lambda u, axes=None: spectral.structure_functions(fft, u, cells, orders=orders, axes=axes), static_argnums=1
        )
        program = run.lower(field).compile()
        every, first = program(field), run(field, ("x",))
        assert not [c for c in collectives(program.as_text()) if c.kind == "all-gather"]
    for found, axes in ((every, (0, 1, 2)), (first, (0,))):
        np.testing.assert_allclose(found.longitudinal, expected(axes, True), atol=1e-12)
        np.testing.assert_allclose(found.transverse, expected(axes, False), atol=1e-12)
    assert_close(every.r, 2 * np.pi / 9 * np.array(cells), 1e-12)


def test_structure_functions_ignore_the_padding():
    """Along the last axis nothing is transposed, so nothing else clears the padding. An unpadded array works, too."""
    shape = (9, 6, 4)
    u = random_field((3, *shape))
    fft = transform(shape, (2, 4), box=dops.Box((9.0, 6.0, 4.0)))
    padded = fft.decomposition.padded_shape()
    junk = random_field((3, *padded), seed=1)
    junk[:, :9, :6, :4] = u
    expected = np.mean((np.roll(u[2], -1, -1) - u[2]) ** 2)
    for field in (junk, u):
        found = spectral.structure_functions(fft, field, (1,), orders=(2,), axes="z")
        assert_close(found.longitudinal, [[expected]], rtol=1e-5)


def test_structure_functions_of_a_wave_and_their_derivatives():
    """The structure functions of `(sin(2x), c cos(2x))` along x are `1 - cos(2r)`, and c² times this for a tiny c."""
    fft = transform((12, 8), (2,))
    x, _ = np.meshgrid(2 * np.pi * np.arange(12) / 12, np.arange(8), indexing="ij")
    u = fft.decomposition.shard(np.stack([np.sin(2 * x), 1e-9 * np.cos(2 * x)]))
    found = spectral.structure_functions(fft, u, (1, 2, 5), orders=(2,), axes="x")
    r = 2 * np.pi / 12 * np.array([1, 2, 5])
    assert_close(found.longitudinal, (1 - np.cos(2 * r))[None], 1e-12)
    assert_close(found.transverse, 1e-18 * (1 - np.cos(2 * r))[None], 1e-12)
    noise, direction = random_field((2, 12, 8)), random_field((2, 12, 8), seed=1)
    loss = jax.jit(lambda u: jnp.sum(spectral.structure_functions(fft, u, (1, 3), axes="x").longitudinal ** 2))
    slope = np.sum(np.asarray(jax.jit(jax.grad(loss))(noise)) * direction)
    assert slope == pytest.approx(finite_difference(loss, noise, direction, 1e-5), rel=1e-6)


def test_second_derivatives_are_those_of_finite_differences():
    fft = transform((8, 9), (2,), box=dops.Box((8.0, 9.0)))
    noise, direction, other = (random_field((2, 8, 9), seed=seed) for seed in range(3))

    def loss(u):
        transfer, scales = spectral.energy_transfer(fft, u), spectral.turbulence_scales(fft, u, 0.1)
        moments = spectral.structure_functions(fft, u, (1, 3))
        return jnp.sum(transfer.flux**2) + scales.reynolds + jnp.sum(moments.longitudinal * moments.transverse)

    slope = lambda u: jnp.sum(jax.grad(loss)(u) * direction)
    both = jax.jit(lambda u: jax.jvp(slope, (u,), (other,)))
    numeric = finite_difference(lambda u: both(u)[0], noise, other, 1e-5)
    assert both(noise)[1] == pytest.approx(numeric, rel=1e-6)


def test_bad_input_is_refused(plain):
    spectral = plain.spectral
    fft = plain.FFT2D(make_mesh((1,)), shape=(8, 4), real=True)
    u = np.ones((2, 8, 4))
    for call, message in (
        (lambda: spectral.energy_transfer(fft, u[0]), r"`u` must be a vector field of shape .*got \(8, 4\)"),
        (lambda: spectral.energy_transfer(fft, u, dealiasing="3/2"), "`dealiasing` must be .*got '3/2'"),
        (lambda: spectral.turbulence_scales(fft, u, 0.0), "`viscosity` must be .*got 0.0"),
        (lambda: spectral.turbulence_scales(fft.replace(real=False), u, 1.0), "`fft` must be built with `real=True`"),
        (lambda: spectral.structure_functions(fft, u, (0.5,)), r"`separations` must be .* integers, .*got \(0.5,\)"),
        (
            lambda: spectral.structure_functions(fft, u, (1,), orders=(0,)),
            "`orders` must be an integer of at least one",
        ),
        (
            lambda: spectral.structure_functions(fft, u, (1,)),
            "`axes` must be axes along which cells have the same length",
        ),
        (lambda: spectral.structure_functions(fft, u, (1,), axes="w"), "`axes`"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            call()
