"""`FNO`, `FNO2D` and `FNO3D`: the Fourier neural operator."""

import string
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Float, Key, Shaped, UInt32

from .._common.broadcast import along
from .._common.check import as_number, check_count, check_flag, is_one_of
from .._common.keys import agreed_key
from .._common.placement import put
from .._core.structure import Structure
from .._operator.base import AbstractTyped
from .._operator.fft import FFT
from .._operator.placed import Placed
from ..spectral._check import check_fft
from ._channels import check_activation, check_channels, check_ndim, layer_title
from ._spectral_conv import SpectralConv
from ._unet import UNet, levels


class FNO(AbstractTyped):
    """The Fourier neural operator on periodic fields (Li et al., ICLR 2021).

    First, an affine map in each cell lifts `in_channels` channels to `width` channels. Then each of `depth` blocks
    computes `activation(spectral(v) + linear(v))`, where `spectral` is a `SpectralConv`, and `linear` is an affine map
    of the channels in each cell. Finally, a perceptron in each cell maps `width` channels to `out_channels` channels.
    The perceptron has one hidden layer of `2 * width` channels.

    The same weights work on every grid and on every mesh: the method `replace` changes the grid or the mesh. The
    operator commutes with translations, so it cannot know where in the box a cell lies. If the solution of your problem
    depends on the position in the box, pass coordinates as additional channels.

    The operator maps real fields. Pass the real and the imaginary part of complex fields as two channels.

    !!! example

        ```python
        fft = dops.FFT3D(mesh, shape=(64, 64, 64), real=True)
        model = dops.nn.FNO3D(fft, 1, 1, width=20, modes=12, depth=4, key=jax.random.key(0))
        v = eqx.filter_jit(model)(u)        # (1, 64, 64, 64) to (1, 64, 64, 64)
        ```
    """

    lifting: eqx.nn.Linear
    blocks: tuple["FNOBlock", ...]
    hidden: eqx.nn.Linear
    projection: eqx.nn.Linear
    activation: Callable
    checkpoint: bool = eqx.field(static=True)

    def __init__(
        self,
        fft: FFT,
        in_channels: int,
        out_channels: int,
        *,
        width: int,
        modes: Any,
        depth: int,
        unets: int = 0,
        unet_depth: int = 2,
        activation: Callable = jax.nn.gelu,
        checkpoint: bool = False,
        dtype: Any = None,
        key: Key[Array, ""] | UInt32[Array, "2"],
    ):
        """**Arguments:**

        - `fft`, `modes`, `dtype`: the same as in `SpectralConv`.
        - `in_channels`, `out_channels`: the number of channels of the input and of the result.
        - `width`: the number of channels in the blocks. Choose a multiple of the size of each mesh axis, so that mesh
            axes can shard the weights (see `SpectralConv`).
        - `depth`: the number of blocks.
        - `unets`: the number of blocks, at the end, that also have a U-Net: see `UFNO`.
        - `unet_depth`: the `depth` of each `UNet`, the number of its coarser grids.
        - `activation`: a function that is applied to each number separately. It may be an `equinox.Module` with
            parameters.
        - `checkpoint`: if true, a gradient stores only the input of each block and computes the block again. This saves
            memory, and increases the number of transforms by half.
        - `key`: a key of `jax.random`. The weights do not depend on the mesh or the grid.

        **Raises:** the errors of `SpectralConv` and `UNet`; `ValueError` if `fft` is complex, if `width`, `depth` or
        `unet_depth` is below one, or if `unets` is negative or above `depth`; `TypeError` if `activation` cannot be
        called.
        """
        if check_fft(fft) and fft.takes_complex:
            raise ValueError(
                "`fft` must be built with `real=True`, because the operator maps real fields; got a complex transform. "
                "Pass the real and the imaginary part of complex fields as two channels."
            )
        depth = check_count("depth", depth)
        if not is_one_of(unets := as_number(unets), range(depth + 1)):
            raise ValueError(f"`unets` must be an integer from zero to `depth`, {depth}; got {unets!r}.")
        lifting, hidden, projection, *keys = jax.random.split(agreed_key(fft.decomposition.mesh, key), 3 + depth)
        width, in_channels = check_count("width", width), check_count("in_channels", in_channels)
        out_channels = check_count("out_channels", out_channels)
        check_count("unet_depth", unet_depth)
        if unets:
            levels(fft.decomposition, unet_depth, "unet_depth")
        unet_depths = [None] * (depth - unets) + [unet_depth] * unets
        self.blocks = tuple(
            FNOBlock(fft, width, modes, check_activation(activation), unet_depth=number, dtype=dtype, key=key)
            for number, key in zip(unet_depths, keys)
        )
        self.lifting = eqx.nn.Linear(in_channels, width, dtype=dtype, key=lifting)
        self.hidden = eqx.nn.Linear(width, 2 * width, dtype=dtype, key=hidden)
        self.projection = eqx.nn.Linear(2 * width, out_channels, dtype=dtype, key=projection)
        self.activation = activation
        self.checkpoint = check_flag("checkpoint", checkpoint)

    @property
    def title(self) -> str:
        ndim = self.blocks[0].spectral.fft.decomposition.ndim
        return layer_title("FNO", ndim) if self.blocks[-1].unet is None else "UFNO"

    @property
    def in_structure(self) -> Structure:
        return replace(self.blocks[0].spectral.in_structure, components=(self.lifting.weight.shape[1],))

    def result_structure(self, given: Structure) -> Structure:
        return replace(self.in_structure, components=(self.projection.weight.shape[0],)).following(given)

    def __call__(self, x: Shaped[Array | np.ndarray, "*field"], *, key: Any = None) -> Float[Array, "*result"]:
        """Apply the operator.

        **Arguments:**

        - `x`: real fields of shape `(*batch, in_channels, nx, ny, nz)`.
        - `key`: ignored. `eqx.nn.Sequential` passes it.

        **Returns:** real fields of shape `(*batch, out_channels, nx, ny, nz)`.

        **Raises:** `ValueError` if `x` does not have the shape `(*batch, in_channels, nx, ny, nz)`.
        """
        # Between the first and the last layer, the padding holds biases instead of zeros. The padding affects no cell,
        # because transforms do not read the padding. The padding affects no gradient of a weight, because the last step
        # clears the padding.
        decomposition = self.blocks[0].spectral.fft.decomposition
        cleared, ndim = Placed(decomposition), decomposition.ndim
        v = pointwise(self.lifting, cleared(check_channels(x, self.lifting.weight.shape[1], ndim)), ndim)
        for block in self.blocks:
            v = (eqx.filter_checkpoint(block) if self.checkpoint else block)(v)
        return cleared(pointwise(self.projection, self.activation(pointwise(self.hidden, v, ndim)), ndim))

    def replace(self, *, fft: FFT) -> "FNO":
        """Return the same operator on another grid in the same box, or on another mesh. See `SpectralConv.replace`.

        A gradient with respect to the operator is a module of the same structure, so `gradient.replace(fft=fft)` moves
        the gradient to the other grid or mesh. The same holds for the moments in the state of an optimizer.

        **Arguments:**

        - `fft`: the transform on the other grid or mesh, built with `real=True` and a `shape`.

        **Raises:** the errors of `SpectralConv.replace`.
        """
        everywhere = NamedSharding(fft.decomposition.mesh, PartitionSpec())

        def move(part: Any) -> Any:
            if isinstance(part, SpectralConv):
                return part.replace(fft=fft)
            if isinstance(part, UNet):
                return part.replace(decomposition=fft.decomposition)
            return put(part, everywhere) if eqx.is_array(part) else part

        return jax.tree.map(move, self, is_leaf=lambda part: isinstance(part, SpectralConv | UNet))


