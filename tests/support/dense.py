"""The mathematical definition of each stage: one matrix for each grid axis, made with NumPy alone."""

import math
from collections.abc import Sequence

import numpy as np
from decompops.extend import (
    DFT,
    AbstractStage,
    Blocks,
    Clear,
    Crop,
    Extend,
    LocalTransform,
    Move,
    Plan,
    RealToReal,
    Resize,
    Run,
    Scale,
)


def along(u: np.ndarray, axis: int, matrix: np.ndarray) -> np.ndarray:
    return np.moveaxis(np.tensordot(matrix, u, (1, axis)), 0, axis)


def dft(n: int, sign: int) -> np.ndarray:
    j = np.arange(n)
    return np.exp(sign * 2j * np.pi * np.outer(j, j) / n)


def weights(n: int) -> np.ndarray:
    """Return how often each mode of a half spectrum occurs in the full spectrum."""
    return np.bincount([min(k, n - k) for k in range(n)])


def fourier(u: np.ndarray, transform: DFT, axes: Sequence[int], points: Sequence[int]) -> np.ndarray:
    *others, last = axes
    n, stored = points[-1], points[-1] // 2 + 1
    if transform.kind == "c2r" and transform.weighted:
        u = along(u, last, np.diag(1 / weights(n)))
    for axis, length in zip(others, points):
        u = along(u, axis, dft(length, transform.sign))
    full = dft(n, transform.sign)
    if transform.kind == "c2r":
        u = along(u, last, full[:, :stored] * weights(n)).real
    else:
        u = along(u, last, full if transform.kind == "c2c" else full[:stored])
    if transform.kind == "r2c" and transform.weighted:
        u = along(u, last, np.diag(weights(n)))
    return u / math.prod(points) if transform.normalised else u


# For each transform, the two lists give the end cells of the input and of the output that have another weight than
# the inner cells.
ENDS = {
    ("dct", 1): ([0, -1], [0, -1]),
    ("dct", 2): ([], [0]),
    ("dct", 3): ([0], []),
    ("dct", 4): ([], []),
    ("dst", 1): ([], []),
    ("dst", 2): ([], [-1]),
    ("dst", 3): ([-1], []),
    ("dst", 4): ([], []),
}


def real_to_real(transform: RealToReal, n: int) -> np.ndarray:
    """Return the matrix of a cosine or sine transform, as SciPy's documentation defines it."""
    k, j = np.arange(n)[:, None], np.arange(n)
    match transform.kind, transform.type:
        case "dct", 1:
            matrix = 2 * np.cos(np.pi * k * j / max(1, n - 1))
            matrix[:, [0, -1]] /= 2
        case "dct", 2:
            matrix = 2 * np.cos(np.pi * k * (2 * j + 1) / (2 * n))
        case "dct", 3:
            matrix = 2 * np.cos(np.pi * (2 * k + 1) * j / (2 * n))
            matrix[:, 0] /= 2
        case "dct", 4:
            matrix = 2 * np.cos(np.pi * (2 * k + 1) * (2 * j + 1) / (4 * n))
        case "dst", 1:
            matrix = 2 * np.sin(np.pi * (k + 1) * (j + 1) / (n + 1))
        case "dst", 2:
            matrix = 2 * np.sin(np.pi * (k + 1) * (2 * j + 1) / (2 * n))
        case "dst", 3:
            matrix = 2 * np.sin(np.pi * (2 * k + 1) * (j + 1) / (2 * n))
            matrix[:, -1] /= 2
        case "dst", 4:
            matrix = 2 * np.sin(np.pi * (2 * k + 1) * (2 * j + 1) / (4 * n))
        case other:
            raise AssertionError(other)
    columns, rows = ENDS[transform.kind, transform.type]
    matrix[:, columns] *= 2 ** (transform.before / 2)
    matrix[rows] *= 2 ** (transform.after / 2)
    return matrix


def halo_matrix(blocks: Blocks, axis: int, halo: tuple[int, int], periodic: bool) -> np.ndarray:
    """Return the matrix of a halo exchange along an axis.

    Blocks have `m` cells, and `halo` is `(before, after)`. Cell `i` of the extended block `b` is the cell
    `b * m - before + i` of the field.
    """
    n, m, (before, after) = blocks.lengths[axis], blocks.core(axis), halo
    extent = before + m + after
    matrix = np.zeros((blocks.parts[axis] * extent, blocks.parts[axis] * m))
    for b in range(blocks.parts[axis]):
        for i in range(extent):
            g = b * m - before + i
            if (-before <= g < n + after) if periodic else (0 <= g < n):
                matrix[b * extent + i, g % n] = 1
    return matrix


def crop_matrix(blocks: Blocks, axis: int) -> np.ndarray:
    before, m, extent = blocks.halo[axis][0], blocks.core(axis), blocks.extent(axis)
    return np.kron(np.eye(blocks.parts[axis]), np.eye(extent)[before : before + m])


