"""The code of docs/particles.md."""

from pages import blocks, check


CHECK = """
found = pm.gather(p)
np.testing.assert_array_equal(found["positions"], positions)
cells = positions.astype(float) / 100 * 32
expected = np.zeros((32, 32, 32))
first = np.floor(cells).astype(int)
for corner in np.ndindex(2, 2, 2):
    share = np.prod(np.where(corner, cells - first, 1 - cells + first), axis=1)
    np.add.at(expected, tuple(((first + corner) % 32).T), share)
np.testing.assert_allclose(dec.gather(density), expected, atol=1e-3)
quartic = np.zeros((32, 32, 32))
first = np.floor(cells - 1.5).astype(int)
for corner in np.ndindex(5, 5, 5):
    share = np.prod(spline(cells - first - corner), axis=1)
    np.add.at(quartic, tuple(((first + corner) % 32).T), share)
np.testing.assert_allclose(dec.gather(smoothed), quartic, atol=1e-3)
by_mesh = pm.loads(clustered)
assert list(by_mesh) == [(1, 8), (2, 4), (4, 2), (8, 1)]
assert by_mesh[1, 8].ratio < 1.1
np.testing.assert_allclose(by_mesh[8, 1].ratio, 5, rtol=0.05)
live = np.arange(p.capacity) < np.asarray(shifted.counts)[:, None]
there = np.asarray(shifted.positions)[live.ravel(), 2] + 100 / 32 / 2
away = abs(there - 50) < 50 - 100 / 32 / 2
assert away.sum() > 4500
np.testing.assert_allclose(np.asarray(by_height)[live.ravel()][away], there[away], rtol=1e-4)
assert momentum.shape == (3, 32, 32, 32)
assert speed.shape == p.positions.shape
np.testing.assert_array_equal(pm.gather(last)["id"], np.arange(5000))
assert np.abs(np.mean(pm.gather(last)["velocity"], axis=0)).max() < 1e-3  # Momentum is conserved.
assert np.abs(pm.gather(last)["velocity"]).max() > 1e-2
np.testing.assert_array_equal(settled.counts, [5000, *[0] * 7])
np.testing.assert_allclose(np.mean(final), 1, rtol=1e-5)
assert 2 < np.max(final) < 100
scatter = np.sqrt(2 / measured.modes)
assert (np.abs(clustering) < 4 * scatter * tsc.shot_noise(some)).all()
"""


def test_the_code(tmp_path, monkeypatch):
    monkeypatch.delenv("DECOMPOPS_BACKEND")  # With kernels, these programs compile in half the time.
    check("".join(blocks("docs/particles.md")) + CHECK, folder=tmp_path)
