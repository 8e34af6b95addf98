"""Plans: named, checked lists of stages. What a distributed operator is, whatever computes it."""

import functools
import math
from dataclasses import dataclass, replace

import numpy as np

from .._blocks import Blocks
from .stage import AbstractStage, Scale


@dataclass(frozen=True)
class Plan:
    """A distributed linear operator: stages one after the other, and a number to multiply by.

    - `name`: what an error calls the operator, such as "FFT3D".
    - `source`: how an input is cut into blocks, which is what the first stage starts from.

    Forward, inverse, transpose and conjugate come from one list: reversed, and with each stage replaced by its own.
    Padding of results must be zero, whatever stands in that of inputs.
    """

    name: str
    source: Blocks
    stages: tuple[AbstractStage, ...]
    scale: float = 1.0

    def __post_init__(self):
        end = self.source
        for number, stage in enumerate(self.stages):
            if not isinstance(stage, AbstractStage):
                raise TypeError(f"`stages` of `{self.name}` must be stages; got {stage!r} at {number}.")
            if stage.before != end:
                raise ValueError(
                    f"`stages` of `{self.name}` must each start where the one before ends: stage {number} starts from "
                    f"{stage.before}, but the field is then cut as {end}."
                )
            end = stage.after
        if not math.isfinite(self.scale):
            raise ValueError(f"`scale` of `{self.name}` must be finite; got {self.scale}.")

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.name, self.source, self.stages, self.scale))

    def __hash__(self) -> int:  # Every eager call looks its program up, and stages are many nested tuples.
        return self._hash

    @property
    def target(self) -> Blocks:
        """How the result is cut into blocks."""
        return self.stages[-1].after if self.stages else self.source

    @property
    def mesh_axes(self) -> tuple[str, ...]:
        """The mesh axes that divide the grid."""
        return self.source.mesh_axes

    def transpose(self) -> "Plan":
        """The plan of the transpose, without complex conjugation."""
        return self._mirrored(tuple(stage.transpose() for stage in reversed(self.stages)), self.scale)

    def conjugate(self) -> "Plan":
        """The plan whose matrix is the complex conjugate."""
        return replace(self, stages=tuple(stage.conjugate() for stage in self.stages))

    @property
    def is_invertible(self) -> bool:
        """Whether every stage has an inverse, and the number is not zero."""
        return self.scale != 0 and all(stage.inverse() is not None for stage in self.stages)

    def inverse(self) -> "Plan":
        """The plan of the inverse. Raises `ValueError` where there is none."""
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
        """This plan and then another one, as one plan."""
        return Plan(name, self.source, self.stages + other.stages, self.scale * other.scale)

    def input_dtype(self, dtype: np.dtype) -> np.dtype:
        """The dtype that an input of `dtype` is cast to. Raises `TypeError` where there is none."""
        current, number = dtype, () if self.scale == 1 else (Scale(self.target, self.scale),)
        for stage in (*self.stages, *number):
            wanted = stage.input_dtype(current)
            if wanted != current:
                if current != dtype:
                    raise TypeError(
                        f"`{self.name}` cannot take {dtype}: its `{type(stage).__name__}` needs {wanted}, but the "
                        f"stages before it make {current} of it."
                    )
                return self.input_dtype(wanted)  # The stages before this one keep the dtype.
            current = stage.result_dtype(current)
        return dtype

    def result_dtype(self, dtype: np.dtype) -> np.dtype:
        """The dtype of the result for an input of `dtype`, cast already."""
        return functools.reduce(lambda dtype, stage: stage.result_dtype(dtype), self.stages, dtype)

    def _mirrored(self, stages: tuple[AbstractStage, ...], scale: float) -> "Plan":
        return Plan(self.name, self.target, stages, scale)
