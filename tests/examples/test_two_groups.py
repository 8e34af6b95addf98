"""The example of groups that run different programs, run in one, two and four processes."""

import re

import numpy as np
import pytest

import example
from compiling import FLAGS, WARNINGS
from processes import free_port, report, start, wait


SMALL = ("--n", "16", "--snapshots", "8", "--width", "4")


def numbers(output: str) -> tuple[list[float], dict[str, list[float]]]:
    """Return the first and last energy, and the first and last relative error of each learner, from the output."""
    energy = re.search(r"energy falls from (\S+) to (\S+);", output).groups()
    learners = re.findall(r"Learner (\d), .* (\S+) at first and (\S+) in the last quarter", output)
    return [*map(float, energy)], {group: [float(first), float(last)] for group, first, last in learners}


def in_processes(folder, monkeypatch, *options: str, processes: int) -> str:
    """Return the output of process 0. The other processes only print messages of Gloo."""
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    shared = ["--address", f"127.0.0.1:{free_port()}", "--processes", processes, "--out", folder / "figure.png"]
    commands = [[example.EXAMPLES / "two_groups.py", *SMALL, *options, *shared, "--rank", i] for i in range(processes)]
    with start(folder, commands, FLAGS, options=WARNINGS) as ranks:
        wait(ranks, limit=240)
        assert [rank.code for rank in ranks] == [0] * processes, report(ranks)
        assert not any("snapshots" in rank.output for rank in ranks[1:]), report(ranks)
        return ranks[0].output


@pytest.fixture(scope="module")
def in_one_process(tmp_path_factory):
    """Return the output of the example in one process with the default 8 devices."""
    return example.run_for_gallery("two_groups", tmp_path_factory.mktemp("one"))


def test_one_process(in_one_process):
    assert in_one_process.startswith("16³ cells, 8 snapshots, 2x2x2 cpu devices\n")
    (first, last), learners = numbers(in_one_process)
    assert last < first < 1.5  # 1.5 is the energy at the start.
    assert list(learners) == ["1"]
    assert learners["1"][1] < 0.75 < 1 < learners["1"][0]  # An untrained network increases the error.
    assert float(re.search(r"sum to it up to (\S+)\.\n", in_one_process)[1]) < 1e-13
    assert float(re.search(r"runs differ by at most (\S+)\.\n", in_one_process)[1]) == 0
    assert re.search(r"Solver alone \S+ s, learners alone \S+ s, sum \S+ s\.\nTogether \S+ s: \S+ of", in_one_process)


@pytest.mark.parametrize(("processes", "mesh"), [(2, "2x2x2"), pytest.param(4, "4x1x1", marks=pytest.mark.sweep)])
def test_several_processes_compute_the_same(processes, mesh, in_one_process, tmp_path, monkeypatch):
    """Several processes find the same energy and the same errors of the first learner as one process.

    A learner of the same width learns the same on every mesh, with or without other learners.
    """
    output = in_processes(tmp_path, monkeypatch, "--mesh", mesh, processes=processes)
    energy, learners = numbers(output)
    expected_energy, expected = numbers(in_one_process)
    assert energy == pytest.approx(expected_energy, abs=2e-8)
    assert learners["1"] == pytest.approx(expected["1"], abs=2e-5)
    assert list(learners) == [str(group) for group in range(1, processes)]
    assert float(re.search(r"runs differ by at most (\S+)\.\n", output)[1]) == 0
    example.assert_picture(tmp_path / "figure.png")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--n", "15"),
        ("--n", "18"),
        ("--snapshots", "7"),
        ("--width", "0"),
        ("--mesh", "1x2x2"),
        ("--mesh", "2x2"),
        ("--processes", "2"),
        ("--rank", "1"),
        ("--out", "figure.pdf"),
    ],
)
def test_bad_option_is_refused_in_one_line(option, value, capsys):
    example.assert_refused(example.load("two_groups"), option, value, capsys)


@pytest.mark.parametrize("mesh", ["3x2x1", "1x3x1", "4x1x1"])
def test_a_process_has_devices_of_one_group(mesh, capsys):
    options = ["--mesh", mesh, "--processes", "2", "--address", "127.0.0.1:1"]
    with pytest.raises(SystemExit):
        example.load("two_groups").main(options)
    assert (
        f"argument --mesh: must divide each group's devices among its processes; got '{mesh}'"
        in capsys.readouterr().err
    )


def test_spectra_that_miss_the_energy_are_noticed():
    """The checks of the example detect four faults in the results.

    The faults are a spectrum that does not sum to the energy, growing energy, a learner that learns nothing, and a
    learner that learns differently while the solver runs.
    """
    two_groups = example.load("two_groups")

    def result(spectrum=1.0, last=1.0, corrected=0.5, other=0.5):
        energy = np.array([2.0, last])
        made = [
            {1: two_groups.Report(spectrum * energy[:, None], energy, np.ones(2), np.array([1.0, left]))}
            for left in (other, corrected)
        ]
        return two_groups.Result(*made, 1.0, 1.0, 1.0)

    assert two_groups.summarise(result(), 8)
    assert not two_groups.summarise(result(spectrum=1.001), 8)
    assert not two_groups.summarise(result(last=2.5), 8)
    assert not two_groups.summarise(result(corrected=1.5, other=1.5), 8)
    assert not two_groups.summarise(result(other=0.51), 8)
