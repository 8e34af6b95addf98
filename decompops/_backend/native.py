"""The backends with compiled kernels: named here so that asking for one says what is missing.

Their kernels are not part of this version; each moves to a file of its own when it is built.
"""

from dataclasses import dataclass
from typing import ClassVar, NoReturn

from jax import Array

from .._stage import Plan
from .base import AbstractBackend


class AbstractNative(AbstractBackend):
    """A backend whose kernels this version does not have: building an operator with it raises `ImportError`."""

    instead: ClassVar[str]

    def check(self, mesh) -> NoReturn:
        raise ImportError(
            f"`backend={self}` needs compiled kernels that this version of decompops does not have yet; "
            f"use `backend=XLA()`, which {self.instead}."
        )

    def run(self, plan: Plan, block: Array) -> Array:
        self.check(plan.mesh)


@dataclass(frozen=True)
class MPI(AbstractNative):
    """Compiled kernels over MPI and FFTW, for CPU clusters. Not in this version."""

    instead = "communicates between CPU processes through Gloo"


@dataclass(frozen=True)
class CuDecomp(AbstractNative):
    """Compiled kernels over NVIDIA's cuDecomp, for GPU clusters. Not in this version."""

    instead = "communicates between GPUs through NCCL"
