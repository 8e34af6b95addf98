"""Results of functions of operators that are looked up where they were computed before."""

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import jax
import numpy as np


_M = TypeVar("_M")
_P = ParamSpec("_P")
_T = TypeVar("_T")


def remembered(function: Callable[Concatenate[_M, _P], _T]) -> Callable[Concatenate[_M, _P], _T]:
    """Remember what `function` returns for an operator or another module without arrays, and hashable arguments.

    Modules are found by their PyTree structures, in microseconds: as keys of a dictionary those without arrays would
    all have the same hash, and be compared one by one. With arrays, which may be traced, nothing is remembered.
    """

    @functools.lru_cache(maxsize=4096)
    def look_up(widest: np.dtype, structure: Any, *arguments: Any, **options: Any) -> _T:
        del widest  # The dtypes of results depend on whether JAX is in its 64-bit mode.
        return function(jax.tree.unflatten(structure, ()), *arguments, **options)

    @functools.wraps(function)
    def call(module: _M, *arguments: _P.args, **options: _P.kwargs) -> _T:
        leaves, structure = jax.tree.flatten(module)
        if leaves:
            return function(module, *arguments, **options)
        return look_up(jax.dtypes.canonicalize_dtype(np.float64), structure, *arguments, **options)

    return call
