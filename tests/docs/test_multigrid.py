"""The code of docs/multigrid.md."""

from pages import blocks, check


CHECK = """
np.testing.assert_allclose(operator(u), f, atol=1e-7)
found = temperature(a)
assert int(found.iterations) <= 8
layers = finite_volume.Diffusion(dec, jnp.stack([a, a, 1000 * a]))
np.testing.assert_allclose(layers(found.value), f, atol=1e-7)
"""


def test_the_code():
    check("".join(blocks("docs/multigrid.md")) + CHECK)
