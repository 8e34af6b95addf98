"""Plans: named, checked lists of stages. A plan defines a distributed operator independently of the backend."""

import functools
import math
from dataclasses import dataclass, replace

import numpy as np

from .._common.blocks import Blocks
from .reduce import Reduce
from .stage import AbstractStage, Scale


@dataclass(frozen=True)
class Plan:
    """A distributed linear operator: stages that run one after the other, and a factor.

    - `name`: the operator's name in error messages, such as "FFT3D".
    - `source`: how an input is cut into blocks. The first stage must start from these blocks.
    - `stages`: the stages.
    - `scale`: the factor, a finite number.

    The plans of the inverse, transpose and conjugate are derived from these stages. Each stage is replaced by its own
    inverse, transpose or conjugate. For the inverse and the transpose, the order of the stages is also reversed. The
    padding of a result is always zero, even if the padding of the input is not.

    Raises `ValueError` if a stage does not start from the blocks after the previous stage, or if the factor is not
    finite; `TypeError` if an entry of `stages` is not a stage.
    """

    name: str
    source: Blocks
    stages: tuple[AbstractStage, ...]
    scale: float = 1.0

    def __post_init__(self):
        if not isinstance(self.stages, tuple):
            raise TypeError(f"`stages` of `{self.name}` must be a tuple of stages; got {self.stages!r}.")
        end = self.source
        for number, stage in enumerate(self.stages):
            if not isinstance(stage, AbstractStage):
                raise TypeError(f"`stages` of `{self.name}` must be stages; got {stage!r} at {number}.")
            if stage.before != end:
                raise ValueError(
                    f"`stages` of `{self.name}` must each start from the blocks after the previous one; got stage "
                    f"{number}, which starts from {stage.before}, after {end}."
                )
            end = stage.after
        if not math.isfinite(self.scale):
            raise ValueError(f"`scale` of `{self.name}` must be finite; got {self.scale}.")

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.name, self.source, self.stages, self.scale))

    def __hash__(self) -> int:  # Stored, because every eager call needs the hash, and hashing nested tuples is slow.
        return self._hash

    @property
    def target(self) -> Blocks:
        """How the result is cut into blocks."""
        return self.stages[-1].after if self.stages else self.source

    @property
    def mesh_axes(self) -> tuple[str, ...]:
        """The mesh axes that shard the grid, before or after the stages."""
        return tuple(dict.fromkeys((*self.source.mesh_axes, *self.target.mesh_axes)))

    @property
    def reduces(self) -> bool:
        """Whether the plan reduces a field to one number, or copies a number into the cells of a field."""
        return any(isinstance(stage, Reduce) for stage in self.stages)

    def transpose(self) -> "Plan":
        """Return the plan of the transpose, without complex conjugation."""
        return self._mirrored(tuple(stage.transpose() for stage in reversed(self.stages)), self.scale)

    def conjugate(self) -> "Plan":
        """Return the plan of the complex conjugate matrix."""
        return replace(self, stages=tuple(stage.conjugate() for stage in self.stages))

    @property
    def is_invertible(self) -> bool:
        """Whether every stage has an inverse and the factor is not zero."""
        return self.scale != 0 and all(stage.inverse() is not None for stage in self.stages)

    def inverse(self) -> "Plan":
        """Return the plan of the inverse. Raises `ValueError` if the plan has no inverse."""
        if self.scale == 0:
            raise ValueError(f"`{self.name}` has no inverse, because it multiplies by 0.")
        stages, scale = [], self.scale
        for stage in reversed(self.stages):
            inverse = stage.inverse()
            if inverse is None:
                raise ValueError(f"`{self.name}` has no inverse, because `{type(stage).__name__}` has none.")
            stages.append(inverse[0])
            scale /= inverse[1]
        return self._mirrored(tuple(stages), 1 / scale)

    def then(self, other: "Plan", name: str) -> "Plan":
        """Return the plan that applies this plan and then `other`."""
        return Plan(name, self.source, self.stages + other.stages, self.scale * other.scale)

    def input_dtype(self, dtype: np.dtype) -> np.dtype:
        """Return the dtype that an input of `dtype` is cast to. Raises `TypeError` if the plan cannot take `dtype`."""
        current, number = dtype, () if self.scale == 1 else (Scale(self.target, self.scale),)
        for stage in (*self.stages, *number):
            wanted = stage.input_dtype(current)
            if wanted != current:
                if current != dtype:
                    raise TypeError(
                        f"`{self.name}` cannot take {dtype}: its stage `{type(stage).__name__}` needs {wanted}, but "
                        f"the stages before it return {current}. Put a stage that returns {wanted} before it."
                    )
                return self.input_dtype(wanted)  # The stages before this one keep the dtype.
            current = stage.result_dtype(current)
        return dtype

    def result_dtype(self, dtype: np.dtype) -> np.dtype:
        """Return the dtype of the result for an input of `dtype`. `input_dtype` must have returned this `dtype`."""
        return functools.reduce(lambda dtype, stage: stage.result_dtype(dtype), self.stages, dtype)

    def _mirrored(self, stages: tuple[AbstractStage, ...], scale: float) -> "Plan":
        return Plan(self.name, self.target, stages, scale)
