"""Stages: the steps of which every distributed operator consists.

A stage defines *what* happens to a field, and how the field is cut into blocks before and after the stage. A backend
defines *how* it happens. The transpose and the conjugate of each stage are stages, too. A stage may also have an
inverse.
"""

import abc
import functools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .._basis.base import AbstractLineTransform, Run
from .._common.blocks import Blocks, MeshAxis, entry_names, spec_entry


if TYPE_CHECKING:
    from jax import Array


class AbstractStage(abc.ABC):
    """One linear step of a plan. Subclasses are frozen dataclasses of plain, hashable data.

    `before` and `after` define how the field is cut into blocks before and after the stage, and so the block shapes.
    """

    # `before` and `after` are `Blocks`. `Any` keeps type checkers from treating them as constructor arguments.
    before: Any
    after: Any

    @abc.abstractmethod
    def transpose(self) -> "AbstractStage":
        """Return the transpose, without complex conjugation."""

    def conjugate(self) -> "AbstractStage":
        """Return the stage whose matrix is the complex conjugate. This is the stage itself if its matrix is real."""
        return self

    def inverse(self) -> "tuple[AbstractStage, float] | None":
        """Return a stage and a factor. Their product is the inverse. Return `None` if there is no inverse."""
        return None

    def input_dtype(self, dtype: np.dtype) -> np.dtype:
        """Return the dtype that an input of `dtype` is cast to. Raises `TypeError` if the stage cannot take `dtype`."""
        return dtype

    def result_dtype(self, dtype: np.dtype) -> np.dtype:
        """Return the dtype of the result for an input of `dtype`."""
        return dtype

    def apply(self, block: "Array") -> "Array":
        """Apply the stage with JAX to one block of shape `(*batch, *before.block_shape)`, inside a `jax.shard_map`.

        Stages of other packages must define this method. The stages of this file need no `apply`, because backends have
        their own code for these stages.
        """
        del block
        raise TypeError(
            f"the stage `{type(self).__name__}` is unknown to this backend. Define `apply(block)` on this class."
        )


def check_stage(valid: bool, rule: str, stage: AbstractStage) -> None:
    if not valid:
        raise ValueError(f"`{type(stage).__name__}` {rule}; got {stage.before} -> {stage.after}.")


def _check_axes(axes: tuple[int, ...], stage: AbstractStage) -> None:
    ndim = stage.before.ndim
    if not axes or len(set(axes)) < len(axes) or not set(axes) <= set(range(ndim)):
        rule = f"`axes` of `{type(stage).__name__}` must be different axes of the grid, numbered from 0 to {ndim - 1}"
        raise ValueError(f"{rule}; got {axes}.")


@dataclass(frozen=True)
class Move(AbstractStage):
    """Rearrange a field: move mesh axes from one grid axis to another, or change the storage order, or both.

    The moved mesh axes are a whole entry of `Blocks.names`, or the last mesh axes of an entry. The grid axis that gets
    them may already be sharded: they then cut each of its blocks. A grid axis that is sharded both before and after the
    move must need no padding.
    """

    before: Blocks
    after: Blocks

    def __post_init__(self):
        b, a = self.before, self.after
        check_stage(
            (b.lengths, b.halo) == (a.lengths, a.halo) and not b.has_halo, "must move a field without halos", self
        )
        one_exchange = self.mesh_axis is not None or not self._changed
        check_stage(one_exchange, "must move mesh axes from one grid axis to another, in one exchange", self)

    @property
    def gathered(self) -> int | None:
        """The grid axis that the mesh axes leave; `None` if nothing is communicated."""
        return next((axis for axis in self._changed if self.before.parts[axis] > self.after.parts[axis]), None)

    @property
    def divided(self) -> int | None:
        """The grid axis that gets the mesh axes; `None` if nothing is communicated."""
        return next((axis for axis in self._changed if self.before.parts[axis] < self.after.parts[axis]), None)

    @property
    def parts(self) -> int:
        """The number of devices that exchange parts of their blocks with each other."""
        return 1 if self.gathered is None else self.before.parts[self.gathered] // self.after.parts[self.gathered]

    @property
    def is_partial(self) -> bool:
        """Whether one of the two grid axes is sharded both before and after the move."""
        gathered, divided = self.gathered, self.divided
        if gathered is None or divided is None:
            return False
        return max(self.after.parts[gathered], self.before.parts[divided]) > 1

    @functools.cached_property
    def mesh_axis(self) -> MeshAxis | None:
        """The mesh axes that move to another grid axis. `None` if there are none, or if they need several exchanges."""
        gathered, divided, b, a = self.gathered, self.divided, self.before, self.after
        if gathered is None or divided is None or len(self._changed) > 2:
            return None
        leaves, keeps = _names(b, gathered), _names(a, gathered)
        moved = leaves[len(keeps) :]
        fits = (keeps + moved, _names(b, divided) + moved) == (leaves, _names(a, divided))
        fits &= b.parts[gathered] * b.parts[divided] == a.parts[gathered] * a.parts[divided]
        if self.is_partial:
            fits &= not any(blocks.is_padded(axis) for blocks in (b, a) for axis in (gathered, divided))
        return spec_entry(moved) if fits else None

    @functools.cached_property
    def _changed(self) -> tuple[int, ...]:
        """The grid axes whose sharding changes."""
        pairs = [
            [(x.parts[axis], _names(x, axis)) for x in (self.before, self.after)] for axis in range(self.before.ndim)
        ]
        return tuple(axis for axis, (one, other) in enumerate(pairs) if one != other)

    def transpose(self) -> "Move":
        return Move(self.after, self.before)

    def inverse(self) -> "tuple[Move, float]":
        return self.transpose(), 1.0


