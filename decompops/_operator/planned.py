"""Operators that are defined by a plan. The JAX primitive of this package runs them."""

import abc
import math
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AbstractMesh
from jaxtyping import Shaped

from .._backend.base import Call, Caller
from .._basis.base import Kind
from .._common.blocks import Blocks, axis_names
from .._common.byte_order import device_array
from .._common.check import check_dtype
from .._common.remember import remembered
from .._common.sharding import manual_axes, mesh_in_context
from .._common.typed import plain
from .._core.decomposition import Decomposition, check_grid
from .._core.expansion import Expansion
from .._core.layout import Layout, check_global
from .._core.primitive import apply, apply_to_block
from .._core.structure import Space, Structure
from .._plan.plan import Plan
from .derived import UNCHANGED, AbstractDerivable, Form, with_mesh


class AbstractPlanned(AbstractDerivable):
    """An operator that is defined by a plan, which is a list of stages. A subclass implements the method `plan`."""

    def __check_init__(self):
        if not isinstance(self.decomposition, Decomposition):
            raise TypeError(
                "`decomposition` must be a `Decomposition`, such as `Decomposition(mesh)`; got "
                f"{type(self.decomposition).__name__}."
            )

    @abc.abstractmethod
    def plan(self, shape: tuple[int, ...]) -> Plan:
        """Return the plan for a grid of shape `shape`, in which padding is not counted."""

    def apply(self, x: Shaped[Array | np.ndarray, "*field"], form: Form, *, local: bool) -> Shaped[Array, "*result"]:
        x = x if isinstance(x, Array) else device_array(x)
        if local:
            _check_inside(self.decomposition)
        else:
            check_global("x", self.decomposition.mesh_axes, "Call `.local(block)` instead")
            x = plain(x)
        caller = self.decomposition.backend.caller()
        call, dtype = _call(self, x.shape, x.dtype, form, local, caller)
        if x.dtype != dtype:
            mesh_in_context(self.decomposition.mesh)  # For a wrong mesh, this error, unlike JAX's, says what to do.
            x = x.astype(dtype)
        return apply_to_block(call, x) if local else apply(call, pad(x, call.plan.source))

    @property
    def is_invertible(self) -> bool:
        # Whether an inverse exists does not depend on the mesh, so an operator without a mesh gets an arbitrary mesh.
        operator = self if self.decomposition.has_mesh else with_mesh(self, AbstractMesh((1,), ("any",)))
        return _example(operator, UNCHANGED).is_invertible

    # The spaces of the input and of the result: "field", "spectrum", or `None` if both are allowed.
    spaces: ClassVar[tuple[Space | None, Space | None]] = (None, None)
    # What the numbers of the spectra mean, if the operator takes or returns spectra.
    expansion: ClassVar[Expansion | None] = None

    def structures(self, form: Form, given: Structure | None) -> tuple[Structure, Structure]:
        lengths = given.lengths if given else None
        if self.decomposition.shape is None and given is not None and lengths is not None:
            plan = self.plan_for(given.layout.blocks.shape, form)
        else:
            plan = _example(self, form)
        known = lengths is not None or self.decomposition.shape is not None
        ends = self.spaces[::-1] if form.is_reversed else self.spaces
        kinds = _kinds(plan)
        source, target = (
            Structure(
                Layout(self.decomposition.mesh, blocks, self.decomposition.box),
                blocks.lengths if known else None,
                kind,
                space,
                expansion=self.expansion if space == "spectrum" else None,
            )
            for blocks, kind, space in zip((plan.source, plan.target), kinds, ends)
        )
        return source, target

    def plan_for(self, shape: tuple[int, ...], form: Form = UNCHANGED, *, blocks: bool = False) -> Plan:
        """Return the plan for a global field of `shape`; with `blocks=True`, for one block of `shape`."""
        name, ndim = "block" if blocks else "x", self.decomposition.ndim
        check_grid(name, shape, ndim)
        plan, last = _example(self, form), shape[-ndim:]
        if self.decomposition.shape is None:
            source = plan.source
            parts = [source.parts[axis] if blocks else 1 for axis in source.order]
            lengths = source.lengths_of(tuple(n * part for n, part in zip(last, parts)))
            if min(lengths) < 1:
                parts = tuple(source.parts[axis] for axis in source.order)
                raise ValueError(
                    f"`{name}` must contain the halo {source.halo} of each of its {parts} blocks; got shape {shape}."
                )
            plan = plan_in_form(self.plan(lengths), form)
            unknown = [axis_names(ndim)[axis] for axis, n in enumerate(lengths) if plan.source.lengths[axis] != n]
            if unknown:
                raise ValueError(
                    f"`shape` must be given to the operator, because a half spectrum does not tell the length of the "
                    f"field along {', '.join(unknown)}; got `{name}` of shape {shape}."
                )
            _refuse_padding(plan, name, shape)
        source = plan.source
        accepted = {source.block_shape} if blocks else {source.shape}
        if not blocks and not source.has_halo:
            accepted.add(source.true_shape)  # `apply` pads such an array.
        if last not in accepted:
            expected = " or ".join(str(("*batch", *s)).replace("'", "") for s in sorted(accepted))
            hint = (
                " This is the shape of the operator's result: do you mean `.inverse`?"
                if last == plan.target.shape
                else ""
            )
            raise ValueError(f"`{name}` must have shape {expected}; got {shape}.{hint}")
        return plan


@remembered
def _example(operator: AbstractPlanned, form: Form) -> Plan:
    """Return a plan that shows how fields are cut into blocks.

    If the operator has no shape, this is the plan for a grid whose lengths the mesh divides.
    """
    decomposition = operator.decomposition
    n = 2 * math.prod(decomposition.sizes)
    return plan_in_form(operator.plan(decomposition.shape or (n,) * decomposition.ndim), form)


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
    plan, decomposition = operator.plan_for(shape, form, blocks=local), operator.decomposition
    return Call(plan, decomposition.mesh, decomposition.backend, caller=caller), plan.input_dtype(dtype)


def plan_in_form(plan: Plan, form: Form) -> Plan:
    """Return the plan of an operator in `form`, derived from the operator's own `plan`."""
    plan = plan.inverse() if form.inverted else plan
    plan = plan.transpose() if form.transposed else plan
    return plan.conjugate() if form.conjugated else plan


def _refuse_padding(plan: Plan, name: str, shape: tuple[int, ...]) -> None:
    """Raise `ValueError` if an operator without a known shape has a plan with padding.

    The shape of the result would then not tell the true lengths.
    """
    for blocks, of, wanted in (
        (plan.source, f"`{name}`", "the true shape of the grid"),
        (plan.target, "the result", f"`shape={plan.source.lengths}`"),
    ):
        for axis in blocks.padded_axes:
            along = axis_names(blocks.ndim)[axis]
            raise ValueError(
                f"`shape` must be given to `{plan.name}`, because {blocks.parts[axis]} devices do not divide the "
                f"{blocks.lengths[axis]} cells of {of} along {along}: pass {wanted}; got `{name}` of shape {shape}."
            )


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
