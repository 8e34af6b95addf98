"""The pictures in docs/pictures show the shards of the arrays that decompops makes now."""

import itertools
import re
import runpy
import subprocess
import sys

import numpy as np
import pytest
from decompops import pde
from scipy import sparse
from scipy.integrate import solve_ivp
from scipy.sparse.linalg import cg, spsolve

from pages import ROOT


SVG = runpy.run_path(str(ROOT / "docs/tools/svg.py"))


@pytest.mark.sweep
def test_the_committed_pictures_are_those_that_the_script_draws():
    command = [sys.executable, "docs/tools/pictures.py", "--check"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=ROOT)
    assert run.returncode == 0, run.stderr


def test_each_device_holds_one_block_of_three_visible_faces():
    text = (ROOT / "docs" / "pictures" / "shards.svg").read_text()
    assert text.count("<polygon") == 3 * 8
    assert sorted(re.findall(r">(\d)</text>", text)) == list("01234567")


def test_every_halo_cell_has_the_colour_of_its_periodic_neighbour():
    text = (ROOT / "docs" / "pictures" / "halo.svg").read_text()
    pale = re.findall(r'<path d="([^"]*)" fill="(#\w+)" fill-opacity="0.5"', text)
    counts = {}
    for path, colour in pale:
        counts[colour] = counts.get(colour, 0) + path.count("M")
    # A block sends 4 cells to each of its 2 neighbours along y. Along x, the mesh has only two devices. So one device
    # is the neighbour on both sides, and gets 2 x 4 cells. The four corners of a block go to the diagonal neighbours.
    assert len(counts) == 8
    assert set(counts.values()) == {2 * 4 + 2 * 4 + 4}


def test_the_equations_of_the_diagram_exist_and_are_in_the_table():
    names = set(
        re.findall(r'font-style="normal">([A-Z]\w+)</text>', (ROOT / "docs/pictures/equations.svg").read_text())
    )
    assert len(names) == 23
    assert names <= set(re.findall(r"^\| `(\w+)\(", (ROOT / "docs/equations.md").read_text(), re.MULTILINE))
    assert all(issubclass(getattr(pde, name), pde.AbstractSplitEquation) for name in names)


def test_the_counts_of_copies_are_those_of_numpy():
    """A block of 4 by 4 cells has a copy of all cells that are at most one cell away, on a periodic grid."""
    expected = np.zeros((8, 16), int)
    for row, column in itertools.product(range(0, 8, 4), range(0, 16, 4)):
        for i, j in itertools.product(range(-1, 5), repeat=2):
            expected[(row + i) % 8, (column + j) % 16] += 1
    assert [int(count) for count in texts("adjoint.svg") if count.isdigit()] == expected.ravel().tolist()


def test_the_shells_hold_the_modes_that_numpy_counts():
    k = np.fft.fftfreq(16, 1 / 16)
    lengths = np.sqrt(sum(axis**2 for axis in np.meshgrid(k, k, k)))
    expected, _ = np.histogram(lengths, np.arange(0.5, 6))
    assert [int(count) for count in texts("shells.svg") if count.isdigit()] == expected.tolist()


def test_the_layers_name_the_exchanges_of_the_compiled_transform():
    """A pencil mesh needs two exchanges, in the plan and in the program, and a slab mesh one."""
    assert texts("layers.svg").count("exchange") == 2 * 2
    assert [text for text in texts("meshes.svg") if "exchange" in text] == ["2 exchanges", "1 exchange", "1 exchange"]


def test_the_reach_of_two_layers():
    """Two kernels of 3 reach 5 cells along each axis. After a stride of 2, the second one reaches 7 cells."""
    text = (ROOT / "docs/pictures/reach.svg").read_text()
    reached = re.findall(r'<path d="([^"]*)" fill="#\w+" fill-opacity="1"', text)
    assert sum(path.count("M") for path in reached) == 5 * 5 + 7 * 7


