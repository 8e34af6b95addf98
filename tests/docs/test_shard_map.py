"""The code of docs/shard_map.md."""

from pages import blocks, check, errors


PAGE = "docs/shard_map.md"
CHECK = """
mode = np.fft.fftfreq(16, 1 / 16)
square = sum(k**2 for k in np.meshgrid(mode, mode, mode[:9], indexing="ij"))
smoother = lambda a: np.fft.irfftn(np.exp(-0.1 * square) * np.fft.rfftn(a))
for result in (v, w, pipeline(u)):
    np.testing.assert_allclose(result, smoother(a), atol=1e-5)
    assert result.sharding.spec == fft.in_spec
np.testing.assert_allclose(total, (a**2).sum(), rtol=1e-5)
assert (fft.in_layout.local_shape, fft.out_layout.local_shape) == ((8, 4, 16), (16, 8, 3))
assert fft(u).shape == (16, 16, 12)
assert [s.index[:2] for s in u.addressable_shards if s.device.id == 6] == [(slice(8, 16), slice(8, 12))]
rolled = sum(np.roll(a, shift, axis) for shift in (1, -1) for axis in range(3))
np.testing.assert_allclose(second, rolled - 6 * a, atol=1e-4)
np.testing.assert_allclose(along_y, np.cumsum(a, 1), atol=1e-4)
np.testing.assert_allclose(gradient, 2 * smoother(smoother(a)), atol=1e-4)
assert gradient.sharding.spec == u.sharding.spec
for result in (spectra, same_spectra, spectra_again):
    np.testing.assert_allclose(result, np.fft.fftn(fields, axes=(1, 2, 3)), atol=1e-3)
    assert result.sharding.spec == jax.P("c", None, "x", "y")

where = lambda u: jnp.stack([jax.lax.axis_index("x"), jax.lax.axis_index("y")])[:, None, None]
places = jax.shard_map(where, mesh=mesh, in_specs=fft.in_spec, out_specs=jax.P(None, "x", "y"))(u)
np.testing.assert_array_equal(places, np.indices((2, 4)))
dec = dops.Decomposition(mesh, shape=(30, 30, 30), pad=True)
padded = dops.FFT3D(dec, real=True)
b = np.random.randn(30, 30, 30).astype(np.float32)
local = jax.shard_map(lambda u: padded.local(u + 1), mesh=mesh, in_specs=padded.in_spec, out_specs=padded.out_spec)
np.testing.assert_allclose(padded.out_layout.gather(local(dec.shard(b))), np.fft.rfftn(b + 1), atol=1e-2)
auto = jax.sharding.Mesh(mesh.devices, mesh.axis_names)
cut = lambda f, spec: jax.shard_map(f, mesh=auto, in_specs=spec, out_specs=fft.out_spec)(a)
"""
ERRORS = {
    "`.local(block)` must be called inside a `shard_map`": "fft.local(u)",
    "`x` must be a global field": "cut(dops.FFT3D(auto), fft.in_spec)",
    "`field` must be a global field": "cut(dec.sum, fft.in_spec)",
    "`block` must have shape": "cut(dops.FFT3D(auto, shape=(16, 16, 16)).local, jax.P('x'))",
    "does not match the specs of the input": "jax.shard_map(block, mesh=mesh, in_specs=jax.P('x'), out_specs=spec)(u)",
    "`x` must be a global array": "cut(dops.fft.fftn, fft.in_spec)",
}


def test_the_code():
    check("".join(blocks(PAGE)) + CHECK + errors(PAGE, ERRORS))
