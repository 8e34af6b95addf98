"""Tests of `Stencil` against NumPy on the whole grid."""

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops.testing import assert_adjoint, assert_transposed
from jax.sharding import NamedSharding, PartitionSpec as P

from helpers import assert_close, finite_difference, make_mesh, put, random_field, spec_of


MIDDLE = (..., slice(1, -1), slice(1, -1), slice(1, -1))


def laplacian(h):
    return sum(jnp.roll(h, s, a) for s in (1, -1) for a in (-1, -2, -3))[MIDDLE] - 6 * h[MIDDLE]


def whole_laplacian(u, periodic=True):
    h = np.pad(u, [(0, 0)] * (u.ndim - 3) + [(1, 1)] * 3, mode="wrap" if periodic else "constant")
    return sum(np.roll(h, s, a) for s in (1, -1) for a in (-1, -2, -3))[MIDDLE] - 6 * u


@pytest.mark.parametrize(
    ("sizes", "shape", "periodic"),
    [  # test_halo.py tests the extended blocks on other meshes.
        ((2, 4), (8, 16, 8), True),
        ((2, 4), (9, 10, 11), False),
        ((8, 1), (13, 2, 5), False),
        ((8, 1), (9, 10, 11), True),
        ((4,), (13, 2, 5), True),
        ((1, 1), (9, 10, 11), False),
    ],
)
def test_laplacian(sizes, shape, periodic):
    operator = dops.Stencil(make_mesh(sizes), laplacian, periodic=periodic, shape=shape, pad=True)
    u = random_field((2, *shape))
    result = jax.jit(operator)(u)  # test_new_leading_axes and test_transposes call stencils eagerly.
    assert_close(operator.decomposition.gather(result), whole_laplacian(u, periodic))
    assert result.sharding.is_equivalent_to(NamedSharding(operator.decomposition.mesh, P(None, *operator.out_spec)), 4)
    padding = np.asarray(result).copy()
    padding[:, : shape[0], : shape[1], : shape[2]] = 0
    assert not padding.any()


@pytest.mark.parametrize("shape", [(8, 16, 8), (5, 7, 6)])
def test_transposes(shape):
    def advect(h):  # This stencil is not symmetric.
        return h[..., :-1, 1:, :] - 2 * h[..., 1:, :-1, :] + 3 * h[..., 1:, 1:, :]

    # Programs with compiled kernels compile in less time. The other shape has exchanges by XLA.
    backend = "native" if shape == (5, 7, 6) else "xla"
    dec = dops.Decomposition(make_mesh((2, 4)), shape=shape, pad=True, backend=backend)
    operator = dops.Stencil(dec, advect, ((1, 0), (1, 0), (0, 0)), periodic=False)
    x, y = (np.asarray(dec.shard(random_field(shape, np.complex128, s))) for s in (0, 1))
    assert_transposed(operator, operator.T, x, y)
    assert operator.T.T is operator
    assert operator.H.H is operator
    if shape == dec.padded_shape():
        return  # Padding does not affect the conjugate, so one shape is enough.
    imaginary = dops.Stencil(operator.decomposition, lambda h: 1j * advect(h), operator.exchange.halo, periodic=False)
    forward, back = jax.jit(imaginary), jax.jit(imaginary.T)
    assert_transposed(forward, back, x, y)
    assert_adjoint(forward, jax.jit(imaginary.H), x, y)
    assert_adjoint(back, jax.jit(imaginary.T.H), y, x)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_nonlinear_with_parameters(kind):
    """Test values and gradients for an `fn` with a parameter, products of cells, and combined batch axes."""

    class Flux(eqx.Module):
        strength: jax.Array

        def __call__(self, h):
            u, v = h[..., 0, :, :, :], h[..., 1, :, :, :]
            return self.strength * u[MIDDLE] * (v[..., 2:, 1:-1, 1:-1] - v[..., :-2, 1:-1, 1:-1])

    mesh = make_mesh((2, 2, 2), kind)
    with jax.set_mesh(mesh):
        fields = random_field((4, 2, 4, 8, 6))
        x = put(mesh, fields, "c", None, "x", "y", None)

        def flux(strength, f):
            return dops.Stencil(mesh, Flux(strength), backend="native" if kind == "auto" else "xla")(f)

        u, v = fields[:, 0], fields[:, 1]
        expected = 2.0 * u * (np.roll(v, -1, -3) - np.roll(v, 1, -3))
        result = jax.jit(flux)(jnp.asarray(2.0), x)
        assert_close(result, expected)
        assert spec_of(result) == P("c", "x", "y", None)
        loss = lambda s, f: jnp.sum(jnp.sin(flux(s, f)))
        both = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
        _, (by_strength, by_field) = both(jnp.asarray(2.0), x)
        assert by_strength == pytest.approx(np.sum(np.cos(expected) * expected / 2), rel=1e-10)
        direction = random_field(fields.shape, seed=2)
        slope = np.vdot(by_field, direction)
        numeric = finite_difference(
            lambda f: both(jnp.asarray(2.0), put(mesh, f, "c", None, "x", "y", None))[0], fields, direction, 1e-6
        )
        assert slope == pytest.approx(numeric, rel=1e-6)


