"""Coefficients that are zero in some cells, and in any unit; numbers of NumPy and JAX where one number is meant."""

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import finite_volume as fv, solve

from helpers import assert_close, make_mesh, random_field


DEC = dops.Decomposition(make_mesh((2, 2)), shape=(8, 8), box=dops.Box(1.0))
MASK = (random_field((8, 8)) > -0.3).astype(float)


@pytest.mark.parametrize("boundary", ["neumann", "periodic", "dirichlet"])
@pytest.mark.parametrize("operator", [fv.Diffusion, fv.Gradient])
def test_derivatives_are_those_of_differences(operator, boundary):
    """In a cell between open cells, the harmonic mean of two coefficients has a slope where one of them is zero."""
    boundary = "neumann" if (operator, boundary) == (fv.Gradient, "dirichlet") else boundary
    u = DEC.shard(random_field((8, 8), seed=1))
    energy = jax.jit(lambda a: jnp.sum(operator(DEC, a, boundary=boundary)(u) ** 2))
    gradient = np.asarray(jax.jit(jax.grad(energy))(MASK))
    step = 1e-6
    for cell in np.argwhere(MASK == 0)[:4]:
        above, twice = (float(energy(MASK + h * np.eye(64).reshape(8, 8, 8, 8)[*cell])) for h in (step, 2 * step))
        slope = (4 * above - twice - 3 * float(energy(MASK))) / (2 * step)  # One-sided: coefficients are not negative.
        assert_close(gradient[*cell] / np.abs(gradient).max(), slope / np.abs(gradient).max(), 1e-5)


@jax.jit
def results(length, unit, a, tensor):
    """Return two diffusions and a flux, times the powers of `length` in their units, and their derivatives by a."""
    dec = dops.Decomposition(DEC, box=dops.Box(length))
    u, weights = (random_field(shape, seed=1).astype(a.dtype) for shape in ((8, 8), (4, 8, 8)))
    walls = ("neumann", ("dirichlet", fv.Robin(3 * unit / length)))

    def of(a, tensor):
        diffusions = jnp.stack([fv.Diffusion(dec, x, boundary=walls)(u) for x in (a, tensor)])
        flux = fv.Gradient(dec, a, boundary="neumann")(u)
        return jnp.concatenate([diffusions * length**2, flux * length])

    return of(a, tensor), *jax.grad(lambda *given: jnp.sum(weights * of(*given)), (0, 1))(a, tensor)


@pytest.mark.parametrize(("length", "unit"), [(1.0, 1e-25), (1.0, 1e30), (1e-12, 1e-24), (1e15, 1e30), (1e-16, 1e-32)])
def test_single_precision_takes_any_units(length, unit):
    """Such as a diffusivity of 1e-24 m²/s in a box of 1e-12 m. The results are those of double precision."""
    a = np.exp(random_field((8, 8), seed=3))
    tensor = np.array([[2, 0.5], [0.5, 1]])[..., None, None] * a
    expected, *slopes = results(1.0, 1.0, a, tensor)
    units = (np.asarray(x, np.float32) for x in (length, unit, unit * a, unit * tensor))
    found, *found_slopes = results(*units)
    for x, exact in zip((found / unit, *found_slopes), (expected, *slopes)):
        assert_close(x, exact, 3e-6)


@pytest.mark.parametrize("kind", [np.float64, np.float32, jnp.asarray])
@pytest.mark.parametrize("value", [-3.0, 0.0, np.nan, np.inf])
def test_robin_refuses_numbers_out_of_range(plain, kind, value):
    with pytest.raises(ValueError, match=r"^`coefficient` must be a positive, finite number"):
        plain.finite_volume.Robin(kind(value))


@pytest.mark.parametrize("value", [True, np.True_, np.complex128(1j), 1j])
def test_robin_refuses_what_is_no_real_number(plain, value):
    for given in (value, jnp.asarray(value)):
        with pytest.raises(TypeError, match=r"^`coefficient` must be one real number"):
            plain.finite_volume.Robin(given)


