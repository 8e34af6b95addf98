"""`remembered`: a cache for functions of operators."""

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import jax
import numpy as np


_M = TypeVar("_M")
_P = ParamSpec("_P")
_T = TypeVar("_T")


def remembered(function: Callable[Concatenate[_M, _P], _T]) -> Callable[Concatenate[_M, _P], _T]:
    """Cache the results of `function`. Its first argument is an operator or another module, all others are hashable.

    The key of a module is its PyTree structure, which is found in microseconds. The modules themselves would be slow
    keys, because all modules without arrays have the same hash. Results for a module with arrays, which may be traced,
    are not cached.
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
