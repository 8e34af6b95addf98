"""Power spectra and mean squares."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.sharding import PartitionSpec
from jaxtyping import Float, Inexact, Shaped

from .._basis.base import AbstractBasis
from .._basis.cosine import AbstractSeries
from .._basis.fourier import Fourier
from .._basis.points import Points
from .._basis.short_lines import multiply
from .._common import compat
from .._common.blocks import Blocks, axis_names, entry_names
from .._common.box import Box
from .._common.byte_order import device_array
from .._common.remember import in_one_program
from .._common.sharding import map_blocks
from .._common.typed import batch_in_type
from .._core.decomposition import Decomposition
from .._core.layout import check_global
from .._operator.planned import pad
from .._operator.transform import AbstractTransform
from .._plan.stage import inverted
from . import _vector
from ._check import check_fft, of_transformed
from ._modes import inner_transform


class PowerSpectrum(NamedTuple):
    """A power spectrum: averages over shells of |k|.

    - `k`: the mean |k| of the modes in each shell, in radians per unit of length, of shape `(bins,)`.
    - `power`: the mean power of the modes in each shell, of shape `(*batch, bins)`; zero for shells without modes.
    - `modes`: the number of modes of the full spectrum in each shell, of shape `(bins,)`.
    """

    k: Array
    power: Array
    modes: Array


def power_spectrum(
    fft: AbstractTransform, u: Shaped[Array | np.ndarray, "*field"], *, edges: Any = None
) -> PowerSpectrum:
    """Return the power spectrum of fields: `V |û(k)|² / N²`, averaged over shells of |k|.

    V is the volume of the box (the area in two dimensions), N is the number of points, and û is the unscaled discrete
    Fourier transform, `norm="backward"`. In three dimensions, the integral of the power spectrum over d³k / (2π)³ is
    the mean of |u|²; the power spectrum is an estimate of P(k) in the convention of cosmology. V and N include only the
    axes that `fft` transforms. The result is averaged over the other axes, with the quadrature weights of their bases.

    Between walls, where the basis is `Cosine` or `Sine`, the field continues beyond the walls like its cosines or
    sines. V and N belong to the continued field, which is twice as long, and the integral is again the mean of |u|²
    over the volume, as `fft.volume_mean` computes it. All components of u are expanded in the bases of `fft`. Fields
    with the basis `Chebyshev` have spectra along the periodic axes only: see `plane_spectra`.

    **Arguments:**

    - `fft`: the transform, built with a `shape`; with `real=True` for real fields.
    - `u`: fields, such as `(*batch, nx, ny, nz)`.
    - `edges`: the bounds of the shells, in increasing order, in radians per unit of length. A mode belongs to a shell
        if `lower <= |k| < upper`. By default, the shells are centred on the multiples of the smallest wavenumber of the
        box, up to the smallest Nyquist wavenumber.

    **Returns:** a `PowerSpectrum`. Modes that `fft` does not keep belong to no shell.

    **Raises:** `TypeError` if `fft` is not a transform; `ValueError` if `fft` has no `shape`, if one of its bases is
    `Chebyshev` or an orthogonal series, or if `edges` do not increase or are traced.
    """
    check_fft(fft)
    check_global("u", fft.decomposition.mesh_axes, "Call this function outside of the `shard_map`")
    for axis, name in enumerate(axis_names(fft.decomposition.ndim)):
        basis = fft.bases[axis]
        if not basis.is_diagonal:
            raise ValueError(
                f"`fft` must have bases whose modes each have one wavenumber, such as `Fourier` or `Cosine`; got "
                f"{basis} along {name}. For the spectrum in each plane parallel to the walls, call `plane_spectra`."
            )
        if isinstance(basis, AbstractSeries) and basis.orthogonal:
            raise ValueError(
                f"`fft` must have bases without orthogonal weights; got {basis} along {name}. Use "
                f"`{type(basis).__name__}({basis.type})`."
            )
    fft = inner_transform(fft.replace(norm="backward", nyquist=False))
    return _power_spectrum(fft, device_array(u), _edges(fft, edges))


def plane_spectra(
    fft: AbstractTransform, u: Shaped[Array | np.ndarray, "*field"], *, edges: Any = None
) -> PowerSpectrum:
    """Return the power spectrum in each plane parallel to the walls: see `power_spectrum`.

    All axes except one must be periodic. The other axis may have any basis, such as `Chebyshev`, `Cells`, `Cosine` or
    `Points`. Each of its points has a plane, and each plane has a spectrum along the periodic axes. V and N include
    only these axes. The integral of a spectrum is the mean of |u|² over its plane.

    !!! example

        ```python
        basis = dops.Chebyshev()
        bases = (basis, dops.Fourier(), dops.Fourier(half=True))
        fft = dops.Transform(mesh, shape=u.shape, bases=bases, box=dops.Box((2.0, 6.0, 3.0)))
        spectra = spectral.plane_spectra(fft, u)  # power of shape (nx, bins)
        heights = 2 * basis.points(u.shape[0])
        near_the_wall = spectra.power[np.abs(heights - 0.1).argmin()]
        over_the_volume = basis.weights(u.shape[0]) @ spectra.power
        ```

    **Arguments:**

    - `fft`: the transform, built with a `shape`, such as the transform of a `pde.Channel`.
    - `u`: fields, such as `(*batch, nx, ny, nz)`.
    - `edges`: the bounds of the shells of |k|, as for `power_spectrum`; k has components along the periodic axes only.

    **Returns:** a `PowerSpectrum`, whose `power` has the shape `(*batch, n, bins)` for n planes. `modes` counts the
    modes of one plane.

    **Raises:** the errors of `power_spectrum`; `ValueError` unless all axes except one are periodic.
    """
    shape = check_fft(fft)
    check_global("u", fft.decomposition.mesh_axes, "Call this function outside of the `shard_map`")
    walls = [axis for axis, basis in enumerate(fft.bases) if not isinstance(basis, Fourier)]
    if len(walls) != 1 or len(shape) == 1:
        raise ValueError(
            f"`fft` must have one axis that is not periodic, and one or more with the basis `Fourier`; got the bases "
            f"{fft.bases}. For the spectrum along all axes, call `power_spectrum`."
        )
    (across,) = walls
    options: dict[str, Any] = {"norm": "backward", "nyquist": False, "axis_contiguous": False}
    if fft.bases[across].is_transformed:
        options["bases"] = _replaced(fft.bases, across, Points())
        options["modes"] = fft.modes and _replaced(fft.modes, across, shape[across])
    fft = fft.replace(**options)
    return _power_spectrum(fft, device_array(u), _edges(fft, edges), across)


def _replaced(values: tuple, place: int, value: Any) -> tuple:
    return (*values[:place], value, *values[place + 1 :])


@eqx.filter_jit
def _power_spectrum(
    fft: AbstractTransform, u: Array, bounds: tuple[float, ...], across: int | None = None
) -> PowerSpectrum:
    """Return the power spectrum; with `across`, one spectrum for each point along this axis instead of the mean."""
    spectrum, shells, blocks = fft(u), len(bounds) - 1, fft.out_layout.blocks
    squared = spectrum.real**2 + spectrum.imag**2
    dtype, ndim, shape, result = squared.dtype, blocks.ndim, check_fft(fft), ("s",) if across is None else ("p", "s")
    counts = [
        _squares(basis, n, kept, nyquist=False) if basis.is_transformed else basis.weights(n) * n
        for basis, n, kept in zip(fft.bases, shape, fft.modes or shape)
    ]
    if across is not None:
        counts[across] = np.ones(shape[across])

    @compat.saving_nothing
    def sums(squared: Array) -> tuple[Array, Array, Array]:
        """Return three sums over the modes of each shell: of the power, of |k|, and of one (the number of modes)."""
        k = _vector.length(fft.wavenumbers(dtype=dtype))
        weights = jnp.broadcast_to(fft.separable(counts, dtype=dtype), k.shape)
        shell = compat.count_up_to(bounds, k)  # Modes outside of all shells have the number 0 or `shells + 1`.

        @functools.partial(jnp.vectorize, signature=f"({','.join(axis_names(ndim))})->({','.join(result)})")
        def over_shells(values: Array) -> Array:
            # Each plane is summed separately, and then the sums of the planes are added, because short sums lose little
            # precision.
            planes = (values, shell) if ndim > 1 else (values[None], shell[None])
            if across is not None:
                planes = tuple(jnp.moveaxis(array, blocks.position(across), 0) for array in planes)
            sums = jax.vmap(lambda v, i: jnp.zeros(shells + 2, dtype).at[i].add(v))(*planes)[:, 1:-1]
            if across is None:
                return jax.lax.psum(jnp.sum(sums, 0), fft.decomposition.mesh_axes)
            first = first_cell(blocks, across)
            whole = jnp.zeros((blocks.shape[blocks.position(across)], shells), dtype)
            whole = jax.lax.dynamic_update_slice_in_dim(whole, sums, first, 0)
            return jax.lax.psum(whole, fft.decomposition.mesh_axes)[: shape[across]]

        return over_shells(_vector.times(weights, squared)), over_shells(weights * k), over_shells(weights)

    batch, one = batch_in_type(squared, ndim), PartitionSpec()
    specs = PartitionSpec(*batch, *fft.out_spec), (PartitionSpec(*batch, *[None] * len(result)), one, one)
    power, k, modes = over_grid(fft.decomposition, sums, squared, *specs, batch)
    if across is not None:
        k, modes = k[0], modes[0]  # All planes have the same modes.
    mean = 1 / jnp.maximum(modes, 1)
    # Modes have the distance `step` along an axis of length one. So a field that continues beyond its walls repeats
    # itself at the distance `2π / step`.
    along = zip(of_transformed(fft, fft.bases), of_transformed(fft, shape))
    scale = math.prod(basis.inverse_scale(n) ** 2 * 2 * math.pi / _step(basis, n) for basis, n in along)
    volume = transformed_box(fft).volume
    return PowerSpectrum(k * mean, _vector.times(mean, power) * jnp.asarray(volume * scale, dtype), modes)


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
    if fft.out_structure.kind == "complex" and not jnp.iscomplexobj(spectrum):
        raise TypeError(f"`spectrum` must be complex, as `fft` returns it; got {jnp.result_type(spectrum)}.")
    fft.out_layout.check(spectrum, "spectrum")
    return _mean_square(fft, pad(device_array(spectrum), fft.out_layout.blocks))


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
            factors.append(_squares(basis, n, kept, nyquist=fft.nyquist))
        else:
            factors.append(np.ones(len(overlaps)))
            product = multiply(overlaps, product, layout.blocks.position(axis))
    squares = jnp.real(jnp.conj(spectrum) * product)
    # JAX's setting `jax_numpy_rank_promotion` may forbid a product of arrays of different ranks.
    weights = jax.lax.broadcast_to_rank(fft.separable(factors, dtype=squares.dtype), squares.ndim)
    return jnp.sum(jnp.where(weights == 0, 0, weights * squares), tuple(range(-len(shape), 0))) * scale


def _check_squares(fft: AbstractTransform, axis: int, basis: AbstractBasis) -> None:
    """Raise `ValueError` if `mean_square` cannot compute the mean along a transformed axis, whose basis is `basis`."""
    n, name = check_fft(fft)[axis], axis_names(fft.decomposition.ndim)[axis]
    instead = "For the field u, compute `fft.volume_mean(abs(u) ** 2)`."
    if basis.is_diagonal:
        if basis == basis.orthogonalized() and np.ptp(basis.weights(n)):
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


def _squares(basis: AbstractBasis, n: int, kept: int, *, nyquist: bool) -> np.ndarray:
    """Return the weights of the squares of the `kept` coefficients in the mean square of a field on `n` points.

    The weights equal `multiplicity`, except for a Nyquist mode of a grid of `kept` points. On the grid of the field,
    this mode is zero, or with `nyquist` two modes with half of its coefficient.
    """
    squares, counts = np.zeros(basis.stored(kept)), basis.multiplicity(n, n)
    for run in inverted(basis.truncation(n, kept, nyquist=nyquist)):
        squares[run.source : run.source + run.length] += run.factor**2 * counts[run.target : run.target + run.length]
    return squares


def _step(basis: AbstractBasis, n: int) -> float:
    """Return the distance between the wavenumbers of neighbouring modes on an axis of length one."""
    waves = np.unique(np.abs(basis.wavenumbers(n)))
    return float(waves[1] - waves[0]) if len(waves) > 1 else 2 * math.pi


def _edges(fft: AbstractTransform, edges: Any) -> tuple[float, ...]:
    if edges is not None:
        try:
            bounds = np.asarray(edges, float)
        except (TypeError, ValueError):  # Traced edges raise a `TypeError`.
            bounds = np.zeros(0)
        if bounds.ndim != 1 or len(bounds) < 2 or not (np.diff(bounds) > 0).all():
            raise ValueError(f"`edges` must be two or more increasing numbers, and not traced; got {edges!r}.")
        return tuple(bounds.tolist())
    sizes, lengths = fft.modes or check_fft(fft), fft.box_lengths
    if any(isinstance(length, Tracer) for length in lengths):
        raise ValueError("`edges` must be given if the lengths of the box are traced; got None.")
    # The only wavenumber along an axis of one cell is zero, so such axes do not count.
    axes = [i for i in fft.transformed if sizes[i] > 1] or fft.transformed
    steps = np.array([_step(fft.bases[i], sizes[i]) / lengths[i] for i in axes])
    # The Nyquist wavenumber is π divided by the distance between two points.
    distances = [(fft.bases[i].points(max(sizes[i], 2))[:2], lengths[i] * max(2 / sizes[i], 1)) for i in axes]
    highest = min(math.pi / (np.ptp(points) * length) for points, length in distances) / steps.min()
    return tuple((steps.min() * (np.arange(math.floor(highest * (1 + 1e-12)) + 1) + 0.5)).tolist())


def first_cell(blocks: Blocks, axis: int) -> Array | int:
    """Return the number of the first cell of a block along a grid axis, inside a `shard_map`."""
    name = blocks.names[axis]
    return 0 if name is None else blocks.core(axis) * jax.lax.axis_index(name)


def transformed_box(fft: AbstractTransform) -> Box:
    """Return the box of the axes that `fft` transforms."""
    return Box(of_transformed(fft, fft.box_lengths))


def over_grid(dec: Decomposition, function: Callable, x: Array, in_specs: Any, out_specs: Any, batch: Any = ()) -> Any:
    """Apply `function` to the blocks of `x`, over the mesh axes that shard the grid and the `batch` axes."""
    names = {*dec.mesh_axes, *(name for entry in batch for name in entry_names(entry))}
    return map_blocks(function, dec.mesh, names, in_specs, out_specs)(x)
