"""Tests of `Multigrid`: as a stationary iteration, as a preconditioner, and as a matrix."""

import re

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import finite_volume, solve
from jax.sharding import PartitionSpec as P

from helpers import assert_close, make_mesh, random_field


def centres(shape: tuple[int, ...]) -> np.ndarray:
    return np.stack(np.meshgrid(*[(np.arange(n) + 0.5) / n for n in shape], indexing="ij"))


def coefficient(kind: str, shape: tuple[int, ...]) -> np.ndarray:
    x = centres(shape)
    match kind:
        case "smooth":
            return np.exp(np.prod(np.sin(2 * np.pi * x), axis=0))
        case "ball":  # A million times the coefficient outside, with an edge that no coarse grid has.
            return np.where(((x - 0.47) ** 2).sum(0) < 0.3**2, 1e6, 1.0)
        case "blocks":
            bits = np.random.default_rng(0).integers(0, 2, (4,) * len(shape))
            return np.where(bits[tuple(np.minimum((4.3 * x).astype(int), 3))], 1e6, 1.0)
    raise ValueError(kind)


def right_side(dec: dops.Decomposition, *lead: int) -> jax.Array:
    f = random_field((*lead, *dec.shape))
    axes = tuple(range(-dec.ndim, 0))
    return dec.shard(f - f.mean(axes, keepdims=True))


def steps_of(operator, cycle, f, rtol: float = 1e-8) -> int:
    """Return the number of steps of conjugate gradients."""

    @eqx.filter_jit
    def solution(operator, cycle, f):
        found = solve.CG(operator, cycle, rtol=rtol, max_steps=60).solve(f)
        return found, f - operator(found.value)

    found, residual = solution(operator, cycle, f)
    assert found.converged
    assert np.linalg.norm(residual) <= 1.01 * rtol * np.linalg.norm(f)
    return int(found.iterations)


def factor_of(operator, cycle, f) -> float:
    """Return the factor by which a step of the stationary iteration reduces the residual, at last."""

    @eqx.filter_jit
    def step(operator, cycle, r):
        r = r - operator(cycle(r))
        return r, jnp.linalg.norm(r.ravel())

    norms = []
    for _ in range(12):
        f, norm = step(operator, cycle, f)
        norms.append(float(norm))
    return (norms[-1] / norms[-5]) ** 0.25


@pytest.mark.parametrize(
    ("kind", "boundary", "shape"),
    [
        ("smooth", "dirichlet", (16, 16, 16)),
        pytest.param("smooth", "periodic", (32, 32), marks=pytest.mark.sweep),
        ("smooth", "neumann", (17, 13)),
        ("ball", "dirichlet", (16, 16, 16)),
        pytest.param("blocks", "neumann", (32, 32), marks=pytest.mark.sweep),
        ("ball", "periodic", (15, 22)),
    ],
)
def test_convergence(kind, boundary, shape):
    dec = dops.Decomposition(make_mesh((1,)), shape=shape, box=dops.Box(1.0))
    operator = finite_volume.Diffusion(dec, coefficient(kind, shape), boundary=boundary)
    cycle = solve.Multigrid(operator)
    f = right_side(dec)
    assert steps_of(operator, cycle, f) <= (9 if kind == "smooth" else 14)
    if kind == "smooth":
        assert factor_of(operator, cycle, f) < 0.25


def dense(dec: dops.Decomposition, operator) -> np.ndarray:
    """Return the matrix of an operator."""
    size = int(np.prod(dec.shape))
    eye = dec.shard(np.eye(size).reshape(size, *dec.shape))
    return dec.gather(operator(eye)).reshape(size, size)


def spectrum(operator: np.ndarray, inverse: np.ndarray, constants: int) -> np.ndarray:
    """Return the eigenvalues of the product of two matrices, outside of the null space of the first one."""
    np.testing.assert_allclose(inverse, inverse.T, atol=1e-12 * np.abs(inverse).max())
    values, vectors = np.linalg.eigh(operator)
    assert values[constants] > 1e-9 * values[-1]
    assert constants == 0 or values[constants - 1] < 1e-12 * values[-1]
    root = vectors[:, constants:] * np.sqrt(values[constants:])
    return np.linalg.eigvalsh(root.T @ inverse @ root)


