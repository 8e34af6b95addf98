"""Tests of the public names of the package, and of their docstrings."""

import copy
import dataclasses
import inspect
import pickle
from types import ModuleType
from typing import Any

import decompops as dops
import equinox as eqx
import numpy as np
import pytest
from decompops import extend, testing


NAMES = {
    *("AbstractBackend", "AbstractOperator", "Compose", "CuDecomp", "CuDecompTuner", "Decomposition"),
    *(
        "Box",
        "Cells",
        "Chebyshev",
        "Cosine",
        "FFT",
        "FFT2D",
        "FFT3D",
        "Fourier",
        "HaloExchange",
        "Layout",
        "MPI",
        "Native",
    ),
    *("Multiply", "Points", "Roll", "Sine"),
    *("Stencil", "Transform", "Transpose", "Trial", "XLA", "autotune", "config"),
}
SUBPACKAGES = {
    dops.fft: {
        *("dct", "dctn", "dst", "dstn", "idct", "idctn", "idst", "idstn"),
        *("fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifft2", "ifftn", "ifftshift", "ihfft"),
        *("irfft", "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn"),
    },
    dops.spectral: {
        *("AbstractSpectralOperator", "Curl", "Dealias", "Derivative"),
        *("Divergence", "GaussianFilter"),
        *("GaussianRandomField", "Gradient", "Helmholtz", "InverseCurl", "InverseDivergence", "IsotropicFilter"),
        *(
            "Laplacian",
            "LerayProjection",
            "Mask",
            "Pad",
            "Poisson",
            "PowerSpectrum",
            "Resample",
            "SpectralOperator",
            "Truncate",
            "VariableLaplacian",
            "as_linear_operator",
            "dealiased",
            "mean_square",
        ),
        *("plane_spectra", "power_spectrum", "tridiagonal_solve", "white_noise"),
        *("BiotSavartKernel", "Convolution", "HelmholtzKernel", "KernelSymbol", "KernelValues", "PoissonKernel"),
        "YukawaKernel",
        *("Bispectrum", "CorrelationFunction", "EnergySpectrum", "bispectrum", "correlation_function"),
        *("cross_spectrum", "energy_spectrum", "power_multipoles"),
        *("EnergyTransfer", "StructureFunctions", "TurbulenceScales"),
        *("energy_transfer", "structure_functions", "turbulence_scales"),
    },
    dops.io: {"Checkpoints", "Samples", "Snapshot", "Writer", "read", "write", "write_series"},
    dops.mpmd: {
        *("MpmdArray", "MpmdMesh", "MpmdSharding", "logically_stacked", "mpmd_to_spmd_reshard", "reshard"),
        "spmd_to_mpmd_reshard",
    },
    dops.particles: {
        *("Cosmology", "Deconvolution", "Gravity", "KickDriftKick", "Load", "NUFFT", "NUFFTType3"),
        *("ParticleMesh", "Particles", "Window"),
    },
    dops.solve: {
        *("AbstractSolver", "BiCGStab", "CG", "GMRES", "MINRES", "Multigrid", "NotConverged", "Reason", "Solution"),
        *("State", "System"),
    },
    dops.nn: {
        *("AvgPool", "GroupNorm", "HaloConvTranspose", "LayerNorm", "MaxPool", "Upsample"),
        *("FNO", "FNO2D", "FNO3D", "HaloConv", "HaloConv2D", "HaloConv3D", "SpectralConv", "SpectralConv2D"),
        *("HaloConvTranspose2D", "HaloConvTranspose3D", "SpectralConv3D", "UFNO", "UNet"),
    },
    dops.finite_volume: {"Body", "Diffusion", "Divergence", "Gradient", "Robin"},
    dops.plot: {"curves", "panels", "projection", "slice", "spectrum"},
    dops.pde: {
        *("AbstractEquation", "AbstractIntegrator", "AbstractSplitEquation", "Advection", "AllenCahn", "Burgers"),
        *("Buoyancy", "Channel", "ImaginaryTime", "RayleighBenard"),
        *("CahnHilliard", "Diffusion", "Dispersion", "ETDRK", "FisherKPP", "GrayScott", "GrossPitaevskii", "History"),
        *("HyperDiffusion", "IMEXRK", "KolmogorovForcing", "KortewegDeVries", "KuramotoSivashinsky"),
        *("KuramotoSivashinskyConservative", "NavierStokes", "PassiveScalar", "Penalisation", "RealSpace", "SBDF"),
        *("Smagorinsky", "VariableViscosity"),
        *("LinearForcing", "OrnsteinUhlenbeckForcing", "PowerForcing", "Coriolis", "HasegawaWakatani"),
        *("Magnetohydrodynamics", "QuasiGeostrophic", "ShallowWater"),
        *("SwiftHohenberg", "VorticityNavierStokes", "Wave"),
        *("AbstractStepControl", "CFL", "ErrorControl", "NotFinite", "Simulation", "Snapshots", "StepTooShort"),
        *("simulate", "state_transform"),
    },
}
# `decompops.testing` has these names. `import decompops` does not import it.
TESTING = {
    "assert_adjoint",
    "assert_derivative",
    "assert_same_on_meshes",
    "assert_transposed",
    "random_input",
    "tolerance",
}
# `decompops.extend` has these names, for packages that extend decompops. The names in `EXTEND_TYPES` have no docstring
# of their own.
EXTEND = {
    *("AbstractTyped", "Cells", "Chebyshev", "Cosine", "DerivativeRule", "Layout", "Points", "RealToReal", "Sine"),
    *("AbstractBackend", "AbstractBasis", "AbstractDealiasing", "AbstractDerivable", "AbstractEquation"),
    *("AbstractLineTransform", "Structure"),
    *("AbstractOperator", "AbstractPlanned", "AbstractSpectral", "AbstractSpectralOperator", "AbstractStage"),
    "AbstractProducts",
    *("AbstractTransform", "AbstractTuner", "Blocks", "Box", "Call", "Caller", "Clear", "Counters", "Crop", "DFT"),
    *("Decomposition", "Extend", "Form", "Fourier", "LocalTransform", "Move", "Plan", "Resize", "Run", "Scale", "Task"),
    *("check_bases", "check_components", "check_count", "check_fft", "check_flag", "check_modes"),
    *("check_norm", "check_number", "check_one_or_each", "check_shape", "check_up_to", "move"),
    *(
        "axis_names",
        "check_axes",
        "check_axis",
        "plan_in_form",
        "register_backend",
        "run_stage",
        "transform_plan",
        "vector",
    ),
}
EXTEND_TYPES = {"Components", "Kind", "Norm", "Number", "Pencil", "Time", "UNCHANGED", "Wavenumbers"}


