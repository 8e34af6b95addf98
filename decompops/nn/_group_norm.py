"""`GroupNorm` and `LayerNorm`: normalisation over channels and the grid."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, Shaped

from .._basis.fourier import field_dtype
from .._common.check import check_count, check_flag, check_number
from .._core.structure import Structure
from .._operator.base import AbstractTyped
from .._operator.placed import Placed
from .._operator.transform import real_dtype
from .._operator.unbound import MeshOrDecomposition, OperatorDecomposition, bound, decomposition_of
from ..spectral._check import check_real
from ._channels import placed_channels


class GroupNorm(AbstractTyped):
    """Normalise groups of channels to mean 0 and variance 1: `equinox.nn.GroupNorm` for sharded fields.

    The mean and the variance are those of the cells of the whole grid, without padding, for each entry of a batch.
    With one group, this is the layer norm over channels and grid; with a group for each channel, it is the instance
    norm. A call communicates two numbers for each channel and batch entry. Fields of less than 32 bits are normalised
    in float32.

    Source: Y. Wu & K. He, Group normalization, ECCV 2018.

    !!! example

        ```python
        norm = dops.nn.GroupNorm(mesh, groups=1, channels=3)
        v = norm(u)         # both have the shape (*batch, 3, nx, ny, nz)
        ```
    """

    norm: eqx.nn.GroupNorm
    decomposition: OperatorDecomposition
    channels: int = eqx.field(static=True)

    def __init__(
        self,
        mesh: MeshOrDecomposition | None,
        groups: int,
        channels: int,
        *,
        ndim: int | None = None,
        eps: float = 1e-5,
        channelwise_affine: bool = True,
        dtype: Any = None,
    ):
        """**Arguments:**

        - `mesh`: the device mesh, or a `Decomposition`. If the mesh does not divide the grid, pass a `Decomposition`
            that was built with a `shape` and `pad=True`.
        - `groups`: the number of groups of consecutive channels; it divides `channels`.
        - `channels`: the number of channels.
        - `ndim`: the number of axes of the grid. The default is the number of axes of the `Decomposition`, or 3 if
            `mesh` is a device mesh.
        - `eps`: a positive number that is added to the variance.
        - `channelwise_affine`: whether each channel is then multiplied by a weight, and a bias is added. The layer
            learns both; they begin as 1 and 0.
        - `dtype`: the real dtype of weights and biases; `None` for JAX's default.

        **Raises:** the errors of `decompops.Decomposition`; `ValueError` if a number is not positive, or if `groups`
        does not divide `channels`; `TypeError` if `dtype` is not real.
        """
        self.decomposition = decomposition_of(mesh, ndim=ndim)
        self.channels = check_count("channels", channels)
        if self.channels % check_count("groups", groups):
            raise ValueError(f"`groups` must divide `channels`, {channels}; got {groups}.")
        self.norm = eqx.nn.GroupNorm(
            groups,
            self.channels,
            eps=check_number("eps", eps, positive=True),
            channelwise_affine=check_flag("channelwise_affine", channelwise_affine),
            dtype=real_dtype(dtype),
        )

    @property
    def in_structure(self) -> Structure:
        field = Placed(self.decomposition).in_structure
        return replace(field, kind="real", space="field", components=(self.channels,))

    def result_structure(self, given: Structure) -> Structure:
        return self.in_structure.following(given)

    def __call__(self, x: Shaped[Array | np.ndarray, "*field"], *, key: Any = None) -> Float[Array, "*result"]:
        """Normalise fields.

        **Arguments:**

        - `x`: real fields of shape `(*batch, channels, nx, ny, nz)`.
        - `key`: ignored. `eqx.nn.Sequential` passes it.

        **Returns:** fields of the shape and the dtype of `x`; of integers, fields of floating-point numbers.

        **Raises:** `ValueError` if `x` does not have the shape `(*batch, channels, nx, ny, nz)`; `TypeError` if `x` is
        complex.
        """
        if not self.is_bound:
            return bound(self, x)(x)
        dec = self.decomposition
        x = placed_channels(x, self.channels, dec)
        check_real("x", x)
        u = x.astype(field_dtype(x.dtype))
        over_grid = lambda numbers: jnp.expand_dims(numbers.astype(u.dtype), tuple(range(-dec.ndim, 0)))
        # A small matrix takes the means over groups. Reshaping the channels could mix them with a sharded batch.
        groups = self.norm.groups
        size = self.channels // groups
        means = np.kron(np.eye(groups), np.full((size, size), 1 / size)).astype(u.dtype)
        mean_of = lambda fields: jnp.matmul(dec.mean(fields), means, precision=lax.Precision.HIGHEST)
        u = u - over_grid(mean_of(u))
        u = u * over_grid(lax.rsqrt(mean_of(u**2) + self.norm.eps))
        if self.norm.weight is not None and self.norm.bias is not None:
            each = lambda parameter: lax.broadcast_to_rank(over_grid(parameter), u.ndim)
            u = u * each(self.norm.weight) + each(self.norm.bias)
        return Placed(dec)(u.astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else u)


def LayerNorm(mesh: MeshOrDecomposition | None, channels: int, **options: Any) -> GroupNorm:
    """Return `GroupNorm(mesh, 1, channels, ...)`: the mean is taken over all channels and cells of a field.

    The weights belong to channels, not to cells, so they fit every grid.
    """
    return GroupNorm(mesh, 1, channels, **options)
