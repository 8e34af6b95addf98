"""Tests of the section on hardware in a report."""

from decompops.tools.report import hardware


def test_hardware_without_any_tools(monkeypatch):
    monkeypatch.setattr(hardware, "output_of", lambda *_: "")
    assert hardware.cpu()["model"]
    assert hardware.gpus() == {}


def test_gpus(monkeypatch):
    line = "NVIDIA H100, 81559 MiB, 570.1, 9.0, 1980 MHz, 700 W, 5\n"
    monkeypatch.setattr(hardware, "output_of", lambda *command: "\x1b[4mGPU0\x1b[0m\n" if "topo" in command else line)
    found = hardware.gpus()
    assert found["list"][0]["name"] == "NVIDIA H100"
    assert found["topology"] == "GPU0"
