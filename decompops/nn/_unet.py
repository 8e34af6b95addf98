"""`UNet`: an encoder-decoder of convolutions on several grids, with skip connections."""

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

from .._common.check import check_count
from .._common.host import device_array
from .._common.keys import agreed_key
from .._common.placement import put
from .._core.decomposition import Decomposition, check_decomposition
from .._core.structure import Structure
from .._operator.base import AbstractTyped
from ._blocks import coarser
from ._channels import check_activation
from ._group_norm import GroupNorm
from ._halo_conv import HaloConv, PaddingMode
from ._halo_conv_transpose import HaloConvTranspose


class UNet(AbstractTyped):
    """A U-Net: an encoder to coarser and coarser grids, and a decoder back to the grid of the input.

    Level 0 is the grid of the input. Each of the `depth` levels below it has half as many cells along each axis, and
    twice as many channels: level l has `width * 2**l` channels.

    - Each level has a block: twice a `HaloConv`, a `GroupNorm` and the activation.
    - A `HaloConv` with `kernel_size=2` and `stride=2` leads from the block of a level to the next level.
    - On the way back, a `HaloConvTranspose` with `kernel_size=2` and `stride=2` leads to the finer level. There, the
        result of the encoder is appended to its channels, and a second block halves their number.
    - Finally, an affine map in each cell maps `width` channels to `out_channels` channels.

    The weights have the same shapes and values on every mesh and grid. Neighbours exchange the halos of convolutions,
    and `GroupNorm` sums a few numbers over all devices. Choose lengths that the mesh divides on all levels: devices
    then exchange nothing between levels. As in `HaloConv`, a sharded batch is a leading axis, without `jax.vmap`.

    Source: O. Ronneberger, P. Fischer & T. Brox, U-Net: convolutional networks for biomedical image segmentation,
    MICCAI 2015. The original pools by the maximum, and has no normalisation.

    !!! example

        ```python
        dec = dops.Decomposition(mesh, shape=(64, 64, 64))
        model = dops.nn.UNet(dec, 3, 1, width=8, depth=2, key=jax.random.key(0))
        v = eqx.filter_jit(model)(u)        # (3, 64, 64, 64) to (1, 64, 64, 64)
        ```
    """

    encoder: tuple["ConvBlock", ...]
    down: tuple[HaloConv, ...]
    up: tuple[HaloConvTranspose, ...]
    decoder: tuple["ConvBlock", ...]
    projection: HaloConv

    def __init__(
        self,
        decomposition: Decomposition,
        in_channels: int,
        out_channels: int,
        *,
        width: int,
        depth: int,
        kernel_size: Any = 3,
        groups: int | None = 1,
        activation: Callable = jax.nn.gelu,
        padding_mode: PaddingMode = "CIRCULAR",
        dtype: Any = None,
        key: Key[Array, ""] | UInt32[Array, "2"],
    ):
        """**Arguments:**

        - `decomposition`: the `Decomposition` of the input and of the result.
        - `in_channels`, `out_channels`: the number of channels of the input and of the result.
        - `width`: the number of channels on the grid of the input.
        - `depth`: the number of coarser grids. Each length of the grid must be divisible by `2**depth`.
        - `kernel_size`, `padding_mode`, `dtype`: the same as in `HaloConv`. `kernel_size` belongs to the convolutions
            within a level.
        - `groups`: the number of groups of each `GroupNorm`; it divides `width`. `None` for no normalisation.
        - `activation`: a function that is applied to each number separately. It may be an `equinox.Module` with
            parameters.
        - `key`: a key of `jax.random`. The weights do not depend on the mesh or the grid.

        **Raises:** the errors of `HaloConv` and `GroupNorm`; `TypeError` if `decomposition` is not a `Decomposition`,
        or if `activation` cannot be called; `ValueError` if `width` or `depth` is below one, if `groups` does not
        divide `width`, or if `2**depth` does not divide the grid.
        """
        check_activation(activation)
        width, grids = check_count("width", width), levels(check_decomposition(decomposition), depth)
        if groups is not None and width % check_count("groups", groups):
            raise ValueError(f"`groups` must divide `width`, {width}; got {groups}.")
        widths = [width * 2**level for level in range(depth + 1)]
        keys = iter(jax.random.split(agreed_key(decomposition.mesh, key), 4 * depth + 2))
        options = {"padding_mode": padding_mode, "dtype": dtype}

        def block(level: int, channels: int) -> ConvBlock:
            within = {"kernel_size": kernel_size, **options}
            return ConvBlock(grids[level], channels, widths[level], groups, activation, within, key=next(keys))

        def between(layer: Callable, source: int, target: int) -> Any:
            scale = {"kernel_size": 2, "stride": 2, **options}
            return layer(grids[source], widths[source], widths[target], **scale, key=next(keys))

        self.encoder = tuple(block(level, widths[level] if level else in_channels) for level in range(depth + 1))
        self.down = tuple(between(HaloConv, level, level + 1) for level in range(depth))
        self.up = tuple(between(HaloConvTranspose, level + 1, level) for level in range(depth))
        self.decoder = tuple(block(level, widths[level + 1]) for level in range(depth))
        self.projection = HaloConv(decomposition, width, out_channels, 1, dtype=dtype, key=next(keys))

    @property
    def decomposition(self) -> Decomposition:
        """The decomposition of the input and of the result."""
        return self.projection.decomposition

    @property
    def in_structure(self) -> Structure:
        return self.encoder[0].convs[0].in_structure

    def result_structure(self, given: Structure) -> Structure:
        return replace(self.projection.out_structure, layout=self.in_structure.layout).following(given)

    def __call__(self, x: Shaped[Array | np.ndarray, "*field"], *, key: Any = None) -> Float[Array, "*result"]:
        """Apply the network.

        **Arguments:**

        - `x`: real fields of shape `(*batch, in_channels, nx, ny, nz)`.
        - `key`: ignored. `eqx.nn.Sequential` passes it.

        **Returns:** real fields of shape `(*batch, out_channels, nx, ny, nz)`.

        **Raises:** `ValueError` if `x` does not have the shape `(*batch, in_channels, nx, ny, nz)`.
        """
        v, kept = self.encoder[0](device_array(x)), []
        for down, block in zip(self.down, self.encoder[1:]):
            kept.append(v)
            v = block(down(v))
        for up, block, encoded in zip(self.up[::-1], self.decoder[::-1], kept[::-1]):
            v = block(jnp.concatenate((encoded, up(v)), axis=-self.decomposition.ndim - 1))
        return self.projection(v)

    def replace(self, *, decomposition: Decomposition) -> "UNet":
        """Return the same network on another grid, or on another mesh. Gradients are moved in the same way.

        **Arguments:**

        - `decomposition`: the `Decomposition` of the other grid. It has as many axes as the present grid.

        **Raises:** `TypeError` if `decomposition` is not a `Decomposition`; `ValueError` if it has another number of
        axes, or if the grid is not divisible by `2**depth`.
        """
        depth, here, there = len(self.down), self.decomposition, check_decomposition(decomposition)
        if there.ndim != here.ndim:
            raise ValueError(f"`decomposition` must have {here.ndim} axes, like the grid of the network; got {there}.")
        # The grids of a gradient have the same shapes, but may lack the numbers of a box.
        moved = {old.shape: new for old, new in zip(levels(here, depth), levels(there, depth))}
        everywhere = NamedSharding(there.mesh, PartitionSpec())

        def move(part: Any) -> Any:
            if isinstance(part, Decomposition):
                return moved[part.shape]
            return put(part, everywhere) if eqx.is_array(part) else part

        return jax.tree.map(move, self, is_leaf=lambda part: isinstance(part, Decomposition))


