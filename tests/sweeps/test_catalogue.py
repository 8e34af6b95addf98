"""Tests of the whole catalogue: mesh axes that are left over, contexts with other axis types, JAX's strict modes.

Most faults of these kinds are in the types of arrays. JAX finds them when it traces or lowers a program. So the fast
tests compile nothing. The tests marked `sweep` take all combinations, and compare values.
"""

import contextlib
import functools
import inspect
import operator
import re

import decompops as dops
import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import nn, pde, spectral
from jax.sharding import NamedSharding, PartitionSpec as P

from catalogue import SIZES, Entry, catalogue, with_few_steps
from helpers import assert_close, make_mesh


# These classes and functions compute nothing with a field: abstract classes, rules, bases, backends, errors, results.
OTHERS = {
    *("Box", "Cells", "Chebyshev", "Cosine", "Fourier", "Points", "Sine", "CuDecomp", "CuDecompTuner", "MPI", "Native"),
    *("XLA", "Layout", "Trial", "autotune", "Mask", "Pad", "Truncate", "PowerSpectrum", "History", "Decomposition"),
    *("CFL", "ErrorControl", "NotFinite", "StepTooShort", "Simulation", "Snapshots", "simulate", "as_linear_operator"),
    *("Bispectrum", "CorrelationFunction", "EnergySpectrum", "BiotSavartKernel", "HelmholtzKernel", "KernelSymbol"),
    *("KernelValues", "PoissonKernel", "YukawaKernel", "EnergyTransfer", "StructureFunctions", "TurbulenceScales"),
    *("tridiagonal_solve", "FFT3D", "FNO2D", "FNO3D", "HaloConv2D", "HaloConv3D", "LayerNorm"),
    *("HaloConvTranspose2D", "HaloConvTranspose3D", "SpectralConv2D", "SpectralConv3D"),
}


@functools.cache
def everything(kind: str, ndim: int) -> dict[str, Entry]:
    return catalogue(make_mesh(SIZES[ndim], kind), ndim)


def left_over(entry: Entry) -> tuple[str, ...]:
    """Return the mesh axis that can shard the components of a field."""
    mesh, used = entry.layout.mesh, str(entry.layout.spec)
    free = [name for name in mesh.axis_names if name not in used]
    return tuple(name for name in free if entry.components and entry.components[0] % mesh.shape[name] == 0)


def put(entry: Entry) -> jax.Array:
    return jax.device_put(entry.field(), entry.sharding(*left_over(entry)))


def failures(entries: dict[str, Entry], attempt) -> dict[str, str]:
    """Return the error of each entry that `attempt` fails with."""
    found = {}
    for name, entry in entries.items():
        try:
            attempt(name, entry)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {str(error)[:300]}"
    return found


def test_the_catalogue_is_complete():
    known = {word for name in everything("explicit", 2) for word in re.findall(r"\w+", name)}
    public = {
        name
        for module in (dops, spectral, pde, nn)
        for name, value in vars(module).items()
        if callable(value) and not name.startswith(("_", "Abstract")) and not inspect.isabstract(value)
    }
    assert public - known - OTHERS == set()
    assert public >= OTHERS  # A name that is gone must go here, too.


def traced(name: str, entry: Entry) -> None:
    """Trace a program. The rate of an equation must have the type of the field, as loops need it."""
    x = put(entry)
    result = jax.eval_shape(jax.jit(entry.function), x)
    if "in RealSpace" in name:
        assert result.sharding.spec == jax.typeof(x).sharding.spec, result


@pytest.mark.parametrize("chunk", range(4))
def test_components_that_a_left_over_mesh_axis_shards(chunk):
    """Programs trace if an Explicit mesh axis that the grid leaves over shards the components of a vector.

    JAX promotes no ranks in this test. The tests of the whole package have strict dtypes anyway.
    test_programs_under_strict_modes traces all steps of integrators.
    """
    entries = with_few_steps(everything("explicit", 2))
    part = {name: entries[name] for name in list(entries)[chunk::4]}
    with jax.numpy_rank_promotion("raise"):
        assert failures(part, traced) == {}


def told(function):
    """Return a function that also calls the host, as diffrax and `equinox.error_if` do."""

    def program(x):
        y = function(x)
        zero = jax.experimental.io_callback(np.zeros_like, jax.ShapeDtypeStruct((), y.dtype), jnp.sum(y))
        return y + zero

    return program


def lowered_in_other_axes(kind: str, name: str, entry: Entry) -> None:
    """Lower a program in `auto_axes` on an Explicit mesh, or in `explicit_axes` on an Auto mesh."""
    del name
    mesh, x = entry.layout.mesh, put(entry)
    if kind == "explicit":
        relaxed = jax.sharding.auto_axes(told(entry.function), out_sharding=NamedSharding(mesh, P()))
        jax.jit(relaxed).lower(x)
        return
    with jax.set_mesh(mesh):
        spec = entry.sharding(*left_over(entry)).spec
        jax.jit(jax.sharding.explicit_axes(told(entry.function), in_sharding=spec)).lower(x)


