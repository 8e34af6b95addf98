"""Finds, checks and registers the compiled kernels."""

import ctypes
import functools
import hashlib
import importlib.metadata
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from . import fft_library
from .base import Counters


# The kernels' sources, in a clone: an editable install may have older kernels.
SOURCES = Path(__file__).parents[2] / "ffi"
# What mpi4py calls the libraries that share MPICH's binary interface, and its header's name in the build.
_MPICH_ABI: dict[str, str] = dict.fromkeys(("Intel MPI", "MVAPICH", "MVAPICH2", "Cray MPICH"), "MPICH")


@functools.cache
def build() -> dict[str, str]:
    """What the build found: `problem` (empty if kernels were built), `ducc`, `axes` (the most that a grid may have),
    `mpi`, `mpi_problem` and `cudecomp_problem` (like `problem`, for the kernels over MPI and cuDecomp)."""
    where = folder()
    if where is None:
        missing = "this copy of decompops was not installed with pip, which builds the kernels"
        return {"problem": missing, "mpi_problem": missing, "cudecomp_problem": missing, "ducc": "no"}
    return json.loads((where / "build.json").read_text())


@dataclass(frozen=True)
class Kernels:
    """A compiled library that runs plans.

    - `name`: that of its file, and of its target for XLA.
    - `backend`: what users write for the backend that it serves.
    """

    name: str
    backend: str

    def problem(self) -> str | None:
        """What keeps these kernels from working in this process, and what to do; `None` if nothing does."""
        return build()["problem"] or loading_problem(self.name) or _fft_problem()

    @functools.cache  # noqa: B019 - there are two of these, for the life of the process
    def load(self) -> ctypes.CDLL:
        """The library. Raises `ImportError` with what to do where it does not work."""
        if found := self.problem():
            raise ImportError(f"`backend={self.backend}` does not work here: {found}.")
        library = open_kernels(self.name)
        library.decompops_error.restype = ctypes.c_char_p
        library.decompops_set_limits.argtypes = [ctypes.c_double, ctypes.c_double]
        if (found := fft_library.find()) and library.decompops_load_fftw(found.double.encode(), found.single.encode()):
            raise ImportError(f"`backend={self.backend}` does not work here: {library.decompops_error().decode()}.")
        return library

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function of the library. Raises `RuntimeError` with what it says where it fails."""
        if getattr(self.load(), f"decompops_{function}")(*arguments) != 0:
            raise RuntimeError(self.load().decompops_error().decode())

    @functools.cache  # noqa: B019 - there are two of these, for the life of the process
    def register(self) -> str:
        """Make the kernels known to XLA; the name of the target."""
        jax.devices("cpu")  # what is registered earlier is kept back, and then comes in the wrong order
        library = self.load()
        types: Any = {name: pointer(library, f"decompops_{name}") for name in ("type_id", "type_info")}
        stages = {name: pointer(library, f"decompops_{name}") for name in ("instantiate", "execute")}
        register_targets({self.name: stages}, platform="cpu", types={f"{self.name}_site": types})
        return self.name

    def counters(self) -> Counters:
        """What the kernels have done so far in this process."""
        numbers = (ctypes.c_int64 * 3)()
        self.call("count", numbers)
        return Counters(*numbers)


@dataclass(frozen=True)
class MpiKernels(Kernels):
    """The ones over MPI."""

    def problem(self) -> str | None:
        return build()["mpi_problem"] or mpi_problem() or super().problem()

    def load(self) -> ctypes.CDLL:
        library = super().load()
        if not library.decompops_mpi_runs():
            raise ImportError(
                f"`backend={self.backend}` does not work here: the kernels are linked to another copy of MPI than "
                "mpi4py has loaded. Reinstall decompops where that one's mpicxx comes first on the PATH."
            )
        return library

    def give_up(self, reason: str) -> None:
        """Tell the other ranks that this one cannot go on."""
        self.call("give_up", reason.encode(errors="replace"))

    def is_repeated(self, reason: str) -> bool:
        """Whether a rank below this one has given up for this very reason."""
        repeated = ctypes.c_int()
        self.call("is_repeated", reason.encode(errors="replace"), ctypes.byref(repeated))
        return bool(repeated.value)


NATIVE = Kernels("decompops_native", "Native()")
OVER_MPI = MpiKernels("decompops_mpi", "MPI()")


def has_fft() -> bool:
    """Whether the kernels can run Fourier transforms."""
    return fft_library.find() is not None or build()["ducc"] == "yes"


def fft_version() -> str | None:
    """What runs the Fourier transforms of the kernels; `None` for nothing."""
    if found := fft_library.find():
        return found.version
    return "DUCC" if build()["ducc"] == "yes" else None


def _fft_problem() -> str | None:
    try:
        fft_library.find()
    except (ImportError, ValueError) as error:
        return str(error).rstrip(".")
    return None


def mpi_problem() -> str | None:
    """What is wrong with MPI, where the kernels were built for one."""
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
    """What an installation has instead of all optional features, and how to get them."""
    if fft_version() is None:
        return (
            "without a library for Fourier transforms, which stay with XLA: install FFTW in single and double "
            "precision (Debian: libfftw3-double3 and libfftw3-single3; or pip install pyfftw)"
        )
    return f"with {fft_version()}"


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
    files = [path for name in ("common", "cpu", "cudecomp", "mpi", "native") for path in (sources / name).rglob("*.*")]
    names = sorted(path.relative_to(sources).as_posix() for path in files if path.suffix in (".cc", ".h"))
    hashes = (f"{name} {hashlib.sha256((sources / name).read_bytes()).hexdigest()}\n" for name in names)
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


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
