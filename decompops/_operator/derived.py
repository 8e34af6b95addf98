"""Inverses, transposes and conjugates of operators: what `.inverse`, `.T` and `.H` return."""

import abc
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec
from jaxtyping import Shaped

from .._decomposition import Decomposition
from .base import AbstractOperator


@dataclass(frozen=True)
class Form:
    """Which of three operations are applied to an operator. They commute, and each of them undoes itself."""

    inverted: bool = False
    transposed: bool = False
    conjugated: bool = False

    @property
    def is_reversed(self) -> bool:
        """Whether the operator in this form maps from the operator's results to its inputs."""
        return self.inverted != self.transposed

    def __xor__(self, other: "Form") -> "Form":
        """Both forms, one after the other."""
        return Form(
            self.inverted != other.inverted,
            self.transposed != other.transposed,
            self.conjugated != other.conjugated,
        )


UNCHANGED = Form()


class AbstractDerivable(AbstractOperator):
    """An operator that can be applied transposed and conjugated, and perhaps inverted, by one method: `apply`.

    Calling it, `.local`, `.T`, `.H` and `.inverse` follow from that method.
    """

    @abc.abstractmethod
    def apply(self, x: Shaped[Array | np.ndarray, "..."], form: Form, *, local: bool) -> Shaped[Array, "..."]:
        """Apply the operator in `form` to a field, or with `local` to one block inside a `shard_map`."""

    @property
    @abc.abstractmethod
    def is_invertible(self) -> bool:
        """Whether `apply` takes an inverted form."""

    def __call__(self, x: Shaped[Array | np.ndarray, "..."], *, key: Any = None) -> Shaped[Array, "..."]:
        # Looked up on the class: Equinox makes a module of each bound method, which takes as long as all the rest.
        return type(self).apply(self, x, UNCHANGED, local=False)

    def local(self, block: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
        return type(self).apply(self, block, UNCHANGED, local=True)

    @property
    def T(self) -> "AbstractDerivable":
        return _derived(self, Form(transposed=True))

    @property
    def H(self) -> "AbstractDerivable":
        return _derived(self, Form(transposed=True, conjugated=True))

    @property
    def inverse(self) -> "AbstractDerivable":
        """The inverse, itself an operator. Raises `AttributeError` where there is none."""
        if not self.is_invertible:
            raise AttributeError(f"`{self.__name__}` has no inverse.")
        return _derived(self, Form(inverted=True))


class Derived(AbstractDerivable):
    """An operator in another form: what `.T`, `.H` and `.inverse` return."""

    operator: AbstractDerivable
    form: Form = eqx.field(static=True)

    @property
    def decomposition(self) -> Decomposition:
        return self.operator.decomposition

    @property
    def is_invertible(self) -> bool:
        return self.operator.is_invertible

    @property
    def in_spec(self) -> PartitionSpec:
        return self.operator.out_spec if self.form.is_reversed else self.operator.in_spec

    @property
    def out_spec(self) -> PartitionSpec:
        return self.operator.in_spec if self.form.is_reversed else self.operator.out_spec

    def apply(self, x: Shaped[Array | np.ndarray, "..."], form: Form, *, local: bool) -> Shaped[Array, "..."]:
        operator = self.operator
        form = self.form if form == UNCHANGED else self.form ^ form
        return type(operator).apply(operator, x, form, local=local)


def _derived(operator: AbstractDerivable, form: Form) -> AbstractDerivable:
    """`operator` in `form`, without nesting: deriving twice in the same way returns the operator itself."""
    if isinstance(operator, Derived):
        operator, form = operator.operator, operator.form ^ form
    return operator if form == UNCHANGED else Derived(operator, form)