@pytest.mark.parametrize("kind", ["explicit", "auto"])
def test_some_programs_in_axes_of_another_type(kind):
    """JAX refuses a program with a callback if it names the devices of meshes with different axis types."""
    entries = everything(kind, 2)
    layers = {"FNO", "HaloConv", "SpectralConv", "GaussianRandomField", "white_noise"}
    layers |= {"power_spectrum", "bispectrum", "correlation_function"}
    part = {name: entries[name] for i, name in enumerate(entries) if name in layers or i % 48 == 0}
    assert failures(part, functools.partial(lowered_in_other_axes, kind)) == {}


@pytest.mark.sweep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("ndim", SIZES)
@pytest.mark.parametrize("kind", ["explicit", "auto"])
def test_programs_in_axes_of_another_type(kind, ndim):
    assert failures(everything(kind, ndim), functools.partial(lowered_in_other_axes, kind)) == {}


@pytest.mark.sweep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("ndim", SIZES)
@pytest.mark.parametrize("kind", ["explicit", "auto"])
def test_programs_under_strict_modes(kind, ndim):
    """Programs trace in JAX's strict modes, for every way in which a field may come."""

    def attempt(name, entry):
        del name
        for x in (entry.field(), jax.device_put(entry.field(), entry.sharding()), put(entry)):
            jax.jit(entry.function).trace(x)

    with jax.numpy_rank_promotion("raise"), jax.enable_checks(True), jax.checking_leaks():
        assert failures(everything(kind, ndim), attempt) == {}


# Operators, layers, statistics, and the rates of a few equations.
MOST = r"^\w+$|\.T$|^(Burgers|Channel|PassiveScalar|RayleighBenard|Wave): "
STRICT = {
    "debug_nans": lambda: jax.debug_nans(True),
    "debug_infs": lambda: jax.debug_infs(True),
    "disable_jit": lambda: jax.disable_jit(True),
    "enable_checks": lambda: jax.enable_checks(True),
    "checking_leaks": jax.checking_leaks,
    "transfer_guard": lambda: jax.transfer_guard("disallow"),
}
FEW = ["Curl", "Poisson in polynomials.T", "SpectralConv", "Burgers: rate"]
# In CI, modes of the same kind are on together, and get two entries in turn. Without `jit`, JAX compiles hundreds of
# single operations, so this mode gets only one entry.
FEW_OF_MODES = [
    (("debug_nans", "debug_infs"), FEW[::2]),
    (("enable_checks", "checking_leaks"), FEW[1::2]),
    (("transfer_guard",), FEW[1::2]),
    (("disable_jit",), FEW[:1]),
]


def close_to_one_device(x: jax.Array | np.ndarray, alone: Entry, function) -> None:
    """Assert that `function(x)` equals the function of the entry `alone`, which is the same on one device."""
    got, expected = np.asarray(function(x)), np.asarray(jax.jit(alone.function)(alone.field()))
    both = tuple(slice(min(lengths)) for lengths in zip(got.shape, expected.shape))  # Only the padding may differ.
    assert_close(got[both], expected[both], 1e-9)


@functools.cache
def on_one_device(ndim: int) -> dict[str, Entry]:
    return catalogue(make_mesh((1, 1)), ndim)


@pytest.mark.sweep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("ndim", SIZES)
@pytest.mark.parametrize("kind", ["explicit", "auto"])
@pytest.mark.parametrize("wrap", [jax.jit, lambda function: function], ids=["jit", "eager"])
def test_values_where_a_mesh_axis_is_left_over(wrap, kind, ndim):
    entries = {name: entry for name, entry in everything(kind, ndim).items() if re.search(MOST, name)}
    alone = on_one_device(ndim)
    assert failures(entries, lambda n, e: close_to_one_device(put(e), alone[n], wrap(e.function))) == {}


@pytest.mark.parametrize("kind", ["explicit", "auto"])
@pytest.mark.parametrize(
    ("ndim", "names"),
    [(2, "^(HaloConv|GroupNorm|Curl)$")]
    + [pytest.param(n, MOST, marks=[pytest.mark.sweep, pytest.mark.timeout(3600)]) for n in SIZES],
)
def test_eager_calls_of_arrays_that_are_not_sharded(kind, ndim, names):
    """An operator shards them, and their components over the mesh axis that is left over."""
    entries = {name: entry for name, entry in everything(kind, ndim).items() if re.search(names, name)}
    alone = on_one_device(ndim)
    assert entries
    assert failures(entries, lambda n, e: close_to_one_device(e.field(), alone[n], e.function)) == {}