def test_public_names():
    for package, names in {dops: NAMES, **SUBPACKAGES}.items():
        values = vars(package).items()
        assert {n for n, value in values if not n.startswith("_") and not isinstance(value, ModuleType)} == names
    assert {name for name in vars(extend) if not name.startswith("_")} == EXTEND | EXTEND_TYPES


def test_signatures_show_types():
    """Equinox takes the type of an argument from the converter of its field, which must not be `Any`."""
    found = []
    for module in (dops, *SUBPACKAGES):
        for name in dir(module):
            one = getattr(module, name)
            if isinstance(one, type) and issubclass(one, eqx.Module) and dataclasses.is_dataclass(one):
                parameters = inspect.signature(one).parameters
                converted = [field.name for field in dataclasses.fields(one) if "converter" in field.metadata]
                found += [f"{name}: {key}" for key in converted if parameters[key].annotation is Any]
    assert found == []


def test_public_docstrings():
    everything = [(dops, name) for name in NAMES - {"config"}]
    everything += [(package, name) for package, names in SUBPACKAGES.items() for name in names]
    everything += [(extend, name) for name in EXTEND]
    everything += [(testing, name) for name in TESTING]
    for package, name in everything:
        public = getattr(package, name)
        assert public.__doc__
        for attribute, value in vars(public).items():
            if attribute.startswith("_") or attribute in ("decomposition", "components") or not inspect.isclass(public):
                continue
            if callable(value) or isinstance(value, property):
                inherited = [getattr(base, attribute, None) for base in public.__mro__[1:]]
                assert value.__doc__ or any(i is not None and i.__doc__ for i in inherited), f"{name}.{attribute}"


@pytest.mark.parametrize(
    "error",
    [
        dops.pde.NotFinite("why", np.ones(2), 0.5),
        dops.pde.StepTooShort("why", 1, 0.5),
        dops.solve.NotConverged("why", 1),
    ],
)
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_errors_with_results_can_be_copied_and_pickled(error, copied):
    """A pool of processes pickles the errors of its workers."""
    found = copied(error)
    assert (type(found), str(found)) == (type(error), "why")
    assert vars(found).keys() == vars(error).keys()
    for name, value in vars(error).items():
        np.testing.assert_array_equal(getattr(found, name), value)
