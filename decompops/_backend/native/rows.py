"""Rows that move between devices, by the compiled kernels of both backends for CPUs."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import Array

from ..._common.blocks import Blocks
from ..._plan.plan import Plan
from ..base import Group
from .kernel import in_order, site_attributes


# The kernels identify calls by plans. What rows do is not a part of the plan.
_PLAN = Plan("rows", Blocks((1,), (1,), (None,)), ())


def run_rows(
    target: str,
    group: Group,
    facts: tuple[Array, Array, Array],
    arrays: Sequence[Array],
    *,
    back: bool,
    threads: int,
    **attributes: Any,
) -> tuple[Array, ...]:
    """Move rows with the kernel `target`. `facts` are the arguments `leaving`, `sent` and `count` of `move_rows`."""
    results = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]
    mesh = ", ".join(f"{axis}={size}" for axis, size in group.mesh.shape.items())
    label = f"{group.name} of {facts[0].shape[0]} rows on each device of mesh ({mesh})"
    common = site_attributes(_PLAN, (), (group.size,), label, "estimate", threads, back=back)
    return tuple(jax.ffi.ffi_call(target, results)(*facts, *arrays, **common, **attributes))


def details(arrays: Sequence[Array], *, back: bool) -> str:
    """Return properties of an exchange that its label does not tell. Errors quote them if two labels are equal."""
    return ", ".join(f"{x.dtype}{x.shape[1:]}" for x in arrays) + (", transposed" if back else "")


def ordered(group: Group, numbers: list[int]) -> np.ndarray:
    """Reorder `numbers`, which belong to the devices of the mesh: the devices of each group one after the other."""
    outside = tuple(name for name in group.mesh.shape if name not in group.names)
    return in_order((*outside, *group.names), group.mesh, numbers)
