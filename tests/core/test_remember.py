"""Tests of what is remembered about operators: equal operators share compiled programs, however they were made."""

import gc
import weakref

import decompops as dops
import equinox as eqx
import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import pde, spectral
from decompops._common import remember

from helpers import assert_close, make_mesh, random_field


SHAPE = (4, 4, 4)
EVENTS: list[str] = []
jax.monitoring.register_event_duration_secs_listener(lambda event, duration, **options: EVENTS.append(event))


def compilations(function) -> list[str]:
    """Return the steps of compilations during `function()`. JAX reports the first step, tracing, in every call."""
    del EVENTS[:]
    function()
    return [event for event in EVENTS if "/compile/" in event and "jaxpr_trace" not in event]


def smooth(kx, ky, kz):
    return 1 / (1 + kx**2 + ky**2 + kz**2)


def difference(h):
    return h[..., 2:, :, :] - h[..., :-2, :, :]


MADE = {
    "fft": lambda fft: fft,
    "fft.inverse": lambda fft: fft.inverse,
    "fft.T": lambda fft: fft.T,
    "fft.H": lambda fft: fft.H,
    "fft.inverse.T": lambda fft: fft.inverse.T,
    "composition": lambda fft: fft.inverse @ fft,
    "composition.T": lambda fft: (spectral.Poisson(fft) @ spectral.Laplacian(fft)).T,
    "with a function": lambda fft: fft.inverse @ jnp.sin @ fft,
    "transpose": lambda fft: dops.Transpose(fft.decomposition, "z", "x"),
    "halo": lambda fft: dops.HaloExchange(fft.decomposition, 1),
    "halo.T": lambda fft: dops.HaloExchange(fft.decomposition, 1).T,
    "halo.crop": lambda fft: dops.HaloExchange(fft.decomposition, 1).crop,
    "stencil.T": lambda fft: dops.Stencil(fft.decomposition, difference, (1, 0, 0)).T,
    "symbol": lambda fft: spectral.SpectralOperator(fft, smooth).T,
    "gradient.H": lambda fft: spectral.Gradient(fft).H,
    "equation": lambda fft: pde.RealSpace(pde.Diffusion(fft, 0.1)),
}


def call(name: str) -> np.ndarray:
    """Make an operator and compile it for a field that is the same each time."""
    operator = MADE[name](dops.FFT3D(make_mesh((2, 2)), shape=SHAPE, real=True, backend="native"))
    structure, time = operator.in_structure, (0.0,) if name == "equation" else ()
    shape = (*(structure.components or ()), *structure.layout.shape)
    u = random_field(shape, np.complex128 if structure.kind == "complex" else np.float64)
    return np.asarray(jax.jit(operator)(*time, jax.device_put(u, structure.layout.sharding_of(shape))))


def test_equal_operators_share_a_program():
    """The garbage collector takes most of the time, so it runs once for all of them."""
    first = {name: call(name) for name in MADE}
    gc.collect()
    for name in MADE:
        assert compilations(lambda name=name: assert_close(call(name), first[name])) == [], name


def test_operators_with_arrays_or_closures_are_not_kept(monkeypatch):
    monkeypatch.setattr(remember, "_traced", {})
    fft = dops.FFT3D(make_mesh((2, 2)), shape=SHAPE, real=True)
    u = random_field(SHAPE)

    class Scaled(eqx.Module):
        factor: jax.Array

        def __call__(self, kx, ky, kz):
            return self.factor + 0 * kx

    large = np.array(2.0)
    closure = lambda kx, ky, kz: large + 0 * kx
    for symbol in (
        Scaled(jnp.array(2.0)),
        closure,
        jax.tree_util.Partial(closure),
        lambda kx, ky, kz, large=large: large,
    ):
        operator = spectral.SpectralOperator(fft, symbol)
        assert_close(jax.jit(lambda u, operator=operator: (operator @ operator).T(u))(u), 4 * u)
    assert remember._traced == {}

    def loss(factor):  # An operator with a traced array.
        return jnp.sum(spectral.SpectralOperator(fft, Scaled(factor)).T(u) ** 2)

    for factor in (2.0, 3.0):
        assert float(jax.jit(jax.grad(loss))(factor)) == pytest.approx(2 * factor * np.sum(u**2))


def test_the_number_of_operators_that_are_kept_is_bounded(monkeypatch):
    monkeypatch.setattr(remember, "_MOST_TRACED", 3)
    mesh, alive = make_mesh((2, 2)), []
    for width in range(1, 8):
        operator = dops.HaloExchange(mesh, width)
        jax.eval_shape(operator, jnp.ones((8, 8, 8)))
        alive.append(weakref.ref(operator))
    del operator
    gc.collect()
    assert [reference() is not None for reference in alive] == [False] * 4 + [True] * 3


def test_numbers_that_change_in_each_call_do_not_make_new_programs():
    """A coefficient may depend on the time step. Its operator then runs without a program of its own."""
    fft = dops.FFT3D(make_mesh((2, 2)), shape=SHAPE, real=True)
    u = fft.decomposition.shard(random_field(SHAPE))
    spectral.Helmholtz(fft, 0.5)(u)
    assert compilations(lambda: [spectral.Helmholtz(fft, shift)(u) for shift in (1.0, 1.5, 2.25)]) == []


AMPLITUDE = 0.0


def force(t, u, args):
    return AMPLITUDE * u


class Force(eqx.Module):
    def __call__(self, t, u, args):
        return force(t, u, args)


@jax.tree_util.register_static
class StaticForce:
    """A class of the user that JAX knows, but that is no module."""

    def __call__(self, t, u, args):
        return force(t, u, args)


STATIC_FORCE = StaticForce()


class Forced(pde.NavierStokes):
    def nonlinear(self, t, u, args=None):
        return super().nonlinear(t, u, args) + force(t, u, args)


@pytest.mark.parametrize(
    "make",
    [
        lambda fft: pde.NavierStokes(fft, 0.1, forcing=force),
        lambda fft: pde.NavierStokes(fft, 0.1, forcing=Force()),
        lambda fft: pde.NavierStokes(fft, 0.1, forcing=STATIC_FORCE),
        lambda fft: pde.NavierStokes(fft, 0.1, forcing=jax.tree_util.Partial(force)),
        lambda fft: Forced(fft, 0.1),
    ],
    ids=["function", "module", "static", "partial", "method"],
)
@pytest.mark.parametrize("step", [False, True], ids=["rate", "step"])
def test_an_eager_call_sees_the_variables_that_a_force_reads(monkeypatch, make, step):
    """A force may read a global variable. The rate, and a step of first order, are affine functions of its value."""
    equation = make(dops.FFT2D(make_mesh((2, 2)), shape=(4, 4), real=True))
    solver = pde.ETDRK(equation, 0.5, order=1)
    results = []
    u = equation.state(random_field((2, 4, 4)))
    for amplitude in (0.0, 1.0, 3.0):
        monkeypatch.setitem(globals(), "AMPLITUDE", amplitude)
        results.append(np.asarray(solver.step(0.0, u) if step else equation(0.0, u)))
    assert abs(results[1] - results[0]).max() > 0.1
    assert_close(results[2] - results[0], 3 * (results[1] - results[0]))
