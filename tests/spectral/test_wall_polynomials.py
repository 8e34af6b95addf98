"""Tests of equations and derivatives in Chebyshev polynomials, against `numpy.polynomial` and exact solutions."""

import itertools

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import spectral
from decompops.testing import assert_adjoint, assert_transposed
from decompops.tools.hlo import collectives
from numpy.polynomial import chebyshev

from helpers import assert_close, finite_difference, make_mesh, random_field, thinned


FULL, HALF = dops.Fourier(), dops.Fourier(half=True)
WALLS = list(itertools.product(("dirichlet", "neumann"), repeat=2))
NEUMANN, DIRICHLET, MIXED = ("neumann", "neumann"), ("dirichlet", "dirichlet"), ("dirichlet", "neumann")
LENGTHS = (2.0, 5.0, 3.0)


def derivative(coefficients: np.ndarray, order: int, length: float) -> np.ndarray:
    """Differentiate lines of coefficients along the first axis, with respect to x on an axis of this length."""
    found = chebyshev.chebder(coefficients, order, scl=-2 / length) if order else coefficients
    return np.pad(found, [(0, len(coefficients) - len(found)), *[(0, 0)] * (coefficients.ndim - 1)])


def values(coefficients: np.ndarray, s: np.ndarray) -> np.ndarray:
    return np.moveaxis(chebyshev.chebval(1 - 2 * np.asarray(s), coefficients), -1, 0)


def at_wall(coefficients: np.ndarray, wall: int, condition: str, length: float) -> np.ndarray:
    return values(derivative(coefficients, int(condition == "neumann"), length), np.array([wall]))[0]


def dense(f: np.ndarray, added: float, walls, given, length: float) -> np.ndarray:
    """Return the coefficients of the solution u of `added * u - u'' = f`.

    The equation is integrated twice and then solved with a dense matrix. If the equation determines u only up to a
    constant, the mean of u is zero. Then a solution exists only if a certain constant is subtracted from f, and this
    constant is one more unknown.
    """
    n = len(f)
    twice = (length / 2) ** 2 * chebyshev.chebint(np.eye(n), 2)[:n]
    matrix, right = np.eye(n + 1), np.zeros(n + 1)
    matrix[:n, :n] -= added * twice
    right[:n] = -twice @ f
    for row, (wall, value) in enumerate(zip(walls, given)):
        matrix[row, :n] = at_wall(np.eye(n), row, wall, length)
        right[row] = value
    if added == 0 and tuple(walls) == NEUMANN:
        matrix[2:n, n] = -twice[2:, 0]
        ends = values(chebyshev.chebint(np.eye(n)), np.array([0.0, 1.0]))
        matrix[n] = np.append(ends[0] - ends[1], 0)
    return np.linalg.solve(matrix, right)[:n]


def exact(x, y):
    """Return f, ∂f/∂x and ∇²f for a function f that is periodic along y. The walls bound x."""
    wave = np.cos(y)
    return (
        np.sin(6 * x + 1) * wave + np.cosh(x),
        6 * np.cos(6 * x + 1) * wave + np.sinh(x),
        -37 * np.sin(6 * x + 1) * wave + np.cosh(x),
    )


# Each number of polynomials has a bound on the largest error in double precision, relative to the largest value of the
# solution.
BOUNDS = {8: 1.0, 16: 1e-5, 32: 1e-14, 64: 1e-14, 128: 1e-14, 256: 1e-14, 512: 2e-14}


