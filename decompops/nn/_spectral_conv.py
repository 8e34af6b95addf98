"""`SpectralConv`, and its names `SpectralConv2D` and `SpectralConv3D`: the convolution of Fourier neural operators."""

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
from jaxtyping import Float, Key, Shaped, UInt32

from .._check import check_count, check_up_to
from .._layout import Layout
from .._operator.base import AbstractTyped
from .._operator.fft import FFT
from .._operator.planned import pad
from .._operator.transform import real_dtype
from .._plan.route import divided_blocks
from .._remember import remembered
from .._sharding import place
from .._structure import Structure
from ..spectral._check import check_fft
from ._channels import check_channels, check_ndim, layer_title


class SpectralConv(AbstractTyped):
    """Multiply each low mode of periodic fields by a matrix of complex weights, and drop all others.

    `v_o(k) = sum_i w_oi(k) u_i(k)` for wavenumbers below `modes` along each axis: the convolution of Fourier neural
    operators (Li et al., ICLR 2021). It maps real fields `(*batch, in_channels, nx, ny, nz)`, or on a grid of any other
    number of axes, to real fields.

    The weights have the same shape on every mesh, without padding. A mesh axis that divides the modes which it shards
    in the spectrum shards the weights in the same way, and nothing is communicated but what the transform to these few
    modes and back needs. Any other mesh axis, such as an even one along the 2 `modes` - 1 wavenumbers of both signs,
    shards `out` or `in` if it divides them, else modes that are whole in the spectrum. Then each call exchanges the
    weights by an all-to-all, and its derivative exchanges their gradient: each device sends at most its own part of
    them, however large the batch is. A mesh axis that divides none of these leaves the weights replicated, and their
    gradient is gathered.

    A result is real if `w(-k)` is the complex conjugate of `w(k)`. In a half spectrum that is left to the weights only
    in the plane where k is zero along the last axis, which holds both; there, as in `irfftn`, only the real part
    counts, and so each of the two modes is multiplied by the mean of `w(k)` and the conjugate of `w(-k)`.

    !!! example

        ```python
        fft = dops.FFT3D(mesh, shape=(64, 64, 64), real=True)
        layer = dops.nn.SpectralConv3D(fft, 3, 8, modes=12, key=jax.random.key(0))
        v = layer(u)        # (3, 64, 64, 64) to (8, 64, 64, 64)
        ```
    """

    weight: Float[Array, "2 out in *modes"]  # real and imaginary parts; of three axes the modes along y, z, x
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

        - `fft`: the transform of all axes of a grid, built with `real=True` and a `shape`. Its other options do not
            matter.
        - `in_channels`, `out_channels`: how many fields go in and come out.
        - `modes`: how many wavenumbers k >= 0 are kept along all axes, or along each: those with |k| < `modes`, in
            units of the smallest one of the box. A grid of n points has (n + 1) // 2.
        - `dtype`: of the weights, float32 or float64; `None` for JAX's default.
        - `key`: a key of `jax.random`. The weights do not depend on the mesh or the grid. They are complex normal with
            variance `2 / (in_channels + out_channels)`, as those of the library neuraloperator.

        **Raises:** `ValueError` or `TypeError` for an `fft` that is complex, has no shape or carries axes along, for
        channels that are not positive integers, `modes` that the grid does not have, and another `dtype`. Calls raise
        `ValueError` for fields of another shape.
        """
        self.in_channels = check_count("in_channels", in_channels)
        self.out_channels = check_count("out_channels", out_channels)
        self.fft, self.modes = fft, _check_modes(fft, modes)
        dtype = real_dtype(dtype)
        if dtype.itemsize < 4:
            raise TypeError(f"`dtype` must be float32 or float64, which complex numbers are made of; got {dtype}.")
        sharding = self.weight_layout.sharding
        self.weight = place(_drawing(self.weight_layout.blocks.true_shape, sharding, dtype)(key), sharding)

    @property
    def title(self) -> str:
        return layer_title("SpectralConv", self.fft.decomposition.ndim)

    @property
    def transform(self) -> FFT:
        """The transform between fields and the amplitudes of the modes that are kept."""
        return _transform(self.fft, self.modes)

    @property
    def weight_layout(self) -> Layout:
        """How `weight` is stored: without padding, the last axes in another order than the grid's.

        `layer.weight_layout.gather(layer.weight)` is a NumPy array `(2, out, in, *modes)` whose modes are along x, y,
        z in the order of an FFT; `layer.weight_layout.shard(array)` makes a weight of one.
        """
        return self._weight_layouts()[0]

    def _weight_layouts(self) -> tuple[Layout, ...]:
        return _weight_layouts(self.transform, (self.out_channels, self.in_channels))

    @property
    def in_structure(self) -> Structure:
        return replace(self.transform.in_structure, components=(self.in_channels,))

    def result_structure(self, given: Structure) -> Structure:
        return replace(self.in_structure, components=(self.out_channels,)).following(given)

    def __call__(self, x: Shaped[Array | np.ndarray, "*field"], *, key: Any = None) -> Float[Array, "*result"]:
        """Apply to fields `(*batch, in_channels, nx, ny, nz)`. `key` is ignored; it is for `eqx.nn.Sequential`."""
        transform = self.transform
        ndim = transform.decomposition.ndim
        spectrum = transform(check_channels(x, self.in_channels, ndim))
        parts = self._weight_like_spectrum()
        weight = jax.lax.complex(parts[0], parts[1])
        grid = string.ascii_uppercase[:ndim]
        return transform.inverse(jnp.einsum(f"oi{grid},...i{grid}->...o{grid}", weight, spectrum))

    def _weight_like_spectrum(self) -> Float[Array, "2 out in *stored"]:
        """The weight padded and sharded like the spectrum that it multiplies."""
        layouts = self._weight_layouts()
        # Padded before the exchange, and so the gradient is cropped after it, where no device shares the padded axes.
        weight = pad(place(self.weight, layouts[0].sharding), layouts[-1].blocks)
        for layout in layouts:
            weight = place(weight, layout.sharding)
        return weight

    def on(self, fft: FFT) -> "SpectralConv":
        """The same layer on another grid in the same box, or on another mesh, where its weights are only resharded.

        **Arguments:**

        - `fft`: the transform there, built with `real=True` and a `shape` that has the layer's `modes`.
        """
        _check_modes(fft, self.modes)
        there = eqx.tree_at(lambda layer: layer.fft, self, fft)
        weight = jax.device_put(self.weight, there.weight_layout.sharding)
        return eqx.tree_at(lambda layer: layer.weight, there, weight)


def SpectralConv2D(fft: FFT, *arguments: Any, **options: Any) -> SpectralConv:
    """`SpectralConv(fft, ...)`, after a check that `fft` transforms a grid of two axes."""
    return SpectralConv(check_ndim(fft, 2), *arguments, **options)


def SpectralConv3D(fft: FFT, *arguments: Any, **options: Any) -> SpectralConv:
    """`SpectralConv(fft, ...)`, after a check that `fft` transforms a grid of three axes."""
    return SpectralConv(check_ndim(fft, 3), *arguments, **options)


def _check_modes(fft: FFT, modes: Any) -> tuple[int, ...]:
    """How many wavenumbers are kept along each axis."""
    grid = check_fft(fft, real=True)
    if len(fft.transformed) < len(grid):
        raise ValueError(f"`fft` must transform all axes of the grid; got `transformed={fft.transformed}`.")
    most = tuple((n + 1) // 2 for n in grid)
    return check_up_to("modes", modes, most, f"wavenumbers of the grid {grid}")


@remembered
def _transform(fft: FFT, kept: tuple[int, ...]) -> FFT:
    """The transform to the modes below `kept`.

    Weights do not depend on the mesh or the grid. So the storage order of the spectrum is the same on all meshes, and
    the spectrum consists of amplitudes.
    """
    # Zero, and each k > 0 with -k: an odd number, so none of them is a Nyquist mode.
    return fft.replace(modes=tuple(2 * m - 1 for m in kept), norm="forward", axis_contiguous=True)


@remembered
def _weight_layouts(fft: FFT, channels: tuple[int, int]) -> tuple[Layout, ...]:
    """How weights `(2, out, in, *modes)` lie: first as they are stored, last like the spectrum of `fft`.

    From one to the next takes one all-to-all, or nothing where weights are replicated.
    """
    spectrum = fft.out_layout.blocks
    lengths, order = (2, *channels, *spectrum.lengths), (0, 1, 2, *(3 + axis for axis in spectrum.order))
    units = (() if name is None else ((name, parts),) for name, parts in zip(spectrum.names, spectrum.parts))
    division = [(), (), (), *units]
    steps = [divided_blocks(lengths, tuple(division), order)]
    padded = steps[0].padded_axes
    others = [axis for axis in range(1, len(lengths)) if axis not in padded]
    parts = lambda axis: math.prod(size for _, size in division[axis])
    # The axis with the most parts chooses first, because fewer others fit it.
    for axis in sorted(padded, key=parts, reverse=True):
        fitting = [other for other in others if lengths[other] % (parts(other) * parts(axis)) == 0]
        if fitting:
            other = min(fitting, key=parts)
            if division[other]:  # XLA gathers what it is to exchange over two mesh axes of one array axis at once.
                steps.append(divided_blocks(lengths, tuple(division), order))
            division[other] += division[axis]
            division[axis] = ()
    steps.append(divided_blocks(lengths, tuple(division), order))
    # Replicated in a step of its own: a call cuts out blocks of the weights before it exchanges them.
    replicated = [() if axis in padded else units for axis, units in enumerate(division)]
    steps.append(divided_blocks(lengths, tuple(replicated), order))
    return tuple(Layout(fft.decomposition.mesh, blocks) for blocks in dict.fromkeys(reversed(steps)))


@functools.lru_cache(maxsize=128)
def _drawing(shape: tuple[int, ...], sharding: NamedSharding, dtype: np.dtype) -> Callable[[Array], Array]:
    """The program that draws weights: one, so that no device makes more than its own part."""
    deviation = 1 / math.sqrt(shape[1] + shape[2])
    return jax.jit(lambda key: deviation * jax.random.normal(key, shape, dtype), out_shardings=sharding)
