"""Forces on a flow: functions `(t, u, args)` that return a spectrum with the shape of the state u."""

import functools
import inspect
import operator
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.core import Tracer
from jaxtyping import Inexact

from .._basis.fourier import Fourier
from .._common.box import Box, Number
from .._common.broadcast import aligned
from .._common.check import Integer, as_number, brief, check_count, check_number, is_one_of, taking
from .._common.typed import zeros_like
from .._operator.transform import AbstractTransform
from ..spectral import _vector
from ..spectral._check import check_fft
from ..spectral._dealiasing import AbstractDealiasing, Truncate, check_dealiasing
from ..spectral._modes import AbstractSpectral, Components, component_axes
from ._equation import AbstractSplitEquation, Time
from ._symbols import size_of_constant


Forcing = Callable | tuple[Callable, ...] | None


def check_forcing(equation: Any) -> None:
    """Raise an error unless `equation.forcing` is a function, a tuple of functions, or `None`, and fits the equation.

    Raises `TypeError` for other objects. Raises `ValueError` for a force, such as `Smagorinsky`, that was built with
    another `fft`, `dealiasing` or `deformation_radius` than the equation.
    """
    parts = _parts(equation.forcing)
    if not all(map(callable, parts)):
        raise TypeError(
            "`forcing` must be a function of (t, u, args), a tuple of such functions, or None; got "
            f"{brief(equation.forcing)}. For a constant array, pass `lambda t, u, args: force`."
        )
    terms = [term for term in map(_term, parts) if isinstance(term, AbstractSpectral | AbstractSplitEquation)]
    if not terms:
        return
    check_dealiasing("dealiasing", equation.dealiasing)
    for term in terms:
        if difference := _difference(term, equation):
            raise ValueError(
                "`forcing` must have the `fft` and the `dealiasing` of its equation; got "
                f"`{type(term).__name__}` for `{type(equation).__name__}`: {difference}."
            )
        theirs, ours = (getattr(each, "deformation_radius", None) for each in (term, equation))
        if hasattr(term, "deformation_radius") and not _may_be_equal(theirs, ours):
            raise ValueError(
                f"`forcing` must have the `deformation_radius` of its equation; got {theirs!r} in "
                f"`{type(term).__name__}`, but {ours!r} in `{type(equation).__name__}`. Pass "
                f"`{type(term).__name__}(..., deformation_radius={ours!r})`."
            )


def add_forcing(
    rate: Inexact[Array, "*spectrum"], forcing: Forcing, t: Time, u: Inexact[Array, "*spectrum"], args: Any
) -> Inexact[Array, "*spectrum"]:
    """Return the sum of `rate` and the results of the functions in `forcing`.

    Raises `IndexError` if a function reads a component that `u` does not have, `ValueError` if a result does not have
    the shape of `u`, and `TypeError` if a function returns nothing.
    """

    def push(function: Callable) -> Array:
        try:
            with _checked_indices():
                push = function(t, u, args)
        except IndexError as error:
            raise IndexError(
                f"`forcing` must read only components of its state u, whose shape is {u.shape}: {error}. If a force "
                "depends on the scalar of a `PassiveScalar`, pass it as `PassiveScalar(flow, κ, forcing=...)`."
            ) from error
        if push is None:
            raise TypeError(f"`forcing` must return a spectrum with the shape of u, {u.shape}; got None.")
        push = jnp.asarray(push)
        if push.shape not in ((), u.shape):
            raise ValueError(f"`forcing` must return a spectrum with the shape of u, {u.shape}; got {push.shape}.")
        return push.astype(u.dtype)

    return functools.reduce(operator.add, map(push, _parts(forcing)), rate)


# JAX's setting before each call of a forcing that is under way. The first entry is the user's setting.
_settings: list[bool] = []
_lock = threading.Lock()


@contextmanager
def _checked_indices() -> Iterator[None]:
    """Let JAX raise an `IndexError` for a constant index out of bounds. By default, JAX reads the last entry instead.

    JAX has this setting for all threads of a process only.
    """
    name = "jax_check_static_indices"
    with _lock:
        _settings.append(getattr(jax.config, name))
        jax.config.update(name, True)
    try:
        yield
    finally:
        with _lock:
            jax.config.update(name, len(_settings) > 1 or _settings[0])
            _settings.pop()


def _parts(forcing: Any) -> tuple:
    return forcing if isinstance(forcing, tuple) else () if forcing is None else (forcing,)


def _term(function: Any) -> Any:
    """Return the object that `function` calls, if `function` is its method, or a compiled or partial call of it."""
    if isinstance(function, functools.partial):
        return _term(function.func)
    if inspect.ismethod(function):
        return function.__self__
    return _term(function.__wrapped__) if hasattr(function, "__wrapped__") else function


def _difference(term: Any, equation: Any) -> str | None:
    """Return which option of a term differs from its equation, with both values; `None` if the term fits."""
    structure, own = _state_structure(term), equation.in_structure

    def differs(option: str, theirs: Any, ours: Any) -> str:
        return f"{option} is {theirs!r} in `{type(term).__name__}`, but {ours!r} in `{type(equation).__name__}`"

    theirs, ours = ({} if s.expansion is None else s.expansion.facts for s in (structure, own))
    for name in ours:
        if theirs.get(name, ours[name]) != ours[name]:
            if term.fft.expansion == equation.fft.expansion:
                return differs("`dealiasing`", term.dealiasing, equation.dealiasing)
            return differs(f"`{name}`", theirs[name], ours[name])
    if structure.components not in (None, own.components):
        return differs("the number of components of a state", structure.components, own.components)
    problem = structure.misfit(own)
    return problem and problem.partition(". ")[0]