@pytest.mark.parametrize(
    ("n", "dtype"),
    thinned(
        itertools.product(BOUNDS, (np.float64, np.float32)),
        lambda n, dtype: n == 512,
    ),
)
def test_known_solutions(n, dtype):
    """Solutions equal exact solutions for all kinds of walls, with nonzero values and slopes at the walls.

    Rounding errors do not grow with `n`.
    """
    basis, backend = (dops.Chebyshev(2), "native") if dtype == np.float32 else (dops.Chebyshev(1), "xla")
    transform = dops.Transform(
        make_mesh((1,)), shape=(n, 4), box=dops.Box((1.5, 2 * np.pi)), bases=(basis, HALF), backend=backend
    )
    y = 2 * np.pi * np.arange(4) / 4
    u, slope, f = exact(1.5 * basis.points(n)[:, None], y)
    ends = [exact(np.full(1, wall), y) for wall in (0.0, 1.5)]

    @jax.jit
    def everything(u, f):
        found = []
        for walls in WALLS:
            given = [jnp.asarray(end[wall == "neumann"], u.dtype) for wall, end in zip(walls, ends)]
            found.append(spectral.Poisson(transform, walls).solution(f, *given))
            for shift in (30.0, 1e6):
                found.append(spectral.Helmholtz(transform, shift, walls).solution(shift * u - f, *given))
        return found, spectral.Derivative(transform, (1, 0))(u)

    found, derived = jax.tree.map(np.array, everything(u.astype(dtype), f.astype(dtype)))
    weights = basis.weights(n)[:, None] / 4
    found[-3] += np.sum(weights * (u - found[-3])).astype(dtype)  # Neumann walls determine u up to a constant.
    bound = max(BOUNDS[n], 5e-6 if dtype == np.float32 else 0)
    for one in found:
        assert one.dtype == dtype
        assert np.abs(one - u).max() < bound * np.abs(u).max()
    # A derivative multiplies rounding errors at the walls by the square of the number of polynomials.
    assert np.abs(derived - slope).max() < max(10 * BOUNDS[n], n**2 * np.finfo(dtype).eps) * np.abs(slope).max()


@pytest.mark.parametrize(
    ("walls", "basis", "n"),
    thinned(
        [(walls, dops.Chebyshev(kind), n) for walls in WALLS for kind, n in ((1, 10), (2, 10), (1, 3))],
        lambda walls, basis, n: (n == 3 or basis.type == 2) == (walls[0] == walls[1]),
    ),
)
def test_a_dense_matrix_solves_the_same_equations(basis, n, walls):
    """A dense matrix gives the same solutions in one dimension, and in two dimensions inside a `shard_map`.

    The right-hand sides are random fields, so all coefficients are large, including the highest.
    """
    length, given = 3.0, (0.7, -1.2)
    line = dops.Transform(make_mesh((1,)), shape=(n,), box=dops.Box(length), bases=(basis,))
    plane = dops.Transform(make_mesh((2 - n % 2,)), shape=(n, 6), box=dops.Box(length), bases=(basis, dops.Points()))
    f = random_field((n, 6))
    coefficients = np.linalg.solve(values(np.eye(n), basis.points(n)), f)
    helmholtz = spectral.Helmholtz(plane, 2.0, walls)
    spec = helmholtz.in_spec
    local = jax.shard_map(helmholtz.local, mesh=plane.decomposition.mesh, in_specs=spec, out_specs=spec)

    @jax.jit
    def in_one_dimension(f):
        poisson = spectral.Poisson(line, walls)
        helmholtz_line = spectral.Helmholtz(line, 2.0, walls)
        return poisson.solution(f, *given), helmholtz_line.solution(f, *given)

    poisson, screened = in_one_dimension(f[:, 0])
    plain, of_blocks = jax.jit(lambda f: (helmholtz(f), local(f)))(f)
    expected = [dense(one, 2.0, walls, (0.0, 0.0), length) for one in coefficients.T]
    expected = values(np.stack(expected, axis=-1), basis.points(n))
    assert_close(plain, expected, rtol=1e-12)
    assert_close(of_blocks, expected, rtol=1e-12)
    assert_close(screened, values(dense(coefficients[:, 0], 2.0, walls, given, length), basis.points(n)), rtol=1e-12)
    found = values(dense(-coefficients[:, 0], 0.0, walls, given, length), basis.points(n))
    assert_close(poisson, found, rtol=1e-12)


CASES = [
    ((1, 1), "auto", dops.Chebyshev(1), (8, 6, 4), (FULL, HALF), DIRICHLET),
    ((2, 4), "explicit", dops.Chebyshev(1), (9, 6, 7), (FULL, FULL), NEUMANN),
    ((8,), "auto", dops.Chebyshev(2), (8, 9, 5), (HALF, FULL), MIXED),
]


