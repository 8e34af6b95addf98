"""Tests of `Diffusion`: its matrix, its derivatives, and the errors of solutions."""

import itertools

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import finite_volume, solve
from jax.sharding import NamedSharding, PartitionSpec as P

from helpers import assert_close, finite_difference, make_mesh, random_field, thinned
from volumes import diffusion_matrix


LENGTHS = (1.0, 1.5, 2.0)
GRIDS = {
    "pencils": ((2, 4), (4, 4, 3), "auto"),
    "uneven pencils": ((2, 2), (5, 3, 4), "explicit"),
    "one cell per device": ((2, 4), (2, 4, 6), "auto"),
    "fewer cells than devices": ((4, 2), (3, 5, 2), "explicit"),
    "uneven slabs": ((8,), (9, 4), "auto"),
    "one device": ((1,), (6, 5, 4), "auto"),
    "one axis": ((1,), (7,), "auto"),
}
BOUNDARIES = {
    "periodic": ["periodic"] * 3,
    "dirichlet": [("dirichlet", "dirichlet")] * 3,
    "neumann": [("neumann", "neumann")] * 3,
    "mixed": [("dirichlet", "neumann"), "periodic", (2.5, "dirichlet")],
}


def grid_of(name: str) -> dops.Decomposition:
    sizes, shape, kind = GRIDS[name]
    return dops.Decomposition(make_mesh(sizes, kind), shape=shape, box=dops.Box(LENGTHS[: len(shape)]), pad=True)


def conditions(boundary: list) -> list:
    robin = lambda one: finite_volume.Robin(one) if isinstance(one, float) else one
    return [entry if entry == "periodic" else tuple(map(robin, entry)) for entry in boundary]


def coefficient(kind: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    rng, ndim = np.random.default_rng(seed), len(shape)
    if kind == "tensor":
        factor = rng.normal(size=(ndim, ndim, *shape))
        return np.einsum("ik...,jk...->ij...", factor, factor) + 0.1 * np.eye(ndim).reshape(ndim, ndim, *[1] * ndim)
    return rng.uniform(0.1, 2, shape if kind == "scalar" else (ndim, *shape))


def matrix_of(operator: dops.AbstractOperator, dtype=np.float64) -> np.ndarray:
    dec = operator.decomposition
    size = np.prod(dec.shape)
    result = operator(dec.shard(np.eye(size, dtype=dtype).reshape(size, *dec.shape)))
    padding = np.array(result)
    padding[:, *map(slice, dec.shape)] = 0
    assert not padding.any()
    return dec.gather(result).reshape(size, size).T


CASES = [
    ("pencils", "periodic", "scalar"),
    pytest.param("pencils", "mixed", "tensor", marks=pytest.mark.sweep),
    ("uneven pencils", "mixed", "diagonal"),
    pytest.param("uneven pencils", "periodic", "tensor", marks=pytest.mark.sweep),
    ("one cell per device", "neumann", "tensor"),
    ("fewer cells than devices", "dirichlet", "diagonal"),
    ("uneven slabs", "mixed", "scalar"),
    ("one device", "mixed", "scalar"),
    ("one axis", "dirichlet", "scalar"),
]


@pytest.mark.parametrize(("grid", "boundary", "kind"), CASES)
def test_matrix(grid, boundary, kind):
    """The matrix is the one that NumPy assembles. It is symmetric, and positive but for constants."""
    dec = grid_of(grid)
    ndim, shape = dec.ndim, dec.shape
    rng, a = np.random.default_rng(1), coefficient(kind, shape)
    widths = [None if axis == 1 else rng.uniform(0.5, 1.5, n) for axis, n in enumerate(shape)]
    given = [None if w is None else jnp.asarray(w) for w in widths]
    sides = BOUNDARIES[boundary][:ndim]
    operator = finite_volume.Diffusion(dec, a, boundary=conditions(sides), cells=given)
    matrix = matrix_of(operator)
    assert_close(matrix, diffusion_matrix(a, 0.0, LENGTHS[:ndim], sides, widths), rtol=1e-13)
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-13 * abs(matrix).max())
    values = np.linalg.eigvalsh(matrix)
    singular = boundary in ("periodic", "neumann")
    assert operator.null_space == ("constants" if singular else None)
    assert values[int(singular)] > 1e-3
    if singular:
        assert abs(values[0]) < 1e-12 * values[-1]
        assert abs(matrix.sum(0)).max() < 1e-12 * values[-1]
    c = rng.uniform(0, 1, shape)
    with_c = finite_volume.Diffusion(dec, a, c, boundary=conditions(sides), cells=given)
    volumes = dec.gather(operator.volumes)
    assert with_c.null_space is None
    assert volumes.mean() == pytest.approx(1)
    assert_close(matrix_of(with_c) - matrix, np.diag((volumes * c).ravel()), rtol=1e-12)


