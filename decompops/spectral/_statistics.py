"""Random fields, power spectra and mean squares."""

import functools
import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.sharding import PartitionSpec
from jaxtyping import Float, Inexact, Key, Shaped, UInt32

from .. import _compat
from .._blocks import axis_names, entry_names
from .._box import Box, check_box
from .._decomposition import Decomposition
from .._layout import check_global
from .._operator.fft import FFT
from .._operator.planned import pad
from .._operator.transform import AbstractTransform, real_dtype
from .._remember import keep_if_traced
from .._sharding import (
    batch_in_type,
    manual_axes,
    map_blocks,
    mesh_in_context,
    mesh_with_devices,
)
from . import _vector
from ._check import check_fft, of_transformed
from ._filter import IsotropicFilter
from ._modes import inner_transform


class GaussianRandomField(eqx.Module):
    """A periodic Gaussian random field with a given power spectrum. The same key gives the same field on every mesh.

    The attribute `colour` is the linear operator that turns white noise of unit variance into a random field.

    !!! example

        ```python
        field = spectral.GaussianRandomField(fft, lambda k: k**-2.0, dops.Box(100.0))
        delta = field(jax.random.key(0))
        ```
    """

    colour: IsotropicFilter

    def __init__(self, fft: FFT, power: Callable, box: Box = Box()):
        """**Arguments:**

        - `fft`: the transform, built with `real=True` and a `shape`.
        - `power`: the power spectrum P, a function of an array of |k| > 0 in radians per unit of length. In three
            dimensions, the variance of the field is the integral of P(k) d³k / (2π)³, so P has units of length cubed
            times the squared unit of the field. `power` may be an `equinox.Module` with parameters. The mode k = 0 of
            the field is zero. If `fft` does not transform an axis, each point along this axis gets an independent field
            on the other axes.
        - `box`: the periodic box.

        **Raises:** `TypeError` if `power` cannot be called, if `fft` is not a transform, or if `box` is not a `Box`;
        `ValueError` if `fft` takes complex fields, if it has no `shape`, or if `box` has more or fewer axes than the
        grid.
        """
        if not callable(power):
            raise TypeError(f"`power` must be a function of |k|; got {power!r}.")
        shape = check_fft(fft, real=True)
        amplitude = _Amplitude(power, _transformed_box(fft, box), math.prod(of_transformed(fft, shape)))
        self.colour = IsotropicFilter(fft, amplitude, box)

    def __call__(self, key: Key[Array, ""] | UInt32[Array, "2"], *, dtype: Any = None) -> Float[Array, "*field"]:
        """Return one field.

        **Arguments:**

        - `key`: a key of `jax.random`.
        - `dtype`: a real dtype; `None` for JAX's default.

        **Returns:** a real field, sharded like the input of `fft`, with padding if the mesh does not divide the grid.
        """
        keep_if_traced(self, key)
        return self.colour(white_noise(self.colour.decomposition, key, dtype=dtype))


class _Amplitude(eqx.Module):
    """The factors that turn white noise into a random field, as a function of |k|."""

    power: Callable
    box: Box
    cells: int = eqx.field(static=True)

    def __call__(self, k: Array) -> Array:
        density = jnp.asarray(float(self.cells) / self.box.volume, k.dtype)
        variance = jnp.where(k == 0, 0, self.power(jnp.where(k == 0, 1, k)) * density)
        # The square root has an infinite derivative at zero. So the derivative is set to zero for modes without power.
        return jnp.where(variance == 0, 0, jnp.sqrt(jnp.where(variance == 0, 1, variance)))


def white_noise(dec: Decomposition, key: Key[Array, ""] | UInt32[Array, "2"], *, dtype: Any = None) -> Array:
    """Draw independent standard normal numbers on a grid. The same key gives the same numbers on every mesh.

    **Arguments:**

    - `dec`: the decomposition, built with a `shape`.
    - `key`: a key of `jax.random`.
    - `dtype`: a real dtype; `None` for JAX's default.

    **Returns:** a field in the pencils of the last axis: each device has whole lines along this axis. The field is
    padded with zeros if the mesh does not divide the grid.

    **Raises:** `TypeError` if `dec` is not a `Decomposition`, or if `dtype` is not real; `ValueError` if `dec` has no
    `shape`, or if the function is called inside a `shard_map` over a mesh axis of `dec`.
    """
    if not isinstance(dec, Decomposition):
        raise TypeError(f"`dec` must be a `Decomposition`; got {dec!r}.")
    for name in filter(manual_axes().__contains__, dec.mesh_axes):
        raise ValueError(
            f"`dec` must not shard the grid over mesh axis {name!r} inside a `shard_map` over that axis; got {dec}. "
            "Draw the noise outside the `shard_map`."
        )
    if not isinstance(key, Tracer):
        mesh_with_devices(mesh_in_context(dec.mesh), key)  # This raises an error if the mesh has no devices.
    return _white_noise(dec, key, real_dtype(dtype))


