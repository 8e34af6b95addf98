"""Tests of the XLA backend on the GPUs of this machine, in one process. Without a GPU, the tests are skipped."""

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops.tools import selftest
from jax.sharding import AxisType, Mesh

from helpers import assert_close, gpus, random_field


GPUS = gpus()
pytestmark = pytest.mark.skipif(not GPUS, reason="there is no GPU here")


@pytest.fixture
def one() -> Mesh:
    return Mesh(np.array(GPUS[:1]).reshape(1, 1), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def test_selftest():
    outcomes = list(selftest.run(dops.XLA(), GPUS))
    assert [outcome for outcome in outcomes if not outcome.passed] == []


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("shape", [(64, 64, 64), (45, 77, 128)])
def test_results_on_one_gpu(one, dtype, shape):
    real = not np.issubdtype(dtype, np.complexfloating)
    u = random_field(shape, np.dtype(dtype))
    dec = dops.Decomposition(one, shape=shape)
    fft = dops.FFT3D(dec, real=real)
    k = fft(dec.shard(u))
    assert_close(k, (np.fft.rfftn if real else np.fft.fftn)(u.astype(np.result_type(dtype, np.float64))))
    assert_close(dec.gather(fft.inverse(k)), u)


def test_one_gpu_needs_no_more_scratch_than_jax(one):
    """The compiled program of a transform needs no more scratch memory than the program of `jnp.fft`."""
    x = jax.device_put(jnp.zeros((128, 128, 128), jnp.complex64), GPUS[0])
    theirs = jax.jit(jnp.fft.fftn).lower(x).compile().memory_analysis()
    fft = dops.FFT3D(one, shape=x.shape)
    ours = jax.jit(fft).lower(fft.decomposition.shard(x)).compile().memory_analysis()
    assert ours.temp_size_in_bytes <= theirs.temp_size_in_bytes