def _names(blocks: Blocks, axis: int) -> tuple[str, ...]:
    """Return the mesh axes that cut a grid axis into several blocks."""
    return entry_names(blocks.names[axis]) if blocks.parts[axis] > 1 else ()


@dataclass(frozen=True)
class LocalTransform(AbstractStage):
    """Transform the lines of every block along the grid axes `axes`, which must be whole, and multiply by `scale`."""

    before: Blocks
    after: Blocks
    axes: tuple[int, ...]
    transform: AbstractLineTransform
    scale: float = 1.0

    def __post_init__(self):
        b, a = self.before, self.after
        _check_axes(self.axes, self)
        same = (b.parts, b.names, b.order) == (a.parts, a.names, a.order) and not b.has_halo and not a.has_halo
        check_stage(same, "must keep the blocks and the storage order of a field without halos", self)
        kept = all(b.lengths[axis] == a.lengths[axis] for axis in range(b.ndim) if axis not in self.axes)
        check_stage(kept and all(b.parts[axis] == 1 for axis in self.axes), "must transform whole axes only", self)

    @property
    def points(self) -> tuple[int, ...]:
        """The number of grid points along each of `axes`."""
        space = self.after if self.transform.to_points else self.before
        return tuple(space.lengths[axis] for axis in self.axes)

    def transpose(self) -> "LocalTransform":
        return LocalTransform(self.after, self.before, self.axes, self.transform.transpose(), self.scale)

    def conjugate(self) -> "LocalTransform":
        return replace(self, transform=self.transform.conjugate())

    def inverse(self) -> "tuple[LocalTransform, float] | None":
        if self.scale == 0:
            return None
        factor = self.transform.inverse_scale(self.points) / self.scale
        return LocalTransform(self.after, self.before, self.axes, self.transform.inverse()), factor

    def input_dtype(self, dtype: np.dtype) -> np.dtype:
        return self.transform.input_dtype(dtype)

    def result_dtype(self, dtype: np.dtype) -> np.dtype:
        return self.transform.result_dtype(dtype)


@dataclass(frozen=True)
class Extend(AbstractStage):
    """Extend every block along `axis` by layers of cells from its neighbours.

    The transposed stage adds each of these cells to the cell that it was copied from.

    Along the axis, the field has the cells 0 to n - 1. A cell `g` outside the field is zero, or with `periodic` a copy
    of cell `g` modulo n. Cells of padding are outside the field, so with `periodic` they may hold copies.
    """

    before: Blocks
    after: Blocks
    axis: int
    periodic: bool
    transposed: bool = False

    def __post_init__(self):
        short, long = (self.after, self.before) if self.transposed else (self.before, self.after)
        _check_axes((self.axis,), self)
        halo = tuple(long.halo[i] if i == self.axis else short.halo[i] for i in range(short.ndim))
        valid = long == replace(short, halo=halo) and not any(short.halo[self.axis])
        check_stage(valid, "must only add a halo to one axis", self)

    def input_dtype(self, dtype: np.dtype) -> np.dtype:
        if self.transposed and dtype.kind == "b":
            raise TypeError("`x` must hold numbers that can be added; got bool. Pass `x.astype(jnp.int8)`.")
        return dtype

    def transpose(self) -> "Extend":
        return Extend(self.after, self.before, self.axis, self.periodic, not self.transposed)


@dataclass(frozen=True)
class Crop(AbstractStage):
    """Remove the halo of every block. The transposed stage surrounds every block by zeros."""

    before: Blocks
    after: Blocks
    transposed: bool = False

    def __post_init__(self):
        short, long = (self.before, self.after) if self.transposed else (self.after, self.before)
        check_stage(short == replace(long, halo=short.halo) and not short.has_halo, "must only remove halos", self)

    def transpose(self) -> "Crop":
        return Crop(self.after, self.before, not self.transposed)