def _may_be_equal(a: Number | None, b: Number | None) -> bool:
    """Whether two numbers are equal, or one of them is traced."""
    if a is None or b is None:
        return a is b
    return any(isinstance(x, Tracer) for x in (a, b)) or float(a) == float(b)


def check_term_state(term: Any, u: Any) -> None:
    """Raise `ValueError` or `TypeError` unless `u` is a state of the transform with which `term` was built."""
    try:
        _state_structure(term).check(u, "u")
    except ValueError as error:
        raise ValueError(f"`{type(term).__name__}` and the state u must have the same transform: {error}") from None


def check_scalar_number(scalar: Any) -> None:
    """Raise `ValueError` unless `scalar` can be the number of a scalar of nested `PassiveScalar` equations."""
    if isinstance(scalar, bool) or not isinstance(scalar, int) or scalar < 0:
        raise ValueError(f"`scalar` must be the number of a scalar, from zero; got {scalar!r}.")


def components_with_scalar(term: Any, u: Array) -> _vector.Parts:
    """Return the components of a state of `PassiveScalar`, which must have the scalar number `term.scalar`."""
    ndim = len(check_fft(term.fft))
    parts = _vector.components(u, ndim)
    if len(parts) <= ndim + term.scalar:
        raise ValueError(
            f"`{type(term).__name__}` must be the `forcing` of a `PassiveScalar` whose state has the scalar number "
            f"{term.scalar}, after {ndim} components of a velocity; got a state of {len(parts)} components. Pass "
            "`PassiveScalar(flow, κ, forcing=...)`."
        )
    return parts


def _state_structure(term: Any) -> Any:
    """Return the structure of the states of an equation or of a term of an equation."""
    if isinstance(term, AbstractSplitEquation):
        return term.in_structure
    components = component_axes(getattr(term, "components", "any"), len(check_fft(term.fft)))
    return replace(term.transform.out_structure, components=components)


class KolmogorovForcing(AbstractSpectral):
    """The force of Kolmogorov flow, `(A sin(q y), 0)` in 2D and `(A sin(q y), 0, 0)` in 3D, with `q = 2π mode / L_y`.

    See Arnold & Meshalkin, Uspekhi Mat. Nauk 15, 1960. Pass the force as the argument `forcing` of an equation.

    !!! example

        ```python
        equation = pde.NavierStokes(fft, 0.01, forcing=pde.KolmogorovForcing(fft, mode=4))
        ```

    **Arguments:**

    - `fft`, `dealiasing`: the same as the arguments of the equation.
    - `mode`: the number of waves along y in the box, at least one.
    - `amplitude`: A, a number. It may be traced, so that JAX can differentiate with respect to it.
    - `of`: "velocity" gives the force itself. "vorticity" gives its curl `-A q cos(q y)` in 2D, which is the force on
        the vorticity in `VorticityNavierStokes`.

    **Raises:** `ValueError` if `fft` takes complex fields or has walls across x or y, if the grid has only one axis, if
    a state has at most `2 * mode` modes along y, if `of` is unknown, or if `of` is "vorticity" and the grid does not
    have two axes; `TypeError` if `amplitude` is not a number.
    """

    fft: AbstractTransform
    mode: int = eqx.field(static=True, default=4, converter=taking(Integer, as_number))
    amplitude: Number = 1.0
    of: Literal["velocity", "vorticity"] = eqx.field(kw_only=True, default="velocity", static=True)
    dealiasing: AbstractDealiasing | None = eqx.field(kw_only=True, default=Truncate(), static=True)

    @property
    def components(self) -> Components:
        """The components of the states that the force acts on."""
        return "vector" if self.of == "velocity" else "scalar"

    def __check_init__(self):
        check_dealiasing("dealiasing", self.dealiasing)
        shape = check_fft(self.fft, real=True)
        if (
            not is_one_of(self.of, ("velocity", "vorticity"))
            or len(shape) < 2
            or (self.of == "vorticity" and len(shape) != 2)
        ):
            raise ValueError(
                '`of` must be "velocity" on a grid of two or more axes, or "vorticity" on a grid of two axes; '
                f"got {self.of!r} on a grid of shape {shape}."
            )
        if not all(isinstance(basis, Fourier) or not basis.is_transformed for basis in self.fft.bases[:2]):
            raise ValueError(
                f"`fft` must be periodic along x and y, with the basis `Fourier`; got {self.fft.bases[:2]}."
            )
        kept = (self.transform.modes or shape)[1]
        if 2 * check_count("mode", self.mode) >= kept:
            raise ValueError(f"`mode` must be less than half of the {kept} modes along y; got {self.mode}.")
        check_number("amplitude", self.amplitude)

    def __call__(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        check_term_state(self, u)
        transform, dtype = self.transform, jnp.finfo(u.dtype).dtype
        number = transform.replace(box=Box()).wavenumbers(dtype=dtype)  # integers
        elsewhere = _vector.total(k**2 for axis, k in enumerate(number) if axis != 1)
        # Padding has wavenumber zero, like the mean. Only the multiplicity differs: it is zero in the padding, and at
        # least one for a mode.
        there = (elsewhere == 0) & (abs(abs(number[1]) - self.mode) < 0.5) & (transform.multiplicity(dtype=dtype) > 0)
        size = _vector.cast(self.amplitude, u) * (size_of_constant(transform) / 2)
        sine = size * jnp.where(there, -jnp.sign(number[1]), 0)  # This is the imaginary part; the real part is zero.
        if self.of == "vorticity":
            return zeros_like(u) + aligned((self.wavenumbers(u)[1] * sine).astype(u.dtype), u)
        along_x = lax.complex(jnp.zeros_like(sine), sine)
        rest = [jnp.zeros_like(along_x)] * (len(number) - 1)
        return zeros_like(u) + aligned(_vector.stack((along_x, *rest), len(number)), u)
