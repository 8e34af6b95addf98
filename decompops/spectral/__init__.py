"""Spectral operators: derivatives, solvers, filters and statistics of periodic fields and of fields between walls."""

from ._bispectrum import Bispectrum as Bispectrum, bispectrum as bispectrum
from ._convolution import Convolution as Convolution
from ._correlation import CorrelationFunction as CorrelationFunction, correlation_function as correlation_function
from ._dealiasing import Mask as Mask, Pad as Pad, Truncate as Truncate
from ._derivative import (
    Curl as Curl,
    Derivative as Derivative,
    Divergence as Divergence,
    Gradient as Gradient,
    Laplacian as Laplacian,
)
from ._filter import Dealias as Dealias, GaussianFilter as GaussianFilter, IsotropicFilter as IsotropicFilter
from ._green import (
    BiotSavartKernel as BiotSavartKernel,
    PoissonKernel as PoissonKernel,
    YukawaKernel as YukawaKernel,
)
from ._helmholtz import HelmholtzKernel as HelmholtzKernel
from ._kernels import KernelSymbol as KernelSymbol, KernelValues as KernelValues
from ._linear import as_linear_operator as as_linear_operator
from ._mean_square import mean_square as mean_square
from ._modes import dealiased as dealiased
from ._operator import AbstractSpectralOperator as AbstractSpectralOperator, SpectralOperator as SpectralOperator
from ._random import GaussianRandomField as GaussianRandomField, white_noise as white_noise
from ._resample import Resample as Resample
from ._solve import (
    Helmholtz as Helmholtz,
    InverseCurl as InverseCurl,
    InverseDivergence as InverseDivergence,
    LerayProjection as LerayProjection,
    Poisson as Poisson,
)
from ._spectra import (
    EnergySpectrum as EnergySpectrum,
    PowerSpectrum as PowerSpectrum,
    cross_spectrum as cross_spectrum,
    energy_spectrum as energy_spectrum,
    plane_spectra as plane_spectra,
    power_multipoles as power_multipoles,
    power_spectrum as power_spectrum,
)
from ._tridiagonal import tridiagonal_solve as tridiagonal_solve
from ._turbulence import (
    EnergyTransfer as EnergyTransfer,
    StructureFunctions as StructureFunctions,
    TurbulenceScales as TurbulenceScales,
    energy_transfer as energy_transfer,
    structure_functions as structure_functions,
    turbulence_scales as turbulence_scales,
)
from ._variable import VariableLaplacian as VariableLaplacian
