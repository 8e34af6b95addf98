"""Tests of the options in `dops.config`.

An argument has the highest priority, then a context, then the setting of the process, then the environment. An operator
reads the options when it is built.
"""

import threading

import decompops as dops
import numpy as np
import pytest
from decompops._common.compat import avoid_hanging_ffts

from helpers import make_mesh


@pytest.fixture(autouse=True)
def _restore(plain):
    yield
    for module in (dops, plain):
        module.config.update(backend=None)


def test_default(monkeypatch):
    assert dops.config.backend == dops.XLA()  # conftest.py sets this backend in the environment.
    assert dops.FFT3D(make_mesh((2, 4))).decomposition.backend == dops.XLA()
    assert "XLA(overlap=1" in repr(dops.config)
    monkeypatch.delenv("DECOMPOPS_BACKEND")
    assert dops.config.backend is None
    assert "backend=None" in repr(dops.config)


def test_order_of_precedence(monkeypatch):
    monkeypatch.setenv("DECOMPOPS_BACKEND", "mpi")
    assert dops.config.backend == dops.MPI()
    dops.config.update(backend=dops.CuDecomp())
    assert dops.config.backend == dops.CuDecomp()
    with dops.config.use(backend="xla"):
        assert dops.config.backend == dops.XLA()
        with dops.config.use(backend="mpi"):
            assert dops.config.backend == dops.MPI()
            with dops.config.use(backend=None):
                assert dops.config.backend == dops.CuDecomp()
        assert dops.config.backend == dops.XLA()
        assert dops.FFT3D(make_mesh((2, 4))).decomposition.backend == dops.XLA()
    assert dops.config.backend == dops.CuDecomp()
    dops.config.update(backend=None)
    assert dops.config.backend == dops.MPI()
    assert dops.FFT3D(make_mesh((2, 4)), backend="xla").decomposition.backend == dops.XLA()


def test_environment_names_cudecomp_transports(monkeypatch):
    monkeypatch.setenv("DECOMPOPS_TRANSPOSE_BACKEND", "NVSHMEM_PL")
    monkeypatch.setenv("DECOMPOPS_HALO_BACKEND", "mpi_blocking")
    assert dops.CuDecomp().resolved() == dops.CuDecomp("nvshmem_pl", "mpi_blocking")
    assert dops.CuDecomp("mpi_a2a").resolved() == dops.CuDecomp("mpi_a2a", "mpi_blocking")
    monkeypatch.setenv("DECOMPOPS_HALO_BACKEND", "nccl_pl")
    with pytest.raises(ValueError, match=r"`DECOMPOPS_HALO_BACKEND` must be one of .*; got 'nccl_pl'"):
        dops.CuDecomp().resolved()
    monkeypatch.delenv("DECOMPOPS_TRANSPOSE_BACKEND")
    assert dops.CuDecomp(halo="nccl").resolved() == dops.CuDecomp("nccl", "nccl")


def test_a_later_change_does_not_alter_an_operator():
    """A change of the config does not alter an operator that was built before, even if JAX traces it after the change.

    (In jaxDecomp, operators read the global config while JAX traces them.)
    """
    fft = dops.FFT3D(make_mesh((2, 4)))
    with dops.config.use(backend="mpi"):
        assert fft(np.ones((8, 8, 8))).shape == (8, 8, 8)
        assert fft.inverse.decomposition.backend == dops.XLA()


def test_use_is_local_to_its_thread():
    seen = []
    with dops.config.use(backend="mpi"):
        thread = threading.Thread(target=lambda: seen.append(dops.config.backend))
        thread.start()
        thread.join()
    assert seen == [dops.XLA()]


def test_missing_backend_says_so():
    error = ImportError if dops.CuDecomp().problem() else RuntimeError
    with pytest.raises(error, match=r"CuDecomp\(\)` does not work here|CuDecomp.initialize\(\)` must be called"):
        dops.FFT3D(make_mesh((2, 4)), backend="cudecomp")
    with dops.config.use(backend="cudecomp"), pytest.raises(error, match="CuDecomp"):
        dops.HaloExchange(make_mesh((2, 4)), 1)


def test_mpi_needs_kernels_or_its_initialization():
    error = ImportError if dops.MPI().problem() else RuntimeError
    with pytest.raises(error, match=r"`backend=MPI\(\)` does not work|`MPI.initialize\(\)` must be called before"):
        dops.FFT3D(make_mesh((2, 4)), backend="mpi")


@pytest.mark.parametrize(
    ("backend", "options", "error", "message"),
    [
        ("MPI", {"communicator": 3}, TypeError, "`communicator` must be a string, the key .*; got 3"),
        ("XLA", {"overlap": 0}, ValueError, "`overlap` must be an integer of at least one; got 0"),
        ("XLA", {"overlap": 2.0}, ValueError, "`overlap` must be an integer of at least one; got 2.0"),
        ("MPI", {"overlap": True}, ValueError, "`overlap` must be an integer of at least one; got True"),
        ("CuDecomp", {"overlap": -1}, ValueError, "`overlap` must be an integer of at least one; got -1"),
        ("MPI", {"planning": "lazy"}, ValueError, "`planning` must be one of .*; got 'lazy'"),
        ("CuDecomp", {"transpose": "gloo"}, ValueError, "`transpose` must be one of .*'nccl'.*; got 'gloo'"),
        ("CuDecomp", {"halo": "nccl_pl"}, ValueError, "`halo` must be one of .*'nccl'.*; got 'nccl_pl'"),
        ("CuDecomp", {"communicator": 1}, TypeError, "`communicator` must be a string, the key .*; got 1"),
    ],
)
def test_bad_options_of_backends(plain, backend, options, error, message):
    with pytest.raises(error, match=message):
        getattr(plain, backend)(**options)


BAD = [
    (lambda c: c.update(backend="gloo"), ValueError, "`backend` must be one of .*; got 'gloo'"),
    (lambda c: c.update(transport="nccl"), TypeError, "unexpected keyword argument 'transport'"),
    (lambda c: setattr(c, "backned", "mpi"), AttributeError, "backned"),
    (lambda c: c.use(backend=3).__enter__(), TypeError, "`backend` must be a backend .*; got 3"),
]


@pytest.mark.parametrize(("call", "error", "text"), BAD)
def test_bad_input(plain, call, error, text):
    with pytest.raises(error, match=text):
        call(plain.config)


def test_bad_environment_names_the_variable(plain, monkeypatch):
    monkeypatch.setenv("DECOMPOPS_BACKEND", "cuda")
    with pytest.raises(ValueError, match=r"`DECOMPOPS_BACKEND` must be one of .*; got 'cuda'"):
        plain.FFT3D(make_mesh((2, 4)))


@pytest.mark.parametrize(
    ("version", "flags", "expected"),
    [
        ("0.11.1", None, "--xla_cpu_multi_thread_eigen=false"),
        ("0.11.2", "--xla_dump_to=x", "--xla_dump_to=x --xla_cpu_multi_thread_eigen=false"),
        ("0.11.2", "--xla_cpu_multi_thread_eigen=true", "--xla_cpu_multi_thread_eigen=true"),
        ("0.10.2", None, None),
        ("0.12.0", "--xla_dump_to=x", "--xla_dump_to=x"),
    ],
)
def test_xla_flags_of_jaxlibs_whose_ffts_hang(version, flags, expected):
    environment = {} if flags is None else {"XLA_FLAGS": flags}
    avoid_hanging_ffts(environment, version)
    assert environment.get("XLA_FLAGS") == expected
