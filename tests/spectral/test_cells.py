"""Tests of finite-volume equations between walls, against NumPy's matrices, SciPy and exact solutions."""

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from decompops import spectral
from decompops.testing import assert_adjoint, assert_transposed
from decompops.tools.hlo import collectives

from helpers import assert_close, finite_difference, make_mesh, random_field


FULL, HALF, POINTS = dops.Fourier(), dops.Fourier(half=True), dops.Points()
NEUMANN, DIRICHLET, MIXED = ("neumann", "neumann"), ("dirichlet", "dirichlet"), ("dirichlet", "neumann")


def matrix(cells: dops.Cells, walls, length: float) -> np.ndarray:
    """Return the finite-volume Laplacian: the difference of the fluxes through a cell's faces, divided by its width."""
    faces = length * np.array(cells.faces)
    n, centres = len(faces) - 1, (faces[1:] + faces[:-1]) / 2
    flux = np.zeros((n + 1, n))
    for face in range(1, n):
        distance = centres[face] - centres[face - 1]
        flux[face, face - 1 : face + 1] = -1 / distance, 1 / distance
    if walls[0] == "dirichlet":
        flux[0, 0] = 1 / centres[0]
    if walls[1] == "dirichlet":
        flux[n, n - 1] = -1 / (length - centres[-1])
    return np.diff(flux, axis=0) / np.diff(faces)[:, None]


def second_derivative(u: np.ndarray, axis: int, length: float) -> np.ndarray:
    k = 2 * np.pi * np.fft.fftfreq(u.shape[axis], length / u.shape[axis])
    line = (k**2).reshape(-1, *[1] * (-axis - 1))
    return np.fft.ifft(-line * np.fft.fft(u, axis=axis), axis=axis)


def laplacian(u: np.ndarray, cells: dops.Cells, walls, lengths) -> np.ndarray:
    """Return the discrete Laplacian of a field that is periodic along y and z."""
    across = np.moveaxis(np.tensordot(matrix(cells, walls, lengths[0]), u, (1, -3)), 0, -3)
    along = second_derivative(u, -2, lengths[1]) + second_derivative(u, -1, lengths[2])
    return across + (along if np.iscomplexobj(u) else along.real)


LENGTHS = (2.0, 5.0, 3.0)
CASES = [
    ((1, 1), "auto", (8, 6, 4), (FULL, HALF), DIRICHLET),
    ((2, 4), "explicit", (9, 6, 7), (FULL, FULL), NEUMANN),
    ((8,), "auto", (16, 8, 5), (HALF, FULL), MIXED),
]


@pytest.mark.parametrize(("sizes", "kind", "shape", "others", "walls"), CASES)
def test_the_discrete_inverse(sizes, kind, shape, others, walls):
    """`Poisson` and `Helmholtz` invert the discrete Laplacian for a batch of random fields.

    The test also checks the transposes and the derivatives.
    """
    cells = dops.Cells.clustered(shape[0], 1.7)
    mesh, backend = make_mesh(sizes, kind), "xla" if kind == "explicit" else "native"
    options = {"shape": shape, "box": dops.Box(LENGTHS), "bases": (cells, *others), "pad": True}
    transform = dops.Transform(mesh, **options, backend=backend)
    layout = transform.in_layout
    dtype = np.float64 if HALF in others else np.complex128
    u, v = random_field((2, *shape), dtype), random_field((2, *shape), dtype, seed=1)
    image, shift = laplacian(u, cells, walls, LENGTHS), 0.7
    poisson = spectral.Poisson(transform, walls)
    helmholtz = lambda shift: spectral.Helmholtz(transform, shift, walls)
    loss = lambda shift, f: jnp.sum(jnp.abs(helmholtz(shift)(f)) ** 2)

    @jax.jit
    def everything(shift, g, f, v):
        fields = poisson(f), helmholtz(shift)(g), poisson(v), poisson.T(v), poisson.H(v)
        return fields, jax.value_and_grad(loss, (0, 1))(shift, g)

    offset = 3.0 if walls == NEUMANN else 0.0  # No solution exists for this mean, so `Poisson` ignores it.
    with jax.set_mesh(mesh):
        g, *others = map(layout.shard, (shift * u - image, image + offset, v))
        results = fields, (_, (by_shift, by_field)) = everything(shift, g, *others)
        value = lambda shift, g: everything(shift, g, *others)[1][0]
        slopes = (
            finite_difference(lambda s: value(float(s), g), np.float64(shift), np.float64(1), 1e-4),
            finite_difference(lambda g: value(shift, layout.shard(g)), layout.gather(g), v, 1e-4),
        )
        assert fields[0].sharding.is_equivalent_to(g.sharding, 4)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(results))
        found, screened, of_v, transposed, adjoint, by_field = map(layout.gather, (*fields, by_field))
    weights = cells.weights(shape[0])[:, None, None] / (shape[1] * shape[2])
    mean = np.sum(weights * u, axis=(-3, -2, -1), keepdims=True)
    assert_close(found, u - mean if walls == NEUMANN else u, rtol=1e-10)
    assert_close(screened, u, rtol=1e-10)
    assert float(by_shift) == pytest.approx(slopes[0], rel=1e-6)
    assert np.sum(by_field * v).real == pytest.approx(slopes[1], rel=1e-6)
    assert_transposed(lambda _: of_v, lambda _: transposed, v, v)
    assert_adjoint(lambda _: of_v, lambda _: adjoint, v, v)


