"""Tests of layers with weights of half precision, as in mixed precision, beside the same layers in single precision."""

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import nn

from helpers import make_mesh, random_field


SHAPE, KEY = (8, 8), jax.random.key(0)
LAYERS = {
    "HaloConv": lambda dec, fft: nn.HaloConv2D(dec, 2, 2, kernel_size=3, dtype=np.float32, key=KEY),
    "HaloConvTranspose": lambda dec, fft: nn.HaloConvTranspose2D(dec, 2, 2, 2, stride=2, dtype=np.float32, key=KEY),
    "UNet": lambda dec, fft: nn.UNet(dec, 2, 2, width=2, depth=1, dtype=np.float32, key=KEY),
    "GroupNorm": lambda dec, fft: nn.GroupNorm(dec, 2, 2, dtype=np.float32),
    "SpectralConv": lambda dec, fft: nn.SpectralConv2D(fft, 2, 2, 3, dtype=np.float32, key=KEY),
    "FNO": lambda dec, fft: nn.FNO2D(fft, 2, 2, width=2, modes=2, depth=1, dtype=np.float32, key=KEY),
}


@pytest.mark.parametrize(("half", "kind"), [(jnp.bfloat16, "auto"), (jnp.bfloat16, "explicit"), (jnp.float16, "auto")])
@pytest.mark.parametrize("name", LAYERS)
def test_gradients_of_weights(name, half, kind):
    """One mesh axis is left over for the batch. Gradients have the dtype of the weights."""
    dec = dops.Decomposition(make_mesh((2, 2), kind), shape=SHAPE, axes="y")
    layer = LAYERS[name](dec, dops.FFT2D(dec, real=True))
    weights, rest = eqx.partition(layer, eqx.is_inexact_array)
    u = jax.device_put(
        random_field((2, 2, *SHAPE), np.float32), jax.NamedSharding(dec.mesh, jax.P("x", None, None, "y"))
    )

    @jax.jit
    @jax.grad
    def gradient(weights, u):
        return jnp.mean(eqx.combine(weights, rest)(u).astype(jnp.float32) ** 2)

    is_spectral = name in ("SpectralConv", "FNO")  # Their fields stay in single precision.
    few = jax.tree.map(lambda w: w.astype(half), weights)
    with jax.set_mesh(dec.mesh), jax.numpy_dtype_promotion("standard"):  # The mixture of dtypes is the user's.
        got, expected = gradient(few, u if is_spectral else u.astype(half)), gradient(weights, u)
    for g, e in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert g.dtype == half
        np.testing.assert_allclose(np.asarray(g, float), e, atol=0.1 * np.abs(np.asarray(e)).max() + 1e-3)


def test_ufno_with_weights_of_half_precision():
    """The U-Nets compute in half precision, the other layers in single precision."""
    fft = dops.FFT2D(make_mesh((2, 2)), shape=SHAPE, real=True)
    layer = nn.UFNO(fft, 2, 2, width=2, modes=2, depth=1, unet_depth=1, dtype=np.float32, key=KEY)
    few = jax.tree.map(lambda w: w.astype(jnp.bfloat16) if eqx.is_inexact_array(w) else w, layer)
    u = random_field((2, *SHAPE), np.float32)
    with jax.numpy_dtype_promotion("standard"):  # The mixture of dtypes is the user's.
        got, expected = eqx.filter_jit(few)(u), eqx.filter_jit(layer)(u)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, atol=0.05 * np.abs(expected).max())
