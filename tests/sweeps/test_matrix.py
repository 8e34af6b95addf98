"""Tests of every public operator, equation and layer in every kind of program.

A kind of program is a combination of a kind of mesh (Auto or Explicit axes, or both) and of a context. The context says
whether the program runs inside of a `jax.shard_map` over the batch axis, and whether there is an ambient mesh. In a
faulty program, the type of an array does not fit the type of another array, or does not fit the context. JAX finds
these faults when it lowers a program. So `test_lowers` lowers the value, the gradient and the transpose, and compiles
nothing.

By default, `test_lowers` lowers each operator once, and all operators together in all combinations. The sweep lowers
each a second time, so that it is once inside of the `shard_map` and once outside, on two kinds of mesh.
`DECOMPOPS_FULL_MATRIX=1 pytest tests/sweeps/test_matrix.py` tests all operators in all combinations, in about three
minutes.

`test_values` compiles and runs a few operators inside a `shard_map` on each kind of mesh, and compares the results with
NumPy.
"""

import contextlib
import functools
import itertools
import os

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import nn, pde, spectral
from jax.sharding import NamedSharding, PartitionSpec as P

from helpers import assert_close, extended, make_mesh, random_field, thinned


A, E = "auto", "explicit"
KINDS = {"auto": (A, A, A), "explicit": (E, E, E), "explicit batch": (E, A, A), "explicit grid": (A, E, E)}
GRID, PADDED = (4, 4, 4), (3, 4, 5)
KEY = jax.random.key(0)


def difference(h):
    return h[..., 2:, 1:-1, :] - 2 * h[..., 1:-1, 2:, :]


def spectral_operators(fft):
    return {
        "Curl": spectral.Curl(fft),
        "Dealias": spectral.Dealias(fft),
        "Derivative": spectral.Derivative(fft, (1, 2, 0)),
        "Divergence": spectral.Divergence(fft),
        "GaussianFilter": spectral.GaussianFilter(fft, 0.1),
        "Gradient": spectral.Gradient(fft),
        "Helmholtz": spectral.Helmholtz(fft, 2.0),
        "InverseCurl": spectral.InverseCurl(fft),
        "InverseDivergence": spectral.InverseDivergence(fft),
        "IsotropicFilter": spectral.IsotropicFilter(fft, lambda k: 1 / (1 + k)),
        "Laplacian": spectral.Laplacian(fft),
        "LerayProjection": spectral.LerayProjection(fft),
        "Poisson": spectral.Poisson(fft),
        "SpectralOperator": spectral.SpectralOperator(fft, lambda kx, ky, kz: 1 + kx**2 + ky**2),
    }


def times(factors, u):
    return jax.lax.broadcast_to_rank(factors, u.ndim) * u


def rolled_out(solver, u):
    fft = solver.equation.transform
    return fft.inverse(solver.rollout(fft(u), 2)[0])


def other_functions(fft):
    """Return equations and other functions, which have no transpose because they are not operators."""
    field = spectral.GaussianRandomField(fft, lambda k: 1 / k)
    equations = {
        "Advection": pde.Advection(fft, (1.0, 2.0, 3.0)),
        "Burgers": pde.Burgers(fft, 0.1),
        "Diffusion": pde.Diffusion(fft, 0.1),
        "KuramotoSivashinsky": pde.KuramotoSivashinsky(fft.replace(box=dops.Box(20.0))),
        "NavierStokes": pde.NavierStokes(fft, 0.1),
    }
    return {
        "GaussianRandomField": lambda u: times(field(KEY), u),
        "bispectrum": lambda u: spectral.bispectrum(fft, u, (0.5, 1.2)).bispectrum,
        "correlation_function": lambda u: spectral.correlation_function(fft, u).correlation,
        "mean_square": lambda u: spectral.mean_square(fft, fft(u)),
        "power_multipoles": lambda u: spectral.power_multipoles(fft, u).power,
        "power_spectrum": lambda u: spectral.power_spectrum(fft, u).power,
        "white_noise": lambda u: times(spectral.white_noise(fft.decomposition, KEY), u),
        "wavenumbers": lambda u: times(sum(fft.wavenumbers(dtype=u.dtype)).astype(complex), fft(u)),
        **{name: lambda u, e=equation: pde.RealSpace(e)(0.0, u) for name, equation in equations.items()},
        "ETDRK": lambda u: rolled_out(pde.ETDRK(equations["Diffusion"], 0.1, 2), u),
        "FNO3D": lambda u: nn.FNO3D(fft, 3, 1, width=2, modes=1, depth=1, key=KEY)(u),
        "HaloConv3D": lambda u: nn.HaloConv3D(fft.decomposition, 3, 1, 3, key=KEY)(u),
        "SpectralConv3D": lambda u: nn.SpectralConv3D(fft, 3, 1, 1, key=KEY)(u),
    }


@functools.cache
def everything(kind):
    mesh = make_mesh((2, 2, 2), KINDS[kind])
    dec = dops.Decomposition(mesh, shape=GRID, pad=True)
    fft, halo = dops.FFT3D(dec, real=True), dops.HaloExchange(dec, 1)
    padded = dops.Decomposition(mesh, shape=PADDED, pad=True)
    return {
        "FFT3D": dops.FFT3D(dec),
        "FFT3D real": fft,
        "FFT3D padded": dops.FFT3D(padded, real=True),
        "HaloExchange": halo,
        "HaloExchange padded": dops.HaloExchange(padded, (2, 1, 0), periodic=False),
        "round trip": fft.inverse @ fft,
        "crop": halo.crop @ halo.update @ halo,
        "Resample": spectral.Resample(fft, (6, 4, 4)),
        "Stencil": dops.Stencil(dec, difference, (1, 1, 0)),
        "Stencil padded": dops.Stencil(padded, difference, (1, 1, 0)),
        "Transpose": dops.Transpose(dec, "z", "x"),
        **spectral_operators(fft),
        **other_functions(fft),
    }