@eqx.filter_jit
def _white_noise(dec: Decomposition, key: Array, dtype: np.dtype) -> Array:
    layout = dec.blocks(-1)
    *lengths, last = layout.lengths

    def line(key: Array, *place: Array) -> Array:
        for index in place:
            key = jax.random.fold_in(key, index)
        values = jax.random.normal(key, (last,), dtype)
        inside = [index < length for index, length in zip(place, lengths)]
        return jnp.where(functools.reduce(operator.and_, inside), values, 0) if inside else values

    def lines(key: Array, axes: list[Array], *place: Array) -> Array:
        if not axes:
            return line(key, *place)
        return jax.vmap(lambda index: lines(key, axes[1:], *place, index))(axes[0])

    def block(key: Array) -> Array:
        # Each line along the last axis has its own key, which depends only on the position of the line in the grid. So
        # the numbers do not depend on the mesh, and each device draws its block alone.
        axes = [
            jnp.arange(cells, dtype=np.int32) + (0 if name is None else cells * jax.lax.axis_index(name))
            for name, cells in zip(layout.names, layout.block_shape[:-1])
        ]
        return lines(key, axes)

    return _over_grid(dec, block, key, PartitionSpec(), layout.spec)


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
    fft: AbstractTransform, u: Shaped[Array | np.ndarray, "*field"], box: Box = Box(), *, edges: Any = None
) -> PowerSpectrum:
    """Return the power spectrum of periodic fields: `V |û(k)|² / N²`, averaged over shells of |k|.

    V is the volume of the box (the area in two dimensions), N is the number of points, and û is the unscaled discrete
    Fourier transform, `norm="backward"`. In three dimensions, the integral of the power spectrum over d³k / (2π)³ is
    the mean of |u|²; the power spectrum is an estimate of P(k) in the convention of cosmology. V and N include only the
    axes that `fft` transforms. The result is averaged over the other axes.

    **Arguments:**

    - `fft`: the transform, built with a `shape`; with `real=True` for real fields.
    - `u`: fields, such as `(*batch, nx, ny, nz)`.
    - `box`: the periodic box.
    - `edges`: the bounds of the shells, in increasing order, in radians per unit of length. A mode belongs to a shell
        if `lower <= |k| < upper`. By default, the shells are centred on the multiples of the smallest wavenumber of the
        box, up to the smallest Nyquist wavenumber.

    **Returns:** a `PowerSpectrum`.

    **Raises:** `TypeError` if `fft` is not a transform, or if `box` is not a `Box`; `ValueError` if `fft` has no
    `shape`, if `box` has more or fewer axes than the grid, or if `edges` do not increase or are traced.
    """
    box = check_box(box, len(check_fft(fft)))
    check_global("u", fft.decomposition.mesh_axes, "Call this function outside of the `shard_map`")
    fft = inner_transform(fft.replace(norm="backward"))
    return _power_spectrum(fft, jnp.asarray(u), box, _edges(fft, box, edges))


@eqx.filter_jit
def _power_spectrum(fft: AbstractTransform, u: Array, box: Box, bounds: tuple[float, ...]) -> PowerSpectrum:
    spectrum, shells, ndim = fft(u), len(bounds) - 1, fft.decomposition.ndim
    squared = spectrum.real**2 + spectrum.imag**2
    dtype = squared.dtype

    @_compat.saving_nothing
    def sums(squared: Array) -> tuple[Array, Array, Array]:
        """Return three sums over the modes of each shell: of the power, of |k|, and of one (the number of modes)."""
        k = _vector.length(fft.wavenumbers(box=box, dtype=dtype))
        weights = jnp.broadcast_to(fft.multiplicity(dtype=dtype), k.shape)
        shell = _compat.count_up_to(bounds, k)  # Modes outside of all shells have the number 0 or `shells + 1`.

        @functools.partial(jnp.vectorize, signature=f"({','.join(axis_names(ndim))})->(s)")
        def over_shells(values: Array) -> Array:
            # Each plane is summed separately, and then the sums of the planes are added, because short sums lose little
            # precision.
            planes = (values, shell) if ndim > 1 else (values[None], shell[None])
            sums = jax.vmap(lambda v, i: jnp.zeros(shells + 2, dtype).at[i].add(v))(*planes)
            return jax.lax.psum(jnp.sum(sums, 0)[1:-1], fft.decomposition.mesh_axes)

        return over_shells(squared * weights), over_shells(weights * k), over_shells(weights)

    batch = batch_in_type(squared, ndim)
    specs = PartitionSpec(*batch, *fft.out_spec), (PartitionSpec(*batch, None), PartitionSpec(), PartitionSpec())
    power, k, modes = _over_grid(fft.decomposition, sums, squared, *specs, batch)
    cells = float(math.prod(of_transformed(fft, check_fft(fft))))
    mean = 1 / jnp.maximum(modes, 1)
    volume = _transformed_box(fft, box).volume
    return PowerSpectrum(k * mean, power * mean * jnp.asarray(volume / cells**2, dtype), modes)


