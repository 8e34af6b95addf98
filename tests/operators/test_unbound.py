"""Tests of operators that are built without a mesh or without a shape, and take what is missing from their arrays."""

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops._operator.unbound import bound
from decompops.testing import assert_transposed
from jax.sharding import PartitionSpec as P

from helpers import assert_close, make_mesh, put, random_field


SHAPE = (4, 8, 6)
U = random_field(SHAPE, np.complex128)


@pytest.fixture(params=["auto", "explicit"])
def mesh(request):
    return make_mesh((2, 2), request.param)


@pytest.mark.parametrize("missing", ["shape", "mesh", "both"])
def test_results_are_those_of_a_bound_operator(mesh, missing):
    known = {"mesh": mesh} if missing == "shape" else {"shape": SHAPE} if missing == "mesh" else {}
    x = put(mesh, U, "x", "y", None)
    fft = dops.FFT3D(**known, axis_contiguous=True)
    k = fft(x)
    assert_close(np.transpose(k, (2, 0, 1)), np.fft.fftn(U))
    assert k.sharding.is_equivalent_to(dops.FFT3D(mesh, shape=SHAPE, axis_contiguous=True).out_layout.sharding, 3)
    assert_close(fft.inverse(2 * k), 2 * U)
    if missing != "mesh":
        few = U[::2, ::4, ::3]
        assert_close(fft(put(mesh, few, "x", "y", None)), np.fft.fftn(few).transpose(1, 2, 0))
    halo = dops.HaloExchange(**known, halo=(1, 0, 2))
    h = halo(x)
    assert_close(halo.crop(h), U)
    assert_close(halo.update(h), h)
    assert_transposed(halo, halo.T, x, jax.device_put(random_field(h.shape, np.complex128), h.sharding))
    rolled = dops.Roll(known.get("mesh"), (1, 0, -2), shape=known.get("shape"))(x)
    assert_close(rolled, np.roll(U, (1, 0, -2), (0, 1, 2)))
    stencil = dops.Stencil(known.get("mesh"), lambda b: b[..., 2:, :, :], (1, 0, 0), shape=known.get("shape"))
    assert_close(stencil(x), np.roll(U, -1, 0))


def test_a_bound_copy_is_made_once_for_each_shape(mesh):
    fft, x = dops.FFT3D(mesh), put(mesh, U, "x", "y", None)
    assert bound(fft, x) is bound(dops.FFT3D(mesh), 2 * x)
    assert bound(fft, x) is not bound(fft, put(mesh, U[:2], "x", "y", None))
    assert bound(fft, x).decomposition == dops.Decomposition(mesh, shape=SHAPE)


def test_transformations(mesh):
    fft, x = dops.FFT3D(mesh), put(mesh, U, "x", "y", None)
    with jax.set_mesh(mesh):
        assert_close(jax.jit(fft)(x), np.fft.fftn(U))
        assert_close(jax.vmap(fft)(np.stack([U, 2 * U]))[1], 2 * np.fft.fftn(U))
        gradient = jax.grad(lambda v: jnp.sum(jnp.abs(fft(v)) ** 2))(x)
        assert_close(gradient, 2 * U.size * np.conj(U))
        assert_close(eqx.filter_jit(lambda operator, v: operator.T(v))(fft, jnp.asarray(U)), np.fft.fftn(U))
        local = jax.shard_map(fft.local, mesh=mesh, in_specs=fft.in_spec, out_specs=fft.out_spec)
        assert_close(jax.jit(local)(x), np.fft.fftn(U))


def test_pipelines_are_checked_and_bound_part_by_part(mesh, plain):
    fft, x = plain.FFT3D(mesh), put(mesh, U, "x", "y", None)
    other = plain.FFT3D(mesh, shape=SHAPE)
    for pipeline in (fft.inverse @ fft, other.inverse @ fft, fft.inverse @ other, fft.inverse @ (lambda k: k) @ fft):
        assert_close(pipeline(2 * x), 2 * U)
        assert pipeline.in_spec == P("x", "y", None)
    assert repr(fft.inverse @ other).splitlines()[1] == repr(other.inverse)
    assert (
        repr(fft.inverse @ fft).splitlines()
        == [repr(fft), repr(fft.inverse)]
        == [
            "FFT3D  (on the grid of its input)",
            "FFT3D.inverse  (on the grid of its input)",
        ]
    )
    half = plain.FFT3D(mesh, real=True)
    for compose, message in (
        (lambda: fft @ fft, "a field is wanted, not a spectrum"),
        (lambda: plain.Transpose(mesh, "z", "y") @ plain.Transpose(mesh, "z", "x"), "another axis is whole"),
        (lambda: plain.HaloExchange(mesh).crop @ fft.inverse, "blocks must be extended first"),
        (lambda: half @ fft.inverse, "real numbers are wanted"),
        (lambda: half.inverse @ other, "a half spectrum does not tell the length of the field along z"),
        (lambda: other.inverse @ plain.Transpose(mesh, "z", "y"), "another axis is whole"),
        (lambda: fft.inverse @ plain.FFT3D(mesh, shape=(4, 8, 5), pad=True), "is padded"),
    ):
        with pytest.raises(ValueError, match=message):
            compose()


def test_what_is_not_known_is_named(mesh, plain):
    fft, nowhere = plain.FFT3D(mesh), plain.FFT3D(shape=SHAPE)
    for ask, error, message in (
        (lambda: fft.decomposition.shape, ValueError, "`shape` must be given to the operator, such as .*; got None"),
        (lambda: fft.decomposition.shard(U), ValueError, "`shape` must be given .*, because `shard` depends on it"),
        (lambda: fft.in_structure, ValueError, "`shape` must be given"),
        (lambda: fft.wavenumbers(), ValueError, "`shape` must be given"),
        (lambda: nowhere.out_layout, ValueError, "`mesh` must be given to the operator, or set by `jax.set_mesh"),
        (lambda: nowhere.in_spec, ValueError, "`mesh` must be given to the operator"),
        (lambda: nowhere(U), ValueError, "`mesh` must be given to `FFT3D`, or set by .* got complex128"),
        (lambda: fft.decomposition.sahpe, AttributeError, "no attribute `sahpe`"),
        (lambda: plain.HaloExchange().inverse, AttributeError, "`HaloExchange` has no inverse"),
        (lambda: plain.HaloExchange(mesh, 3).crop(U), ValueError, "`x` must contain the halo .* got shape"),
        (lambda: plain.io.write("u.h5", {"u": U}, fft), ValueError, "`shape` must be given"),
        (
            lambda: plain.spectral.Poisson(fft),
            ValueError,
            "`fft` must be built with a `shape`, and on a mesh; got FFT3D",
        ),
        (lambda: plain.FFT3D(mesh, pad=True)(U[:3]), ValueError, "3 cells of `x` along x: pass the true shape"),
    ):
        with pytest.raises(error, match=message):
            ask()
