"""`as_linear_operator`: an operator of this package as a lineax operator."""

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
    """Return `operator` as a lineax operator, so that `lineax.linear_solve` can solve systems with CG or GMRES.

    !!! example

        ```python
        symbol = lambda kx, ky, kz: 1 + kx**2
        A = spectral.as_linear_operator(spectral.SpectralOperator(fft, symbol), b, lx.positive_semidefinite_tag)
        u = lx.linear_solve(A, b, lx.CG(rtol=1e-6, atol=1e-6), throw=False).value
        ```

    `decompops.solve` has solvers without the following limits, and with null spaces. Take lineax for other methods.

    Some features of lineax do not work on sharded fields:

    - With `throw=True`, lineax checks the result. In gradients, lineax checks the result even with `throw=False`. The
        check gathers the result on one device, unless the environment variable `EQX_ON_ERROR` is `nan`. A failed check
        stops this device, and the other devices wait for it.
    - Dot products gather fields along the second mesh axis. On slabs (`axes="x"`), and for vectors of
        `Decomposition.ravel`, nothing is gathered.
    - lineax does not support Explicit meshes. On such a mesh, write a function of `b` that builds the operator and
        solves the system. Then call `jax.sharding.auto_axes(function, out_sharding=dec.sharding())(b)`.
    - If the mesh does not divide the grid, fields are padded. `operator` is zero in the padding and has no inverse
        there. So `b` must be zero in the padding; `dec.shard(array)` returns such a field. If you differentiate a loss
        of the solution, crop the solution before you compute the loss.

    **Arguments:**

    - `operator`: any linear operator of this package, or a composition of several.
    - `x`: a field that `operator` can be applied to, or a `jax.ShapeDtypeStruct` of such a field.
    - `tags`: known properties of `operator`, such as `lineax.symmetric_tag`. For an operator of `decompops.spectral`
        that is always symmetric, such as `Laplacian`, the function adds the tag itself if all points have equal
        quadrature weights.

    **Returns:** a `lineax.FunctionLinearOperator`.

    **Raises:** `ImportError` if lineax is not installed; `ValueError` or `TypeError` if `operator` cannot be applied
    to `x`.
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
    # In two dimensions, the matrix of a curl is not square. Between walls, a field and its curl have different boundary
    # conditions.
    if isinstance(operator, Curl) and operator.decomposition.ndim == 3 and not wall_axes(operator.fft):
        known[Curl] = lx.symmetric_tag
    given = tags if isinstance(tags, frozenset | set | tuple | list) else (tags,)
    if isinstance(operator, AbstractSpectral) and type(operator) in known and _has_equal_weights(operator.fft):
        given = (*given, known[type(operator)])
    return lx.FunctionLinearOperator(operator, jax.eval_shape(lambda x: x, x), frozenset(given))


def _has_equal_weights(fft: AbstractTransform) -> bool:
    """Whether all points have equal weights. A matrix that is symmetric for modes is then symmetric for points, too."""
    return all(np.ptp(basis.weights(n)) == 0 for basis, n in zip(fft.bases, check_fft(fft)))
