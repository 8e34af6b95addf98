"""The code of docs/real_and_complex.md."""

from pages import blocks, check, errors


PAGE = "docs/real_and_complex.md"
CHECK = """
expected = np.fft.rfftn(u)
gather = fft.out_layout.gather
assert (k.shape, k.dtype, fft.out_layout.true_shape) == ((16, 16, 12), np.complex64, (16, 16, 9))
np.testing.assert_allclose(gather(k), expected, atol=1e-3)
np.testing.assert_allclose(v, u, atol=1e-5)
assert v.dtype == np.float32
assert not np.asarray(k)[..., 9:].any()
np.testing.assert_allclose(fft.inverse(k + 1), np.fft.irfftn(expected + 1), atol=1e-4)
np.testing.assert_allclose(fft.out_layout.sum(k + 1), (expected + 1).sum(), rtol=1e-3)
assert fft.out_layout.crop(k).shape == (16, 16, 9)
parts = {shard.index[2].start: np.asarray(shard.data).any() for shard in k.addressable_shards}
assert parts == {0: True, 3: True, 6: True, 9: False}

mode = np.fft.fftfreq(16, 1 / 16)
kx, ky, kz = map(np.ravel, fft.wavenumbers())
np.testing.assert_array_equal(kx, mode)
np.testing.assert_array_equal(kz, [*np.fft.rfftfreq(16, 1 / 16), 0, 0, 0])
odd = [np.ravel(wavenumber)[8] for wavenumber in fft.wavenumbers(nyquist=False)]
assert odd == [0, 0, 0]
np.testing.assert_allclose(power, (np.asarray(u) ** 2).sum(), rtol=1e-5)
np.testing.assert_allclose(derivative, np.broadcast_to(3 * np.cos(3 * x)[:, None, None], u.shape), atol=1e-5)

firsts = {}
for norm in ("backward", "ortho", "forward"):
    transform = dops.FFT3D(mesh, shape=(16, 16, 16), norm=norm)
    coefficients = transform(np.ones((16, 16, 16)))
    firsts[norm] = transform.out_layout.gather(coefficients)[0, 0, 0].real
    np.testing.assert_allclose(transform.inverse(coefficients), 1, atol=1e-5)
assert firsts == {"backward": 4096, "ortho": 64, "forward": 1}
unitary = dops.FFT3D(mesh, norm="ortho")
np.testing.assert_allclose(unitary.H(unitary(u)), u, atol=1e-5)

kx, ky, kz = fast.wavenumbers()
assert [w.shape for w in (kx, ky, kz)] == [(1, 1, 16), (16, 1, 1), (1, 12, 1)]
np.testing.assert_allclose(modes, expected, atol=1e-3)
square = sum(w**2 for w in np.meshgrid(mode, mode, mode[:9], indexing="ij"))
np.testing.assert_allclose(smooth, np.fft.irfftn(np.exp(-0.01 * square) * expected), atol=1e-5)
assert str(fast) == "FFT3D  f[*, 16, 16, 16] z-pencils 2x4 -> c[*, 16, 9, 16] x-pencils 2x4 stored as yzx"
plane = dops.FFT3D(mesh, shape=(16, 16, 16), real=True, transformed=("x", "y"))
np.testing.assert_allclose(plane.out_layout.gather(plane(u)), np.fft.rfft2(u, axes=(0, 1)), atol=1e-3)
assert fft(u.astype(complex).real.astype(np.float16)).dtype == np.complex64
both = [dops.FFT3D(mesh, axis_contiguous=flag) for flag in (False, True)]
assert abs(both[0].inverse(both[1](u)) - u).max() > 1  # of complex cubes a call cannot notice
"""
CHECK_DOUBLE = """
jax.config.update("jax_enable_x64", True)
w = fft.decomposition.shard(np.ones((16, 16, 16)))
whole = dops.FFT3D(mesh)
assert [fft(w).dtype, fft.inverse(fft(w)).dtype] == [np.complex128, np.float64]
assert [whole(w).dtype, whole.inverse(whole(w)).dtype] == [np.complex128] * 2
assert [whole(u).dtype, whole.inverse(whole(u)).dtype] == [np.complex64] * 2
"""
ERRORS = {
    "`x` must be real for a real transform": "fft(u.astype(complex))",
    "`shape` must be given to `FFT3D`": "dops.FFT3D(mesh, real=True)(u)",
    "a half spectrum does not tell the length of the field along z": (
        "dops.FFT3D(jax.make_mesh((8,), 'x'), real=True).inverse(np.ones((16, 16, 9)))"
    ),
    "This is the shape of the operator's result: do you mean": "fft.inverse(u)",
    "the storage orders of the axes differ": "fft.inverse @ fast",
    "Use `.at[...].get(out_sharding=)`": "k[0, 0, 0]",
}


def test_the_code():
    check("".join(blocks(PAGE)) + CHECK + errors(PAGE, ERRORS) + CHECK_DOUBLE)
