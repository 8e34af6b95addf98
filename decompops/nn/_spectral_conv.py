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
    """Multiply each low mode of periodic fields by a matrix of complex weights, and drop all other modes.

    This is the convolution of Fourier neural operators (Li et al., ICLR 2021): `v_o(k) = sum_i w_oi(k) u_i(k)` for
    wavenumbers below `modes` along each axis. The layer maps real fields `(*batch, in_channels, nx, ny, nz)`, or fields
    on a grid with any other number of axes, to real fields.

    The weights `(2, out, in, *modes)` have the same shape on every mesh, without padding. For each mesh axis, one of
    three rules holds:

    - If a mesh axis shards modes of the spectrum and its size divides their number, it shards the same modes of the
        weights. Then the layer communicates only in the transforms to these few modes and back.
    - Any other mesh axis shards the axis `out` or `in` of the weights if its size divides `out` or `in`. Otherwise, it
        shards modes that are unsharded in the spectrum. An example is a mesh axis of even size, because the number of
        wavenumbers of both signs is odd, `2 * modes - 1`. With such a mesh axis, each call exchanges the weights by an
        all-to-all, and its derivative exchanges the gradient of the weights. Each device sends at most its own part of
        the weights, for any batch size.
    - If the size of a mesh axis divides none of these axes, the weights are replicated over this mesh axis, and their
        gradient is gathered.

    Real fields stay real if `w(-k)` is the complex conjugate of `w(k)`. A half spectrum stores only one of k and -k,
    except in the plane where k is zero along the last axis: this plane holds both k and -k. In this plane, only the
    real part of the result counts, as in `irfftn`: each of the two modes is multiplied by the mean of `w(k)` and the
    conjugate of `w(-k)`.

    !!! example

        ```python
        fft = dops.FFT3D(mesh, shape=(64, 64, 64), real=True)
        layer = dops.nn.SpectralConv3D(fft, 3, 8, modes=12, key=jax.random.key(0))
        v = layer(u)        # (3, 64, 64, 64) to (8, 64, 64, 64)
        ```
    """

    weight: Float[Array, "2 out in *modes"]  # Real and imaginary parts. In three dimensions, modes are along y, z, x.
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

        - `fft`: a transform of all axes of a grid, built with `real=True` and a `shape`. The layer ignores its options
            `norm`, `modes` and `axis_contiguous`.
        - `in_channels`, `out_channels`: the number of channels of the input and of the result.
        - `modes`: the number of wavenumbers k >= 0 to keep, one number for all axes or one for each axis. The layer
            keeps |k| < `modes`, in units of the smallest nonzero wavenumber of the box. An axis of n points has
            (n + 1) // 2 such wavenumbers.
        - `dtype`: the dtype of the weights, float32 or float64; `None` for JAX's default.
        - `key`: a key of `jax.random`. The weights do not depend on the mesh or the grid. They are complex normal with
            variance `2 / (in_channels + out_channels)`, as in the library neuraloperator.

        **Raises:** `TypeError` for an `fft` that is not a transform and for any other `dtype`; `ValueError` for an
        `fft` that is complex, has no `shape` or does not transform all axes, for channels that are not positive
        integers, and for `modes` that the grid does not have.
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
        self.weight = place(_drawing(self.weight_layout.blocks.true_shape, sharding, dtype)(key), sharding)

    @property
    def title(self) -> str:
        return layer_title("SpectralConv", self.fft.decomposition.ndim)

    @property
    def transform(self) -> FFT:
        """The transform between fields and the amplitudes of the kept modes."""
        return _transform(self.fft, self.modes)

    @property
    def weight_layout(self) -> Layout:
        """The layout of `weight`, which has no padding. In three dimensions, modes are stored along y, z and x.

        `layer.weight_layout.gather(layer.weight)` returns a NumPy array `(2, out, in, *modes)` with the modes along x,
        y and z, each in the order of an FFT. `layer.weight_layout.shard(array)` makes a weight from such an array.
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
        """Apply the convolution.

        **Arguments:**

        - `x`: real fields of shape `(*batch, in_channels, nx, ny, nz)`.
        - `key`: ignored. `eqx.nn.Sequential` passes it.

        **Returns:** real fields of shape `(*batch, out_channels, nx, ny, nz)`.

        **Raises:** `ValueError` for an `x` that does not have this shape.
        """
        transform = self.transform
        ndim = transform.decomposition.ndim
        spectrum = transform(check_channels(x, self.in_channels, ndim))
        parts = self._weight_like_spectrum()
        weight = jax.lax.complex(parts[0], parts[1])
        grid = string.ascii_uppercase[:ndim]
        return transform.inverse(jnp.einsum(f"oi{grid},...i{grid}->...o{grid}", weight, spectrum))

    def _weight_like_spectrum(self) -> Float[Array, "2 out in *stored"]:
        """Return the weight, padded and sharded like the spectrum."""
        layouts = self._weight_layouts()
        # The weight is padded before the exchange, while the axes to pad are not sharded. Its gradient is therefore
        # cropped after the exchange.
        weight = pad(place(self.weight, layouts[0].sharding), layouts[-1].blocks)
        for layout in layouts:
            weight = place(weight, layout.sharding)
        return weight

    def on(self, fft: FFT) -> "SpectralConv":
        """Return the same layer on another grid in the same box, or on another mesh. Only its weights are resharded.

        **Arguments:**

        - `fft`: the transform of the other grid, built with `real=True` and a `shape` that has the `modes` of the
            layer.

        **Raises:** `TypeError` for an `fft` that is not a transform; `ValueError` for an `fft` that is complex, has no
        `shape`, does not transform all axes or does not have the `modes`.
        """
        _check_modes(fft, self.modes)
        there = eqx.tree_at(lambda layer: layer.fft, self, fft)
        weight = jax.device_put(self.weight, there.weight_layout.sharding)
        return eqx.tree_at(lambda layer: layer.weight, there, weight)


def SpectralConv2D(fft: FFT, *arguments: Any, **options: Any) -> SpectralConv:
    """Return `SpectralConv(fft, ...)`. Raise `ValueError` if the grid of `fft` does not have two axes."""
    return SpectralConv(check_ndim(fft, 2), *arguments, **options)


def SpectralConv3D(fft: FFT, *arguments: Any, **options: Any) -> SpectralConv:
    """Return `SpectralConv(fft, ...)`. Raise `ValueError` if the grid of `fft` does not have three axes."""
    return SpectralConv(check_ndim(fft, 3), *arguments, **options)


def _check_modes(fft: FFT, modes: Any) -> tuple[int, ...]:
    """Return the number of wavenumbers to keep along each axis, after checks of `fft` and `modes`."""
    grid = check_fft(fft, real=True)
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

    The same weights must fit every mesh and every grid. Therefore spectra have one storage order on all meshes, and
    hold amplitudes, which do not depend on the number of points (`norm="forward"`).
    """
    # The kept modes are the mode k = 0 and the pairs of k and -k for k > 0. The number of kept modes is odd, so none of
    # them is a Nyquist mode.
    return fft.replace(modes=tuple(2 * m - 1 for m in kept), norm="forward", axis_contiguous=True)


