"""Stages: the steps that every distributed operator is made of.

A stage says *what* happens to a field and how it is cut into blocks before and after; a backend says *how*. Each stage
has a transpose, a conjugate and, where there is one, an inverse, which are stages themselves.
"""

import abc
import functools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .._basis.base import AbstractLineTransform, Run
from .._blocks import Blocks, MeshAxis, entry_names, spec_entry


if TYPE_CHECKING:
    from jax import Array


class AbstractStage(abc.ABC):
    """One linear step of a plan. Subclasses are frozen dataclasses of plain, hashable data.

    `before` and `after` say how the field is cut into blocks, and so what a block's shape is.
    """

    before: Any  # `Blocks`; type checkers take an annotated field of an abstract class for a constructor's argument
    after: Any

    @abc.abstractmethod
    def transpose(self) -> "AbstractStage":
        """The transpose, without complex conjugation."""

    def conjugate(self) -> "AbstractStage":
        """The stage whose matrix is the complex conjugate: the stage itself if its matrix is real."""
        return self

    def inverse(self) -> "tuple[AbstractStage, float] | None":
        """A stage and a factor whose product is the inverse; `None` where there is no inverse."""
        return None

    def input_dtype(self, dtype: np.dtype) -> np.dtype:
        """The dtype that an input of `dtype` is cast to. Raises `TypeError` where there is none."""
        return dtype

    def result_dtype(self, dtype: np.dtype) -> np.dtype:
        """The dtype after the stage."""
        return dtype

    def apply(self, block: "Array") -> "Array":
        """Apply to one block `(*batch, *before.block_shape)` with JAX, inside a `jax.shard_map` over the mesh.

        For stages of other packages. Those of this package are left to each backend, and have no such method.
        """
        del block
        raise TypeError(
            f"the stage `{type(self).__name__}` is unknown to this backend, and must have a method `apply(block)`."
        )


def _check(valid: bool, rule: str, stage: AbstractStage) -> None:
    if not valid:
        raise ValueError(f"`{type(stage).__name__}` {rule}; got {stage.before} -> {stage.after}.")


def _check_axes(axes: tuple[int, ...], stage: AbstractStage) -> None:
    ndim = stage.before.ndim
    if not axes or len(set(axes)) < len(axes) or not set(axes) <= set(range(ndim)):
        rule = f"`axes` of `{type(stage).__name__}` must be different axes of the grid, numbered from 0 to {ndim - 1}"
        raise ValueError(f"{rule}; got {axes}.")


@dataclass(frozen=True)
class Move(AbstractStage):
    """Rearrange: what divides one grid axis may go over to another one, and the storage order may change.

    What goes over is an entry of `Blocks.names`, or the last mesh axes of one that has several. It cuts each block of
    the other axis, which may be divided already. If either axis stays divided, its devices must divide it.
    """

    before: Blocks
    after: Blocks

    def __post_init__(self):
        b, a = self.before, self.after
        _check((b.lengths, b.halo) == (a.lengths, a.halo) and not b.has_halo, "moves a field without halos", self)
        _check(self.mesh_axis is not None or not self._changed, "takes mesh axes from one grid axis to another", self)

    @property
    def gathered(self) -> int | None:
        """The grid axis that becomes less divided, or whole (`None`: nothing is communicated)."""
        return next((axis for axis in self._changed if self.before.parts[axis] > self.after.parts[axis]), None)

    @property
    def divided(self) -> int | None:
        """The grid axis that becomes divided, or more so."""
        return next((axis for axis in self._changed if self.before.parts[axis] < self.after.parts[axis]), None)

    @property
    def parts(self) -> int:
        """How many devices exchange parts of their blocks with each other."""
        return 1 if self.gathered is None else self.before.parts[self.gathered] // self.after.parts[self.gathered]

    @property
    def is_partial(self) -> bool:
        """Whether one of the two axes is divided before and after."""
        gathered, divided = self.gathered, self.divided
        if gathered is None or divided is None:
            return False
        return max(self.after.parts[gathered], self.before.parts[divided]) > 1

    @functools.cached_property
    def mesh_axis(self) -> MeshAxis | None:
        """The mesh axes that go over; `None` where none does, or where this is no single exchange."""
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
        """The axes that are divided in another way afterwards."""
        pairs = [
            [(x.parts[axis], _names(x, axis)) for x in (self.before, self.after)] for axis in range(self.before.ndim)
        ]
        return tuple(axis for axis, (one, other) in enumerate(pairs) if one != other)

    def transpose(self) -> "Move":
        return Move(self.after, self.before)

    def inverse(self) -> "tuple[Move, float]":
        return self.transpose(), 1.0


def _names(blocks: Blocks, axis: int) -> tuple[str, ...]:
    """The mesh axes that divide a grid axis into several blocks."""
    return entry_names(blocks.names[axis]) if blocks.parts[axis] > 1 else ()


