"""The code of docs/sizes.md."""

from pages import blocks, check, errors


PAGE = "docs/sizes.md"
CHECK = """
np.testing.assert_array_equal(b, a)
np.testing.assert_allclose([mean, wrong], [a.mean() + 1, a.sum() / (30 * 32 * 30) + 1], rtol=1e-5)
assert tight.padded_shape() == (16, 32, 32)
planes = tight.shard(np.ones((9, 32, 32)))
held = [np.asarray(shard.data).any() for shard in planes.addressable_shards]
assert held == [True] * 5 + [False] * 3

assert u.shape == dec.padded_shape() == (30, 32, 30)
assert dec.padded_shape("x") == (30, 30, 32)
assert (dec.local_shape(), dec.local_shape("x")) == ((15, 8, 30), (30, 15, 8))
cells = {shard.device.id: np.asarray(shard.data)[0, :, 0] != 0 for shard in u.addressable_shards}
assert [cells[device].sum() for device in range(8)] == [8, 8, 8, 6] * 2

expected = np.fft.rfftn(a + 1)
for found in (spectrum, fft.out_layout.gather(same)):
    np.testing.assert_allclose(found, expected, atol=1e-2)
np.testing.assert_allclose(dec.gather(v), a + 1, atol=1e-5)
assert not np.asarray(v)[:, 30:].any()
ones, infinite = np.asarray(jnp.exp(u))[:, 30:], np.asarray(1 / u)[:, 30:]
assert (ones == 1).all() and np.isinf(infinite).all()

np.testing.assert_allclose(dec.sum(u + 1), (a + 1).sum(), rtol=1e-5)
np.testing.assert_allclose([dec.norm(u), dec.vdot(u, u) ** 0.5], np.linalg.norm(a), rtol=1e-5)
np.testing.assert_allclose(dec.max(-jnp.exp(u)), -np.exp(a).min(), rtol=1e-5)
assert dec.mean(dec.shard(np.ones((5, 30, 30, 30)))).shape == (5,)
np.testing.assert_allclose(dec.gather(gradient), 2 * np.exp(2 * a) / a.size, rtol=1e-4)
assert gradient.sharding.spec == dec.spec() and not np.asarray(gradient)[:, 30:].any()
bad = jax.jit(jax.grad(lambda u: dec.mean(jnp.log(u**2))))(u)
safe = jax.jit(jax.grad(lambda u: dec.mean(jnp.log(jnp.where(u != 0, u**2, 1)))))(u)
assert np.isnan(bad).any() and not np.isnan(dec.gather(bad)).any() and not np.isnan(safe).any()
by_xla = dops.Decomposition(dec, backend=dops.XLA())
program = jax.jit(by_xla.mean).lower(u).compile().as_text()
assert "all-reduce" in program and "all-gather" not in program

assert layouts == (fft.in_layout, dec.layout("x"), dec.layout(), layout)
assert (layout.true_shape, layout.shape, layout.local_shape) == ((30, 30, 16), (30, 30, 16), (30, 15, 4))
assert layout.spec == jax.P(None, "x", "y")
np.testing.assert_allclose(again, k, atol=1e-2)
np.testing.assert_allclose(power, (abs(expected) ** 2).sum(), rtol=1e-4)
assert zeros.shape == (30, 32, 30) and zeros.sharding.spec == dec.spec()
np.testing.assert_allclose(dec.gather(jnp.zeros(dec.padded_shape(), device=dec.sharding())), 0)
np.testing.assert_allclose(dec.mean(wave**2), 0.5, rtol=1e-4)
prime = dops.FFT3D(mesh, shape=(31, 29, 37), pad=True)
p = np.random.randn(31, 29, 37)
np.testing.assert_allclose(prime.out_layout.gather(prime(p)), np.fft.fftn(p), atol=1e-2)
try:
    dops.Decomposition(mesh, shape=(32, 30, 32))
except ValueError as error:
    assert "Meshes (rows, columns) of 8 devices that divide this shape: (4, 2), (8, 1)." in str(error)
"""
ERRORS = {
    "`shape` must be divisible by the mesh, unless `pad=True`": "dops.Decomposition(mesh, shape=(32, 30, 32))",
    "`shape` must be given to `FFT3D`": "dops.FFT3D(mesh, real=True)(np.ones((32, 32, 32)))",
    "`shape` must be given to the operator": "dops.FFT3D(mesh).wavenumbers()",
    "`field` must end with the shape of the grid": "dec.sum(np.zeros((30, 30, 16)))",
    "`array` must have shape (*batch, 30, 30, 30)": "dec.shard(np.asarray(u))",
    "should evenly divide the shape": "jnp.zeros(dec.shape, device=dec.sharding())",
    "got a block inside a `shard_map`": "jax.shard_map(dec.mean, mesh=mesh, in_specs=dec.spec(), out_specs=jax.P())(u)",
}


def test_the_code():
    check("".join(blocks(PAGE)) + CHECK + errors(PAGE, ERRORS))
