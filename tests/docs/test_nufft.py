"""The code of docs/nufft.md."""

from pages import blocks, check


CHECK = """
waves = [np.exp(1j * points[:, i, None] * np.fft.fftfreq(n, 1 / n)) for i, n in enumerate(dec.shape)]
for i, n in enumerate(dec.shape):
    waves[i][:, n // 2] = np.cos(points[:, i] * (n // 2))
sums = lambda c, *waves: np.einsum("j,jk,jl,jm->klm", c, *waves, optimize=True)
close = lambda a, b, tolerance=3e-8: np.testing.assert_array_less(np.linalg.norm(a - b), tolerance * np.linalg.norm(b))
expected = sums(strengths, *map(np.conj, waves))
close(np.asarray(spectrum), expected)
at_points = np.einsum("klm,jk,jl,jm->j", expected, *waves, optimize=True)
close(pm.gather(p.replace(v=values))["v"], at_points)
close(as_finufft, np.fft.fftshift(sums(strengths, *waves)))
phases = np.exp(-1j * wavenumbers @ (points - np.pi).T)
close(type3.wavenumber_mesh.gather(k.replace(t=transform))["t"], phases @ strengths, 1e-7)
turned = [np.exp(1j * (points[:, i, None] + 0.01) * np.fft.fftfreq(n, 1 / n)) for i, n in enumerate(dec.shape)]
for i, n in enumerate(dec.shape):
    turned[i][:, n // 2] = np.cos((points[:, i] + 0.01) * (n // 2))
difference = sums(strengths, *map(np.conj, turned)) - expected
derived = np.einsum("klm,jk,jl,jm->j", np.conj(difference), *map(np.conj, turned), optimize=True)
close(pm.gather(p.replace(g=by_strength))["g"], 2 * derived, 1e-7)
assert np.isfinite(pm.gather(p.replace(g=by_position))["g"]).all()
"""


def test_the_code(tmp_path, monkeypatch):
    monkeypatch.delenv("DECOMPOPS_BACKEND")  # With kernels, these programs compile in half the time.
    check("".join(blocks("docs/nufft.md")) + CHECK, folder=tmp_path)
