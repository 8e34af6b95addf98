"""Tests of `dops.autotune`: its candidates, its choice, its reports and its cache."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops._autotune import choose, trial
from decompops._autotune.tuner import AbstractTuner
from decompops._core import registry

from helpers import assert_close, random_field


SLOW, FAST = (2, 4), (4, 2)


@pytest.fixture
def clock(monkeypatch):
    """Replace the timer by a mock that calls each operator and returns fixed times, the shortest for mesh `FAST`."""
    calls = []

    def seconds(compiled, field):
        mesh = tuple(field.sharding.mesh.shape.values())
        calls.append(mesh)
        jax.block_until_ready(compiled(field))
        return 1.0 if mesh == FAST else 100.0 if mesh == SLOW else 2.0

    monkeypatch.setattr(trial, "_time", seconds)
    return calls


def test_the_fastest_is_chosen_and_all_are_reported(clock):
    trials = []
    dec = dops.autotune((8, 10, 12), pad=True, on_trial=trials.append, repeats=3, backends=["xla"])
    assert tuple(dec.mesh.shape.values()) == FAST
    assert (dec.shape, dec.backend, dec.axes) == ((8, 10, 12), dops.XLA(), ("x", "y"))
    tried = [tuple(trial.decomposition.mesh.shape.values()) for trial in trials]
    assert tried == [(1, 8), (2, 4), (4, 2), (8, 1)]
    assert [trial.seconds for trial in trials] == [2.0, 100.0, 1.0, 2.0]
    assert all(trial.failure is None for trial in trials)
    assert [clock.count(mesh) for mesh in tried] == [
        5,
        3,
        5,
        5,
    ]  # Two untimed runs come before the timed runs. A slow candidate is timed only once.
    u = random_field((8, 10, 12))
    fft = dops.FFT3D(dec, real=True)
    assert_close(dec.gather(fft.inverse(fft(dec.shard(u)))), u)


def test_meshes_that_do_not_divide_the_grid_are_skipped(clock, plain):
    for pad, right in ((False, [(4, 2), (8, 1)]), (True, [(1, 8), (2, 4), (4, 2), (8, 1)])):
        trials = []
        dec = dops.autotune((8, 10, 12), pad=pad, on_trial=trials.append, repeats=1, backends=["native"])
        assert [trial.decomposition.sizes for trial in trials] == right
        assert dec.pad == pad
    with pytest.raises(ValueError, match=r"`shape` must be divided by a mesh .* of 8 devices, .* got \(9, 10, 12\)"):
        plain.autotune((9, 10, 12))


def test_grids_of_two_and_four_axes(plain):
    def tried(shape, **options) -> tuple[dops.Decomposition, list]:
        trials = []
        options |= {"devices": jax.devices()[:4], "backends": ["xla"]}
        dec = dops.autotune(shape, repeats=1, on_trial=trials.append, **options)
        assert all(trial.failure is None for trial in trials)
        return dec, [trial.decomposition.sizes for trial in trials]

    dec, sizes = tried((8, 12))
    assert (dec.axes, dec.shape, sizes) == (("x",), (8, 12), [(4,)])
    dec, sizes = tried((4, 2, 4, 4), operator=lambda dec: lambda u: u)
    assert (dec.axes, sizes) == (("x", "y"), [(2, 2), (4, 1)])
    dec, sizes = tried((2, 2, 2, 2), operator=lambda dec: lambda u: u, axes=("a", "b", "c"), pad=False)
    assert (dec.axes, sizes) == (("a", "b", "c"), [(1, 2, 2), (2, 1, 2), (2, 2, 1)])
    for shape, options, message in (
        ((8,), {}, "`shape` must have two or more axes"),
        ((8, 8), {"axes": ("x", "y")}, r"`axes` must be 1 to 1 different names, for a grid of 2 axes; got \('x', 'y'"),
        ((8, 8, 8), {"axes": "xy"}, r"`axes` must be 1 to 2 different names, for a grid of 3 axes; got 'xy'"),
    ):
        with pytest.raises(ValueError, match=message):
            plain.autotune(shape, **options)


def test_real_time_and_fewer_devices():
    trials = []
    dec = dops.autotune((8, 8, 8), devices=jax.devices()[:4], dtype="complex64", repeats=1, on_trial=trials.append)
    assert dec.mesh.devices.size == 4
    assert {type(trial.decomposition.backend) for trial in trials if trial.failure is None} == {dops.XLA, dops.Native}


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

    monkeypatch.setattr(trial, "_time", seconds)
    trials = []
    dec = dops.autotune((8, 8, 8), on_trial=trials.append, backends=["native"])
    assert (trials[0].seconds, trials[0].failure) == (np.inf, "RuntimeError: out of luck")
    assert dec == trials[1].decomposition


def test_open_options_are_tried_and_tuners_asked(clock, monkeypatch):
    """`autotune` tries all variants of a backend and all candidates of a tuner. A backend may be given by name."""

    @dataclass(frozen=True)
    class Open(dops.XLA):
        chunks: int | None = None

        def variants(self):
            return tuple(replace(self, chunks=n) for n in (2, 4)) if self.chunks is None else (self,)

    @dataclass(frozen=True)
    class Tuner(AbstractTuner):
        def candidates(self, task):
            assert (task.shape, task.dtype, task.repeats) == ((8, 8, 8), np.complex64, 1)
            return [task.decompose(SLOW, Open(chunks=8)), task.decompose(FAST, Open(chunks=16))]

    def tried(*backends, **options) -> list:
        trials = []
        options = {"dtype": "complex64", "repeats": 1, "backends": backends or None} | options
        found = dops.autotune((8, 8, 8), operator=lambda dec: lambda u: u, on_trial=trials.append, **options)
        assert found.sizes == FAST
        return [(trial.decomposition.backend, trial.decomposition.sizes) for trial in trials]

    meshes = [(1, 8), SLOW, FAST, (8, 1)]
    assert tried(Open()) == [(Open(n), mesh) for n in (2, 4) for mesh in meshes]
    assert tried(Tuner(), "xla", Open(1)) == [
        *((Open(8), SLOW), (Open(16), FAST)),
        *((backend, mesh) for backend in (dops.XLA(), Open(1)) for mesh in meshes),
    ]
    monkeypatch.setattr(registry, "_registered", {"xla": dops.XLA, "open": Open, "mpi": dops.MPI})
    assert tried() == [(backend, mesh) for backend in (dops.XLA(), Open(2), Open(4)) for mesh in meshes]


def test_ways_of_cudecomp_that_are_tried():
    assert dops.CuDecomp(halo="nccl").variants() == (dops.CuDecomp("nccl", "nccl"), dops.CuDecomp("nccl_pl", "nccl"))
    assert dops.CuDecomp("nvshmem").variants() == (dops.CuDecomp("nvshmem"),)


BAD_FILES = [
    ("mine", "notes.txt.*: Expecting value"),
    ("[]", "it holds a JSON value of type list, not an object"),
    ("{}", "decompops did not write it"),
    ('{"KEY": 1}', "decompops did not write it"),
    ("3", "it holds a JSON value of type int, not an object"),
    (b"\xff", "can't decode"),
    *(
        (f'{{"decompops": "choices of autotune", "KEY": {value}}}', f"it says {value}, of 4 candidates")
        for value in (4, -1, "true", "1.5")
    ),
]


@pytest.mark.parametrize(("content", "message"), BAD_FILES)
def test_a_cache_that_is_none(plain, tmp_path, monkeypatch, content, message):
    monkeypatch.setattr(plain.autotune.__globals__["files"], "_key", lambda *_: "KEY")
    path = tmp_path / "notes.txt"
    content = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"`cache` must be a JSON file .*{message.replace('true', 'True')}"):
        plain.autotune((8, 8, 8), cache=path, backends=["xla"])
    assert path.read_bytes() == content


def test_a_cache_that_cannot_be_written(plain, tmp_path, monkeypatch):
    for path, message in ((tmp_path / "none" / "a.json", "none is no folder"), (tmp_path, "not a regular file")):
        with pytest.raises(ValueError, match=f"`cache` must be a JSON file .*{message}"):
            plain.autotune((8, 8, 8), cache=path, on_trial=pytest.fail)
    monkeypatch.setitem(plain.autotune.__globals__, "fastest", lambda *_: (tmp_path / "a.json").mkdir() or 2)
    with pytest.warns(UserWarning, match="`cache` could not be written"):
        assert plain.autotune((8, 8, 8), cache=tmp_path / "a.json").sizes == (4, 2)


@pytest.fixture
def counted(monkeypatch):
    """Return a function that counts the operators that `autotune` times, because the cache has no entry for them.

    A mock replaces the timing.
    """
    timed = []
    monkeypatch.setattr(choose, "fastest", lambda *_: timed.append(None) or 1)

    def count(operators, cache, **options) -> int:
        timed.clear()
        for operator in operators:
            dops.autotune((8, 8, 8), operator=operator, cache=cache, **{"devices": jax.devices()[:2], **options})
        return len(timed)

    return count


def closures():
    """Return different operators whose names are equal, and whose `repr` is equal or contains a memory address."""

    there_and_back = trial.there_and_back(real=True)

    def scaled(factor):
        return lambda dec: lambda u: factor * u

    def some_steps(steps):
        return lambda dec: lambda u: jax.lax.fori_loop(0, steps, lambda _, u: there_and_back(dec)(u), u)

    def only_on(sizes):
        return lambda dec: dops.Transpose(dec, "z", "y" if dec.sizes == sizes else "x")

    def symbol(order):
        return lambda dec: dops.spectral.SpectralOperator(
            dops.FFT3D(dec, real=True), lambda x, y, z: x**order + y**order + z**order
        )

    def weighted(weights):
        return lambda dec: lambda u: u * weights

    makers = (scaled, (2.0, 3.0)), (some_steps, (2, 3)), (only_on, ((1, 2), (2, 1))), (symbol, (2, 4))
    made = [make(argument) for make, arguments in makers for argument in arguments]
    return made + [weighted(jnp.asarray(w, jnp.float32)) for w in (np.arange(8), np.ones(8), np.ones((8, 1)))]


@pytest.mark.promotes_ranks
def test_no_operator_is_answered_from_the_entry_of_another(counted, tmp_path):
    path, number = tmp_path / "choices.json", len(closures())
    assert counted(closures(), path) == number
    assert counted(reversed(closures()), path) == 0
    assert len(json.loads(path.read_text())) == 1 + number  # The first entry marks the file as one of decompops.


@pytest.mark.promotes_ranks
def test_another_process_finds_the_entry(counted, tmp_path):
    """Another process finds the cache entry.

    Memory addresses, the order of sets and earlier traces differ between processes, so the key of the entry must not
    depend on these.
    """
    path = tmp_path / "choices.json"
    counted(closures(), path)
    before = path.read_text()
    program = f"""
