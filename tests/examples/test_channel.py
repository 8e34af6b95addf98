"""The example of a channel: the balances of a run, and a laminar flow against its exact series."""

import re

import numpy as np
import pytest
from numpy.polynomial import chebyshev

import example


channel = example.load("channel")


def test_momentum_is_balanced(tmp_path):
    output = example.run_for_gallery("channel", tmp_path)
    change, gained = map(float, re.search(r"at the rate (\S+); .* is (\S+)\.\n", output).groups())
    assert abs(change) > 0.01
    assert change == pytest.approx(gained, rel=0.03)
    assert float(re.search(r"of stresses is at most (\S+)\.\n", output)[1]) < 1e-2
    assert float(re.search(r"velocity is at most (\S+)\.\n", output)[1]) < 1e-12


def test_laminar_flow_agrees_with_its_series(tmp_path):
    re_tau = 5.0
    times = ("--t-end", "1", "--average", "0.5", "--dt", "0.005", "--amplitude", "0", "--re-tau", str(re_tau))
    out = ("--mesh", "2x1", "--out", str(tmp_path / "figure.png"))
    x, found = channel.main(["--n", "33", "8", "8", *times, *out])
    # The laminar flow is Poiseuille's flow plus a series of sines. Each sine decays at its own rate.
    y = (np.arange(4000) + 0.5) / 2000
    start = channel.initial_velocity((33, 1, 1), x, re_tau, 0.0)[1, :, 0, 0]
    kept = chebyshev.chebfit(1 - x, start, 32)[:22]  # The solver keeps two thirds of the polynomials.
    first = chebyshev.chebval(1 - y, kept) - re_tau / 2 * y * (2 - y)
    expected, slope, change = re_tau / 2 * x * (2 - x), re_tau, 0 * x
    for k in np.arange(1, 60) * np.pi / 2:
        amplitude, rate = 2 * np.mean(first * np.sin(k * y)), k**2 / re_tau
        mean = amplitude * (np.exp(-0.5 * rate) - np.exp(-rate)) / (0.5 * rate)
        expected, slope, change = (
            expected + mean * np.sin(k * x),
            slope + mean * k,
            change - rate * mean * np.sin(k * x),
        )
    np.testing.assert_allclose(found.velocity, expected, atol=2e-4)
    np.testing.assert_allclose(found.stress, slope / re_tau, atol=2e-4)
    np.testing.assert_allclose(found.change, change, atol=1e-3)
    np.testing.assert_allclose(found.fluctuations[[0, 2]], 0, atol=1e-12)
    assert np.abs(change).max() > 0.1


@pytest.mark.parametrize(
    ("option", "value"), [("--re-tau", "0"), ("--average", "9"), ("--mesh", "2"), ("--out", "a.txt")]
)
def test_bad_options_are_refused_in_one_line(option, value, capsys):
    example.assert_refused(channel, option, value, capsys)
