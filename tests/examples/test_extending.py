"""The package in examples/extending: it imports nothing private, and its additions agree with independent results."""

import ast
import re
import tomllib

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops._core import registry
from decompops.pde import ETDRK
from decompops.testing import assert_adjoint, assert_transposed
from decompops.tools import cli as cli
from decompops.tools.hlo import collectives

import example
from dense import run_matrix
from helpers import assert_close, finite_difference, make_mesh, random_field
from pages import blocks


extras = example.load("decompops_extras", "extending")
FOLDER = example.EXAMPLES / "extending"
PAGES = ("docs/extending_operators.md", "docs/extending_equations.md", "docs/extending_backends.md")
SHAPE = (8, 8, 8)
MESH = make_mesh((2, 2))
DEC = dops.Decomposition(MESH, shape=SHAPE)
SLAB = dops.Decomposition(make_mesh((2,)), shape=SHAPE)
RING, WHOLE = extras.Ring(), extras.Whole()


def test_nothing_private_is_imported():
    for path in FOLDER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [part for alias in node.names for part in alias.name.split(".")]
            else:
                names = [node.attr] if isinstance(node, ast.Attribute) else []
            assert not any(name.startswith("_") for name in names), f"{path}: {names}"
        assert 10 <= len(path.read_text().splitlines()) <= 100 or path.name == "__init__.py", path


def test_the_guide_shows_what_is_tested():
    shown = [block for page in PAGES for block in blocks(page)]
    (tuner,) = [block for block in shown if "class SquareMesh" in block]
    shown.remove(tuner)
    for block in shown:
        name, code = re.fullmatch(r"# decompops_extras/(\w+\.py)\n(.*)", block, re.DOTALL).groups()
        assert code in (FOLDER / "decompops_extras" / name).read_text(), name
    assert len(shown) == 9
    names = {}
    exec(tuner, names)
    chosen = dops.autotune(SHAPE, devices=jax.devices()[:4], dtype=np.float32, backends=[names["SquareMesh"]()])
    assert chosen.sizes == (2, 2)


