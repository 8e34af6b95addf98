"""Points on one block, by compiled kernels: they deposit values, read the block, or put points in order."""

import functools
import math
from collections.abc import Sequence

import jax
import numpy as np
from jax import Array

from .library import NATIVE, pointer, register_targets


MOST_AXES, MOST_WIDTH, MOST_SLOPES = 3, 16, 4  # `Cloud` in ffi/cpu/points.h


@functools.cache
def _target(name: str) -> str:
    register_targets({name: pointer(NATIVE.load(), name)}, platform="cpu")
    return name


def has_kernel(points: np.dtype, values: np.dtype, ndim: int, width: int, *, moves: bool) -> bool:
    """Return whether the kernel takes points and values of these dtypes, on a block of `ndim` axes.

    `moves` is whether the points move along directions.
    """
    reals = (np.float32, np.float64)
    if np.dtype(points) not in reals:
        return False
    if moves:
        return np.dtype(values) in reals and ndim == MOST_AXES and width <= MOST_SLOPES
    known = np.dtype(values) in (*reals, np.complex64, np.complex128)
    return known and ndim <= MOST_AXES and width <= MOST_WIDTH


def run_points(
    frame: Sequence[Array],
    operands: Sequence[Array],
    result: jax.ShapeDtypeStruct,
    *,
    shape: tuple[int, ...],
    wraps: tuple[bool, ...],
    pieces: list[tuple[tuple[float, ...], ...]],
    gives: str,
    threads: int,
) -> Array:
    """Return what points deposit on a block or read from it, or their slopes. See `_core.points`.

    `pieces` holds, for each axis and each cell that a point touches, the coefficients of the polynomial that is its
    share, the constant first.
    """
    powers = max(len(piece) for axis in pieces for piece in axis)
    padded = [[[*piece, *[0.0] * (powers - len(piece))] for piece in axis] for axis in pieces]
    x = operands[-1]
    batch = x.shape[:-1] if gives == "block" else x.shape[: -len(shape)]
    return jax.ffi.ffi_call(_target("decompops_points"), result)(
        *frame,
        *operands,
        shape=np.array(shape, np.int64),
        wraps=np.array(wraps, np.int64),
        width=np.int64(len(pieces[0])),
        coefficients=np.array(padded, np.float64)[:, :, ::-1].transpose(0, 2, 1).ravel(),
        gives=np.int64(("along", "values", "block").index(gives)),
        batch=np.int64(math.prod(batch)),
        threads=np.int64(threads),
    )


def run_order(keys: Array, kinds: int, threads: int) -> tuple[Array, Array]:
    """Return the places of the keys below `kinds`, sorted by key, and how many keys of each kind there are."""
    results = [jax.ShapeDtypeStruct(shape, np.int32) for shape in (keys.shape, (kinds,))]
    places, found = jax.ffi.ffi_call(_target("decompops_order"), results)(keys, threads=np.int64(threads))
    return places, found
