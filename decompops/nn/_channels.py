"""Fields with a channel axis, `(*batch, channels, nx, ny, nz)`: what the layers check."""

from typing import Any

import jax.numpy as jnp
from jax import Array

from .._sharding import whole_along


def check_channels(x: Any, channels: int) -> Array:
    """`x` with all of its channels on every device that holds a cell, as far as its type says where they are."""
    shape = jnp.shape(x)
    if len(shape) < 4 or shape[-4] != channels:
        raise ValueError(
            f"`x` must have shape (*batch, {channels}, nx, ny, nz), with {channels} channels; got {shape}."
        )
    # JAX does not decide how to sum over an axis that Explicit mesh axes shard.
    return whole_along(jnp.asarray(x), -4)
