"""Transforms along the axes of a grid. Each axis has its own basis."""

import abc
import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from equinox import AbstractVar
from jax import Array
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Float, Shaped

from .._backend.base import AbstractBackend
from .._basis.base import AbstractBasis
from .._common.blocks import Blocks, axis_names
from .._common.box import Box, Number
from .._common.check import brief, check_choice, check_flag, check_up_to
from .._common.host import device_array
from .._common.placement import on_mesh, place
from .._common.sharding import manual_axes
from .._core import reductions as reductions
from .._core.block_reduction import block_reduction
from .._core.decomposition import Decomposition, storage_order
from .._core.expansion import Expansion
from .._core.layout import Field, Layout, check_global
from .._core.structure import Space
from .._core.types import Bases, Lengths, MeshAxes, Modes
from .._plan.plan import Plan
from .._plan.route import check_bases_fit
from .._plan.transform import Norm, transform_plan
from .planned import AbstractPlanned
from .unbound import MeshOrDecomposition, OperatorDecomposition, decomposition_of


Wavenumbers = tuple[Float[Array, "*#k"], ...]
Coordinates = tuple[Float[Array, "*#grid"], ...]


class AbstractTransform(AbstractPlanned):
    """A transform of fields along the axes of a grid.

    Fields lie in the pencils of the last axis: every device holds this axis whole. Spectra lie in the pencils of the
    first axis. An axis with the basis `Points()` is not transformed.
    """

    if TYPE_CHECKING:  # Type checkers treat an `AbstractVar` as a constructor argument.
        bases: ClassVar[tuple[AbstractBasis, ...]]  # The basis of each grid axis.
        norm: ClassVar[Norm]
        axis_contiguous: ClassVar[bool]
        modes: ClassVar[tuple[int, ...] | None]
        nyquist: ClassVar[bool]
        transformed: ClassVar[tuple[int, ...]]  # The grid axes whose basis is not `Points()`.
    else:
        bases: AbstractVar[tuple[AbstractBasis, ...]]
        norm: AbstractVar[Norm]
        axis_contiguous: AbstractVar[bool]
        modes: AbstractVar[tuple[int, ...] | None]
        nyquist: AbstractVar[bool]
        transformed: AbstractVar[tuple[int, ...]]

    spaces: ClassVar[tuple[Space | None, Space | None]] = ("field", "spectrum")

    def __check_init__(self):
        _ = self._normed_bases  # Raises an error for `norm="ortho"` if a basis has no orthogonal transform.
        if self.is_bound:
            for basis, n in zip(self.bases, self.modes or self.decomposition.shape):
                basis.stored(n)

    @abc.abstractmethod
    def replace(self, **options: Any) -> "AbstractTransform":
        """Return a copy of this transform with changed `options`, which are arguments of the constructor."""

    @property
    def expansion(self) -> Expansion:
        """What the numbers of the spectra mean: their bases, modes and scale."""
        shape = self.decomposition.shape
        return Expansion(self.bases, shape, self.modes or shape, self.norm, self.nyquist)

    @property
    def takes_complex(self) -> bool:
        """Whether the transform accepts complex fields."""
        fields, coefficients = zip(*(basis.kinds for basis in self.bases))
        return "real" not in fields and "complex" in coefficients

    def plan(self) -> Plan:
        bases, shape = self._normed_bases, self.decomposition.shape
        inverse = math.prod(basis.inverse_scale(n) for basis, n in zip(bases, shape))
        scale = {"backward": 1.0, "ortho": math.sqrt(inverse), "forward": inverse}[self.norm]
        source, target, kept = self.decomposition.blocks(), self._spectrum(), self.modes or shape
        return transform_plan(self.title, source, target, bases, kept, scale=scale, nyquist=self.nyquist)

    @property
    def box_lengths(self) -> tuple[Number, ...]:
        """The length of the box along each axis; 2π if no `box` was given and all axes are periodic.

        **Raises:** `ValueError` if no `box` was given and a basis belongs to an axis between walls.
        """
        if self.decomposition.box is None:
            for name, basis in zip(axis_names(self.decomposition.ndim), self.bases):
                if basis.has_walls:
                    lengths = ", ".join(("2.0", *["6.3"] * (self.decomposition.ndim - 1)))
                    raise ValueError(
                        f"`box` must be given to a transform with walls, because the distance of the walls along "
                        f"{name} has no default; got {basis} and no box. Pass `box=Box(({lengths}))`, one length for "
                        "each axis, when you build the transform or its decomposition."
                    )
        return self.decomposition.box_lengths

    def wavenumbers(self, dtype: Any = None, *, nyquist: bool = True) -> Wavenumbers:
        """Return the angular wavenumbers of the spectrum, such as `(kx, ky, kz)`.

        The arrays broadcast against the spectrum and are sharded like it. Inside a `shard_map` over the mesh, this
        method returns the wavenumbers of one block, which broadcast against `fft.local(block)`.

        **Arguments:**

        - `dtype`: a real dtype; `None` for JAX's default, which is float32, or float64 in 64-bit mode.
        - `nyquist`: if False, the Nyquist wavenumber of an axis with an even number of modes is returned as zero. The
            Nyquist mode stands for both signs of its wavenumber. So odd functions of the wavenumber, such as first
            derivatives, are zero for this mode.

        **Returns:** one real array for each grid axis, in radians per unit of length, always in the order of the grid
        axes. Wavenumbers are zero in the padding, and along axes that are not transformed.

        **Raises:** `ValueError` if the transform has no `shape`, or if it has walls but no `box`.
        `TypeError` if `dtype` is not real.
        """
        lengths, dtype = self.box_lengths, real_dtype(dtype)
        blocks, kept, mesh = self._spectrum(), self.modes or self.decomposition.shape, self.decomposition.mesh

        def along(axis: int) -> Array:
            values = self.bases[axis].wavenumbers(kept[axis], nyquist=nyquist)
            return coordinates_along(operator.truediv, blocks, axis, values, lengths[axis], mesh, dtype)

        return tuple(map(along, range(blocks.ndim)))

    def coordinates(self, dtype: Any = None) -> Coordinates:
        """Return the coordinates of the points of a field, such as `(x, y, z)`.

        The arrays broadcast against a field and are sharded like it. Inside a `shard_map` over the mesh, this method
        returns the coordinates of one block.

        **Arguments:** `dtype`, with the same meaning as in `wavenumbers`.

        **Returns:** one real array for each grid axis, in units of the box. Coordinates are zero in the padding.

        **Raises:** the errors of `wavenumbers`.
        """
        lengths, dtype = self.box_lengths, real_dtype(dtype)
        blocks, mesh = self.decomposition.blocks(), self.decomposition.mesh

        def along(axis: int) -> Array:
            values = self.bases[axis].points(blocks.lengths[axis])
            return coordinates_along(operator.mul, blocks, axis, values, lengths[axis], mesh, dtype)

        return tuple(map(along, range(blocks.ndim)))

    def multiplicity(self, *, dtype: Any = None) -> Float[Array, "*#k"]:
        """Return how many terms of the expansion each stored coefficient stands for.

        In a half spectrum, a mode whose complex conjugate is not stored stands for two terms. All other Fourier modes
        stand for one term, and padding for none. These numbers are the weights in sums over the spectrum, as in
        Parseval's theorem.

        **Arguments:** `dtype`, with the same meaning as in `wavenumbers`.

        **Returns:** a real array that broadcasts against the spectrum.
        """
        shape = self.decomposition.shape
        along = zip(self._normed_bases, shape, self.modes or shape)
        return self.separable([basis.multiplicity(n, kept) for basis, n, kept in along], dtype=dtype)

    def separable(self, factors: Sequence[np.ndarray], *, dtype: Any = None) -> Float[Array, "*#k"]:
        """Return the product of `factors`, one array for each grid axis with one number for each stored coefficient.

        **Arguments:** `dtype`, with the same meaning as in `wavenumbers`.

        **Returns:** a real array that broadcasts against the spectrum. It is zero in the padding.
        """
        return product_along(self._spectrum(), factors, self.decomposition.mesh, real_dtype(dtype))

    def volume_mean(self, field: Field) -> Shaped[Array, "*batch"]:
        """Return the mean of a field over the volume of the box, by the quadrature rules of the bases.

        The weights are `basis.weights`. If the points of an axis are not equally spaced (as with `Chebyshev`), or if
        some of them lie on walls, the result differs from `layout.mean`, which is the mean over the points. Values in
        the padding are ignored. The only communication is an all-reduce.

        **Arguments:**

        - `field`: a field in real space of shape `(*batch, *shape)`, with or without padding.

        **Returns:** an array of shape `(*batch,)` and of the dtype that `jnp.mean` returns. Half precision is
        accumulated in single precision.

        **Raises:** `ValueError` if `field` does not have the shape above, or if this method is called inside a
        `shard_map` over a mesh axis that shards the grid.
        """
        dec = self.decomposition
        check_global("field", dec.mesh_axes)
        blocks = dec.pencil(dec.ndim - 1, dec.shape)
        Layout(dec.mesh, blocks).check(field)
        over = block_reduction(dec.mesh, blocks, dec.backend, "Transform.volume_mean")
        field = on_mesh(device_array(field), dec.mesh, blocks, "field")
        return reductions.weighted_mean(field, dec.shape, self.bases, over)

    @property
    def _normed_bases(self) -> tuple[AbstractBasis, ...]:
        """The bases; with `norm="ortho"`, weighted at their ends so that the transforms are orthogonal."""
        return tuple(basis.orthogonalized() for basis in self.bases) if self.norm == "ortho" else self.bases

    def _spectrum(self) -> Blocks:
        """Return how the spectrum is cut into blocks."""
        kept = self.modes or self.decomposition.shape
        stored = tuple(basis.stored(n) for basis, n in zip(self.bases, kept))
        order = storage_order(self.decomposition.ndim, 0, axis_contiguous=self.axis_contiguous)
        return self.decomposition.pencil(0, stored, order)


