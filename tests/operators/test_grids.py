"""Tests on grids of one to four axes: stencils, kept Nyquist modes, and operators that take the mesh from the input."""

import functools

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.signal
from decompops.testing import assert_transposed
from decompops.tools.hlo import collectives
from jax.sharding import PartitionSpec as P

from helpers import assert_close, make_mesh, put, random_field


def laplacian(h, ndim):
    middle = (..., *[slice(1, -1)] * ndim)
    return sum(jnp.roll(h, step, axis) for step in (1, -1) for axis in range(-ndim, 0))[middle] - 2 * ndim * h[middle]


@pytest.mark.parametrize(
    ("sizes", "shape", "axes", "pencil"),
    [
        ((8,), (12,), None, -1),
        ((2, 4), (9, 8), (("x", "y"),), -1),
        ((2, 4), (6, 5), "y", "x"),
        ((2, 4), (5, 6, 7), None, "y"),
        ((2, 2, 2), (5, 4, 2, 3), None, 1),
    ],
)
def test_stencils(sizes, shape, axes, pencil):
    function = functools.partial(laplacian, ndim=len(shape))
    options = {"axes": axes, "pencil": pencil, "backend": "native" if len(shape) > 2 else "xla"}
    stencil = dops.Stencil(make_mesh(sizes), function, shape=shape, pad=True, **options)
    u = random_field((2, *shape))
    grid = range(-len(shape), 0)
    expected = sum(np.roll(u, step, axis) for step in (1, -1) for axis in grid) - 2 * len(shape) * u
    x, forward = stencil.in_layout.shard(u), jax.jit(stencil)
    result = forward(x)
    assert_close(stencil.out_layout.gather(result), expected)
    assert_transposed(forward, jax.jit(stencil.T), np.asarray(x), np.asarray(result))


@pytest.mark.parametrize(("shape", "modes", "real"), [((8, 9), (4, 6), True), ((6, 5, 8), (6, 4, 4), False)])
def test_nyquist_modes_that_are_kept(shape, modes, real):
    """With `nyquist=True`, kept modes equal the modes of the field that SciPy resamples to the coarser grid."""
    fft = dops.FFT(make_mesh((2, 2)), shape=shape, modes=modes, real=real, nyquist=True, pad=True)
    u = random_field(shape, np.float64 if real else np.complex128)

    def resampled(u, shape):
        return functools.reduce(lambda u, axis: scipy.signal.resample(u, shape[axis], axis=axis), range(u.ndim), u)

    coarse = resampled(u, modes)
    k = fft(u)
    expected = (np.fft.rfftn if real else np.fft.fftn)(coarse) * (u.size / coarse.size)
    assert_close(fft.out_layout.gather(k), expected)
    assert_close(fft.in_layout.gather(fft.inverse(k)), resampled(coarse, shape))
    assert_close(np.sum(fft.multiplicity() * np.abs(k) ** 2), np.sum(np.abs(coarse) ** 2) * u.size**2 / coarse.size)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_a_mesh_from_the_array(kind):
    mesh, u = make_mesh((2, 4), kind), random_field((8, 8, 8))
    fft, halo, cross = dops.FFT3D(real=True, shape=(8, 8, 8)), dops.HaloExchange(halo=1), dops.Transpose(target="y")
    x = put(mesh, u, "x", "y", None)
    k = fft(x)
    np.testing.assert_array_equal(k, dops.FFT3D(mesh, real=True, shape=(8, 8, 8))(x))
    assert_close(fft.inverse(k), u)
    np.testing.assert_array_equal(halo.crop(halo(x)), u)
    assert cross(x).sharding.spec == P("x", None, "y")
    assert "(on the grid of its input)" in repr(fft)
    if kind == "explicit":
        with jax.set_mesh(mesh):
            np.testing.assert_array_equal(
                jax.jit(dops.FFT3D().inverse)(dops.FFT3D()(x)), dops.FFT3D(mesh).inverse(dops.FFT3D(mesh)(x))
            )
    with pytest.raises(AttributeError, match="`HaloExchange` has no inverse"):
        halo.inverse  # noqa: B018
    with pytest.raises(ValueError, match=r"`mesh` must be given to `FFT3D`, or set by `jax\.set_mesh"):
        fft(u)
    with pytest.raises(ValueError, match=r"`mesh` must be given to the operator, or set by .*; got None"):
        fft.wavenumbers()


def test_each_mesh_axis_is_exchanged_once():
    """A transform has one all-to-all for each move of mesh axes between two grid axes, and no other communication."""
    for sizes, shape, axes, count in [
        ((2, 4), (8, 8), "x", 1),
        ((2, 4), (8, 8), (("x", "y"),), 1),
        ((2, 2, 2), (4, 4, 4, 4), None, 3),
        ((2, 2, 2), (8, 4, 4), (("c", "x"), "y"), 2),
    ]:
        fft = dops.FFT(make_mesh(sizes), shape=shape, axes=axes)
        u = jax.ShapeDtypeStruct(shape, np.complex128, sharding=fft.in_layout.sharding)
        program = jax.jit(fft).lower(u).compile().as_text()
        assert [c.kind for c in collectives(program)] == ["all-to-all"] * count