@pytest.mark.parametrize(
    ("modes", "names"),
    FEW_OF_MODES
    + [pytest.param((mode,), None, marks=[pytest.mark.sweep, pytest.mark.timeout(3600)]) for mode in STRICT],
    ids=lambda given: "+".join(given) if isinstance(given, tuple) else None,
)
def test_eager_calls_under_strict_modes(modes, names):
    """Under `disable_jit` on Explicit axes, JAX's own functions need `jax.set_mesh`.

    Some modes act only while JAX traces, so JAX forgets its programs first. `transfer_guard` refuses Python numbers in
    any eager call, so it gets compiled programs. Under `disable_jit`, an integrator takes half a minute, and does what
    the rate of its equation does, so only the rates are called.
    """
    entries = everything("explicit", 2)
    some = [
        name for name in entries if "disable_jit" not in modes or not re.search("ETDRK|IMEXRK|SBDF|RealSpace", name)
    ]
    entries = {name: entries[name] for name in names or some}
    fields = {name: put(entry) for name, entry in entries.items()}
    wrap = jax.jit if "transfer_guard" in modes else lambda function: function
    jax.clear_caches()
    with contextlib.ExitStack() as contexts:
        contexts.enter_context(jax.set_mesh(make_mesh(SIZES[2], "explicit")))
        for mode in modes:
            contexts.enter_context(STRICT[mode]())
        found = failures(entries, lambda name, entry: jax.block_until_ready(wrap(entry.function)(fields[name])))
    assert found == {}


# Functions with a `shard_map` that JAX must differentiate. On Auto meshes they refuse `spmd_axis_name`.
WITHOUT_SPMD_NAME = {
    *("AvgPool", "Convolution", "Convolution along x", "HaloConv", "HaloConvTranspose", "MaxPool", "UFNO", "UNet"),
    *("Upsample", "bispectrum", "correlation_function", "cross_spectrum", "energy_spectrum", "energy_transfer"),
    *("plane_spectra", "power_multipoles", "power_spectrum", "structure_functions", "turbulence_scales"),
}
# These entries contain a loop, a solve on cells, components that are zero, and windows of cells.
FEW_MAPPED = ["CG", "Poisson in cells", "Wave: rate", "PassiveScalar with VariableViscosity: rate", "MaxPool"]


@pytest.mark.parametrize("kind", ["explicit", "auto"])
@pytest.mark.parametrize(
    ("ndim", "names"),
    [(3, FEW_MAPPED)] + [pytest.param(n, None, marks=[pytest.mark.sweep, pytest.mark.timeout(3600)]) for n in SIZES],
)
def test_a_batch_that_a_left_over_mesh_axis_shards(kind, ndim, names):
    """Under `jax.vmap`, without `jax.set_mesh`. On Auto meshes, also with `spmd_axis_name`."""

    def attempt(name: str, entry: Entry) -> None:
        mesh, used = entry.layout.mesh, str(entry.layout.spec)
        free = next(name for name in mesh.axis_names if name not in used)
        fields = np.stack([entry.field() * scale for scale in np.linspace(0.5, 1, mesh.shape[free])])
        batch = jax.device_put(fields, NamedSharding(mesh, P(free, *entry.sharding().spec)))
        named = jax.jit(jax.vmap(entry.function, spmd_axis_name=free))
        ways = [jax.jit(jax.vmap(entry.function))]
        if kind == "auto" and name in WITHOUT_SPMD_NAME:
            with pytest.raises(ValueError, match=r"^`spmd_axis_name` of `jax.vmap` must be left out .*; got \('"):
                named(batch)
        elif kind == "auto":
            ways.append(named)
        alone = jax.jit(entry.function)
        expected = [alone(jax.device_put(field, entry.sharding())) for field in fields]
        for mapped in ways:
            results = jax.tree.map(np.asarray, mapped(batch))
            for i, one in enumerate(expected):
                found = jax.tree.map(operator.itemgetter(i), results)
                jax.tree.map(lambda found, one: assert_close(found, one, 1e-9), found, one)

    entries = everything(kind, ndim)
    # A solver needs another number of steps for each field of a batch. On Explicit axes, JAX 0.10 has no such loop.
    refused = {"CG"} if kind == "explicit" and jax.__version_info__ < (0, 11) else set()
    assert failures({name: entries[name] for name in names or entries if name not in refused}, attempt) == {}


@pytest.mark.parametrize("name", ["InverseCurl", "Poisson in polynomials.T"])
def test_no_transfer_from_the_host(name):
    entry = everything("explicit", 2)[name]
    x, function = put(entry), jax.jit(entry.function)
    with jax.transfer_guard("disallow"):
        function(x)
    entry.function(x)  # Without `jax.set_mesh`.


@pytest.mark.parametrize("kind", ["explicit", "auto"])
def test_results_for_an_empty_batch(kind):
    fft = dops.FFT2D(make_mesh(SIZES[2], kind), shape=(8, 8), real=True)
    for shape in ((0, 8, 8), (2, 0, 8, 8)):
        spectra = fft(np.zeros(shape))
        assert np.asarray(spectra).shape == spectra.shape == (*shape[:-2], *fft.out_layout.blocks.shape)
        assert fft.out_layout.gather(jax.jit(fft)(np.zeros(shape))).shape == (*shape[:-1], 5)