class ConvBlock(eqx.Module):
    """Twice a convolution, a normalisation and an activation, on one level of a U-Net."""

    convs: tuple[HaloConv, HaloConv]
    norms: tuple[Callable, Callable]
    activation: Callable

    def __init__(
        self,
        dec: Decomposition,
        in_channels: int,
        out_channels: int,
        groups: int | None,
        activation: Callable,
        options: dict[str, Any],
        *,
        key: Array,
    ):
        first, second = jax.random.split(key)
        self.convs = (
            HaloConv(dec, in_channels, out_channels, key=first, **options),
            HaloConv(dec, out_channels, out_channels, key=second, **options),
        )
        norm = lambda: (
            eqx.nn.Identity() if groups is None else GroupNorm(dec, groups, out_channels, dtype=options["dtype"])
        )
        self.norms, self.activation = (norm(), norm()), activation

    def __call__(self, v: Array) -> Array:
        for conv, norm in zip(self.convs, self.norms):
            v = self.activation(norm(conv(v)))
        return v


def levels(dec: Decomposition, depth: Any, name: str = "depth") -> list[Decomposition]:
    """Return the grids of all levels, from `dec` to the coarsest. `name` is the name of `depth` in errors.

    **Raises:** `ValueError` unless `depth` is a positive integer and `2**depth` divides the lengths of the grid.
    """
    depth = check_count(name, depth)
    most = min((n & -n).bit_length() - 1 for n in dec.shape)
    if depth > most:
        advice = f"Pass `{name}={most}`, or another grid." if most else "Pass another grid, of even lengths."
        raise ValueError(
            f"`{name}` must be such that 2**{name} divides the lengths of the grid, {dec.shape}; got {depth}. {advice}"
        )
    grids = [dec]
    for _ in range(depth):
        grids.append(coarser(grids[-1], (2,) * dec.ndim))
    return grids