def gather_late(monkeypatch, dense: int = 8) -> None:
    """Let small grids stay sharded, as large ones do, and let only grids of at most `dense` cells be the coarsest."""
    for name, cells in {"_WHOLE": 10, "_DENSE": dense}.items():
        monkeypatch.setattr(f"decompops.solve._multigrid.{name}", cells)


@pytest.mark.parametrize(
    ("sizes", "shape", "kind", "backend", "singular"),
    [
        ((2, 4), (8, 8, 4), "auto", "native", True),
        ((2, 2), (7, 5, 4), "explicit", "xla", False),
        pytest.param((8,), (9, 36), "auto", "xla", True, marks=pytest.mark.sweep),
        pytest.param((1,), (5, 6, 9), "auto", "xla", False, marks=pytest.mark.sweep),
        ((1,), (300,), "auto", "xla", True),
    ],
)
def test_matrix(monkeypatch, sizes, shape, kind, backend, singular):
    """As a matrix, a cycle is symmetric and positive, on all devices as on one, for every size."""
    if kind == "explicit" or len(shape) == 2:
        gather_late(monkeypatch)
    boundary = ("periodic", "neumann", "periodic") if singular else ("dirichlet", "periodic", "neumann")
    a = coefficient("smooth", shape)

    def matrix(sizes, kind, backend):
        mesh = make_mesh(sizes, kind)
        dec = dops.Decomposition(mesh, shape=shape, box=dops.Box(1.0), pad=True, backend=backend)
        operator = finite_volume.Diffusion(dec, a, boundary=boundary[: len(shape)])
        cycle, size = solve.Multigrid(operator), np.prod(shape)
        inverse = cycle(dec.shard(np.eye(size).reshape(size, *shape)))
        padding = np.array(inverse)
        padding[:, *map(slice, shape)] = 0
        assert not padding.any()
        return dense(dec, operator), dec.gather(inverse).reshape(size, size)

    own, inverse = matrix(sizes, kind, backend)
    values = spectrum(own, inverse, int(singular))
    assert values[0] > 0.7
    assert values[-1] < 1.3


def test_w_cycle(monkeypatch):
    """A W-cycle is symmetric and positive, and closer to the inverse than a V-cycle where the coefficient jumps."""
    gather_late(monkeypatch, dense=30)
    dec = dops.Decomposition(make_mesh((1,)), shape=(16, 18), box=dops.Box(1.0))
    operator = finite_volume.Diffusion(dec, coefficient("ball", dec.shape), boundary="dirichlet")
    own = dense(dec, operator)
    v, w = (spectrum(own, dense(dec, solve.Multigrid(operator, cycle=cycle)), 0) for cycle in ("V", "W"))
    assert 0.5 < v[0] < w[0] < w[-1] < 1.1


def test_anisotropic_coefficients():
    """The axes of strong coupling are coarsened first: as measured, and as given for traced coefficients."""
    dec = dops.Decomposition(make_mesh((4,)), shape=(16, 21), box=dops.Box(1.0), pad=True)
    a = np.stack([coefficient("smooth", dec.shape), 1000 * coefficient("smooth", dec.shape)])
    operator = finite_volume.Diffusion(dec, a, boundary="dirichlet")
    measured = solve.Multigrid(operator)
    given = jax.jit(lambda operator: solve.Multigrid(operator, anisotropy=np.array([1, 1000])))(operator)
    assert [level.network.decomposition.shape[0] for level in measured.levels] == [16] * len(measured.levels)
    own, inverse = dense(dec, operator), dense(dec, measured)
    assert_close(dense(dec, given), inverse)
    values = spectrum(own, inverse, 0)
    assert 0.7 < values[0] < values[-1] < 1.1


