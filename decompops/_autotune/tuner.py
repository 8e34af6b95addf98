"""The interface of tuners. A tuner searches decompositions for one backend, which `dops.autotune` then times."""

import abc
from collections.abc import Sequence

from .._core.decomposition import Decomposition
from .trial import Task


class AbstractTuner(abc.ABC):
    """A search for decompositions with one backend. The search may measure times itself.

    `dops.autotune` takes tuners in its argument `backends`, and times the decompositions that they find. A tuner is a
    frozen dataclass of options.
    """

    @abc.abstractmethod
    def candidates(self, task: Task) -> Sequence[Decomposition]:
        """Return the decompositions to time. All processes must call this method, and get the same result."""
