"""The code of docs/turbulence.md."""

from pages import blocks, check


# The energy grows by the injected power, less the dissipation.
FORCED = """
energy, dissipation = np.asarray(history.energy), np.asarray(history.dissipation)
spent = 0.08 * (dissipation[1:] + dissipation[:-1]) / 2
np.testing.assert_allclose(np.diff(energy), 0.1 * 0.08 - spent, atol=2e-3 * energy[0])
"""
RANDOM = """
force_at = jax.jit(lambda t: stirred.fields(stirring(t, last)))
size = np.mean([np.mean(np.sum(np.asarray(force_at(2.0 * i)) ** 2, 0)) for i in range(8)])
assert 0.1 < size < 0.5  # The mean over all times is 0.25.
assert ensemble.shape == (2, *last.shape)
assert np.abs(ensemble[0] - ensemble[1]).max() > 1e-4 * np.abs(last).max()
"""
STATISTICS = """
np.testing.assert_allclose(np.sum(spectrum.energy * spectrum.width), scales.energy, rtol=1e-4)
from_shells = 2 * 0.02 * np.sum(spectrum.k**2 * spectrum.energy * spectrum.width)
np.testing.assert_allclose(from_shells, scales.dissipation, rtol=0.1)
np.testing.assert_allclose(transfer.flux[-1], 0, atol=1e-4 * np.abs(transfer.flux).max())
assert structure.longitudinal.shape == structure.transverse.shape == (2, 16)
# Near zero, the structure function of order 2 is (u' r / λ)².
near = (scales.velocity * structure.r[0] / scales.taylor_scale) ** 2
np.testing.assert_allclose(structure.longitudinal[0, 0], near, rtol=0.1)
"""
FLOWS = """
assert dynamo.shape == (6, *last.shape[1:])
moved = np.asarray(ocean.fields(wave))
decay = np.exp(-1e-4 * 2 * 3.0)
np.testing.assert_allclose(moved, decay * np.cos(x + y + 2.0 / (2 + 4) * 3.0), atol=1e-3)
turned = rotating.nonlinear(0.0, last) - equation.nonlinear(0.0, last)
# The force does no work.
assert np.abs(np.vdot(last, turned).real) < 1e-3 * np.linalg.norm(last) * np.linalg.norm(turned)
for flow in (water, plasma):
    assert flow.transform.decomposition.shape == (64, 64)
"""
CHECKS = (FORCED, RANDOM, STATISTICS, FLOWS)
CODE = blocks("docs/turbulence.md")


def test_the_code():
    assert len(CODE) == len(CHECKS)
    check("".join(code + check for code, check in zip(CODE, CHECKS)))
