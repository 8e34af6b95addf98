"""The benchmark's cases of solvers: a gradient, right-hand sides, time steps, and layers of a neural operator.

A case also times the transforms of its solver without the rest of the solver.
"""

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ... import FFT, Decomposition, HaloExchange
from ...extend import AbstractTransform, Plan, check_fft, check_shape
from ...nn._fno import FNOBlock
from ...pde import ETDRK, NavierStokes
from ...spectral import Gradient
from .program import Contestant, Operand, Problem, Program, compile_for
from .reference import Flow, Spectra, random_layer


VISCOSITY, DT = 1e-2, 1e-2
# The number of channels of a layer, and the number of its modes along each axis. A small grid has fewer modes.
WIDTH, MODES = 20, 12

# A list of transforms. Each entry is the direction of a transform, and the lengths of its batch axes.
Calls = tuple[tuple[Literal["forward", "inverse"], tuple[int, ...]], ...]


def right_hand_side(ndim: int) -> Calls:
    """List the transforms that one evaluation of the right-hand side of the Navier–Stokes equations needs.

    The velocity is transformed to the grid. All products of two components except one product are transformed back. The
    pressure absorbs the trace of these products, so one product on the diagonal is not needed.
    """
    return ("inverse", (ndim,)), ("forward", (ndim * (ndim + 1) // 2 - 1,))


@dataclass(frozen=True)
class SolverTransform:
    """A real transform inside a solver, for real fields of `dtype`."""

    fft: AbstractTransform
    dtype: np.dtype

    @property
    def plan(self) -> Plan:
        return self.fft.plan()

    @property
    def mesh(self) -> Any:
        return self.fft.decomposition.mesh

    @property
    def reference(self) -> Spectra:
        shape = check_fft(self.fft)
        return Spectra(shape, check_shape("modes", self.fft.modes or shape), self.fft.norm)

    def field(self, *lead: int) -> Operand:
        return Operand(self.dtype, self.plan.source, lead)

    def spectrum(self, *lead: int) -> Operand:
        return Operand(np.result_type(self.dtype, np.complex64), self.plan.target, lead)

    def plans(self, calls: Calls) -> tuple[tuple[Plan, int], ...]:
        """Return the plans of a program that makes these calls."""
        plans = {"forward": self.plan, "inverse": self.plan.inverse()}
        return tuple((plans[direction], math.prod(lead)) for direction, lead in calls)

    def alone(self, calls: Calls) -> Program:
        """Return a program that makes only these calls. Each call has its own input."""
        functions = {"forward": self.fft, "inverse": self.fft.inverse}

        def function(*arrays):
            return [functions[direction](array) for (direction, _), array in zip(calls, arrays)]

        def ends(field: Callable[..., Any], spectrum: Callable[..., Any]) -> tuple[tuple, tuple]:
            """Return the inputs of all calls, and the results of all calls."""
            pairs = ((direction, field(*lead), spectrum(*lead)) for direction, lead in calls)
            sources, targets = zip(*((u, k) if direction == "forward" else (k, u) for direction, u, k in pairs))
            return sources, targets

        def data():
            reference = self.reference
            return ends(lambda *lead: reference.inverse(reference.noise(*lead)), reference.noise)

        return Program(function, *ends(self.field, self.spectrum), self.plans(calls), self.mesh, data)


def _gradient(dec: Decomposition, dtype: np.dtype) -> Problem:
    gradient = Gradient(FFT(dec, real=True))
    transform = SolverTransform(gradient.transform, dtype)
    calls: Calls = (("forward", ()), ("inverse", (dec.ndim,)))

    def data():
        reference = transform.reference
        k = reference.noise()
        return (reference.inverse(k),), reference.inverse(1j * reference.wavenumbers * k)

    ours = Program(
        gradient, (transform.field(),), (transform.field(dec.ndim),), transform.plans(calls), transform.mesh, data
    )
    return Problem(ours, {"its FFTs": transform.alone(calls)})


def _navier_stokes(dec: Decomposition, dtype: np.dtype) -> Problem:
    equation = NavierStokes(FFT(dec, real=True), VISCOSITY)
    transform = SolverTransform(equation.transform, dtype)

    def data():
        flow = Flow(transform.reference, VISCOSITY)
        u = flow.velocity()
        return (u,), flow.linear() * u + flow.nonlinear(u)

    state, calls = (transform.spectrum(dec.ndim),), right_hand_side(dec.ndim)
    ours = Program(partial(equation, 0.0), state, state, transform.plans(calls), transform.mesh, data)
    full = SolverTransform(equation.transform.replace(modes=None), dtype)
    parts = {"its FFTs": transform, "its FFTs with all modes": full}
    return Problem(ours, {name: part.alone(calls) for name, part in parts.items()})


def _etdrk(order: Literal[2, 4], dec: Decomposition, dtype: np.dtype) -> Problem:
    solver = ETDRK(NavierStokes(FFT(dec, real=True), VISCOSITY), DT, order)
    transform = SolverTransform(solver.equation.transform, dtype)

    def data():
        flow = Flow(transform.reference, VISCOSITY)
        u = flow.velocity()
        return (u,), flow.step(u, DT, order)

    state, calls = (transform.spectrum(dec.ndim),), order * right_hand_side(dec.ndim)
    ours = Program(partial(solver.step, 0.0), state, state, transform.plans(calls), transform.mesh, data)
    return Problem(ours, peers=lambda u: {"exponax": lambda: _exponax(transform, order, u)})


def _exponax(transform: SolverTransform, order: int, u: np.ndarray) -> Contestant:
    exponax: Any = importlib.import_module("exponax")
    reference = transform.reference
    n = reference.shape[0]
    if reference.shape != (n, n, n):  # In 2D, exponax has only the vorticity equation.
        raise ValueError(f"exponax needs a cubic grid; got {reference.shape}")
    highest = reference.wavenumbers[-1].max()
    options = {"diffusivity": VISCOSITY, "order": order}
    # exponax keeps the modes k with k <= fraction * (n // 2) - 1. With this fraction, exponax keeps the same modes as
    # decompops. The limit lies half a mode above the highest kept mode, so that rounding cannot drop this mode.
    options["dealiasing_fraction"] = (highest + 1.5) / (n // 2)
    # Another case may have switched to float64, so the precision of exponax's coefficients is set here.
    with jax.enable_x64(transform.dtype == np.float64):
        # Without compilation, the construction of the stepper takes seconds.
        stepper = eqx.filter_jit(exponax.stepper.NavierStokesVelocity)(3, 2 * math.pi, n, DT, **options)
    state = jax.device_put(reference.on_grid(u).astype(transform.spectrum().dtype), jax.local_devices()[0])
    # The coefficients are arguments of the compiled function, because XLA would spend time on folding constants in it.
    arrays, rest = eqx.partition(stepper, eqx.is_array)
    compiled = compile_for(lambda arrays, state: eqx.combine(arrays, rest).step_fourier(state), arrays, state)

    def collect(result: Any) -> np.ndarray:
        return np.asarray(result)[(..., *reference.kept)]

    return Contestant(lambda: compiled(arrays, state), collect, "one device", alone=True)


def _fno(dec: Decomposition, dtype: np.dtype, *, gradient: bool) -> Problem:
    """Return the problem of one layer, or of its gradient with respect to the fields and all parameters."""
    fft = FFT(dec, real=True)
    modes = tuple(min(MODES, (n + 1) // 2) for n in check_fft(fft))
    # The layer is made without values, because the program takes the weights as sharded arguments.
    block = eqx.filter_eval_shape(FNOBlock, fft, WIDTH, modes, jax.nn.gelu, dtype=dtype, key=jax.random.key(0))
    transform = SolverTransform(block.spectral.transform, dtype)

    def layer(v, *parameters):
        where = lambda block: (block.spectral.weight, block.linear.weight, block.linear.bias)
        return eqx.tree_at(where, block, parameters)(v)

    def loss(*arguments):
        # The bias of the layer also fills padding cells, which a halo exchange of width zero sets to zero.
        return jnp.sum(HaloExchange(dec, 0)(layer(*arguments)) ** 2) / 2

    weight = Operand(dtype, block.spectral.weight_layout.blocks)
    arguments = transform.field(WIDTH), weight, Operand(dtype, None, (WIDTH, WIDTH)), Operand(dtype, None, (WIDTH,))
    calls: Calls = (("forward", (WIDTH,)), ("inverse", (WIDTH,)))

    def data():
        reference = random_layer(transform.reference, WIDTH)
        return reference.inputs, reference.gradient() if gradient else reference.value()

    if gradient:
        calls *= 2  # A gradient also runs the transpose of each call, which takes as long as the call.
        ours = Program(jax.grad(loss, (0, 1, 2, 3)), arguments, arguments, transform.plans(calls), transform.mesh, data)
    else:
        ours = Program(layer, arguments, arguments[:1], transform.plans(calls), transform.mesh, data)
    return Problem(ours, {"its FFTs": transform.alone(calls)})


# These flows need more than one dimension.
FLOWS = ("navier-stokes", "etdrk2", "etdrk4")
# Each function makes a problem from a decomposition and a real dtype.
SOLVERS: dict[str, Callable[[Decomposition, np.dtype], Problem]] = {
    "gradient": _gradient,
    "navier-stokes": _navier_stokes,
    "etdrk2": partial(_etdrk, 2),
    "etdrk4": partial(_etdrk, 4),
    "fno": partial(_fno, gradient=False),
    "fno-gradient": partial(_fno, gradient=True),
}
