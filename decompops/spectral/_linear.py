"""Operators as lineax sees them."""

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from .._operator.base import AbstractOperator
from .._operator.transform import AbstractTransform
from ._check import check_fft
from ._derivative import Curl, Laplacian
from ._filter import Dealias, GaussianFilter
from ._modes import AbstractSpectral, wall_axes
from ._solve import LerayProjection, Poisson


if TYPE_CHECKING:
    import lineax as lx


def as_linear_operator(operator: AbstractOperator, x: Any, tags: Any = ()) -> "lx.FunctionLinearOperator":
    """`operator` as a lineax operator, so that `lineax.linear_solve` solves systems with it, by CG or GMRES.

    !!! example

        ```python
        symbol = lambda kx, ky, kz: 1 + kx**2
        A = as_linear_operator(SpectralOperator(fft, symbol), b, lx.positive_semidefinite_tag)
        u = lx.linear_solve(A, b, lx.CG(rtol=1e-6, atol=1e-6), throw=False).value
        ```

    Some features of lineax do not work on sharded fields:

    - With `throw=True`, and in gradients whatever `throw` is, its check of the result gathers it on one device, unless
        the environment says `EQX_ON_ERROR=nan`. A check that fails stops one device while the others wait for it.
    - Its dot products gather fields along the second mesh axis; on slabs (`axes="x"`) they do not.
    - It does not know Explicit meshes. There, make the operator and solve in a function of `b`, and call
        `jax.sharding.auto_axes(function, out_sharding=dec.sharding())(b)`.
    - In the padding of fields (where the mesh does not divide the grid) `operator` is zero and has no inverse. So `b`
        must be zero there, as `dec.shard(array)` is, and the solution is cropped before a loss of it is differentiated.

    **Arguments:**

    - `operator`: any linear operator of this package, or a composition of several.
    - `x`: a field of the kind that it is applied to, or a `jax.ShapeDtypeStruct` of one.
    - `tags`: what is known of it, such as `lineax.symmetric_tag`. Of the operators of `decompops.spectral` that are
        symmetric for all arguments, lineax is told by itself.

    **Raises:** `ImportError` without lineax; `ValueError` or `TypeError` if `operator` cannot be applied to `x`.
    """
    try:
        import lineax as lx
    except ImportError as error:
        raise ImportError("`as_linear_operator` needs lineax: pip install lineax.") from error
    known = {
        Dealias: lx.positive_semidefinite_tag,
        GaussianFilter: lx.positive_semidefinite_tag,
        Laplacian: lx.negative_semidefinite_tag,
        LerayProjection: lx.positive_semidefinite_tag,
        Poisson: lx.negative_semidefinite_tag,
    }
    # In two dimensions a curl is not square, and between walls it maps fields of one kind to another.
    if isinstance(operator, Curl) and operator.decomposition.ndim == 3 and not wall_axes(operator.fft):
        known[Curl] = lx.symmetric_tag
    given = tags if isinstance(tags, frozenset | set | tuple | list) else (tags,)
    if isinstance(operator, AbstractSpectral) and type(operator) in known and _has_equal_weights(operator.fft):
        given = (*given, known[type(operator)])
    return lx.FunctionLinearOperator(operator, jax.eval_shape(lambda x: x, x), frozenset(given))


def _has_equal_weights(fft: AbstractTransform) -> bool:
    """Whether all points count alike, so that a matrix which is symmetric between modes is so between points."""
    return all(np.ptp(basis.weights(n)) == 0 for basis, n in zip(fft.bases, check_fft(fft)))
