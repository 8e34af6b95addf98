"""The base classes of operators, and `Compose`: operators applied one after the other."""

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, cast

import equinox as eqx
import jax
import numpy as np
from equinox import AbstractVar
from jax import Array
from jax.sharding import PartitionSpec
from jaxtyping import Shaped

from .._common.host import device_array
from .._common.remember import keep_if_traced
from .._core.layout import Layout
from .._core.structure import Structure
from .unbound import OperatorDecomposition, bound_to, example_of, is_unbound


class AbstractTyped(eqx.Module):
    """A function of a field, such as an operator or a layer, that knows the `Structure` of its input and its result."""

    @property
    @abc.abstractmethod
    def in_structure(self) -> Structure:
        """The structure of the input, as far as it is known without an array."""

    @abc.abstractmethod
    def result_structure(self, given: Structure) -> Structure:
        """Return the structure of the result for an input of structure `given`. `given` must fit `in_structure`."""

    @property
    def out_structure(self) -> Structure:
        """The structure of the result, as far as it is known without an array."""
        return type(self).result_structure(self, self.in_structure)

    @property
    def is_bound(self) -> bool:
        """Whether the mesh and the shape of the grid are known. If not, each call takes them from its array."""
        return not is_unbound(getattr(self, "decomposition", None))

    @property
    def title(self) -> str:
        """The name of the operator in error messages and in the printed form of a pipeline."""
        return type(self).__name__

    @property
    def signature(self) -> str:
        """One line with the name, the structure of the input and the structure of the result."""
        return f"{self.title}  {self.in_structure} -> {self.out_structure}"

    def __hash__(self) -> int:
        # `jax.jit(operator)` needs the hash. JAX's own error does not say what to do.
        try:
            return hash(tuple(jax.tree.leaves(self)))
        except TypeError as error:
            raise TypeError(
                f"`{self.title}` holds arrays, and has no hash; got it as a function of `jax.jit`, or as a static "
                "argument or a key. Call `eqx.filter_jit(operator)(x)`, for which the arrays are arguments of the "
                "program, or build the operator inside the function that is compiled."
            ) from error

    __array_ufunc__ = None  # NumPy then leaves `array @ operator` to `__rmatmul__`, which raises an error.

    def __matmul__(self, other):
        return _compose(self, other)

    def __rmatmul__(self, other):
        return _compose(other, self)


class AbstractOperator(AbstractTyped):
    """A linear operator on fields of shape `(*batch, nx, ny, nz)` on a device mesh. A grid may have any number of axes.

    Operators are immutable PyTrees that are called like functions. They accept any number of leading batch axes. JAX
    can differentiate them in forward and reverse mode, and map them with `jax.vmap`. `a @ b` composes two operators.
    """

    if TYPE_CHECKING:  # Type checkers treat an `AbstractVar` as an argument of every constructor.
        decomposition: ClassVar[OperatorDecomposition]
    else:
        decomposition: AbstractVar[OperatorDecomposition]

    def __repr__(self) -> str:
        return self.signature if self.is_bound else f"{self.title}  (on the grid of its input)"

    @property
    def __name__(self) -> str:  # The name of `jax.jit(operator)` in profiles.
        return self.title

    @abc.abstractmethod
    def __call__(self, x: Shaped[Array | np.ndarray, "*field"], *, key: Any = None) -> Shaped[Array, "*result"]:
        """Apply the operator to a field.

        **Arguments:**

        - `x`: a global array of shape `(*batch, *grid)`, or `(*batch, components, *grid)` for an operator on vectors.
            `in_layout` tells the shape and the sharding of the grid axes.
        - `key`: ignored. `eqx.nn.Sequential` passes it.

        **Returns:** a global array with the batch axes of `x`. `out_layout` tells the shape and the sharding of the
        grid axes of the result.

        **Raises:** `ValueError` if `x` does not have the shape above; `TypeError` if `x` is complex and the operator
        takes only real fields.
        """

    @abc.abstractmethod
    def local(self, block: Shaped[Array, "*field"]) -> Shaped[Array, "*result"]:
        """Apply the operator to one block `(*batch, ...)`, inside a `jax.shard_map` over the mesh."""

    @property
    @abc.abstractmethod
    def T(self) -> "AbstractOperator":
        """The transpose (no complex conjugation)."""

    @property
    @abc.abstractmethod
    def H(self) -> "AbstractOperator":
        """The conjugate transpose."""

    @property
    def in_layout(self) -> Layout:
        """The layout of the input. Raises `ValueError` for an operator that was built without mesh or shape."""
        return self.in_structure.layout

    @property
    def out_layout(self) -> Layout:
        """The layout of the result. Raises `ValueError` for an operator that was built without mesh or shape."""
        return self.out_structure.layout

    @property
    def in_spec(self) -> PartitionSpec:
        """The partition spec of the grid axes of the input."""
        return _with_pencils(self).in_structure.layout.spec

    @property
    def out_spec(self) -> PartitionSpec:
        """The partition spec of the grid axes of the result."""
        return _with_pencils(self).out_structure.layout.spec


def _with_pencils(operator: AbstractOperator) -> AbstractOperator:
    """Return `operator`; if it is unbound, a copy for a small grid, because its pencils depend only on its mesh."""
    return operator if operator.is_bound or operator.decomposition.mesh.empty else example_of(operator)


