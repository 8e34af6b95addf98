"""`KickDriftKick`: the leapfrog of particles, in a static box and in an expanding universe."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, SupportsIndex

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Float, Shaped

from .._common.check import check_number, taking
from .._common.host import device_array
from .._rollout.rollout import Options, check_options, roll_out
from ._cosmology import Cosmology
from ._home import home_of
from ._mesh import ParticleMesh
from ._particles import Particles
from ._sum import in_use


Times = Float[Array | np.ndarray, " steps_plus_one"]


class KickDriftKick(eqx.Module):
    """The leapfrog: half a kick of the velocities, a drift of the positions, and the second half of the kick.

    The particles have an attribute `velocity` of shape `(slots, ndim)`. After each drift, an exchange brings each
    particle home. There is one evaluation of the force for each step. The leapfrog is of second order, time-reversible
    and symplectic.

    With a `cosmology`, positions are comoving, times are scale factors a, and `velocity` is the momentum a² dx/dt in
    units in which the Hubble rate of today is one. The factors of the kicks and drifts are those of FastPM: in linear
    theory, steps of any length are exact (Zel'dovich approximation). The force must then be `-∇∇⁻²δ`, as
    `Gravity(mesh)` returns it.

    !!! example

        ```python
        step = particles.KickDriftKick(pm, particles.Gravity(pm), jnp.linspace(0.1, 1, 11), particles.Cosmology())
        last, masses = step.rollout(p, observe=lambda a, p: pm.deposit(p))
        ```

    **Arguments:**

    - `mesh`: the particles' grid.
    - `force`: a function of particles that returns accelerations of shape `(slots, ndim)`, such as `Gravity(mesh)`. It
        may be an `equinox.Module` with parameters. It is compiled once, so it must not read variables that change: make
        these parameters.
    - `times`: two or more times, or scale factors: the start, and the end of each step. The array may be traced.
    - `cosmology`: the universe; `None` for a box that does not expand.

    **Raises:** `TypeError` if `mesh` is not a `ParticleMesh`, if `force` cannot be called, or if `cosmology` is not a
    `Cosmology`; `ValueError` if `times` are not two or more finite real numbers, or scale factors that are not
    positive. Steps raise `TypeError` or `ValueError` if `force` does not return real numbers of this shape.

    Source: Quinn et al., arXiv:astro-ph/9710043; Feng, Chu, Seljak & McDonald, MNRAS 463 (2016), eq. 17 and 18.
    """

    mesh: ParticleMesh
    force: Callable[[Particles], Array]
    times: Times = eqx.field(converter=taking(Times, lambda times: device_array(times, "times")))
    cosmology: Cosmology | None = None

    def __check_init__(self):
        if not isinstance(self.mesh, ParticleMesh):
            raise TypeError(f"`mesh` must be a `ParticleMesh`; got {self.mesh!r}.")
        if not callable(self.force):
            raise TypeError(f"`force` must be a function of particles; got {self.force!r}.")
        shape, dtype = jnp.shape(self.times), jnp.result_type(self.times)
        if len(shape) != 1 or shape[0] < 2 or not jnp.issubdtype(dtype, jnp.floating):
            raise ValueError(f"`times` must be two or more real numbers; got {dtype} of shape {shape}.")
        if not isinstance(self.cosmology, Cosmology | None):
            raise TypeError(f"`cosmology` must be a `Cosmology` or None; got {self.cosmology!r}.")
        if isinstance(self.times, Tracer):
            return
        times = np.asarray(self.times)  # Inside of `jax.jit`, JAX would trace functions of an array that it knows.
        if not np.isfinite(times).all():
            raise ValueError(f"`times` must be finite; got {times}.")
        if self.cosmology is not None and times.min() <= 0:
            raise ValueError(f"`times` must be positive scale factors with a `cosmology`; got {times}.")

    def step(self, p: Particles, start: Any, end: Any) -> Particles:
        """Return the particles at the time `end`, for particles at the time `start`. This evaluates the force twice.

        **Raises:** as `rollout`, and `TypeError` or `ValueError` for times that are not single numbers, or that are not
        positive with a `cosmology`.
        """
        _check_velocity(p)
        for name, time in (("start", start), ("end", end)):
            check_number(name, time, positive=self.cosmology is not None)
        return self._one_step(p, *(jnp.asarray(time, _dtype_of_times(p)) for time in (start, end)))

    @eqx.filter_jit
    def _one_step(self, p: Particles, start: Array, end: Array) -> Particles:
        return self._step(self._started(p), start, end).particles

    def rollout(
        self,
        p: Particles,
        *,
        every: SupportsIndex | None = None,
        observe: Callable | None = None,
        progress: Callable | bool = False,
        keep: int | str | None = None,
        keep_on_host: int | str | None = None,
    ) -> tuple[Particles, Any]:
        """Take all steps from the first to the last of `times` in one compiled program, which JAX can differentiate.

        If an exchange has too few slots, or if a position is not finite, the particles of that step stay as they are
        until the end. `check()` of the result then raises an error that says why.

        **Arguments:**

        - `p`: the particles at the first of `times`, with an attribute `velocity`.
        - `every`, `observe`, `progress`, `keep`, `keep_on_host`: as for the `rollout` of an integrator of `pde`.
            `observe` is a function `(t, p)` of the time and the particles, and a state are all arrays of the particles.
            `every=1` observes after each step; the default observes less often.

        **Returns:** the last particles and the stacked results of `observe`.

        **Raises:** `TypeError` or `ValueError` if an argument is invalid, or if there is no attribute `velocity`.
        """
        options = check_options(
            len(self.times) - 1, every=every, observe=observe, progress=progress, keep=keep, keep_on_host=keep_on_host
        )
        _check_velocity(p)
        return self._rollout(p, options)

    @eqx.filter_jit
    def _rollout(self, p: Particles, options: Options) -> tuple[Particles, Any]:
        times = self.times.astype(_dtype_of_times(p))

        def step(kicked: _Kicked, i: Array) -> _Kicked:
            return self._step(kicked, times[i], times[i + 1])

        def seen(kicked: _Kicked, done: Array) -> Any:
            time = times[done].astype(p.positions.dtype)
            return None if options.observe is None else options.observe(time, kicked.particles)

        layout = _Slots(self.mesh.sharding, len(p.positions))
        first = self._started(p)
        last, results = roll_out(step, seen, first, options, layout=layout, state_of=lambda kicked: kicked.particles)
        return last.particles, results

    def _started(self, p: Particles) -> "_Kicked":
        home = home_of(p, self.mesh._home)
        # A user's new attribute need not be on the devices of the slots, and a step returns it there.
        positions, *others = home.placed(p.positions, *p.attributes.values())
        p = p.replace(positions, **dict(zip(p.attributes, others)))
        p = p.replace(velocity=in_use(home, p, p["velocity"]))
        return _Kicked(p, self._force(p))

    def _step(self, kicked: "_Kicked", start: Array, end: Array) -> "_Kicked":
        p, middle, cast = kicked.particles, (start + end) / 2, lambda x: x.astype(kicked.acceleration.dtype)
        velocity = p["velocity"] + cast(self._kick(start, middle, start)) * kicked.acceleration
        positions = p.positions + cast(self._drift(start, end, middle)) * velocity
        moved = self.mesh.exchange(p.replace(positions, velocity=velocity))
        acceleration = self._force(moved)
        velocity, kick = moved["velocity"], cast(self._kick(middle, end, end)) * acceleration
        done = moved.replace(velocity=jnp.where(moved.overflows, velocity, velocity + kick))
        # After a fault, the particles stand still, so that their NaN do not hide the cause.
        ended = jax.tree.map(lambda old, new: jnp.where(p.overflows, old, new), p, done)
        return _Kicked(ended, acceleration)

    def _force(self, p: Particles) -> Array:
        acceleration = self.force(p)
        if not isinstance(acceleration, Array | np.ndarray):
            raise TypeError(f"`force` must return an array; got {type(acceleration).__name__}.")
        if acceleration.shape != p.positions.shape or jnp.iscomplexobj(acceleration):
            raise ValueError(
                f"`force` must return one row of real numbers for each slot, of shape {p.positions.shape}; got "
                f"{acceleration.shape} {acceleration.dtype}."
            )
        return jnp.asarray(acceleration, p.positions.dtype)

    def _drift(self, start: Array, end: Array, at: Array) -> Array:
        """Return the factor of the velocities of the time `at` in a drift from `start` to `end`."""
        if self.cosmology is None:
            return end - start
        growth = self.cosmology.growth
        return (growth(end) - growth(start)) / self.cosmology.momentum_growth(at)

    def _kick(self, start: Array, end: Array, at: Array) -> Array:
        """Return the factor of the accelerations of the time `at` in a kick from `start` to `end`."""
        if self.cosmology is None:
            return end - start
        growth = self.cosmology.momentum_growth
        return (growth(end) - growth(start)) / self.cosmology.growth(at)


def _dtype_of_times(p: Particles) -> np.dtype:
    """Return the dtype of times: at least JAX's default, because steps are small differences of times."""
    return np.promote_types(p.positions.dtype, jnp.result_type(float))


def _check_velocity(p: Particles) -> None:
    """Raise `ValueError` unless the particles have velocities like their positions."""
    velocity = p.attributes.get("velocity")
    if velocity is None or velocity.shape != p.positions.shape or velocity.dtype != p.positions.dtype:
        got = "no such attribute" if velocity is None else f"{velocity.dtype} of shape {velocity.shape}"
        raise ValueError(
            f"`velocity` must be an attribute of the particles with the shape and dtype of their positions, "
            f"{p.positions.dtype} {p.positions.shape}; got {got}. Call `p.replace(velocity=...)`."
        )


class _Kicked(NamedTuple):
    """What one step passes on to the next: the particles, and the acceleration at their positions."""

    particles: Particles
    acceleration: Shaped[Array, "slots ndim"]


@dataclass(frozen=True)
class _Slots:
    """Where the arrays of particles are: those with one row for each slot on its device, others everywhere."""

    sharding: NamedSharding
    slots: int

    @property
    def mesh(self) -> Mesh | AbstractMesh:
        return self.sharding.mesh

    def sharding_of(self, shape: tuple[int, ...]) -> NamedSharding:
        return self.sharding if shape[0] == self.slots else NamedSharding(self.mesh, PartitionSpec())
