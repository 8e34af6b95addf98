"""Fields with a channel axis, such as `(*batch, channels, nx, ny, nz)`: what the layers check."""

from typing import Any

import jax.numpy as jnp
from jax import Array

from .._blocks import axis_names
from .._operator.fft import FFT
from .._sharding import whole_along
from ..spectral._check import check_fft


def check_channels(x: Any, channels: int, ndim: int) -> Array:
    """`x` with all of its channels on every device that holds a cell, as far as its type says where they are."""
    shape, axis = jnp.shape(x), -ndim - 1
    if len(shape) <= ndim or shape[axis] != channels:
        lengths = ", ".join(f"n{name}" for name in axis_names(ndim))
        raise ValueError(f"`x` must have shape (*batch, {channels}, {lengths}), with {channels} channels; got {shape}.")
    # JAX does not decide how to sum over an axis that Explicit mesh axes shard.
    return whole_along(jnp.asarray(x), axis)


def check_ndim(fft: Any, ndim: int) -> FFT:
    """`fft`, after a check that it transforms a grid of `ndim` axes."""
    shape = check_fft(fft)
    if len(shape) != ndim:
        raise ValueError(f"`fft` must transform a grid of {ndim} axes; got one of shape {shape}.")
    return fft


def layer_title(layer: str, ndim: int) -> str:
    """What a `layer` is called on a grid of `ndim` axes, such as "FNO3D"."""
    return f"{layer}{ndim}D" if ndim in (2, 3) else layer
