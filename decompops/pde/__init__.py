"""Partial differential equations on periodic grids and between walls, and integrators for stiff equations."""

from ._buoyancy import Buoyancy as Buoyancy
from ._burgers import Burgers as Burgers
from ._channel import Channel as Channel
from ._coriolis import Coriolis as Coriolis
from ._equation import (
    AbstractEquation as AbstractEquation,
    AbstractSplitEquation as AbstractSplitEquation,
    RealSpace as RealSpace,
    state_transform as state_transform,
)
from ._etdrk import ETDRK as ETDRK
from ._forcing import KolmogorovForcing as KolmogorovForcing
from ._gross_pitaevskii import GrossPitaevskii as GrossPitaevskii
from ._hasegawa_wakatani import HasegawaWakatani as HasegawaWakatani
from ._imaginary_time import ImaginaryTime as ImaginaryTime
from ._imexrk import IMEXRK as IMEXRK
from ._integrator import AbstractIntegrator as AbstractIntegrator, History as History
from ._korteweg_de_vries import KortewegDeVries as KortewegDeVries
from ._kuramoto_sivashinsky import (
    KuramotoSivashinsky as KuramotoSivashinsky,
    KuramotoSivashinskyConservative as KuramotoSivashinskyConservative,
)
from ._magnetohydrodynamics import Magnetohydrodynamics as Magnetohydrodynamics
from ._navier_stokes import NavierStokes as NavierStokes
from ._ornstein_uhlenbeck import OrnsteinUhlenbeckForcing as OrnsteinUhlenbeckForcing
from ._passive_scalar import PassiveScalar as PassiveScalar
from ._penalisation import Penalisation as Penalisation
from ._phase_field import AllenCahn as AllenCahn, CahnHilliard as CahnHilliard, SwiftHohenberg as SwiftHohenberg
from ._quasi_geostrophic import QuasiGeostrophic as QuasiGeostrophic
from ._rayleigh_benard import RayleighBenard as RayleighBenard
from ._reaction import FisherKPP as FisherKPP, GrayScott as GrayScott
from ._sbdf import SBDF as SBDF
from ._shallow_water import ShallowWater as ShallowWater
from ._shell_forcing import LinearForcing as LinearForcing, PowerForcing as PowerForcing
from ._simulate import (
    NotFinite as NotFinite,
    Simulation as Simulation,
    Snapshots as Snapshots,
    StepTooShort as StepTooShort,
    simulate as simulate,
)
from ._smagorinsky import Smagorinsky as Smagorinsky
from ._step_control import CFL as CFL, AbstractStepControl as AbstractStepControl, ErrorControl as ErrorControl
from ._transport import (
    Advection as Advection,
    Diffusion as Diffusion,
    Dispersion as Dispersion,
    HyperDiffusion as HyperDiffusion,
)
from ._variable_viscosity import VariableViscosity as VariableViscosity
from ._vorticity import VorticityNavierStokes as VorticityNavierStokes
from ._wave import Wave as Wave