import jax
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_enable_x64", True)
import test_autotune
from decompops._autotune import choose
choose.fastest = lambda *_: 1
for operator in reversed(test_autotune.closures()):
    choose.autotune((8, 8, 8), operator=operator, cache={str(path)!r}, devices=jax.devices()[:2])
"""
    environment = os.environ | {
        "PYTHONHASHSEED": "7",
        "PYTHONPATH": os.pathsep.join([*map(str, Path(__file__).parents[:2]), *sys.path]),
    }
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert path.read_text() == before


def test_operators_that_no_program_tells_apart(plain, tmp_path):
    path = tmp_path / "choices.json"

    def calls_back(dec):
        return lambda u: jax.pure_callback(np.sin, u, u)

    def fails(dec):
        raise ValueError("of no use")

    for operator, message in ((calls_back, "calls Python"), (fails, "fails with XLA's .*of no use")):
        with pytest.raises(ValueError, match=f"`cache` must be None for an operator that {message}"):
            plain.autotune((8, 8, 8), operator=operator, cache=path, on_trial=pytest.fail)
    assert not path.exists()


def test_64_bit_numbers_need_the_64_bit_mode(plain):
    with jax.enable_x64(False):
        for dtype in ("float64", "complex128"):
            with pytest.raises(ValueError, match=rf"`dtype` must be single precision .* got {dtype}\. Call"):
                plain.autotune((8, 8, 8), dtype=dtype)


def test_cache(clock, tmp_path):
    path = tmp_path / "choices.json"

    def calls_of(**options) -> int:
        clock.clear()
        dec = dops.autotune((8, 8, 8), cache=path, backends=["native"], **options)
        assert tuple(dec.mesh.shape.values()) == FAST
        return len(clock)

    assert calls_of() > 0
    assert calls_of() == 0
    assert calls_of(dtype="complex64") > 0
    assert calls_of(operator=lambda dec: dops.FFT3D(dec, real=True)) > 0
    assert calls_of(operator=lambda dec: dops.FFT3D(dec, real=True)) == 0
    assert len(json.loads(path.read_text())) == 1 + 3  # The first entry marks the file as one of decompops.
    assert [file.name for file in tmp_path.iterdir()] == ["choices.json"]


def test_nothing_works():
    def build(dec):
        raise ValueError("of no use")

    with pytest.raises(RuntimeError, match=r"no candidate works: (.|\n)* fails with ValueError: of no use"):
        dops.autotune((8, 8, 8), operator=build)