def test_random_coefficients():
    """With a factor of a million between cells at random, coarse corrections are not much too large."""
    dec = dops.Decomposition(make_mesh((1,)), shape=(22, 24), box=dops.Box(1.0))
    bits = np.random.default_rng(0).integers(0, 2, dec.shape)
    operator = finite_volume.Diffusion(dec, np.where(bits, 1e6, 1.0), boundary="dirichlet")
    values = spectrum(dense(dec, operator), dense(dec, solve.Multigrid(operator)), 0)
    assert 0 < values[0] < values[-1] < 5


@pytest.mark.parametrize("boundary", ["dirichlet", "neumann"])
def test_cells_that_nothing_is_connected_to(monkeypatch, boundary):
    """Closed faces cut a hole out of the grid, and a part without walls. Others are open in part."""
    gather_late(monkeypatch)
    dec = dops.Decomposition(make_mesh((4,)), shape=(19, 22), box=dops.Box(1.0), pad=True)
    operator = finite_volume.Diffusion(dec, boundary=boundary)
    part = np.zeros(dec.shape, int)  # 0: outside, 1: a closed ring of fluid, 2: a hole
    distance = np.sqrt(((centres(dec.shape) - 0.48) ** 2).sum(0))
    part[distance < 0.4], part[distance < 0.2] = 1, 2
    faces = []
    for axis, weights in enumerate(operator.network.faces):
        cells = np.pad(part, [(1, 1) if i == axis else (0, 0) for i in range(2)], mode="edge")
        below, above = np.delete(cells, -1, axis), np.delete(cells, 0, axis)
        opened = np.where((below == above) & (below < 2), np.random.default_rng(axis).uniform(0.3, 1, below.shape), 0)
        if axis == 0:  # Both of two blocks hold the face between them. Blocks have five cells, the last one four.
            opened = np.concatenate([np.pad(opened, ((0, 1), (0, 0)))[5 * i : 5 * i + 6] for i in range(4)])
        else:
            opened = np.pad(opened, ((0, 1), (0, 0)))
        faces.append(jax.device_put(opened, weights.sharding) * weights)
    operator = eqx.tree_at(lambda operator: operator.network.faces, operator, tuple(faces))
    cycle = solve.Multigrid(operator)
    own, inverse = dense(dec, operator), dense(dec, cycle)
    hole = np.flatnonzero(part == 2)
    assert not own[hole].any()
    assert not inverse[hole].any()
    constants = len(hole) + 1 + (boundary == "neumann")
    values = spectrum(own, inverse, constants)
    assert 0.1 < values[0] < values[-1] < 1.2


@pytest.mark.parametrize("kind", ["dirichlet", "neumann"])
def test_bodies(kind):
    """Around a body, closed cells stay zero. Cells that almost touch its surface do not slow the cycle down."""
    dec = dops.Decomposition(make_mesh((1,)), shape=(17, 20), box=dops.Box(1.0))
    centre = (np.array((8.5, 10.5)) / dec.shape)[:, None, None]  # The centre of a cell, as is the surface.
    distance = np.sqrt(((centres(dec.shape) - centre) ** 2).sum(0)) - 4.999 / 17
    operator = finite_volume.Diffusion(dec, boundary="neumann", body=finite_volume.Body(distance, kind))
    own, inverse = dense(dec, operator), dense(dec, solve.Multigrid(operator))
    closed = np.flatnonzero(~np.asarray(operator.open_cells))
    assert not own[closed].any()
    assert not inverse[closed].any()
    if kind == "dirichlet":
        assert own.max() > 100 * np.median(np.diag(own))
    is_open = np.asarray(operator.open_cells).ravel()
    own, inverse = own[is_open][:, is_open], inverse[is_open][:, is_open]
    scale = 1 / np.sqrt(np.diag(own))  # Links to the surface differ by a factor of a thousand.
    own, inverse = scale[:, None] * own * scale, inverse / scale[:, None] / scale
    values = spectrum(own, inverse, int(kind == "neumann"))
    assert 0.5 < values[0] < values[-1] < 1.3