@pytest.mark.parametrize(("sizes", "kind", "basis", "shape", "others", "walls"), CASES)
def test_polynomials_are_recovered(sizes, kind, basis, shape, others, walls):
    """The solutions are the random polynomials from which the right-hand sides and the values at walls are computed.

    The test also checks the transposes and the derivatives.
    """
    mesh, n, shift = make_mesh(sizes, kind), shape[0], 0.7
    backend = "xla" if kind == "explicit" else "native"
    options = {"shape": shape, "box": dops.Box(LENGTHS), "bases": (basis, *others), "pad": True}
    transform = dops.Transform(mesh, **options, backend=backend)
    layout = transform.in_layout
    dtype = np.float64 if HALF in others else np.complex128
    coefficients = np.moveaxis(random_field((2, *shape), dtype), 0, 1)
    field = lambda c: np.moveaxis(values(c, basis.points(n)), 1, 0)
    u, v = field(coefficients), random_field((2, *shape), dtype, seed=1)
    k = [2 * np.pi * np.fft.fftfreq(m, length / m) for m, length in zip(shape[1:], LENGTHS[1:])]
    along = np.fft.ifftn((k[0][:, None] ** 2 + k[1] ** 2) * np.fft.fftn(u, axes=(-2, -1)), axes=(-2, -1))
    image = field(derivative(coefficients, 2, LENGTHS[0])) - (along.real if dtype == np.float64 else along)
    given = [at_wall(coefficients, i, wall, LENGTHS[0]) for i, wall in enumerate(walls)]
    poisson = spectral.Poisson(transform, walls)
    resized = lambda length: transform.replace(box=dops.Box((length, *LENGTHS[1:])))
    helmholtz = lambda shift, length: spectral.Helmholtz(resized(length), shift, walls)
    loss = lambda shift, length, f: jnp.sum(jnp.abs(helmholtz(shift, length).solution(f, *given)) ** 2)

    @jax.jit
    def everything(shift, length, g, f, v):
        fields = poisson.solution(f, *given), helmholtz(shift, length).solution(g, *given), poisson(v)
        return (*fields, poisson.T(v), poisson.H(v)), jax.value_and_grad(loss, (0, 1, 2))(shift, length, g)

    offset = 3.0 if walls == NEUMANN else 0.0  # No solution exists for this mean, so `Poisson` ignores it.
    with jax.set_mesh(mesh):
        g, *rest = map(layout.shard, (shift * u - image, image + offset, v))
        results = fields, (_, (by_shift, by_length, by_field)) = everything(shift, LENGTHS[0], g, *rest)
        value = lambda shift, length, g: everything(shift, length, g, *rest)[1][0]
        one = np.float64(1)
        slopes = (
            finite_difference(lambda s: value(float(s), LENGTHS[0], g), np.float64(shift), one, 1e-4),
            finite_difference(lambda s: value(shift, float(s), g), np.float64(LENGTHS[0]), one, 1e-5),
            finite_difference(lambda g: value(shift, LENGTHS[0], layout.shard(g)), layout.gather(g), v, 1e-4),
        )
        assert fields[0].sharding.is_equivalent_to(g.sharding, 4)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(results))
        found, screened, of_v, transposed, adjoint, by_field = map(layout.gather, (*fields, by_field))
    weights = basis.weights(n)[:, None, None] / (shape[1] * shape[2])
    mean = np.sum(weights * u, axis=(-3, -2, -1), keepdims=True)
    assert_close(found, u - mean if walls == NEUMANN else u, rtol=1e-11)
    assert_close(screened, u, rtol=1e-11)
    assert float(by_shift) == pytest.approx(slopes[0], rel=1e-6)
    assert float(by_length) == pytest.approx(slopes[1], rel=1e-6)
    assert np.sum(by_field * v).real == pytest.approx(slopes[2], rel=1e-6)
    assert_transposed(lambda _: of_v, lambda _: transposed, v, v)
    assert_adjoint(lambda _: of_v, lambda _: adjoint, v, v)


@pytest.mark.xla
@pytest.mark.parametrize("kind", [pytest.param("auto", marks=pytest.mark.sweep), "explicit"])
def test_only_the_transforms_communicate(kind):
    """`Derivative` needs as many exchanges as `Poisson`.

    Given values at the walls are one more field, whose transform needs more exchanges.
    """
    mesh = make_mesh((2, 4), kind)
    transform = dops.Transform(mesh, shape=(9, 6, 7), box=dops.Box(2.0), bases=(dops.Chebyshev(), FULL, HALF), pad=True)
    operator = spectral.Poisson(transform, NEUMANN)
    x = transform.in_layout.shard(random_field((9, 6, 7)))
    with jax.set_mesh(mesh):
        solve, derive, both = (
            [one.kind for one in collectives(jax.jit(function).lower(x).compile().as_text())]
            for function in (operator, spectral.Derivative(transform, (2, 1, 0)), lambda x: operator.solution(x, 1.0))
        )
    assert solve == derive == ["all-to-all"] * 4
    assert both == ["all-to-all"] * 6