class Compose(AbstractOperator):
    """A pipeline of operators, applied from the last to the first, as in a product of matrices.

    `a @ b` builds the pipeline that applies `b`, and then `a` to the result.

    **Arguments:**

    - `operators`: operators, layers of `decompops.nn`, and any other callables `x -> y`, such as a spectral filter. At
        least one must be an operator or a layer.

    `.T` and `.H` raise `TypeError` if a part is not an operator.

    **Raises:** `TypeError` if `operators` is not a tuple of callables; `ValueError` if the result of a part does not
    fit the input of the next part, or if no part is an operator or a layer.
    """

    operators: tuple[Callable, ...]

    def __check_init__(self):
        if not (isinstance(self.operators, tuple | list) and all(map(callable, self.operators))):
            raise TypeError(f"`operators` must be a tuple of operators and other callables; got {self.operators!r}.")
        if not self._typed():
            raise ValueError(f"`operators` must contain at least one operator or layer; got {self.operators}.")
        self._structures(None)

    @property
    def decomposition(self) -> OperatorDecomposition:
        for operator in self._typed():
            if isinstance(operator, AbstractOperator):
                return operator.decomposition
        raise AttributeError("`decomposition` needs an operator in the pipeline; got a pipeline of layers only.")

    def __call__(self, x: Shaped[Array | np.ndarray, "*field"], *, key: Any = None) -> Shaped[Array, "*result"]:
        keep_if_traced(self, x)
        y = device_array(x)
        for operator in reversed(self.operators):
            y = operator(y)
        return y

    def local(self, block: Shaped[Array, "*field"]) -> Shaped[Array, "*result"]:
        for operator in reversed(self.operators):
            block = operator.local(block) if isinstance(operator, AbstractOperator) else operator(block)
        return block

    @property
    def T(self) -> "Compose":
        return Compose(tuple(operator.T for operator in reversed(self._parts())))

    @property
    def H(self) -> "Compose":
        return Compose(tuple(operator.H for operator in reversed(self._parts())))

    @property
    def in_structure(self) -> Structure:
        return self._typed()[0].in_structure

    def result_structure(self, given: Structure) -> Structure:
        return self._structures(given)[-1] or self._typed()[-1].out_structure

    def __repr__(self) -> str:
        lines, given = [], None
        for operator, result in zip(reversed(self.operators), self._structures(None)):
            if isinstance(operator, AbstractTyped):
                unknown = given is None and not operator.is_bound
                types = "" if unknown else f"{operator.title}  {given or operator.in_structure} -> {result}"
                lines.append(types or repr(operator))
            else:
                lines.append(f"{_name(operator)}  (a plain function)")
            given = result
        return "\n".join(lines)

    def _structures(self, given: Structure | None) -> list[Structure | None]:
        """Return the structures of the results of all parts, in the order in which the parts are applied.

        `None` stands for an unknown structure. Raises `ValueError` if the result of a part does not fit the next part.
        """
        found: list[Structure | None] = []
        previous, is_example = None, False  # Whether `given` has the lengths of an example: see `Unbound.example`.
        for operator in reversed(self.operators):
            if isinstance(operator, AbstractTyped):
                part, given_is_example = _part(operator, None if is_example else given), is_example
                is_example = not operator.is_bound and (given is None or is_example)
                given = part and _fitting(part, given, previous, lengths=not given_is_example)
            else:
                given = given and given.through(operator)
            previous = operator
            found.append(None if is_example else given)
        return found

    def _parts(self) -> tuple[AbstractOperator, ...]:
        parts = tuple(operator for operator in self.operators if isinstance(operator, AbstractOperator))
        if len(parts) != len(self.operators):
            raise TypeError(f"`operators` must all be operators for `.T` and `.H`; got {self.operators}.")
        return parts

    def _typed(self) -> tuple[AbstractTyped, ...]:
        """Return the operators and layers, without plain functions, in the order of application."""
        return tuple(operator for operator in reversed(self.operators) if isinstance(operator, AbstractTyped))


def _part(operator: AbstractTyped, given: Structure | None) -> AbstractTyped | None:
    """Return `operator`; for an unbound one, a copy for inputs of structure `given`.

    If `given` is `None`, the copy is for a small grid; without a mesh, there is none.
    """
    if operator.is_bound:
        return operator
    if given is None:
        return None if cast(Any, operator).decomposition.mesh.empty else example_of(operator)
    if given.layout.blocks.padded_axes:
        raise ValueError(
            f"`{operator.title}` must be built with `shape={given.layout.true_shape}` and `pad=True`, because its "
            f"input is padded; got {given}."
        )
    return bound_to(operator, given.layout.mesh, given.layout.shape)


def _fitting(operator: AbstractTyped, given: Structure | None, previous: Any, *, lengths: bool) -> Structure:
    """Return the structure of the result of `operator` when it is applied to an input of structure `given`.

    This input is the result of `previous`. Raises `ValueError` if `operator` does not take inputs of this structure.
    Nothing is checked if `given` is `None`. With `lengths=False`, the lengths of the grid are not compared.
    """
    wanted = operator.in_structure
    if given is None:
        return operator.out_structure
    if problem := given.misfit(wanted, lengths=lengths):
        source = "the input is" if previous is None else f"`{_name(previous)}` returns"
        raise ValueError(f"`{operator.title}` must get {wanted}, but {source} {given}: {problem}.")
    return operator.result_structure(given)


def _name(function: Any) -> str:
    return function.title if isinstance(function, AbstractTyped) else getattr(function, "__name__", repr(function))


def _compose(left: Any, right: Any) -> Compose:
    """Return `left @ right` as one pipeline, without nesting."""
    for operator in (left, right):
        if not callable(operator):
            raise TypeError(
                f"`@` composes operators and callables; got {type(operator).__name__}. "
                "To apply an operator, call it: `operator(x)`."
            )
    parts = [op.operators if isinstance(op, Compose) else (op,) for op in (left, right)]
    return Compose((*parts[0], *parts[1]))