def test_complex_coefficients_and_forms():
    dec = grid_of("uneven pencils")
    a = coefficient("scalar", dec.shape) * np.exp(0.5j)
    operator = finite_volume.Diffusion(dec, a, 1j, boundary=conditions(BOUNDARIES["mixed"]))
    matrix = matrix_of(operator, np.complex128)
    assert_close(matrix, diffusion_matrix(a, 1j, LENGTHS, BOUNDARIES["mixed"]), rtol=1e-13)
    assert_close(matrix_of(operator.T, np.complex128), matrix.T, rtol=1e-13)
    assert_close(matrix_of(operator.H, np.complex128), matrix.conj().T, rtol=1e-13)
    assert operator.T.T is operator
    assert operator.out_structure.kind == "complex"
    assert finite_volume.Diffusion(dec, 1.0, 1j).out_structure.kind == "complex"
    u = dec.shard(random_field((2, *dec.shape), np.float32))
    assert (operator @ operator)(u).dtype == np.complex128


@pytest.mark.parametrize(
    ("kind", "backend"),
    thinned(
        itertools.product(("auto", "explicit"), ("xla", "native")),
        lambda kind, backend: (kind == "auto") == (backend == "xla"),
    ),
)
def test_batches_and_blocks(kind, backend):
    """`jit`, `vmap` and `local` give what NumPy gives, and each application exchanges halos once."""
    mesh = make_mesh((2, 4), kind)
    dec = dops.Decomposition(mesh, shape=(6, 5, 4), box=dops.Box(LENGTHS), pad=True, backend=backend)
    a = coefficient("tensor", dec.shape)
    sides = BOUNDARIES["mixed"]
    operator = finite_volume.Diffusion(dec, jnp.asarray(a), 0.5, boundary=conditions(sides))
    matrix = diffusion_matrix(a, 0.5, LENGTHS, sides)
    u = random_field((2, 3, *dec.shape))
    expected = (u.reshape(6, -1) @ matrix.T).reshape(u.shape)
    field = dec.shard(u)
    assert_close(dec.gather(operator(field)), expected)
    assert_close(dec.gather(jax.jit(jax.vmap(operator))(field)), expected)
    spec = P(None, None, *dec.spec())
    mapped = jax.shard_map(
        lambda operator, block: operator.local(block), mesh=mesh, in_specs=(operator.specs, spec), out_specs=spec
    )
    assert_close(dec.gather(jax.jit(mapped)(operator, field)), expected)
    with pytest.raises(ValueError, match=r"Pass the operator through the `shard_map`"):
        jax.shard_map(operator.local, mesh=mesh, in_specs=spec, out_specs=spec)(field)
    if backend == "xla" and kind == "auto":
        exchange = dops.HaloExchange(dec, 1, periodic=(False, True, False))
        texts = [jax.jit(lambda u, f=f: f(u)).lower(field).compile().as_text() for f in (operator, exchange)]
        permutes = [text.count(" collective-permute(") for text in texts]
        assert permutes[0] == permutes[1] > 0
        assert not any("all-gather" in text for text in texts)


def test_source():
    """A linear function that has the given values at walls solves the equation exactly."""
    dec = grid_of("uneven pencils")
    sides = [("dirichlet", "neumann"), (finite_volume.Robin(2.0), "dirichlet"), ("neumann", finite_volume.Robin(0.5))]
    widths = [np.random.default_rng(i).uniform(0.5, 1.5, n) for i, n in enumerate(dec.shape)]
    operator = finite_volume.Diffusion(dec, 3.0, boundary=sides, cells=list(map(jnp.asarray, widths)))
    faces = [np.cumsum([0, *w]) / w.sum() * length for w, length in zip(widths, LENGTHS)]
    centres = [(f[1:] + f[:-1]) / 2 for f in faces]
    x, y, z = np.meshgrid(*centres, indexing="ij")
    function = lambda x, y, z: 1 + 2 * x - y + 0.5 * z + 0 * (x + y + z)
    at = lambda axis, value: function(*(value if i == axis else np.take(c, 0, axis) for i, c in enumerate((x, y, z))))
    values = (
        (at(0, 0.0), 3.0 * 2),
        (3.0 * 1 + 2.0 * at(1, 0.0), jnp.asarray(at(1, 1.5))),
        (-3.0 * 0.5, 3.0 * 0.5 + 0.5 * at(2, 2.0)),
    )
    u = dec.shard(function(x, y, z))
    assert_close(dec.gather(operator(u)), dec.gather(operator.source(*values)), rtol=1e-12)
    batch = operator.source((np.stack([values[0][0]] * 2), 0.0), None, None)
    assert_close(dec.gather(batch)[1], dec.gather(operator.source((values[0][0], 0), None, None)))


