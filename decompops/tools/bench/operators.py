"""The benchmark's cases of single operators: transforms, transposes and halo exchanges."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ... import FFT, Cosine, Decomposition, HaloExchange, Transform, Transpose
from ...extend import Plan
from .peers import expected, of_transform, peers, weights_of_half
from .program import Operand, Problem, Program, random_field
from .task import Task, weights


TRANSPOSE = "transpose"
OPERATORS = (
    *("fft", "rfft", "fft+inverse", "rfft+inverse", "fft-gradient", "rfft-gradient"),
    *("dct", "dct+inverse", TRANSPOSE, "halo"),
)


def operator_problem(task: Task, dec: Decomposition) -> Problem:
    parts = {"our forward": _program(task.forward, dec)} if task.action else {}
    return Problem(_program(task, dec), parts, partial(peers, task))


def _program(task: Task, dec: Decomposition) -> Program:
    if task.is_transform:
        function, plans = _transform(task, dec)
    else:
        if task.operator == TRANSPOSE:
            function = Transpose(dec, -1, 0, axis_contiguous=task.axis_contiguous)
        else:
            function = HaloExchange(dec, task.halo)
        plans = (function.plan(),)
    dtype = after = task.dtype if task.real else np.result_type(task.dtype, np.complex64)
    for plan in plans:
        after = plan.result_dtype(after)

    def data():
        u = random_field(task.shape, dtype)
        return (u,), expected(task, u)

    ends = Operand(dtype, plans[0].source), Operand(after, plans[-1].target)
    return Program(function, ends[:1], ends[1:], tuple((plan, 1) for plan in plans), task.mesh, data)


def _transform(task: Task, dec: Decomposition) -> tuple[Callable, tuple[Plan, ...]]:
    if task.kind == "dct":
        bases = (Cosine(2),) * len(task.shape)
        transform = Transform(dec, bases=bases, axis_contiguous=task.axis_contiguous)
    else:
        transform = FFT(dec, real=task.real, axis_contiguous=task.axis_contiguous)

    def weight():
        k = transform.wavenumbers(dtype=task.dtype)
        return weights_of_half(*k, last=task.shape[-1]) if task.real else weights(*k)

    plan = transform.plan()
    back = {"": (), "inverse": (plan.inverse(),), "gradient": (plan.transpose(),)}[task.action]
    return of_transform(task, transform, transform.inverse, weight), (plan, *back)
