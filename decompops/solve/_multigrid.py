"""`Multigrid`: an approximate inverse of `Diffusion`, made of coarser and coarser grids."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.sharding import PartitionSpec
from jaxtyping import Float, Inexact, Shaped

from .._common.check import as_number, as_tuples, check_choice, check_count
from .._common.host import device_array
from .._common.typed import zeros_like
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
    between the cells, as in a network of resistors, so jumps of the coefficients do not slow the cycle down. Axes along
    which cells are wide, or the coefficient is small, are coarsened later than the others. The coarsest grids are whole
    on every device, and the last is solved exactly. Grids of any size are coarsened.

    As a matrix, a V-cycle is symmetric and positive. It is built from the diagonal of a tensor coefficient.

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
    cycle: Literal["V", "W"] = eqx.field(static=True)

    def __init__(
        self,
        operator: Diffusion,
        *,
        degree: int = 2,
        cycle: Literal["V", "W"] = "V",
        anisotropy: Any = None,
    ):
        """**Arguments:**

        - `operator`: the operator to invert, with real coefficients.
        - `degree`: the degree of the polynomial that smooths before and after each coarse correction. A cycle costs
            about `2 * degree + 1` applications of the operator.
        - `cycle`: "V" visits each coarse grid once; "W" visits it twice for each visit of the next finer grid. Both are
            symmetric. "W" can take fewer steps where a jumps, but may be indefinite for random coefficients.
        - `anisotropy`: for each axis, the typical size of a along it, relative to the other axes, such as
            `(1, 1, 1000)`. It decides which axes are coarsened first. `None` to measure it. Inside of `jax.jit`, where
            it cannot be measured, `None` stands for equal sizes.

        **Raises:** `TypeError` if `operator` is not a `Diffusion` with real coefficients; `ValueError` if `degree` is
        below one, for another `cycle`, and if `anisotropy` is not one positive number for each axis.

        An instance `cycle` is called as `cycle(f)`.

        **Arguments of the call:** a real or complex field f of shape `(*batch, *shape)`.

        **Returns:** an approximate solution u of `operator(u) = f`, of the same shape. If constants are the null space
        of `operator`, the sum of f should be zero.
        """
        if not isinstance(operator, Diffusion):
            raise TypeError(f"`operator` must be a `finite_volume.Diffusion`; got {type(operator).__name__}.")
        if any(map(jnp.iscomplexobj, jax.tree.leaves(operator.network))):
            raise TypeError("`operator` must have real coefficients; got complex ones.")
        self.degree = check_count("degree", degree)
        self.cycle = check_choice("cycle", cycle, ("V", "W"))
        if anisotropy is not None:
            anisotropy = _as_anisotropy(anisotropy, operator.decomposition.ndim)
        self.decomposition = operator.decomposition
        arrays, static = eqx.partition(operator, eqx.is_array)
        operator = eqx.combine(jax.lax.stop_gradient(arrays), static)
        widths = _widths(operator.network, anisotropy)
        self.start, self.levels, self.bottom = _hierarchy(operator.network, widths)

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


def _as_anisotropy(anisotropy: Any, ndim: int) -> tuple[float, ...]:
    several = as_tuples(anisotropy)
    numbers = tuple(map(as_number, several)) if isinstance(several, tuple) else ()
    if len(numbers) != ndim or not all(isinstance(a, int | float) and 0 < a < math.inf for a in numbers):
        raise ValueError(f"`anisotropy` must be {ndim} positive numbers, one for each axis; got {anisotropy!r}.")
    return tuple(map(float, numbers))


def _widths(network: Network, anisotropy: Sequence[int | float] | None) -> tuple[float, ...]:
    """Return the width of a cell along each axis, relative to the smallest, rounded to a power of two.

    A width counts relative to the square root of the coefficient. Rounded widths, which are static, do not change with
    every coefficient.
    """
    dec = network.decomposition
    shares = None if anisotropy is not None or isinstance(network.faces[0], Tracer) else np.asarray(_shares(network))
    if shares is not None and np.all(shares > 0):
        widths = [1 / math.sqrt(share) for share in shares]
    else:
        known = dec.box is None or not any(isinstance(length, Array) for length in dec.box_lengths)
        lengths = [float(h) for h in dec.spacing] if known else [1.0] * dec.ndim
        widths = [h / math.sqrt(a) for h, a in zip(lengths, anisotropy or [1.0] * dec.ndim)]
    return tuple(2.0 ** round(math.log2(width / min(widths))) for width in widths)


@eqx.filter_jit
def _shares(network: Network) -> Float[Array, "ndim"]:
    """Return the mean share of the conductances along each axis in the conductances of a cell."""
    cut = cut_of(network.decomposition, False)
    sums = [lower + upper for lower, upper in network.pairs(cut)]
    total = sum(sums[1:], sums[0])
    inverse = cut.clear(_reciprocal(total))
    return network.decomposition.mean(jnp.stack([cut.merge(own * inverse) for own in sums]))


@eqx.filter_jit
def _hierarchy(
    network: Network, static_widths: tuple[float, ...]
) -> tuple[tuple[Transfer, ...], tuple[Level, ...], Inexact[Array, "cells cells"]]:
    """Return the transfers to the first level, the levels, and the inverse of the matrix of the coarsest grid."""
    widths = list(static_widths)
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
            return first, tuple(levels), _dense_inverse(network)
        cut = cut_of(network.decomposition, False)
        levels.append(Level(network, cut.merge(_reciprocal(network.diagonal(cut))), ()))
        transfers, narrowest = [], min(widths[axis] for axis in axes)
        for axis in axes:
            if widths[axis] <= _WIDER * narrowest:
                network, pairing = paired(network, axis)
                transfers.append(pairing)
                widths[axis] *= shape[axis] / network.decomposition.shape[axis]


def _dense_inverse(network: Network) -> Inexact[Array, "cells cells"]:
    """Return an inverse of the matrix of a small grid that is whole on every device.

    Cells are eliminated one by one. A resistor network remains: each two neighbours of an eliminated cell are connected
    by a new conductance. Nothing is subtracted, so rounding errors are small for any ratio of conductances, and the
    last cell of a part without walls or reaction has exactly nothing left to conduct to: its value is set to zero.
    `jnp.linalg.inv` would refuse batches that are sharded over Explicit axes.

    Source: W. Grassmann, M. Taksar & D. Heyman, Oper. Res. 33, 1985, for elimination without subtractions.
    """
    shape, dtype = network.decomposition.shape, network.faces[0].dtype
    cells = math.prod(shape)
    number = jnp.arange(cells)
    before = number[None, :] < number[:, None]

    def eliminate(k: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        # Columns behind k hold conductances, the others the triangular factor of the inverse, without its diagonal.
        # `totals` are the conductances to walls, and, for the cells up to k, all that were left.
        matrix, totals = carry
        here, later = number == k, number > k
        row, total = _product(here.astype(dtype), matrix), _product(here.astype(dtype), totals)
        rest = jnp.where(later, row, 0)
        share = rest * _reciprocal(total + jnp.sum(rest))
        matrix = jnp.where(here[None, :] & later[:, None], share[:, None], matrix + share[:, None] * row[None, :])
        return matrix, jnp.where(here, total + jnp.sum(rest), totals + share * total)

    matrix = -network(jnp.eye(cells, dtype=dtype).reshape(cells, *shape)).reshape(cells, cells)
    leaks = network(jnp.ones(shape, dtype)).reshape(cells)
    matrix, totals = jax.lax.fori_loop(0, cells, eliminate, (matrix, leaks))
    factor = jnp.where(before, matrix, jnp.eye(cells, dtype=dtype))
    return _product(factor.T, _reciprocal(totals)[:, None] * factor)


def _product(a: Array, b: Array) -> Array:
    """Return a matrix product in full precision. By default, GPUs round float32 factors to 11 bits."""
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def _reciprocal(x: Array) -> Array:
    """Return 1 / x, and 0 where x is zero."""
    return jnp.where(x == 0, 0, 1 / jnp.where(x == 0, 1, x))


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
        return _product(b.reshape(*b.shape[:lead], len(inverse)), inverse).reshape(b.shape)
    level = multigrid.levels[number]
    first, later = _chebyshev(len(level.network.faces), multigrid.degree)
    # Cells that nothing is connected to stay zero.
    is_connected = (level.inverse_diagonal != 0).astype(level.inverse_diagonal.dtype)
    change = times(first * level.inverse_diagonal, b)
    u, r = _smoothed(level, change, b, change, [*later, (0.0, 0.0)], local)
    coarse = times(is_connected, r)
    for transfer in level.transfers:
        coarse = transfer.restrict(coarse, local=local)
    change = _corrected(multigrid, number + 1, coarse, local)
    for transfer in reversed(level.transfers):
        change = transfer.prolong(change, local=local)
    change = times(is_connected, change)
    u, _ = _smoothed(level, u + change, r, change, [(0.0, first), *later], local)
    return u


def _corrected(multigrid: Multigrid, number: int, b: Array, local: bool) -> Array:
    """Return the result of one cycle from level `number` on, or of two for a W-cycle."""
    if multigrid.cycle == "V" or number == len(multigrid.levels):
        return _solved(multigrid, number, b, local)

    def step(carry: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
        u, r = carry
        change = _solved(multigrid, number, r, local)
        return (u + change, r - multigrid.levels[number].network(change, local=local)), None

    return jax.lax.scan(step, (zeros_like(b), b), length=2)[0][0]


def _smoothed(
    level: Level, u: Array, r: Array, change: Array, steps: list[tuple[float, float]], local: bool
) -> tuple[Array, Array]:
    """Return u after steps of Chebyshev iteration, and the residual before the last one.

    `change` is the last change of u, and r the residual before this change. A step has the factors of the last change
    and of the residual. The steps are a loop, which compiles faster than copies of its body.
    """

    def step(carry: tuple[Array, Array, Array], factors: Array) -> tuple[tuple[Array, Array, Array], None]:
        u, r, change = carry
        r = r - level.network(change, local=local)
        change = times(factors[0], change) + times(factors[1] * level.inverse_diagonal, r)
        return (u + change, r, change), None

    (u, r, _), _ = jax.lax.scan(step, (u, r, change), jnp.asarray(steps, level.inverse_diagonal.dtype))
    return u, r


def _chebyshev(ndim: int, degree: int) -> tuple[float, list[tuple[float, float]]]:
    """Return the factor of the first residual, and the factors of the last change and of the residual in later steps.

    The eigenvalues of the matrix over its diagonal lie between 0 and 2. A coarse grid cannot see the upper ones.
    """
    least, most = 0.75 / ndim, 2.0
    centre, radius = (most + least) / 2, (most - least) / 2
    rho, steps = radius / centre, []
    for _ in range(degree - 1):
        new = 1 / (2 * centre / radius - rho)
        steps.append((new * rho, 2 * new / radius))
        rho = new
    return 1 / centre, steps
