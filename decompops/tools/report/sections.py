"""The sections of a report, in the order in which they run."""

from collections.abc import Callable
from typing import Any

from .correctness import accuracy, selftest
from .gpu_tests import tests
from .hardware import hardware
from .limits import limits
from .scaling import scaling
from .setting import Setting
from .software import software
from .speed import benchmarks, memory


# A section is a function of the `Setting` and of the results of earlier sections. It returns its own results.
Section = Callable[[Setting, dict[str, Any]], dict[str, Any]]
# Each section has a weight. When a section starts, it gets a share of the time that is left: its own weight, divided by
# the sum of its own weight and the weights of all later sections.
SECTIONS: dict[str, tuple[Section, float]] = {
    "hardware": (hardware, 0.5),
    "software": (software, 0.5),
    "selftest": (selftest, 3),
    "accuracy": (accuracy, 2),
    "memory": (memory, 1),
    "tests": (tests, 3),
    "scaling": (scaling, 4),
    "benchmarks": (benchmarks, 6),
    "limits": (limits, 1),
}
