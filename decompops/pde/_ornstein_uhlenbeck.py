"""A random force on a flow, whose modes are Ornstein–Uhlenbeck processes.

The processes are functions of a key and of the time. They have no state: see docs/design_states.md.
"""

import math
from collections.abc import Sequence
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.core import Tracer
from jax.sharding import PartitionSpec
from jaxtyping import Inexact

from .._common.blocks import axis_names
from .._common.box import Box, Number, Numbers
from .._common.check import check_key, check_number, taking
from .._common.keys import check_same_words, threefry
from .._common.sharding import map_blocks
from .._common.typed import sharded_like
from .._operator.transform import AbstractTransform
from ..spectral import _vector
from ..spectral._check import check_fft
from ..spectral._dealiasing import AbstractDealiasing, Truncate, check_dealiasing
from ..spectral._modes import AbstractSpectral, Components
from ._equation import Time
from ._forcing import check_term_state
from ._shell_forcing import (
    ROUNDING,
    Of,
    Shell,
    check_flow,
    check_has_modes,
    check_shell,
    components_of,
    in_shell,
    plain_shell,
)
from ._symbols import size_of_constant


# A process is drawn in spans of 32 correlation times. Its values at the ends of a span are independent: the exact
# correlation, exp(-32), is below the rounding error of double precision. Twelve bisections of a span give 128 values
# for each correlation time, and the process is linear between these values.
SPAN = 32
BISECTIONS = 12
AnyKey = Array | np.ndarray | tuple[Any, Any]  # A key of JAX, or its two words.


def _words(key: AnyKey) -> tuple[Any, Any]:
    """Return the two words of a key: numbers that belong to no device, and that the description of a run contains.

    `dataclasses.replace` passes the words of the old forcing.
    """
    if isinstance(key, tuple):
        return key
    words = jax.random.key_data(threefry(check_key("key", key)))
    first, second = words if isinstance(words, Tracer) else np.asarray(words)
    return first, second


