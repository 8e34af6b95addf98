"""`mean_square`: the mean of the square of a field, computed from its spectrum."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Inexact

from .._basis.base import AbstractBasis
from .._basis.short_lines import multiply
from .._common.blocks import axis_names
from .._common.host import device_array
from .._common.remember import in_one_program
from .._operator.planned import pad
from .._operator.transform import AbstractTransform
from .._plan.stage import inverted
from ._check import check_fft


def mean_square(fft: AbstractTransform, spectrum: Inexact[Array | np.ndarray, "*spectrum"]) -> Float[Array, "*batch"]:
    """Return the mean of |u|² over the volume for `u = fft.inverse(spectrum)`, by Parseval's theorem.

    The function does not compute u. Along an axis with the basis `Chebyshev`, u is a polynomial, and the mean is exact.
    Along other axes, it is the mean that `fft.volume_mean` computes: a point on a wall has half the weight of other
    points, and `Cells` count by their widths.

    A half spectrum must be the spectrum of a real field. Let z be the axis with half of the modes: the modes k and -k
    must be complex conjugates if kz is zero or the Nyquist wavenumber.

    **Arguments:**

    - `fft`: the transform, built with a `shape`.
    - `spectrum`: a spectrum of shape `(*batch, *modes)`, as `fft` returns it.

    **Returns:** a real array of shape `(*batch,)`.

    **Raises:** `TypeError` if `fft` is not a transform, or if `spectrum` is real and `fft` returns complex numbers;
    `ValueError` if `fft` has no `shape`, or if the shape of `spectrum` does not fit `fft`; `ValueError` if a basis is
    `Chebyshev` along an axis that is sharded in spectra, or an orthogonal series (`norm="ortho"`) with points on walls.
    """
    check_fft(fft)
    spectrum = device_array(spectrum, "spectrum")
    if fft.out_structure.kind == "complex" and not jnp.iscomplexobj(spectrum):
        raise TypeError(f"`spectrum` must be complex, as `fft` returns it; got {jnp.result_type(spectrum)}.")
    fft.out_layout.check(spectrum, "spectrum")
    return _mean_square(fft, pad(spectrum, fft.out_layout.blocks))


@in_one_program
def _mean_square(fft: AbstractTransform, spectrum: Array) -> Array:
    shape, layout = check_fft(fft), fft.out_layout
    factors, scale, product = [], 1.0, spectrum
    power = {"backward": 2, "ortho": 1, "forward": 0}[fft.norm]
    for axis, (basis, n, kept) in enumerate(zip(fft.bases, shape, fft.modes or shape)):
        basis = basis.orthogonalized() if fft.norm == "ortho" else basis
        if not basis.is_transformed:
            factors.append(basis.weights(n) * n)
            scale /= n
            continue
        _check_squares(fft, axis, basis)
        scale *= basis.inverse_scale(n) ** power
        overlaps = basis.overlaps(kept)
        if overlaps is None:
            factors.append(square_weights(basis, n, kept, nyquist=fft.nyquist))
        else:
            factors.append(np.ones(len(overlaps)))
            product = multiply(overlaps, product, layout.blocks.position(axis))
    squares = jnp.real(jnp.conj(spectrum) * product)
    # JAX's setting `jax_numpy_rank_promotion` may forbid a product of arrays of different ranks.
    weights = jax.lax.broadcast_to_rank(fft.separable(factors, dtype=squares.dtype), squares.ndim)
    return layout.sum(jnp.where(weights == 0, 0, weights * squares)) * scale


def _check_squares(fft: AbstractTransform, axis: int, basis: AbstractBasis) -> None:
    """Raise `ValueError` if `mean_square` cannot compute the mean along a transformed axis, whose basis is `basis`."""
    n, name = check_fft(fft)[axis], axis_names(fft.decomposition.ndim)[axis]
    instead = "For the field u, compute `fft.volume_mean(abs(u) ** 2)`."
    if basis.is_diagonal:
        if basis == basis.orthogonalized() and np.ptp(basis.weights(max(n, 3))):  # Two points may both be on walls.
            raise ValueError(
                f"`fft` must not have orthogonal weights along {name}, where they count points on walls like other "
                f'points; got {basis} and `norm="{fft.norm}"`. Use `norm="backward"` and a basis that is not '
                f"orthogonal. {instead}"
            )
    elif basis.overlaps(1) is None or fft.out_layout.blocks.names[axis] is not None:
        raise ValueError(
            f"`fft` must have a basis such as `Fourier` or `Cosine` along {name}, or `Chebyshev` along an axis that is "
            f"not sharded in spectra, such as the first; got {basis}. {instead}"
        )


def square_weights(basis: AbstractBasis, n: int, kept: int, *, nyquist: bool) -> np.ndarray:
    """Return the weights of the squares of the `kept` coefficients in the mean square of a field on `n` points.

    The weights equal `multiplicity`, except for a Nyquist mode of a grid of `kept` points. On the grid of the field,
    this mode is zero, or with `nyquist` two modes with half of its coefficient.
    """
    squares, counts = np.zeros(basis.stored(kept)), basis.multiplicity(n, n)
    for run in inverted(basis.truncation(n, kept, nyquist=nyquist)):
        squares[run.source : run.source + run.length] += run.factor**2 * counts[run.target : run.target + run.length]
    return squares
