"""Inverses, transposes and conjugates of operators, which `.inverse`, `.T` and `.H` return."""

import abc
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import numpy as np
from jax import Array
from jaxtyping import Bool, Shaped

from .._common.remember import keep_if_traced
from .._core.structure import Structure
from .base import AbstractOperator
from .unbound import OperatorDecomposition, bound, example_of, is_unbound


@dataclass(frozen=True)
class Form:
    """What is applied to an operator: any of the operations inversion, transposition and conjugation.

    The operations commute, and each is its own inverse.
    """

    inverted: bool = False
    transposed: bool = False
    conjugated: bool = False

    @property
    def is_reversed(self) -> bool:
        """Whether the operator in this form maps results to inputs."""
        return self.inverted != self.transposed

    def __str__(self) -> str:
        """Return the attributes that lead to this form, such as ".inverse", ".T", ".H" or ".inverse.T"."""
        derived = {(False, False): "", (True, False): ".T", (True, True): ".H", (False, True): ".H.T"}
        return ".inverse" * self.inverted + derived[self.transposed, self.conjugated]

    def __xor__(self, other: "Form") -> "Form":
        """Return the form that results from applying first the operations of `self`, and then those of `other`."""
        return Form(
            self.inverted != other.inverted,
            self.transposed != other.transposed,
            self.conjugated != other.conjugated,
        )


UNCHANGED = Form()


class AbstractDerivable(AbstractOperator):
    """An operator whose method `apply` runs all its forms: transposed, conjugated and, if possible, inverted.

    `__call__`, `.local`, `.T`, `.H` and `.inverse` follow from `apply`.
    """

    @abc.abstractmethod
    def apply(self, x: Shaped[Array | np.ndarray, "*field"], form: Form, *, local: bool) -> Shaped[Array, "*result"]:
        """Apply the operator in `form` to a field; with `local=True`, to one block inside a `shard_map`."""

    @property
    @abc.abstractmethod
    def is_invertible(self) -> bool:
        """Whether `apply` accepts an inverted form."""

    @abc.abstractmethod
    def structures(self, form: Form, given: Structure | None) -> tuple[Structure, Structure]:
        """Return the structures of the input and the result of the operator in `form`.

        `given` is the structure of the actual input, or `None` if this structure is not known.
        """

    @property
    def in_structure(self) -> Structure:
        return type(self).structures(self, UNCHANGED, None)[0]

    def result_structure(self, given: Structure) -> Structure:
        return type(self).structures(self, UNCHANGED, given)[1].following(given)

    def __call__(self, x: Shaped[Array | np.ndarray, "*field"], *, key: Any = None) -> Shaped[Array, "*result"]:
        return _applied(self, x, local=False)

    def local(self, block: Shaped[Array, "*field"]) -> Shaped[Array, "*result"]:
        return _applied(self, block, local=True)

    @property
    def T(self) -> "AbstractDerivable":
        return _derived(self, Form(transposed=True))

    @property
    def H(self) -> "AbstractDerivable":
        return _derived(self, Form(transposed=True, conjugated=True))

    @property
    def inverse(self) -> "AbstractDerivable":
        """The inverse operator. Raises `AttributeError` if there is none."""
        if not (self if self.is_bound else example_of(self)).is_invertible:
            raise AttributeError(f"`{self.__name__}` has no inverse.")
        return _derived(self, Form(inverted=True))


class Derived(AbstractDerivable):
    """An inverted, transposed or conjugated operator: the result of `.inverse`, `.T` or `.H`."""

    operator: AbstractDerivable
    form: Form = eqx.field(static=True)

    @property
    def decomposition(self) -> OperatorDecomposition:
        return self.operator.decomposition

    @property
    def is_invertible(self) -> bool:
        return self.operator.is_invertible

    @property
    def null_space(self) -> str | None:
        """What `decompops.solve` needs to know of the operator. Its transpose maps the same fields to zero."""
        return getattr(self.operator, "null_space", None)

    @property
    def open_cells(self) -> Bool[Array, "*grid"] | None:
        """The cells that `decompops.solve` solves in; `None` for all. The transpose has the same."""
        return getattr(self.operator, "open_cells", None)

    @property
    def closed_parts(self) -> Bool[Array, "parts *grid"] | None:
        """The parts of the grid with a constant of their own in the null space. The transpose has the same."""
        return getattr(self.operator, "closed_parts", None)

    @property
    def title(self) -> str:
        return f"{self.operator.title}{self.form}"

    def structures(self, form: Form, given: Structure | None) -> tuple[Structure, Structure]:
        return self.operator.structures(self.form ^ form, given)

    def apply(self, x: Shaped[Array | np.ndarray, "*field"], form: Form, *, local: bool) -> Shaped[Array, "*result"]:
        operator = self.operator
        form = self.form if form == UNCHANGED else self.form ^ form
        return type(operator).apply(operator, x, form, local=local)


def _derived(operator: AbstractDerivable, form: Form) -> AbstractDerivable:
    """Return `operator` in `form`, without nesting: `operator.T.T` is `operator` itself."""
    if isinstance(operator, Derived):
        operator, form = operator.operator, operator.form ^ form
    return operator if form == UNCHANGED else Derived(operator, form)


def _applied(operator: AbstractDerivable, x: Any, *, local: bool) -> Array:
    keep_if_traced(operator, x)
    operator = bound(operator, x, local=local) if is_unbound(operator.decomposition) else operator
    # `apply` is looked up on the class, because Equinox wraps each bound method in a module. Wrapping takes as long as
    # the rest of the call.
    return type(operator).apply(operator, x, UNCHANGED, local=local)
