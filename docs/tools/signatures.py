"""An extension of griffe, which reads the sources for the API pages.

Equinox modules are dataclasses without a decorator, so griffe alone shows no signature of their constructors. Type
aliases such as `Norm` are replaced by their values, which tell a reader more. tests/docs/test_api.py compares the
signatures with those that Python reports.
"""

import dataclasses
from typing import Any

import griffe


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
    """Give an Equinox module the decorator of a dataclass, and its fields the defaults of `equinox.field`."""
    values = (member.value for member in cls.members.values() if isinstance(member, griffe.Attribute))
    calls = (value for value in values if isinstance(value, griffe.ExprCall))
    fields = [call for call in calls if call.canonical_path == "equinox.field"]
    # An abstract class without fields of its own has no constructor to show.
    if (cls.name.startswith("Abstract") and not fields) or not _is_equinox_module(cls) or _has_constructor(cls):
        return
    # griffe recognizes the canonical path `dataclasses.dataclass`.
    name = griffe.ExprName("dataclass", parent=griffe.ExprName("dataclasses"))
    cls.decorators.append(griffe.Decorator(name, lineno=None, endlineno=None))
    for call in fields:
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
