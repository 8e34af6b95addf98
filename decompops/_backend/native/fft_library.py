"""Finds the FFT library of the compiled kernels: FFTW or MKL if one is installed, else DUCC, which is compiled in.

FFTW has the GPL license, so the kernels load it at run time. MKL has the same interface as FFTW.
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
    """A library with FFTW's interface: its version, and its files for double and single precision."""

    version: str
    double: str
    single: str


@functools.cache
def find() -> FftLibrary | None:
    """Return the FFT library to load, or `None` for DUCC.

    The environment variable `DECOMPOPS_FFT` can name the library. Raises `ImportError` if that library is not
    installed, and `ValueError` if the variable has an unknown value.
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
        raise ImportError(f"the library of `{VARIABLE}={wanted}` was not found; install it, or unset `{VARIABLE}`.")
    return None


def _fftw_files() -> Iterator[tuple[str, str]]:
    """Yield FFTW's two files for double and single precision, from each place where they may be.

    The places are the folder of a cluster's environment module, the Python environment, the system, and pyFFTW's wheel.
    """
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
    """Return the version that a library reports, or `None` if the library cannot be loaded."""
    try:
        library = ctypes.CDLL(double)
        ctypes.CDLL(single)
    except OSError:
        return None
    try:
        return (ctypes.c_char * 64).in_dll(library, "fftw_version").value.decode()
    except ValueError:
        return "MKL"
