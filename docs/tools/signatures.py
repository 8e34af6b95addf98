"""An extension of griffe, which reads the sources for the API pages.

Equinox modules are dataclasses without a decorator, so griffe alone shows no signature of their constructors. Type
aliases such as `Norm` are replaced by their values, which tell a reader more.

python docs/tools/signatures.py   # compare the signatures of all public classes with those that Python reports
"""

import dataclasses
import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

import griffe


PUBLIC = ("decompops", *(f"decompops.{name}" for name in ("fft", "io", "mpmd", "nn", "pde", "plot", "spectral")))


class Signatures(griffe.Extension):
    """Give Equinox modules the signatures of dataclasses, and replace aliases in annotations by their values."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        for part in _parts(pkg):
            if isinstance(part, griffe.Class):
                _make_dataclass(part)
        for part in _parts(pkg):
            if isinstance(part, griffe.Function):
                part.returns = _expanded(part.returns, pkg)
                for parameter in part.parameters:
                    parameter.annotation = _expanded(parameter.annotation, pkg)
            elif isinstance(part, griffe.Attribute):
                part.annotation = _expanded(part.annotation, pkg)


def _parts(part: griffe.Object) -> list[griffe.Object]:
    """A module or class, and everything that it defines."""
    inside = [member for member in part.members.values() if not member.is_alias]
    return [part, *(found for member in inside for found in _parts(member))]


def _make_dataclass(cls: griffe.Class) -> None:
    """Give a final Equinox module the decorator of a dataclass, and its fields the defaults of `equinox.field`."""
    # Abstract classes have no constructor to show.
    if cls.name.startswith("Abstract") or not _is_equinox_module(cls) or _has_constructor(cls):
        return
    # griffe recognizes the canonical path `dataclasses.dataclass`.
    name = griffe.ExprName("dataclass", parent=griffe.ExprName("dataclasses"))
    cls.decorators.append(griffe.Decorator(name, lineno=None, endlineno=None))
    for member in cls.members.values():
        call = member.value if isinstance(member, griffe.Attribute) else None
        if isinstance(call, griffe.ExprCall) and call.canonical_path == "equinox.field":
            call.function = griffe.ExprName("field", parent=griffe.ExprName("dataclasses"))


def _has_constructor(cls: griffe.Class) -> bool:
    return any("__init__" in parent.members for parent in (cls, *cls.mro()))


def _is_equinox_module(cls: griffe.Class) -> bool:
    bases = (base for parent in (cls, *cls.mro()) for base in parent.bases)
    paths = (base.canonical_path for base in bases if isinstance(base, griffe.Expr))
    return any(path.startswith("equinox.Module") for path in paths)


def _expanded(expression: Any, package: griffe.Module) -> Any:
    """An annotation in which names of the package's type aliases are replaced by their values."""
    if isinstance(expression, griffe.ExprName):
        value = _alias(expression, package)
        return expression if value is None else _expanded(value, package)
    if isinstance(expression, griffe.Expr):
        for field in dataclasses.fields(expression):
            value = getattr(expression, field.name)
            if isinstance(value, griffe.Expr):
                setattr(expression, field.name, _expanded(value, package))
            elif isinstance(value, list):
                setattr(expression, field.name, [_expanded(item, package) for item in value])
    return expression


def _alias(name: griffe.ExprName, package: griffe.Module) -> griffe.Expr | None:
    """The value of a type alias of the package, or None for any other name."""
    path = name.canonical_path
    if not path.startswith(f"{package.name}."):
        return None
    try:
        target = package.modules_collection[path]
    except KeyError:
        return None
    target = target.final_target if target.is_alias else target
    is_type = isinstance(target, griffe.Attribute) and isinstance(target.value, griffe.ExprSubscript | griffe.ExprBinOp)
    return target.value if is_type else None


def main() -> None:
    """Exit with the names of public classes and functions whose parameters griffe shows wrongly."""
    package = griffe.load(
        "decompops",
        search_paths=[Path(__file__).parents[2]],
        extensions=griffe.load_extensions(Signatures),
    )
    compared, wrong = 0, []
    for module in PUBLIC:
        for name, member in vars(importlib.import_module(module)).items():
            if name.startswith(("_", "Abstract")) or not (inspect.isclass(member) or inspect.isfunction(member)):
                continue
            shown = package[f"{module}.{name}".removeprefix("decompops.")]
            if issubclass(member if inspect.isclass(member) else object, Exception | tuple):
                continue
            # The order of arguments that are passed by keyword means nothing.
            kinds = [(p.kind.value == "keyword-only", p.name) for p in shown.parameters if p.name != "self"]
            true = [(p.kind == p.KEYWORD_ONLY, p.name) for p in inspect.signature(member).parameters.values()]
            compared += 1
            if sorted(kinds, key=_by_position) != sorted(true, key=_by_position):
                wrong.append(f"{module}.{name}: {kinds}")
    print(*wrong, f"{compared} signatures, {len(wrong)} wrong", sep="\n")
    sys.exit(bool(wrong))


def _by_position(parameter: tuple[bool, str]) -> tuple[bool, str]:
    by_keyword, name = parameter
    return by_keyword, name if by_keyword else ""


if __name__ == "__main__":
    main()
