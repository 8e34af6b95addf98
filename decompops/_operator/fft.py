"""`FFT3D`: the distributed fast Fourier transform."""

import math
from dataclasses import replace
from typing import Any, Literal, cast, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Float

from .._backend.base import AbstractBackend
from .._blocks import Blocks, Triple
from .._check import check_flag, check_up_to
from .._decomposition import Decomposition
from .._sharding import manual_axes, place
from .._stage import Fourier, Move, Plan, Resize, Stage
from .planned import AbstractPlanned


Norm = Literal["backward", "ortho", "forward"]
Number = float | int | Array
Box = tuple[Number, Number, Number]
Lengths = Number | tuple[Number, ...] | list[Number] | np.ndarray
Wavenumbers = tuple[Float[Array, "_ _ _"], Float[Array, "_ _ _"], Float[Array, "_ _ _"]]


class FFT3D(AbstractPlanned):
    """The 3-D discrete Fourier transform of fields in z-pencils; the spectrum lies in x-pencils.

    Equal to `jnp.fft.fftn(u, axes=(-3, -2, -1))`, or to `rfftn` with `real=True`, in value, axis order and dtype. A
    slab communicates once, a pencil twice, always by all-to-all: the algorithm of P3DFFT (Pekurovsky, SIAM J. Sci.
    Comput. 34, 2012).

    !!! example

        ```python
        fft = dops.FFT3D(mesh)
        k = fft(u)              # sharded P(None, "x", "y")
        u = fft.inverse(k)      # sharded P("x", "y", None)
        ```
    """

    decomposition: Decomposition
    real: bool = eqx.field(static=True)
    norm: Norm = eqx.field(static=True)
    axis_contiguous: bool = eqx.field(static=True)
    modes: Triple | None = eqx.field(static=True)

    def __init__(
        self,
        mesh: Mesh | AbstractMesh | Decomposition | None = None,
        *,
        shape: Any = None,
        axes: Any = None,
        real: bool = False,
        norm: Norm | None = "backward",
        axis_contiguous: bool = False,
        modes: Any = None,
        backend: AbstractBackend | str | None = None,
    ):
        """**Arguments:**

        - `mesh`, `shape`, `axes`, `backend`: a decomposition, or what one is made of. See `decompops.Decomposition`.
        - `real`: transform real fields to the half spectrum, `nz // 2 + 1` modes along z. The inverse needs `shape`.
        - `norm`: which direction is scaled by `1 / (nx ny nz)`, as in `jnp.fft`; "ortho" scales both by its root.
            `None` is "backward".
        - `axis_contiguous`: leave the spectrum stored as (y, z, x), sharded `P("x", "y", None)`. Faster where it is
            only multiplied pointwise and transformed back.
        - `modes`: keep only the modes that a grid of this shape `(mx, my, mz)` has, those below `m / 2` along each
            axis: the spectrum is that of the field with all others removed, scaled as that of the whole grid. They are
            dropped as soon as an axis is transformed, so less is computed and communicated. `.inverse` puts zeros in
            their place. Where `m` is even and less than the grid's length, the Nyquist mode `m / 2` is zero.

        **Raises:** `ValueError` or `TypeError` as `decompops.Decomposition`, for an unknown `norm`, and for `modes`
        without `shape` or beyond it.
        """
        norm = "backward" if norm is None else norm
        if norm not in get_args(Norm):
            raise ValueError(f"`norm` must be one of {get_args(Norm)}; got {norm!r}.")
        self.decomposition = Decomposition(mesh, shape=shape, axes=axes, backend=backend)
        self.real = check_flag("real", real)
        self.norm = norm
        self.axis_contiguous = check_flag("axis_contiguous", axis_contiguous)
        self.modes = _check_modes(modes, self.decomposition.shape)

    def plan(self, shape: Triple) -> Plan:
        dec = self.decomposition
        source = dec.layout("z", shape)
        target = dec.layout("x", self._spectral_shape(shape), axis_contiguous=self.axis_contiguous)
        size = math.prod(shape)
        scale = {"backward": 1.0, "ortho": 1 / math.sqrt(size), "forward": 1 / size}[self.norm]
        stages = fourier_stages(dec, source, target, self.modes or shape, real=self.real)
        return Plan(dec.mesh, dec.axes, stages, source, target, dec.backend, scale)

    @property
    def spectral(self) -> Decomposition:
        """The decomposition of the spectrum: `fft.spectral.gather(k)`, `fft.spectral.crop(k)` know its true shape.

        An axis-contiguous spectrum, stored as (y, z, x), is a z-pencil of that decomposition, else it is an x-pencil.
        """
        shape = self._known_shape(None)
        stored = self.plan(shape).target.true_shape
        return Decomposition(self.decomposition, shape=stored)

    def wavenumbers(
        self, shape: Any = None, lengths: Lengths = 2 * math.pi, *, dtype: Any = None, nyquist: bool = True
    ) -> Wavenumbers:
        """Angular wavenumbers `(kx, ky, kz)` of the spectrum, broadcastable against it and sharded like it.

        Inside a `shard_map` over the mesh they are those of the block, broadcastable against `fft.local(block)`.

        **Arguments:**

        - `shape`: the grid shape `(nx, ny, nz)`; needed only if the operator was built without one.
        - `lengths`: the lengths of the periodic box along x, y, z, or one for all. May be traced, to differentiate by.
        - `dtype`: a real dtype; `None` for JAX's default, float64 in 64-bit mode and else float32.
        - `nyquist`: `False` puts zero for the Nyquist wavenumber of an even number of modes. That mode stands for
            both signs at once, so whatever is odd in it, such as a first derivative, vanishes.

        **Returns:** three real arrays, in radians per unit of `lengths`, in the order x, y, z whatever the storage
        order. Padding has wavenumber zero.

        **Raises:** `ValueError` without a shape, for a shape other than the operator's, and for lengths that are not
        one or three positive numbers; `TypeError` for a dtype that is not real.
        """
        shape = self._known_shape(shape)
        lengths = box(lengths)
        dtype = real_dtype(dtype)
        layout, mesh = self.plan(shape).target, self.decomposition.mesh

        def along(axis: int) -> Array:
            modes = 2 * math.pi * self._modes(axis, (self.modes or shape)[axis], nyquist)
            length = lengths[axis]
            if isinstance(length, float):  # divided in double precision, and only then rounded to `dtype`
                return _along(layout, axis, modes / length, mesh, dtype)
            return _along(layout, axis, modes, mesh, dtype) / jnp.asarray(length, dtype)

        return along(0), along(1), along(2)

    def multiplicity(self, shape: Any = None, *, dtype: Any = None) -> Float[Array, "_ _ _"]:
        """How many modes of the full spectrum each stored mode stands for, broadcastable against the spectrum.

        Two for the modes of a half spectrum whose complex conjugates are not stored, else one, and zero in padding:
        the weights for sums over the spectrum, such as that of Parseval's theorem. Arguments as of `wavenumbers`.
        """
        shape = self._known_shape(shape)
        layout, mesh, dtype = self.plan(shape).target, self.decomposition.mesh, real_dtype(dtype)
        counts = [np.ones(length) for length in layout.lengths]
        if self.real:
            single = {0, shape[2] / 2} if (self.modes or shape)[2] == shape[2] else {0}
            counts[2] = np.array([1 if k in single else 2 for k in range(layout.lengths[2])])
        factors = [_along(layout, axis, counts[axis], mesh, dtype) for axis in {2, *layout.padded_axes}]
        return math.prod(factors[1:], start=factors[0])

    def replace(self, **options: Any) -> "FFT3D":
        """The same transform with other options, by the names that they have when it is built."""
        own: dict[str, Any] = {name: getattr(self, name) for name in ("real", "norm", "axis_contiguous", "modes")}
        return FFT3D(self.decomposition, **(own | options))

    def _modes(self, axis: int, length: int, nyquist: bool) -> np.ndarray:
        modes = (np.fft.rfftfreq if self.real and axis == 2 else np.fft.fftfreq)(length, 1 / length)
        return modes if nyquist else np.where(2 * np.abs(modes) == length, 0, modes)

    def _spectral_shape(self, shape: Triple) -> Triple:
        nx, ny, nz = self.modes or shape
        return nx, ny, nz // 2 + 1 if self.real else nz

    def _known_shape(self, shape: Any) -> Triple:
        own = self.decomposition.shape
        known = Decomposition(self.decomposition, shape=shape).shape
        if known is None:
            raise ValueError("`shape` must be given to the operator, or here; got None.")
        if own not in (None, known):
            raise ValueError(f"`shape` must be that of the operator, {own}; got {shape}.")
        return known


