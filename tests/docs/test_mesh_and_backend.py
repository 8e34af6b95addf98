"""The code of docs/mesh_and_backend.md."""

from pages import blocks, check, errors


PAGE = "docs/mesh_and_backend.md"
CHECK = """
expected = np.fft.fftn(u)
for result in (k, slabs(u), same_slabs(u), rows(u), tuned(u), native(u)):
    np.testing.assert_allclose(result, expected, atol=1e-3)
P = jax.P
assert (dec.spec(), dec.spec("y"), dec.spec("x")) == (P("x", "y", None), P("x", None, "y"), P(None, "x", "y"))
assert [dec.local_shape(axis) for axis in "zyx"] == [(16, 8, 32), (16, 32, 8), (32, 16, 8)]
assert str(fft) == "FFT3D  c[*, 32, 32, 32] z-pencils 2x4 -> c[*, 32, 32, 32] x-pencils 2x4"
for array, first in ((u, 0), (k, 1)):
    for shard in array.addressable_shards:
        row, column = divmod(shard.device.id, 4)
        assert [part.start or 0 for part in shard.index[first : first + 2]] == [16 * row, 8 * column]
program = jax.jit(pencils).lower(u).compile().as_text()
from decompops.tools.hlo import collectives
groups = {one.groups for one in collectives(program)}
assert groups == {((0, 1, 2, 3), (4, 5, 6, 7)), ((0, 4), (1, 5), (2, 6), (3, 7))}

assert counts == [2, 1, 1, 1]
entries = ["x", ("x", "y"), "y"]
assert [op.in_spec for op in (slabs, same_slabs, rows)] == [P(entry, None, None) for entry in entries]
assert [op.in_layout.local_shape for op in (slabs, same_slabs, rows)] == [(4, 32, 32), (4, 32, 32), (8, 32, 32)]

assert {tuple(sizes.values()) for sizes, *_ in table} == {(1, 8), (2, 4), (4, 2), (8, 1)}
assert {type(backend) for _, backend, _ in table} == {dops.XLA, dops.Native}
fastest = min(trials, key=lambda trial: trial.seconds).decomposition
assert (best.mesh, best.backend) == (fastest.mesh, fastest.backend)

backends = [operator.decomposition.backend for operator in (fft, in_xla, also_xla, native)]
assert backends == [dops.Native(), dops.XLA(), dops.XLA(), dops.Native()]
assert 2e-4 < error < 4e-4
exact, bfloat16 = (dops.FFT3D(mesh, backend=dops.XLA(wire=wire))(u) for wire in (None, "bfloat16"))
assert np.linalg.norm(exact - expected) < 3e-7 * np.linalg.norm(expected)
assert 2e-3 < np.linalg.norm(bfloat16 - expected) / np.linalg.norm(expected) < 3e-3
"""
ERRORS = {
    "`shape` must be divisible by the mesh, unless `pad=True`": "dops.FFT3D(mesh, shape=(30, 30, 30))",
    "`axes` must be at most 1 mesh axes for a grid of 2 axes": "dops.FFT2D(mesh, axes=('x', 'y'))",
    "`mesh` of the operator must be the ambient mesh": "with jax.set_mesh(slabs.decomposition.mesh):\n    fft(u)",
    "`x` must lie on the operator's mesh": (
        "dops.FFT3D(jax.make_mesh((2, 2), ('x', 'y'), devices=jax.devices()[:4]), shape=(32, 32, 32))(u)"
    ),
    "`MPI.initialize()` must be called before an operator is built": "dops.FFT3D(mesh, backend='mpi')",
    "does not work here": "dops.FFT3D(mesh, backend='cudecomp')",
}


def test_the_code(monkeypatch):
    monkeypatch.delenv("DECOMPOPS_BACKEND", raising=False)  # The page describes the defaults without this variable.
    check("".join(blocks(PAGE)) + CHECK + errors(PAGE, ERRORS))
