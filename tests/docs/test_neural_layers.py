"""The code of docs/neural_layers.md."""

from pages import blocks, check


NETWORK = """
assert prediction.shape == (3, 32, 32, 32)
"""
MOVED = """
np.testing.assert_allclose(moved(np.asarray(velocity)), prediction, atol=1e-5)
count = sum(part.size for part in jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)))
moments = [part for part in jax.tree.leaves(state) if jnp.issubdtype(part.dtype, jnp.inexact)]
assert sum(part.size for part in moments) == 2 * count
assert all(part.sharding.mesh == there.decomposition.mesh for part in moments)
"""


def test_the_code():
    code = blocks("docs/neural_layers.md")
    check("".join(block + after for block, after in zip(code, (NETWORK, MOVED), strict=True)))
