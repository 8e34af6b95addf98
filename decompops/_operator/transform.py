"""Transforms along every axis of a grid, each in a basis of its own."""

import abc
import functools
import math
import operator
from typing import TYPE_CHECKING, Any, ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from equinox import AbstractVar
from jax import Array
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Float

from .._basis.base import AbstractBasis
from .._blocks import Blocks
from .._box import Box, check_box
from .._check import check_shape, check_up_to
from .._plan.plan import Plan
from .._plan.transform import Norm, transform_plan
from .._sharding import manual_axes, place
from .._structure import Space
from .planned import AbstractPlanned


Wavenumbers = tuple[Float[Array, "_ _ _"], ...]


class AbstractTransform(AbstractPlanned):
    """A transform of fields in z-pencils along every axis of the grid; the spectrum lies in x-pencils."""

    if TYPE_CHECKING:  # Type checkers treat an `AbstractVar` as a constructor argument.
        norm: ClassVar[Norm]
        axis_contiguous: ClassVar[bool]
        modes: ClassVar[tuple[int, ...] | None]
    else:
        norm: AbstractVar[Norm]
        axis_contiguous: AbstractVar[bool]
        modes: AbstractVar[tuple[int, ...] | None]

    spaces: ClassVar[tuple[Space | None, Space | None]] = ("field", "spectrum")

    @property
    @abc.abstractmethod
    def bases(self) -> tuple[AbstractBasis, ...]:
        """The basis of each axis of the grid."""

    def plan(self, shape: tuple[int, ...]) -> Plan:
        dec, size = self.decomposition, math.prod(shape)
        scale = {"backward": 1.0, "ortho": 1 / math.sqrt(size), "forward": 1 / size}[self.norm]
        source, target, kept = dec.blocks("z", shape), self._spectrum(shape), self.modes or shape
        return transform_plan(self.__name__, source, target, self.bases, kept, dec.pencil, scale=scale)

    def wavenumbers(
        self, shape: Any = None, box: Box = Box(), *, dtype: Any = None, nyquist: bool = True
    ) -> Wavenumbers:
        """Angular wavenumbers `(kx, ky, kz)` of the spectrum, broadcastable against it and sharded like it.

        Inside a `shard_map` over the mesh they are those of the block, broadcastable against `fft.local(block)`.

        **Arguments:**

        - `shape`: the grid shape `(nx, ny, nz)`; needed only if the operator was built without one.
        - `box`: the periodic box.
        - `dtype`: a real dtype; `None` for JAX's default, float64 in 64-bit mode and else float32.
        - `nyquist`: `False` puts zero for the Nyquist wavenumber of an even number of modes. That mode stands for
            both signs at once, so whatever is odd in it, such as a first derivative, vanishes.

        **Returns:** three real arrays, in radians per unit of length, in the order x, y, z whatever the storage
        order. Padding has wavenumber zero.

        **Raises:** `ValueError` without a shape, for a shape other than the operator's, and for a box with another
        number of axes; `TypeError` for a `box` that is not a `Box` and a dtype that is not real.
        """
        shape = self._known_shape(shape)
        lengths = cast(tuple, check_box(box, len(shape)).lengths)
        dtype = real_dtype(dtype)
        blocks, kept, mesh = self._spectrum(shape), self.modes or shape, self.decomposition.mesh

        def along(axis: int) -> Array:
            values = self.bases[axis].wavenumbers(kept[axis], nyquist=nyquist)
            length = lengths[axis]
            if isinstance(length, float):  # divided in double precision, and only then rounded to `dtype`
                return _along(blocks, axis, values / length, mesh, dtype)
            return _along(blocks, axis, values, mesh, dtype) / jnp.asarray(length, dtype)

        return tuple(map(along, range(blocks.ndim)))

    def multiplicity(self, shape: Any = None, *, dtype: Any = None) -> Float[Array, "_ _ _"]:
        """How many modes of the full spectrum each stored mode stands for, broadcastable against the spectrum.

        Two for the modes of a half spectrum whose complex conjugates are not stored, else one, and zero in padding:
        the weights for sums over the spectrum, such as that of Parseval's theorem. Arguments as of `wavenumbers`.
        """
        shape = self._known_shape(shape)
        blocks, mesh, dtype = self._spectrum(shape), self.decomposition.mesh, real_dtype(dtype)
        kept, factors = self.modes or shape, []
        for axis, basis in enumerate(self.bases):
            counts = basis.multiplicity(shape[axis], kept[axis])
            if axis == blocks.ndim - 1 or blocks.is_padded(axis) or (counts != 1).any():
                factors.append(_along(blocks, axis, counts, mesh, dtype))
        return functools.reduce(operator.mul, factors)

    def _spectrum(self, shape: tuple[int, ...]) -> Blocks:
        """How the spectrum is cut into blocks."""
        stored = tuple(basis.stored(n) for basis, n in zip(self.bases, self.modes or shape))
        return self.decomposition.pencil(0, stored, axis_contiguous=self.axis_contiguous)

    def _known_shape(self, shape: Any) -> tuple[int, ...]:
        own = self.decomposition.shape
        known = own if shape is None else check_shape("shape", shape)
        if known is None:
            raise ValueError("`shape` must be given to the operator, or here; got None.")
        if own not in (None, known):
            raise ValueError(f"`shape` must be that of the operator, {own}; got {shape}.")
        return known


def check_modes(modes: Any, shape: Any) -> tuple[int, ...] | None:
    if modes is None:
        return None
    if shape is None:
        raise ValueError(f"`shape` must be given with `modes`; got None and {modes!r}.")
    kept = check_up_to("modes", modes, shape, "modes along x, y, z")
    return None if kept == shape else kept


def real_dtype(dtype: Any) -> np.dtype:
    """`dtype`, or JAX's default of the real ones."""
    dtype = jnp.zeros((), dtype).dtype
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"`dtype` must be real; got {dtype}.")
    return dtype


def _along(blocks: Blocks, axis: int, values: np.ndarray, mesh: Mesh | AbstractMesh, dtype: Any) -> Array:
    """`values` along grid axis `axis` of `blocks`, padded with zeros, of length 1 along the others."""
    position = blocks.position(axis)
    padding = blocks.shape[position] - len(values)
    shape = [-1 if stored == axis else 1 for stored in blocks.order]
    names = [blocks.names[axis] if stored == axis else None for stored in blocks.order]
    array = jnp.asarray(np.pad(values, (0, padding)).reshape(shape), dtype)
    if not manual_axes().isdisjoint(blocks.names):  # on one block, inside a `shard_map`
        name, cells = blocks.names[axis], blocks.core(axis)
        if name is None:
            return array
        return jax.lax.dynamic_slice_in_dim(array, jax.lax.axis_index(name) * cells, cells, position)
    return place(array, NamedSharding(mesh, PartitionSpec(*names)))
