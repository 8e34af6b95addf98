"""Tests of one step of each equation against exponax's stepper of the same order. All modes are compared."""

import decompops as dops
import exponax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import pde
from decompops.spectral import Mask
from exponax.stepper import reaction

from helpers import assert_close, make_mesh, random_field


LENGTH, DT = 5.0, 0.02
QUADRATIC, CUBIC = {"dealiasing": Mask(2 / 3)}, {"dealiasing": Mask(1 / 2)}
steppers = exponax.stepper
# `MATRIX` is a diffusivity, and `NUMBERS` are parameters for each axis.
MATRIX = np.array([[0.3, 0.1, 0.0], [0.1, 0.2, 0.05], [0.0, 0.05, 0.4]])
NUMBERS = np.array([0.3, -0.2, 0.5])


def cases(fft: dops.FFT) -> dict:
    """Return test cases: an equation, an order, exponax's stepper, its options, and the components of a state."""
    shape = fft.decomposition.shape
    ndim = len(shape)
    matrix, numbers = MATRIX[:ndim, :ndim], NUMBERS[:ndim]
    vector = {"components": "vector", "conservative": False}
    polynomial = (0.1, -0.2, 0.5, -1.0)
    found = {
        "diffusion": (pde.Diffusion(fft, matrix), 1, steppers.Diffusion, {"diffusivity": matrix}, None),
        "advection": (
            pde.Advection(fft, tuple(numbers), abs(numbers)),
            1,
            steppers.AdvectionDiffusion,
            {"velocity": numbers, "diffusivity": abs(numbers)},
            None,
        ),
        "dispersion": (
            pde.Dispersion(fft, numbers, isotropic=False),
            1,
            steppers.Dispersion,
            {"dispersivity": numbers},
            None,
        ),
        "mixed dispersion": (
            pde.Dispersion(fft, numbers),
            1,
            steppers.Dispersion,
            {"dispersivity": numbers, "advect_on_diffusion": True},
            None,
        ),
        "hyper": (
            pde.HyperDiffusion(fft, 0.01, isotropic=False),
            1,
            steppers.HyperDiffusion,
            {"hyper_diffusivity": 0.01},
            None,
        ),
        "mixed hyper": (
            pde.HyperDiffusion(fft, 0.01),
            1,
            steppers.HyperDiffusion,
            {"hyper_diffusivity": 0.01, "diffuse_on_diffuse": True},
            None,
        ),
        "wave": (pde.Wave(fft, 1.7), 1, steppers.Wave, {"speed_of_sound": 1.7}, 2),
        "burgers": (
            pde.Burgers(fft, 0.1, scale=0.7, conservative=True, **QUADRATIC),
            2,
            steppers.Burgers,
            {"diffusivity": 0.1, "convection_scale": 0.7, "conservative": True},
            ndim,
        ),
        "one burgers": (
            pde.Burgers(fft, 0.1, components="scalar", **QUADRATIC),
            1,
            steppers.Burgers,
            {"diffusivity": 0.1, "single_channel": True},
            None,
        ),
        # The dispersivity is zero: exponax takes the real parts of its coefficients, which is wrong with dispersion.
        "kdv": (
            pde.KortewegDeVries(
                fft, viscosity=0.1, hyper_viscosity=0.01, dispersivity=0.0, isotropic=False, **vector, **QUADRATIC
            ),
            3,
            steppers.KortewegDeVries,
            {"diffusivity": 0.1, "dispersivity": 0.0},
            ndim,
        ),
        "ks": (
            pde.KuramotoSivashinsky(
                fft, scale=1.3, second_order=0.9, fourth_order=0.8, isotropic=False, keep_mean=True, **QUADRATIC
            ),
            4,
            steppers.KuramotoSivashinsky,
            {"gradient_norm_scale": 1.3, "second_order_scale": 0.9, "fourth_order_scale": 0.8},
            None,
        ),
        "conservative ks": (
            pde.KuramotoSivashinskyConservative(fft, isotropic=False, **QUADRATIC),
            2,
            steppers.KuramotoSivashinskyConservative,
            {},
            ndim,
        ),
        "allen-cahn": (
            pde.AllenCahn(fft, 0.01, linear_rate=0.8, cubic_rate=-0.9, **CUBIC),
            2,
            reaction.AllenCahn,
            {"diffusivity": 0.01, "first_order_coefficient": 0.8, "third_order_coefficient": -0.9},
            None,
        ),
        "cahn-hilliard": (pde.CahnHilliard(fft, 0.01, 0.001, **CUBIC), 1, reaction.CahnHilliard, {}, None),
        "swift-hohenberg": (
            pde.SwiftHohenberg(fft, 0.7, critical=1.2, polynomial=polynomial, **CUBIC),
            2,
            reaction.SwiftHohenberg,
            {"critical_number": 1.2, "polynomial_coefficients": polynomial},
            None,
        ),
        "fisher": (
            pde.FisherKPP(fft, 0.01, 3.0, **QUADRATIC),
            1,
            reaction.FisherKPP,
            {"diffusivity": 0.01, "reactivity": 3.0},
            None,
        ),
        "gray-scott": (
            pde.GrayScott(fft, (2e-2, 1e-2), 0.4, 0.6, **CUBIC),
            2,
            reaction.GrayScott,
            {"diffusivity_1": 2e-2, "diffusivity_2": 1e-2, "feed_rate": 0.4, "kill_rate": 0.6},
            2,
        ),
    }
    flow = {"diffusivity": 0.1, "drag": -0.3}
    if ndim == 2:  # exponax defines the force for a box of length 2π.
        force = pde.KolmogorovForcing(fft, 2, -1.5 * LENGTH / (2 * np.pi), of="vorticity", **QUADRATIC)
        options = flow | {"injection_mode": 2, "injection_scale": 1.5}
        equation = pde.VorticityNavierStokes(fft, 0.1, drag=0.3, forcing=force, **QUADRATIC)
        found["vorticity"] = equation, 2, steppers.KolmogorovFlowVorticity, options, None
    else:
        # exponax's force is a cosine of half the amplitude, because exponax sets only one of the cosine's two modes.
        y = np.arange(shape[1])[:, None] / shape[1]
        cosine = np.zeros((3, *shape)) + np.stack([np.cos(4 * np.pi * y) / 2, 0 * y, 0 * y])[..., None, :, :]
        force = pde.NavierStokes(fft, 0.1, **QUADRATIC).transform(fft.decomposition.shard(cosine))
        equation = pde.NavierStokes(fft, 0.1, drag=0.3, forcing=(lambda *_: force, lambda *_: force / 2), **QUADRATIC)
        options = flow | {"injection_mode": 2, "injection_scale": 1.5}
        found["velocity"] = equation, 2, steppers.KolmogorovFlowVelocity, options, ndim
    return found