class FNOBlock(eqx.Module):
    """One block of a Fourier neural operator: `activation(spectral(v) + linear(v))`, or with `+ unet(v)`."""

    spectral: SpectralConv
    linear: eqx.nn.Linear
    unet: UNet | None
    activation: Callable

    def __init__(
        self,
        fft: FFT,
        width: int,
        modes: Any,
        activation: Callable,
        *,
        unet_depth: int | None = None,
        dtype: Any,
        key: Array,
    ):
        spectral, linear = jax.random.split(key)
        self.spectral = SpectralConv(fft, width, width, modes, dtype=dtype, key=spectral)
        self.linear = eqx.nn.Linear(width, width, dtype=dtype, key=linear)
        self.unet, self.activation = None, activation
        if unet_depth is not None:
            # A key that is folded in leaves the other weights as they are without a U-Net.
            key, options = jax.random.fold_in(key, 2), {"activation": activation, "dtype": dtype}
            self.unet = UNet(fft.decomposition, width, width, width=width, depth=unet_depth, **options, key=key)

    def __call__(self, v: Array) -> Array:
        total = self.spectral(v) + pointwise(self.linear, v, self.spectral.fft.decomposition.ndim)
        if self.unet is not None:
            # With weights of half precision, the fields of the other layers stay in single precision.
            dtype = self.unet.projection.conv.weight.dtype
            total = total + self.unet(v.astype(dtype) if dtype.itemsize < 4 else v).astype(total.dtype)
        return self.activation(total)


