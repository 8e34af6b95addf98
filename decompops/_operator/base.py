"""What every operator is, and operators one after the other."""

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from equinox import AbstractVar
from jax import Array
from jax.sharding import PartitionSpec
from jaxtyping import Shaped

from .._decomposition import Decomposition


class AbstractOperator(eqx.Module):
    """A linear operator on fields of shape `(*batch, nx, ny, nz)`, divided over a device mesh.

    Operators are immutable PyTrees. They are called like functions, differentiate in every mode, take any number of
    leading batch axes (and `jax.vmap`), and compose with `@`.
    """

    if TYPE_CHECKING:  # Type checkers treat an `AbstractVar` as an argument of every constructor.
        decomposition: ClassVar[Decomposition]
    else:
        decomposition: AbstractVar[Decomposition]

    __array_ufunc__ = None  # `array @ operator` is ours to refuse

    @property
    def __name__(self) -> str:  # what `jax.jit(operator)` is called in profiles
        return type(self).__name__

    @abc.abstractmethod
    def __call__(self, x: Shaped[Array | np.ndarray, "..."], *, key: Any = None) -> Shaped[Array, "..."]:
        """Apply to a field. `key` is ignored; it is there for `eqx.nn.Sequential`."""

    @abc.abstractmethod
    def local(self, block: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
        """Apply to one block `(*batch, ...)`, inside the caller's own `jax.shard_map` over the mesh."""

    @property
    @abc.abstractmethod
    def T(self) -> "AbstractOperator":
        """The transpose (no complex conjugation)."""

    @property
    @abc.abstractmethod
    def H(self) -> "AbstractOperator":
        """The conjugate transpose."""

    @property
    @abc.abstractmethod
    def in_spec(self) -> PartitionSpec:
        """The partition spec of the three grid axes of an input."""

    @property
    @abc.abstractmethod
    def out_spec(self) -> PartitionSpec:
        """The partition spec of the three grid axes of a result."""

    def __matmul__(self, other):
        return _compose(self, other)

    def __rmatmul__(self, other):
        return _compose(other, self)


class Compose(AbstractOperator):
    """Apply `operators` from the last to the first, as in a product of matrices: what `a @ b` makes.

    **Arguments:**

    - `operators`: operators, and between them any callables `x -> y`, such as a spectral filter.

    A pipeline has `.T` and `.H` if all its parts are operators; otherwise these raise `TypeError`.
    """

    operators: tuple[Callable, ...]

    def __check_init__(self):
        if not any(isinstance(operator, AbstractOperator) for operator in self.operators):
            raise ValueError(f"`operators` must contain at least one operator; got {self.operators}.")

    @property
    def decomposition(self) -> Decomposition:
        return self._ends()[0].decomposition

    def __call__(self, x: Shaped[Array | np.ndarray, "..."], *, key: Any = None) -> Shaped[Array, "..."]:
        y = jnp.asarray(x)
        for operator in reversed(self.operators):
            y = operator(y)
        return y

    def local(self, block: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
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
    def in_spec(self) -> PartitionSpec:
        return self._ends()[0].in_spec

    @property
    def out_spec(self) -> PartitionSpec:
        return self._ends()[1].out_spec

    def _parts(self) -> tuple[AbstractOperator, ...]:
        parts = tuple(operator for operator in self.operators if isinstance(operator, AbstractOperator))
        if len(parts) != len(self.operators):
            raise TypeError(f"`operators` must all be operators for a transpose; got {self.operators}.")
        return parts

    def _ends(self) -> tuple[AbstractOperator, AbstractOperator]:
        """The first and the last operator to be applied; plain callables do not change the layout."""
        operators = [op for op in reversed(self.operators) if isinstance(op, AbstractOperator)]
        return operators[0], operators[-1]


def _compose(left: Any, right: Any) -> Compose:
    """`left @ right`, flat."""
    for operator in (left, right):
        if not callable(operator):
            raise TypeError(
                f"`@` composes operators and callables; got {type(operator).__name__}. "
                "To apply an operator, call it: `operator(x)`."
            )
    parts = [op.operators if isinstance(op, Compose) else (op,) for op in (left, right)]
    return Compose((*parts[0], *parts[1]))
