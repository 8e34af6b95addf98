"""`Load`: how evenly particles are spread over the devices."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jaxtyping import Float, Int


class Load(eqx.Module):
    """The number of particles of each device. `print(load)` shows how much the fullest device exceeds the mean.

    Every device waits for the fullest one, and has as many slots. So a `ratio` of 2 doubles the time and the memory of
    evenly spread particles.

    - `counts`: the number of particles on each device.
    """

    counts: Int[Array | np.ndarray, " devices"]

    @property
    def ratio(self) -> Float[Array, ""]:
        """The number of particles on the fullest device, divided by the mean: one or more. NaN without particles."""
        counts = jnp.asarray(self.counts)
        mean = jnp.mean(counts)
        return jnp.max(counts).astype(mean.dtype) / mean

    def __str__(self) -> str:
        if isinstance(self.counts, Tracer):
            return repr(self)
        counts = np.asarray(self.counts)
        most = f"device {np.argmax(counts)} has {counts.max()} particles, {float(self.ratio):.2f} x the mean"
        return f"{most}; each device has {counts}"