@pytest.mark.promotes_ranks
@jax.numpy_dtype_promotion("standard")  # exponax mixes dtypes.
@pytest.mark.parametrize(
    ("shape", "sizes", "kind", "names"),
    [
        ((11, 11), (4,), "explicit", None),
        ((9, 9, 9), (2, 2), "auto", ("wave", "velocity")),
        pytest.param((9, 9, 9), (2, 2), "auto", ("burgers", "ks", "gray-scott"), marks=pytest.mark.sweep),
    ],
)
def test_exponax_takes_the_same_step(shape, sizes, kind, names):
    n, ndim = shape[0], len(shape)
    fft = dops.FFT(make_mesh(sizes, kind), shape=shape, box=dops.Box(LENGTH), pad=True, real=True)
    found = {name: case for name, case in cases(fft).items() if names is None or name in names}
    fields = {}
    for seed, (name, (*_, lead)) in enumerate(found.items()):
        fields[name] = 0.3 + 0.5 * random_field(shape if lead is None else (lead, *shape), seed=seed)
    if "velocity" in found:
        fields["velocity"] = fft.decomposition.gather(dops.spectral.LerayProjection(fft)(fields["velocity"]))

    def our_step(name, field):
        equation, order, *_ = found[name]
        return equation.transform.inverse(pde.ETDRK(equation, DT, order).step(0.0, equation.transform(field)))

    def their_step(name, field):
        equation, order, stepper, options, lead = found[name]
        options = options | ({} if equation.dealiasing is None else {"order": order})
        return stepper(ndim, LENGTH, n, DT, **options)(field if lead else field[None])

    def take(step, fields):
        return jax.jit(lambda fields: {name: step(name, u) for name, u in fields.items()})(fields)

    with jax.set_mesh(fft.decomposition.mesh):
        ours = take(our_step, {name: fft.decomposition.shard(field) for name, field in fields.items()})
    sign = {
        name: -1 if name == "vorticity" else 1 for name in fields
    }  # exponax has the opposite sign of the vorticity.
    theirs = take(their_step, {name: sign[name] * jnp.asarray(field) for name, field in fields.items()})
    for name, field in ours.items():
        expected = sign[name] * np.asarray(theirs[name]).reshape(fields[name].shape)
        assert_close(fft.decomposition.gather(field), expected, 1e-10)
