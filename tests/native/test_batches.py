"""Kernels and batches that a further mesh axis shards. XLA cannot divide the work of a kernel, and may gather them."""

import decompops as dops
import jax
import numpy as np
import pytest
from decompops.tools.hlo import collectives
from jax.sharding import PartitionSpec

from helpers import assert_close, make_mesh, random_field


NATIVE = dops.Native()
pytestmark = pytest.mark.skipif(NATIVE.problem() is not None, reason=str(NATIVE.problem()))
OPTIONS = {"kernel_size": 3, "stride": 2, "key": jax.random.key(3)}
# The mesh does not divide the coarser grids, so the results of layers have padding.


def convolution(dec):
    return dops.spectral.Convolution(dops.FFT3D(dec, real=True), dops.spectral.PoissonKernel())


def local(dec):
    """Return a function of blocks, in a `shard_map` over the mesh axes of the grid only."""
    fft = dops.FFT3D(dec.mesh, shape=dec.shape, backend=dec.backend)

    def on_block(block):
        return fft.inverse.local(abs(fft.local(block))).real

    def function(u):
        lead = [None] * (u.ndim - dec.ndim)
        spec = PartitionSpec(*lead, *dec.spec())
        return jax.shard_map(on_block, mesh=dec.mesh, in_specs=spec, out_specs=spec, axis_names={"x", "y"})(u)

    return function


FUNCTIONS = {
    "HaloConv": lambda dec: dops.nn.HaloConv(dec, 2, 3, **OPTIONS),
    "HaloConvTranspose": lambda dec: dops.nn.HaloConvTranspose(dec, 2, 3, **OPTIONS),
    "MaxPool": lambda dec: dops.nn.MaxPool(dec, 2),
    "Convolution": convolution,
    "local": local,
    "sum": lambda dec: dec.sum,
    "max": lambda dec: dec.max,
}


@pytest.mark.parametrize("kind", ["auto", "explicit"])
@pytest.mark.parametrize("wrap", [lambda function: function, jax.vmap], ids=["batch", "vmap"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_field_is_gathered(name, wrap, kind):
    if wrap is jax.vmap and kind == "explicit" and jax.__version_info__ < (0, 12):
        pytest.skip("Under `jax.vmap`, the `shard_map` of JAX 0.10 gathers arrays on Explicit axes itself.")
    mesh = make_mesh((2, 2, 2), kind, ("batch", "x", "y"))
    x, results = random_field((4, 2, 4, 6, 2)), []
    for backend in (NATIVE, dops.XLA()):
        dec = dops.Decomposition(mesh, shape=x.shape[2:], pad=True, backend=backend)
        function = wrap(FUNCTIONS[name](dec))
        program = jax.jit(lambda u, function=function: function(u)).lower(u := dec.shard(x)).compile()
        results.append(program(u))
        moved = [(one.kind, one.bytes) for one in collectives(program.as_text())]
        assert not any(kind == "all-gather" and size > 4 * 2 * x.itemsize for kind, size in moved), moved
        if backend == NATIVE:  # Of reductions, the results may be gathered: one number for each field.
            assert all(size <= 4 * 2 * x.itemsize for _, size in moved) if name in ("sum", "max") else not moved, moved
    assert_close(*map(np.asarray, results))


@pytest.mark.parametrize("kind", ["auto", "explicit"])
@pytest.mark.parametrize("wrap", [lambda function: function, jax.vmap], ids=["batch", "vmap"])
def test_a_batch_of_whole_fields_stays_where_it_is(wrap, kind):
    x, alone = random_field((4, 4, 6, 2)), convolution(dops.Decomposition(make_mesh((1,)), shape=(4, 6, 2)))
    for backend in (NATIVE, dops.XLA()):
        dec = dops.Decomposition(make_mesh((4,), kind), shape=(4, 6, 2), axes=(), backend=backend)
        function = wrap(convolution(dec))
        program = jax.jit(lambda u, function=function: function(u)).lower(u := dec.shard(x)).compile()
        assert collectives(program.as_text()) == []
        assert_close(np.asarray(program(u)), np.asarray(alone(x)))