def test_the_part_without_solution_and_derivatives_at_zero():
    """With a traced shift of zero, a solution between Neumann walls has a zero mean, and no NaN in its padding."""
    transform = dops.Transform(
        make_mesh((2, 4)), shape=(9, 6, 7), box=dops.Box(2.0), bases=(dops.Chebyshev(2), FULL, HALF), pad=True
    )
    f, v = random_field((2, 9, 6, 7)), random_field((2, 9, 6, 7), seed=1)
    put, gather = transform.in_layout.shard, transform.in_layout.gather
    solve = lambda shift, f: spectral.Helmholtz(transform, shift, "neumann")(f)
    loss = lambda f, shift=0.0: jnp.sum(solve(jnp.asarray(shift), f) ** 2)

    @jax.jit
    def everything(shift, f):
        u = solve(shift, f)
        return u, transform.volume_mean(u), spectral.Poisson(transform, "neumann")(f), jax.grad(loss)(f)

    jitted = jax.jit(loss)
    u, mean, other, gradient = everything(0.0, put(f))
    assert np.isfinite(u).all()
    assert np.isfinite(gradient).all()
    assert_close(gather(u), -gather(other))
    assert np.abs(mean).max() < 1e-15
    expected = finite_difference(lambda f: jitted(put(f)), f, v, 1e-3)
    assert np.sum(gather(gradient) * v) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("basis", [dops.Chebyshev(1), dops.Chebyshev(2)], ids=repr)
def test_transforms_that_keep_some_modes(basis):
    """A transform that keeps n modes gives the same solution as a grid of n points.

    The right-hand side has only the kept modes.
    """
    fine = dops.Transform(make_mesh((2,)), shape=(12, 12), box=dops.Box(2 * np.pi), bases=(basis, HALF))
    fine = spectral.dealiased(fine)
    kept = fine.modes[0]
    assert kept < 12
    c = np.zeros((12, 12))
    c[:kept] = random_field((kept, 1)) * np.cos(2 * np.pi * np.arange(12) / 12)
    f, s = values(c, basis.points(12)), basis.points(12)
    operator = spectral.Helmholtz(fine, 0.5, MIXED)
    derive = spectral.Derivative(fine, (3, 1))
    found, derived = jax.jit(lambda f: (operator.solution(f, 0.0, 2.0), derive(f)))(f)
    wave = np.cos(2 * np.pi * np.arange(12) / 12)
    across = dense(c[:kept, 0], 1.5, MIXED, (0.0, 0.0), 2 * np.pi)
    constant = dense(np.zeros(kept), 0.5, MIXED, (0.0, 2.0), 2 * np.pi)
    assert_close(found, values(across, s)[:, None] * wave + values(constant, s)[:, None], rtol=1e-12)
    slope = -np.sin(2 * np.pi * np.arange(12) / 12)
    assert_close(derived, values(derivative(c[:, 0], 3, 2 * np.pi), s)[:, None] * slope, rtol=1e-11)


@pytest.mark.parametrize("orders", [(0, 0, 0), pytest.param((1, 1, 0), marks=pytest.mark.sweep), (2, 0, 1), (3, 2, 1)])
def test_derivatives(orders):
    """Check derivatives of any order and their transposes, on a grid with sines along another axis."""
    shape, basis = (9, 6, 7), dops.Chebyshev(1)
    bases = (basis, dops.Sine(2), FULL)
    transform = dops.Transform(
        make_mesh((2, 4)), shape=shape, box=dops.Box((2.0, np.pi, 2 * np.pi)), bases=bases, pad=True
    )
    operator = spectral.Derivative(transform, orders)
    y, z = np.pi * (np.arange(6) + 0.5) / 6, 2 * np.pi * np.arange(7) / 7
    c, v = random_field((9,)), random_field(shape, np.complex128)
    x = lambda order: values(derivative(c, order, 2.0), basis.points(9))
    sine = lambda order: 2**order * np.sin(2 * y + order * np.pi / 2)
    wave = lambda order: (3j) ** order * np.exp(3j * z)
    field = lambda a, b, c: np.einsum("x,y,z->xyz", x(a), sine(b), wave(c))
    put, gather = transform.in_layout.shard, transform.in_layout.gather
    found, of_v, transposed = jax.jit(lambda u, v: (operator(u), operator(v), operator.T(v)))(
        put(field(0, 0, 0)), put(v)
    )
    assert_close(gather(found), field(*orders), rtol=1e-11)
    assert_transposed(lambda _: gather(of_v), lambda _: gather(transposed), v, v)