class Transform(AbstractTransform):
    """A transform with one basis for each grid axis: Fourier modes, cosines, sines, polynomials, or none.

    Fields lie in the pencils of the last axis: every device holds this axis whole. Spectra lie in the pencils of the
    first axis. On a grid of three axes, these are z-pencils and x-pencils. `FFT` is a transform whose bases are all
    `Fourier`. A basis of your own is a subclass of `decompops.extend.AbstractBasis`; docs/extending_equations.md has an
    example.

    !!! example

        ```python
        bases = (dops.Fourier(), dops.Fourier(half=True), dops.Cosine(2))  # a channel between two walls along z
        transform = dops.Transform(mesh, shape=(64, 64, 32), bases=bases)
        k = transform(u)              # sharded P(None, "x", "y")
        u = transform.inverse(k)      # sharded P("x", "y", None)
        ```
    """

    decomposition: OperatorDecomposition
    bases: tuple[AbstractBasis, ...] = eqx.field(static=True)
    norm: Norm = eqx.field(static=True)
    axis_contiguous: bool = eqx.field(static=True)
    modes: tuple[int, ...] | None = eqx.field(static=True)
    nyquist: bool = eqx.field(static=True)

    def __init__(
        self,
        mesh: MeshOrDecomposition | None = None,
        *,
        bases: Bases,
        shape: Lengths | None = None,
        axes: MeshAxes | None = None,
        box: Box | None = None,
        norm: Norm | None = "backward",
        axis_contiguous: bool = False,
        modes: Modes | None = None,
        nyquist: bool = False,
        pad: bool | None = None,
        backend: AbstractBackend | str | None = None,
    ):
        """**Arguments:**

        - `mesh`, `shape`, `axes`, `box`, `pad`, `backend`: a `Decomposition`, or the arguments to build one.
        - `bases`: the basis of each grid axis: `Fourier()` for a periodic axis; `Cosine(type)`, `Sine(type)` or
            `Chebyshev(type)` for an axis between walls; `Points()` for an axis that is not transformed; `Cells(faces)`
            for an axis of finite volumes. For real fields, one Fourier basis may be `Fourier(half=True)`; the inverse
            then needs `shape`. The axis with this basis is transformed first. If this axis is not the last axis of the
            grid, the transform needs one more exchange.
        - `norm`: which direction is scaled. Without scaling, a forward transform followed by the inverse transform
            multiplies a field by a number N; for Fourier bases, N is the number of points. "backward" multiplies the
            inverse by 1/N, "forward" multiplies the forward transform by 1/N. "ortho" multiplies both by the square
            root of 1/N. For cosines and sines, "ortho" also gives the first and last points and coefficients the same
            weights as SciPy, so that the matrix is orthogonal; for `Chebyshev`, it raises `ValueError`. `None` means
            "backward".
        - `axis_contiguous`: store the spectrum with the first axis last. On a grid of three axes, the order is then
            (y, z, x).
        - `modes`: keep only the coefficients that a grid of this shape has. `.inverse` replaces the dropped
            coefficients by zeros.
        - `nyquist`: the value of the Nyquist mode `m / 2` along an axis on which the coarser grid of `modes` has an
            even number `m` of points, fewer than the full grid. If True, this mode becomes the sum of the modes `m / 2`
            and `-m / 2` of the whole spectrum; if False, it becomes zero.

        **Raises:** `ValueError` or `TypeError` if `decompops.Decomposition` refuses an argument. `TypeError` if `bases`
        contains an object that is not a basis. `ValueError` if there is not one basis for each axis, if the bases
        cannot be combined, if `norm` is unknown, if `modes` is given without `shape`, or if `modes` are more than the
        grid has.
        """
        self.bases = check_bases(bases)
        if isinstance(mesh, Decomposition) and mesh.ndim != len(self.bases):
            raise ValueError(f"`bases` must be {mesh.ndim} bases, one for each axis of the grid; got {bases!r}.")
        self.decomposition = decomposition_of(
            mesh, shape=shape, ndim=len(self.bases), axes=axes, box=box, pad=pad, backend=backend
        )
        self.norm = check_norm(norm)
        self.axis_contiguous = check_flag("axis_contiguous", axis_contiguous)
        self.modes = check_modes(modes, self.decomposition.shape if self.is_bound else None)
        self.nyquist = check_flag("nyquist", nyquist)

    @property
    def transformed(self) -> tuple[int, ...]:
        """The grid axes that are transformed."""
        return tuple(axis for axis, basis in enumerate(self.bases) if basis.is_transformed)

    def replace(self, **options: Any) -> "Transform":
        names = ("bases", "norm", "axis_contiguous", "modes", "nyquist")
        return Transform(self.decomposition, **({name: getattr(self, name) for name in names} | options))


