"""The entry in examples/mosaic: exact flows, and derivatives beside finite differences."""

import sys
from types import ModuleType, SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

import example
from helpers import assert_close, finite_difference, random_field


flow = example.load("periodic_flow", "mosaic")
LENGTH = 3.0


def positions(n: int, ndim: int) -> list[np.ndarray]:
    """Return the coordinates of a grid in a box of length `LENGTH`, times 2π/LENGTH."""
    return np.meshgrid(*[2 * np.pi * np.arange(n) / n] * ndim, indexing="ij")


def test_a_vortex_drifts_and_decays():
    """The Taylor–Green vortex in two dimensions, in a uniform wind, is an exact solution."""
    k, viscosity, dt, steps = 2 * np.pi / LENGTH, 0.05, 0.02, 20
    x, y = positions(16, 2)

    def exact(time: float) -> np.ndarray:
        a, b = x - k * 0.5 * time, y + k * 0.3 * time
        decay = np.exp(-2 * viscosity * k**2 * time)
        velocity = [0.5 + decay * np.sin(a) * np.cos(b), -0.3 - decay * np.cos(a) * np.sin(b)]
        return np.stack(velocity, axis=-1)[:, :, None]

    numbers = {"v0": exact(0), "viscosity": np.float64(viscosity), "dt": np.float64(dt)}
    assert_close(flow.advance(**numbers, steps=steps, length=LENGTH, order=4), exact(dt * steps), rtol=1e-6)


def test_a_beltrami_flow_decays():
    """The Arnold–Beltrami–Childress flow is an exact solution. The gradient that is added to it has no effect."""
    k, viscosity, dt, steps = 2 * np.pi / LENGTH, 0.05, 0.02, 5
    x, y, z = positions(8, 3)
    abc = [np.sin(z) + 0.5 * np.cos(y), 0.8 * np.sin(x) + np.cos(z), 0.5 * np.sin(y) + 0.8 * np.cos(x)]
    abc, gradient = np.stack(abc, axis=-1), np.stack([np.cos(x) * np.sin(y), np.sin(x) * np.cos(y), 0 * z], axis=-1)
    got = flow.advance(abc + gradient, np.float64(viscosity), np.float64(dt), steps=steps, length=LENGTH, order=2)
    assert_close(got, abc * np.exp(-viscosity * k**2 * dt * steps), rtol=1e-12)


@pytest.mark.parametrize("shape", [(8, 8, 1, 2), (8, 8, 8, 3)])
def test_the_derivatives_agree_with_finite_differences(shape):
    fixed = {"steps": 3, "length": LENGTH, "order": 2}
    numbers = {"v0": random_field(shape), "viscosity": np.float64(0.05), "dt": np.float64(0.02)}
    weights = random_field(shape, seed=1)
    pulled = flow.pull_back(weights, numbers, **fixed)
    for name, direction in {"v0": random_field(shape, seed=2), "viscosity": 1.0, "dt": 1.0}.items():
        difference = finite_difference(
            lambda value, name=name: jnp.vdot(weights, flow.advance(**(numbers | {name: value}), **fixed)),
            numbers[name],
            direction,
            1e-5,
        )
        np.testing.assert_allclose(np.vdot(pulled[name], direction), difference, rtol=1e-6)


@pytest.fixture
def interface(monkeypatch) -> ModuleType:
    """Import the entry with stand-ins for the packages of Mosaic and for pydantic, which are not installed here."""
    base = type("Base", (), {})
    names = {
        "pydantic": {"Field": lambda default, **_: default, "model_validator": lambda **_: lambda function: function},
        "mosaic_shared": {},
        "mosaic_shared.problems": {},
        "mosaic_shared.problems.navier_stokes_grid": {"InputSchema": base, "OutputSchema": base},
        "mosaic_shared.schema_types": {"make_differentiable": lambda schema, names: type("Own", (schema,), {})},
    }
    for name, contents in names.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "tesseract_api", raising=False)
    return example.load("tesseract_api", "mosaic")


def test_the_interface_calls_the_solver(interface):
    v0, weights = (random_field((8, 8, 8, 3), np.float32, seed) for seed in (0, 1))
    inputs = SimpleNamespace(v0=v0, viscosity=np.float32([0.05]), dt=np.float32([0.02]), steps=3)
    inputs.order, inputs.domain_extent = interface.InputSchema.order, LENGTH
    numbers = {"v0": v0, "viscosity": np.float32(0.05), "dt": np.float32(0.02)}
    fixed = {"steps": 3, "length": LENGTH, "order": 2}
    assert_close(interface.apply(inputs)["result"], flow.advance(**numbers, **fixed))
    got = interface.vector_jacobian_product(inputs, set(numbers), {"result"}, {"result": weights})
    expected = flow.pull_back(weights, numbers, **fixed)
    for name in numbers:
        assert got[name].shape == np.shape(getattr(inputs, name))
        assert_close(np.reshape(got[name], np.shape(expected[name])), expected[name])
    assert interface.abstract_eval(inputs)["result"] == {"shape": v0.shape, "dtype": "float32"}


@pytest.mark.parametrize(("obstacle", "periodic"), [({"radius": 0.1}, True), (None, False)])
def test_walls_are_refused(interface, obstacle, periodic):
    conditions = SimpleNamespace(is_fully_periodic=periodic)
    inputs = SimpleNamespace(obstacle=obstacle, boundary_conditions=conditions)
    with pytest.raises(ValueError, match="has no walls"):
        interface.InputSchema._check_periodic(inputs)
    inputs = SimpleNamespace(obstacle=None, boundary_conditions=SimpleNamespace(is_fully_periodic=True))
    assert interface.InputSchema._check_periodic(inputs) is inputs
