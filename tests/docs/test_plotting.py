"""The code of docs/plotting.md."""

from pages import blocks, check


CHECK = """
np.testing.assert_allclose(section.images[0].get_array(), np.asarray(vorticity)[2, :, :, 0].T, rtol=1e-6)
np.testing.assert_allclose(planes[1].images[0].get_array(), np.asarray(after)[0, 12], rtol=1e-6)
assert [len(ax.images) for ax in row] == [1, 1, 1]
assert len(spectrum.lines) == 3 and (np.diff(energy) < 0).all()
"""


def test_the_code(tmp_path):
    check("".join(blocks("docs/plotting.md")) + CHECK, folder=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"turbulence.png", "velocity.pdf", "temperature.pdf"}
