"""The interface of tuners: each finds the candidates of one backend for `dops.autotune` by a search of its own."""

import abc
from collections.abc import Sequence

from .._decomposition import Decomposition
from .trial import Task


class AbstractTuner(abc.ABC):
    """A search that finds candidates of one backend, which can measure by itself. `dops.autotune` times the candidates.

    A tuner is a frozen dataclass of options, and is passed to `dops.autotune` among the `backends`.
    """

    @abc.abstractmethod
    def candidates(self, task: Task) -> Sequence[Decomposition]:
        """Return the decompositions to try, the same in every process. Every process must call this method."""