@pytest.mark.parametrize("sizes", [(1,), (3, 2)])
def test_source_for_a_tensor(sizes):
    """The slopes beside a wall see the values there, also across the other walls and in other blocks."""
    errors = []
    for n in (16, 32):
        dec = dops.Decomposition(make_mesh(sizes), shape=(n, n), box=dops.Box(1.0), pad=True)
        points = (np.arange(n) + 0.5) / n
        x, y = np.meshgrid(points, points, indexing="ij")
        one, cross, slope = np.ones((n, n)), 0.9 * np.sin(6 * x + 5 * y), 0.9 * np.cos(6 * x + 5 * y)
        operator = finite_volume.Diffusion(dec, np.array([[one, cross], [cross, one]]), boundary="dirichlet")
        constant = operator(dec.shard(2 * one)) - operator.source((2.0, 2.0), (2.0, 2.0))
        np.testing.assert_allclose(dec.gather(constant), 0, atol=1e-9)

        u = np.exp(x - y)  # ∇·(a ∇u) = u (2 - 2 cross + (5 - 6) slope)
        given = operator.source((np.exp(-points), np.exp(1 - points)), (np.exp(points), np.exp(points - 1)))
        b = dec.shard(-u * (2 - 2 * cross - slope)) + given
        errors.append(np.abs(dec.gather(solve.CG(operator, rtol=1e-10)(b)) - u).max())
    assert errors[0] < 0.01
    assert errors[0] / errors[1] > 3


def error(kind: str, boundary: str, n: int, *, stretched: bool) -> float:
    """Return the greatest error of the solution of a manufactured problem on n x n cells."""
    cells = dops.Cells.clustered(n, 1.2) if stretched else None
    dec = dops.Decomposition(make_mesh((1,)), shape=(n, n), box=dops.Box(1.0))
    sides = {"periodic": "periodic", "robin": finite_volume.Robin(1.5)}.get(boundary, boundary)
    points = cells.points(n) if cells else (np.arange(n) + 0.5) / n
    x, y = np.meshgrid(points, points, indexing="ij")
    k = 2 * np.pi
    wave = jnp.cos if boundary == "neumann" else jnp.sin
    u = lambda x, y: wave(k * x) * wave(k * y) + (0.5 if boundary == "robin" else 0.0)

    def a(x, y):
        own = 1 + 0.3 * jnp.sin(k * x) * jnp.cos(k * y)
        mixed = 0.4 * own * (jnp.sin(k * x / 2) * jnp.sin(k * y / 2)) ** 2
        return jnp.array([[own, mixed], [mixed, 2 * own]]) if kind == "tensor" else own * jnp.eye(2)

    flux = lambda x, y: a(x, y) @ jnp.stack(jax.grad(u, (0, 1))(x, y))
    each = lambda function: jax.vmap(jax.vmap(function))
    divergence = lambda x, y: (
        jax.jvp(lambda x: flux(x, y)[0], (x,), (1.0,))[1] + jax.jvp(lambda y: flux(x, y)[1], (y,), (1.0,))[1]
    )

    @jax.jit
    def system(points, x, y, units):
        """Return the operator's results for unit vectors, the right-hand side, and the exact solution."""
        f = each(lambda x, y: -divergence(x, y) + u(x, y))(x, y)
        tensor = jnp.moveaxis(each(a)(x, y), (-2, -1), (0, 1))
        given = tensor if kind == "tensor" else tensor[0, 0]
        operator = finite_volume.Diffusion(dec, given, 1.0, boundary=sides, cells=(cells, cells))
        right = operator.volumes * f
        if boundary == "robin":
            g = lambda x, y, axis, sign: sign * flux(x, y)[axis] + 1.5 * u(x, y)
            along = lambda axis, end, sign: jax.vmap(
                lambda t: g(*((end, t) if axis == 0 else (t, end)), axis=axis, sign=sign)
            )(points)
            right += operator.source(*[[along(axis, end, 2 * end - 1) for end in (0.0, 1.0)] for axis in (0, 1)])
        return operator(units), right, u(x, y)

    columns, right, exact = map(np.asarray, system(points, x, y, np.eye(n * n).reshape(n * n, n, n)))
    solution = np.linalg.solve(columns.reshape(n * n, n * n).T, right.ravel()).reshape(n, n)
    return np.abs(solution - exact).max()


