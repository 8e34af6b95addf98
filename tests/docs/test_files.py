"""The code of docs/files.md."""

from pages import blocks, check


CHECK = """
assert snapshot.time == 0.5
np.testing.assert_allclose(other.decomposition.gather(snapshot.arrays["velocity"]), vortex, atol=1e-5)
last = io.read("decay/000002.h5").arrays["velocity"]
np.testing.assert_allclose(last, 0.9**3 * vortex, atol=1e-5)
with xarray.open_dataset("decay/000002.h5", engine="h5netcdf") as data:
    assert float(data.time) == 2
    np.testing.assert_allclose(data.x.values, 2 * np.pi / 16 * np.arange(16), rtol=1e-6)
np.testing.assert_array_equal(state["u"], u)
"""


def test_the_code(tmp_path):
    check("".join(blocks("docs/files.md")) + CHECK, folder=tmp_path)
