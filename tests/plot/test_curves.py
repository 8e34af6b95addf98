"""Tests of the lines and labels that `plot.curves` and `plot.panels` draw."""

import builtins
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from decompops import plot

from processes import report, start, wait, worker


TIME = np.linspace(0, 2, 9)


def test_curves_and_references():
    known = np.linspace(0, 1, 4)
    axes = plot.curves(
        TIME,
        {"energy": jnp.exp(-TIME), "enstrophy": TIME**2},
        references={"measured": (known, np.exp(-known)), "law": (TIME, 1 - TIME)},
        xlabel="time [s]",
        label="energy [J/kg]",
        title="decay",
    )
    expected = [(TIME, np.exp(-TIME)), (TIME, TIME**2), (known, np.exp(-known)), (TIME, 1 - TIME)]
    for line, data in zip(axes.lines, expected):
        np.testing.assert_allclose(line.get_data(), data, rtol=1e-12)
    assert [line.get_linestyle() for line in axes.lines] == ["-", "-", "--", ":"]
    assert [line.get_color() for line in axes.lines[2:]] == ["black", "black"]
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["energy", "enstrophy", "measured", "law"]
    assert [axes.get_xlabel(), axes.get_ylabel(), axes.get_title()] == ["time [s]", "energy [J/kg]", "decay"]


def test_a_single_curve_has_no_legend():
    axes = plot.curves(TIME, TIME**2, log="y", style="o-")
    assert axes.get_legend() is None
    assert [axes.get_xscale(), axes.get_yscale()] == ["linear", "log"]
    assert axes.lines[0].get_marker() == "o"
    assert plot.curves(TIME, TIME, ax=axes) is axes
    assert len(axes.lines) == 2


@pytest.mark.parametrize(
    ("last", "labels"), [(12, {1: "1", 2: "2", 3: "", 5: "5", 10: "10"}), (1e4, {1: "1", 2: "", 1000: "1000"})]
)
def test_logarithmic_ticks_are_plain_numbers(last, labels):
    axis = plot.curves(np.geomspace(1, last, 5), np.ones(5), log="x").xaxis
    for value, text in labels.items():
        formatter = axis.get_major_formatter() if np.log10(value) % 1 == 0 else axis.get_minor_formatter()
        assert formatter(value, 0) == text


def test_panels_belong_to_no_window():
    axes = plot.panels(2, 3, size=(2, 1), title="all")
    assert axes.shape == (2, 3)
    figure = axes[0, 0].figure
    assert tuple(figure.get_size_inches()) == (6, 2)
    assert figure.get_suptitle() == "all"
    assert plot.panels().shape == (1,)
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


def test_curves_that_are_sharded_over_processes(tmp_path):
    with start(tmp_path, worker(Path(__file__).with_name("rank.py"), "curves", 2, 2)) as ranks:
        wait(ranks, limit=90)
        assert [rank.code for rank in ranks] == [0, 0], report(ranks)


def test_a_missing_matplotlib_is_named(monkeypatch):
    original = builtins.__import__

    def without(name, *arguments, **options):
        if name.split(".")[0] == "matplotlib":
            raise ImportError(name)
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match="needs matplotlib: pip install matplotlib"):
        plot.curves(TIME, TIME)


def test_errors(plain):
    draw = plain.plot.curves
    for error, message, call in (
        (ValueError, r"`values\['a'\]` must have one value for each time", lambda: draw(TIME, {"a": TIME[1:]})),
        (ValueError, "`values` must have one value for each time", lambda: draw(TIME, TIME[None])),
        (
            ValueError,
            r"shape \(points,\); got \(1, 9\) for the values and \(1, 9\) for the times",
            lambda: draw(TIME[None], TIME[None]),
        ),
        *(
            (
                TypeError,
                r"`references\['b'\]` must be a pair \(times, values\); got ",
                lambda pair=pair: draw(TIME, TIME, references={"b": pair}),
            )
            for pair in (TIME, (TIME,), (TIME, TIME, TIME), None, 3)
        ),
        *(
            (
                TypeError,
                r"`references` must map names to pairs \(times, values\)",
                lambda references=references: draw(TIME, TIME, references=references),
            )
            for references in ([(TIME, TIME)], TIME, 3)
        ),
        (ValueError, r"`references\['b'\]` must have", lambda: draw(TIME, TIME, references={"b": (TIME, TIME[1:])})),
        (ValueError, "`values` must hide no values", lambda: draw(TIME, np.ma.masked_greater(TIME, TIME[0]))),
        (TypeError, "`values` must be real", lambda: draw(TIME, 1j * TIME)),
        (ValueError, "`log` must be one of", lambda: draw(TIME, TIME, log="z")),
        (ValueError, "`ax` must be 1 `Axes`", lambda: draw(TIME, TIME, ax=plain.plot.panels(1, 2))),
        (ValueError, "`rows` must be an integer of at least one", lambda: plain.plot.panels(0, 1)),
        *(
            (ValueError, "`size` must be two positive numbers", lambda size=size: plain.plot.panels(size=size))
            for size in ((1, -1), 3, (1, 2, 3), (1, None), (1, np.inf), "ab")
        ),
    ):
        with pytest.raises(error, match=message):
            call()