def check_bases(bases: Any) -> tuple[AbstractBasis, ...]:
    """Return `bases` as a tuple. Raises an error if one is not a basis, or if they cannot be combined."""
    found = tuple(bases) if isinstance(bases, tuple | list) else (bases,)
    if not found or not all(isinstance(basis, AbstractBasis) for basis in found):
        raise TypeError(f"`bases` must be bases such as `Fourier()`, one for each axis of the grid; got {bases!r}.")
    check_bases_fit(found)
    return found


def check_norm(norm: Any) -> Norm:
    """Return `norm`, or "backward" for `None`. Raises `ValueError` if the name is unknown."""
    return check_choice("norm", "backward" if norm is None else norm, get_args(Norm))


def check_modes(modes: Any, shape: Any) -> tuple[int, ...] | None:
    """Return the number of modes to keep along each axis; `None` for all. Raises an error if `modes` is not valid."""
    if modes is None:
        return None
    if shape is None:
        raise ValueError(f"`shape` must be given with `modes`; got None and {modes!r}.")
    kept = check_up_to("modes", modes, shape, "modes")
    return None if kept == shape else kept


def real_dtype(dtype: Any) -> np.dtype:
    """Return `dtype`, or JAX's default real dtype for `None`. Raises `TypeError` if `dtype` is not real."""
    if isinstance(dtype, bool | int | float | tuple | list | Array | np.ndarray):
        hint = f"For the lengths of a grid, pass `box=Box({brief(dtype)})` with its `shape`."
        raise TypeError(f"`dtype` must be a real dtype, such as `jnp.float32`; got {brief(dtype)}. {hint}")
    try:
        found = jax.dtypes.canonicalize_dtype(np.float64 if dtype is None else dtype)
    except TypeError:
        raise TypeError(f"`dtype` must be a real dtype, such as `jnp.float32`; got {dtype!r}.") from None
    if not jnp.issubdtype(found, jnp.floating):
        raise TypeError(f"`dtype` must be real; got {found}.")
    return found