def FNO2D(fft: FFT, *arguments: Any, **options: Any) -> FNO:
    """Return `FNO(fft, ...)`. Raise `ValueError` if the grid of `fft` does not have two axes."""
    return FNO(check_ndim(fft, 2), *arguments, **options)


def FNO3D(fft: FFT, *arguments: Any, **options: Any) -> FNO:
    """Return `FNO(fft, ...)`. Raise `ValueError` if the grid of `fft` does not have three axes."""
    return FNO(check_ndim(fft, 3), *arguments, **options)


def UFNO(fft: FFT, *arguments: Any, depth: int, unets: int | None = None, **options: Any) -> FNO:
    """Return `FNO(fft, ..., unets=unets)`: the U-FNO, an `FNO` whose last blocks also have a U-Net.

    These blocks compute `activation(spectral(v) + linear(v) + unet(v))`. The `UNet` computes what the few modes of the
    spectral convolution leave out, such as fronts. It has `width` channels on the grid of the fields and `unet_depth`
    coarser grids, so `2**unet_depth` must divide the lengths of the grid. By default, half of the blocks have a U-Net,
    or one more if `depth` is odd. As in `HaloConv`, a sharded batch is a leading axis, without `jax.vmap`.

    Source: G. Wen, Z. Li, K. Azizzadenesheli, A. Anandkumar & S. M. Benson, U-FNO, Adv. Water Resour. 163, 2022. The
    U-Nets of the paper have three coarser grids, with the same number of channels on all grids, and normalise over the
    batch. Here, they are `UNet`s, whose channels double, and which normalise each field (with one group).

    !!! example

        ```python
        fft = dops.FFT3D(mesh, shape=(64, 64, 64), real=True)
        model = dops.nn.UFNO(fft, 1, 1, width=8, modes=12, depth=2, key=jax.random.key(0))
        v = eqx.filter_jit(model)(u)        # (1, 64, 64, 64) to (1, 64, 64, 64)
        ```
    """
    half = (check_count("depth", depth) + 1) // 2
    return FNO(fft, *arguments, depth=depth, unets=half if unets is None else unets, **options)


def pointwise(linear: eqx.nn.Linear, x: Array, ndim: int) -> Array:
    """Apply an affine map to the channels in each cell. The grid has `ndim` axes."""
    grid = string.ascii_uppercase[:ndim]
    y = jnp.einsum(f"oi,...i{grid}->...o{grid}", linear.weight, x)
    return y if linear.bias is None else y + along(linear.bias, -ndim - 1, y.ndim)
