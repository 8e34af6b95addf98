"""The code of docs/spectral_operators.md."""

from pages import blocks, check


# This code checks Poisson's equation, a projection, and the curl in two dimensions.
OPERATORS = """
def modes(n, lengths):
    return np.meshgrid(*(2 * np.pi * np.fft.fftfreq(m, l / m) for m, l in zip(n, lengths)), indexing="ij")


kx, ky, kz = modes((32, 32, 32), (2, 1, 1))
k2 = kx**2 + ky**2 + kz**2
k2[0, 0, 0] = np.inf
np.testing.assert_allclose(u, np.fft.ifftn(-np.fft.fftn(f) / k2).real, atol=1e-6)
divergence = spectral.Divergence(fft)(solenoidal)
np.testing.assert_allclose(divergence, 0, atol=1e-4)
np.testing.assert_allclose(spectral.LerayProjection(fft)(solenoidal), solenoidal, atol=1e-5)
kx, ky = modes((64, 64), (2 * np.pi, 2 * np.pi))
kx[32], ky[:, 32] = 0, 0  # the Nyquist mode
hat = np.fft.fft2(flow)
np.testing.assert_allclose(vorticity, np.fft.ifft2(1j * kx * hat[1] - 1j * ky * hat[0]).real, atol=1e-3)
whole = sum(k**2 for k in modes((64, 64), (2 * np.pi, 2 * np.pi)))  # The inverse divides by all wavenumbers.
kept = np.divide(kx**2 + ky**2, whole, out=np.zeros_like(whole), where=whole > 0)
np.testing.assert_allclose(same_flow, np.fft.ifft2(hat * kept).real, atol=1e-4)
"""


def test_the_code():
    code = blocks("docs/spectral_operators.md")
    check("".join(block + after for block, after in zip(code, (OPERATORS,), strict=True)))
