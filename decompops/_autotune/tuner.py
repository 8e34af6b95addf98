"""The interface of tuners, which search for candidates of one backend better than `dops.autotune` could."""

import abc
from collections.abc import Sequence

from .._decomposition import Decomposition
from .trial import Task


class AbstractTuner(abc.ABC):
    """A search for the candidates of one backend for `dops.autotune`, for a backend that can measure by itself.

    A tuner is a frozen dataclass of options, and is passed to `dops.autotune` among the `backends`.
    """

    @abc.abstractmethod
    def candidates(self, task: Task) -> Sequence[Decomposition]:
        """Return the decompositions to try, the same in every process. Every process must call this method."""
