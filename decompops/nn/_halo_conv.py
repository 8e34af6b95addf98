"""`HaloConv`, `HaloConv2D` and `HaloConv3D`: a convolution with a small kernel."""

from abc import abstractmethod
from dataclasses import replace
from typing import Any, Literal, get_args

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Key, Shaped, UInt32

from .._common.check import check_choice, check_count, check_flag, check_one_or_each
from .._common.keys import agreed_key
from .._common.remember import in_one_program
from .._core.decomposition import Decomposition
from .._core.structure import Structure
from .._operator.base import AbstractTyped
from .._operator.placed import Placed
from .._operator.transform import real_dtype
from .._operator.unbound import MeshOrDecomposition, OperatorDecomposition, bound, decomposition_of
from ._blocks import check_factor, coarser, on_blocks, resized
from ._channels import layer_title, placed_channels


PaddingMode = Literal["CIRCULAR", "ZEROS"]


class AbstractHaloConv(AbstractTyped):
    """A convolution of the blocks of a field, whose result may lie on another grid."""

    conv: eqx.nn.Conv | eqx.nn.ConvTranspose
    decomposition: OperatorDecomposition
    padding_mode: PaddingMode = eqx.field(static=True)

    @property
    def in_structure(self) -> Structure:
        field = Placed(self.decomposition).in_structure
        return replace(field, kind="real", space="field", components=(self.conv.in_channels,))

    def result_structure(self, given: Structure) -> Structure:
        field = replace(self.in_structure, components=(self.conv.out_channels,))
        return resized(field, self.result_grid(self.decomposition) if self.is_bound else None).following(given)

    def __call__(self, x: Shaped[Array | np.ndarray, "*field"], *, key: Any = None) -> Float[Array, "*result"]:
        """Apply the convolution.

        **Arguments:**

        - `x`: real fields of shape `(*batch, in_channels, nx, ny, nz)`.
        - `key`: ignored. `eqx.nn.Sequential` passes it.

        **Returns:** real fields of shape `(*batch, out_channels, nx, ny, nz)`; with a stride, on the other grid.

        **Raises:** `ValueError` if `x` does not have the shape `(*batch, in_channels, nx, ny, nz)`; `TypeError` if `x`
        does not have the dtype of the weights.
        """
        if not self.is_bound:
            return bound(self, x)(x)
        x, dtype = placed_channels(x, self.conv.in_channels, self.decomposition), self.conv.weight.dtype
        if x.dtype != dtype:
            raise TypeError(
                f"`x` must have the dtype of the weights, {dtype}; got {x.dtype}. Call `x.astype({dtype})`."
            )
        return _convolved(self, x)

    @abstractmethod
    def result_grid(self, dec: Decomposition) -> Decomposition:
        """Return the grid of the result for fields on the grid `dec`."""

    @abstractmethod
    def convolved(self, x: Array) -> Array:
        """Return the result for fields with the right channels."""


@in_one_program
def _convolved(layer: AbstractHaloConv, x: Array) -> Array:
    return layer.convolved(x)


