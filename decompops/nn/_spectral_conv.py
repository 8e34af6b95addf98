"""`SpectralConv`, `SpectralConv2D` and `SpectralConv3D`: the convolution of Fourier neural operators."""

import functools
import math
import string
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding
from jaxtyping import Float, Inexact, Key, Shaped, UInt32

from .._basis.fourier import field_dtype
from .._common.check import check_count, check_up_to
from .._common.keys import agreed_key
from .._common.placement import place, put
from .._common.remember import remembered
from .._core.layout import Layout
from .._core.structure import Structure
from .._operator.base import AbstractTyped
from .._operator.fft import FFT
from .._operator.planned import pad
from .._operator.transform import real_dtype
from .._plan.route import divided_blocks
from ..spectral._check import check_periodic
from ._channels import check_channels, check_ndim, layer_title


class SpectralConv(AbstractTyped):
    """Multiply each low mode of periodic fields by a matrix of complex weights, and drop all other modes.

    This is the convolution of Fourier neural operators (Li et al., ICLR 2021): `v_o(k) = sum_i w_oi(k) u_i(k)` for
    wavenumbers |k| < `modes` along each axis. The layer maps fields `(*batch, in_channels, nx, ny, nz)` to fields
    `(*batch, out_channels, nx, ny, nz)`. The grid may have any number of axes. With `real=True` in `fft`, the fields
    and the results are real. With a complex `fft`, the results are complex.

    The weights have the same shape `(2, out, in, *modes)` on every mesh, without padding. For each mesh axis, one of
    three rules says how it shards the weights:

    - If a mesh axis shards an axis of the spectrum, and the size of the mesh axis divides the number of modes along
        this axis, the mesh axis shards the same modes of the weights. Then only the two transforms of the layer
        communicate: from the fields to these few modes, and back.
    - Any other mesh axis shards the axis `out` or `in` of the weights, if the size of the mesh axis divides `out` or
        `in`. Otherwise, it shards modes that are unsharded in the spectrum, if its size divides their number. This rule
        often holds for mesh axes of even size: an even size does not divide the number of wavenumbers of both signs,
        `2 * modes - 1`, which is odd. Under this rule, each call exchanges the weights by an all-to-all, and the
        derivative of a call exchanges the gradient of the weights. For any batch size, each device sends at most its
        own part of the weights.
    - If the size of a mesh axis divides the length of none of these axes, the weights are replicated over this mesh
        axis, and the gradient of the weights is gathered.

    On complex fields, each of the `2 * modes - 1` wavenumbers of both signs along each axis has its own weights. Real
    fields need about half as many: the result of a convolution is real if `w(-k)` is the complex conjugate of `w(k)`.
    On real fields the layer uses the half spectrum, which stores only one of the modes k and -k, so only the stored
    mode needs weights. The exception is the plane where k is zero along the last axis: this plane holds both k and -k.
    There, the inverse transform keeps only the real part of the result, as `irfftn` does. The effect is that mode k is
    multiplied by `(w(k) + conj(w(-k))) / 2`.

    !!! example

        ```python
        fft = dops.FFT3D(mesh, shape=(64, 64, 64), real=True)
        layer = dops.nn.SpectralConv3D(fft, 3, 8, modes=12, key=jax.random.key(0))
        v = layer(u)        # (3, 64, 64, 64) to (8, 64, 64, 64)
        ```
    """

    # The first axis holds the real and the imaginary parts. In three dimensions, the modes lie along y, z, x.
    weight: Float[Array, "2 out in *modes"]
    fft: FFT
    in_channels: int = eqx.field(static=True)
    out_channels: int = eqx.field(static=True)
    modes: tuple[int, ...] = eqx.field(static=True)

    def __init__(
        self,
        fft: FFT,
        in_channels: int,
        out_channels: int,
        modes: Any,
        *,
        dtype: Any = None,
        key: Key[Array, ""] | UInt32[Array, "2"],
    ):
        """**Arguments:**

        - `fft`: a transform of all axes of a grid, built with a `shape`; with `real=True` for real fields, and without
            it for complex fields. The layer ignores the options `norm`, `modes` and `axis_contiguous` of `fft`.
        - `in_channels`, `out_channels`: the number of channels of the input and of the result.
        - `modes`: the number of wavenumbers k >= 0 to keep: one number for all axes, or one number for each axis. The
            layer keeps the modes with |k| < `modes`, of both signs, in units of the smallest nonzero wavenumber of the
            box. For an axis of n points, `modes` is at most (n + 1) // 2.
        - `dtype`: the dtype of the real and imaginary parts of the weights, float32 or float64; `None` for JAX's
            default. Choose the precision of the fields.
        - `key`: a key of `jax.random`. The weights do not depend on the mesh or the grid. They have a complex normal
            distribution of variance `2 / (in_channels + out_channels)`, as in the library neuraloperator.

        **Raises:** `TypeError` if `fft` is not a transform, or if `dtype` is neither float32 nor float64; `ValueError`
        if `fft` has no `shape`, or does not transform all axes by Fourier modes, if a number of channels is not a
        positive integer, or if the grid has fewer wavenumbers than `modes`.
        """
        self.in_channels = check_count("in_channels", in_channels)
        self.out_channels = check_count("out_channels", out_channels)
        self.fft, self.modes = fft, _check_modes(fft, modes)
        dtype = real_dtype(dtype)
        if dtype.itemsize < 4:
            raise TypeError(
                f"`dtype` must be float32 or float64, because JAX has no smaller complex dtype; got {dtype}."
            )
        sharding = self.weight_layout.sharding
        draw = _drawing(self.weight_layout.blocks.true_shape, sharding, dtype)
        self.weight = place(draw(agreed_key(fft.decomposition.mesh, key)), sharding)

    @property
    def title(self) -> str:
        return layer_title("SpectralConv", self.fft.decomposition.ndim)

    @property
    def transform(self) -> FFT:
        """The transform between fields and the amplitudes of the kept modes."""
        return _transform(self.fft, self.modes)

    @property
    def weight_layout(self) -> Layout:
        """The layout of `weight`, which has no padding. In three dimensions, modes are stored in the order y, z, x.

        `layer.weight_layout.gather(layer.weight)` returns a NumPy array `(2, out, in, *modes)` with the modes along x,
        y and z. The modes along each axis are in the order of an FFT. `layer.weight_layout.shard(array)` makes a weight
        from such an array.
        """
        return self._weight_layouts()[0]

    def _weight_layouts(self) -> tuple[Layout, ...]:
        return _weight_layouts(self.transform, (self.out_channels, self.in_channels))

    @property
    def in_structure(self) -> Structure:
        return replace(self.transform.in_structure, components=(self.in_channels,))

    def result_structure(self, given: Structure) -> Structure:
        return replace(self.in_structure, components=(self.out_channels,)).following(given)

    def __call__(self, x: Shaped[Array | np.ndarray, "*field"], *, key: Any = None) -> Inexact[Array, "*result"]:
        """Apply the convolution.

        **Arguments:**

        - `x`: fields of shape `(*batch, in_channels, nx, ny, nz)`. They must be real if `fft` has `real=True`.
        - `key`: ignored. `eqx.nn.Sequential` passes it.

        **Returns:** fields of shape `(*batch, out_channels, nx, ny, nz)`; real if `fft` has `real=True`, else complex.

        **Raises:** `ValueError` if `x` does not have the shape `(*batch, in_channels, nx, ny, nz)`; `TypeError` if `x`
        is complex and `fft` has `real=True`.
        """
        transform = self.transform
        ndim = transform.decomposition.ndim
        spectrum = transform(check_channels(x, self.in_channels, ndim))
        parts = self._weight_like_spectrum()
        parts = parts.astype(field_dtype(parts.dtype))  # JAX has no complex numbers of half precision.
        weight = jax.lax.complex(parts[0], parts[1])
        grid = string.ascii_uppercase[:ndim]
        return transform.inverse(jnp.einsum(f"oi{grid},...i{grid}->...o{grid}", weight, spectrum))

    def _weight_like_spectrum(self) -> Float[Array, "2 out in *stored"]:
        """Return the weight, padded and sharded like the spectrum."""
        layouts = self._weight_layouts()
        # The weight is padded before the exchange, because the axes to pad are not yet sharded then. In the derivative,
        # the gradient of the weight is therefore cropped after the exchange.
        weight = pad(place(self.weight, layouts[0].sharding), layouts[-1].blocks)
        for layout in layouts:
            weight = place(weight, layout.sharding)
        return weight

    def replace(self, *, fft: FFT) -> "SpectralConv":
        """Return the same layer on another grid in the same box, or on another mesh. Only the weights are resharded.

        **Arguments:**

        - `fft`: the transform on the other grid or mesh, built with a `shape`, and with `real=True` if the layer was
            built with it. The grid must have the `modes` of the layer.

        **Raises:** `TypeError` if `fft` is not a transform; `ValueError` if `fft` has no `shape`, does not transform
        all axes or does not have the `modes`, or if only one of `fft` and the transform of the layer has `real=True`.
        """
        _check_modes(fft, self.modes)
        if fft.takes_complex != self.fft.takes_complex:
            kind, other = ("with", "a complex") if fft.takes_complex else ("without", "a real")
            raise ValueError(
                f"`fft` must be built {kind} `real=True`, like the present transform of the layer, because the "
                f"weights belong to other modes; got {other} transform."
            )
        # A gradient, or what is left of a layer without its arrays, may have `None` as its weight.
        replaced = functools.partial(eqx.tree_at, is_leaf=lambda part: part is None)
        there = replaced(lambda layer: layer.fft, self, fft)
        weight = put(self.weight, there.weight_layout.sharding)
        return replaced(lambda layer: layer.weight, there, weight)