@pytest.mark.parametrize(
    ("sizes", "shape", "periodic", "kind"),
    [
        pytest.param((4, 2), (5, 7, 6), True, "auto", marks=pytest.mark.sweep),
        ((4, 2), (5, 7, 6), False, "explicit"),
        ((8, 1), (3, 4, 5), False, "auto"),
        ((3, 2), (10, 5, 4), True, "explicit"),
    ],
)
def test_fn_never_sees_padding(sizes, shape, periodic, kind):
    """`fn` never reads padding, so an `fn` that divides by cells has the right value and gradient.

    If `fn` divided by the zeros in the padding, the result would be right, but the gradient would be NaN.
    """

    def ratio(h):
        return jnp.sqrt(1 + h[..., :-3, 1:-1, :] / h[..., 2:-1, 1:-1, :]) + h[..., 3:, 2:, :] * h[..., 2:-1, :-2, :]

    mesh, halo = make_mesh(sizes, kind), ((2, 1), (1, 1), (0, 0))
    u = np.abs(random_field(shape)) + 1
    with jax.set_mesh(mesh):
        backend = "native" if kind == "explicit" else "xla"
        stencil = dops.Stencil(mesh, ratio, halo, periodic=periodic, shape=shape, pad=True, backend=backend)
        x = stencil.decomposition.shard(u)
        expected = ratio(np.pad(u, halo, mode="wrap" if periodic else "constant"))
        mapped = jax.shard_map(stencil.local, in_specs=stencil.in_spec, out_specs=stencil.out_spec, mesh=mesh)
        weights = random_field(shape, seed=1)
        padded = stencil.decomposition.shard(weights)
        loss = lambda f: lambda v: jnp.sum(padded * f(v))
        both = jax.jit(lambda x: [(f(x), jax.grad(loss(f))(x)) for f in (stencil, mapped)])
        (value, g), (local, by_local) = both(x)
        assert_close(stencil.decomposition.gather(value), expected)
        assert_close(local, value)
        assert_close(by_local, g)
        direction = random_field(shape, seed=2)
        numeric = finite_difference(
            lambda v: np.sum(weights * ratio(np.pad(v, halo, mode="wrap" if periodic else "constant"))),
            u,
            direction,
            1e-6,
        )
        assert np.vdot(stencil.decomposition.gather(g), direction) == pytest.approx(numeric, rel=1e-7)


def test_transpose_takes_any_input_on_explicit_meshes():
    mesh = make_mesh((2, 4), "explicit")
    with jax.set_mesh(mesh):
        difference = dops.Stencil(mesh, lambda h: h[..., 2:, :, :] - h[..., 1:-1, :, :], (1, 0, 0))
        y = random_field((8, 8, 8))
        expected = np.roll(y, 1, 0) - y
        for x in (y, jnp.asarray(y), put(mesh, y, None, "x", "y")):
            assert_close(difference.T(x), expected)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_inside_a_shard_map_over_the_batch_axis(kind):
    group = make_mesh((2, 2, 2), kind)
    with jax.set_mesh(group):
        stencil = dops.Stencil(group, laplacian)
        u = random_field((4, 4, 8, 6))
        mapped = jax.jit(jax.shard_map(stencil, in_specs=P("c"), out_specs=P("c"), axis_names={"c"}))
        expected = sum(np.roll(u, s, a) for s in (-1, 1) for a in (1, 2, 3)) - 6 * u
        assert_close(mapped(put(group, u, "c", "x", "y", None)), expected)


@pytest.mark.promotes_ranks
def test_new_leading_axes():
    def gradient(h):
        return jnp.stack([h[..., 2:, 1:-1, 1:-1], h[..., 1:-1, 2:, 1:-1], h[..., 1:-1, 1:-1, 2:]]) - h[MIDDLE]

    u = random_field((8, 8, 8))
    got = dops.Stencil(make_mesh((2, 4)), gradient)(u)
    assert_close(got, np.stack([np.roll(u, -1, axis) - u for axis in range(3)]))


BAD = [
    (lambda d, m: d.Stencil(m, "laplacian"), "`fn` must be a function of one extended block; got 'laplacian'"),
    (
        lambda d, m: d.Stencil(m, lambda h: h)(np.ones((8, 8, 8))),
        r"`fn` must return a block .* 4, 2, 8\) for an extended one .*; got",
    ),
    (lambda d, m: d.Stencil(m, jnp.sum)(np.ones((8, 8, 8))), "`fn` must return a block"),
    (lambda d, m: d.Stencil(m, laplacian, -1), "`halo` must be non-negative; got -1"),
    (lambda d, m: d.Stencil(m, lambda h: h[MIDDLE] ** 2).T(np.ones((8, 8, 8))), "`fn` must be linear"),
    (
        lambda d, m: d.Stencil(m, lambda h: h[MIDDLE].astype(complex)).T(np.ones((8, 8, 8))),
        "`fn` must keep .* the dtype",
    ),
    (lambda d, m: d.Stencil(m, lambda h: h[MIDDLE]).T(np.ones((8, 8, 8), int)), "`x` must be real or complex .* int64"),
    (lambda d, m: d.Stencil(m, lambda h: (h[MIDDLE],))(np.ones((8, 8, 8))), "`fn` must return one array; got tuple"),
]


@pytest.mark.parametrize(("call", "text"), BAD)
def test_bad_input(plain, call, text):
    with pytest.raises((ValueError, TypeError), match=text):
        call(plain, make_mesh((2, 4)))
