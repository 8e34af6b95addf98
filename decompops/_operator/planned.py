"""Operators that are defined by a plan. The JAX primitive of this package runs them."""

import abc
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Shaped

from .._backend.base import Call, Caller
from .._basis.base import Kind
from .._common.blocks import Blocks
from .._common.check import check_dtype
from .._common.host import device_array
from .._common.remember import remembered
from .._common.sharding import manual_axes, mesh_in_context
from .._common.typed import plain
from .._core.decomposition import Decomposition, check_decomposition, check_grid
from .._core.expansion import Expansion
from .._core.layout import Layout, check_global
from .._core.primitive import apply, apply_to_block
from .._core.structure import Space, Structure
from .._plan.plan import Plan
from .derived import UNCHANGED, AbstractDerivable, Form
from .unbound import is_unbound


class AbstractPlanned(AbstractDerivable):
    """An operator that is defined by a plan, which is a list of stages. A subclass implements the method `plan`."""

    def __check_init__(self):
        if not is_unbound(self.decomposition):
            check_decomposition(self.decomposition)

    @abc.abstractmethod
    def plan(self) -> Plan:
        """Return the plan of the operator on its decomposition."""

    def apply(self, x: Shaped[Array | np.ndarray, "*field"], form: Form, *, local: bool) -> Shaped[Array, "*result"]:
        x, dec = x if isinstance(x, Array) else device_array(x), self.decomposition
        if local:
            _check_inside(dec)
        else:
            check_global("x", dec.mesh_axes, "Call `.local(block)` instead")
            x = plain(x)
        caller = dec.backend.caller()
        call, dtype = _call(self, x.shape, x.dtype, form, local, caller)
        if x.dtype != dtype:
            mesh_in_context(dec.mesh)  # For a wrong mesh, this error, unlike JAX's, says what to do.
            x = x.astype(dtype)
        return apply_to_block(call, x) if local else apply(call, pad(x, call.plan.source))

    @property
    def is_invertible(self) -> bool:
        return _plan(self, UNCHANGED).is_invertible

    # The spaces of the input and of the result: "field", "spectrum", or `None` if both are allowed.
    spaces: ClassVar[tuple[Space | None, Space | None]] = (None, None)
    # What the numbers of the spectra mean, if the operator takes or returns spectra.
    expansion: ClassVar[Expansion | None] = None

    def structures(self, form: Form, given: Structure | None) -> tuple[Structure, Structure]:
        del given  # The plan alone decides.
        decomposition, plan = self.decomposition, _plan(self, form)
        ends = self.spaces[::-1] if form.is_reversed else self.spaces
        source, target = (
            Structure(
                Layout(decomposition.mesh, blocks, decomposition.box, decomposition.backend),
                kind,
                space,
                expansion=self.expansion if space == "spectrum" else None,
            )
            for blocks, kind, space in zip((plan.source, plan.target), _kinds(plan), ends)
        )
        return source, target


@remembered
def _plan(operator: AbstractPlanned, form: Form) -> Plan:
    """Return the plan of `operator` in `form`."""
    plan = operator.plan()
    if not isinstance(plan, Plan):
        raise TypeError(f"`{type(operator).__name__}.plan` must return a `Plan`; got {plan!r}.")
    return plan_in_form(plan, form)


def _kinds(plan: Plan) -> tuple[Kind | None, Kind | None]:
    """Return the kinds of numbers, "real" or "complex", that a plan takes and returns.

    Both kinds are `None` if the plan takes either kind and keeps it.
    """
    real, complex_ = np.dtype(np.float32), np.dtype(np.complex64)
    try:
        plan.input_dtype(complex_)
    except TypeError:
        return "real", _kind(plan.result_dtype(plan.input_dtype(real)))
    if plan.input_dtype(real) == real:
        return None, None
    return "complex", _kind(plan.result_dtype(complex_))


def _kind(dtype: np.dtype) -> Kind:
    return "complex" if dtype.kind == "c" else "real"


@remembered  # For a small grid, making the plan takes longer than running it.
def _call(
    operator: AbstractPlanned, shape: tuple[int, ...], dtype: np.dtype, form: Form, local: bool, caller: Caller
) -> tuple[Call, np.dtype]:
    """Return the `Call` for an input of `shape` and `dtype`, and the dtype to cast the input to."""
    dtype = check_dtype("block" if local else "x", dtype)
    plan, decomposition = _plan(operator, form), operator.decomposition
    _check_shape(plan, shape, decomposition.ndim, local, inverted=form.inverted)
    return Call(plan, decomposition.mesh, decomposition.backend, caller=caller), plan.input_dtype(dtype)


def plan_in_form(plan: Plan, form: Form) -> Plan:
    """Return the plan of an operator in `form`, derived from the operator's own `plan`."""
    plan = plan.inverse() if form.inverted else plan
    plan = plan.transpose() if form.transposed else plan
    return plan.conjugate() if form.conjugated else plan


def _check_shape(plan: Plan, shape: tuple[int, ...], ndim: int, local: bool, *, inverted: bool) -> None:
    """Raise `ValueError` unless the plan takes a field of `shape`; with `local=True`, one block of `shape`."""
    name, source, last = "block" if local else "x", plan.source, shape[-ndim:]
    check_grid(name, shape, ndim)
    accepted = {source.block_shape} if local else {source.shape}
    if not (local or source.has_halo):
        accepted.add(source.true_shape)  # `apply` pads such an array.
    if last not in accepted:
        expected = " or ".join(str(("*batch", *s)).replace("'", "") for s in sorted(accepted))
        is_result = last in (plan.target.shape, plan.target.true_shape)
        other = "the operator without `.inverse`" if inverted else "`.inverse`"
        hint = f" This is the shape of the operator's result: do you mean {other}?" if is_result else ""
        raise ValueError(f"`{name}` must have shape {expected}; got {shape}.{hint}")


def _check_inside(decomposition: Decomposition) -> None:
    """Raise `ValueError` unless the call is inside a `shard_map` over the mesh axes that shard the grid."""
    for name in decomposition.mesh_axes:
        if name not in manual_axes() and decomposition.mesh.shape[name] > 1:
            raise ValueError(
                f"`.local(block)` must be called inside a `shard_map` over mesh axis {name!r}; got a call outside. For "
                "a global field, call the operator itself."
            )


def pad(x: Array, blocks: Blocks) -> Array:
    """Zero-pad a field to the shape of `blocks`. A field that already has this shape is returned unchanged."""
    lead, shape = x.shape[: -blocks.ndim], x.shape[-blocks.ndim :]
    if shape == blocks.shape:
        return x
    return jnp.pad(x, [*[(0, 0)] * len(lead), *((0, new - old) for new, old in zip(blocks.shape, shape))])
