"""Inverses, transposes and conjugates of operators: what `.inverse`, `.T` and `.H` return."""

import abc
from dataclasses import dataclass
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AbstractMesh, Mesh
from jaxtyping import Shaped

from .._decomposition import Decomposition
from .._sharding import mesh_of
from .._structure import Structure
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

    def __str__(self) -> str:
        """What is typed to get it: ".inverse", ".T", ".H", ".inverse.T"."""
        derived = {(False, False): "", (True, False): ".T", (True, True): ".H", (False, True): ".H.T"}
        return ".inverse" * self.inverted + derived[self.transposed, self.conjugated]

    def __xor__(self, other: "Form") -> "Form":
        """Both forms, one after the other."""
        return Form(
            self.inverted != other.inverted,
            self.transposed != other.transposed,
            self.conjugated != other.conjugated,
        )


UNCHANGED = Form()


_D = TypeVar("_D", bound="AbstractDerivable")


class AbstractDerivable(AbstractOperator):
    """An operator that can be applied transposed and conjugated, and perhaps inverted, by one method: `apply`.

    Calling it, `.local`, `.T`, `.H` and `.inverse` follow from that method.
    """

    @abc.abstractmethod
    def apply(self, x: Shaped[Array | np.ndarray, "*field"], form: Form, *, local: bool) -> Shaped[Array, "*result"]:
        """Apply the operator in `form` to a field, or with `local` to one block inside a `shard_map`."""

    @property
    @abc.abstractmethod
    def is_invertible(self) -> bool:
        """Whether `apply` takes an inverted form."""

    @abc.abstractmethod
    def structures(self, form: Form, given: Structure | None) -> tuple[Structure, Structure]:
        """What the operator in `form` takes and returns, for an input of structure `given` if that is known."""

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
    def title(self) -> str:
        return f"{self.operator.title}{self.form}"

    def structures(self, form: Form, given: Structure | None) -> tuple[Structure, Structure]:
        return self.operator.structures(self.form ^ form, given)

    def apply(self, x: Shaped[Array | np.ndarray, "*field"], form: Form, *, local: bool) -> Shaped[Array, "*result"]:
        operator = self.operator
        form = self.form if form == UNCHANGED else self.form ^ form
        return type(operator).apply(operator, x, form, local=local)


def _derived(operator: AbstractDerivable, form: Form) -> AbstractDerivable:
    """`operator` in `form`, without nesting: deriving twice in the same way returns the operator itself."""
    if isinstance(operator, Derived):
        operator, form = operator.operator, operator.form ^ form
    return operator if form == UNCHANGED else Derived(operator, form)


def _applied(operator: AbstractDerivable, x: Any, *, local: bool) -> Array:
    operator = operator if operator.decomposition.has_mesh else _located(operator, x)
    # Looked up on the class: Equinox makes a module of each bound method, which takes as long as all the rest.
    return type(operator).apply(operator, x, UNCHANGED, local=local)


def _located(operator: AbstractDerivable, x: Any) -> AbstractDerivable:
    """`operator`, which was built without a mesh, on the mesh that the array `x` is on."""
    mesh = mesh_of(x)
    if mesh is None:
        raise ValueError(
            f"`mesh` must be given to `{operator.title}`, or be the ambient mesh (`jax.set_mesh`), for an array whose "
            f"mesh is not known; got {jnp.result_type(x)}{jnp.shape(x)}. (In `jax.jit` an array tells its mesh only "
            "on Explicit axes.)"
        )
    return with_mesh(operator, mesh)


def with_mesh(operator: _D, mesh: Mesh | AbstractMesh) -> _D:
    """Return `operator`, which was built without a mesh, with `mesh`."""

    def replaced(node: Any) -> Any:
        return node.with_mesh(mesh) if isinstance(node, Decomposition) else node

    return jax.tree.map(replaced, operator, is_leaf=lambda node: isinstance(node, Decomposition))
