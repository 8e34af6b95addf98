"""The task of a benchmark of a single operator."""

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
    """An operator on a field. All contestants must give the same answer.

    `dtype` is the real dtype; complex fields have the complex dtype of the same precision.
    """

    operator: str
    shape: tuple[int, ...]
    mesh: Mesh
    dtype: np.dtype
    axis_contiguous: bool

    @property
    def halo(self) -> tuple[int, ...]:
        """The width of the halo along each axis. It is zero along axes that are not sharded."""
        return tuple(HALO_WIDTH if parts > 1 else 0 for parts in self.parts)

    @property
    def parts(self) -> tuple[int, ...]:
        """The number of devices along each axis of the grid."""
        sizes = self.mesh.devices.shape[: len(self.shape) - 1]
        return *sizes, *[1] * (len(self.shape) - len(sizes))

    @property
    def kind(self) -> str:
        """The operator without its action: "fft", "rfft", "dct" (of type 2), "transpose" or "halo"."""
        return re.split("[+-]", self.operator)[0]

    @property
    def action(self) -> str:
        """The computation after the transform: "" (none), "inverse" or "gradient"."""
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
        """The task that transforms the same field, without the inverse or the gradient."""
        return replace(self, operator=self.kind)


def weights(*k: Any) -> Any:
    """Return the weights `1 / (1 + |k|^2)` of the spectral loss. `k` has an array of wavenumbers for each axis."""
    return 1 / sum((component**2 for component in k), 1)


def wavenumbers(task: Task, *, half: bool, order: tuple[int, ...] = ()) -> list[np.ndarray]:
    """Return integer wavenumbers, broadcastable against a spectrum whose axes are stored in `order`."""
    ndim = len(task.shape)
    order = order or tuple(range(ndim))
    kinds = [np.fft.fftfreq] * (ndim - 1) + [np.fft.rfftfreq if half else np.fft.fftfreq]
    modes = [kind(n, 1 / n).astype(task.dtype) for kind, n in zip(kinds, task.shape)]
    return [np.expand_dims(k, tuple(i for i in range(ndim) if order[i] != axis)) for axis, k in enumerate(modes)]


def pair(task: Task, library: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the transform and its inverse from a library whose functions have the same names as in `scipy.fft`."""
    match task.kind:
        case "rfft":
            return library.rfftn, partial(library.irfftn, s=task.shape)
        case "dct":
            return library.dctn, library.idctn
    return library.fftn, library.ifftn
