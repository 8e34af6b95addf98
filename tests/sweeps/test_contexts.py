"""Tests of operators under unusual conditions of JAX.

The conditions are `auto_axes` without `jit`, meshes without devices, reduced arrays, and Explicit axes of one device.
"""

import contextlib

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import nn, pde, spectral
from decompops.testing import assert_adjoint, assert_transposed
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec as P

from helpers import assert_close, make_mesh, put, random_field


SHAPE = (4, 4, 4)
KEY = jax.random.key(0)


def inverse_laplacian(u):
    kx, ky, kz = (np.fft.fftfreq(4, 1 / 4).reshape(shape) for shape in ((4, 1, 1), (1, 4, 1), (1, 1, 4)))
    squared = kx**2 + ky**2 + kz**2
    squared[0, 0, 0] = np.inf
    return np.fft.ifftn(-np.fft.fftn(u) / squared).real


def forward_difference(h):
    return h[..., 2:, :, :] - h[..., 1:-1, :, :]


@pytest.mark.parametrize("ambient", [True, False])
def test_auto_axes_without_jit(ambient):
    mesh = make_mesh((2, 2), "explicit")
    dec = dops.Decomposition(mesh, shape=SHAPE)
    fft = dops.FFT3D(dec, real=True)
    padded = dops.Stencil(mesh, forward_difference, (1, 0, 0), shape=(3, 4, 4), pad=True)
    u = random_field(SHAPE)
    conv = nn.HaloConv3D(dec, 1, 1, 3, key=KEY)
    field = spectral.GaussianRandomField(fft, lambda k: 1 / k)
    z = P("x", "y", None)
    cases = {
        "Poisson": (spectral.Poisson(fft), z, inverse_laplacian(u)),
        "Poisson.T": (spectral.Poisson(fft).T, z, inverse_laplacian(u)),
        "ambient": (lambda x: dops.FFT3D()(x), P(None, "x", "y"), np.fft.fftn(u)),
        "wavenumbers": (lambda x: fft.wavenumbers()[1] + 0 * x, z, np.fft.fftfreq(4, 1 / 4)[:, None] + 0 * u),
        "multiplicity": (
            lambda x: fft.multiplicity() + 0 * x[..., :4],
            z,
            np.array([1, 2, 1, 0]) + np.zeros(SHAPE),
        ),
        "stencil": (
            lambda x: padded(x[:3])[:3],
            P(None, "y", None),
            np.roll(u[:3], -1, 0) - u[:3],
        ),
        "noise": (lambda x: field(KEY) + 0 * x, z, np.asarray(field(KEY))),
        "power": (lambda x: spectral.power_spectrum(fft, x).modes, P(None), [18, 35]),
        "conv": (lambda x: conv(x[None])[0], z, np.asarray(conv(u[None]))[0]),
    }
    with jax.set_mesh(mesh) if ambient else contextlib.nullcontext():
        x = put(mesh, u, "x", "y", None)
        for function, spec, expected in cases.values():
            relaxed = jax.sharding.auto_axes(function, out_sharding=NamedSharding(mesh, spec))
            assert_close(relaxed(x), expected)


@pytest.mark.parametrize("types", [(AxisType.Auto, AxisType.Explicit), (AxisType.Explicit, AxisType.Auto)])
def test_an_explicit_axis_of_one_device_beside_an_auto_axis(types):
    """Operators work on a mesh with an Explicit axis of one device and an Auto axis.

    JAX's own eager operations drop such an Explicit axis from the types of results, so `jax.grad` needs `jit`.
    """
    sizes = tuple(2 if kind == AxisType.Auto else 1 for kind in types)
    mesh = Mesh(np.array(jax.devices()[:2]).reshape(sizes), ("x", "y"), axis_types=types)
    fft = dops.FFT3D(mesh, shape=SHAPE, real=True, backend="native" if types[0] == AxisType.Explicit else "xla")
    scalar, vector = random_field(SHAPE), random_field((3, *SHAPE), seed=1)
    poisson, gradient = spectral.Poisson(fft), spectral.Gradient(fft)
    for x in (scalar, put(mesh, scalar, "x", "y", None)):
        assert_close(poisson.T(x), inverse_laplacian(scalar))
    assert_transposed(gradient, gradient.T, scalar, vector)
    assert_adjoint(gradient, gradient.H, scalar, vector)
    x, y = fft.decomposition.shard(scalar), fft.in_layout.shard(vector[0])  # JAX compares the types of cotangents.
    assert_close(jax.jit(lambda x, y: jax.vjp(poisson, x)[1](y)[0])(x, y), inverse_laplacian(vector[0]))
    equation = pde.RealSpace(pde.NavierStokes(fft, 0.1))
    assert_close(equation(0.0, jnp.asarray(vector)), jax.jit(equation)(0.0, vector))


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_an_abstract_mesh_takes_devices_from_where_they_are_known(kind, plain):
    mesh = make_mesh((2, 2), kind)
    abstract = AbstractMesh((2, 2), ("x", "y"), axis_types=mesh.axis_types)
    fft, halo = plain.FFT3D(abstract, shape=SHAPE), plain.HaloExchange(abstract, 1)
    poisson = plain.spectral.Poisson(plain.FFT3D(abstract, shape=SHAPE, real=True))
    noise = plain.spectral.GaussianRandomField(poisson.fft, lambda k: 1 / k)
    there_and_back = jax.jacrev(lambda x: jnp.sum(halo.crop(halo(x))))
    u = random_field(SHAPE)

    known = r"`x` must be on a mesh with the axes \{'x': 2, 'y': 2\}.*Call the operator inside `jax.set_mesh\(mesh\)`"
    by_jax = "enter your `jit` into a mesh context via `jax.set_mesh`"  # JAX raises this error on Explicit meshes.
    for x in (u, jnp.asarray(u), jax.device_put(u, jax.devices()[3])):
        for function in (fft, poisson, jax.jit(fft), there_and_back, jax.jit(there_and_back)):
            with pytest.raises(ValueError, match=f"{known}|{by_jax}"):
                function(x)
        with pytest.raises(ValueError, match=known):
            fft(x)
    with pytest.raises(ValueError, match=known):
        noise(KEY)

    x = put(mesh, u, "x", "y", None)
    assert_close(fft(x), np.fft.fftn(u))
    assert_close(jax.jit(fft)(x), np.fft.fftn(u))
    assert_close(poisson(x), inverse_laplacian(u))
    with jax.set_mesh(mesh):
        for given in (u, x):
            assert_close(fft(given), np.fft.fftn(u))
            assert_close(jax.jit(fft)(given), np.fft.fftn(u))
        assert_close(there_and_back(x), np.ones(SHAPE))
        assert noise(KEY).sharding.mesh == mesh


