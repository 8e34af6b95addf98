"""Which library transforms lines in the compiled kernels: FFTW or MKL where one is installed, else DUCC, compiled in.

FFTW is under the GPL, so the kernels load it at run time. MKL has FFTW's interface.
"""

import ctypes
import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


VARIABLE = "DECOMPOPS_FFT"
_NAMES = ("fftw", "mkl", "ducc")


class FftLibrary(NamedTuple):
    """A library with FFTW's interface: what it calls itself, and its files for double and single precision."""

    version: str
    double: str
    single: str


@functools.cache
def find() -> FftLibrary | None:
    """The library to load; `None` for what is compiled in. The environment variable `DECOMPOPS_FFT` names another one.

    Raises `ImportError` where the one that it names is not installed, and `ValueError` where it names none.
    """
    wanted = os.environ.get(VARIABLE, "").lower()
    if wanted not in ("", *_NAMES):
        raise ValueError(f"`{VARIABLE}` must be one of {_NAMES}; got {wanted!r}.")
    if wanted == "ducc":
        return None
    for name, files in (("fftw", _fftw_files()), ("mkl", _mkl_files())):
        if wanted in ("", name):
            for double, single in files:
                if version := _version(double, single):
                    return FftLibrary("MKL" if name == "mkl" else version, double, single)
    if wanted:
        raise ImportError(f"`{VARIABLE}={wanted}`, but that library was not found: see docs/cluster.md.")
    return None


def _fftw_files() -> Iterator[tuple[str, str]]:
    """Where FFTW may be: a cluster's module, the Python environment, the system, the wheel of pyFFTW."""
    ending = "3.dylib" if sys.platform == "darwin" else "so.3"
    names = f"libfftw3.{ending}", f"libfftw3f.{ending}"
    variables = ("FFTW_ROOT", "FFTW_DIR", "FFTW_HOME", "FFTW3_ROOT", "FFTW3_DIR")
    roots = [os.environ[name] for name in variables if os.environ.get(name)]
    for root in (*roots, sys.prefix):
        for folder in (Path(root) / "lib", Path(root) / "lib64", Path(root)):
            if (folder / names[0]).exists():
                yield str(folder / names[0]), str(folder / names[1])
    yield names
    for path in map(Path, sys.path):
        for double in sorted((path / "pyfftw.libs").glob("libfftw3-*.so*")):
            for single in sorted(double.parent.glob("libfftw3f-*.so*")):
                yield str(double), str(single)


def _mkl_files() -> Iterator[tuple[str, str]]:
    for folder in filter(None, (os.environ.get("MKLROOT"), sys.prefix)):
        for path in sorted((Path(folder) / "lib").glob("libmkl_rt.so*"), reverse=True):
            yield str(path), str(path)
    for name in ("libmkl_rt.so.3", "libmkl_rt.so.2"):
        yield name, name


def _version(double: str, single: str) -> str | None:
    """What a library calls itself; `None` where it cannot be loaded."""
    try:
        library = ctypes.CDLL(double)
        ctypes.CDLL(single)
    except OSError:
        return None
    try:
        return (ctypes.c_char * 64).in_dll(library, "fftw_version").value.decode()
    except ValueError:
        return "MKL"
