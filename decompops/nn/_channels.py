"""Checks the arguments of layers: transforms, and fields of shape `(*batch, channels, nx, ny, nz)`."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array

from .._common.blocks import axis_names
from .._common.host import device_array
from .._common.typed import whole_along
from .._core.decomposition import Decomposition
from .._operator.fft import FFT
from .._operator.placed import Placed
from ..spectral._check import check_fft


def check_channels(x: Any, channels: int, ndim: int) -> Array:
    """Return `x`, resharded so that no Explicit mesh axis shards the channels.

    **Raises:** `ValueError` unless `x` has `channels` channels.
    """
    shape, axis = jnp.shape(x), -ndim - 1
    if len(shape) <= ndim or shape[axis] != channels:
        lengths = ", ".join(f"n{name}" for name in axis_names(ndim))
        raise ValueError(f"`x` must have shape (*batch, {channels}, {lengths}), with {channels} channels; got {shape}.")
    # Layers sum over the channels. JAX does not choose how to sum over an axis that Explicit mesh axes shard.
    return whole_along(device_array(x), axis)


def placed_channels(x: Any, channels: int, dec: Decomposition) -> Array:
    """Return `x` on the devices of `dec`, with its channels as `check_channels` returns and checks them."""
    # An array on one device has no mesh in its type. `Placed` may shard its channels over mesh axes that are left over.
    return whole_along(Placed(dec)(check_channels(x, channels, dec.ndim)), -dec.ndim - 1)


def check_activation(activation: Any) -> Callable:
    """Return `activation`. Raise `TypeError` if it cannot be called."""
    if not callable(activation):
        raise TypeError(f"`activation` must be a function; got {activation!r}. Pass `jax.nn.gelu`, for example.")
    return activation


def check_ndim(fft: Any, ndim: int) -> FFT:
    """Return `fft`. Raise `ValueError` if its grid does not have `ndim` axes."""
    shape = check_fft(fft)
    if len(shape) != ndim:
        raise ValueError(
            f"`fft` must transform a grid of {ndim} axes; got a grid of shape {shape}. For other grids, use the layer "
            f"without the suffix {ndim}D."
        )
    return fft


def layer_title(layer: str, ndim: int) -> str:
    """Return the name of a `layer` on a grid of `ndim` axes, such as "FNO3D"."""
    return f"{layer}{ndim}D" if ndim in (2, 3) else layer