def test_reduced_inputs_are_taken_and_unreduced_ones_refused(plain):
    mesh = make_mesh((2, 2, 2), "explicit", ("t", "x", "y"))
    with jax.set_mesh(mesh):
        fft = plain.FFT3D(mesh, shape=SHAPE)
        real = plain.FFT3D(mesh, shape=SHAPE, real=True)
        u = random_field(SHAPE)
        x = jax.sharding.reshard(put(mesh, u, "x", None, None), P("x", reduced={"t"}))
        assert "t" in jax.typeof(x).sharding.spec.reduced
        stencil = plain.Stencil(mesh, forward_difference, (1, 0, 0))
        for wrap in (lambda f: f, jax.jit):
            assert_close(wrap(fft)(x), np.fft.fftn(u))
            assert_close(wrap(plain.spectral.Poisson(real).T)(x), inverse_laplacian(u))
            assert_close(wrap(stencil)(x), np.roll(u, -1, 0) - u)
            assert_close(wrap(stencil.T)(x), np.roll(u, 1, 0) - u)
            gradient = wrap(jax.grad(lambda x: jnp.sum(jnp.abs(fft(x)) ** 2)))(x)
            assert jax.typeof(gradient).sharding.spec.unreduced == {"t"}  # JAX's own gradients are unreduced, too.
            assert_close(jax.sharding.reshard(gradient, P("x")), 2 * 64 * u)
        conv = plain.nn.HaloConv3D(mesh, 1, 1, 3, key=KEY)
        assert_close(conv(x[None]), conv(u[None]))
        for wrap in (lambda f: f, jax.jit):
            with pytest.raises(
                ValueError, match=r"`x` must not be unreduced; got P\('x', .*unreduced=\{'t'\}.*reshard"
            ):
                wrap(fft)(gradient)


def test_64_bit_mode_is_part_of_what_is_remembered():
    fft, u = dops.FFT3D(make_mesh((2, 4))), random_field((8, 8, 8))
    with jax.enable_x64(False):
        assert fft(u).dtype == np.complex64
    with jax.enable_x64(True):
        assert_close(fft(u), np.fft.fftn(u))
        assert fft(u).dtype == np.complex128


@pytest.mark.parametrize("prepare", [lambda u: u, lambda u: 2 * u, lambda u: u.astype(np.float32)])
def test_an_array_that_a_compiled_program_closes_over(prepare):
    """A compiled program may close over a sharded array.

    Without special treatment, JAX would compile such a program for a single device, because no input is sharded.
    """
    mesh = make_mesh((2, 4))
    c, r = dops.FFT3D(mesh, shape=(8, 8, 8)), dops.FFT3D(mesh, shape=(8, 8, 8), real=True)
    u = c.decomposition.shard(random_field((8, 8, 8)))
    for fft in (c, r):
        assert_close(jax.jit(lambda fft=fft: fft(prepare(u)))(), fft(prepare(u)), 1e-5)


@pytest.mark.promotes_ranks
def test_an_array_that_a_shard_map_over_another_axis_closes_over():
    mesh = make_mesh((2, 2, 2), names=("c", "x", "y"))
    fft = dops.FFT3D(mesh, shape=(4, 4, 4), real=True)
    u, a = fft.decomposition.shard(random_field((4, 4, 4))), random_field((2, 4, 4, 4))
    add = lambda a: a + fft.inverse(fft(u))
    mapped = jax.jit(jax.shard_map(add, mesh=mesh, in_specs=P("c"), out_specs=P("c"), axis_names={"c"}))
    assert_close(mapped(a), a + np.asarray(u))