@dataclass(frozen=True)
class LocalTransform(AbstractStage):
    """Map the lines of every block along the undivided grid axes `axes`, times `scale`."""

    before: Blocks
    after: Blocks
    axes: tuple[int, ...]
    transform: AbstractLineTransform
    scale: float = 1.0

    def __post_init__(self):
        b, a = self.before, self.after
        _check_axes(self.axes, self)
        same = (b.parts, b.names, b.order) == (a.parts, a.names, a.order) and not b.has_halo and not a.has_halo
        _check(same, "keeps how a field without halos is cut and stored", self)
        kept = all(b.lengths[axis] == a.lengths[axis] for axis in range(b.ndim) if axis not in self.axes)
        _check(kept and all(b.parts[axis] == 1 for axis in self.axes), "maps lines along undivided axes only", self)

    @property
    def points(self) -> tuple[int, ...]:
        """How many points the grid has along each of `axes`."""
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
    """Extend every block along `axis` by its neighbours' layers.

    The transposed stage adds these layers back to the cells that they were copied from.

    Cell `g` of the line that the blocks cover is field cell `g` modulo the true length where periodic, else zero
    outside the field. Padding counts as outside, except that a periodic image may lie in it.
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
        _check(long == replace(short, halo=halo) and not any(short.halo[self.axis]), "adds a halo to one axis", self)

    def transpose(self) -> "Extend":
        return Extend(self.after, self.before, self.axis, self.periodic, not self.transposed)


@dataclass(frozen=True)
class Crop(AbstractStage):
    """Drop the halo of every block. The transposed stage surrounds every block by zeros."""

    before: Blocks
    after: Blocks
    transposed: bool = False

    def __post_init__(self):
        short, long = (self.before, self.after) if self.transposed else (self.after, self.before)
        _check(short == replace(long, halo=short.halo) and not short.has_halo, "drops halos and nothing else", self)

    def transpose(self) -> "Crop":
        return Crop(self.after, self.before, not self.transposed)


@dataclass(frozen=True)
class Clear(AbstractStage):
    """Set padding to zero. On fields without padding this is the identity, its own transpose and its own inverse."""

    before: Blocks

    def __post_init__(self):
        _check(not self.before.has_halo, "takes a field without halos", self)

    @property
    def after(self) -> Blocks:
        """How the field is cut into blocks after the stage: as before."""
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
        """How the field is cut into blocks after the stage: as before."""
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
    """Copy coefficients of a spectrum along undivided axes: drop the highest ones, or put zeros in their place.

    `runs` say for each of `axes` which go where, and times what; what nothing is copied to is zero. Coefficients that
    are copied to one place are added. Two runs have all cells in common, or none. `fused` and `arrived` are hints of
    the lowering: whether to copy in the form that XLA fuses with other steps, and which axis an all-to-all has just put
    together.
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
        _check(whole and a == replace(b, lengths=lengths), "changes the length of undivided axes only", self)
        _check_axes(self.axes, self)
        for axis, runs in zip(self.axes, self.runs):
            valid = all(run.length > 0 and run.factor for run in runs)
            valid &= _is_cut(b.lengths[axis], [(run.source, run.length) for run in runs])
            valid &= _is_cut(a.lengths[axis], [(run.target, run.length) for run in runs])
            if not valid:
                raise ValueError(
                    f"`runs` of `Resize` must lie within the {b.lengths[axis]} -> {a.lengths[axis]} coefficients along "
                    f"axis {axis}, overlap nowhere but as a whole, and multiply by other numbers than 0; got {runs}."
                )

    @property
    def only_copies(self) -> bool:
        """Whether nothing is multiplied, and nothing added."""
        return all(run.factor == 1 and not run.real for runs in self.runs for run in runs) and not self.adds

    @property
    def adds(self) -> bool:
        """Whether several coefficients are copied to one place."""
        return any(len({run.target for run in runs}) < len(runs) for runs in self.runs)

    def transpose(self) -> "Resize":
        return Resize(self.after, self.before, self.axes, tuple(map(_mirrored, self.runs)))

    def inverse(self) -> "tuple[Resize, float]":
        """The inverse on spectra that have no more coefficients than the shorter side."""
        return Resize(self.after, self.before, self.axes, tuple(map(_inverted, self.runs))), 1.0


def _is_cut(length: int, pieces: list[tuple[int, int]]) -> bool:
    """Whether all different pieces, each a start and a length, fit side by side into `length` cells."""
    ends = [0]
    for start, count in sorted(set(pieces)):
        if start < ends[-1]:
            return False
        ends.append(start + count)
    return ends[-1] <= length


def _mirrored(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    return tuple(replace(run, source=run.target, target=run.source) for run in runs)


def _inverted(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """The pseudo-inverse. Coefficients that share a source or a target share the value equally."""

    def images(run: Run) -> int:
        return sum(other.source == run.source or other.target == run.target for other in runs)

    shares = (1 / (images(run) * run.factor) for run in runs)
    return tuple(replace(run, factor=share) for run, share in zip(_mirrored(runs), shares))