def test_the_modes_of_the_points_are_sums_of_numpy():
    """The picture has the points to a tenth of a pixel, and a colour for each of the modes."""
    text = (ROOT / "docs/pictures/points.svg").read_text()
    circles = np.array(re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', text), float)
    x = (circles - (20, 60)) * (1, -1) * 2 * np.pi / 288 + (0, 2 * np.pi)
    k = np.arange(-8, 8)
    phases = [np.exp(-1j * k * x[:, axis, None]) for axis in (0, 1)]
    expected = np.abs(np.einsum("j,jk,jl->kl", np.cos(x @ (3, 2)), *phases)) / len(x)
    assert len(x) == 300
    assert np.argwhere(expected > 0.3).tolist() == [[5, 6], [11, 10]]
    shown = image(text, left=410, top=60, side=18, size=(16, 16), colours=SVG["UPWARDS"]).T[:, ::-1]
    # A colour stands for an interval of a ninth of 0.5.
    inner = np.s_[1:, 1:]  # The modes with k = -8 are means with those of k = 8.
    assert np.abs((shown + 0.5) * 0.5 / 9 - expected)[inner].max() < 0.5 * 0.5 / 9 + 0.005


def test_the_conductivity_and_its_potential_fulfil_their_equation():
    """Differences of second order, solved by SciPy, give the potential that the picture shows."""
    n, side = 36, 6
    text = (ROOT / "docs/pictures/conductivity.svg").read_text()
    x, y = np.meshgrid(*2 * [2 * np.pi * np.arange(n) / n], indexing="ij")
    bump = lambda at, to: np.exp(-3 * (2 - np.cos(x - at) - np.cos(y - to)))
    log_a = bump(1.6, 2.4) - 1.2 * bump(4.6, 3.9)
    matrix = sparse.csr_array((n * n, n * n))
    for axis in (0, 1):
        forward, whole = sparse.csr_array(np.roll(np.eye(n), 1, axis=1) - np.eye(n)), sparse.eye_array(n)
        slope = sparse.kron(*((forward, whole) if axis == 0 else (whole, forward))).tocsr()
        at_faces = 10 ** ((log_a + np.roll(log_a, -1, axis)) / 2)
        matrix = matrix - slope.T @ sparse.diags_array(at_faces.ravel()) @ slope * (n / (2 * np.pi)) ** 2
    # The equation leaves the mean free: the first equation becomes u = 0 there.
    matrix, f = matrix.tolil(), np.cos(x).ravel()
    matrix[0], f[0] = 0, 0
    matrix[0, 0] = 1
    u = spsolve(matrix.tocsc(), f).reshape(n, n)
    for i, expected in enumerate((log_a, -np.cos(x), u - u.mean())):
        shown = image(text, 12 + 232 * i, 50, side, (n, n), SVG["SIGNED"]).T[:, ::-1]
        width = 2.4 / len(SVG["SIGNED"])
        error = np.clip(expected, -1.2, 1.2) - (-1.2 + (shown + 0.5) * width)
        assert np.abs(error).max() < width / 2 + (0.05 if i == 2 else 1e-9)


def test_the_residuals_of_conjugate_gradients_are_those_of_scipy():
    n, steps = 96, 30
    text = (ROOT / "docs/pictures/cycles.svg").read_text()
    found = {}
    for x, y, colour in re.findall(r'cx="([\d.]+)" cy="([\d.]+)" r="4" fill="(#\w+)"', text):
        found.setdefault(colour, []).append((round((float(x) - 90) / 570 * steps), 1 - (float(y) - 60) / 27))
    alone, with_multigrid, cycles = (np.array(curve) for curve in found.values())
    x, y = np.meshgrid(*2 * [2 * np.pi * np.arange(n) / n], indexing="ij")
    a = np.exp(np.sin(x) * np.cos(y))
    # From one centre to the next there are two half cells; from a wall to a centre there is one.
    resistances = [(1 / a + np.roll(1 / a, 1, axis)) / 2 for axis in (0, 1)]
    matrix = sparse.csr_array((n * n, n * n))
    for axis, inner in enumerate(resistances):
        across, wall = np.moveaxis(inner, axis, 0), np.moveaxis(1 / a, axis, 0) / 2
        faces = np.moveaxis(1 / np.concatenate([wall[:1], across[1:], wall[-1:]]), 0, axis)
        slope = sparse.diags_array([np.ones(n), -np.ones(n)], offsets=[0, -1], shape=(n + 1, n))
        factors = (slope, sparse.eye_array(n)) if axis == 0 else (sparse.eye_array(n), slope)
        whole = sparse.kron(*factors).tocsr()
        matrix = matrix + whole.T @ sparse.diags_array(faces.ravel()) @ whole
    f = np.random.default_rng(0).standard_normal(n * n)
    expected = [1.0]
    record = lambda u: expected.append(np.linalg.norm(f - matrix @ u) / np.linalg.norm(f))
    cg(matrix, f, rtol=1e-12, maxiter=steps, callback=record)
    assert alone[:, 0].tolist() == list(range(steps + 1))
    np.testing.assert_allclose(alone[:, 1], np.log10(expected), atol=0.005)  # A tenth of a pixel is 0.004.
    assert len(with_multigrid) == 8
    assert len(cycles) == 11
    assert max(with_multigrid[-1, 1], cycles[-1, 1]) <= -8


def test_the_flow_rests_in_the_body_and_is_symmetric():
    text = (ROOT / "docs/pictures/body.svg").read_text()
    speed = image(text, left=20, top=50, side=8, size=(40, 60), colours=SVG["UPWARDS"])[::-1].T
    (x, y, radius), _ = (map(float, at) for at in re.findall(r'cx="([\d.]+)" cy="([\d.]+)" r="([\d.]+)"', text))
    centres = np.stack(np.meshgrid(24 + 8 * np.arange(60), 366 - 8 * np.arange(40), indexing="ij"))
    distance = np.hypot(centres[0] - x, centres[1] - y)
    assert (speed[distance < radius - 8] == 0).all()
    # The points j and -j, about the point 20 of the body, have the same speed.
    np.testing.assert_array_equal(speed[:, 20:], speed[:, 20:0:-1])
    before, behind = speed[2, 20], speed[45, 20]
    assert behind < before <= speed[2].max() < speed[20].max()


def test_only_the_exchange_along_x_connects_machines():
    """On 2 by 4 devices, rows of four devices are on one machine, and columns on two."""
    text = (ROOT / "docs/pictures/machines.svg").read_text()
    frames = re.findall(r'<rect x="300" y="(\d+)" width="370" height="(\d+)"', text)
    links = re.findall(r'<path d="M[\d.]+ ([\d.]+)L[\d.]+ ([\d.]+)" stroke="(#\w+)"', text)
    machine = lambda y: [int(top) <= float(y) <= int(top) + int(height) for top, height in frames].index(True)
    crossing = [(machine(y) != machine(to_y), colour) for y, to_y, colour in links]
    assert sorted(crossing) == [(False, SVG["INK"])] * 6 + [(True, SVG["COLOURS"][5])] * 4


def test_a_run_that_was_stopped_shows_the_exact_wave():
    text = (ROOT / "docs/pictures/restart.svg").read_text()
    places = np.array(re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', text), float)
    t, height = (places[:, 0] - 128) / 54, 1.6 - (places[:, 1] - 150) * 2.6 / 170
    np.testing.assert_allclose(t, np.arange(41) / 4, atol=0.001)
    np.testing.assert_allclose(height, np.cos(t) + np.cos(2 * t) / 2, atol=0.003)
    assert "without interruption: the largest difference is 0" in texts("restart.svg")


def test_the_network_predicts_what_scipy_solves():
    text = (ROOT / "docs/pictures/learned.svg").read_text()
    n, k = 32, 1j * np.fft.rfftfreq(32, 1 / 32)
    number = r"[\d.]+"
    lines = [
        np.array(re.findall(rf"({number}) ({number})", path), float) for path in re.findall(r'd="M([^"h]*)"', text)
    ]
    inputs, predictions = ([one[:, 1] for one in lines if len(one) == n][i::2] for i in (0, 1))
    circles = np.array(re.findall(rf'cx="{number}" cy="({number})"', text), float)[: 2 * n].reshape(2, n)
    rate = lambda t, u: np.fft.irfft(-k / 2 * np.fft.rfft(u**2) + 0.2 * k**2 * np.fft.rfft(u), n)
    for before, solution, prediction in zip(inputs, circles, predictions):
        before, solution, prediction = (5 * (0.5 - (y - 56) / 220) for y in (before, solution, prediction))
        expected = solve_ivp(rate, (0, 1), before, rtol=1e-8, atol=1e-8).y[:, -1]
        np.testing.assert_allclose(solution, expected, atol=0.01)
        assert np.linalg.norm(prediction - expected) < 0.1 * np.linalg.norm(expected)
        assert np.linalg.norm(before - expected) > 0.5 * np.linalg.norm(expected)


def test_the_local_transform_takes_and_returns_one_block():
    """The field is drawn as eight blocks of three faces, and the blocks of device 6 as one each."""
    text = (ROOT / "docs/pictures/local.svg").read_text()
    assert text.count("<polygon") == 3 * (8 + 1 + 1)
    # 9 modes along z are padded to 12, for 4 devices.
    assert [shown for shown in texts("local.svg") if "×" in shown] == ["16 × 16 × 16", "8 × 4 × 16", "16 × 8 × 3"]


def test_a_transform_sends_no_more_than_it_must():
    """An all-gather sends a block to the 7 other devices; all-to-alls keep a fourth and a half of each block."""
    amounts = [text for text in texts("sent.svg") if "blocks:" in text]
    assert amounts == ["7 blocks: all-gather", f"{3 / 4 + 1 / 2} blocks: all-to-all"]


def test_a_file_is_drawn_with_the_blocks_of_its_writers_and_readers():
    text = (ROOT / "docs/pictures/read.svg").read_text()
    assert text.count("<polygon") == 3 * (8 + 2)
    assert [shown for shown in texts("read.svg") if shown.count("×") == 2] == [
        "8 × 4 × 16",
        "16 × 8 × 16",
        "16 × 16 × 16",
    ]


def test_each_rank_holds_a_slab_of_the_field_and_of_the_half_spectrum():
    text = (ROOT / "docs/pictures/ranks.svg").read_text()
    assert text.count("<polygon") == 3 * (4 + 4)
    slabs = [shown.removeprefix("each rank: ") for shown in texts("ranks.svg") if "×" in shown]
    assert slabs == [f"{64 // 4} × 64 × 64", f"64 × {64 // 4} × {64 // 2 + 1}"]
    assert "shape=(64, 64, 64), real=True" in (ROOT / "docs/cluster.md").read_text()


def image(
    text: str, left: float, top: float, side: float, size: tuple[int, int], colours: tuple[str, ...]
) -> np.ndarray:
    """Return the number of the colour of each square of the image at (left, top), which has `size` squares."""
    levels = np.full(size, -1)
    for path, colour in re.findall(r'<path d="([^"]*)" fill="(#\w+)"/>', text):
        for x, y, length in re.findall(rf"M([\d.]+) ([\d.]+)h([\d.]+)v{side:g}h", path):
            row, column = (round((float(at) - start) / side) for at, start in ((y, top), (x, left)))
            if 0 <= row < size[0] and 0 <= column < size[1]:
                levels[row, column : column + round(float(length) / side)] = colours.index(colour)
    assert levels.min() >= 0
    return levels


def texts(name: str) -> list[str]:
    """Return the texts of a picture."""
    return re.findall(r">([^<]+)</text>", (ROOT / "docs/pictures" / name).read_text())
