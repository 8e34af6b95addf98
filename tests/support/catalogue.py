"""Every public operator, equation, integrator, layer and statistic, as a function of a field on any mesh.

Sweeps over meshes, contexts and modes of JAX share this catalogue. `test_the_catalogue_is_complete` in
`tests/sweeps/test_catalogue.py` fails if a public name is missing.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
from decompops import finite_volume, nn, pde, solve, spectral
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from helpers import random_field


KEY = jax.random.key(7)
SHAPES = {2: (8, 8), 3: (8, 4, 4)}
# A grid of two axes takes one axis of each mesh. The other axis, of two devices, is left over, and divides the number
# of components of vectors. On a grid of three axes, it divides the four components of `RayleighBenard`.
SIZES = {2: (2, 4), 3: (2, 2, 2)}


class Entry(NamedTuple):
    """A function of a field, with the grid of this field and the lengths of its axes before the grid axes."""

    function: Callable
    layout: dops.Layout
    components: tuple[int, ...] = ()
    dtype: type = np.float64

    def field(self) -> np.ndarray:
        """Return a random field, with zeros in its padding."""
        shape, padded = self.layout.true_shape, self.layout.blocks.shape
        widths = [(0, 0)] * len(self.components) + [(0, long - n) for n, long in zip(shape, padded)]
        return np.pad(0.3 * random_field((*self.components, *shape), self.dtype), widths)

    def sharding(self, *batch) -> NamedSharding:
        """Return the sharding of a field whose first axes before the grid are sharded over the mesh axes `batch`."""
        lead = (*batch, *[None] * len(self.components))[: len(self.components)]
        return NamedSharding(self.layout.mesh, P(*lead, *self.layout.spec))


def difference(h):
    return h[..., 2:, 1:-1] - 2 * h[..., 1:-1, 2:]


def called(layer: Callable) -> Callable:
    """Return a function that calls `layer`. `jax.jit` refuses the layer itself, because its weights have no hash."""
    return lambda u: layer(u)


def transforms(
    mesh: Mesh, ndim: int, shape: tuple[int, ...] | None = None, **options
) -> dict[str, dops.Transform | dops.FFT]:
    shape = shape or SHAPES[ndim]
    wall = (shape[0] * 3 // 2, *shape[1:])
    along = [dops.Fourier()] * (ndim - 2) + [dops.Fourier(half=True)]
    dec = dops.Decomposition(mesh, shape=shape, pad=True, **options)
    box = dops.Box((1.0, *[4.0] * (ndim - 1)))
    walls = dops.Decomposition(mesh, shape=wall, box=box, pad=True, **options)
    return {
        "real": dops.FFT(dec, real=True),
        "complex": dops.FFT(dec),
        "cosines": dops.Transform(dec, box=dops.Box(3.0), bases=(dops.Cosine(2),) * ndim),
        "polynomials": dops.Transform(walls, bases=(dops.Chebyshev(), *along)),
        "cells": dops.Transform(walls, bases=(dops.Cells.clustered(wall[0], 1.5), *along)),
    }


def operators(t: dict, ndim: int) -> dict[str, Entry]:
    fft, dec = t["real"], t["real"].decomposition
    field, v = fft.in_layout, (ndim,)
    axial = v if ndim == 3 else ()
    halo, orders = dops.HaloExchange(dec, 1), (1, 2, 0)[:ndim]
    plain = {
        "Transform": t["cosines"],
        "HaloExchange": halo.crop @ halo.update @ halo,
        "Roll": dops.Roll(dec, (1, -2, 3)[:ndim]),
        "Stencil": dops.Stencil(dec, difference, (*[0] * (ndim - 2), 1, 1)),
        "Transpose": dops.Transpose(dec, -1, 0),
        "Compose": fft.inverse @ fft,
        "Dealias": spectral.Dealias(fft),
        "Derivative": spectral.Derivative(fft, orders),
        "Derivative between walls": spectral.Derivative(t["polynomials"], orders),
        "GaussianFilter": spectral.GaussianFilter(fft, 0.1),
        "Gradient": spectral.Gradient(fft),
        "Gradient of cosines": spectral.Gradient(t["cosines"]),
        "Gradient between walls": spectral.Gradient(t["polynomials"]),
        "Helmholtz": spectral.Helmholtz(fft, 2.0),
        "InverseDivergence": spectral.InverseDivergence(fft),
        "IsotropicFilter": spectral.IsotropicFilter(fft, lambda k: 1 / (1 + k)),
        "Laplacian": spectral.Laplacian(fft),
        "Laplacian between walls": spectral.Laplacian(t["polynomials"]),
        "Poisson": spectral.Poisson(fft),
        "Poisson of cosines": spectral.Poisson(t["cosines"]),
        "Resample": spectral.Resample(fft, tuple(n + 4 for n in dec.shape)),
        "SpectralOperator": spectral.SpectralOperator(fft, lambda *k: 1 + k[0] ** 2),
        "Helmholtz in polynomials": spectral.Helmholtz(t["polynomials"], 1.5, "neumann"),
        "Helmholtz in cells": spectral.Helmholtz(t["cells"], 1.5, ("dirichlet", "neumann")),
        "Poisson in polynomials": spectral.Poisson(t["polynomials"], "neumann"),
        "Poisson in cells": spectral.Poisson(t["cells"], "neumann"),
    }
    found = {name: Entry(operator, operator.in_layout) for name, operator in plain.items()}
    found |= {
        "FFT": Entry(t["complex"], field, (), np.complex128),
        f"FFT{ndim}D": Entry(fft, field),
        "FFT of vectors": Entry(fft.inverse @ fft, field, v),
        "Curl": Entry(spectral.Curl(fft), field, v),
        "Divergence": Entry(spectral.Divergence(fft), field, v),
        "Divergence between walls": Entry(spectral.Divergence(t["polynomials"]), t["polynomials"].in_layout, v),
        "InverseCurl": Entry(spectral.InverseCurl(fft), field, axial),
        "LerayProjection": Entry(spectral.LerayProjection(fft), field, v),
        "Laplacian of vectors": Entry(spectral.Laplacian(fft), field, v),
        "Poisson of vectors in cells": Entry(spectral.Poisson(t["cells"], "dirichlet"), t["cells"].in_layout, v),
    }
    transposed = {f"{name}.T": entry for name, entry in found.items()}
    for name, entry in transposed.items():
        operator = entry.function
        result = operator.result_structure(operator.in_structure)
        lead = entry.components if result.components is None else result.components
        dtype = np.complex128 if result.kind == "complex" or entry.dtype == np.complex128 else np.float64
        found[name] = Entry(operator.T, result.layout, lead, dtype)
    # JAX refuses programs that close over sharded arrays. So operators with arrays are built inside of the program.
    screened = spectral.SpectralOperator(fft, lambda *k: 1 + sum(one**2 for one in k))
    found["CG"] = Entry(lambda u: solve.CG(screened, max_steps=50, if_unconverged="return")(u), field)
    found["Multiply"] = Entry(lambda u: dops.Multiply(dec, 1 + u**2)(u), field)
    found["VariableLaplacian"] = Entry(lambda u: spectral.VariableLaplacian(fft, 1 + u**2)(u), field)
    between_walls = lambda u: spectral.VariableLaplacian(t["cosines"], 1 + u**2)
    found["VariableLaplacian between walls"] = Entry(lambda u: between_walls(u)(u), field)
    volumes = lambda u: finite_volume.Diffusion(dec, 1 + u**2, boundary="dirichlet")
    found["finite_volume.Diffusion"] = Entry(lambda u: volumes(u)(u), field)
    found["Multigrid"] = Entry(lambda u: solve.Multigrid(volumes(u))(u), field)
    near = lambda *x: jnp.exp(-sum(one**2 for one in x))
    found["Convolution"] = Entry(lambda u: spectral.Convolution(fft, near)(u), field)
    found["Convolution along x"] = Entry(lambda u: spectral.Convolution(fft, near, open="x")(u), field)
    return found


def equations(t: dict, ndim: int) -> dict[str, pde.AbstractSplitEquation]:
    fft, polynomials = t["real"], t["polynomials"]
    wide = fft.replace(box=dops.Box(20.0))
    velocity = (1.0, -2.0, 0.5)[:ndim]
    flow, waves = pde.NavierStokes(fft, 0.1), pde.KortewegDeVries(wide, components="vector")
    force = pde.KolmogorovForcing(fft, 1, dealiasing=None), pde.Smagorinsky(fft, 0.17, dealiasing=None)
    buoyancy = pde.Buoyancy(fft, velocity)
    drive = pde.LinearForcing(fft, 0.1), pde.PowerForcing(fft, 0.1, (1.0, 1.0))
    drive += (pde.OrnsteinUhlenbeckForcing(fft, KEY, amplitude=0.1, time=0.2, shell=(1.0, 1.0)),)
    body = pde.Penalisation(fft, lambda *x: sum(jnp.abs(one - 3) for one in x) - 1, time=0.1)
    found = {
        "Advection": pde.Advection(fft, velocity, 0.1),
        "AllenCahn": pde.AllenCahn(fft, 0.1),
        "Burgers": pde.Burgers(fft, 0.1),
        "Burgers of a scalar": pde.Burgers(fft, 0.1, components="scalar"),
        "Burgers, conservative": pde.Burgers(fft, 0.1, conservative=True, dealiasing=spectral.Pad()),
        "Burgers of cosines": pde.Burgers(t["cosines"], 0.1),
        "CahnHilliard": pde.CahnHilliard(fft, 0.1, 0.1),
        "Diffusion": pde.Diffusion(fft, 0.1),
        "Diffusion of cosines": pde.Diffusion(t["cosines"], (0.1,) * ndim),
        "Dispersion": pde.Dispersion(fft, velocity),
        "FisherKPP": pde.FisherKPP(fft, 0.1, 1.0, dealiasing=spectral.Mask()),
        "GrayScott": pde.GrayScott(fft, (0.1, 0.05), 0.04, 0.06),
        "GrossPitaevskii": pde.GrossPitaevskii(t["complex"], 1.0),
        "GrossPitaevskii in ImaginaryTime": pde.ImaginaryTime(pde.GrossPitaevskii(t["complex"], 1.0), 2.0),
        "HyperDiffusion": pde.HyperDiffusion(fft, 0.1),
        "KortewegDeVries": pde.KortewegDeVries(wide),
        "KortewegDeVries of vectors": waves,
        "KuramotoSivashinsky": pde.KuramotoSivashinsky(wide, keep_mean=True),
        "KuramotoSivashinskyConservative": pde.KuramotoSivashinskyConservative(wide),
        "KuramotoSivashinskyConservative, convective": pde.KuramotoSivashinskyConservative(wide, conservative=False),
        "NavierStokes": flow,
        "NavierStokes, masked": pde.NavierStokes(fft, 0.1, dealiasing=spectral.Mask()),
        "NavierStokes with KolmogorovForcing and Smagorinsky": pde.NavierStokes(
            fft, 0.1, drag=0.1, forcing=force, dealiasing=None
        ),
        "NavierStokes with LinearForcing, PowerForcing and OrnsteinUhlenbeckForcing": pde.NavierStokes(
            fft, 0.1, forcing=drive
        ),
        "NavierStokes with Coriolis": pde.NavierStokes(
            fft, 0.1, forcing=pde.Coriolis(fft, velocity if ndim == 3 else (1.0,))
        ),
        "Magnetohydrodynamics": pde.Magnetohydrodynamics(flow, 0.1),
        "NavierStokes with Penalisation": pde.NavierStokes(fft, 0.1, forcing=body),
        "PassiveScalar": pde.PassiveScalar(flow, 0.1, mean_gradient=velocity),
        "PassiveScalar with Buoyancy": pde.PassiveScalar(flow, 0.1, mean_gradient=velocity, forcing=buoyancy),
        "PassiveScalar with VariableViscosity": pde.PassiveScalar(
            flow, 0.1, forcing=pde.VariableViscosity(fft, lambda c: 0.1 * c**2)
        ),
        "PassiveScalar of PassiveScalar": pde.PassiveScalar(pde.PassiveScalar(waves, 0.1), 0.2),
        "SwiftHohenberg": pde.SwiftHohenberg(fft, 0.1),
        "Wave": pde.Wave(fft, 2.0),
        "Channel": pde.Channel(polynomials, 0.1, drive=1.0),
        "Channel with a flow rate and moving walls": pde.Channel(
            polynomials, 0.1, bulk_velocity=0.5, wall_velocity=(0.0, 1.0)
        ),
        "RayleighBenard": pde.RayleighBenard(polynomials, 100.0, 1.0),
        "RayleighBenard with warm walls": pde.RayleighBenard(
            polynomials, 100.0, 1.0, bottom=jnp.ones(polynomials.decomposition.shape[1:])
        ),
    }
    if ndim == 2:
        found["VorticityNavierStokes"] = pde.VorticityNavierStokes(fft, 0.1)
        found["QuasiGeostrophic"] = pde.QuasiGeostrophic(fft, 0.1, 1.0, 1.0)
        found["ShallowWater"] = pde.ShallowWater(fft, 2.0, coriolis=1.0, viscosity=0.1)
        found["HasegawaWakatani"] = pde.HasegawaWakatani(fft, 1.0, diffusivity=0.1)
    return found


def components_of(equation: pde.AbstractSplitEquation, ndim: int) -> tuple[int, ...]:
    known = equation.in_structure.components
    return (ndim,) if known is None and "Diffusion" not in type(equation).__name__ else known or ()


def started(equation: pde.AbstractSplitEquation, fields):
    """Return the state for fields. Between walls, the fields first become zero at the walls."""
    if isinstance(equation.transform.bases[0], dops.Chebyshev):
        shape, ndim = equation.transform.in_layout.true_shape, equation.transform.decomposition.ndim
        x = equation.transform.bases[0].points(shape[0])
        x = np.pad(4 * x * (1 - x), (0, fields.shape[-ndim] - len(x)))
        fields = fields * x.reshape(-1, *[1] * (ndim - 1)).astype(fields.dtype)[(None,) * (fields.ndim - ndim)]
    return equation.state(fields)


def rate(equation: pde.AbstractSplitEquation, fields):
    """Return the fields of the terms of an equation."""
    u = started(equation, fields)
    if isinstance(equation, pde.AbstractEquation):
        return equation.fields(equation(0.0, u))
    return equation.fields(equation.nonlinear(0.0, u) + equation.resolvent(u, 0.01))


def stepped(solver: pde.AbstractIntegrator, fields):
    """Return the fields after two steps."""
    equation = solver.equation
    return equation.fields(solver.rollout(started(equation, fields), 2)[0])


INTEGRATORS = {
    "ETDRK": lambda equation: pde.ETDRK(equation, 0.01, 4),
    "IMEXRK": lambda equation: pde.IMEXRK(equation, 0.01),
    "SBDF": lambda equation: pde.SBDF(equation, 0.01, 3),
}


def rates(t: dict, ndim: int) -> dict[str, Entry]:
    found = {}
    for name, equation in equations(t, ndim).items():
        dtype = np.complex128 if "Pitaevskii" in name else np.float64
        entry = functools.partial(
            Entry, layout=equation.transform.in_layout, components=components_of(equation, ndim), dtype=dtype
        )
        if isinstance(equation, pde.AbstractEquation):
            found[f"{name} in RealSpace"] = entry(functools.partial(pde.RealSpace(equation), 0.0))
        found[f"{name}: rate"] = entry(functools.partial(rate, equation))
        for method, make in INTEGRATORS.items():
            if method != "ETDRK" or isinstance(equation, pde.AbstractEquation):
                found[f"{name}: {method}"] = entry(functools.partial(stepped, make(equation)))
    return found


def functions(t: dict, ndim: int) -> dict[str, Entry]:
    fft, walls = t["real"], t["polynomials"]
    dec, field, v = fft.decomposition, fft.in_layout, (ndim,)
    noise = spectral.GaussianRandomField(fft, lambda k: 1 / k)
    states, padded = pde.state_transform(fft), spectral.dealiased(fft, spectral.Pad())
    channel = equations(t, ndim)["RayleighBenard"]
    flow_rate = pde.Channel(walls, 0.1, bulk_velocity=0.5)
    state = lambda function: lambda u: function(started(channel, u))
    flow = lambda function: Entry(state(function), walls.in_layout, (ndim + 1,))
    return {
        "FNO": Entry(called(nn.FNO(fft, ndim, 1, width=2, modes=2, depth=1, key=KEY)), field, v),
        "GroupNorm": Entry(called(nn.GroupNorm(dec, 1, ndim)), field, v),
        "HaloConv": Entry(called(nn.HaloConv(dec, ndim, 2, 3, key=KEY)), field, v),
        "HaloConvTranspose": Entry(called(nn.HaloConvTranspose(dec, ndim, 2, 3, key=KEY)), field, v),
        "AvgPool": Entry(called(nn.AvgPool(dec, 2)), field, v),
        "MaxPool": Entry(called(nn.MaxPool(dec, 2)), field, v),
        "Upsample": Entry(called(nn.Upsample(dec, 2)), field, v),
        "SpectralConv": Entry(called(nn.SpectralConv(fft, ndim, 2, 2, key=KEY)), field, v),
        "SpectralConv of complex fields": Entry(
            called(nn.SpectralConv(t["complex"], ndim, 2, 2, key=KEY)), t["complex"].in_layout, v, np.complex128
        ),
        "UFNO": Entry(called(nn.UFNO(fft, ndim, 1, width=2, modes=2, depth=1, unet_depth=1, key=KEY)), field, v),
        "UNet": Entry(called(nn.UNet(dec, ndim, 1, width=2, depth=1, key=KEY)), field, v),
        "GaussianRandomField": Entry(lambda u: u * noise(KEY)[None], field, v),
        "white_noise": Entry(lambda u: u * spectral.white_noise(dec, KEY)[None], field, v),
        "power_spectrum": Entry(lambda u: spectral.power_spectrum(fft, u).power, field, v),
        "cross_spectrum": Entry(lambda u: spectral.cross_spectrum(fft, u, 2 * u).power, field, v),
        "power_multipoles": Entry(lambda u: spectral.power_multipoles(fft, u, axis="x").power, field, v),
        "energy_spectrum": Entry(lambda u: spectral.energy_spectrum(fft, u).energy, field, v),
        "energy_transfer": Entry(lambda u: spectral.energy_transfer(fft, u).transfer, field, v),
        "turbulence_scales": Entry(lambda u: spectral.turbulence_scales(fft, u, 0.1).reynolds, field, v),
        "structure_functions": Entry(
            lambda u: spectral.structure_functions(fft, u, (1, 2), axes="x").longitudinal, field, v
        ),
        "correlation_function": Entry(lambda u: spectral.correlation_function(fft, u).correlation, field, v),
        "bispectrum": Entry(lambda u: spectral.bispectrum(fft, u, (0.5, 1.5)).bispectrum, field),
        "plane_spectra": Entry(lambda u: spectral.plane_spectra(walls, u).power, walls.in_layout, v),
        "mean_square": Entry(lambda u: spectral.mean_square(fft, fft(u)), field, v),
        "mean_square of a scalar": Entry(lambda u: spectral.mean_square(fft, fft(u)), field),
        "dealiased": Entry(padded, padded.in_layout, v),
        "state_transform": Entry(states.inverse @ (lambda k: 2 * k) @ states, field, v),
        "wavenumbers": Entry(lambda u: fft(u) * sum(fft.wavenumbers()).astype(complex)[None], field, v),
        "multiplicity": Entry(lambda u: fft(u) * fft.multiplicity().astype(complex)[None], field, v),
        "mean": Entry(dec.mean, field, v),
        "norm": Entry(dec.norm, field, v),
        "vdot": Entry(lambda u: dec.vdot(u, u), field, v),
        "Transform.volume_mean": Entry(walls.volume_mean, walls.in_layout, v),
        "divergence": flow(channel.divergence),
        "wall_slopes": flow(channel.wall_slopes),
        "volume_means": flow(channel.volume_means),
        "driving_force": Entry(lambda u: flow_rate.driving_force(0.0, started(flow_rate, u)), walls.in_layout, v),
        "wall_stress": Entry(lambda u: flow_rate.wall_stress(started(flow_rate, u)), walls.in_layout, v),
        "gradient_squares": flow(channel.gradient_squares),
        "nusselt": flow(channel.nusselt),
        "plane_mean": flow(lambda u: channel.plane_mean(channel.fields(u))),
        "solution": Entry(lambda u: spectral.Poisson(walls, "dirichlet").solution(u, 1.0, 2.0), walls.in_layout),
    }


def catalogue(mesh: Mesh, ndim: int, shape: tuple[int, ...] | None = None, **options) -> dict[str, Entry]:
    """Return everything on grids of `ndim` axes, 2 or 3. `options` are those of `Decomposition`."""
    t = transforms(mesh, ndim, shape, **options)
    return {**operators(t, ndim), **rates(t, ndim), **functions(t, ndim)}


def with_few_steps(entries: dict[str, Entry]) -> dict[str, Entry]:
    """Return the entries without six of each seven steps of integrators.

    The steps take most of the time, and are combinations of the rates of change, which stay. Each integrator still
    steps several equations.
    """
    steps = [name for name in entries if name.endswith((": ETDRK", ": IMEXRK", ": SBDF"))]
    return {name: entry for name, entry in entries.items() if name not in steps or name in steps[::7]}