def SpectralConv2D(fft: FFT, *arguments: Any, **options: Any) -> SpectralConv:
    """Return `SpectralConv(fft, ...)`. Raise `ValueError` if the grid of `fft` does not have two axes."""
    return SpectralConv(check_ndim(fft, 2), *arguments, **options)


def SpectralConv3D(fft: FFT, *arguments: Any, **options: Any) -> SpectralConv:
    """Return `SpectralConv(fft, ...)`. Raise `ValueError` if the grid of `fft` does not have three axes."""
    return SpectralConv(check_ndim(fft, 3), *arguments, **options)


def _check_modes(fft: FFT, modes: Any) -> tuple[int, ...]:
    """Check `fft` and `modes`, and return the number of wavenumbers to keep along each axis."""
    grid = check_periodic(fft)
    if len(fft.transformed) < len(grid):
        raise ValueError(
            f"`fft` must transform all axes of the grid; got `transformed={fft.transformed}`. Build it without "
            "`transformed`."
        )
    most = tuple((n + 1) // 2 for n in grid)
    return check_up_to("modes", modes, most, f"wavenumbers of the grid {grid}")


@remembered
def _transform(fft: FFT, kept: tuple[int, ...]) -> FFT:
    """Return the transform between fields and the modes below `kept`.

    The same weights must fit every mesh and every grid. Therefore the storage order of spectra is the same on all
    meshes. The spectra hold amplitudes (`norm="forward"`), because amplitudes do not depend on the number of points.
    """
    # Along each axis, the kept modes are the mode k = 0 and the pairs of k and -k for k > 0. The number of kept modes
    # is odd, so none of them is a Nyquist mode.
    return fft.replace(modes=tuple(2 * m - 1 for m in kept), norm="forward", axis_contiguous=True)


@remembered
def _weight_layouts(fft: FFT, channels: tuple[int, int]) -> tuple[Layout, ...]:
    """Return the layouts through which a call moves the weights `(2, out, in, *modes)`, one after the other.

    The weights are stored in the first layout. The last layout is sharded like the spectrum of `fft`. A step from one
    layout to the next takes one all-to-all. It takes no communication if it starts from replicated weights.
    """
    spectrum = fft.out_layout.blocks
    lengths, order = (2, *channels, *spectrum.lengths), (0, 1, 2, *(3 + axis for axis in spectrum.order))
    units = (() if name is None else ((name, parts),) for name, parts in zip(spectrum.names, spectrum.parts))
    division = [(), (), (), *units]
    steps = [divided_blocks(lengths, tuple(division), order)]
    padded = steps[0].padded_axes
    others = [axis for axis in range(1, len(lengths)) if axis not in padded]
    parts = lambda axis: math.prod(size for _, size in division[axis])
    # If an axis would need padding, its mesh axes shard another axis instead. The axis with the most parts comes first,
    # because the fewest other axes are divisible by its number of parts.
    for axis in sorted(padded, key=parts, reverse=True):
        fitting = [other for other in others if lengths[other] % (parts(other) * parts(axis)) == 0]
        if fitting:
            other = min(fitting, key=parts)
            if division[other]:  # XLA would gather an array axis instead of exchanging it over two mesh axes at once.
                steps.append(divided_blocks(lengths, tuple(division), order))
            division[other] += division[axis]
            division[axis] = ()
    steps.append(divided_blocks(lengths, tuple(division), order))
    # The replicated weights have a layout of their own, so that a call first cuts blocks out of them, and then
    # exchanges these blocks.
    replicated = [() if axis in padded else units for axis, units in enumerate(division)]
    steps.append(divided_blocks(lengths, tuple(replicated), order))
    return tuple(Layout(fft.decomposition.mesh, blocks) for blocks in dict.fromkeys(reversed(steps)))


@functools.lru_cache(maxsize=128)
def _drawing(shape: tuple[int, ...], sharding: NamedSharding, dtype: np.dtype) -> Callable[[Array], Array]:
    """Return the compiled program that draws random weights. Each device draws only its own part of them."""
    deviation = 1 / math.sqrt(shape[1] + shape[2])
    return jax.jit(lambda key: deviation * jax.random.normal(key, shape, dtype), out_shardings=sharding)