def test_smallest_grid():
    """In single precision, jumps by a factor of a million cost no accuracy: NumPy inverts in double precision."""
    dec = dops.Decomposition(make_mesh((1,)), shape=(6, 6, 6), box=dops.Box(1.0))
    a = np.where(np.random.default_rng(0).integers(0, 2, dec.shape), 1e6, 1.0)
    operator = finite_volume.Diffusion(dec, a.astype(np.float32), boundary="dirichlet")
    wide = eqx.tree_at(lambda op: op.network.faces, operator, tuple(np.float64(x) for x in operator.network.faces))
    expected = np.linalg.inv(dense(dec, wide))
    found = solve.Multigrid(operator).bottom
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=0)


@pytest.mark.xla
def test_whole_grids_on_every_device(monkeypatch):
    """Grids that are sharded down to one cell for each device, transforms, and blocks inside a `shard_map`."""
    gather_late(monkeypatch)
    mesh = make_mesh((4,))
    dec = dops.Decomposition(mesh, shape=(6, 7), box=dops.Box(1.0), pad=True, backend="xla")
    operator = finite_volume.Diffusion(dec, coefficient("smooth", dec.shape), boundary="dirichlet")
    cycle = eqx.filter_jit(lambda operator: solve.Multigrid(operator, cycle="W"))(operator)
    assert len(cycle.levels) == 2
    f = right_side(dec, 2)
    program = jax.jit(lambda f: cycle(f)).lower(f).compile()
    expected = dec.gather(program(f))
    one = dops.Decomposition(make_mesh((1,)), shape=dec.shape, box=dops.Box(1.0))
    single = finite_volume.Diffusion(one, coefficient("smooth", dec.shape), boundary="dirichlet")
    residual = dec.gather(f) - np.asarray(single(expected))
    assert np.linalg.norm(residual) < 0.35 * np.linalg.norm(f)
    assert_close(dec.gather(jax.jit(jax.vmap(lambda f: cycle(f)))(f)), expected)
    spec = P(None, *dec.spec())
    mapped = jax.shard_map(
        lambda cycle, block: cycle.local(block), mesh=mesh, in_specs=(cycle.specs, spec), out_specs=spec
    )
    assert_close(dec.gather(jax.jit(mapped)(cycle, f)), expected)
    gathered = re.findall(r"f64\[([0-9,]+)\]\S* all-gather\(", program.as_text())
    assert gathered
    assert max(np.prod(np.fromstring(shape, sep=",")) for shape in gathered) <= 2 * 16  # Only coarse grids.


def test_xla_shards_no_grid_that_is_whole(capfd):
    """On Auto meshes with an axis beside those of the grid, XLA sharded small grids, and warned of its own choice."""
    dec = dops.Decomposition(make_mesh((2, 2, 2)), shape=(8, 4, 4), axes=("x", "y"))
    build = lambda u: solve.Multigrid(finite_volume.Diffusion(dec, 1 + u**2, boundary="dirichlet"))(u)
    u = dec.shard(random_field(dec.shape))
    assert np.isfinite(dec.gather(jax.jit(build)(u))).all()
    assert "rematerialization" not in capfd.readouterr().err


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_one_cycle_for_each_coefficient_of_a_batch(kind):
    """`jax.vmap` builds cycles for coefficients that are sharded over a mesh axis. NumPy inverts the small matrices."""
    types = (getattr(jax.sharding.AxisType, kind),) * 2
    mesh = jax.make_mesh((2, 2), ("data", "x"), types, devices=jax.devices()[:4])
    dec = dops.Decomposition(mesh, shape=(9, 12), axes="x", box=dops.Box(1.0), pad=True)
    a = np.stack([coefficient(name, dec.shape) for name in ("smooth", "ball", "blocks", "smooth")]) + 1
    f = right_side(dec, len(a))
    sharding = jax.sharding.NamedSharding(mesh, P("data", *dec.spec()))
    given = [jax.device_put(x, sharding) for x in (dec.shard(a), f)]

    def solution(a, f):
        cycle = solve.Multigrid(finite_volume.Diffusion(dec, a, boundary=(("neumann", "dirichlet"), "periodic")))
        return cycle(f), cycle.bottom

    found, inverses = jax.jit(jax.vmap(solution))(*given)
    one = dops.Decomposition(make_mesh((1,)), shape=dec.shape, box=dops.Box(1.0))
    for number, inverse in enumerate(np.asarray(inverses)):
        operator = finite_volume.Diffusion(one, a[number], boundary=(("neumann", "dirichlet"), "periodic"))
        eye = np.eye(108).reshape(108, *dec.shape)
        matrix = np.asarray(operator(eye)).reshape(108, 108)
        np.testing.assert_allclose(inverse @ matrix, np.eye(108), atol=1e-7)
        expected = np.linalg.solve(matrix, dec.gather(f)[number].ravel()).reshape(dec.shape)
        assert_close(dec.gather(found)[number], expected, rtol=1e-8)