class HaloConv(AbstractHaloConv):
    """A convolution with a small kernel: `equinox.nn.Conv(ndim, ..., padding="SAME")` for sharded fields.

    The layer computes the same values and gradients as Equinox's layer on the whole grid. The same key gives the same
    initial weights. Devices exchange the halo that the kernel needs, and sum the gradients of the weights. Pass a
    sharded batch as a leading axis of the field. Do not use `jax.vmap` for a sharded batch: it gathers a batch that an
    Explicit mesh axis shards, and the option `spmd_axis_name` of `jax.vmap` does not work with this layer.

    !!! example

        ```python
        layer = dops.nn.HaloConv3D(mesh, 3, 8, kernel_size=3, key=jax.random.key(0))
        v = layer(u)        # (3, nx, ny, nz) to (8, nx, ny, nz)
        ```
    """

    conv: eqx.nn.Conv

    def __init__(
        self,
        mesh: MeshOrDecomposition | None,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        *,
        stride: Any = 1,
        ndim: int | None = None,
        dilation: Any = 1,
        groups: int = 1,
        use_bias: bool = True,
        padding_mode: PaddingMode = "CIRCULAR",
        dtype: Any = None,
        key: Key[Array, ""] | UInt32[Array, "2"],
    ):
        """**Arguments:**

        - `mesh`: the device mesh, or a `Decomposition`. If the mesh does not divide the grid, pass a `Decomposition`
            that was built with a `shape` and `pad=True`.
        - `in_channels`, `out_channels`: the number of channels of the input and of the result.
        - `kernel_size`: the number of kernel cells: one number for all axes, or one number for each axis. A kernel with
            an even number of cells has one more cell after the central cell than before it.
        - `stride`: the distance between the cells at which the result is computed: one number for all axes, or one
            number for each axis. It must divide the lengths of the grid. The result lies on a grid that is coarser by
            `stride`, and is padded where the mesh does not divide that grid.
        - `ndim`: the number of axes of the grid. The default is the number of axes of the `Decomposition`, or 3 if
            `mesh` is a device mesh.
        - `dilation`: the distance between kernel cells: one number for all axes, or one number for each axis.
        - `groups`: the number of groups of channels. Each group is convolved separately.
        - `use_bias`: whether to add a bias to each channel.
        - `padding_mode`: "CIRCULAR" for a periodic grid, "ZEROS" for zeros outside the grid.
        - `dtype`: the real dtype of the weights; `None` for JAX's default.
        - `key`: a key of `jax.random`.

        **Raises:** the errors of `decompops.Decomposition`; `ValueError` if a number is not a positive integer, if
        `groups` does not divide both numbers of channels, or if `padding_mode` is unknown; `TypeError` if `dtype` is
        not real.
        """
        self.decomposition = decomposition_of(mesh, ndim=ndim)
        grid = self.decomposition.ndim
        self.padding_mode = check_choice("padding_mode", padding_mode, get_args(PaddingMode))
        channels = check_count("in_channels", in_channels), check_count("out_channels", out_channels)
        groups = check_count("groups", groups)
        if any(count % groups for count in channels):
            raise ValueError(f"`groups` must divide `in_channels` and `out_channels`, {channels}; got {groups}.")
        self.conv = eqx.nn.Conv(
            grid,
            *channels,
            kernel_size=check_one_or_each("kernel_size", kernel_size, grid),
            stride=check_factor("stride", stride, self.decomposition, divides=True),
            dilation=check_one_or_each("dilation", dilation, grid),
            groups=groups,
            use_bias=check_flag("use_bias", use_bias),
            dtype=real_dtype(dtype),
            key=agreed_key(self.decomposition.mesh, key),
        )

    @property
    def title(self) -> str:
        return layer_title("HaloConv", self.decomposition.ndim)

    def result_grid(self, dec: Decomposition) -> Decomposition:
        return coarser(dec, self.conv.stride)

    def convolved(self, x: Array) -> Array:
        dec, conv = self.decomposition, self.conv
        # The halo has as many cells on each side as Equinox adds with `padding="SAME"`.
        extents = [distance * (cells - 1) + 1 for cells, distance in zip(conv.kernel_size, conv.dilation)]
        sums = [max(0, extent - stride) for extent, stride in zip(extents, conv.stride)]
        halo = [(total // 2, total - total // 2) for total in sums]
        axes = [",".join(f"{kind}{axis}" for axis in range(dec.ndim)) for kind in ("extended", "block")]
        mapped = lambda conv, block: jnp.vectorize(conv, signature=f"(in,{axes[0]})->(out,{axes[1]})")(block)
        grids, periodic = (dec, self.result_grid(dec)), self.padding_mode == "CIRCULAR"
        return on_blocks(mapped, conv, x, grids, halo, periodic=periodic)


def HaloConv2D(mesh: MeshOrDecomposition | None, *arguments: Any, **options: Any) -> HaloConv:
    """Return `HaloConv(mesh, ..., ndim=2)`: the convolution on grids of two axes, like `equinox.nn.Conv2d`."""
    return HaloConv(mesh, *arguments, ndim=2, **options)


def HaloConv3D(mesh: MeshOrDecomposition | None, *arguments: Any, **options: Any) -> HaloConv:
    """Return `HaloConv(mesh, ..., ndim=3)`: the convolution on grids of three axes, like `equinox.nn.Conv3d`."""
    return HaloConv(mesh, *arguments, ndim=3, **options)
