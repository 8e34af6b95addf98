"""The backend for GPU clusters: named here so that asking for it says what is missing."""

from dataclasses import dataclass
from typing import NoReturn

from jax import Array

from .._stage import Plan
from .base import AbstractBackend


@dataclass(frozen=True)
class CuDecomp(AbstractBackend):
    """Compiled kernels over NVIDIA's cuDecomp, for GPU clusters. Not in this version."""

    def problem(self) -> str:
        return (
            "its compiled kernels are not in this version of decompops; use `backend=XLA()`, which communicates "
            "between GPUs through NCCL"
        )

    def check(self, mesh) -> NoReturn:
        raise ImportError(f"`backend={self}` does not work here: {self.problem()}.")

    def run(self, plan: Plan, block: Array) -> Array:
        self.check(plan.mesh)
