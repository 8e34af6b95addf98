"""The sections on time and memory."""

import math
from dataclasses import asdict
from itertools import product
from typing import Any

from ..bench.run import Case, measure, problem_of
from .grids import cases_on
from .hardware import least_memory_of_a_process
from .setting import Setting


# The operators in `_FIRST` are timed first, on all grids. The operators in `_THEN` follow if there is time.
_FIRST, _THEN = ("fft", "rfft"), ("rfft+inverse", "transpose", "halo", "rfft-gradient", "navier-stokes", "etdrk4")
_MEMORY = ("fft", "rfft", "rfft+inverse", "fft-gradient", "rfft-gradient", "transpose", "halo", "gradient")
_MEMORY_OF_SOLVERS = ("navier-stokes", "etdrk4", "fno", "fno-gradient")


def benchmarks(setting: Setting, _: dict[str, Any]) -> dict[str, Any]:
    """Time operators and solvers, and the same operations of other libraries, as `python -m decompops bench` does."""
    # Every process makes about ten whole fields of float64 numbers. They may fill half of the memory of the process.
    most_cells = least_memory_of_a_process() / 2 / (10 * 8)
    fitting = [shape for shape in setting.shapes if math.prod(shape) <= most_cells]
    selected = []
    for operators, shape in product((_FIRST, _THEN), fitting):
        selected += cases_on(operators, shape, ["float32"], setting)
    found = setting.each(selected, lambda case: measure(case, setting.devices, setting.backend, setting.repeats))
    too_large = (f"all operators on {shape}: not enough memory" for shape in setting.shapes if shape not in fitting)
    return {**found, "left_out": [*found["left_out"], *too_large]}


def memory(setting: Setting, _: dict[str, Any]) -> dict[str, Any]:
    """Measure the bytes that each compiled program holds on a device, and compute the least bytes that it must hold."""

    def row(case: Case) -> dict[str, Any]:
        ours = problem_of(case, setting.devices, setting.backend).ours
        analysis = ours.compile().memory_analysis()
        return {
            **asdict(case),
            "arguments": analysis.argument_size_in_bytes,
            "results": analysis.output_size_in_bytes,
            "scratch": analysis.temp_size_in_bytes,
            "least_arguments": sum(operand.least_bytes for operand in ours.arguments),
            "least_results": sum(operand.least_bytes for operand in ours.results),
        }

    found = setting.each(cases_on((*_MEMORY, *_MEMORY_OF_SOLVERS), setting.small, ["float32"], setting), row)
    return {**found, "workspace_of_all_kernels": setting.backend.counters().workspace_bytes}
