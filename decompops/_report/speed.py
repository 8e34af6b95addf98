"""The sections on time and memory: the benchmarks, and what compiled programs hold."""

import math
from dataclasses import asdict
from itertools import product
from typing import Any

from .._bench.run import Case, cases, measure, problem_of
from .hardware import least_memory_of_a_process
from .setting import Setting, Shape


# What is timed first, and what is timed with the time that is left.
_FIRST, _THEN = ("fft", "rfft"), ("rfft+inverse", "transpose", "halo", "rfft-gradient", "navier-stokes", "etdrk4")
_MEMORY = ("fft", "rfft", "rfft+inverse", "fft-gradient", "rfft-gradient", "transpose", "halo", "gradient")
_MEMORY_OF_SOLVERS = ("navier-stokes", "etdrk4", "fno", "fno-gradient")


def benchmarks(setting: Setting, _: dict[str, Any]) -> dict[str, Any]:
    """Operators and a solver beside their peers, as `python -m decompops bench` times them."""
    # Every process makes whole fields, about ten of them, and must leave half of the memory to others.
    most_cells = least_memory_of_a_process() / 2 / (10 * 8)
    fitting = [shape for shape in setting.shapes if math.prod(shape) <= most_cells]
    selected = []
    for operators, shape in product((_FIRST, _THEN), fitting):
        selected += cases(_applicable(operators, shape, setting), [(shape, setting.mesh_sizes)], ["float32"], [False])
    found = setting.each(selected, lambda case: measure(case, setting.devices, setting.backend, setting.repeats))
    too_large = (f"all operators on {shape}: not enough memory" for shape in setting.shapes if shape not in fitting)
    return {**found, "left_out": [*found["left_out"], *too_large]}


def memory(setting: Setting, _: dict[str, Any]) -> dict[str, Any]:
    """What the compiled program of each operator holds on a device, and the least that it must hold, in bytes."""

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

    operators = _applicable((*_MEMORY, *_MEMORY_OF_SOLVERS), setting.small, setting)
    found = setting.each(cases(operators, [(setting.small, setting.mesh_sizes)], ["float32"], [False]), row)
    return {**found, "workspace_of_all_kernels": setting.backend.counters().workspace_bytes}


def _applicable(operators: tuple[str, ...], shape: Shape, setting: Setting) -> list[str]:
    """The benchmark refuses halos of blocks of different sizes."""
    even = not any(n % parts for n, parts in zip(shape, setting.mesh_sizes))
    return [operator for operator in operators if operator != "halo" or even]
