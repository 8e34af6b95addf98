"""What a backend is: the interpreter of a plan on one block."""

import abc
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from jax import Array

from .._stage import NOBODY, Caller


if TYPE_CHECKING:
    import numpy as np
    from jax.sharding import AbstractMesh, Mesh

    from .._stage import Plan


class Counters(NamedTuple):
    """What compiled kernels have sent from this process so far, and the work space that they hold now."""

    messages: int = 0
    sent_bytes: int = 0
    workspace_bytes: int = 0


class AbstractBackend(abc.ABC):
    """Moves the data of distributed operators. Backends are frozen dataclasses: hashable, compared by their options."""

    # Whether JAX can differentiate and batch `run` by itself. Else `operator.local` goes through a primitive, too.
    differentiable_block: ClassVar[bool] = True

    @abc.abstractmethod
    def problem(self) -> str | None:
        """What keeps this backend from working in this installation, and what to do; `None` if nothing does."""

    def lacks(self) -> str | None:
        """What this backend works without in this installation, and what to do; `None` for nothing."""
        return None

    @abc.abstractmethod
    def check(self, mesh: "Mesh | AbstractMesh") -> None:
        """Raise if this backend cannot serve operators on `mesh`."""

    def prepare(self, plan: "Plan", dtype: "np.dtype") -> None:  # noqa: B027 - most have nothing to do
        """Called on every rank, in the same order, before a program with `plan` for inputs of `dtype` is made."""

    def caller(self) -> Caller:
        """Who calls an operator just now, if this backend tells calls apart by it. Calls differ as programs do then."""
        return NOBODY

    def counters(self) -> Counters:
        """For the benchmark. Without compiled kernels nothing is counted: XLA's programs say what they communicate."""
        return Counters()

    @abc.abstractmethod
    def run(self, plan: "Plan", block: Array) -> Array:
        """Apply `plan` to one block `(*batch, ...)`, inside a `shard_map` over the mesh of the plan."""
