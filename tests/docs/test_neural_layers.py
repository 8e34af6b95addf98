"""The code of docs/neural_layers.md."""

from pages import blocks, check


NETWORK = """
assert prediction.shape == (3, 32, 32, 32)
"""
BRANCHES = """
for result in (by_unet, by_ufno):
    assert result.shape == (3, 32, 32, 32)
    assert result.sharding.spec == velocity.sharding.spec
plain = nn.FNO(fft, 3, 3, width=8, modes=4, depth=2, key=jax.random.key(2))
assert [block.unet is None for block in ufno.blocks] == [True, False]
np.testing.assert_array_equal(ufno.blocks[1].spectral.weight, plain.blocks[1].spectral.weight)
"""
COMPLEX = """
assert (layer.weight.shape, layer.weight.dtype) == ((2, 2, 3, 7, 7, 7), np.float32)
assert (scattered.shape, scattered.dtype) == ((2, 32, 32, 32), np.complex64)
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
    check("".join(block + after for block, after in zip(code, (NETWORK, BRANCHES, COMPLEX, MOVED), strict=True)))