@remembered
def _weight_layouts(fft: FFT, channels: tuple[int, int]) -> tuple[Layout, ...]:
    """Return the layouts that weights `(2, out, in, *modes)` have one after the other in a call.

    The weights are stored in the first layout. The last layout is sharded like the spectrum of `fft`. Each step from
    one layout to the next takes one all-to-all, or no communication if the weights are replicated.
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
    # because the fewest other axes fit it.
    for axis in sorted(padded, key=parts, reverse=True):
        fitting = [other for other in others if lengths[other] % (parts(other) * parts(axis)) == 0]
        if fitting:
            other = min(fitting, key=parts)
            if division[other]:  # XLA would gather an array axis instead of exchanging it over two mesh axes at once.
                steps.append(divided_blocks(lengths, tuple(division), order))
            division[other] += division[axis]
            division[axis] = ()
    steps.append(divided_blocks(lengths, tuple(division), order))
    # Replication has its own step, so that a call cuts out blocks of the weights before it exchanges them.
    replicated = [() if axis in padded else units for axis, units in enumerate(division)]
    steps.append(divided_blocks(lengths, tuple(replicated), order))
    return tuple(Layout(fft.decomposition.mesh, blocks) for blocks in dict.fromkeys(reversed(steps)))


@functools.lru_cache(maxsize=128)
def _drawing(shape: tuple[int, ...], sharding: NamedSharding, dtype: np.dtype) -> Callable[[Array], Array]:
    """Return the compiled program that draws weights. Each device draws only its own part."""
    deviation = 1 / math.sqrt(shape[1] + shape[2])
    return jax.jit(lambda key: deviation * jax.random.normal(key, shape, dtype), out_shardings=sharding)