@dataclass(frozen=True)
class Clear(AbstractStage):
    """Set padding to zero. For fields without padding, this stage is the identity.

    The stage is its own transpose. It is also its own inverse, because the padding of a valid field is already zero.
    """

    before: Blocks

    def __post_init__(self):
        check_stage(not self.before.has_halo, "must get a field without halos", self)

    @property
    def after(self) -> Blocks:
        """The blocks after the stage, which are equal to the blocks before it."""
        return self.before

    def transpose(self) -> "Clear":
        return self

    def inverse(self) -> "tuple[Clear, float]":
        return self, 1.0


@dataclass(frozen=True)
class Scale(AbstractStage):
    """Multiply by a real number."""

    before: Blocks
    factor: float

    def __post_init__(self):
        if not math.isfinite(self.factor):
            raise ValueError(f"`factor` of `Scale` must be finite; got {self.factor}.")

    @property
    def after(self) -> Blocks:
        """The blocks after the stage, which are equal to the blocks before it."""
        return self.before

    def transpose(self) -> "Scale":
        return self

    def inverse(self) -> "tuple[Scale, float] | None":
        return (Scale(self.before, 1 / self.factor), 1.0) if self.factor else None

    def input_dtype(self, dtype: np.dtype) -> np.dtype:
        if dtype.kind in "biu":
            raise TypeError(
                f"`x` must hold floating-point or complex numbers to be multiplied by {self.factor}; got {dtype}."
            )
        return dtype


@dataclass(frozen=True)
class Resize(AbstractStage):
    """Copy coefficients of a spectrum along whole axes: remove the highest modes, or add modes that are zero.

    - `runs`: for each of `axes`, runs of consecutive coefficients. Each run has a source, a target and a factor. A
        coefficient that is the target of no run is zero. Coefficients with the same target are added. The sources of
        two runs are either equal or disjoint, and so are their targets.
    - `fused`: copy in the form that XLA fuses with other steps. This hint is set when a plan is lowered (`lower.py`).
    - `arrived`: the axis that an all-to-all has just made whole. This hint is set when a plan is lowered.
    """

    before: Blocks
    after: Blocks
    axes: tuple[int, ...]
    runs: tuple[tuple[Run, ...], ...]
    fused: bool = False
    arrived: int | None = None

    def __post_init__(self):
        b, a = self.before, self.after
        lengths = tuple(a.lengths[axis] if axis in self.axes else b.lengths[axis] for axis in range(b.ndim))
        whole = all(b.parts[axis] == 1 for axis in self.axes) and len(self.axes) == len(self.runs)
        check_stage(whole and a == replace(b, lengths=lengths), "must only change the lengths of whole axes", self)
        _check_axes(self.axes, self)
        for axis, runs in zip(self.axes, self.runs):
            valid = all(run.length > 0 and run.factor for run in runs)
            valid &= _is_cut(b.lengths[axis], [(run.source, run.length) for run in runs])
            valid &= _is_cut(a.lengths[axis], [(run.target, run.length) for run in runs])
            if not valid:
                raise ValueError(
                    f"`runs` of `Resize` must stay within the {b.lengths[axis]} -> {a.lengths[axis]} coefficients "
                    f"along axis {axis}, must not overlap in part, and must have nonzero factors; got {runs}."
                )

    @property
    def only_copies(self) -> bool:
        """Whether coefficients are only copied: not multiplied, added or made real."""
        return all(run.factor == 1 and not run.real for runs in self.runs for run in runs) and not self.adds

    @property
    def changes_ends(self) -> bool:
        """Whether axes only lose cells at their ends, or get cells there that are zero."""
        lengths = [(self.before.lengths[axis], self.after.lengths[axis]) for axis in self.axes]
        return all(runs == (Run(0, 0, min(pair)),) for runs, pair in zip(self.runs, lengths))

    @property
    def adds(self) -> bool:
        """Whether several coefficients have the same target."""
        return any(len({run.target for run in runs}) < len(runs) for runs in self.runs)

    def transpose(self) -> "Resize":
        return Resize(self.after, self.before, self.axes, tuple(map(_mirrored, self.runs)))

    def inverse(self) -> "tuple[Resize, float]":
        """Return the inverse for spectra whose extra modes are zero. Extra modes are modes that only one side has."""
        return Resize(self.after, self.before, self.axes, tuple(map(inverted, self.runs))), 1.0


def _is_cut(length: int, pieces: list[tuple[int, int]]) -> bool:
    """Return whether all different pieces `(start, length)` fit into `length` cells without overlap."""
    ends = [0]
    for start, count in sorted(set(pieces)):
        if start < ends[-1]:
            return False
        ends.append(start + count)
    return ends[-1] <= length


def _mirrored(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    return tuple(replace(run, source=run.target, target=run.source) for run in runs)


def inverted(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """Return the pseudo-inverse. If runs have a common source or target, their coefficients get equal shares."""

    def images(run: Run) -> int:
        return sum(other.source == run.source or other.target == run.target for other in runs)

    shares = (1 / (images(run) * run.factor) for run in runs)
    return tuple(replace(run, factor=share) for run, share in zip(_mirrored(runs), shares))
