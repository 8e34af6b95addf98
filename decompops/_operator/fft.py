"""`FFT3D`: the distributed fast Fourier transform."""

import math
from dataclasses import replace
from typing import Any, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Float

from .._backend.base import AbstractBackend
from .._decomposition import Decomposition, place
from .._pencil import Layout, Triple, check_flag
from .._stage import Fourier, Move, Plan, Stage
from .planned import AbstractPlanned


Norm = Literal["backward", "ortho", "forward"]
Length = float | int | Array
Lengths = Length | tuple[Length, Length, Length] | list[Length] | np.ndarray


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

    def __init__(
        self,
        mesh: Mesh | AbstractMesh | Decomposition | None = None,
        *,
        shape: Any = None,
        axes: Any = None,
        real: bool = False,
        norm: Norm | None = "backward",
        axis_contiguous: bool = False,
        backend: AbstractBackend | str | None = None,
    ):
        """**Arguments:**

        - `mesh`, `shape`, `axes`, `backend`: a decomposition, or what one is made of. See `decompops.Decomposition`.
        - `real`: transform real fields to the half spectrum, `nz // 2 + 1` modes along z. The inverse needs `shape`.
        - `norm`: which direction is scaled by `1 / (nx ny nz)`, as in `jnp.fft`; "ortho" scales both by its root.
            `None` is "backward".
        - `axis_contiguous`: leave the spectrum stored as (y, z, x), sharded `P("x", "y", None)`. Faster where it is
            only multiplied pointwise and transformed back.
        """
        norm = "backward" if norm is None else norm
        if norm not in get_args(Norm):
            raise ValueError(f"`norm` must be one of {get_args(Norm)}; got {norm!r}.")
        self.decomposition = Decomposition(mesh, shape=shape, axes=axes, backend=backend)
        self.real = check_flag("real", real)
        self.norm = norm
        self.axis_contiguous = check_flag("axis_contiguous", axis_contiguous)

    def plan(self, shape: Triple) -> Plan:
        dec = self.decomposition
        source = dec.layout("z", shape)
        target = dec.layout("x", self._spectral_shape(shape), axis_contiguous=self.axis_contiguous)
        size = math.prod(shape)
        scale = {"backward": 1.0, "ortho": 1 / math.sqrt(size), "forward": 1 / size}[self.norm]
        stages = _stages(dec, source, target, real=self.real)
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
        self, shape: Any = None, lengths: Lengths = 2 * math.pi, *, dtype: Any = None
    ) -> tuple[Float[Array, "_ _ _"], Float[Array, "_ _ _"], Float[Array, "_ _ _"]]:
        """Angular wavenumbers `(kx, ky, kz)` of the spectrum, broadcastable against it and sharded like it.

        **Arguments:**

        - `shape`: the grid shape `(nx, ny, nz)`; needed only if the operator was built without one.
        - `lengths`: the lengths of the periodic box along x, y, z, or one for all. May be traced, to differentiate by.
        - `dtype`: a real dtype; `None` for JAX's default, float64 in 64-bit mode and else float32.

        **Returns:** three real arrays, in radians per unit of `lengths`, in the order x, y, z whatever the storage
        order. Padding has wavenumber zero.

        **Raises:** `ValueError` without a shape, for a shape other than the operator's, and for lengths that are not
        one or three positive numbers; `TypeError` for a dtype that is not real.
        """
        shape = self._known_shape(shape)
        steps = 2 * math.pi / _box(lengths)
        dtype = jnp.zeros((), dtype).dtype
        if not jnp.issubdtype(dtype, jnp.floating):
            raise TypeError(f"`dtype` must be real; got {dtype}.")
        layout = self.plan(shape).target
        mesh, modes = self.decomposition.mesh, [self._modes(axis, shape[axis]) for axis in range(3)]
        if isinstance(steps, np.ndarray):  # multiplied in double precision, and only then rounded to `dtype`
            kx, ky, kz = (_along(layout, axis, modes[axis] * steps[axis], mesh, dtype) for axis in range(3))
        else:
            steps = steps.astype(dtype)
            kx, ky, kz = (_along(layout, axis, modes[axis], mesh, dtype) * steps[axis] for axis in range(3))
        return kx, ky, kz

    def _modes(self, axis: int, length: int) -> np.ndarray:
        modes = np.fft.rfftfreq if self.real and axis == 2 else np.fft.fftfreq
        return modes(length, 1 / length)

    def _spectral_shape(self, shape: Triple) -> Triple:
        nx, ny, nz = shape
        return (nx, ny, nz // 2 + 1) if self.real else shape

    def _known_shape(self, shape: Any) -> Triple:
        own = self.decomposition.shape
        known = Decomposition(self.decomposition, shape=shape).shape
        if known is None:
            raise ValueError("`shape` must be given to the operator, or here; got None.")
        if own not in (None, known):
            raise ValueError(f"`shape` must be that of the operator, {own}; got {shape}.")
        return known


def _stages(dec: Decomposition, source: Layout, target: Layout, *, real: bool) -> tuple[Stage, ...]:
    """Transform whatever is local, communicate, and so on: every decomposition's transform is an instance of this.

    The axes of one transform lie last and next to each other, so that it is one contiguous multi-axis FFT.
    """
    rows, columns = dec.sizes
    phases: list[tuple[int, ...]] = [(2,)]
    for axis, devices in ((1, columns), (0, rows)):
        # Axis y (then x) joins the transform before it, unless a mesh axis must first move off it. Axis z stays last,
        # because a real transform halves the last axis.
        if devices > 1:
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
        kind = "r2c" if real and i == 0 else "c2c"
        if kind == "r2c":
            lengths = target.lengths
        after = replace(here, lengths=lengths)
        stages.append(Fourier(here, after, axes, kind, -1))
        here = after
    return (*stages, Move(here, target)) if here != target else tuple(stages)


def _order(here: Layout, axes: tuple[int, ...], target: Layout | None) -> Triple:
    """The storage order for transforming `axes`: the target's own if that has them last, else a cheap one."""
    if target is not None and target.order[-len(axes) :] == axes:
        return target.order
    x, y, z = (*(axis for axis in here.order if axis not in axes), *axes)
    return x, y, z


def _box(lengths: Any) -> np.ndarray | Array:
    """The three lengths, as a NumPy array if they are known when tracing."""
    leaves = jax.tree.leaves(lengths)
    try:
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            parts = [jnp.ravel(jnp.asarray(leaf, jnp.zeros(()).dtype)) for leaf in leaves]
            return jnp.broadcast_to(jnp.concatenate(parts), (3,))
        box = np.broadcast_to(np.asarray(lengths, float), (3,))
    except (TypeError, ValueError):
        box = np.zeros(3)
    if not (np.isfinite(box) & (box > 0)).all():
        raise ValueError(f"`lengths` must be one or three positive, finite numbers; got {lengths!r}.")
    return box


def _along(layout: Layout, axis: int, values: np.ndarray, mesh: Mesh | AbstractMesh, dtype: Any) -> Array:
    """`values` along grid axis `axis` of `layout`, padded with zeros, of length 1 along the others."""
    position = layout.position(axis)
    padding = layout.shape[position] - len(values)
    shape = [-1 if stored == axis else 1 for stored in layout.order]
    names = [layout.names[axis] if stored == axis else None for stored in layout.order]
    array = jnp.asarray(np.pad(values, (0, padding)).reshape(shape), dtype)
    return place(array, NamedSharding(mesh, PartitionSpec(*names)))
