"""Tests of arrays on one device, which operators shard."""

import decompops as dops
import jax
import numpy as np
import pytest

from helpers import assert_close, compiled_programs, make_mesh, random_field


SHAPE = (8, 8, 8)
DEC = dops.Decomposition(make_mesh((2, 2)), shape=SHAPE, backend="native")
MESH_DEVICES = np.asarray(DEC.mesh.devices).ravel()
FFT = dops.FFT3D(DEC, real=True)
OPERATORS = {
    "fft": FFT,
    "inverse": FFT.inverse,
    "transpose": dops.Transpose(DEC, "z", "x"),
    "halo": dops.HaloExchange(DEC, 1),
    "stencil": dops.Stencil(DEC, lambda h: h[..., 2:, :, :] - h[..., :-2, :, :], (1, 0, 0)),
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_no_program_cuts_an_array_on_one_device(name, dtype):
    """JAX would compile one for each shape, which takes more time than the transform of a small field."""
    operator = OPERATORS[name]
    field = random_field(SHAPE, dtype)
    sharded, whole = DEC.shard(field), jax.device_put(field)
    if name == "inverse":
        sharded, whole = FFT(sharded), jax.device_put(np.asarray(FFT(sharded)))
    expected = np.asarray(operator(sharded))
    with compiled_programs() as programs:
        np.testing.assert_array_equal(np.asarray(operator(whole)), expected)
    assert not programs


def test_a_program_that_overwrites_the_blocks_does_not_change_the_whole_array():
    """On CPUs, the blocks may lie in the memory of the whole array."""
    field = random_field(SHAPE)
    whole = jax.device_put(field.copy())
    blocks = dops.Transpose(DEC, "x", "x")(whole)
    overwritten = jax.jit(lambda u: 2 * u + 1, donate_argnums=0)(blocks)
    assert_close(overwritten, 2 * field + 1)
    np.testing.assert_array_equal(whole, field)

    blocks = dops.Transpose(DEC, "x", "x")(whole)
    jax.jit(lambda u: 2 * u + 1, donate_argnums=0)(whole)
    np.testing.assert_array_equal(blocks, field)


def test_weak_types_stay_weak():
    placed = dops.Transpose(DEC, "z", "z")(jax.numpy.full(SHAPE, 2.0))
    assert placed.weak_type
    assert placed.sharding.is_equivalent_to(DEC.layout().sharding, 3)


OTHER = jax.sharding.Mesh(MESH_DEVICES[[2, 0, 3, 1]].reshape(2, 2), ("x", "y"))
PLACES = {
    "one device": jax.sharding.SingleDeviceSharding(MESH_DEVICES[2]),
    "another order": jax.sharding.NamedSharding(OTHER, jax.P("x", "y")),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("backend", ["native", "xla"])
@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_eager_derivatives_and_sums_of_arrays_that_lie_elsewhere(place, backend, kind):
    """An array on one device of the mesh, or on its devices in another order, is moved as in a plain call."""
    mesh = make_mesh((2, 2), kind)
    fft = dops.FFT3D(dops.Decomposition(mesh, shape=SHAPE, backend=backend), real=True)
    dec, u, v = fft.decomposition, random_field(SHAPE), random_field(SHAPE, seed=1)
    x, k = jax.device_put(u, PLACES[place]), np.fft.rfftn(u)
    value, tangent = map(fft.out_layout.gather, jax.jvp(fft, (x,), (x,)))
    assert_close(value, k)
    assert_close(tangent, k)
    _, pull = jax.vjp(fft, x)
    assert_close(pull(fft(v))[0], np.asarray(fft.T(fft(v))))
    assert_close(fft.out_layout.gather(jax.linearize(fft, x)[1](x)), k)
    assert_close(dec.sum(x), u.sum())
    assert_close(dec.mean(x), u.mean())
    assert_close(dec.norm(x), np.linalg.norm(u.ravel()))
    assert_close(dec.vdot(x, dec.shard(v)), np.vdot(u, v))
    assert float(dec.max(x)) == u.max()
    assert float(dec.min(x)) == u.min()
    assert_close(fft.volume_mean(x), u.mean())
    assert_close(np.sort(dec.ravel(x)[0]), np.sort(u.ravel()))


def test_sums_of_cropped_arrays_that_lie_elsewhere():
    dec = dops.Decomposition(make_mesh((2, 2)), shape=(5, 7, 3), pad=True, backend="native")
    u = random_field((2, 5, 7, 3))
    x = jax.device_put(u, PLACES["one device"])
    assert_close(dec.sum(x), u.sum((1, 2, 3)))
    assert_close(dec.max(x), u.max((1, 2, 3)))


@pytest.mark.parametrize("method", ["sum", "mean", "norm", "max", "min", "ravel"])
@pytest.mark.parametrize("backend", ["native", "xla"])
def test_sums_refuse_arrays_on_other_devices(method, backend):
    dec = dops.Decomposition(make_mesh((2, 2)), shape=SHAPE, backend=backend)
    far = jax.device_put(random_field(SHAPE), jax.devices()[7])
    with pytest.raises(ValueError, match=r"`field` must lie on the operator's mesh, .*; got an array on devices \[7\]"):
        getattr(dec, method)(far)
