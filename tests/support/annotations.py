"""The type checks of annotations in tests, by beartype, and by jaxtyping where an annotation gives a shape."""

import importlib.util
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, get_args

import jaxtyping


# tests/gpu also runs on machines without beartype, which have only pytest and the packages that decompops needs.
CHECKER = "beartype.beartype" if importlib.util.find_spec("beartype") else None
jaxtyped = jaxtyping.jaxtyped


def _has_shape(annotation: Any) -> bool:
    if isinstance(annotation, str) or hasattr(annotation, "dim_str"):  # The names in a string are not known yet.
        return True
    parts = annotation if isinstance(annotation, list) else get_args(annotation)
    return isinstance(annotation, type(jaxtyping.PyTree)) or any(map(_has_shape, parts))


def _decorated(function: Any = None, *, typechecker: Callable) -> Any:
    if function is None:
        return partial(_decorated, typechecker=typechecker)
    if not inspect.isfunction(function) or any(map(_has_shape, function.__annotations__.values())):
        return jaxtyped(function, typechecker=typechecker)
    if not function.__annotations__:
        return function
    # Equinox looks for arrays in the closures of functions. It finds none inside the functions that beartype generates.
    return jaxtyped(function, typechecker=typechecker) if function.__closure__ else typechecker(function)


def _undecorated(function: Any = None, *, typechecker: Callable) -> Any:
    return (lambda function: function) if function is None else function


@contextmanager
def checked(package: str) -> Iterator[None]:
    """Check the annotations of the modules of `package` that are imported in the `with` block.

    jaxtyping compares the axes of all arrays in a call. For this, it binds the arguments and checks them twice, which
    takes much longer than beartype's own checks. So jaxtyping decorates only functions with the shape of an array in an
    annotation. A function inside a function would be decorated in each call of the outer one. That takes longer than
    the checks are worth, so nothing is decorated after the `with` block.
    """
    jaxtyping.jaxtyped = _decorated
    with jaxtyping.install_import_hook(package, CHECKER):
        yield
    jaxtyping.jaxtyped = _undecorated