def coordinates_along(
    operation: Callable[[Any, Any], Any],
    blocks: Blocks,
    axis: int,
    values: np.ndarray,
    length: Number,
    mesh: Mesh | AbstractMesh,
    dtype: Any,
) -> Array:
    """Return `operation(values, length)` along grid axis `axis` of `blocks`, as `_along` does.

    `operation` multiplies or divides.
    """
    if isinstance(length, float):  # Compute in double precision, then round to `dtype`.
        return _along(blocks, axis, operation(values, length), mesh, dtype)
    return operation(_along(blocks, axis, values, mesh, dtype), jnp.asarray(length, dtype))


def product_along(
    blocks: Blocks, factors: Sequence[np.ndarray], mesh: Mesh | AbstractMesh, dtype: Any
) -> Float[Array, "*#k"]:
    """Return the product of `factors`, one array for each grid axis of `blocks`. It is zero in the padding."""
    arrays = [
        _along(blocks, axis, numbers, mesh, dtype)
        for axis, numbers in enumerate(factors)
        if axis == blocks.ndim - 1 or blocks.is_padded(axis) or (numbers != 1).any()
    ]
    return functools.reduce(operator.mul, arrays)


def _along(blocks: Blocks, axis: int, values: np.ndarray, mesh: Mesh | AbstractMesh, dtype: Any) -> Array:
    """Return `values` along grid axis `axis` of `blocks`, zero-padded, as an array of length 1 along the other axes."""
    position = blocks.position(axis)
    padding = blocks.shape[position] - len(values)
    shape = [-1 if stored == axis else 1 for stored in blocks.order]
    names = [blocks.names[axis] if stored == axis else None for stored in blocks.order]
    array = jnp.asarray(np.pad(values, (0, padding)).reshape(shape), dtype)
    if not manual_axes().isdisjoint(blocks.mesh_axes):  # The call is inside a `shard_map`, for one block.
        name, cells = blocks.names[axis], blocks.core(axis)
        if name is None:
            return array
        return jax.lax.dynamic_slice_in_dim(array, jax.lax.axis_index(name) * cells, cells, position)
    return place(array, NamedSharding(mesh, PartitionSpec(*names)))
