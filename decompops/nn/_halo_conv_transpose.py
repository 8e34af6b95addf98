"""`HaloConvTranspose`, `HaloConvTranspose2D` and `HaloConvTranspose3D`: a convolution to a finer grid."""

from typing import Any, get_args

import equinox as eqx
import jax
from jax import Array
from jaxtyping import Key, UInt32

from .._common.broadcast import along
from .._common.check import check_choice, check_count, check_flag, check_one_or_each
from .._common.keys import agreed_key
from .._core.decomposition import Decomposition
from .._operator.transform import real_dtype
from .._operator.unbound import MeshOrDecomposition, decomposition_of
from ._blocks import check_factor, finer, on_blocks
from ._channels import layer_title
from ._halo_conv import AbstractHaloConv, PaddingMode


class HaloConvTranspose(AbstractHaloConv):
    """A transposed convolution: `equinox.nn.ConvTranspose(ndim, ..., padding="SAME")` for sharded fields.

    The result lies on a grid that is finer by `stride`. The same key gives the same initial weights as Equinox's layer.
    With the weights of a `HaloConv` that has the same `stride` on the finer grid, flipped along the axes of the kernel
    and with the axes of the channels exchanged, the layer is the exact transpose of this `HaloConv`.

    !!! example

        ```python
        coarse = dops.Decomposition(mesh, shape=(32, 32, 32))
        layer = dops.nn.HaloConvTranspose(coarse, 3, 8, kernel_size=2, stride=2, key=jax.random.key(0))
        v = layer(u)        # (3, 32, 32, 32) to (8, 64, 64, 64)
        ```
    """

    conv: eqx.nn.ConvTranspose

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
        use_bias: bool = True,
        padding_mode: PaddingMode = "CIRCULAR",
        dtype: Any = None,
        key: Key[Array, ""] | UInt32[Array, "2"],
    ):
        """**Arguments:**

        - `mesh`: the `Decomposition` of the input. It may be a device mesh if `stride` is one.
        - `stride`: the factor between the lengths of the grids: one number for all axes, or one number for each axis.
        - `in_channels`, `out_channels`, `kernel_size`, `ndim`, `dilation`, `use_bias`, `padding_mode`, `dtype`, `key`:
            the same as in `HaloConv`.

        **Raises:** the errors of `HaloConv`; `ValueError` if `stride` is above one and `mesh` is not a `Decomposition`.
        """
        self.decomposition = decomposition_of(mesh, ndim=ndim)
        grid = self.decomposition.ndim
        self.padding_mode = check_choice("padding_mode", padding_mode, get_args(PaddingMode))
        self.conv = eqx.nn.ConvTranspose(
            grid,
            check_count("in_channels", in_channels),
            check_count("out_channels", out_channels),
            kernel_size=check_one_or_each("kernel_size", kernel_size, grid),
            stride=check_factor("stride", stride, self.decomposition, divides=False),
            dilation=check_one_or_each("dilation", dilation, grid),
            use_bias=check_flag("use_bias", use_bias),
            dtype=real_dtype(dtype),
            key=agreed_key(self.decomposition.mesh, key),
        )

    @property
    def title(self) -> str:
        return layer_title("HaloConvTranspose", self.decomposition.ndim)

    def result_grid(self, dec: Decomposition) -> Decomposition:
        return finer(dec, self.conv.stride)

    def convolved(self, x: Array) -> Array:
        dec, conv = self.decomposition, self.conv
        reaches = [distance * (cells - 1) for cells, distance in zip(conv.kernel_size, conv.dilation)]
        behind = [max(0, reach + 1 - stride) // 2 for reach, stride in zip(reaches, conv.stride)]
        pads = [(reach - own, stride - 1 + own) for reach, own, stride in zip(reaches, behind, conv.stride)]
        halo = [(low // stride, high // stride) for (low, high), stride in zip(pads, conv.stride)]

        def convolve(conv: eqx.nn.ConvTranspose, window: Array) -> Array:
            images = window.reshape(-1, *window.shape[-dec.ndim - 1 :])
            result = jax.lax.conv_general_dilated(
                images, conv.weight, (1,) * dec.ndim, pads, lhs_dilation=conv.stride, rhs_dilation=conv.dilation
            )
            result = result.reshape(*window.shape[: -dec.ndim - 1], *result.shape[1:])
            if conv.bias is None:
                return result
            return result + along(conv.bias.reshape(-1), -dec.ndim - 1, result.ndim)

        grids, periodic = (dec, self.result_grid(dec)), self.padding_mode == "CIRCULAR"
        return on_blocks(convolve, conv, x, grids, halo, periodic=periodic, rate=conv.stride)


def HaloConvTranspose2D(mesh: MeshOrDecomposition | None, *arguments: Any, **options: Any) -> HaloConvTranspose:
    """Return `HaloConvTranspose(mesh, ..., ndim=2)`, like `equinox.nn.ConvTranspose2d`."""
    return HaloConvTranspose(mesh, *arguments, ndim=2, **options)


def HaloConvTranspose3D(mesh: MeshOrDecomposition | None, *arguments: Any, **options: Any) -> HaloConvTranspose:
    """Return `HaloConvTranspose(mesh, ..., ndim=3)`, like `equinox.nn.ConvTranspose3d`."""
    return HaloConvTranspose(mesh, *arguments, ndim=3, **options)
