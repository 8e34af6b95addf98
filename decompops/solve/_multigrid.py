"""`Multigrid`: an approximate inverse of `Diffusion`, made of coarser and coarser grids."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec
from jaxtyping import Inexact, Shaped

from .._common.byte_order import device_array
from .._common.check import check_count
from .._core.decomposition import Decomposition
from .._core.layout import check_global
from .._core.structure import Structure
from .._operator.derived import UNCHANGED, AbstractDerivable, Form
from .._operator.halo import HaloExchange
from .._operator.placed import Placed
from .._operator.unbound import OperatorDecomposition
from ..finite_volume import Diffusion
from ..finite_volume._cut import promoted, times
from ..finite_volume._network import Network, specs_of
from ._multigrid_transfer import Transfer, cut_of, gathered, paired


# Grids of at most this number of cells are solved by their dense inverse.
_DENSE = 216
# Grids of at most this number of cells are solved on every device: to send halos would take longer.
_WHOLE = 4096
# An axis is not coarsened while its cells are wider than the narrowest by more than this factor.
_WIDER = 1.5


class Level(eqx.Module):
    """One grid: its matrix, the inverse of the diagonal, and the transfers to the next coarser grid."""

    network: Network
    inverse_diagonal: Inexact[Array, "..."]
    transfers: tuple[Transfer, ...]


class Multigrid(AbstractDerivable):
    """One multigrid cycle: an approximate inverse of `finite_volume.Diffusion`, for conjugate gradients.

    Every grid is smoothed by a Chebyshev polynomial of the matrix before and after the correction from a coarser grid,
    whose cells are pairs of cells along each axis. Coarse coefficients and interpolation follow from the conductances
    between the cells, as in a network of resistors, so jumps of the coefficients do not slow the cycle down. Axes with
    wide cells are coarsened later than the others. The coarsest grids are whole on every device, and the last is
    solved exactly. Grids of any size are coarsened.

    As a matrix, the cycle is symmetric and positive. It is built from the diagonal of a tensor coefficient.

    !!! example

        ```python
        operator = finite_volume.Diffusion(dec, a, boundary="dirichlet")
        preconditioner = solve.Multigrid(operator)
        u = u + preconditioner(right - operator(u))       # one step of a stationary iteration
        ```

    Building it takes about as long as two applications of the cycle. It does not depend on right-hand sides, and has
    no derivatives by the coefficients: the solution of a converged method does not depend on its preconditioner.

    Source: U. Trottenberg, C. Oosterlee & A. Schüller, Multigrid, 2001, chapters 2 and 5; M. Adams, M. Brezina, J. Hu
    & R. Tuminaro, J. Comput. Phys. 188, 2003, for the smoother; P. Wesseling, SIAM J. Sci. Stat. Comput. 9, 1988, for
    cells and jumps.
    """

    decomposition: OperatorDecomposition
    start: tuple[Transfer, ...]  # From the grid of the fields to the first level: a small grid is gathered at once.
    levels: tuple[Level, ...]
    bottom: Inexact[Array, "cells cells"]
    degree: int = eqx.field(static=True)

    def __init__(self, operator: Diffusion, *, degree: int = 2):
        """**Arguments:**

        - `operator`: the operator to invert, with real coefficients.
        - `degree`: the degree of the polynomial that smooths before and after each coarse correction. A cycle costs
            about `2 * degree + 1` applications of the operator.

        **Raises:** `TypeError` if `operator` is not a `Diffusion` with real coefficients; `ValueError` if `degree` is
        below one.

        An instance `cycle` is called as `cycle(f)`.

        **Arguments of the call:** a real or complex field f of shape `(*batch, *shape)`.

        **Returns:** an approximate solution u of `operator(u) = f`, of the same shape. If constants are the null space
        of `operator`, the sum of f should be zero.
        """
        if not isinstance(operator, Diffusion):
            raise TypeError(f"`operator` must be a `finite_volume.Diffusion`; got {type(operator).__name__}.")
        if jnp.issubdtype(operator.network.faces[0].dtype, jnp.complexfloating):
            raise TypeError("`operator` must have real coefficients; got complex ones.")
        self.degree = check_count("degree", degree)
        self.decomposition = operator.decomposition
        arrays, static = eqx.partition(operator, eqx.is_array)
        operator = eqx.combine(jax.lax.stop_gradient(arrays), static)
        self.start, self.levels, self.bottom = _hierarchy(operator.network, operator.null_space is not None)

    @property
    def is_invertible(self) -> bool:
        return False

    @property
    def specs(self) -> "Multigrid":
        """The partition specs of the arrays: an argument of `jax.shard_map` that `local` is called in."""
        parts: list[tuple[Any, Decomposition]] = [(self.decomposition, self.decomposition)]
        parts += [(transfer, transfer.coarse) for transfer in self.start]
        for level in self.levels:
            dec = level.network.decomposition
            parts += [(level.network, dec), (level.inverse_diagonal, dec)]
            parts += [(transfer, transfer.coarse) for transfer in level.transfers]
        found = [spec for part, dec in parts for spec in jax.tree.leaves(specs_of(part, dec), is_leaf=_is_spec)]
        return jax.tree.unflatten(jax.tree.structure(self), [*found, PartitionSpec()])

    def structures(self, form: Form, given: Structure | None) -> tuple[Structure, Structure]:
        del form  # The matrix is real and symmetric.
        source, _ = HaloExchange(self.decomposition, 0).structures(UNCHANGED, given)
        return source, source

    def apply(self, x: Shaped[Array | np.ndarray, "*field"], form: Form, *, local: bool) -> Shaped[Array, "*result"]:
        del form  # The matrix is real and symmetric.
        x = device_array(x)
        if not local:
            check_global("x", self.decomposition.mesh_axes, "Call `.local(block)` instead")
        x = x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(self.bottom.dtype)
        return _cycle(self, x, True) if local else _in_program(self, Placed(self.decomposition)(x), False)


def _is_spec(x: Any) -> bool:
    return isinstance(x, PartitionSpec)


@eqx.filter_jit
def _hierarchy(
    network: Network, is_singular: bool
) -> tuple[tuple[Transfer, ...], tuple[Level, ...], Inexact[Array, "cells cells"]]:
    """Return the transfers to the first level, the levels, and the inverse of the matrix of the coarsest grid."""
    dec = network.decomposition
    known = dec.box is None or not any(isinstance(length, Array) for length in dec.box_lengths)
    widths = [float(h) for h in dec.spacing] if known else [1.0] * dec.ndim
    levels: list[Level] = []
    transfers: list[Transfer] = []  # From the last of `levels`, or from the grid of the fields.
    first: tuple[Transfer, ...] = ()
    while True:
        shape, blocks = network.decomposition.shape, network.decomposition.blocks()
        axes = [axis for axis, n in enumerate(shape) if n > 2 and blocks.core(axis) > 1]
        if blocks.mesh_axes and (math.prod(shape) <= max(_WHOLE, _DENSE) or not axes):
            network, transfer = gathered(network)
            transfers.append(transfer)
            continue
        if not levels:
            first = tuple(transfers)
        else:
            levels[-1] = Level(levels[-1].network, levels[-1].inverse_diagonal, tuple(transfers))
        if math.prod(shape) <= _DENSE or not axes:
            return first, tuple(levels), _dense_inverse(network, is_singular)
        cut = cut_of(network.decomposition, False)
        diagonal = network.diagonal(cut)
        inverse = jnp.where(diagonal == 0, 0, 1 / jnp.where(diagonal == 0, 1, diagonal))
        levels.append(Level(network, cut.merge(inverse), ()))
        transfers, narrowest = [], min(widths[axis] for axis in axes)
        for axis in axes:
            if widths[axis] <= _WIDER * narrowest:
                network, pairing = paired(network, axis)
                transfers.append(pairing)
                widths[axis] *= shape[axis] / network.decomposition.shape[axis]


def _dense_inverse(network: Network, is_singular: bool) -> Inexact[Array, "cells cells"]:
    """Return the inverse, or the pseudo-inverse, of the matrix of a small grid that is whole on every device."""
    shape, dtype = network.decomposition.shape, network.faces[0].dtype
    cells = math.prod(shape)
    matrix = network(jnp.eye(cells, dtype=dtype).reshape(cells, *shape)).reshape(cells, cells)
    constants = jnp.ones_like(matrix) / cells
    shift = jnp.trace(matrix) / cells
    if is_singular:
        matrix = matrix + shift * constants
    scale = jax.lax.rsqrt(jnp.diag(matrix))
    scales = scale[:, None] * scale[None, :]
    inverse = _inverse(matrix * scales) * scales
    inverse = (inverse + inverse.T) / 2
    return inverse - constants / shift if is_singular else inverse


def _inverse(matrix: Array) -> Array:
    """Return the inverse of a positive definite matrix with a unit diagonal, by Gauss–Jordan elimination.

    Such a matrix needs no pivots. `jnp.linalg.inv` refuses batches that are sharded over Explicit axes. On CPUs, its
    triangular solves start threads for each matrix of a batch, which takes many times as long as the elimination.
    """

    def eliminate(k: Array, m: Array) -> Array:
        unit = jax.nn.one_hot(k, len(m), dtype=m.dtype)
        row, column = unit @ m, m @ unit
        return m - (column - unit)[:, None] * (row + unit)[None, :] / (unit @ column)

    return jax.lax.fori_loop(0, len(matrix), eliminate, matrix)


def _cycle(multigrid: Multigrid, b: Array, local: bool) -> Array:
    b = b.astype(promoted(b, multigrid.bottom))
    for transfer in multigrid.start:
        b = transfer.restrict(b, local=local)
    u = _solved(multigrid, 0, b, local)
    for transfer in reversed(multigrid.start):
        u = transfer.prolong(u, local=local)
    return u


_in_program = eqx.filter_jit(_cycle)


def _solved(multigrid: Multigrid, number: int, b: Array, local: bool) -> Array:
    """Return the result of a cycle from level `number` on."""
    if number == len(multigrid.levels):
        inverse = multigrid.bottom.astype(b.dtype)
        lead = b.ndim - multigrid.decomposition.ndim
        return (b.reshape(*b.shape[:lead], -1) @ inverse).reshape(b.shape)
    level = multigrid.levels[number]
    u = _smoothed(level, b, multigrid.degree, local)
    r = b - level.network(u, local=local)
    for transfer in level.transfers:
        r = transfer.restrict(r, local=local)
    v = _solved(multigrid, number + 1, r, local)
    for transfer in reversed(level.transfers):
        v = transfer.prolong(v, local=local)
    u = u + v
    return u + _smoothed(level, b - level.network(u, local=local), multigrid.degree, local)


def _smoothed(level: Level, b: Array, degree: int, local: bool) -> Array:
    """Return the polynomial of Chebyshev iteration of `degree` times b."""
    network = level.network
    # The eigenvalues of the matrix over its diagonal lie between 0 and 2. A coarse grid cannot see the upper ones.
    least, most = 0.75 / len(network.faces), 2.0
    centre, radius = (most + least) / 2, (most - least) / 2
    scaled = lambda r, factor: times(factor * level.inverse_diagonal, r)
    change = scaled(b, 1 / centre)
    u, r, rho = change, b, radius / centre
    for _ in range(degree - 1):
        r = r - network(change, local=local)
        new = 1 / (2 * centre / radius - rho)
        change = new * rho * change + scaled(r, 2 * new / radius)
        u, rho = u + change, new
    return u
