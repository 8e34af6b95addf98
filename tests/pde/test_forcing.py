"""Tests of forcings: they get the whole state of their equation, and must fit the transform of it."""

import functools
import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import pde
from decompops.extend import AbstractProducts
from decompops.spectral import Mask, Pad, Truncate

from helpers import assert_close, make_mesh


BOX = dops.Box(3.0)


class Drag(AbstractProducts):
    """A term of a user: a linear drag on any number of components."""

    fft: dops.FFT | dops.Transform
    dealiasing: ClassVar = None
    first_basis: ClassVar = (dops.Chebyshev,)

    def __call__(self, t, u, args=None):
        return -u


def transform(shape=(8, 8, 8), sizes=(2, 2), **options):
    return dops.FFT(make_mesh(sizes), shape=shape, pad=True, **({"real": True, "axes": None} | options))


def walls(**options):
    bases = (dops.Chebyshev(), dops.Fourier(), dops.Fourier(half=True))
    return dops.Transform(make_mesh((2, 2)), **({"shape": (11, 8, 8), "bases": bases, "pad": True} | options))


# Each function makes an equation with a forcing. Its arguments are the forcing, the transform and the rule.
EQUATIONS = {
    "navier-stokes": lambda f, fft, rule: pde.NavierStokes(fft, 0.1, forcing=f, dealiasing=rule),
    "in a scalar": lambda f, fft, rule: pde.PassiveScalar(pde.NavierStokes(fft, 0.1, forcing=f, dealiasing=rule), 0.1),
    "of a scalar": lambda f, fft, rule: pde.PassiveScalar(pde.Burgers(fft, 0.1, dealiasing=rule), 0.1, forcing=f),
    "vorticity": lambda f, fft, rule: pde.VorticityNavierStokes(fft, 0.1, forcing=f, dealiasing=rule),
    "channel": lambda f, fft, rule: pde.Channel(fft, 0.1, forcing=f, dealiasing=rule),
    "convection": lambda f, fft, rule: pde.RayleighBenard(fft, 1e3, 1.0, forcing=f, dealiasing=rule),
}
# Each function makes a force. Its arguments are the transform and the rule.
FORCES = {
    "smagorinsky": lambda fft, rule: pde.Smagorinsky(fft, 0.1, dealiasing=rule),
    "kolmogorov": lambda fft, rule: pde.KolmogorovForcing(fft, 1, 1.0, dealiasing=rule),
    "vorticity": lambda fft, rule: pde.KolmogorovForcing(fft, 1, 1.0, of="vorticity", dealiasing=rule),
    "linear": lambda fft, rule: pde.LinearForcing(fft, 1.0, dealiasing=rule),
    "random": lambda fft, rule: pde.OrnsteinUhlenbeckForcing(
        fft, jax.random.key(0), amplitude=1.0, time=1.0, shell=(0.5, 2.2), dealiasing=rule
    ),
    "equation": lambda fft, rule: pde.HyperDiffusion(pde.state_transform(fft, rule), 0.1),
    "own": lambda fft, rule: Drag(pde.state_transform(fft, rule)),
}
PAIRS = [
    *itertools.product(["navier-stokes", "in a scalar"], ["smagorinsky", "kolmogorov", "equation", "own"]),
    *itertools.product(["navier-stokes"], ["linear", "random"]),
    *itertools.product(["vorticity"], ["vorticity", "equation", "own"]),
    *itertools.product(["of a scalar"], ["equation", "own"]),
    *itertools.product(["channel", "convection"], ["own"]),
]
RULES = (Truncate(), Truncate(1 / 2), Pad(3 / 2), Mask(), None)
WRAPPERS = {
    "itself": lambda force: force,
    "tuple": lambda force: (lambda t, u, args: 0 * u, force),
    "partial": functools.partial,
    "jit": eqx.filter_jit,
    "method": lambda force: force.__call__,
}


def of_equation(equation: str):
    """Return a function that makes transforms for an equation."""
    if equation == "vorticity":
        return functools.partial(transform, shape=(8, 8), axes=("x",), box=BOX)
    if equation in ("channel", "convection"):
        return functools.partial(walls, box=dops.Box((1.0, 3.0, 3.0)))
    return functools.partial(transform, box=BOX)


def others(make):
    """Yield what differs, and the arguments of a force that was built for another equation."""
    fft, rule = make(), Truncate()
    height, *widths = fft.box_lengths
    yield "`norm` is 'forward' in .*, but 'backward'", (make(norm="forward"), rule)
    yield r"`shape` is \[.*12\] in .*, but \[.*8\]", (make(shape=(*fft.decomposition.shape[:-1], 12)), rule)
    yield r"`(modes|dealiasing|norm)` is .*, but", (fft, Truncate(1 / 2))
    yield r"`(modes|dealiasing|norm)` is .*, but", (fft, Pad(3 / 2))
    yield r"`(modes|dealiasing|norm)` is .*, but", (fft, None)
    yield "the boxes differ", (make(box=dops.Box((height, *(2 * width for width in widths)))), rule)
    if not any(basis.has_walls for basis in fft.bases):
        yield "the boxes differ", (make(box=None), rule)  # The default box is a box, too.


