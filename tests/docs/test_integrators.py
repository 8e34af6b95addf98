"""The code of docs/integrators.md."""

from pages import blocks, check


# The enstrophy of the Taylor-Green vortex is 3/8 and grows slowly at first. So the energy falls by 3/4 nu t.
FLOW = """
assert energy.shape == (4,)
np.testing.assert_allclose(0.125 - np.asarray(energy), 0.75 / 1600 * 0.1 * np.arange(1, 5), rtol=0.1)
by_etdrk = equation.fields(last)
"""
HISTORY = """
np.testing.assert_allclose(equation.fields(last), by_etdrk, atol=1e-5)
once, _ = multistep.rollout(start, 40)
np.testing.assert_allclose(equation.fields(last), equation.fields(once), atol=1e-6)
"""
# The test moves the initial state `start` by `-length` times the conjugate of the gradient. If `length` is small, the
# loss falls by `length` times the squared norm of the gradient.
GRADIENT = """
with jax.set_mesh(mesh):
    slope = np.sum(np.abs(gradient) ** 2)
    length = 1e-3 * loss(start) / slope
    change = loss(start - length * jnp.conj(gradient)) - loss(start)
np.testing.assert_allclose(change, -length * slope, rtol=0.02)
"""


def test_the_code():
    code = blocks("docs/integrators.md")
    check("".join(block + after for block, after in zip(code, (FLOW, HISTORY, GRADIENT), strict=True)))