def run_matrix(runs: Sequence[Run], before: int, after: int) -> np.ndarray:
    matrix = np.zeros((after, before))
    for run in runs:
        for i in range(run.length):
            matrix[run.target + i, run.source + i] += run.factor
    return matrix


def true_cells(blocks: Blocks, axis: int) -> np.ndarray:
    """Return the matrix that removes the padding of an axis."""
    return np.eye(blocks.lengths[axis], blocks.parts[axis] * blocks.core(axis))


def in_grid_order(u: np.ndarray, stage: AbstractStage) -> np.ndarray:
    before, lead = stage.before, u.ndim - stage.before.ndim
    g = [lead + axis for axis in range(before.ndim)]  # `g` holds the position of each grid axis in the array.
    u = u.transpose(*range(lead), *(lead + before.order.index(axis) for axis in range(before.ndim)))
    match stage:
        case Move():
            for axis in range(before.ndim):
                if before.parts[axis] != stage.after.parts[axis]:
                    u = along(u, g[axis], true_cells(stage.after, axis).T @ true_cells(before, axis))
        case LocalTransform(transform=DFT() as transform):
            u = stage.scale * fourier(u, transform, [g[axis] for axis in stage.axes], stage.points)
        case LocalTransform(transform=RealToReal() as transform):
            for axis, n in zip(stage.axes, stage.points):
                u = along(u, g[axis], real_to_real(transform, n))
            u = stage.scale * u
        case Extend(transposed=True):
            halo = before.halo[stage.axis]
            u = along(u, g[stage.axis], halo_matrix(stage.after, stage.axis, halo, stage.periodic).T)
        case Extend():
            halo = stage.after.halo[stage.axis]
            u = along(u, g[stage.axis], halo_matrix(before, stage.axis, halo, stage.periodic))
        case Crop():
            for axis in range(before.ndim):
                matrix = crop_matrix(stage.after, axis).T if stage.transposed else crop_matrix(before, axis)
                u = along(u, g[axis], matrix)
        case Clear():
            for axis in range(before.ndim):
                u = along(u, g[axis], true_cells(before, axis).T @ true_cells(before, axis))
        case Scale():
            u = u * stage.factor
        case Resize():
            for axis, runs in zip(stage.axes, stage.runs):
                lengths = before.lengths[axis], stage.after.lengths[axis]
                parts = [
                    along(u, g[axis], run_matrix([r for r in runs if r.real == flag], *lengths)) for flag in (0, 1)
                ]
                u = parts[0] + parts[1].real
        case _:
            raise AssertionError(stage)
    return u


def apply_stage(stage: AbstractStage, u: np.ndarray) -> np.ndarray:
    """Apply `stage` to arrays `(*batch, *stage.before.shape)`, which include padding."""
    lead = u.ndim - stage.before.ndim
    u = in_grid_order(u, stage)
    u = u.transpose(*range(lead), *(lead + axis for axis in stage.after.order))
    assert u.shape[lead:] == stage.after.shape
    return u


def apply_plan(plan: Plan, u: np.ndarray) -> np.ndarray:
    for stage in plan.stages:
        u = apply_stage(stage, u)
    return plan.scale * u


def units(blocks: Blocks, dtype: np.dtype) -> np.ndarray:
    """Return a batch of unit vectors. In each array of the batch, one cell is 1 and the other cells are zero.

    If the dtype is complex, the batch also has the arrays in which one cell is 1j.
    """
    size = math.prod(blocks.shape)
    unit = np.eye(size).reshape(size, *blocks.shape)
    return np.concatenate([unit, 1j * unit]).astype(dtype) if np.dtype(dtype).kind == "c" else unit.astype(dtype)


def as_matrix(results: np.ndarray) -> np.ndarray:
    """Return the real matrix of a real-linear map, built from its results for `units`.

    In each column, the imaginary parts come after the real parts.
    """
    rows = np.asarray(results).reshape(len(results), -1)
    return (np.concatenate([rows.real, rows.imag], axis=1) if rows.dtype.kind == "c" else rows).T


def conjugated(matrix: np.ndarray, rows: np.dtype, columns: np.dtype) -> np.ndarray:
    """Return the matrix that conjugates complex inputs, applies `matrix`, and conjugates complex results."""

    def signs(size: int, dtype: np.dtype) -> np.ndarray:
        return np.repeat([1, -1], size // 2) if np.dtype(dtype).kind == "c" else np.ones(size)

    return signs(matrix.shape[0], rows)[:, None] * matrix * signs(matrix.shape[1], columns)


def true_subspace(blocks: Blocks, dtype: np.dtype) -> np.ndarray:
    """Return a vector in the order of `units`, with 1 for each cell of the field and 0 for padding.

    The blocks must have no halos.
    """
    mask = np.ones(blocks.shape)
    for axis in range(blocks.ndim):
        shape = [-1 if stored == axis else 1 for stored in blocks.order]
        mask = mask * (np.arange(blocks.shape[blocks.order.index(axis)]) < blocks.lengths[axis]).reshape(shape)
    return np.tile(mask.ravel(), 2 if np.dtype(dtype).kind == "c" else 1)
