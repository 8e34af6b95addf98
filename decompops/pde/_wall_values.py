"""Values at walls that depend on time."""

from typing import Any


def constant(name: str, value: Any) -> Any:
    """Return the `value` of the argument `name`. Raises `ValueError` if it is a function of time."""
    if callable(value):
        raise ValueError(
            f"`{name}` must be constant here, but it is a function of time. Call the same method of `equation.at(t)`, "
            "which has the values of the time t."
        )
    return value
