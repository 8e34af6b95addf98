"""Finds, checks and registers the compiled kernels."""

import ctypes
import functools
import hashlib
import importlib.metadata
import json
import re
from pathlib import Path
from typing import Any

import jax

from .base import Counters


TARGET = "decompops_run_plan"
# The kernels' sources, in a clone: an editable install may have older kernels.
SOURCES = Path(__file__).parents[2] / "ffi"
# What mpi4py calls the libraries that share MPICH's binary interface, and its header's name in the build.
_MPICH_ABI: dict[str, str] = dict.fromkeys(("Intel MPI", "MVAPICH", "MVAPICH2", "Cray MPICH"), "MPICH")


@functools.cache
def build() -> dict[str, str]:
    """What the build found: `problem` (empty if the MPI kernels were built), `mpi`, `fftw`, `openmp`, `axes` (the most
    that a grid may have), `cudecomp` (like `problem`, for the kernels over cuDecomp)."""
    where = folder()
    if where is None:
        missing = "this copy of decompops was not installed with pip, which builds the kernels"
        return {"problem": missing, "cudecomp": missing}
    return json.loads((where / "build.json").read_text())


def problem() -> str | None:
    """What keeps the MPI kernels from working in this process, and what to do; `None` if nothing does."""
    return build()["problem"] or mpi_problem() or loading_problem("decompops_mpi")


def mpi_problem() -> str | None:
    """The same, where the kernels were built: what is wrong with MPI."""
    try:
        from mpi4py import MPI
    except ImportError:
        return 'mpi4py is not installed: run pip install "decompops[mpi]"'
    except RuntimeError as error:  # it did not find an MPI library
        return f"mpi4py does not work: {str(error).strip().splitlines()[0]}"
    loaded, _ = MPI.get_vendor()
    loaded = _MPICH_ABI.get(loaded, loaded)
    if loaded != build()["mpi"]:
        return (
            f"the kernels were built for {build()['mpi']}, but mpi4py has loaded {loaded}: reinstall decompops where "
            f"{loaded}'s mpicxx comes first on the PATH, or mpi4py for {build()['mpi']}"
        )
    return None


def missing_features() -> str | None:
    """The optional features that the kernels were built without, and how to get them; `None` for none."""
    missing = {
        "fftw": "without FFTW, so that Fourier transforms stay with XLA: install its libraries in single and double "
        "precision with their headers (Debian: libfftw3-dev), then reinstall decompops",
        "openmp": "without OpenMP, so that `threads` must be 1",
    }
    return "; ".join(text for name, text in missing.items() if build()[name] == "no") or None


@functools.cache
def load() -> ctypes.CDLL:
    """The library. Raises `ImportError` with what to do where it does not work."""
    if found := problem():
        raise ImportError(f"`backend=MPI()` does not work here: {found}.")
    library = open_kernels("decompops_mpi")
    if not library.decompops_mpi_runs():
        raise ImportError(
            "`backend=MPI()` does not work here: the kernels are linked to another copy of MPI than mpi4py has loaded. "
            "Reinstall decompops where that one's mpicxx comes first on the PATH."
        )
    library.decompops_error.restype = ctypes.c_char_p
    library.decompops_set_limits.argtypes = [ctypes.c_double, ctypes.c_double]
    library.decompops_give_up.argtypes = [ctypes.c_char_p]
    return library


def call(name: str, *arguments: Any) -> None:
    """Call a function of the library. Raises `RuntimeError` with what it says where it fails."""
    if getattr(load(), f"decompops_{name}")(*arguments) != 0:
        raise RuntimeError(load().decompops_error().decode())


def open_kernels(name: str) -> ctypes.CDLL:
    """The library `name` of the build. Raises `OSError` where it cannot be loaded."""
    where = folder()
    assert where is not None
    (path,) = where.glob(f"lib{name}.*")
    return ctypes.CDLL(str(path))


def loading_problem(name: str) -> str | None:
    """What keeps the library `name` of the build from being used, and what to do; `None` if nothing does."""
    try:
        library = open_kernels(name)
    except OSError as error:
        missing = re.match(r"(\S+): cannot open shared object file", str(error))
        if missing is None:
            return f"{error}: reinstall decompops"
        return f"{missing[1]} was not found: if it is installed, add its folder to LD_LIBRARY_PATH, else install it"
    if (SOURCES / "CMakeLists.txt").exists() and stamp_of(library) != source_stamp(SOURCES):
        return (
            f"the kernels were built from other sources than those in {SOURCES}: rebuild them with "
            f"`python -m pip install -e {SOURCES.parent}`"
        )
    return None


def stamp_of(library: ctypes.CDLL) -> str | None:
    """The hash of the sources that `library` was built from; `None` for one from before there was such a hash."""
    try:
        stamp = library.decompops_stamp
    except AttributeError:
        return None
    stamp.restype = ctypes.c_char_p
    return stamp().decode()


def source_stamp(sources: Path) -> str:
    """The hash of the kernels' sources, as `ffi/CMakeLists.txt` computes it."""
    files = [path for name in ("common", "cudecomp", "mpi") for path in (sources / name).rglob("*.*")]
    names = sorted(path.relative_to(sources).as_posix() for path in files if path.suffix in (".cc", ".h"))
    hashes = (f"{name} {hashlib.sha256((sources / name).read_bytes()).hexdigest()}\n" for name in names)
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


@functools.cache
def register() -> None:
    """Make the kernels known to XLA."""
    jax.devices("cpu")  # what is registered earlier is kept back, and then comes in the wrong order
    library = load()
    types: Any = {name: pointer(library, f"decompops_{name}") for name in ("type_id", "type_info")}
    stages = {name: pointer(library, f"decompops_{name}") for name in ("instantiate", "execute")}
    register_targets({TARGET: stages}, platform="cpu", types={"decompops_site": types})


def register_targets(targets: dict[str, Any], *, platform: str, types: dict[str, Any] | None = None) -> None:
    try:
        for name, pointers in (types or {}).items():
            jax.ffi.register_ffi_type(name, pointers, platform=platform)
        for name, pointers in targets.items():
            jax.ffi.register_ffi_target(name, pointers, platform=platform)
    except jax.errors.JaxRuntimeError as error:
        raise ImportError(
            f"the kernels for {', '.join(targets)} were built for another JAX than {jax.__version__} ({error}). "
            "Reinstall decompops."
        ) from error


def counters() -> Counters:
    """What the kernels have done so far in this process."""
    numbers = (ctypes.c_int64 * 3)()
    call("count", numbers)
    return Counters(*numbers)


def pointer(library: ctypes.CDLL, name: str) -> Any:
    """What a function without arguments returns, as JAX takes it."""
    function = getattr(library, name)
    function.restype = ctypes.c_void_p
    return jax.ffi.pycapsule(ctypes.c_void_p(function()))


def folder() -> Path | None:
    """Where the kernels were installed: beside this package, or in site-packages for an editable install."""
    candidates = [Path(__file__).parents[1] / "_kernels"]
    try:
        distribution = importlib.metadata.distribution("decompops")
        candidates.append(Path(str(distribution.locate_file("decompops/_kernels"))))
    except importlib.metadata.PackageNotFoundError:
        pass
    return next((path for path in candidates if (path / "build.json").exists()), None)
