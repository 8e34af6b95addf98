"""What a benchmark of a single operator computes."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from jax.sharding import Mesh


HALO_WIDTH = 2


@dataclass(frozen=True)
class Task:
    """What is to be computed of a field: the answer is the same for all contestants. `dtype` is the real one."""

    operator: str
    shape: tuple[int, ...]
    mesh: Mesh
    dtype: np.dtype
    axis_contiguous: bool

    @property
    def halo(self) -> tuple[int, ...]:
        """Its widths: along axes that devices divide."""
        return tuple(HALO_WIDTH if parts > 1 else 0 for parts in self.parts)

    @property
    def parts(self) -> tuple[int, ...]:
        """How many devices divide each axis of the grid."""
        sizes = self.mesh.devices.shape[: len(self.shape) - 1]
        return *sizes, *[1] * (len(self.shape) - len(sizes))

    @property
    def kind(self) -> str:
        """The plain operator: "fft", "rfft", "dct" (of type 2), "transpose", "halo"."""
        return re.split("[+-]", self.operator)[0]

    @property
    def action(self) -> str:
        """What is done with the transform: "" (nothing more), "inverse" or "gradient"."""
        return self.operator.removeprefix(self.kind).lstrip("+-")

    @property
    def real(self) -> bool:
        """Whether the field is real."""
        return self.kind != "fft"

    @property
    def is_transform(self) -> bool:
        return self.kind in ("fft", "rfft", "dct")

    @property
    def forward(self) -> "Task":
        """The plain transform of the same field."""
        return replace(self, operator=self.kind)


def weights(*k: Any) -> Any:
    """The weights of the spectral loss: `1 / (1 + |k|^2)`, of one array of wavenumbers for each axis."""
    return 1 / sum((component**2 for component in k), 1)


def wavenumbers(task: Task, *, half: bool, order: tuple[int, ...] = ()) -> list[np.ndarray]:
    """Integer wavenumbers, broadcastable against a spectrum stored in `order`, by default that of the axes."""
    ndim = len(task.shape)
    order = order or tuple(range(ndim))
    kinds = [np.fft.fftfreq] * (ndim - 1) + [np.fft.rfftfreq if half else np.fft.fftfreq]
    modes = [kind(n, 1 / n).astype(task.dtype) for kind, n in zip(kinds, task.shape)]
    return [np.expand_dims(k, [i for i in range(ndim) if order[i] != axis]) for axis, k in enumerate(modes)]


def pair(task: Task, library: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The transform and its inverse, of a library with the names of `scipy.fft`."""
    match task.kind:
        case "rfft":
            return library.rfftn, partial(library.irfftn, s=task.shape)
        case "dct":
            return library.dctn, library.idctn
    return library.fftn, library.ifftn
