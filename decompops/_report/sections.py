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


# A section is a function of the setting and of the results of earlier sections.
Section = Callable[[Setting, dict[str, Any]], dict[str, Any]]
# Each section with its weight in the time that is left. Later sections get the time that a section does not use.
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
