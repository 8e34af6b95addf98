"""Describes an integrator and its equation by texts and numbers, so that a restarted run can say what has changed."""

import dataclasses
import math
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._core.decomposition import Decomposition
from .._core.layout import Layout
from .._operator.transform import AbstractTransform


# Arrays with more bytes are described by their dtype and shape only.
MOST_BYTES = 2**24


def described(solver: Any, args: Any) -> dict[str, Any]:
    """Return the options of an integrator, its equation and `args` by name, such as "solver.equation.viscosity".

    JSON can store the values. The time step is left out, because the clock of a run has it, and so are transforms
    except for their boxes, because the `Expansion` of a state describes them.
    """
    facts = dict([*_facts("solver", solver), *_facts("args", args)])
    return {name: value for name, value in facts.items() if name != "solver.dt"}


def changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a text for each option that differs between two results of `described`."""
    return [
        f"{name} was {saved.get(name)}, and is {now.get(name)}"
        for name in dict.fromkeys((*now, *saved))
        if not _same(saved.get(name), now.get(name))
    ]


def _facts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, AbstractTransform):
        yield f"{name}.box", [float(length) for length in value.box_lengths]
    elif isinstance(value, Decomposition | Layout):
        return
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield name, type(value).__name__
        for field in dataclasses.fields(value):
            yield from _facts(f"{name}.{field.name}", getattr(value, field.name))
    elif isinstance(value, tuple | list | Mapping):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, part in items:
            yield from _facts(f"{name}[{key!r}]", part)
    else:
        yield name, _fact(value)


def _fact(value: Any) -> Any:
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        return _array_fact(value)
    if isinstance(value, complex):
        return [value.real, value.imag]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    # The text of a function or of another object may have an address in memory, which is different in each run.
    return getattr(value, "__qualname__", type(value).__name__)


def _array_fact(value: Any) -> Any:
    """Return the value of a scalar, or a text that does not depend on the mesh: the dtype, the shape, a checksum.

    JAX arrays have neither shape nor checksum in their text, because they may be sharded and padded on another mesh.
    """
    is_key = jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
    if is_key or value.dtype == object or (isinstance(value, jax.Array) and value.ndim > 0):
        return f"an array of {value.dtype}"
    array = np.asarray(value)
    if array.ndim == 0:
        return _fact(array.item())
    text = f"an array of {array.dtype} and shape {array.shape}"
    return text if array.nbytes > MOST_BYTES else f"{text} with the CRC-32 {zlib.crc32(array.tobytes()):08x}"


def _same(a: Any, b: Any) -> bool:
    """Return whether two facts are equal. Numbers may differ by the rounding error of single precision."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, int | float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=1e-6) or (math.isnan(a) and math.isnan(b))
    return a == b
