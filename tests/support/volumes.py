"""Matrices of finite-volume operators, assembled face by face and corner by corner with NumPy."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np


def diffusion_matrix(
    a: Any,
    c: Any,
    lengths: Sequence[float],
    boundary: Sequence,
    widths: Sequence[np.ndarray | None] | None = None,
    *,
    openings: Sequence[np.ndarray] | None = None,
    distance: np.ndarray | None = None,
) -> np.ndarray:
    """Return the dense matrix of `-div(a grad u) + c u`, times the volumes of the cells over their mean.

    `boundary` has "periodic" or a pair for each axis; a number in a pair is the coefficient of a Robin condition. `a`
    is a field, or a diagonal `(ndim, *shape)`, or a tensor `(ndim, ndim, *shape)`. A body is given by `openings`, the
    open fractions of faces and cells, or, with a value on its surface, by its signed `distance`.
    """
    ndim = len(lengths)
    shape = a.shape[-ndim:]
    cells = widths_of(shape, lengths, widths)
    mean = np.prod([length / n for length, n in zip(lengths, shape)])
    index = np.arange(np.prod(shape)).reshape(shape)
    matrix = np.zeros((index.size, index.size), np.result_type(a, c, float))
    is_tensor = a.ndim == ndim + 2
    for cell in np.ndindex(*shape):
        me = index[cell]
        volume = np.prod([w[i] for w, i in zip(cells, cell)]) / mean
        if distance is not None and distance[cell] <= 0:
            continue
        matrix[me, me] += volume * (c[cell] if np.ndim(c) else c) * (openings[ndim][cell] if openings else 1)
        for axis in range(ndim):
            own = a if a.ndim == ndim else a[axis] if not is_tensor else a[axis, axis]
            w, area = cells[axis], volume / cells[axis][cell[axis]]
            for wall, step in ((0, -1), (1, 1)):
                other = list(cell)
                other[axis] += step
                face = tuple(i + (wall if k == axis else 0) for k, i in enumerate(cell))
                factor = openings[axis][face] if openings else 1.0
                if 0 <= other[axis] < shape[axis] or boundary[axis] == "periodic":
                    other[axis] %= shape[axis]
                    mine, theirs = w[cell[axis]] / 2, w[other[axis]] / 2
                    if is_tensor:
                        weighted = mine * own[cell] + theirs * own[tuple(other)]
                        conductance = area * weighted / (mine + theirs) ** 2
                    else:
                        conductance = area / (mine / own[cell] + theirs / own[tuple(other)])
                    if distance is not None and (beyond := distance[tuple(other)]) <= 0:
                        part = max(distance[cell] / (distance[cell] - beyond), 1e-3)
                        matrix[me, me] += area * own[cell] / (part * (mine + theirs))
                        continue
                    matrix[me, me] += factor * conductance
                    matrix[me, index[tuple(other)]] -= factor * conductance
                elif (kind := boundary[axis][wall]) != "neumann":
                    resistance = w[cell[axis]] / 2 / own[cell] + (0 if kind == "dirichlet" else 1 / kind)
                    matrix[me, me] += factor * area / resistance
    if is_tensor:
        matrix += mixed(a, cells, boundary, index, mean)
    return matrix


def open_fractions(corners: np.ndarray) -> list[np.ndarray]:
    """Return the fractions of the faces across each axis, and of the cells, with positive values at the corners.

    Boxes are split into simplices along paths from the first to the last corner. The fraction of a simplex in which a
    linear function is positive is the divided difference of a truncated power of its values at the vertices.
    """
    ndim, found = corners.ndim, []
    for axes in [*([i for i in range(ndim) if i != axis] for axis in range(ndim)), list(range(ndim))]:
        shape = tuple(n - (axis in axes) for axis, n in enumerate(corners.shape))
        fractions = np.zeros(shape)
        for box in np.ndindex(*shape):
            for path in itertools.permutations(axes):
                steps = [[int(axis in path[:k]) for axis in range(ndim)] for k in range(len(path) + 1)]
                values = [corners[tuple(np.add(box, step))] for step in steps]
                if max(values) <= 0:
                    continue
                fraction = 1.0
                if min(values) < 0:
                    powers = [
                        max(v, 0) ** (len(values) - 1) / np.prod([v - w for j, w in enumerate(values) if j != i])
                        for i, v in enumerate(values)
                    ]
                    fraction = np.sum(powers)
                fractions[box] += fraction / math.factorial(len(path))
        found.append(fractions)
    return found


def mixed(a: np.ndarray, cells: list[np.ndarray], boundary: Sequence, index: np.ndarray, mean: float) -> np.ndarray:
    """Return the second derivatives of the energy of the mixed entries: means over the corners of each cell."""
    ndim, size = index.ndim, index.size
    matrix = np.zeros((size, size), a.dtype)
    for cell in np.ndindex(*index.shape):
        volume = np.prod([w[i] for w, i in zip(cells, cell)]) / mean

        def slope(axis: int, step: int, cell=cell) -> np.ndarray:
            row, w, other = np.zeros(size), cells[axis], list(cell)
            other[axis] += step
            if 0 <= other[axis] < index.shape[axis] or boundary[axis] == "periodic":
                other[axis] %= index.shape[axis]
                distance = (w[cell[axis]] + w[other[axis]]) / 2
                row[index[tuple(other)]] += step / distance
                row[index[cell]] -= step / distance
            elif boundary[axis][(step + 1) // 2] == "dirichlet":
                row[index[cell]] -= step / (w[cell[axis]] / 2)
            return row

        for signs in itertools.product((-1, 1), repeat=ndim):
            slopes = [slope(axis, step) for axis, step in enumerate(signs)]
            for i, j in itertools.permutations(range(ndim), 2):
                matrix += volume / 2**ndim * a[(i, j, *cell)] * np.outer(slopes[i], slopes[j])
    return matrix


def widths_of(shape, lengths, widths) -> list[np.ndarray]:
    each = widths or [None] * len(shape)
    return [
        np.full(n, length / n) if w is None else np.asarray(w) / np.sum(w) * length
        for n, length, w in zip(shape, lengths, each)
    ]
