"""Caches for operators: of results, of modules and of programs.

`remembered` is a cache for functions of operators. `keep_if_traced` makes equal operators share the programs of
`jax.jit`. `in_one_program` makes eager calls start one program.
"""

import functools
import itertools
import threading
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any, Concatenate, ParamSpec, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.sharding import AbstractMesh
from jax.tree_util import Partial


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


# The operators that were traced last, by their `id`.
_traced: dict[int, Any] = {}
_MOST_TRACED = 128  # Their compiled programs take megabytes each.
_lock = threading.Lock()


def keep_if_traced(module: Any, x: Any) -> None:
    """Keep `module` alive if its argument `x` is traced.

    `jax.jit(module)` finds its program by comparing modules, so equal modules share a program. But JAX drops the
    program together with the module that was traced. Without this function, `jax.jit(fft.inverse)` would compile in
    each turn of a loop, because the module `fft.inverse` lives for one turn only.

    Only modules that take little memory are kept: modules without arrays and without functions that may hold arrays.
    """
    if not isinstance(x, Tracer) or not all(map(_is_small, jax.tree.leaves(module, is_leaf=_is_partial))):
        return
    with _lock:
        _traced.pop(id(module), None)
        _traced[id(module)] = module
        while len(_traced) > _MOST_TRACED:
            del _traced[next(iter(_traced))]


def _is_partial(node: Any) -> bool:
    return isinstance(node, Partial)


def _is_small(leaf: Any) -> bool:
    """Return whether a leaf of a module is a number, or a function that holds no variables, such as `jnp.sin`."""
    if _is_partial(leaf):
        return False
    if isinstance(leaf, FunctionType):
        return not (leaf.__closure__ or leaf.__defaults__ or leaf.__kwdefaults__)
    of_jax = callable(leaf) and str(getattr(leaf, "__module__", "")).startswith("jax.")
    return of_jax or isinstance(leaf, bool | int | float | complex)


def in_one_program(function: Callable[..., _T], *, has_loop: bool = False) -> Callable[..., _T]:
    """Let an eager call of `function`, whose first argument has an `in_structure`, run as one compiled program.

    Otherwise, each operation would be a program of its own. Arrays and numbers are arguments of the program, so a new
    coefficient or time step needs no new program. Flags and functions of JAX belong to the program. A call with a
    function or a class of the user is not one program: its code may read variables that change, or a function may be a
    new object in each call, which would then compile a program. A module on a mesh without devices has no program
    either, because its devices are those of the array.

    `has_loop` says that `function` contains a loop. Then a call of the last two kinds is a new program, which is freed
    with the result, for two reasons. JAX compiles the loop in each eager call anyway, and keeps thousands of loops,
    more than Linux maps into memory. And JAX traces the functions that a linear solver gets, but then runs their
    operations one by one: a constant whose type has explicit axes cannot run alone, because it has no devices.
    """

    def of_values(structure: Any, constants: tuple) -> Callable[[tuple], _T]:
        def run(values: tuple) -> _T:
            module, *arguments = _filled(structure, constants, values)
            return function(module, *arguments)

        return run

    @functools.lru_cache(maxsize=64)
    def program(structure: Any, constants: tuple) -> Callable[[tuple], _T] | None:
        # Neither the classes nor the mesh depend on the numbers.
        example = _filled(structure, constants, itertools.repeat(1.0))
        of_user = any(map(_is_of_user, jax.tree.leaves(example, is_leaf=_is_of_user)))
        if of_user or isinstance(example[0].in_structure.layout.mesh, AbstractMesh):
            return None
        # Inside of another program, `inline` leaves the operations of `function`, and no program of their own.
        return jax.jit(of_values(structure, constants), inline=True)

    @functools.wraps(function)
    def call(module: Any, *arguments: Any) -> _T:
        leaves, structure = jax.tree.flatten((module, *arguments))
        constants = tuple(map(_constant, leaves))
        values = tuple(leaf for leaf, constant in zip(leaves, constants) if constant is None)
        run = None if () in constants else program(structure, constants)
        if run is not None:
            return run(values)
        if not has_loop:
            return function(module, *arguments)
        constants = tuple(None if key is None else (leaf,) for leaf, key in zip(leaves, constants))
        return in_new_program(of_values(structure, constants), values)

    return call


def in_new_program(function: Callable[[tuple], _T], values: tuple) -> _T:
    """Return `function(values)`, compiled. Arrays in the closure of `function` are arguments of the program, too.

    `jax.jit` would copy them to each device, and refuses those of several processes. The program is freed with the
    result. So `function` may be of the user, and read variables that change.
    """
    values = tuple(value if isinstance(value, Array) else jnp.asarray(value) for value in values)
    arrays, rest = eqx.partition(eqx.filter_closure_convert(function, values), eqx.is_array)
    return jax.jit(lambda arrays, values: eqx.combine(arrays, rest)(values), inline=True)(arrays, values)


def _filled(structure: Any, constants: tuple, values: Iterable) -> tuple:
    """Return the arguments of a call. `constants` has the constant leaves, and `values` the others, in order."""
    rest = iter(values)
    return jax.tree.unflatten(structure, [constant[0] if constant else next(rest) for constant in constants])


def _is_of_user(node: Any) -> bool:
    """Return whether a part of a module may run code of the user: a module, a `Partial`, or a class with `__call__`."""
    if _is_partial(node):  # Its function is no leaf.
        return True
    package = type(node).__module__.partition(".")[0]
    return isinstance(node, eqx.Module | Callable) and package not in ("decompops", "equinox", "jax", "jaxlib")


def _constant(leaf: Any) -> tuple | None:
    """Return a key for a leaf that belongs to a program, with the leaf first.

    Return `None` for a leaf that is an argument of a program, and `()` for a leaf that no program can have.
    """
    if isinstance(leaf, Array):
        return None
    of_numpy = isinstance(leaf, np.ndarray | np.generic)
    if type(leaf) in (int, float, complex) or (of_numpy and leaf.dtype.isnative):
        return None
    # Equal numbers of different types, such as 1 and 1.0, may give results of different dtypes.
    return (leaf, type(leaf)) if _is_small(leaf) and not isinstance(leaf, FunctionType) else ()
