"""The code of README.md."""

from pages import blocks, check


CHECK = """
half = np.fft.rfftn(np.asarray(u))
q1 = np.fft.fftfreq(64, 1 / 64)
q = q1[:, None, None] ** 2 + q1[:, None] ** 2 + q1[:33] ** 2
weights = np.where(np.isin(np.arange(33), (0, 32)), 1, 2)
expected = 2 * 64**3 * np.fft.irfftn(q**2 * half / weights)
np.testing.assert_allclose(gradient, expected, atol=1e-4 * abs(expected).max())
assert gradient.sharding.is_equivalent_to(u.sharding, 3)
np.testing.assert_allclose(k, half, atol=1e-3)

# The derivative along a direction, beside finite differences of a rollout without `keep`.
@jax.jit
def energy_after(velocity):
    last, _ = solver.rollout(equation.state(velocity), 20)
    return jnp.mean(equation.fields(last) ** 2)

stored = dops.io.read("slope.zarr").arrays["slope"]
direction = stored / abs(stored).max()
step = 0.05
difference = (energy_after(velocity + step * direction) - energy_after(velocity - step * direction)) / (2 * step)
np.testing.assert_allclose(np.sum(stored * direction), difference, rtol=0.01)
assert difference > 0
"""


def test_the_code(tmp_path):
    check("".join(blocks("README.md")) + CHECK, folder=tmp_path)
