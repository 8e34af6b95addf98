"""`Particles`: points with attributes, each on the device that owns its cell."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, Shaped

from .._common.check import check_count, check_dtype, check_number, check_untraced
from .._common.host import device_array
from .._common.sharding import mesh_of
from ._load import Load


class Particles(eqx.Module):
    """Particles on the devices of a mesh. `ParticleMesh.place` makes them, and the other methods of a `ParticleMesh`
    use them.

    Each device has the same number of *slots*, its capacity. The particles of a device are in its first slots; what
    the other slots contain has no meaning. An array for all particles has one row for each slot, and is sharded over
    the devices. Particles are a PyTree, so they can be the state of `jax.lax.scan`, for example.

    !!! example

        ```python
        p = pm.place(positions, mass=m)            # NumPy arrays (n, 3) and (n,)
        p = p.replace(p.positions + dt * v)        # Move the particles.
        p = pm.exchange(p)                         # Bring each particle to the device that owns its cell.
        p["mass"]                                  # One attribute.
        ```

    - `positions`: coordinates in units of the box, of shape `(slots, ndim)`.
    - `attributes`: arrays of shape `(slots, ...)` and of any dtype of at least one byte, by name. Keys of
        `jax.random` must be given as the numbers that `jax.random.key_data` returns for them.
    - `counts`: the number of particles on each device. Every device knows the three lists of numbers.
    - `needed`: the number of slots that each device needs. If one of these numbers is larger than the capacity,
        `ParticleMesh.exchange` has moved no particle; `check` then raises an error.
    - `invalid`: the number of particles on each device whose position is NaN or infinite.
    """

    positions: Float[Array, "slots ndim"]
    attributes: dict[str, Shaped[Array, "slots ..."]]
    counts: Int[Array, " devices"]
    needed: Int[Array, " devices"]
    invalid: Int[Array, " devices"]

    @property
    def capacity(self) -> int:
        """The number of slots of each device."""
        return self.positions.shape[0] // self.counts.shape[0]

    @property
    def load(self) -> Load:
        """How evenly the particles are spread over the devices. `load.ratio` may be used inside `jax.jit`."""
        return Load(self.counts)

    def __getitem__(self, name: str) -> Shaped[Array, "slots ..."]:
        if name not in self.attributes:
            raise KeyError(
                f"`name` must be one of the attributes {tuple(self.attributes)} of the particles; got {name!r}."
            )
        return self.attributes[name]

    @property
    def overflows(self) -> Array:
        """Whether the last exchange moved nothing, because a device had too few slots, or a position was not finite."""
        return (jnp.max(self.needed) > self.capacity) | (jnp.max(self.invalid) > 0)

    def replace(self, positions: Any = None, **attributes: Any) -> "Particles":
        """Return the particles with new positions, or with other or more attributes: arrays with a row for each slot.

        **Raises:** `ValueError` for an array that does not have one row for each slot, and for positions that are not
        real; `TypeError` for attributes of another dtype.
        """
        slots = self.positions.shape[0]
        for name, value in {"positions": positions, **attributes}.items():
            if value is not None and jnp.shape(value)[:1] != (slots,):
                raise ValueError(f"`{name}` must have one row for each of {slots} slots; got {jnp.shape(value)}.")
        mesh = mesh_of(self.positions)
        new = self.positions if positions is None else device_array(positions, "positions", mesh)
        if new.shape != self.positions.shape or not jnp.issubdtype(new.dtype, jnp.floating):
            raise ValueError(
                f"`positions` must be real numbers of shape {self.positions.shape}; got {new.shape} {new.dtype}."
            )
        others = {name: device_array(value, name, mesh) for name, value in attributes.items()}
        for name, value in others.items():
            check_dtype(name, value.dtype)
        return Particles(new, {**self.attributes, **others}, self.counts, self.needed, self.invalid)

    def check(self) -> "Particles":
        """Return the particles. Raises `ValueError` if the last exchange could not move them.

        This method reads numbers of the devices, so it raises `TypeError` inside `jax.jit`: return `overflows` there.
        """
        check_untraced("p", self, "check", "`overflows`")
        needed, invalid = (np.asarray(jax.device_get(x)) for x in (self.needed, self.invalid))
        if invalid.any():
            device = int(np.argmax(invalid > 0))
            raise ValueError(
                f"`positions` must be finite; got {invalid[device]} particles with NaN or infinite positions on device "
                f"{device}."
            )
        if needed.max() > self.capacity:
            device, wanted = int(np.argmax(needed)), slots(needed)
            raise ValueError(
                f"`capacity` must be at least {needed[device]}, the number of particles on device {device}; got "
                f"{self.capacity}. No particle was moved. Call `pm.exchange(pm.grow(p, {wanted}))`; for a sample, "
                f"draw it again with `capacity={wanted}`."
            )
        return self


def slots(counts: Any, capacity: Any = None, room: Any = 0.25) -> int:
    """Return the number of slots of each device, for devices with these numbers of particles.

    See `ParticleMesh.place`. Raises `ValueError` for a `capacity` that is too small.
    """
    device = int(np.argmax(counts))
    most, room = int(counts[device]), check_number("room", room, least=0)
    if capacity is None:
        return most + max(int(most * room), 8)
    if check_count("capacity", capacity) < most:
        raise ValueError(
            f"`capacity` must be at least {most}, the number of particles on device {device}; got {capacity}."
        )
    return int(capacity)


def _array(name: str, p: Particles, values: Any) -> Array:
    """Return `values` as an array. Raises `TypeError` for what is no array, such as the name of an attribute."""
    if isinstance(values, str):
        known = f"`p[{values!r}]`" if values in p.attributes else f"one of the attributes {tuple(p.attributes)}"
        raise TypeError(f"`{name}` must be an array of numbers; got {values!r}. Pass {known}.")
    values = device_array(values, name, mesh_of(p.positions))
    check_dtype(name, values.dtype)
    return values


def of_slots(p: Particles, values: Any) -> Array:
    """Return `values` as an array. Raises `ValueError` unless it has one row for each slot."""
    values = _array("values", p, values)
    if values.shape[:1] != p.positions.shape[:1]:
        raise ValueError(f"`values` must have one row for each of {len(p.positions)} slots; got {values.shape}.")
    return values


def one_each(name: str, p: Particles, values: Any) -> Array:
    """Return `values` as an array. Raises an error unless it is one real number for each slot."""
    values, shape = _array(name, p, values), p.positions.shape[:1]
    if values.shape != shape or not jnp.issubdtype(values.dtype, jnp.floating):
        error = ValueError if values.shape != shape else TypeError
        raise error(f"`{name}` must be real numbers of shape {shape}; got {values.shape} {values.dtype}.")
    return values
