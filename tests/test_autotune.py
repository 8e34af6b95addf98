"""`dops.autotune`: what it tries, chooses, reports and keeps."""

import json

import decompops as dops
import jax
import numpy as np
import pytest
from decompops import _autotune

from helpers import assert_close, random_field


SLOW, FAST = (2, 4), (4, 2)


@pytest.fixture
def clock(monkeypatch):
    """Time is what the test says: calls are made, but the mesh `FAST` is faster than all others."""
    calls = []

    def seconds(compiled, field):
        mesh = tuple(field.sharding.mesh.shape.values())
        calls.append(mesh)
        jax.block_until_ready(compiled(field))
        return 1.0 if mesh == FAST else 100.0 if mesh == SLOW else 2.0

    monkeypatch.setattr(_autotune, "_time", seconds)
    return calls


def test_the_fastest_is_chosen_and_all_are_reported(clock):
    trials = []
    dec = dops.autotune((8, 10, 12), on_trial=trials.append, repeats=3)
    assert tuple(dec.mesh.shape.values()) == FAST
    assert (dec.shape, dec.backend, dec.axes) == ((8, 10, 12), dops.XLA(), ("x", "y"))
    tried = [tuple(trial.decomposition.mesh.shape.values()) for trial in trials]
    assert tried == [(1, 8), (2, 4), (4, 2), (8, 1)]
    assert [trial.seconds for trial in trials] == [2.0, 100.0, 1.0, 2.0]
    assert all(trial.failure is None for trial in trials)
    assert [clock.count(mesh) for mesh in tried] == [5, 3, 5, 5]  # two runs before; a hopeless one is timed once
    u = random_field((8, 10, 12))
    fft = dops.FFT3D(dec, real=True)
    assert_close(dec.gather(fft.inverse(fft(dec.shard(u)))), u)


def test_real_time_and_fewer_devices():
    dec = dops.autotune((8, 8, 8), devices=jax.devices()[:4], dtype="complex64", repeats=1)
    assert dec.mesh.devices.size == 4


def test_own_operator_backends_and_axes(clock):
    seen = []

    def build(dec):
        seen.append(dec)
        transpose = dops.Transpose(dec, "z", "y")
        if dec.sizes == (1, 8):
            raise MemoryError("too much")
        return lambda x: transpose(x)

    trials = []
    kind = (jax.sharding.AxisType.Explicit,) * 2
    dec = dops.autotune(
        (16, 16, 16), operator=build, backends=[dops.XLA()], axes=("a", "b"), axis_types=kind, on_trial=trials.append
    )
    assert dict(dec.mesh.shape) == {"a": 4, "b": 2}
    assert dec.mesh.axis_types == kind
    assert trials[0].failure == "MemoryError: too much"
    assert trials[0].seconds == np.inf


def test_a_candidate_that_fails_later_is_not_chosen(monkeypatch):
    calls = []

    def seconds(compiled, field):
        calls.append(field)
        if len(calls) == 2:
            raise RuntimeError("out of luck")
        return 1e-9 if len(calls) == 1 else 1.0

    monkeypatch.setattr(_autotune, "_time", seconds)
    trials = []
    dec = dops.autotune((8, 8, 8), on_trial=trials.append)
    assert (trials[0].seconds, trials[0].failure) == (np.inf, "RuntimeError: out of luck")
    assert dec == trials[1].decomposition


def test_a_cache_that_is_none(plain, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(ValueError, match=r"`cache` must be a JSON file .*notes.txt"):
        plain.autotune((8, 8, 8), cache=path)
    assert path.read_text() == "mine"


def test_cache(clock, tmp_path):
    path = tmp_path / "choices.json"

    def calls_of(**options) -> int:
        clock.clear()
        dec = dops.autotune((8, 8, 8), cache=path, **options)
        assert tuple(dec.mesh.shape.values()) == FAST
        return len(clock)

    assert calls_of() > 0
    assert calls_of() == 0
    assert calls_of(dtype="complex64") > 0
    assert calls_of(operator=lambda dec: dops.FFT3D(dec, real=True)) > 0
    assert calls_of(operator=lambda dec: dops.FFT3D(dec, real=True)) == 0
    assert len(json.loads(path.read_text())) == 3
    assert [file.name for file in tmp_path.iterdir()] == ["choices.json"]


def test_nothing_works():
    def build(dec):
        raise ValueError("of no use")

    with pytest.raises(RuntimeError, match=r"no candidate works: (.|\n)* fails with ValueError: of no use"):
        dops.autotune((8, 8, 8), operator=build)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"devices": []}, ValueError, "`devices` must have at least one device"),
        ({"dtype": "int32"}, TypeError, "`dtype` must be real or complex floating point; got int32"),
        ({"repeats": 0}, ValueError, "`repeats` must be a positive integer; got 0"),
        ({"backends": []}, ValueError, "`backends` must have at least one backend"),
        ({"shape": (8, 8)}, ValueError, "`shape` must"),
    ],
)
def test_bad_input(plain, options, error, message):
    with pytest.raises(error, match=message):
        plain.autotune(**({"shape": (8, 8, 8)} | options))
