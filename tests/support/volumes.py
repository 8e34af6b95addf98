"""Matrices of finite-volume operators, assembled face by face and corner by corner with NumPy."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np


def diffusion_matrix(
    a: Any, c: Any, lengths: Sequence[float], boundary: Sequence, widths: Sequence[np.ndarray | None] | None = None
) -> np.ndarray:
    """Return the dense matrix of `-div(a grad u) + c u`, times the volumes of the cells over their mean.

    `boundary` has "periodic" or a pair for each axis; a number in a pair is the coefficient of a Robin condition. `a`
    is a field, or a diagonal `(ndim, *shape)`, or a tensor `(ndim, ndim, *shape)`.
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
        matrix[me, me] += volume * (c[cell] if np.ndim(c) else c)
        for axis in range(ndim):
            own = a if a.ndim == ndim else a[axis] if not is_tensor else a[axis, axis]
            w, area = cells[axis], volume / cells[axis][cell[axis]]
            for wall, step in ((0, -1), (1, 1)):
                other = list(cell)
                other[axis] += step
                if 0 <= other[axis] < shape[axis] or boundary[axis] == "periodic":
                    other[axis] %= shape[axis]
                    mine, theirs = w[cell[axis]] / 2, w[other[axis]] / 2
                    if is_tensor:
                        weighted = mine * own[cell] + theirs * own[tuple(other)]
                        conductance = area * weighted / (mine + theirs) ** 2
                    else:
                        conductance = area / (mine / own[cell] + theirs / own[tuple(other)])
                    matrix[me, me] += conductance
                    matrix[me, index[tuple(other)]] -= conductance
                elif (kind := boundary[axis][wall]) != "neumann":
                    resistance = w[cell[axis]] / 2 / own[cell] + (0 if kind == "dirichlet" else 1 / kind)
                    matrix[me, me] += area / resistance
    if is_tensor:
        matrix += mixed(a, cells, boundary, index, mean)
    return matrix


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