class OrnsteinUhlenbeckForcing(AbstractSpectral):
    """A random force in a shell of modes, without divergence (Eswaran & Pope, Comput. Fluids 16, 1988).

    Each mode with `k_min <= |k| <= k_max` is a complex Ornstein–Uhlenbeck process: a stationary Gaussian process whose
    correlation at the times t and t' is `exp(-|t - t'| / time)`. All modes have the same variance. The force is a
    function of the key and of the time alone: it is the same for every mesh, integrator and time step, and a run that
    is interrupted continues with it. If the correlation time is much shorter than the time scales of the flow, the
    force injects the mean power `amplitude² · time`, otherwise less.

    The values are exact at 128 times in each correlation time, and linear between them. Each evaluation draws 14 random
    numbers for each number in the modes of the shell, on every device. So the shell should be at large scales.

    !!! example

        ```python
        force = pde.OrnsteinUhlenbeckForcing(fft, jax.random.key(0), amplitude=0.5, time=0.4, shell=(1.0, 2.5))
        equation = pde.NavierStokes(fft, 1e-3, forcing=force)
        ```

    **Arguments:**

    - `fft`, `dealiasing`: the same as the arguments of the equation.
    - `key`: a key of `jax.random`. Another key gives another force. Under `jax.vmap`, each flow may have its own key.
    - `amplitude`: the root mean square of the force |f| over the volume and over time, a nonnegative number.
    - `time`: the correlation time, a positive number. Both numbers may be traced, so that JAX can differentiate with
        respect to them.
    - `shell`: the smallest and the largest |k| of the forced modes, in radians per unit of length. Both belong to the
        shell.
    - `of`: "velocity", or "vorticity" for `VorticityNavierStokes`: the curl of the force above.

    **Raises:** `ValueError` if `fft` takes complex fields, is not periodic or has a box with traced lengths, if a
    number is out of range, if `shell` contains no mode or a mode that a state does not have, if `of` is unknown, or if
    `of` is "vorticity" and the grid does not have two axes; `TypeError` if `key` is not a key.
    """

    fft: AbstractTransform
    key: AnyKey = eqx.field(converter=_words)
    amplitude: Number = eqx.field(kw_only=True)
    time: Number = eqx.field(kw_only=True)
    shell: Shell = eqx.field(kw_only=True, static=True, converter=taking(Numbers, plain_shell))
    of: Of = eqx.field(kw_only=True, default="velocity", static=True)
    dealiasing: AbstractDealiasing | None = eqx.field(kw_only=True, default=Truncate(), static=True)

    @property
    def components(self) -> Components:
        """The components of the states that the force acts on."""
        return components_of(self.of)

    def __check_init__(self):
        check_dealiasing("dealiasing", self.dealiasing)
        shape = check_flow(self.fft, self.of)
        check_number("amplitude", self.amplitude, least=0)
        check_number("time", self.time, positive=True)
        highest = _highest(self.fft, check_shell(self.shell))
        for axis, (most, kept) in enumerate(zip(highest, self.transform.modes or shape)):
            if 2 * most >= kept > 1:
                raise ValueError(
                    f"`shell` must have less than half of the {kept} modes along {axis_names(len(shape))[axis]}; got "
                    f"the modes up to {most} in {self.shell}."
                )
        check_has_modes(self, self.shell)
        check_same_words(self.fft.decomposition.mesh, self.key)

    def __call__(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        check_term_state(self, u)
        transform, highest = self.transform, _highest(self.fft, self.shell)
        ndim, (k, inside) = len(highest), _cube(self.fft, self.shell, highest)
        dtype = jnp.finfo(u.dtype).dtype
        # Of the modes k and -k, only one is drawn: for real fields, they are complex conjugates. In the flat list of
        # the modes of the cube, the two have equal distances from the two ends.
        modes, last = np.flatnonzero(inside), inside.size - 1
        modes = modes[len(modes) // 2 :]
        s = jnp.asarray(t, dtype) / _vector.cast(self.time, u)
        noise = _process(cast(tuple, self.key), s, (2, ndim, len(modes)), dtype)
        # One of the `ndim` components, along k, is projected out. The real and the imaginary part share the variance.
        scale = size_of_constant(transform) / math.sqrt(4 * (ndim - 1) * len(modes))
        noise = noise * (_vector.cast(scale, u) * _vector.cast(self.amplitude, u))
        drawn = lax.complex(noise[0], noise[1])
        values = jnp.zeros((ndim, inside.size), drawn.dtype).at[:, modes].set(drawn)
        values = values.at[:, last - modes].set(jnp.conj(drawn)).reshape(ndim, *inside.shape)
        nabla = _vector.Nabla(tuple(jnp.asarray(one, dtype) for one in k), (1j,) * ndim)
        values = nabla.curl(values)[None] if self.of == "vorticity" else nabla.projection(values)
        force = _placed(transform, values, highest)
        force = force[0] if self.of == "vorticity" else force
        return sharded_like(jnp.broadcast_to(force, u.shape), u)


def _highest(fft: AbstractTransform, shell: Shell) -> tuple[int, ...]:
    """Return the number of the highest mode of the shell along each axis."""
    upper, kept = shell[1] * (1 + ROUNDING) / (2 * math.pi), fft.modes or check_fft(fft)
    lengths = enumerate(_lengths(fft))  # Along an axis of one cell, the only mode is the mean.
    return tuple(int(upper * length) if axis in fft.transformed and kept[axis] > 1 else 0 for axis, length in lengths)


def _lengths(fft: AbstractTransform) -> list[float]:
    """Return the lengths of the box as numbers. Raises `ValueError` if they are traced: no modes can be chosen."""
    if any(isinstance(length, Tracer) for length in fft.box_lengths):
        raise ValueError(
            "`fft` must have a box of known lengths, which say what modes are in the shell; got traced lengths."
        )
    return list(map(float, fft.box_lengths))


def _cube(fft: AbstractTransform, shell: Shell, highest: Sequence[int]) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the wavenumbers of the cube of modes around a shell, and which modes of the cube are in the shell."""
    steps = [2 * math.pi / length for length in _lengths(fft)]
    axes = [step * np.arange(-most, most + 1) for step, most in zip(steps, highest)]
    k = np.meshgrid(*axes, indexing="ij", sparse=True)
    return list(k), in_shell(sum(one**2 for one in k), shell)


def _process(words: tuple[Any, Any], s: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return independent Ornstein–Uhlenbeck processes of unit variance at the time `s`, in units of their memory.

    The process has the Markov property: between two known values, it does not depend on the values outside. So the
    middle of an interval is drawn from its distribution between the two ends, and the interval is bisected.
    """
    key = jax.random.wrap_key_data(jnp.stack([jnp.asarray(word) for word in words]), impl="threefry2x32")
    span = jnp.floor(s / SPAN)
    number, place = span.astype(np.int32), s / SPAN - span
    # After n bisections, the time is in this one of 2ⁿ intervals. The place of a time just before zero rounds to one,
    # which belongs to the last interval.
    intervals = 2 ** np.arange(BISECTIONS + 1, dtype=np.int32)
    interval = jnp.minimum(jnp.floor(place * jnp.asarray(intervals, dtype)).astype(np.int32), intervals - 1)

    def draw(numbers: tuple[Array, Array]) -> Array:
        span, node = numbers
        return jax.random.normal(jax.random.fold_in(jax.random.fold_in(key, span), node), shape, dtype)

    # The ends of spans have the node 0. Interval i after n bisections has its middle at the node 2ⁿ + i.
    nodes = jnp.concatenate([jnp.zeros(2, np.int32), 2 ** np.arange(BISECTIONS, dtype=np.int32) + interval[:-1]])
    # A loop, because XLA takes three times as long to compile several draws at once.
    draws = lax.map(draw, (jnp.full_like(nodes, number).at[1].add(1), nodes))
    lengths = SPAN / 2.0 ** np.arange(BISECTIONS)
    weights = jnp.asarray(1 / (2 * np.cosh(lengths / 2)), dtype)
    deviations = jnp.asarray(np.sqrt(np.tanh(lengths / 2)), dtype)

    def bisect(ends: tuple, level: tuple) -> tuple:
        (left, right), (weight, deviation, noise, later) = ends, level
        middle = weight * (left + right) + deviation * noise
        return (jnp.where(later, middle, left), jnp.where(later, right, middle)), None

    later = interval[1:] % 2 == 1
    (left, right), _ = lax.scan(bisect, (draws[0], draws[1]), (weights, deviations, draws[2:], later))
    return left + (place * 2.0**BISECTIONS - interval[-1].astype(dtype)) * (right - left)


def _placed(transform: AbstractTransform, values: Array, highest: Sequence[int]) -> Array:
    """Return spectra with the `values` of a cube of modes around k = 0, and with zeros elsewhere.

    Every device has the whole cube, and reads its own modes.
    """
    numbers, blocks = transform.replace(box=Box()), transform.out_layout.blocks

    def block(values: Array) -> Array:
        n = [jnp.rint(k).astype(np.int32) for k in numbers.wavenumbers(dtype=jnp.finfo(values.dtype).dtype)]
        place = [jnp.clip(one, -most, most) + most for one, most in zip(n, highest)]
        outside = [abs(one) > most for one, most in zip(n, highest)]
        found = values[(slice(None), *place)]
        # Padding has wavenumber zero, where the force is zero.
        return jnp.where(_vector.total(one.astype(np.int32) for one in outside)[None] > 0, 0, found)

    dec, spec = transform.decomposition, PartitionSpec(None, *blocks.spec)
    return map_blocks(block, dec.mesh, set(dec.mesh_axes), PartitionSpec(), spec)(values)