def test_the_command_line_lists_the_backends(tmp_path, monkeypatch, capsys):
    """The command line lists the backends of the package, as if pip had installed the package.

    The test writes the two files that pip would write.
    """
    with (FOLDER / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    entries = project["entry-points"]["decompops.backends"]
    folder = tmp_path / "decompops_extras-0.1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = [f"{name} = {value}" for name, value in entries.items()]
    (folder / "entry_points.txt").write_text("\n".join(["[decompops.backends]", *lines]))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    assert cli.main(["info"]) == 0
    output = capsys.readouterr().out
    for name in ("ring", "whole"):
        assert any(line.split() == ["backend", name, "available"] for line in output.splitlines())
    assert dops.Decomposition(MESH, shape=(8, 8, 8), backend="ring").backend == RING
    assert dops.Decomposition(MESH, shape=(8, 8, 8), backend="whole").backend == WHOLE


def cas(n: int) -> np.ndarray:
    angle = 2 * np.pi * np.outer(np.arange(n), np.arange(n)) / n
    return np.cos(angle) + np.sin(angle)


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
def test_hartley(norm):
    transform = dops.Transform(DEC, bases=(extras.Hartley(),) * 3, norm=norm)
    u = random_field(SHAPE)
    k = transform(u)
    scale = {"backward": 1.0, "ortho": 8**-1.5, "forward": 8**-3}[norm]
    assert_close(k, scale * np.einsum("ai,bj,ck,ijk->abc", *[cas(8)] * 3, u))
    assert_close(transform.inverse(k), u)
    assert_transposed(transform, transform.T, u, random_field(SHAPE, seed=1))
    with pytest.raises(TypeError, match="`x` must be real for Hartley's transform; got complex128"):
        transform(u + 1j)


def test_a_basis_of_real_numbers_beside_a_fourier_basis():
    """The inverse of `Fourier()` would give the real basis complex numbers, and that of a half spectrum does not."""
    hartley, fourier = extras.Hartley(), dops.Fourier()
    with pytest.raises(ValueError, match=r"`bases` must have one basis with real fields and complex coefficients"):
        dops.Transform(DEC, bases=(hartley, fourier, hartley))
    transform = dops.Transform(DEC, bases=(hartley, dops.Fourier(half=True), fourier))
    u = random_field(SHAPE)
    spectrum = transform.out_layout.gather(transform(u))
    assert_close(spectrum, np.einsum("ai,ijk->ajk", cas(8), np.fft.fftn(u, axes=(1, 2)))[:, :5])
    assert_close(transform.inverse(transform(u)), u)


@pytest.mark.parametrize("order", range(5))
def test_derivatives_of_hartley(order):
    n, hartley = 8, extras.Hartley()
    s = hartley.points(n)
    u = lambda phase: np.sin(2 * np.pi * s + phase) + 0.3 * 3**order * np.cos(6 * np.pi * s + phase)
    coefficients = cas(n) @ (np.sin(2 * np.pi * s) + 0.3 * np.cos(6 * np.pi * s))
    rule = hartley.derivative(n, order)
    factors = rule.factor * hartley.wavenumbers(n, nyquist=order % 2 == 0) ** order
    mapped = run_matrix(rule.runs, n, rule.points) @ (factors * coefficients)
    assert rule.basis == hartley
    assert_close(cas(n) @ mapped / n, (2 * np.pi) ** order * u(order * np.pi / 2))


def test_coefficients_of_hartley_that_are_kept():
    """Test Parseval's theorem for Hartley's basis. Truncation does not change a field that has few modes."""
    hartley, n, kept = extras.Hartley(), 8, 6
    u = lambda s: 1 + np.sin(4 * np.pi * s) + 0.2 * np.cos(4 * np.pi * s)
    assert hartley.stored(n) == n
    coefficients = cas(n) @ u(hartley.points(n))
    short = run_matrix(hartley.truncation(n, kept, nyquist=True), n, kept) @ coefficients
    assert_close(cas(kept) @ short / n, u(hartley.points(kept)))
    energy = np.sum(hartley.multiplicity(n, n) * (coefficients / n) ** 2)
    assert energy == pytest.approx(np.mean(u(np.arange(n) / n) ** 2))


def test_poisson_in_a_channel():
    lengths = (2 * np.pi, np.pi, 0.5)
    poisson = extras.ChannelPoisson(dops.Decomposition(SLAB, box=dops.Box(lengths)))
    x, y = (length * np.arange(8) / 8 for length in lengths[:2])
    z = 0.5 * (np.arange(8) + 0.5) / 8
    k = (1, 4, 6 * np.pi)
    u = np.cos(k[0] * x)[:, None, None] * np.sin(k[1] * y)[:, None] * np.cos(k[2] * z)
    assert_close(poisson(3.0 - np.dot(k, k) * u), u)
    assert_adjoint(poisson, poisson.H, random_field(SHAPE), random_field(SHAPE, seed=1))
    assert_transforms(poisson, random_field(SHAPE))


@pytest.mark.parametrize("axis", ["x", "z"])
def test_ffts_along_one_axis(axis):
    fft = extras.LineFFT(dops.Decomposition(MESH, shape=(5, 6, 7), pad=True), axis)
    u = random_field((5, 6, 7), np.complex128)
    padded = np.pad(u, ((0, 1), (0, 0), (0, 0)), constant_values=3)
    k = fft(padded)
    assert_close(k[:5], np.fft.fft(u, axis="xyz".index(axis)))
    assert not np.any(k[5:])  # Values in the padding of the input do not reach the padding of the result.
    assert_close(fft.inverse(k)[:5], u)


def test_shifts():
    shift = extras.Shift(DEC, 3)
    u, v = random_field(SHAPE), random_field(SHAPE, seed=1)
    assert_close(shift(u), np.roll(u, 3, -1))
    assert_close(shift.inverse(u), np.roll(u, -3, -1))
    assert_transposed(shift, shift.T, u, v)
    assert_transforms(shift, u)
    mapped = jax.shard_map(shift.local, mesh=MESH, in_specs=shift.in_spec, out_specs=shift.out_spec)
    assert_close(mapped(u), np.roll(u, 3, -1))


@pytest.mark.parametrize("backend", [RING, WHOLE])
def test_backends(backend):
    u = random_field(SHAPE, np.complex128)
    fft = dops.FFT3D(MESH, shape=SHAPE, norm="ortho", axis_contiguous=True, backend=backend)
    program = jax.jit(fft).lower(jax.device_put(u, fft.decomposition.sharding())).compile()
    k = program(fft.decomposition.shard(u))
    assert_close(k, np.fft.fftn(u, norm="ortho").transpose(1, 2, 0))
    assert_close(fft.inverse(k), u)
    kinds = {c.kind for c in collectives(program.as_text())}
    assert kinds == ({"collective-permute"} if backend == RING else {"all-gather"})
    # `Whole` does not support this transform, so XLA runs it.
    uneven = dops.FFT3D(MESH, shape=(5, 6, 7), pad=True, real=True, backend=backend)
    v = random_field((5, 6, 7))
    assert_close(uneven.out_layout.gather(uneven(v)), np.fft.rfftn(v))


@pytest.mark.parametrize("backend", [RING, WHOLE])
def test_transformations_of_operators_with_these_backends(backend):
    assert_transforms(dops.FFT3D(DEC, backend=backend), random_field(SHAPE, np.complex128))


def test_potential():
    fft = dops.FFT3D(SLAB, real=True)
    x = np.arange(8) * 2 * np.pi / 8
    p = np.sin(x)[:, None, None] * np.cos(2 * x)[:, None] * np.cos(x)
    curl_free = [
        np.cos(x)[:, None, None] * np.cos(2 * x)[:, None] * np.cos(x),
        -2 * np.sin(x)[:, None, None] * np.sin(2 * x)[:, None] * np.cos(x),
        -np.sin(x)[:, None, None] * np.cos(2 * x)[:, None] * np.sin(x),
    ]
    rotation = np.stack([np.cos(x) * np.ones(SHAPE), np.zeros(SHAPE), np.ones(SHAPE)])  # This field has no divergence.
    potential = extras.Potential(fft)
    assert_close(potential(curl_free + rotation), p)
    assert_transforms(potential, random_field((3, *SHAPE)))
    with pytest.raises(ValueError, match=r"`x` must be a vector field of shape \(\*batch, 3, nx, ny, nz\)"):
        potential(p)


def test_fisher():
    """A uniform population follows the logistic function. A wave changes at the rate of growth minus diffusion."""
    fft = dops.FFT3D(SLAB, real=True)
    fisher = extras.Fisher(fft, diffusivity=0.1, growth=2.0)
    forward, back = fisher.transform, fisher.transform.inverse
    step, state = jax.jit(ETDRK(fisher, 0.05).step), forward(np.full(SHAPE, 0.1))
    for i in range(20):
        state = step(0.05 * i, state)
    grown = 0.1 * np.exp(2.0) / (1 + 0.1 * (np.exp(2.0) - 1))
    assert_close(back(state), np.full(SHAPE, grown), rtol=1e-6)
    x = np.arange(8) * 2 * np.pi / 8
    wave = np.cos(x)[:, None, None] * np.cos(2 * x) * np.ones(SHAPE)
    u = 0.5 + 0.1 * wave
    waves = (1 + np.cos(2 * x)[:, None, None]) / 4  # `wave**2` without modes above n / 3.
    growth = 2 * (u - 0.25 - 0.1 * wave - 0.01 * waves)
    assert_close(back(fisher(0.0, forward(u))), -0.1 * 5 * 0.1 * wave + growth)
    with pytest.raises(ValueError, match="`growth` must be a finite number of at least 0; got -1"):
        extras.Fisher(fft, 0.1, -1.0)


def test_steepest_descent():
    """Solutions and derivatives are those of the dense matrix, for each field of a batch."""
    operator = dops.finite_volume.Diffusion(dops.Decomposition(DEC, box=dops.Box(8.0)), c=2.0)
    matrix = np.asarray(operator(np.eye(512).reshape(512, *SHAPE))).reshape(512, 512)
    u, v = random_field((3, *SHAPE), np.complex128), random_field((3, *SHAPE), np.complex128, seed=1)
    u[1] = 1  # One step solves this system.
    u[2] = 0
    dense = lambda u: np.linalg.solve(matrix, u.reshape(-1, 512).T).T.reshape(u.shape)
    solver = extras.SteepestDescent(operator, dops.Multiply(DEC, np.full(SHAPE, 0.1)), rtol=1e-11)
    solution = solver.solve(u)
    assert solution.iterations[0] > 10
    assert solution.iterations[1:].tolist() == [1, 0]
    assert_close(solution.value, dense(u))
    _, tangent = jax.jvp(jax.jit(lambda u: solver(u)), (jnp.asarray(u),), (jnp.asarray(v),))
    assert_close(tangent, dense(v))
    with pytest.raises(dops.solve.NotConverged, match="`operator` and `preconditioner` must be symmetric and definite"):
        extras.SteepestDescent(dops.Multiply(DEC, np.zeros(SHAPE)))(u.real)


def assert_transforms(operator, u: np.ndarray) -> None:
    """Compare `jax.jvp` with finite differences, `jax.grad` with `jax.jvp`, and `jax.vmap` with single calls."""
    v = np.random.default_rng(5).standard_normal(u.shape).astype(u.dtype)
    loss = jax.jit(lambda x: jnp.sum(jnp.sin(operator(x).real)))

    @jax.jit
    def transformed(x, v):
        return jax.jvp(loss, (x,), (v,)), jax.grad(loss)(x), jax.vmap(operator)(jnp.stack([x, v])), operator(x)

    (_, slope), gradient, batch, result = transformed(u, v)
    assert float(slope) == pytest.approx(finite_difference(loss, u, v, 1e-6), rel=1e-5, abs=1e-6)
    assert float(jnp.sum((gradient * v).real)) == pytest.approx(float(slope), rel=1e-9, abs=1e-9)
    assert_close(batch[0], result)