VECTORS = {"Curl", "Divergence", "InverseCurl", "LerayProjection", "Burgers", "NavierStokes"}
CHANNELS = {"FNO3D", "HaloConv3D", "SpectralConv3D"}
# Older versions of JAX cannot lower `jax.lax.axis_index` in one `shard_map` inside another.
OLD = jax.__version_info__ < (0, 10, 2)
AXIS_INDEX = {"HaloExchange padded", "Stencil padded", "GaussianRandomField", "power_spectrum", "white_noise"}
AXIS_INDEX |= {"bispectrum", "correlation_function", "power_multipoles"}


NAMES = list(everything("auto"))
# Each context says whether the program runs inside a `shard_map`, and whether there is an ambient mesh.
CONTEXTS = [(True, True), (False, False), (True, False), (False, True)]


def field_for(name, mesh, lead=2):
    dec = dops.Decomposition(mesh, shape=PADDED if "padded" in name else GRID, pad=True)
    components = (3,) if name in VECTORS | CHANNELS else ()
    dtype = np.complex128 if name == "FFT3D" else np.float64
    x = random_field((lead, *components, *dec.shape), dtype)
    x = np.pad(x, [(0, 0)] * (x.ndim - 3) + [(0, n - m) for n, m in zip(dec.padded_shape(), dec.shape)])
    return jax.device_put(x, NamedSharding(mesh, P("c", *[None] * len(components), "x", "y")))


def loss(operator):
    return lambda x: jnp.sum(jnp.abs(operator(x)) ** 2)


def results(operator):
    """Return a function that computes the value, the gradient and, for an operator, the transpose."""

    def program(x):
        y = operator(x)
        found = [y, jax.grad(loss(operator))(x)]
        return [*found, operator.T(y)] if isinstance(operator, dops.AbstractOperator) else found

    return program


def inside(program, mesh, ambient):
    return jax.shard_map(program, mesh=None if ambient else mesh, in_specs=P("c"), out_specs=P("c"), axis_names={"c"})


def lower(name, kind, mapped, ambient):
    if OLD and mapped and name in AXIS_INDEX:
        return
    mesh = make_mesh((2, 2, 2), KINDS[kind])
    with jax.set_mesh(mesh) if ambient else contextlib.nullcontext():
        operator = everything(kind)[name]
        program = results(operator)
        jax.jit(inside(program, mesh, ambient) if mapped else program).lower(field_for(name, mesh))


@pytest.mark.parametrize(("name", "turn"), thinned(itertools.product(NAMES, (0, 1)), lambda name, turn: turn == 0))
def test_lowers(name, turn):
    i = NAMES.index(name)
    cells = [(list(KINDS)[(i + turn) % 4], CONTEXTS[(i + turn + i // 4) % 4])]
    if "DECOMPOPS_FULL_MATRIX" in os.environ:
        cells = itertools.product(KINDS, CONTEXTS)
    for kind, context in cells:
        lower(name, kind, *context)


def inverse_laplacian(u):
    k = np.fft.fftfreq(4, 1 / 4)
    squared = sum(component**2 for component in np.meshgrid(k, k, k, indexing="ij"))
    squared[0, 0, 0] = np.inf
    return np.fft.ifftn(-np.fft.fftn(u, axes=(1, 2, 3)) / squared, axes=(1, 2, 3)).real


def extend(u):
    return extended(u, (2, 2, 1), ((1, 1),) * 3, (True,) * 3)


def add_back(y):
    """Apply the transpose of `extend`: add the values of all copies of a cell."""
    cell = extend(np.arange(2 * 64).reshape(2, *GRID))
    return np.bincount(cell.ravel(), y.ravel()).reshape(2, *GRID)


# Each entry has an operator and its transpose, computed by NumPy.
EXPECTED = {
    "FFT3D": (lambda u: np.fft.fftn(u, axes=(1, 2, 3)),) * 2,
    "HaloExchange": (extend, add_back),
    "Poisson": (inverse_laplacian,) * 2,
    "Stencil padded": (
        lambda u: np.roll(u, -1, 1) - 2 * np.roll(u, -1, 2),
        lambda u: np.roll(u, 1, 1) - 2 * np.roll(u, 1, 2),
    ),
}


@pytest.mark.parametrize(
    ("kind", "ambient", "turn"),
    thinned(
        [(*one, turn) for one in zip(KINDS, (True, True, False, False)) for turn in (0, 1)],
        lambda kind, ambient, turn: turn == list(KINDS).index(kind) % 2,
    ),
)
def test_values(kind, ambient, turn):
    mesh = make_mesh((2, 2, 2), KINDS[kind])
    true = (slice(None), *map(slice, PADDED))
    names = set(list(EXPECTED)[turn::2]) - (AXIS_INDEX if OLD else set())
    with jax.set_mesh(mesh) if ambient else contextlib.nullcontext():
        fields = {name: field_for(name, mesh) for name in names}
        programs = {name: inside(results(everything(kind)[name]), mesh, ambient) for name in names}
        found = jax.jit(lambda fields: {name: programs[name](fields[name]) for name in fields})(fields)
    for name in names:
        operator, transpose = EXPECTED[name]
        u, (y, gradient, z) = (jax.tree.map(np.asarray, tree) for tree in (fields[name], found[name]))
        if "padded" in name:
            u, y, gradient, z = u[true], y[true], gradient[true], z[true]
        assert_close(y, operator(u))
        assert_close(gradient, 2 * transpose(np.conj(y)))
        assert_close(z, transpose(y))
