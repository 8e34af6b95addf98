"""The section on versions and settings."""

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

from ... import __version__
from ..._backend.native import library
from ..._core.registry import all_backends
from .hardware import output_of
from .setting import Setting


PACKAGE = Path(__file__).parents[2]
_PACKAGES = (
    "jax",
    "jaxlib",
    "numpy",
    "scipy",
    "equinox",
    "mpi4py",
    "matplotlib",
    "jax-cuda13-plugin",
    "jax-cuda12-plugin",
)
# The packages of the libraries with which the benchmark compares decompops.
_PEERS = ("jaxdecomp", "mpi4py-fft", "pyfftw", "mkl_fft", "exponax", "dtfft-fftw-openmpi")
# Prefixes of the environment variables that can change the measurements.
_VARIABLES = ("JAX_", "XLA_", "DECOMPOPS_", "OMP_NUM_THREADS", "MALLOC_", "NCCL_", "OMPI_MCA_btl", "OMPI_MCA_pml")


def software(setting: Setting, _: dict[str, Any]) -> dict[str, Any]:
    """List versions, all backends with their problems on this machine, and environment variables."""
    versions = {name: found for name in (*_PACKAGES, *_PEERS) if (found := _version(name))}
    compiler = output_of("c++", "--version").partition("\n")[0]
    others = {
        "commit": commit(),
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "C library": " ".join(platform.libc_ver()),
        "C++ compiler": compiler,
        "FFT library of the kernels": library.fft_version(),
        "MPI of the kernels": library.build().get("mpi"),
    }
    return {
        "versions": {"decompops": __version__, **versions, **{name: text for name, text in others.items() if text}},
        "missing_peers": [name for name in _PEERS if name not in versions],
        "backend": str(setting.backend),
        "backends": {name: found if isinstance(found, str) else "available" for name, found in all_backends()},
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith(_VARIABLES)},
    }


def commit() -> str | None:
    """Return the commit of the clone that decompops runs from, followed by "with changes" if files have changed since.

    Return `None` if decompops does not run from a clone.
    """
    if not (PACKAGE.parent / ".git").exists():
        return None
    git = ("git", "-C", str(PACKAGE.parent))
    changed = output_of(*git, "status", "--porcelain", "--untracked-files=no")
    return output_of(*git, "rev-parse", "--short=12", "HEAD").strip() + (" with changes" if changed else "") or None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
