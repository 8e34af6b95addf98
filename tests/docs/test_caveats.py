"""The code of docs/caveats.md."""

from pages import blocks, check


CHECK = """
import math

assert u.shape == (30, 32, 30)
np.testing.assert_allclose([wrong, right], [0.46875, 0.5], rtol=1e-4)

# The gradient of the safe logarithm is finite in the padding, too; that of the plain one is not.
positive = dec.shard(np.broadcast_to(2 + np.sin(x)[:, None, None], (30, 30, 30)))
safe = jax.jit(jax.grad(loss))(positive)
plain = jax.jit(jax.grad(lambda u: dec.sum(jnp.log(u))))(positive)
np.testing.assert_allclose(dec.gather(safe)[:, 3, 5], 1 / (2 + np.sin(x)), rtol=1e-5)
np.testing.assert_allclose(dec.gather(plain), dec.gather(safe))
assert np.isfinite(np.asarray(safe)).all() and np.isnan(np.asarray(plain)).any()

# The table: what `dec` computes is NumPy's, of the true grid.
noise = np.random.default_rng(0).standard_normal((2, 30, 30, 30)).astype(np.float32)
u, v = (dec.shard(field) for field in noise - 9)
first, second = noise - 9
np.testing.assert_allclose(dec.sum(jnp.exp(u)), np.exp(first).sum(), rtol=1e-4)
np.testing.assert_allclose(dec.norm(u), np.linalg.norm(first), rtol=1e-4)
np.testing.assert_allclose(dec.vdot(u, v), np.vdot(first, second), rtol=1e-4)
np.testing.assert_allclose(dec.max(u), first.max())
assert jnp.max(u) == 0 > first.max()
assert (u.size, math.prod(dec.shape)) == (30 * 32 * 30, 30**3)
np.testing.assert_array_equal(dec.gather(u), first)
assert np.asarray(u).shape != dec.gather(u).shape
np.testing.assert_array_equal(dec.gather(dops.Roll(dec, (1, 0, 0))(u)), np.roll(first, 1, 0))
"""


def test_the_code():
    check("".join(blocks("docs/caveats.md")) + CHECK)
