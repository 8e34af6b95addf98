"""Tests of `ravel`: a field as a flat, sharded vector, and back."""

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from helpers import assert_close, make_mesh, random_field, thinned


def blockwise(field: np.ndarray, dec: dops.Decomposition, pencil: str) -> np.ndarray:
    """Return the blocks of a field of a grid of three axes one after the other, padded with zeros, as NumPy does it."""
    shape, local = dec.padded_shape(pencil), dec.local_shape(pencil)
    lead = field.shape[:-3]
    field = np.pad(field, [(0, 0)] * len(lead) + [(0, n - m) for n, m in zip(shape, field.shape[-3:])])
    # A batch axis is sharded over the left-over axis of a mesh of three axes.
    local = (*(n // (2 if len(dec.mesh.shape) == 3 else 1) for n in lead), *local)
    blocks = np.ndindex(*(n // m for n, m in zip(field.shape, local)))
    cut = lambda block: field[tuple(slice(i * n, (i + 1) * n) for i, n in zip(block, local))]
    return np.concatenate([cut(block).ravel() for block in blocks])


GRIDS = [
    ((2, 4), (8, 8, 6), (), "z"),
    ((2, 4), (9, 10, 11), (3,), "x"),
    ((8,), (5, 7, 3), (), "z"),
    ((2, 2, 2), (4, 6, 5), (2,), "y"),
    ((1, 1), (3, 4, 5), (), "z"),
]


@pytest.mark.parametrize(
    ("sizes", "shape", "lead", "pencil", "kind"),
    thinned(
        [(*grid, kind) for grid in GRIDS for kind in ("auto", "explicit")],
        lambda *case: GRIDS.index(case[:-1]) % 2 == (case[-1] == "explicit"),
    ),
)
def test_the_blocks_stand_one_after_the_other(sizes, shape, lead, pencil, kind):
    mesh = make_mesh(sizes, kind)
    dec = dops.Decomposition(mesh, shape=shape, pad=True)
    u, v = random_field((*lead, *shape)), random_field((*lead, *shape), seed=1)
    field = dec.shard(u, pencil)
    vector, unravel = dec.ravel(field, pencil)
    np.testing.assert_array_equal(vector, blockwise(u, dec, pencil))
    assert vector.sharding.shard_shape(vector.shape)[0] * mesh.size == vector.size
    assert unravel(vector).sharding.is_equivalent_to(field.sharding, field.ndim)
    np.testing.assert_array_equal(dec.gather(unravel(vector), pencil), u)
    other, _ = dec.ravel(dec.shard(v, pencil), pencil)
    with jax.set_mesh(mesh):
        assert_close(jnp.sum(vector * other), np.sum(u * v))
        # In a program, with derivatives of both functions, and with values in the padding, which have no effect.
        loss = lambda w: jnp.sum(unravel(w + 1) ** 2)
        gradient, second = jax.jit(lambda w: (jax.grad(loss)(w), jax.jvp(jax.grad(loss), (w,), (w,))[1]))(vector)
        slope = jax.jit(jax.grad(lambda x: jnp.sum(dec.ravel(x, pencil)[0] ** 3)))(field)
    mask = blockwise(np.ones_like(u), dec, pencil)
    assert_close(gradient, 2 * (np.asarray(vector) + 1) * mask)
    assert_close(second, 2 * np.asarray(vector) * mask)
    assert_close(dec.gather(slope, pencil), 3 * u**2)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_dot_products_gather_nothing(kind):
    """JAX gathers a pencil for `jnp.vdot`, but not the flat vector. On Explicit meshes it needs `auto_axes`."""
    mesh = make_mesh((2, 4), kind)
    dec = dops.Decomposition(mesh, shape=(8, 8, 8))
    u = dec.shard(random_field((8, 8, 8)))

    def programs(x):
        vector, unravel = dec.ravel(x)
        same, _ = ravel_pytree(vector)
        return jnp.vdot(x, x), jnp.vdot(vector, same), unravel(same * 2)

    def text(index):
        function = lambda x: programs(x)[index]
        if kind == "explicit":
            out = jax.sharding.NamedSharding(mesh, jax.P() if index < 2 else dec.spec())
            function = jax.sharding.auto_axes(function, out_sharding=out)
        program = jax.jit(function).lower(u).compile()
        return program.as_text(), np.asarray(program(u))

    plain, flat, back = map(text, range(3))
    assert "all-gather" in plain[0]
    assert "all-gather" not in flat[0] + back[0]
    assert "all-reduce" not in back[0]
    assert_close(flat[1], np.sum(np.asarray(u) ** 2))
    assert_close(back[1], 2 * np.asarray(u))


def test_vectors_from_elsewhere_and_spectra():
    fft = dops.FFT3D(make_mesh((2, 4)), shape=(8, 8, 6), real=True)
    dec, layout = fft.decomposition, fft.out_layout
    u = random_field((8, 8, 6))
    vector, unravel = dec.ravel(u)  # a NumPy array
    assert unravel(np.asarray(vector)).sharding.is_equivalent_to(dec.sharding(), 3)
    assert unravel(vector.astype(np.float32)).dtype == np.float32
    k = fft(u)
    modes, back = layout.ravel(k)
    assert modes.size == np.prod(layout.shape)
    assert_close(jnp.vdot(modes, modes), layout.vdot(k, k))
    np.testing.assert_array_equal(back(modes), k)
    fields = np.stack([u, 2 * u])
    np.testing.assert_array_equal(jax.vmap(lambda x: dec.ravel(x)[0])(fields), np.stack([vector, 2 * vector]))


def test_bad_input(plain):
    dec = plain.Decomposition(make_mesh((2, 4)), shape=(8, 8, 8))
    _, unravel = dec.ravel(np.ones((8, 8, 8)))
    with pytest.raises(ValueError, match=r"`vector` must have shape \(512,\), as `ravel` returned it; got \(3,\)"):
        unravel(jnp.ones(3))
    with pytest.raises(ValueError, match=r"`field` must end with the shape of the grid"):
        dec.ravel(np.ones((8, 8, 7)))
    inside = jax.shard_map(lambda x: dec.ravel(x)[0], mesh=dec.mesh, in_specs=dec.spec(), out_specs=jax.P())
    with pytest.raises(ValueError, match="`field` must be a global field; got a block inside a `shard_map`"):
        inside(np.ones((8, 8, 8)))