@pytest.mark.parametrize(("equation", "force"), PAIRS)
def test_forces_of_other_equations_are_refused(equation, force):
    """An equation refuses a force with another transform, box or rule. The error names the two values."""
    make = of_equation(equation)
    given = (make(), Truncate())
    for wrap in WRAPPERS.values():
        EQUATIONS[equation](wrap(FORCES[force](*given)), *given)
    for i, (message, arguments) in enumerate(others(make)):
        wrap = list(WRAPPERS.values())[i % len(WRAPPERS)]
        with pytest.raises(ValueError, match=rf"`forcing` must have the `fft` and .*; got .*{message}"):
            EQUATIONS[equation](wrap(FORCES[force](*arguments)), *given)


def test_forces_on_other_states_and_devices_are_refused():
    flat, cube = transform((8, 8), axes=("x",), box=BOX), transform(box=BOX)
    curl, force = FORCES["vorticity"](flat, Truncate()), FORCES["kolmogorov"](flat, Truncate())
    for make, message in (
        (lambda: pde.NavierStokes(flat, 0.1, forcing=curl), r"components .* is \(\) in .*, but \(2,\)"),
        (lambda: pde.VorticityNavierStokes(flat, 0.1, forcing=force), r"components .* is \(2,\) in .*, but \(\)"),
        (
            lambda: pde.PassiveScalar(
                pde.NavierStokes(cube, 0.1), 0.1, forcing=FORCES["smagorinsky"](cube, Truncate())
            ),
            r"components .* is \(3,\) in .*, but \(4,\)",
        ),
        (
            lambda: pde.NavierStokes(cube, 0.1, forcing=pde.Smagorinsky(transform(sizes=(4, 2), box=BOX), 0.1)),
            "the meshes differ",
        ),
    ):
        with pytest.raises(ValueError, match=rf"`forcing` must have the `fft` and .*{message}"):
            make()


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_transform_of_states_before_the_equation_exists(rule):
    for norm in ("backward", "ortho", "forward"):
        fft = transform(norm=norm)
        for equation in (pde.NavierStokes(fft, 0.1, dealiasing=rule), pde.SwiftHohenberg(fft, 0.1, dealiasing=rule)):
            assert pde.state_transform(fft, rule) == equation.transform
    between = walls(box=dops.Box(1.0))
    assert pde.state_transform(between, rule) == pde.Channel(between, 0.1, dealiasing=rule).transform
    assert pde.state_transform(fft, None) == pde.Diffusion(fft, 0.1).transform


def test_a_force_may_depend_on_a_scalar():
    """The pressure balances the buoyancy of a scalar that varies along z. Other buoyancy accelerates the flow.

    A second scalar has no effect.
    """
    fft, n = transform(), 8
    x, _, z = np.meshgrid(*3 * [2 * np.pi * np.arange(n) / n], indexing="ij")
    flow = pde.PassiveScalar(pde.NavierStokes(fft, 0.0), 0.0)
    push = lambda t, u, args: jnp.zeros_like(u).at[2].set(3 * u[-1]).at[-1].set(args * u[-1])
    equation = pde.PassiveScalar(flow, 0.0, forcing=push)
    scalar = 0.5 + np.cos(x) + np.sin(z)
    fields = np.zeros((5, n, n, n))
    fields[-1] = scalar
    rate = equation.fields(eqx.filter_jit(equation)(0.0, equation.state(fft.decomposition.shard(fields)), 0.25))
    expected = np.zeros_like(fields)
    expected[2], expected[-1] = 3 * (0.5 + np.cos(x)), 0.25 * scalar
    assert_close(rate, expected, 1e-12)


@pytest.mark.parametrize("equation", EQUATIONS)
def test_components_that_a_state_does_not_have(equation):
    """A forcing that reads a missing component raises an error. By default, JAX reads the last component instead."""
    make = of_equation(equation)
    made = lambda index: EQUATIONS[equation](lambda t, u, args: 0 * u + 0 * u[index][None], make(), Truncate())
    shape = made(0).in_structure.components + made(0).transform.out_layout.shape
    u = jax.ShapeDtypeStruct(shape, complex)
    count = 3 if equation == "in a scalar" else shape[0]
    rate = lambda equation: jax.eval_shape(lambda u: equation.nonlinear(0.0, u), u)
    rate(made(-1))
    for index in (count, -count - 1):
        with pytest.raises(IndexError, match=rf"`forcing` must read only components of its state u.*index {index} out"):
            rate(made(index))
    assert not jax.config.jax_check_static_indices


def test_the_check_of_indices_in_several_threads():
    """Forcings that run in several threads at a time leave JAX's setting as they found it."""
    fft = transform((8, 8), (1,))
    u = jax.ShapeDtypeStruct((2, *pde.state_transform(fft).out_layout.shape), complex)

    def run(i: int):
        equation = pde.NavierStokes(fft, 0.1, forcing=lambda t, u, args: 0 * u + u[2 * (i % 2)])
        try:
            jax.eval_shape(lambda u: equation.nonlinear(0.0, u), u)
        except IndexError:
            return True
        return False

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(8))) == [False, True] * 4
    assert not jax.config.jax_check_static_indices
