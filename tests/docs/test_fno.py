"""The code of docs/fno.md."""

from pages import blocks, check, errors


PAGE = "docs/fno.md"
CHECK = """
P = jax.P
assert fields.sharding.spec == result.sharding.spec == P("data", None, "x", "y", None)
weight = model.blocks[0].spectral.weight
assert (weight.shape, weight.sharding.spec) == ((2, 4, 4, 7, 4, 7), P(None, "x", None, None, "y", None))
assert model.blocks[0].linear.weight.shape == (4, 4)
assert model.blocks[0].linear.weight.sharding.is_fully_replicated
place = {shard.device.id: shard.index for shard in fields.addressable_shards}
assert [place[device][0].start for device in range(8)] == [0] * 4 + [4] * 4
assert [(place[device][2].start, place[device][3].start) for device in range(4)] == [(0, 0), (0, 8), (8, 0), (8, 8)]
assert place[0][2:4] == (slice(0, 8), slice(0, 8))

variance = np.mean(np.asarray(training[1]) ** 2)
assert losses[-1] < variance / 10 and test_loss < variance / 10
truth = 10 * np.fft.irfftn(damping * np.fft.rfftn(unseen[0], axes=axes), axes=axes)
prediction = eqx.filter_jit(model)(unseen[0])
np.testing.assert_allclose(np.mean((prediction - truth) ** 2), test_loss, rtol=1e-3)
moment = state[0].mu.blocks[0].spectral.weight
assert moment.sharding.is_equivalent_to(weight.sharding, weight.ndim)
for one, other in zip(jax.tree.leaves((model, state)), jax.tree.leaves((same_model, restored["state"])), strict=True):
    np.testing.assert_array_equal(one, other)
assert len(disk) == 8
for name, array in pair.items():
    files = np.concatenate([io.read(path).arrays[name] for path in sorted(data.glob("*.zarr"))])
    np.testing.assert_array_equal(array, files[[5, 0]])
assert batch["input"].sharding.spec == fields.sharding.spec
assert position == {"next_index": 6} and value < losses[0]
ordered = [float(disk[i]["input"].max()) for i in range(8)]
places = [[ordered.index(float(sample.max())) for sample in np.asarray(batch)] for batch in (before, after)]
assert [place + 1 for place in places[0]] == places[1]
on_fine, on_coarse = np.asarray(on_fine)[:, ::2, ::2, ::2], np.asarray(on_coarse)
np.testing.assert_allclose(on_fine, on_coarse, atol=1e-3 * abs(on_coarse).max())
"""
ERRORS = {
    "`x` must have shape (*batch, 1, nx, ny, nz), with 1 channels": "model(np.ones((16, 16, 16)))",
    "`fft` must be": "nn.FNO3D(dops.FFT3D(mesh), 1, 1, width=4, modes=4, depth=1, key=jax.random.key(0))",
    "`modes` must be": "nn.FNO3D(fft, 1, 1, width=4, modes=9, depth=1, key=jax.random.key(0))",
}


def test_the_code():
    check("".join(blocks(PAGE)) + CHECK + errors(PAGE, ERRORS))