def fourier_stages(
    dec: Decomposition, source: Blocks, target: Blocks, modes: Triple, *, real: bool, nyquist: bool = False
) -> tuple[Stage, ...]:
    """Transform whatever is local, communicate, and so on: every decomposition's transform is an instance of this.

    The axes of one transform lie last and next to each other, so that it is one contiguous multi-axis FFT. `modes` are
    what is kept of the true lengths of `source`; with `nyquist`, their Nyquist modes are, too, as the sum of the two
    that they stand for.
    """
    rows, columns = dec.sizes
    phases: list[tuple[int, ...]] = [(2,)]
    for axis, devices in ((1, columns), (0, rows)):
        # Axis y (then x) joins the transform before it, unless a mesh axis must first move off it. Axis z stays last,
        # because a real transform halves the last axis; and alone with `nyquist`, because the sum of two modes of a
        # half spectrum is known only where x and y are not transformed yet.
        if devices > 1 or (nyquist and real and phases[-1] == (2,)):
            phases.append((axis,))
        else:
            phases[-1] = (axis, *phases[-1]) if 2 in phases[-1] else (*phases[-1], axis)

    lengths = source.lengths
    stages: list[Stage] = []
    here = source
    for i, axes in enumerate(phases):
        if i > 0:
            pencil = dec.layout("y" if 1 in axes and 0 not in axes else "x", lengths)
            there = replace(pencil, order=_order(here, axes, target if i == len(phases) - 1 else None))
            stages.append(Move(here, there))
            here = there
        halved = real and i == 0
        if halved:
            lengths = (lengths[0], lengths[1], lengths[2] // 2 + 1)
        after = replace(here, lengths=lengths)
        stages.append(Fourier(here, after, axes, "r2c" if halved else "c2c", -1))
        here = after
        cut = tuple(axis for axis in axes if modes[axis] != source.lengths[axis])
        if cut:
            lengths = cast(Triple, tuple((target.lengths if i in cut else lengths)[i] for i in range(3)))
            after = replace(here, lengths=lengths)
            factors = tuple((2.0 if halved and axis == 2 else 1.0) if nyquist else 0.0 for axis in cut)
            stages.append(Resize(here, after, cut, tuple(modes[axis] for axis in cut), halved, factors))
            here = after
    return (*stages, Move(here, target)) if here != target else tuple(stages)


def _order(here: Blocks, axes: tuple[int, ...], target: Blocks | None) -> Triple:
    """The storage order for transforming `axes`: the target's own if that has them last, else a cheap one."""
    if target is not None and target.order[-len(axes) :] == axes:
        return target.order
    x, y, z = (*(axis for axis in here.order if axis not in axes), *axes)
    return x, y, z


def _check_modes(modes: Any, shape: Triple | None) -> Triple | None:
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


def box(lengths: Any) -> Box:
    """The lengths along x, y, z: numbers, as far as they are known when tracing."""
    leaves = jax.tree.leaves(lengths)
    try:
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            parts = [jnp.ravel(jnp.asarray(leaf, jnp.zeros(()).dtype)) for leaf in leaves]
            x, y, z = jnp.broadcast_to(jnp.concatenate(parts), (3,))
            return x, y, z
        x, y, z = np.broadcast_to(np.asarray(lengths, float), (3,)).tolist()
    except (TypeError, ValueError):
        x, y, z = 0.0, 0.0, 0.0
    if not all(0 < length < math.inf for length in (x, y, z)):
        raise ValueError(f"`lengths` must be one or three positive, finite numbers; got {lengths!r}.")
    return x, y, z


def _along(layout: Blocks, axis: int, values: np.ndarray, mesh: Mesh | AbstractMesh, dtype: Any) -> Array:
    """`values` along grid axis `axis` of `layout`, padded with zeros, of length 1 along the others."""
    position = layout.position(axis)
    padding = layout.shape[position] - len(values)
    shape = [-1 if stored == axis else 1 for stored in layout.order]
    names = [layout.names[axis] if stored == axis else None for stored in layout.order]
    array = jnp.asarray(np.pad(values, (0, padding)).reshape(shape), dtype)
    if not manual_axes().isdisjoint(layout.names):  # on one block, inside a `shard_map`
        name, cells = layout.names[axis], layout.core(axis)
        if name is None:
            return array
        return jax.lax.dynamic_slice_in_dim(array, jax.lax.axis_index(name) * cells, cells, position)
    return place(array, NamedSharding(mesh, PartitionSpec(*names)))