@pytest.mark.parametrize("value", [1j, np.complex128(1j), jnp.asarray(1j)])
def test_complex_values_at_walls_stay_complex(plain, value):
    operator = plain.finite_volume.Diffusion(
        plain.Decomposition(make_mesh((2, 2)), shape=(8, 8)), boundary=("dirichlet", "neumann")
    )
    found = operator.source((value, 0.0), None)
    assert_close(found, 1j * np.asarray(operator.source((1.0, 0.0), None)))


@pytest.mark.parametrize("kind", ["neumann", "dirichlet"])
@pytest.mark.parametrize("coefficient", [1.0, 1.0 + 2j], ids=["real", "complex"])
@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (2, 0, 1)], ids=str)
def test_a_source_is_the_sum_of_its_values(order, coefficient, kind):
    """In whatever order: values that are real, complex, or have batch axes, at walls and on a body."""
    dec = dops.Decomposition(make_mesh((2,)), shape=(4, 3))
    rng = np.random.default_rng(0)
    given = [rng.normal(size=3), 1j * rng.normal(size=(2, 3)), rng.normal(size=3).astype(np.float32)]
    first, second, on_body = (given[i] for i in order)
    body = fv.Body(np.array([[-1.0, 0.9, 0.8]] * 4), kind)
    operator = fv.Diffusion(dec, coefficient, boundary=(("dirichlet", "neumann"), "periodic"), body=body)
    surface = np.broadcast_to(on_body[..., None, :], (*on_body.shape[:-1], 4, 3))
    whole = np.asarray(operator.source((first, second), None, body=surface))
    walls = [np.asarray(operator.source(pair, None)) for pair in ((first, None), (None, second))]
    alone = np.asarray(operator.source(None, None, body=surface))
    assert whole.shape == (2, 4, 3)
    assert all(np.abs(part).max() > 0 for part in (*walls, alone))
    assert_close(whole, sum(walls) + alone, rtol=1e-12)


@pytest.mark.parametrize(("a", "c"), [("float32", "complex64"), ("float64", "float32"), ("complex128", "float32")])
@pytest.mark.parametrize("kind", ["alone", "body", "tensor"])
def test_a_and_c_may_have_different_dtypes(kind, a, c):
    dec = dops.Decomposition(make_mesh((2,)), shape=(8, 6))
    field = lambda dtype: (np.abs(random_field((8, 6))) + (0.5j if "complex" in dtype else 0.5)).astype(dtype)
    options = {"body": fv.Body(random_field((8, 6)), "dirichlet")} if kind == "body" else {}
    wide = field(a)
    if kind == "tensor":
        wide = wide * np.array([[2, 1], [1, 2]], a)[:, :, None, None]
    operator = fv.Diffusion(dec, wide, field(c), boundary="dirichlet", **options)
    alike = fv.Diffusion(dec, wide.astype(complex), field(c).astype(complex), boundary="dirichlet", **options)
    u = random_field((8, 6))
    assert operator(u).dtype == np.result_type(a, c, u.dtype)
    assert_close(operator(u), alike(u), rtol=1e-4)
    if not {a, c} & {"complex64", "complex128"}:
        found = solve.CG(operator, solve.Multigrid(operator), rtol=1e-5)(operator(u))
        assert_close(found, np.where(True if operator.open_cells is None else operator.open_cells, u, 0), rtol=1e-3)


@pytest.mark.parametrize("shape", [(1, 6), (6, 1), (1, 1)])
@pytest.mark.parametrize(("boundary", "at_walls"), [("dirichlet", 1), ("neumann", -1)])
def test_cells_along_an_explicit_axis_of_one_device(boundary, at_walls, shape):
    """JAX forgets the mesh axis in slices of one entry."""
    dec, u = dops.Decomposition(make_mesh((1,), "explicit"), shape=shape, box=dops.Box(1.0)), random_field(shape)
    expected = 0.5 * u
    for axis, n in enumerate(shape):
        matrix = 2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
        matrix[0, 0] += at_walls
        matrix[-1, -1] += at_walls
        expected += n**2 * np.moveaxis(np.tensordot(matrix, u, (1, axis)), 0, axis)
    assert_close(fv.Diffusion(dec, 1.0, 0.5, boundary=boundary)(u), expected)
