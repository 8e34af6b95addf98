"""Checks of type annotations at run time, for users who set `DECOMPOPS_TYPECHECKER`."""

import importlib.util
import os


VARIABLE = "DECOMPOPS_TYPECHECKER"


def install() -> None:
    """Check the annotations of all modules imported from now on, if `DECOMPOPS_TYPECHECKER` names a type checker.

    Raises `ImportError` for a type checker that is not installed.
    """
    checker = os.environ.get(VARIABLE)
    if not checker:
        return
    if importlib.util.find_spec(checker.split(".")[0]) is None:
        package = checker.split(".")[0]
        raise ImportError(f"`{VARIABLE}` must name an installed type checker; got {checker!r}: pip install {package}.")
    from jaxtyping import install_import_hook

    install_import_hook("decompops", checker)