@pytest.mark.xla
@pytest.mark.parametrize("kind", [pytest.param("auto", marks=pytest.mark.sweep), "explicit"])
def test_only_the_transforms_communicate(kind):
    cells, mesh = dops.Cells.clustered(9, 1.7), make_mesh((2, 4), kind)
    transform = dops.Transform(mesh, shape=(9, 6, 7), box=dops.Box(LENGTHS), bases=(cells, FULL, HALF), pad=True)
    operator = spectral.Poisson(transform, NEUMANN)
    x = transform.in_layout.shard(random_field((9, 6, 7)))
    with jax.set_mesh(mesh):
        ours, theirs = (
            sorted(one.kind for one in collectives(jax.jit(function).lower(x).compile().as_text()))
            for function in (operator, lambda x: transform.inverse(transform(x)))
        )
    assert ours == theirs == ["all-to-all"] * 4


def modes(basis, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the functions of a basis at its points, one in each column, and their wavenumbers."""
    k = basis.wavenumbers(n)
    return {"dct": np.cos, "dst": np.sin}[basis.kind](np.outer(basis.points(n), k)), k


@pytest.mark.parametrize("series", [(dops.Cosine(1), dops.Sine(3)), (dops.Sine(2), dops.Cosine(4))], ids=repr)
def test_series_along_the_walls(series):
    """`Helmholtz` inverts the discrete equation with cosines and sines along the walls.

    In some series, the end points have other weights than the points between them. The spectrum is not stored in
    natural order.
    """
    shape, cells, shift = (6, 5, 8), dops.Cells([0, 0.1, 0.3, 0.5, 0.8, 0.9, 1]), 2.0
    options = {"shape": shape, "bases": (cells, *series), "box": dops.Box(1.0), "pad": True, "axis_contiguous": True}
    transform = dops.Transform(make_mesh((2, 4)), **options)
    operator = spectral.Helmholtz(transform, shift, MIXED)
    (y, ky), (z, kz) = map(modes, series, shape[1:])
    a, v = random_field(shape), random_field(shape, seed=1)
    image = shift * a - np.tensordot(matrix(cells, MIXED, 1.0), a, (1, 0)) + (ky[:, None] ** 2 + kz**2) * a
    u, f = (np.einsum("xkl,yk,zl->xyz", values, y, z) for values in (a, image))
    layout = transform.in_layout
    everything = jax.jit(lambda f, v: (operator(f), operator.T(v), operator(v)))
    found, transposed, of_v = map(layout.gather, everything(layout.shard(f), layout.shard(v)))
    assert_close(found, u, rtol=1e-10)
    assert np.sum(v * of_v) == pytest.approx(np.sum(v * transposed))
    assert np.sum(f * transposed) == pytest.approx(np.sum(v * found))


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_scipy_solves_the_same_systems(dtype):
    """Solutions equal SciPy's results on grids of one and two axes without a transform, also inside a `shard_map`."""
    cells = dops.Cells.clustered(64, 2.5)
    f = random_field((64, 6), dtype)
    for shape, bases in (((64,), (cells,)), ((64, 6), (cells, POINTS))):
        mesh = make_mesh((1,) if len(shape) == 1 else (2,))
        transform = dops.Transform(mesh, shape=shape, box=dops.Box(3.0), bases=bases)
        own = f[:, 0] if len(shape) == 1 else f
        for operator, walls, shift in (
            (spectral.Poisson(transform, MIXED), MIXED, 0.0),
            (spectral.Helmholtz(transform, 2.0, "neumann"), NEUMANN, 2.0),
        ):
            system = shift * np.eye(64) - matrix(cells, walls, 3.0)
            expected = scipy.sparse.linalg.spsolve(scipy.sparse.csc_array(system), own)
            expected = -expected if shift == 0 else expected
            assert_close(operator(own), expected, rtol=1e-4 if dtype == np.float32 else 1e-11)
            if len(shape) == 2:
                spec = operator.in_spec
                local = jax.shard_map(operator.local, mesh=mesh, in_specs=spec, out_specs=spec)
                assert_close(jax.jit(local)(own), np.asarray(operator(own)))


def exact(x, y):
    """Return f, ∂f/∂x and ∇²f for a function f that is periodic along y. The walls bound x."""
    wave = np.cos(y)
    return np.exp(x) * wave + x**2, np.exp(x) * wave + 2 * x, 2 + 0 * x * y


def errors(n: int) -> list[float]:
    """Return the errors of solutions of Poisson's and Helmholtz' equations for all kinds of walls.

    The values and slopes at the walls are not zero.
    """
    cells = dops.Cells.clustered(n, 2.0)
    transform = dops.Transform(make_mesh((2,)), shape=(n, 8), box=dops.Box((1.5, 2 * np.pi)), bases=(cells, HALF))
    y = 2 * np.pi * np.arange(8) / 8
    u, _, f = exact(1.5 * cells.points(n)[:, None], y)
    ends = [exact(np.full(1, wall), y) for wall in (0.0, 1.5)]

    @jax.jit
    def solutions(u, f):
        found = []
        for walls in (DIRICHLET, NEUMANN, MIXED):
            values = [end[0 if wall == "dirichlet" else 1] for wall, end in zip(walls, ends)]
            poisson = spectral.Poisson(transform, walls)
            helmholtz = spectral.Helmholtz(transform, 3.0, walls)
            found.append(poisson.solution(f, *values))
            found.append(helmholtz.solution(3.0 * u - f, *values))
        return found

    found = list(map(np.asarray, solutions(u, f)))
    mean = lambda u: np.sum(cells.weights(n)[:, None] * u) / 8
    found[2] = found[2] + mean(u - found[2])  # With Neumann walls, Poisson's equation determines u up to a constant.
    return [np.sqrt(mean((v - u) ** 2)) for v in found]


def test_errors_are_of_second_order():
    for coarse, fine in zip(errors(32), errors(64)):
        assert 1.9 < np.log2(coarse / fine) < 2.1
        assert fine < 2e-3


@pytest.mark.xla
@pytest.mark.parametrize("kind", ["auto", pytest.param("explicit", marks=pytest.mark.sweep)])
def test_values_at_the_walls_of_a_padded_field(kind):
    cells, shape = dops.Cells.clustered(7, 1.5), (7, 6, 5)
    mesh = make_mesh((2, 4), kind)
    transform = dops.Transform(mesh, shape=shape, box=dops.Box(2.0), bases=(cells, FULL, HALF), pad=True)
    operator = spectral.Helmholtz(transform, 0.5, MIXED)
    f, first = random_field((2, *shape)), random_field((2, *shape[1:]))
    with jax.set_mesh(mesh):
        solve = jax.jit(lambda f, g: (operator.solution(f, g, 3.0), operator(f)))
        program = solve.lower(transform.in_layout.shard(f), first).compile()
        found, without = map(transform.in_layout.gather, program(transform.in_layout.shard(f), first))
        widths = 2.0 * cells.weights(7)
        added = np.zeros_like(f)
        added[:, 0] += 2 * first / widths[0] ** 2
        added[:, -1] += 3.0 / widths[-1]
        expected = transform.in_layout.gather(operator(transform.in_layout.shard(added)))
    assert_close(found - without, expected)
    assert [one.kind for one in collectives(program.as_text())] == ["all-to-all"] * 8


def test_cells():
    cells = dops.Cells([0, 0.25, 0.5, 1])
    assert cells == dops.Cells(np.array([0, 0.25, 0.5, 1]))
    assert hash(cells) == hash(dops.Cells((0, 0.25, 0.5, 1)))
    assert repr(cells) == "Cells(3 of widths 0.25 to 0.5)"
    assert (cells.kinds, cells.is_transformed, cells.is_diagonal) == ((None, None), False, False)
    assert cells.orthogonalized() is cells
    assert cells.joined(cells) is None
    assert_close(cells.points(3), [0.125, 0.375, 0.75])
    assert_close(cells.weights(3), [0.25, 0.25, 0.5])
    assert_close(cells.wavenumbers(3), np.zeros(3))
    assert_close(cells.multiplicity(3, 3), np.ones(3))
    assert cells.truncation(3, 3, nyquist=True) == cells.derivative(3, 0).runs
    clustered = dops.Cells.clustered(5, 2.0)
    i = np.arange(6)
    assert_close(np.array(clustered.faces), (1 + np.tanh(2 * (2 * i / 5 - 1)) / np.tanh(2)) / 2)
    transform = dops.Transform(
        make_mesh((2, 4)), shape=(3, 8, 8), box=dops.Box(2.0), bases=(cells, FULL, FULL), pad=True
    )
    u = random_field((3, 8, 8))
    assert float(transform.volume_mean(u)) == pytest.approx(np.einsum("xyz,x->", u, cells.weights(3)) / 64)


def transform_of(package, *bases, shape=None, **options):
    shape = shape or (8,) * len(bases)
    return package.Transform(make_mesh((2, 4)), shape=shape, box=package.Box(), bases=bases, **options)


def cells_of(package) -> dops.Cells:
    return package.Cells.clustered(8, 1.0)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda d: d.Cells([0, 0.5, 0.4, 1]), ValueError, "`faces` must be two or more positions that increase from 0"),
        (lambda d: d.Cells([0.1, 1]), ValueError, "`faces` must be .*; got "),
        (lambda d: d.Cells("ab"), ValueError, "`faces` must be .*; got 'ab'"),
        (lambda d: d.Cells.clustered(0, 1.0), ValueError, "`n` must be an integer of at least one; got 0"),
        (lambda d: d.Cells.clustered(4, 0.0), ValueError, "`factor` must be positive; got 0.0"),
        (lambda d: cells_of(d).derivative(8, 2), ValueError, "`order` must be 0 along an axis of `Cells`"),
        (lambda d: cells_of(d).truncation(8, 4, nyquist=False), ValueError, "`modes` must be 8 along an axis of"),
        (
            lambda d: transform_of(d, cells_of(d), d.Fourier(), d.Fourier(), shape=(16, 8, 8)),
            ValueError,
            r"`shape` must be 8 along the axis of Cells\(8 of widths .*\); got 16. Pass `shape` to the transform",
        ),
        (
            lambda d: d.spectral.Poisson(transform_of(d, d.Fourier(), d.Fourier(), cells_of(d)), "neumann"),
            ValueError,
            "`fft` must have its walls across x, .*; got .* along z. Put the walls across the first axis",
        ),
        (
            lambda d: d.spectral.Poisson(transform_of(d, cells_of(d), d.Fourier(), d.Chebyshev()), "neumann"),
            ValueError,
            "`fft` must have its walls across x, .*; got Chebyshev.* along z",
        ),
        (
            lambda d: d.spectral.Poisson(transform_of(d, d.Fourier(), d.Fourier(), d.Fourier()), "neumann"),
            ValueError,
            r"`walls` must be None for the basis Fourier.* along x, .*; got \('neumann', 'neumann'\)",
        ),
        (
            lambda d: d.spectral.Poisson(transform_of(d, cells_of(d), d.Fourier(), d.Fourier())),
            ValueError,
            '`walls` must be "dirichlet" or "neumann" for the basis Cells.* along x, or a pair .*; got None',
        ),
        (lambda d: d.spectral.Poisson(d.FFT3D(), "neumann"), ValueError, "`fft` must be built with a `shape`"),
        (lambda d: of_shape(d, walls="robin"), ValueError, '`walls` must be "dirichlet" or "neumann".*; got .*robin'),
        (
            lambda d: d.spectral.Poisson(transform_of(d, d.Fourier(), d.Fourier(), d.Fourier())).solution(1.0),
            ValueError,
            "`walls` must be given for values at walls; got Poisson without walls",
        ),
        (lambda d: of_shape(d, walls=([], "neumann")), ValueError, '`walls` must be "dirichlet" or "neumann".*; got'),
        (lambda d: of_shape(d, shift=0, walls="neumann"), ValueError, "For `shift=0`, use `Poisson`"),
        (lambda d: of_shape(d, shift=-1.0), ValueError, "`shift` must be a finite number of at least 0; got -1.0"),
        *(
            (
                lambda d, bad=bad: of_shape(d).solution(jnp.ones((2, 8, 8, 8)), 0.0, bad),
                ValueError,
                rf"`last` must be a real number, .* of shape \(8, 8\) .* that fit .* \(2, 8, 8, 8\); got {got}",
            )
            for bad, got in (
                (np.ones((9, 8)), r"an array float64\[9, 8\]"),
                (np.ones((8, 7)), r"an array float64\[8, 7\]"),
                (np.ones((3, 8, 8)), r"an array float64\[3, 8, 8\]"),
                (np.ones((8, 8), complex), r"an array complex128\[8, 8\]"),
                (1j, "1j"),
                (None, "None"),
            )
        ),
        (
            lambda d: of_shape(d).solution(jnp.ones((8, 8))),
            ValueError,
            r"`field` must have shape \(\*batch, 8, 8, 8\)",
        ),
    ],
)
def test_bad_input(wrong, error, message, plain):
    with pytest.raises(error, match=message):
        wrong(plain)


def of_shape(package, shift=1.0, walls="neumann"):
    transform = transform_of(package, cells_of(package), package.Fourier(), package.Fourier())
    return package.spectral.Helmholtz(transform, shift, walls)