@pytest.mark.parametrize(
    ("kind", "boundary", "stretched"),
    [
        pytest.param("scalar", "periodic", False, marks=pytest.mark.sweep),
        pytest.param("scalar", "dirichlet", True, marks=pytest.mark.sweep),
        ("scalar", "neumann", True),
        ("scalar", "robin", True),
        ("tensor", "periodic", False),
        ("tensor", "dirichlet", True),
    ],
)
def test_order_of_convergence(kind, boundary, stretched):
    coarse, fine = (error(kind, boundary, n, stretched=stretched) for n in (16, 32))
    assert np.log2(coarse / fine) > 1.8


def test_jump():
    """With a jump of a by a million at a face, the flux and the solution are exact."""
    n = 16
    dec = dops.Decomposition(make_mesh((1,)), shape=(n,), box=dops.Box(1.0))
    x = (np.arange(n) + 0.5) / n
    a = np.where(x < 0.5, 1.0, 1e6)
    operator = finite_volume.Diffusion(dec, a, boundary="dirichlet")
    right = np.asarray(operator.source((0.0, 1.0)))
    flux = 1 / (0.5 + 0.5e-6)
    expected = np.where(x < 0.5, flux * x, 1 - flux / 1e6 * (1 - x))
    np.testing.assert_allclose(np.linalg.solve(matrix_of(operator), right), expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("kind", "ndim"),
    [("scalar", 2), ("tensor", 2), *(pytest.param(kind, 3, marks=pytest.mark.sweep) for kind in ("scalar", "tensor"))],
)
def test_derivatives(kind, ndim):
    """First and second derivatives by u, a, Robin's coefficient, the box and the widths, on a padded grid."""
    mesh, lengths = make_mesh((2, 2), "explicit"), LENGTHS[:ndim]
    dec = dops.Decomposition(mesh, shape=(5, 3, 4)[:ndim], box=dops.Box(lengths), pad=True)
    direction = {name: random_field((), seed=i) for i, name in enumerate(("robin", "length"))}
    direction |= {"u": random_field(dec.shape), "width": random_field(dec.shape[:1], seed=3)}
    direction["a"] = 0.1 * coefficient(kind, dec.shape, 4)
    start = {"u": random_field(dec.shape, seed=5), "a": coefficient(kind, dec.shape), "robin": 1.0, "length": 2.0}
    start["width"] = np.linspace(1, 2, dec.shape[0])

    def loss(t):
        p = {name: jnp.asarray(value) + t * jnp.asarray(direction[name]) for name, value in start.items()}
        here = dops.Decomposition(dec, box=dops.Box((p["length"], *lengths[1:])))
        sides = [("dirichlet", finite_volume.Robin(p["robin"])), "periodic", ("neumann", "dirichlet")][:ndim]
        cells = (p["width"], None, None)[:ndim]
        operator = finite_volume.Diffusion(here, p["a"], 1.0, boundary=sides, cells=cells)
        source = operator.source(*((1.0, 2.0), None, (0.5, 0.5))[:ndim])
        return jnp.sum(jnp.sin(operator(p["u"])) + source**2)

    def slope_and_loss(t):
        return jax.value_and_grad(loss)(t)[::-1]

    @jax.jit  # One program computes everything, because compiling takes most of the time.
    def derivatives(t):
        if kind == "tensor":
            return *slope_and_loss(t), None
        (slope, value), curvature = jax.value_and_grad(slope_and_loss, has_aux=True)(t)
        return slope, value, curvature

    zero = np.zeros(())
    slope, _, curvature = derivatives(zero)
    assert slope == pytest.approx(finite_difference(lambda t: derivatives(t)[1], zero, np.ones(()), 1e-5), rel=1e-6)
    if kind == "scalar":
        expected = finite_difference(lambda t: derivatives(t)[0], zero, np.ones(()), 1e-5)
        assert curvature == pytest.approx(expected, rel=1e-5)


