"""Fields with a channel axis, `(*batch, channels, nx, ny, nz)`: what the layers check."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec


def check_channels(x: Any, channels: int) -> Array:
    """`x` with all of its channels on every device that holds a cell, as far as its type says where they are."""
    shape = jnp.shape(x)
    if len(shape) < 4 or shape[-4] != channels:
        raise ValueError(
            f"`x` must have shape (*batch, {channels}, nx, ny, nz), with {channels} channels; got {shape}."
        )
    x = jnp.asarray(x)
    sharding = jax.typeof(x).sharding
    spec = list(sharding.spec)
    if spec[-4] is None:
        return x
    # JAX does not decide how to sum over an axis that Explicit mesh axes divide.
    spec[-4] = None
    return jax.sharding.reshard(x, NamedSharding(sharding.mesh, PartitionSpec(*spec)))
