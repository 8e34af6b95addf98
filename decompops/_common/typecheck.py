"""Checks of type annotations at run time, for users who set `DECOMPOPS_TYPECHECKER`."""

import importlib
import importlib.util
import os


VARIABLE = "DECOMPOPS_TYPECHECKER"


def install() -> None:
    """Check the annotations of all modules imported from now on, if `DECOMPOPS_TYPECHECKER` names a type checker.

    Raises `ImportError` for a type checker that is not installed or is not the name of a function.
    """
    checker = os.environ.get(VARIABLE)
    if not checker:
        return
    module, _, function = checker.rpartition(".")
    package = checker.split(".")[0]
    if importlib.util.find_spec(package) is None:
        raise ImportError(f"`{VARIABLE}` must name an installed type checker; got {checker!r}: pip install {package}.")
    if not module or not callable(getattr(importlib.import_module(module), function, None)):
        raise ImportError(
            f"`{VARIABLE}` must name a function of a type checker, such as 'beartype.beartype'; got {checker!r}."
        )
    from jaxtyping import install_import_hook

    install_import_hook("decompops", checker)
