"""Stages: the steps that every distributed operator is made of, and plans, the lists of stages.

A plan says *what* happens to a block; a backend says *how* (`decompops/_backend`). Forward, inverse, transpose and
conjugate operators all come from one list of stages: reversed, and with each stage replaced by its own counterpart.
"""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from ._blocks import Blocks
from ._sharding import BatchEntry


if TYPE_CHECKING:
    from jax import Array
    from jax.sharding import AbstractMesh, Mesh

    from ._backend.base import AbstractBackend


@dataclass(frozen=True)
class Move:
    """Rearrange: at most one mesh axis goes over from one grid axis to another, and the storage order may change."""

    before: Blocks
    after: Blocks

    @property
    def gathered(self) -> int | None:
        """The grid axis that becomes whole on every device (`None`: nothing is communicated)."""
        return _one_axis(self.before.parts[i] > 1 and self.after.parts[i] == 1 for i in range(3))

    @property
    def divided(self) -> int | None:
        """The grid axis that becomes divided."""
        return _one_axis(self.before.parts[i] == 1 and self.after.parts[i] > 1 for i in range(3))

    def transpose(self) -> "Move":
        return Move(self.after, self.before)

    def conjugate(self) -> "Move":
        return self

    inverse = transpose


def _one_axis(flags) -> int | None:
    axes = [i for i, flag in enumerate(flags) if flag]
    return axes[0] if axes else None


@dataclass(frozen=True)
class Fourier:
    """A discrete Fourier transform of the local grid axes `axes`, unnormalised, with exponent `sign`.

    `kind` is complex to complex, real to half spectrum, or half spectrum to real; the last of `axes` is the one that is
    halved. A `weighted` real transform multiplies its half spectrum by the number of times that each mode stands in the
    full one ("r2c", after transforming) or divides by it ("c2r", before): these are the transposes of the plain ones.
    """

    before: Blocks
    after: Blocks
    axes: tuple[int, ...]
    kind: Literal["c2c", "r2c", "c2r"]
    sign: Literal[-1, 1]
    weighted: bool = False

    @property
    def real_lengths(self) -> tuple[int, ...]:
        """The true lengths of `axes` in real space."""
        real_space = self.after if self.kind == "c2r" else self.before
        return tuple(real_space.lengths[axis] for axis in self.axes)

    @property
    def size(self) -> int:
        return math.prod(self.real_lengths)

    def transpose(self) -> "Fourier":
        weighted = not self.weighted if self.kind != "c2c" else False
        return Fourier(self.after, self.before, self.axes, _opposite(self.kind), self.sign, weighted)

    def conjugate(self) -> "Fourier":
        return replace(self, sign=-self.sign)

    def inverse(self) -> "Fourier":
        """The inverse up to the factor `1 / size`, which the plan keeps in its scale."""
        return Fourier(self.after, self.before, self.axes, _opposite(self.kind), -self.sign, self.weighted)


def _opposite(kind: Literal["c2c", "r2c", "c2r"]) -> Literal["c2c", "r2c", "c2r"]:
    match kind:
        case "r2c":
            return "c2r"
        case "c2r":
            return "r2c"
        case _:
            return "c2c"


@dataclass(frozen=True)
class Extend:
    """Extend every block along `axis` by its neighbours' layers; `transposed`, add them back to their owners.

    Cell `g` of the line that the blocks cover is field cell `g` modulo the true length where periodic, else zero
    outside the field. Padding counts as outside, except that a periodic image may lie in it.
    """

    before: Blocks
    after: Blocks
    axis: int
    periodic: bool
    transposed: bool = False

    def transpose(self) -> "Extend":
        return Extend(self.after, self.before, self.axis, self.periodic, not self.transposed)

    def conjugate(self) -> "Extend":
        return self


