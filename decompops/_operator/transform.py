"""Transforms along the axes of a grid, each in a basis of its own."""

import abc
import functools
import math
import operator
from typing import TYPE_CHECKING, Any, ClassVar, cast, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from equinox import AbstractVar
from jax import Array
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Float, Shaped

from .. import _reductions as reductions
from .._backend.base import AbstractBackend
from .._basis.base import AbstractBasis
from .._blocks import Blocks
from .._box import Box, check_box
from .._check import check_flag, check_shape, check_up_to
from .._decomposition import Decomposition, check_grid
from .._layout import Field, Layout, check_global
from .._plan.plan import Plan
from .._plan.route import check_bases_fit
from .._plan.transform import Norm, transform_plan
from .._sharding import manual_axes, place
from .._structure import Space
from .._types import Bases, Lengths, MeshAxes, Modes
from .planned import AbstractPlanned


Wavenumbers = tuple[Float[Array, "*#k"], ...]


class AbstractTransform(AbstractPlanned):
    """A transform of fields along the axes of a grid; the spectrum lies in the pencils of the first axis.

    Fields lie in the pencils of the last axis. An axis whose basis is `Points()` is carried along.
    """

    if TYPE_CHECKING:  # Type checkers treat an `AbstractVar` as a constructor argument.
        bases: ClassVar[tuple[AbstractBasis, ...]]  # of each axis of the grid
        norm: ClassVar[Norm]
        axis_contiguous: ClassVar[bool]
        modes: ClassVar[tuple[int, ...] | None]
        nyquist: ClassVar[bool]
        transformed: ClassVar[tuple[int, ...]]  # the axes of the grid whose basis is not `Points()`
    else:
        bases: AbstractVar[tuple[AbstractBasis, ...]]
        norm: AbstractVar[Norm]
        axis_contiguous: AbstractVar[bool]
        modes: AbstractVar[tuple[int, ...] | None]
        nyquist: AbstractVar[bool]
        transformed: AbstractVar[tuple[int, ...]]

    spaces: ClassVar[tuple[Space | None, Space | None]] = ("field", "spectrum")

    def __check_init__(self):
        _ = self._normed_bases  # Not every basis has orthogonal transforms.
        kept = self.modes or self.decomposition.shape
        for basis, n in zip(self.bases, kept or ()):
            basis.stored(n)

    @abc.abstractmethod
    def replace(self, **options: Any) -> "AbstractTransform":
        """The same transform with other options, by the names that they have when it is built."""

    @property
    def takes_complex(self) -> bool:
        """Whether fields may be complex, with complex coefficients."""
        fields, coefficients = zip(*(basis.kinds for basis in self.bases))
        return "real" not in fields and "complex" in coefficients

    def plan(self, shape: tuple[int, ...]) -> Plan:
        bases = self._normed_bases
        inverse = math.prod(basis.inverse_scale(n) for basis, n in zip(bases, shape))
        scale = {"backward": 1.0, "ortho": math.sqrt(inverse), "forward": inverse}[self.norm]
        source, target, kept = self.decomposition.blocks(-1, shape), self._spectrum(shape), self.modes or shape
        return transform_plan(self.title, source, target, bases, kept, scale=scale, nyquist=self.nyquist)

    def wavenumbers(
        self, shape: Lengths | None = None, box: Box = Box(), *, dtype: Any = None, nyquist: bool = True
    ) -> Wavenumbers:
        """Angular wavenumbers of the spectrum, such as `(kx, ky, kz)`, broadcastable against it and sharded like it.

        Inside a `shard_map` over the mesh they are those of the block, broadcastable against `fft.local(block)`.

        **Arguments:**

        - `shape`: the shape of the grid; needed only if the operator was built without one.
        - `box`: the box that the grid fills.
        - `dtype`: a real dtype; `None` for JAX's default, float64 in 64-bit mode and else float32.
        - `nyquist`: `False` puts zero for the Nyquist wavenumber of an even number of modes. That mode stands for
            both signs at once, so whatever is odd in it, such as a first derivative, vanishes.

        **Returns:** a real array for each axis of the grid, in radians per unit of length, in the order of the axes
        whatever the storage order. Padding has wavenumber zero, as has an axis that is not transformed.

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

    def multiplicity(self, shape: Lengths | None = None, *, dtype: Any = None) -> Float[Array, "*#k"]:
        """How many terms of the expansion each stored coefficient stands for, broadcastable against the spectrum.

        Of Fourier modes, two for those of a half spectrum whose complex conjugates are not stored, else one; zero in
        padding. These are the weights for sums over the spectrum, such as that of Parseval's theorem. `shape` and
        `dtype` are those of `wavenumbers`.
        """
        shape = self._known_shape(shape)
        blocks, mesh, dtype = self._spectrum(shape), self.decomposition.mesh, real_dtype(dtype)
        kept, factors = self.modes or shape, []
        for axis, basis in enumerate(self._normed_bases):
            counts = basis.multiplicity(shape[axis], kept[axis])
            if axis == blocks.ndim - 1 or blocks.is_padded(axis) or (counts != 1).any():
                factors.append(_along(blocks, axis, counts, mesh, dtype))
        return functools.reduce(operator.mul, factors)

    def mean(self, field: Field) -> Shaped[Array, "*batch"]:
        """The mean of a field over the volume of the box, by the quadrature rule of each basis (`basis.weights`).

        It differs from the mean over the points, `layout.mean`, where points are not equally spaced (`Chebyshev`), or
        lie on walls. Padding does not count, whatever stands there. Communicates by an all-reduce only.

        **Arguments:**

        - `field`: a field in real space, `(*batch, *shape)`, padded or not.

        **Returns:** one number for each leading index, an array of shape `(*batch,)`, of the dtype that `jnp.mean` has.
        Half precision is accumulated in single precision.

        **Raises:** `ValueError` for a field of another shape, and inside a `shard_map` over a mesh axis of the grid.
        """
        dec = self.decomposition
        check_global("field", dec.mesh_axes)
        shape = dec.shape
        if shape is None:
            check_grid("field", np.shape(field), dec.ndim)
            shape = np.shape(field)[-dec.ndim :]
        Layout(dec.mesh, dec.pencil(dec.ndim - 1, shape)).check(field)
        return reductions.weighted_mean(jnp.asarray(field), shape, self.bases)

    @property
    def _normed_bases(self) -> tuple[AbstractBasis, ...]:
        """The bases, weighted at their ends as `norm` says."""
        return tuple(basis.orthogonalized() for basis in self.bases) if self.norm == "ortho" else self.bases

    def _spectrum(self, shape: tuple[int, ...]) -> Blocks:
        """How the spectrum is cut into blocks."""
        stored = tuple(basis.stored(n) for basis, n in zip(self.bases, self.modes or shape))
        order = self.decomposition.storage_order(0, axis_contiguous=self.axis_contiguous)
        return self.decomposition.pencil(0, stored, order)

    def _known_shape(self, shape: Any) -> tuple[int, ...]:
        own = self.decomposition.shape
        known = own if shape is None else check_shape("shape", shape, self.decomposition.ndim)
        if known is None:
            raise ValueError("`shape` must be given to the operator, or here; got None.")
        if own not in (None, known):
            raise ValueError(f"`shape` must be that of the operator, {own}; got {shape}.")
        return known


class Transform(AbstractTransform):
    """A transform with a basis for each axis of the grid: Fourier modes, cosines, sines, polynomials, or none.

    Fields lie in the pencils of the last axis and spectra in those of the first one: on a grid of three in z-pencils
    and in x-pencils. `FFT` is the case of `Fourier` bases. How to write a basis: docs/extending.md.

    !!! example

        ```python
        bases = (dops.Fourier(), dops.Fourier(half=True), dops.Cosine(2))  # a channel between two walls along z
        transform = dops.Transform(mesh, shape=(64, 64, 32), bases=bases)
        k = transform(u)              # sharded P(None, "x", "y")
        u = transform.inverse(k)      # sharded P("x", "y", None)
        ```
    """

    decomposition: Decomposition
    bases: tuple[AbstractBasis, ...] = eqx.field(static=True)
    norm: Norm = eqx.field(static=True)
    axis_contiguous: bool = eqx.field(static=True)
    modes: tuple[int, ...] | None = eqx.field(static=True)
    nyquist: bool = eqx.field(static=True)

    def __init__(
        self,
        mesh: Mesh | AbstractMesh | Decomposition | None = None,
        *,
        bases: Bases,
        shape: Lengths | None = None,
        axes: MeshAxes | None = None,
        norm: Norm | None = "backward",
        axis_contiguous: bool = False,
        modes: Modes | None = None,
        nyquist: bool = False,
        pad: bool | None = None,
        backend: AbstractBackend | str | None = None,
    ):
        """**Arguments:**

        - `mesh`, `shape`, `axes`, `pad`, `backend`: a `Decomposition`, or the arguments to build one.
        - `bases`: the basis of each axis: `Fourier()` for a periodic one, `Cosine(type)`, `Sine(type)` and
            `Chebyshev(type)` for one between walls, `Points()` for one that is carried along, `Cells(faces)` for one
            of finite volumes. One of the Fourier bases may be `Fourier(half=True)`, for real fields; the inverse then
            needs `shape`. It is transformed before the others: if it is not that of the last axis, that costs one more
            exchange.
        - `norm`: the unnormalised transforms of the bases are inverse to each other up to a factor, which is one over
            the number of points for Fourier bases. "backward" multiplies the inverse by it, "forward" the transform,
            and "ortho" both by its root, and weights the ends of cosines and sines as `scipy.fft.dct(norm="ortho")`
            does; `Chebyshev` refuses "ortho". `None` is "backward".
        - `axis_contiguous`: leave the spectrum stored with the first axis last, as (y, z, x) of three.
        - `modes`: keep only the coefficients that a grid of this shape has. `.inverse` puts zeros in the place of the
            others.
        - `nyquist`: whether to keep the Nyquist mode `m / 2` where `modes` has an even `m` less than the grid's length,
            as the sum of the two modes that it stands for; else it is zero.

        **Raises:** `ValueError` or `TypeError` as `decompops.Decomposition`; `TypeError` for `bases` that are not
        bases; `ValueError` for another number of bases than axes, bases that do not go together, an unknown `norm`, and
        `modes` without `shape` or beyond it.
        """
        self.bases = check_bases(bases)
        if isinstance(mesh, Decomposition) and mesh.ndim != len(self.bases):
            raise ValueError(f"`bases` must be one for each of {mesh.ndim} axes of the grid; got {bases!r}.")
        self.decomposition = Decomposition(mesh, shape=shape, ndim=len(self.bases), axes=axes, pad=pad, backend=backend)
        self.norm = check_norm(norm)
        self.axis_contiguous = check_flag("axis_contiguous", axis_contiguous)
        self.modes = check_modes(modes, self.decomposition.shape)
        self.nyquist = check_flag("nyquist", nyquist)

    @property
    def transformed(self) -> tuple[int, ...]:
        """The axes of the grid that are transformed."""
        return tuple(axis for axis, basis in enumerate(self.bases) if basis.is_transformed)

    def replace(self, **options: Any) -> "Transform":
        names = ("bases", "norm", "axis_contiguous", "modes", "nyquist")
        return Transform(self.decomposition, **({name: getattr(self, name) for name in names} | options))


def check_bases(bases: Any) -> tuple[AbstractBasis, ...]:
    """`bases` as a tuple, after a check that they are bases and go together."""
    found = tuple(bases) if isinstance(bases, tuple | list) else (bases,)
    if not found or not all(isinstance(basis, AbstractBasis) for basis in found):
        raise TypeError(f"`bases` must be bases such as `Fourier()`, one for each axis of the grid; got {bases!r}.")
    check_bases_fit(found)
    return found


def check_norm(norm: Any) -> Norm:
    """`norm`, or "backward" for `None`. Raises `ValueError` for another name."""
    norm = "backward" if norm is None else norm
    if norm not in get_args(Norm):
        raise ValueError(f"`norm` must be one of {get_args(Norm)}; got {norm!r}.")
    return norm


def check_modes(modes: Any, shape: Any) -> tuple[int, ...] | None:
    """How many modes to keep along each axis; `None` for all. Raises `ValueError` for more than `shape` has."""
    if modes is None:
        return None
    if shape is None:
        raise ValueError(f"`shape` must be given with `modes`; got None and {modes!r}.")
    kept = check_up_to("modes", modes, shape, "modes")
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
    if not manual_axes().isdisjoint(blocks.mesh_axes):  # on one block, inside a `shard_map`
        name, cells = blocks.names[axis], blocks.core(axis)
        if name is None:
            return array
        return jax.lax.dynamic_slice_in_dim(array, jax.lax.axis_index(name) * cells, cells, position)
    return place(array, NamedSharding(mesh, PartitionSpec(*names)))