def test_vector_calculus():
    """Check the operators of vector calculus and their transposes, for waves times random polynomials."""
    shape = (9, 6, 7)
    transform = dops.Transform(
        make_mesh((2, 4)),
        shape=shape,
        box=dops.Box((2.0, 2 * np.pi, 2 * np.pi)),
        bases=(dops.Chebyshev(2), FULL, FULL),
        pad=True,
    )
    y, z = (2 * np.pi * np.arange(n) / n for n in shape[1:])
    coefficients, s = random_field((9, 3)), transform.bases[0].points(9)
    wave = np.exp(2j * y)[:, None] * np.exp(3j * z)
    p, slope, bend = (
        np.moveaxis(values(derivative(coefficients, m, 2.0), s), -1, 0)[..., None, None] * wave for m in range(3)
    )
    u, v, w = zip(slope, 2j * p, 3j * p)  # Each result has the derivatives of one component along x, y and z.
    expected = {
        spectral.Gradient: (p[0], np.stack(u)),
        spectral.Laplacian: (p[0], bend[0] - 13 * p[0]),
        spectral.Divergence: (p, u[0] + v[1] + w[2]),
        spectral.Curl: (p, np.stack([w[1] - v[2], u[2] - w[0], v[0] - u[1]])),
    }
    operators = [operator(transform) for operator in expected]
    put, gather = transform.in_layout.shard, transform.in_layout.gather
    fields = [put(field) for field, _ in expected.values()]
    cotangents = [random_field(result.shape, np.complex128) for _, result in expected.values()]
    found, transposed = jax.jit(
        lambda fields, cotangents: (
            [operator(field) for operator, field in zip(operators, fields)],
            [operator.T(cotangent) for operator, cotangent in zip(operators, cotangents)],
        )
    )(fields, list(map(put, cotangents)))
    for one, back, cotangent, (field, result) in zip(found, transposed, cotangents, expected.values()):
        assert_close(gather(one), result, rtol=1e-11)
        assert_transposed(lambda _, one=one: gather(one), lambda _, back=back: gather(back), field, cotangent)


def transform_of(package, *bases, shape=None, **options):
    shape = shape or (8,) * len(bases)
    return package.Transform(make_mesh((2, 4)), shape=shape, box=package.Box(), bases=bases, **options)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda d: d.spectral.Poisson(transform_of(d, d.Fourier(), d.Chebyshev(), d.Fourier()), "neumann"),
            "`fft` must have its walls across x, .*; got Chebyshev.* along y. Put the walls across the first",
        ),
        (
            lambda d: d.spectral.Poisson(
                transform_of(d, d.Chebyshev(), d.Fourier(), d.Fourier(), shape=(2, 8, 8)), "neumann"
            ),
            "`fft` must keep at least 3 modes along x; got 2",
        ),
        (
            lambda d: of_shape(d).solution(jnp.ones((8, 8, 8)), jnp.ones((8, 7))),
            r"`first` must be a real number, .* of shape \(8, 8\) .*; got an array float64\[8, 7\]",
        ),
        (lambda d: of_shape(d).solution(jnp.ones((8, 8))), r"`field` must have shape \(\*batch, 8, 8, 8\)"),
        (
            lambda d: d.spectral.Derivative(transform_of(d, d.Fourier(), d.Fourier(), d.Chebyshev()), (0, 0, 1)),
            "`fft` must have bases whose modes each have one wavenumber, .*; got Chebyshev.* along z. `Poisson` and",
        ),
        (
            lambda d: d.spectral.Poisson(transform_of(d, d.Chebyshev(), d.Fourier(), d.Fourier())),
            '`walls` must be "dirichlet" or "neumann" for the basis Chebyshev.* along x, .*; got None',
        ),
    ],
)
def test_bad_input(wrong, message, plain):
    with pytest.raises(ValueError, match=message):
        wrong(plain)


def of_shape(package):
    transform = transform_of(package, package.Chebyshev(), package.Fourier(), package.Fourier())
    return package.spectral.Helmholtz(transform, 1.0, "neumann")