def test_transforms_of_the_operator():
    """The operator is a PyTree: its arrays are differentiable, and `vmap` maps over several coefficients."""
    dec = grid_of("pencils")
    a = np.stack([coefficient("scalar", dec.shape, seed) for seed in (0, 1)])
    u = jnp.asarray(random_field(dec.shape))
    several = eqx.filter_jit(eqx.filter_vmap(lambda a: finite_volume.Diffusion(dec, a)(u)))(jnp.asarray(a))
    for own, result in zip(a, several):
        expected = diffusion_matrix(own, 0.0, LENGTHS, BOUNDARIES["periodic"]) @ np.ravel(u)
        assert_close(np.ravel(result), expected)
    operator = finite_volume.Diffusion(dec, a[0])
    slopes = eqx.filter_grad(lambda operator: jnp.sum(operator(u) * u))(operator)
    below = (u - jnp.roll(u, 1, 2)) ** 2
    cells = np.asarray(slopes.network.faces[2])
    np.testing.assert_allclose(cells[:, :, 1:-1], below[:, :, 1:], rtol=1e-10)


def test_a_coefficient_that_is_nan():
    """NaN spreads to the neighbours of its cell, and no further."""
    dec = grid_of("pencils")
    a = coefficient("scalar", dec.shape)
    a[1, 2, 0] = np.nan
    result = dec.gather(finite_volume.Diffusion(dec, a)(dec.shard(random_field(dec.shape))))
    assert np.isnan(result).sum() == 7
    assert np.isnan(result[[1, 0, 2, 1, 1, 1, 1], [2, 2, 2, 1, 3, 2, 2], [0, 0, 0, 0, 0, 1, 2]]).all()


def test_bad_arguments(plain):
    dec = plain.Decomposition(make_mesh((2, 4)), shape=(4, 4, 3))
    diffusion, robin = plain.finite_volume.Diffusion, plain.finite_volume.Robin
    with pytest.raises(TypeError, match="`decomposition` must be a `Decomposition`"):
        diffusion(dec.mesh)
    with pytest.raises(ValueError, match=r"`a` must be a number or an array of shape"):
        diffusion(dec, np.ones((2, 4, 4, 3)))
    with pytest.raises(ValueError, match=r"`c` must be a number or an array of shape"):
        diffusion(dec, 1.0, np.ones((4, 4)))
    with pytest.raises(ValueError, match='`boundary` must be "periodic"'):
        diffusion(dec, boundary="noslip")
    with pytest.raises(ValueError, match="For different conditions at two walls"):
        diffusion(dec, boundary=("dirichlet", "neumann"))
    with pytest.raises(ValueError, match="`cells` must be None, `Cells`, or an array of 4 widths along x"):
        diffusion(dec, cells=(np.ones(5), None, None))
    with pytest.raises(ValueError, match=r"or an array of 4 widths along x; got \[1, 1, 1, 1\]"):
        diffusion(dec, cells=([1, 1, 1, 1], None, None))
    for widths in (
        np.array([1.0, 2.0, -1.0, 2.0]),
        np.array([1.0, 0.0, 1.0, 1.0]),
        jnp.array([1.0, jnp.nan, 1.0, 1.0]),
    ):
        with pytest.raises(ValueError, match="`cells` must have positive, finite widths along x; got array"):
            diffusion(dec, cells=(widths, None, None))
    with pytest.raises(ValueError, match="`coefficient` must be a positive"):
        robin(-1.0)
    with pytest.raises(ValueError, match="`values` must be None along a periodic axis"):
        diffusion(dec).source((1.0, 1.0), None, None)
    with pytest.raises(ValueError, match=r"`values` must be numbers or arrays of shape"):
        diffusion(dec, boundary="dirichlet").source((np.ones(7), 1.0), None, None)
    with pytest.raises(TypeError, match="`values` must be an array of numbers; got 'one'"):
        diffusion(dec, boundary="dirichlet").source(("one", 1.0), None, None)


def test_a_missing_value_at_one_wall_is_zero():
    operator = finite_volume.Diffusion(grid_of("pencils"), 2.0, boundary="dirichlet")
    assert_close(operator.source((None, 1.5), None, None), np.asarray(operator.source((0.0, 1.5), None, None)))


def test_placement_of_coefficients():
    """Conductances are sharded like fields."""
    dec = grid_of("pencils")
    operator = finite_volume.Diffusion(dec, coefficient("tensor", dec.shape))
    for weights in (*operator.network.faces, *operator.cross):
        assert weights.sharding.is_equivalent_to(NamedSharding(dec.mesh, dec.spec()), 3)
