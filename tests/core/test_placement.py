"""Tests of arrays on one device, which operators shard."""

import decompops as dops
import jax
import numpy as np
import pytest

from helpers import assert_close, make_mesh, random_field


SHAPE = (8, 8, 8)
DEC = dops.Decomposition(make_mesh((2, 2)), shape=SHAPE, backend="native")
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
    programs, expected = [], np.asarray(operator(sharded))

    def listen(event: str, seconds: float, **options) -> None:
        if event.endswith("backend_compile_duration"):
            programs.append(options)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        np.testing.assert_array_equal(np.asarray(operator(whole)), expected)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
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