@dataclass(frozen=True)
class Crop:
    """Drop the halo of every block; `transposed`, surround every block by zeros."""

    before: Blocks
    after: Blocks
    transposed: bool = False

    def transpose(self) -> "Crop":
        return Crop(self.after, self.before, not self.transposed)

    def conjugate(self) -> "Crop":
        return self


@dataclass(frozen=True)
class Clear:
    """Set padding to zero. On fields without padding this is the identity, its own transpose and its own inverse."""

    before: Blocks
    after: Blocks

    def transpose(self) -> "Clear":
        return self

    conjugate = inverse = transpose


@dataclass(frozen=True)
class Resize:
    """Drop the highest modes of a spectrum along the local grid axes `axes`, or put zeros in their place.

    `modes` are the shorter of the two lengths in real space: modes below half of that are copied. If it is even, its
    Nyquist mode stands for the two modes `±modes / 2` of the longer spectrum (of which a halved one has the first), and
    `nyquist` is the factor between it and each of them. `halved`: axis z is, as a real transform leaves it.
    """

    before: Blocks
    after: Blocks
    axes: tuple[int, ...]
    modes: tuple[int, ...]
    halved: bool
    nyquist: tuple[float, ...]

    def transpose(self) -> "Resize":
        return replace(self, before=self.after, after=self.before)

    def conjugate(self) -> "Resize":
        return self

    def inverse(self) -> "Resize":
        """The inverse on spectra that have no more than `modes` modes."""
        images = (1 if self.halved and axis == 2 else 2 for axis in self.axes)
        factors = (factor and 1 / (n * factor) for n, factor in zip(images, self.nyquist))
        return replace(self.transpose(), nyquist=tuple(factors))


Stage = Move | Fourier | Extend | Crop | Clear | Resize


def result_dtype(stage: Stage, dtype: np.dtype) -> np.dtype:
    """The dtype after a stage: only real transforms change it."""
    match stage:
        case Fourier(kind="r2c"):
            return np.result_type(dtype, np.complex64)
        case Fourier(kind="c2r"):
            return np.finfo(dtype).dtype
    return dtype


class Caller(NamedTuple):
    """Who calls an operator.

    `line` is the line of the user's program, such as `power.py:12`. `place` tells calls apart that share a line: it has
    columns, and the functions around the call that JAX traces with it. `thread` is the name of the Python thread.
    """

    line: str = ""
    place: str = ""
    thread: str = ""


NOBODY = Caller()


@dataclass(frozen=True)
class Plan:
    """A distributed linear operator: the parameter of the one primitive.

    `batch` says over which mesh axes leading batch axes are divided, as far as that is known. `caller` says who calls
    the operator, if the backend asks for it.
    """

    mesh: "Mesh | AbstractMesh"
    axes: tuple[str, str | None]
    stages: tuple[Stage, ...]
    source: Blocks
    target: Blocks
    backend: "AbstractBackend"
    scale: float = 1.0
    batch: tuple[BatchEntry, ...] = ()
    caller: Caller = NOBODY

    def local(self, block: "Array") -> "Array":
        """Apply to one block, inside a `shard_map` over the mesh."""
        return self.backend.run(self, block)

    @property
    def is_invertible(self) -> bool:
        return all(hasattr(stage, "inverse") for stage in self.stages)

    def transpose(self) -> "Plan":
        return self._mirrored(tuple(stage.transpose() for stage in reversed(self.stages)))

    def conjugate(self) -> "Plan":
        return replace(self, stages=tuple(stage.conjugate() for stage in self.stages))

    def inverse(self) -> "Plan":
        stages = tuple(stage.inverse() for stage in reversed(self.stages))  # pyright: ignore
        size = math.prod(stage.size for stage in self.stages if isinstance(stage, Fourier))
        return replace(self._mirrored(stages), scale=1 / (self.scale * size))

    def _mirrored(self, stages: tuple[Stage, ...]) -> "Plan":
        return replace(self, stages=stages, source=self.target, target=self.source)
