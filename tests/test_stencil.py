"""`Stencil` against NumPy on the whole grid."""

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

from helpers import (
    assert_adjoint,
    assert_close,
    assert_transposed,
    finite_difference,
    make_mesh,
    put,
    random_field,
    spec_of,
)


MIDDLE = (..., slice(1, -1), slice(1, -1), slice(1, -1))


def laplacian(h):
    return sum(jnp.roll(h, s, a) for s in (1, -1) for a in (-1, -2, -3))[MIDDLE] - 6 * h[MIDDLE]


def whole_laplacian(u, periodic=True):
    h = np.pad(u, [(0, 0)] * (u.ndim - 3) + [(1, 1)] * 3, mode="wrap" if periodic else "constant")
    return sum(np.roll(h, s, a) for s in (1, -1) for a in (-1, -2, -3))[MIDDLE] - 6 * u


@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize("shape", [(8, 16, 8), (9, 10, 11), (13, 2, 5)])
@pytest.mark.parametrize("sizes", [(2, 4), (8, 1), (4,), (1, 1)])
def test_laplacian(sizes, shape, periodic):
    operator = dops.Stencil(make_mesh(sizes), laplacian, periodic=periodic, shape=shape)
    u = random_field((2, *shape))
    result = operator(u)
    assert_close(operator.decomposition.gather(result), whole_laplacian(u, periodic))
    assert result.sharding.is_equivalent_to(NamedSharding(operator.decomposition.mesh, P(None, *operator.out_spec)), 4)
    padding = np.asarray(result).copy()
    padding[:, : shape[0], : shape[1], : shape[2]] = 0
    assert not padding.any()


@pytest.mark.parametrize("shape", [(8, 16, 8), (5, 7, 6)])
def test_transposes(shape):
    def advect(h):  # not symmetric
        return h[..., :-1, 1:, :] - 2 * h[..., 1:, :-1, :] + 3 * h[..., 1:, 1:, :]

    operator = dops.Stencil(make_mesh((2, 4)), advect, ((1, 0), (1, 0), (0, 0)), periodic=False, shape=shape)
    dec = operator.decomposition
    x, y = (np.asarray(dec.shard(random_field(shape, np.complex128, s))) for s in (0, 1))
    assert_transposed(operator, operator.T, x, y)
    imaginary = dops.Stencil(operator.decomposition, lambda h: 1j * advect(h), operator.exchange.halo, periodic=False)
    assert_transposed(imaginary, imaginary.T, x, y)
    assert_adjoint(imaginary, imaginary.H, x, y)
    assert_adjoint(imaginary.T, imaginary.T.H, y, x)
    assert operator.T.T is operator
    assert operator.H.H is operator


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_nonlinear_with_parameters(kind):
    """A parameter inside `fn`, products of cells, leading axes combined: values and gradients."""

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
            return dops.Stencil(mesh, Flux(strength))(f)

        u, v = fields[:, 0], fields[:, 1]
        expected = 2.0 * u * (np.roll(v, -1, -3) - np.roll(v, 1, -3))
        result = jax.jit(flux)(jnp.asarray(2.0), x)
        assert_close(result, expected)
        assert spec_of(result) == P("c", "x", "y", None)
        loss = lambda s, f: jnp.sum(jnp.sin(flux(s, f)))
        by_strength, by_field = jax.jit(jax.grad(loss, argnums=(0, 1)))(jnp.asarray(2.0), x)
        assert by_strength == pytest.approx(np.sum(np.cos(expected) * expected / 2), rel=1e-10)
        direction = random_field(fields.shape, seed=2)
        slope = np.vdot(by_field, direction)
        numeric = finite_difference(
            lambda f: loss(jnp.asarray(2.0), put(mesh, f, "c", None, "x", "y", None)), fields, direction, 1e-6
        )
        assert slope == pytest.approx(numeric, rel=1e-6)


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
