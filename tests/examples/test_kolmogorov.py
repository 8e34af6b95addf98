"""The example of Kolmogorov flow: the budgets of a run, their terms against NumPy, and the laminar flow."""

import re

import numpy as np
import pytest

import example


kolmogorov = example.load("kolmogorov")


def run(tmp_path, *options: str):
    return kolmogorov.main([*options, "--mesh", "2", "--out", str(tmp_path / "figure.png")])


def test_budgets_close(tmp_path):
    output = example.run_for_gallery("kolmogorov", tmp_path)
    imbalances = [float(text) for text in re.findall(r"minus loss by (\S+) of the input\.", output)]
    assert len(imbalances) == 2
    assert max(imbalances) < 1e-4


def test_terms_of_the_budgets_against_numpy(tmp_path):
    n, mode, viscosity, drag = 24, 3, 0.05, 0.2
    options = ("--n", str(n), "--mode", str(mode), "--viscosity", str(viscosity), "--drag", str(drag), "--t-end", "0.5")
    _, terms, vorticity = run(tmp_path, *options)
    k = np.fft.fftfreq(n, 1 / n)
    kx, ky = k[:, None], k[None]
    spectrum = np.fft.fft2(vorticity)
    stream = spectrum / np.where(kx**2 + ky**2 == 0, 1, kx**2 + ky**2)
    u, v, along_x, along_y = (
        np.fft.ifft2(1j * factor * a).real
        for factor, a in ((ky, stream), (-kx, stream), (kx, spectrum), (ky, spectrum))
    )
    y = 2 * np.pi * np.arange(n) / n
    energy, enstrophy = (u**2 + v**2).mean() / 2, (vorticity**2).mean() / 2
    palinstrophy = (along_x**2 + along_y**2).mean() / 2
    expected = {
        "energy": energy,
        "enstrophy": enstrophy,
        "energy_input": (u * np.sin(mode * y)).mean(),
        "energy_loss": 2 * viscosity * enstrophy + 2 * drag * energy,
        "enstrophy_input": -(vorticity * mode * np.cos(mode * y)).mean(),
        "enstrophy_loss": 2 * viscosity * palinstrophy + 2 * drag * enstrophy,
    }
    for name, value in expected.items():
        assert getattr(terms, name)[-1] == pytest.approx(value, rel=1e-10), name


def test_viscous_flow_is_laminar(tmp_path):
    n, mode, viscosity, drag = 16, 2, 0.5, 1.0
    options = ("--n", str(n), "--mode", str(mode), "--viscosity", str(viscosity), "--drag", str(drag), "--t-end", "15")
    _, terms, vorticity = run(tmp_path, *options, "--dt", "0.05")
    decay = viscosity * mode**2 + drag
    layers = -mode * np.cos(mode * 2 * np.pi * np.arange(n) / n) / decay
    np.testing.assert_allclose(vorticity, np.broadcast_to(layers, (n, n)), atol=1e-7)
    assert terms.energy[-1] == pytest.approx(1 / decay**2 / 4, rel=1e-7)


@pytest.mark.parametrize(("option", "value"), [("--n", "8"), ("--drag", "-1"), ("--mesh", "2x2"), ("--out", "a.txt")])
def test_bad_options_are_refused_in_one_line(option, value, capsys):
    example.assert_refused(kolmogorov, option, value, capsys)
