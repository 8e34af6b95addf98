"""The code of docs/batching.md."""

from pages import blocks, check, errors


PAGE = "docs/batching.md"
CHECK = """
spectra = np.fft.fftn(fields, axes=(1, 2, 3))
np.testing.assert_allclose(k, spectra, atol=1e-3)
np.testing.assert_allclose(one_by_one, spectra, atol=1e-3)
assert (u.sharding.spec, k.sharding.spec) == (P("c", "x", "y", None), P("c", None, "x", "y"))
assert vectors.shape == (5, 3, 16, 16, 16)
for shard in u.addressable_shards:
    assert shard.index[0] == (slice(0, 2) if shard.device.id < 4 else slice(2, 4))
    assert shard.data.shape == (2, 8, 8, 16)
shard = fft.decomposition.shard
assert shard(np.zeros((4, 3, 16, 16, 16))).sharding.spec == P("c", None, "x", "y", None)
assert shard(fields[:3]).sharding.spec == P(None, "x", "y", None)
assert fft(shard(fields[:3])).sharding.spec == P(None, None, "x", "y")
assert local.sharding.spec == P("b", None, None, None)
alone = dops.FFT3D(everywhere.decomposition, backend=dops.XLA())
text = jax.jit(alone).lower(local).compile().as_text()
assert not re.search(r"all-(to-all|gather|reduce)|collective-permute", text)

mode = np.fft.fftfreq(16, 1 / 16)
square = sum(k**2 for k in np.meshgrid(mode, mode, mode, indexing="ij"))
damp = lambda a, fields: np.fft.ifftn(np.exp(-a * square) * np.fft.fftn(fields, axes=(1, 2, 3)), axes=(1, 2, 3)).real
np.testing.assert_allclose(later, damp(0.1, fields), atol=1e-5)
np.testing.assert_allclose(sweep, damp(np.arange(4).reshape(4, 1, 1, 1), fields), atol=1e-5)
np.testing.assert_allclose(gradients, 2 * damp(0.2, fields), atol=1e-5)
assert {array.sharding.spec for array in (later, sweep, gradients)} == {u.sharding.spec}
assert kinds == {"all-to-all"}
if groups[0].startswith("mesh"):
    assert [group.split()[-1] for group in groups] == ["{'y'}", "{'x'}"]
else:
    assert groups == ["{{0,1},{2,3},{4,5},{6,7}}", "{{0,2},{1,3},{4,6},{5,7}}"]
from decompops.tools.hlo import collectives
pairs = [one.groups for one in collectives(program)]
assert pairs == [((0, 1), (2, 3), (4, 5), (6, 7)), ((0, 2), (1, 3), (4, 6), (5, 7))]
np.testing.assert_allclose(results[0], spectra[0], atol=1e-3)
np.testing.assert_allclose(fine.out_layout.gather(results[1]), np.fft.rfftn(np.ones((32, 32, 32))), atol=1e-2)
assert [sorted(device.id for device in array.devices()) for array in results] == [[0, 1, 2, 3], [4, 5, 6, 7]]
slabs = dops.FFT3D(jax.make_mesh((4,), ("x",), devices=second), shape=(16, 16, 16))
like_coarse = dops.FFT3D(jax.make_mesh((2, 2), ("x", "y"), devices=second), shape=(16, 16, 16))
"""
ERRORS = {
    "Mapped away dimension of inputs passed to vmap should be sharded the same": "jax.vmap(heat)(jnp.ones(4), u)",
    "0th dimension of all xs should be replicated": "jax.lax.map(fft, u)",
    "`x` must have shape (*batch, 16, 16, 16)": "fft(np.zeros((16, 16, 16, 3)))",
    "Received incompatible devices for jitted computation": "results[0] + like_coarse(fields[0])",
    "Mesh for all inputs should be equal": "results[0] + slabs(fields[0])",
}


def test_the_code():
    check("".join(blocks(PAGE)) + CHECK + errors(PAGE, ERRORS))