def test_stretched_cells_and_tensors():
    """Cells of aspect ratio 8 and clustered cells, and a preconditioner for a tensor, in single precision."""
    shape = (24, 32)
    dec = dops.Decomposition(make_mesh((1,)), shape=shape, box=dops.Box((1.0, 1.0 / 6)))
    flat = finite_volume.Diffusion(dec, coefficient("smooth", shape), boundary="dirichlet")
    assert steps_of(flat, solve.Multigrid(flat), right_side(dec)) <= 10
    cells = (dops.Cells.clustered(24, 1.5), None)
    tensor = np.array([[1.0, 0.4], [0.4, 1.0]])[:, :, None, None] * coefficient("smooth", shape)
    square = dops.Decomposition(dec, box=dops.Box(1.0))
    operator = finite_volume.Diffusion(square, tensor.astype(np.float32), boundary="dirichlet", cells=cells)
    f = right_side(square).astype(np.float32)
    cycle = solve.Multigrid(operator)
    assert cycle(f).dtype == np.float32
    assert steps_of(operator, cycle, f, rtol=1e-4) <= 25


def test_bad_coefficients(plain):
    """NaN in a coefficient gives NaN, and not a hang. Other arguments are refused."""
    dec = dops.Decomposition(make_mesh((1,)), shape=(8, 40))
    a = coefficient("smooth", dec.shape)
    a[3, 3] = np.nan
    cycle = solve.Multigrid(finite_volume.Diffusion(dec, a, boundary="dirichlet"))
    assert np.isnan(np.asarray(cycle(np.ones(dec.shape)))).any()
    grid = plain.Decomposition(make_mesh((1,)), shape=(8, 8))
    with pytest.raises(TypeError, match=r"`operator` must be a `finite_volume.Diffusion`; got Roll"):
        plain.solve.Multigrid(plain.Roll(grid, (1, 0)))
    with pytest.raises(TypeError, match="`operator` must have real coefficients"):
        plain.solve.Multigrid(plain.finite_volume.Diffusion(grid, 1j))
    with pytest.raises(TypeError, match="`operator` must have real coefficients"):
        plain.solve.Multigrid(plain.finite_volume.Diffusion(grid, 1.0, 1j))
    with pytest.raises(ValueError, match=r"`cycle` must be one of \('V', 'W'\); got 'F'"):
        plain.solve.Multigrid(plain.finite_volume.Diffusion(grid), cycle="F")
    for bad in ((1, 2, 3), (1, 0), 2.0, np.ones(3), (1, 1j), "12"):
        with pytest.raises(ValueError, match="`anisotropy` must be 2 positive numbers"):
            plain.solve.Multigrid(plain.finite_volume.Diffusion(grid), anisotropy=bad)
    with pytest.raises(ValueError, match="`degree` must be an integer of at least one"):
        plain.solve.Multigrid(plain.finite_volume.Diffusion(grid), degree=0)
