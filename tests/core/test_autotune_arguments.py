"""Tests of the arguments of `dops.autotune` and of tuners, and of the context of a call."""

import decompops as dops
import jax
import numpy as np
import pytest

from helpers import make_mesh


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"devices": []}, ValueError, "`devices` must have at least one device"),
        ({"devices": 2 * jax.devices()[:2]}, ValueError, "`devices` must have at least one device, and each only once"),
        ({"devices": [3]}, TypeError, "`devices` must be devices, such as `mesh.devices`"),
        ({"dtype": "int32"}, TypeError, "`dtype` must be real or complex floating point; got 'int32'"),
        ({"dtype": "flot32"}, TypeError, "`dtype` must be real or complex floating point; got 'flot32'"),
        ({"dtype": None}, TypeError, "`dtype` must be real or complex floating point; got None"),
        ({"axes": (1, 2)}, ValueError, r"`axes` must be 1 to 2 different names, .*; got \(1, 2\)"),
        ({"axis_types": "Auto"}, TypeError, "`axis_types` must be an `AxisType` of JAX, or one for each of"),
        ({"operator": 3}, TypeError, "`operator` must be a function or None; got 3"),
        ({"on_trial": 3}, TypeError, "`on_trial` must be a function or None; got 3"),
        ({"backends": [3]}, TypeError, "`backends` must have backends, their names or tuners; got 3"),
        ({"repeats": 0}, ValueError, "`repeats` must be an integer of at least one; got 0"),
        ({"backends": []}, ValueError, "`backends` must have at least one backend"),
        ({"shape": (8, 0)}, ValueError, "`shape` must be positive integers"),
        ({"backends": ["gloo"]}, ValueError, "`backend` must be one of .*; got 'gloo'"),
    ],
)
def test_bad_input(plain, options, error, message):
    with pytest.raises(error, match=message):
        plain.autotune(**({"shape": (8, 8, 8)} | options))


def test_meshes_inside_of_another_mesh():
    """The ambient mesh, which operators would have to be on, is none of the candidates."""
    devices, trials = np.reshape(jax.devices()[:4], (2, 2)), []
    options = {"devices": devices, "axis_types": jax.sharding.AxisType.Explicit, "backends": "xla", "repeats": 1}
    with jax.set_mesh(make_mesh((8,))):
        dec = dops.autotune((8, 8, 8), on_trial=trials.append, **options)
        assert jax.sharding.get_abstract_mesh().size == 8
    assert [(trial.decomposition.sizes, trial.failure) for trial in trials] == [
        ((1, 4), None),
        ((2, 2), None),
        ((4, 1), None),
    ]
    assert set(dec.mesh.axis_types) == {jax.sharding.AxisType.Explicit}


def test_devices_of_other_processes_only(plain, monkeypatch):
    devices = jax.devices()[:2]
    monkeypatch.setattr(jax, "process_index", lambda: 5)
    with pytest.raises(ValueError, match=r"`devices` must have a device of each process .* process 5 owns none"):
        plain.autotune((8, 8, 8), devices=devices)


def test_a_tuner_cannot_be_cached(plain, tmp_path):
    with pytest.raises(ValueError, match=r"`cache` must be None with a tuner, .*; got CuDecompTuner\(halo=2"):
        plain.autotune((8, 8, 8), backends=["xla", plain.CuDecompTuner(halo=2)], cache=tmp_path / "choices.json")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"grid_mode": "both"}, ValueError, "`grid_mode` must be one of .* got 'both'"),
        ({"grid_mode": "halo", "halo": (0, 0, 2)}, ValueError, "`halo` must be positive along x or y .* got"),
        ({"halo": -1}, ValueError, "`halo` must be non-negative; got -1"),
        ({"periodic": 3}, ValueError, "`periodic` must be one bool, or one for each of x, y, z; got 3"),
        ({"libraries": ["gloo"]}, ValueError, r"`libraries` must be some of .* got \['gloo'\]"),
        ({"libraries": []}, ValueError, r"`libraries` must be some of .* got \[\]"),
        ({"cuda_aware_mpi": 1}, TypeError, "`cuda_aware_mpi` must be True or False; got 1"),
    ],
)
def test_bad_options_of_the_tuner_of_cudecomp(plain, options, error, message):
    with pytest.raises(error, match=message):
        plain.CuDecompTuner(**options)
