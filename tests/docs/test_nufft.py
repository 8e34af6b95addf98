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
shift = np.zeros_like(points)
shift[7, 1] = 1e-6
moved = [jax.jit(misfit)(p.positions + 0.01 + d * pm.place(points, shift=shift)["shift"], p["c"]) for d in (-1, 1)]
slope = pm.gather(p.replace(g=by_position))["g"][7, 1]
np.testing.assert_allclose(slope, (moved[1] - moved[0]) / 2e-6, rtol=1e-4, atol=1e-2)
assert by_strength.shape == p["c"].shape
"""


def test_the_code(tmp_path):
    check("".join(blocks("docs/nufft.md")) + CHECK, folder=tmp_path)