def mean_square(fft: AbstractTransform, spectrum: Inexact[Array, "*spectrum"]) -> Float[Array, "*batch"]:
    """Return the mean of |u|² over the grid for `u = fft.inverse(spectrum)`, by Parseval's theorem.

    The function does not compute u. A half spectrum must be the spectrum of a real field. Let z be the axis with half
    of the modes: the modes k and -k must be complex conjugates if kz is zero or the Nyquist wavenumber.

    **Arguments:**

    - `fft`: the transform, built with a `shape`.
    - `spectrum`: a spectrum of shape `(*batch, *modes)`, as `fft` returns it.

    **Returns:** a real array of shape `(*batch,)`.

    **Raises:** `TypeError` if `fft` is not a transform, or if `spectrum` is real and `fft` returns complex numbers;
    `ValueError` if `fft` has no `shape`, or if the shape of `spectrum` does not fit `fft`.
    """
    shape, layout = check_fft(fft), fft.out_layout
    if fft.out_structure.kind == "complex" and not jnp.iscomplexobj(spectrum):
        raise TypeError(f"`spectrum` must be complex, as `fft` returns it; got {jnp.result_type(spectrum)}.")
    layout.check(spectrum, "spectrum")
    spectrum = pad(jnp.asarray(spectrum), layout.blocks)
    weights = fft.multiplicity(dtype=jnp.finfo(spectrum.dtype).dtype)
    total = jnp.sum(
        jnp.where(weights == 0, 0, weights * jnp.real(spectrum * jnp.conj(spectrum))), tuple(range(-len(shape), 0))
    )
    inverse = math.prod(fft.bases[axis].inverse_scale(shape[axis]) for axis in fft.transformed)
    # The mean also divides by the number of points along the axes that are not transformed.
    lines = math.prod(shape) // math.prod(of_transformed(fft, shape))
    return total * (inverse ** {"backward": 2, "ortho": 1, "forward": 0}[fft.norm] / lines)


def _edges(fft: AbstractTransform, box: Box, edges: Any) -> tuple[float, ...]:
    if edges is not None:
        try:
            bounds = np.asarray(edges, float)
        except (TypeError, ValueError):  # Traced edges raise a `TypeError`.
            bounds = np.zeros(0)
        if bounds.ndim != 1 or len(bounds) < 2 or not (np.diff(bounds) > 0).all():
            raise ValueError(f"`edges` must be two or more increasing numbers, and not traced; got {edges!r}.")
        return tuple(bounds.tolist())
    if box.is_traced:
        raise ValueError("`edges` must be given if the lengths of `box` are traced; got None.")
    sizes = fft.modes or check_fft(fft)
    lengths: Any = box.lengths
    # The only wavenumber along an axis of one cell is zero, so such axes do not count.
    axes = [i for i in fft.transformed if sizes[i] > 1] or fft.transformed
    steps = np.array([2 * math.pi / lengths[i] for i in axes])
    highest = (steps * np.array([sizes[i] for i in axes]) / 2).min() / steps.min()
    return tuple((steps.min() * (np.arange(math.floor(highest * (1 + 1e-12)) + 1) + 0.5)).tolist())


def _transformed_box(fft: AbstractTransform, box: Box) -> Box:
    """Return the box of the axes that `fft` transforms."""
    lengths: Any = check_box(box, len(check_fft(fft))).lengths
    return Box(of_transformed(fft, lengths))


def _over_grid(dec: Decomposition, function: Callable, x: Array, in_specs: Any, out_specs: Any, batch: Any = ()) -> Any:
    """Apply `function` to the blocks of `x`, over the mesh axes that shard the grid and the `batch` axes."""
    names = {*dec.mesh_axes, *(name for entry in batch for name in entry_names(entry))}
    return map_blocks(function, dec.mesh, names, in_specs, out_specs)(x)
