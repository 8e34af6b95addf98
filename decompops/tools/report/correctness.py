"""The sections on accuracy: the self-test, and the error of every operator."""

from dataclasses import asdict
from typing import Any

import jax
import numpy as np

from ..bench.operators import OPERATORS
from ..bench.peers import expected
from ..bench.run import Case, make_mesh, problem_of, relative_error
from ..bench.task import Task
from ..selftest import Outcome, run
from .grids import cases_on
from .setting import Setting


# The solvers whose discrete answer is known exactly on every grid. The answers of other solvers also have errors of
# discretization.
_SOLVERS = (
    *("gradient", "navier-stokes", "etdrk2", "etdrk4", "fno", "fno-gradient"),
    *("poisson-centres", "poisson-cells"),
)


def selftest(setting: Setting, _: dict[str, Any]) -> dict[str, Any]:
    """Run the checks of `python -m decompops selftest`, and stop when the time of the section is up."""
    outcomes: list[Outcome] = []
    stopped = False
    for outcome in run(setting.backend, setting.devices, setting.on_step):
        outcomes.append(outcome)
        if stopped := not setting.clock.allows():
            break
    return {
        "passed": sum(outcome.passed for outcome in outcomes),
        "meshes": sorted({outcome.mesh for outcome in outcomes}),
        "largest_error": max((outcome.error for outcome in outcomes if outcome.passed), default=None),
        "failed": [
            {"case": f"{one.check} on mesh {one.mesh}", "error": one.raised or f"relative error {one.error:.1e}"}
            for one in outcomes
            if not one.passed
        ],
        "left_out": ["the checks after this one"] if stopped else [],
    }


def accuracy(setting: Setting, _: dict[str, Any]) -> dict[str, Any]:
    """Measure the relative error of each operator in float32 and float64. NumPy and SciPy give the right answers."""
    operators = (*OPERATORS, *_SOLVERS)
    dtypes = ["float32", "float64"] if jax.config.read("jax_enable_x64") else ["float32"]
    return setting.each(cases_on(operators, setting.small, dtypes, setting), lambda case: _errors(case, setting))


def _errors(case: Case, setting: Setting) -> dict[str, Any]:
    ours = problem_of(case, setting.devices, setting.backend).ours
    inputs, answer = ours.data()  # The answers of solvers are computed in float64.
    if case.operator in OPERATORS:
        mesh = make_mesh(case.mesh, setting.devices)
        exact = Task(case.operator, case.shape, mesh, np.dtype(np.float64), False)
        answer = expected(exact, inputs[0].astype(np.result_type(inputs[0].dtype, np.float64)))
    contestant = ours.contestant(ours.compile(), inputs)
    got = contestant.collect(contestant.run())
    pairs = list(zip(jax.tree.leaves(got), jax.tree.leaves(answer), strict=True))
    rms = max(float(np.linalg.norm(np.ravel(one - right)) / np.linalg.norm(np.ravel(right))) for one, right in pairs)
    return {**asdict(case), "largest_error": relative_error(got, answer), "rms_error": rms}
