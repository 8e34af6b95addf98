"""The code of docs/forces.md."""

from pages import blocks, check


START = """
from decompops import spectral

np.testing.assert_allclose(spectral.LerayProjection(fft)(velocity), vortex, atol=1e-5)
"""
FORCED = """
rest = equation.state(0 * velocity)
wave = forced.fields(forced.nonlinear(0.0, rest, None))
np.testing.assert_allclose(wave, np.stack([np.sin(4 * y), 0 * x, 0 * x]) + 0.1 * np.asarray(velocity), atol=1e-5)
"""
BUOYANT = """
scalar = convection.state(jnp.concatenate([0 * velocity, jnp.ones((1, 32, 32, 32), velocity.dtype) + velocity[:1]]))
rate = convection.fields(convection.nonlinear(0.0, scalar, None))
solenoidal = spectral.LerayProjection(fft)(jnp.zeros_like(velocity).at[2].set(1 + velocity[0]))
np.testing.assert_allclose(rate[:3], solenoidal, atol=1e-5)
"""
VISCOUS = """
hot = oil.state(jnp.concatenate([velocity, 2 * jnp.ones((1, 32, 32, 32), velocity.dtype)]))  # One viscosity everywhere.
thin = 0.1 * (np.exp(-4.0) - 1)
diffused = thin * np.asarray(spectral.Laplacian(fft)(velocity))
added = oil.fields(oil.nonlinear(0.0, hot, None) - pde.PassiveScalar(flow, 0.01).nonlinear(0.0, hot, None))
np.testing.assert_allclose(added[:3], diffused, atol=1e-4)
"""
BODY = """
points = np.meshgrid(*(np.arange(32) / 32 * np.asarray(body.products.box_lengths)[:, None]), indexing="ij")
thickness = 0.7 * max(body.products.box_lengths) / 32
mask = (1 - np.tanh(2 * sphere(*points) / thickness)) / 2
pull = mask * np.asarray(around.fields(around.state(velocity))) / ((thickness / 2.6482282) ** 2 / 1e-2)
whole = pull.mean((1, 2, 3)) * np.prod(body.products.box_lengths)
np.testing.assert_allclose([drag, *lift], whole, rtol=1e-3, atol=1e-3)
"""
STIRRED = """
late = (1 - np.tanh(2 * sphere(points[0] - 0.3, *points[1:]) / thickness)) / 2
force = np.stack([late / ((thickness / 2.6482282) ** 2 / 1e-2), 0 * late, 0 * late])
pushed = spectral.LerayProjection(fft)(around.fields(around.state(jnp.asarray(force, velocity.dtype))))
rate = stirred.fields(jax.jit(lambda t, u: stirred.nonlinear(t, u, None))(0.3, stirred.state(0 * velocity)))
np.testing.assert_allclose(rate, pushed, atol=1e-4)
"""


def test_the_code():
    code = blocks("docs/forces.md")
    check(
        "".join(
            block + after for block, after in zip(code, (START, FORCED, BUOYANT, VISCOUS, BODY, STIRRED), strict=True)
        )
    )
