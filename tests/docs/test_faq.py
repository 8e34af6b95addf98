"""The code of docs/faq.md."""

from pages import blocks, check


CHECK = """
values = np.asarray(u)
assert values.dtype == np.float32
assert (k.shape, fft.out_layout.true_shape) == ((32, 32, 20), (32, 32, 17))
np.testing.assert_allclose(modes, np.fft.rfftn(values), atol=1e-3)
assert (fft.in_spec, fft.out_spec) == (P("x", "y", None), P(None, "x", "y"))
np.testing.assert_allclose(y, np.fft.fft2(np.ones((16, 32))), atol=1e-4)
one_kx = dops.FFT3D(mesh, shape=(32, 32, 32), box=dops.Box(5.0)).wavenumbers()[0]
np.testing.assert_allclose(np.ravel(one_kx), 2 * np.pi * np.fft.fftfreq(32, 5 / 32), rtol=1e-6)
assert dops.FFT3D(mesh, shape=(32, 32, 32)).wavenumbers()[0].ravel()[3] == 3
stored = dops.FFT3D(mesh, axis_contiguous=True)(u)
np.testing.assert_allclose(stored, np.fft.fftn(values).transpose(1, 2, 0), atol=1e-3)

weights = zip(*map(jax.tree.leaves, (trained, model)), strict=True)
assert any(isinstance(old.sharding, jax.NamedSharding) for old in jax.tree.leaves(model))
assert all(new.sharding == old.sharding and (new == old).all() for new, old in weights)

# Bytes on each device: a block of the field, and of the padded half spectrum.
assert memory.argument_size_in_bytes == 32**3 * 4 // 8
assert memory.output_size_in_bytes == 32 * 32 * 20 * 8 // 8
assert len(times) == 5

# No gathering by functions of sharded arrays, and none between groups.
program = jax.jit(lambda x: dops.fft.fft2(x, backend="xla")).lower(x).compile().as_text()
assert "all-to-all" in program and "all-gather" not in program
groups = jax.make_mesh((2, 2, 2), ("c", "x", "y"))
transform = dops.FFT3D(groups, axes=("x", "y"), backend=dops.XLA())
batch = jax.device_put(np.ones((4, 8, 8, 8), np.complex64), jax.NamedSharding(groups, P("c", "x", "y")))
program = jax.jit(jax.vmap(transform)).lower(batch).compile().as_text()
assert "all-to-all" in program and "all-gather" not in program
"""


def test_the_code(tmp_path):
    check("".join(blocks("docs/faq.md")) + CHECK, folder=tmp_path)
