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

from ..base import Caller, Counters
from . import fft_library


# The kernels' sources in a clone of the repository. The kernels of an editable install may be older than the sources.
SOURCES = Path(__file__).parents[3] / "ffi"
# The same words as in ffi/CMakeLists.txt. Without --no-cache-dir, pip would install the wheel that it built before.
COMPILE_AGAIN = (
    "compile decompops again (pip install --force-reinstall --no-deps --no-cache-dir --no-binary decompops decompops, "
    "or pip install . in a clone)"
)
# MPI libraries with MPICH's binary interface, by their names in mpi4py. The build calls all of them MPICH.
_MPICH_ABI: dict[str, str] = dict.fromkeys(("Intel MPI", "MVAPICH", "MVAPICH2", "Cray MPICH"), "MPICH")


@functools.cache
def build() -> dict[str, str]:
    """Return the properties of the build.

    - `problem`: why no kernels were built; empty if kernels were built.
    - `mpi_problem`, `cudecomp_problem`: why the kernels over MPI, or over cuDecomp, were not built.
    - `ducc_problem`: why DUCC is not compiled in.
    - `axes`: the largest number of grid axes.
    - `stamp`: a hash of the sources of the kernels.
    - `mpi`: the MPI library that the kernels were built for.
    """
    where = folder()
    if where is None:
        problem = "this copy of decompops was not installed with pip, which builds the kernels"
    else:
        try:
            return json.loads((where / "build.json").read_text())
        except (OSError, ValueError):  # An installation that was interrupted, such as by a full disk.
            problem = f"{where / 'build.json'} is damaged: {COMPILE_AGAIN}"
    return dict.fromkeys(("problem", "mpi_problem", "cudecomp_problem", "ducc_problem"), problem)


@dataclass(frozen=True)
class Kernels:
    """A compiled library that runs plans.

    - `name`: the name of the library's file, and of the target in XLA that calls it.
    - `backend`: the Python expression for the backend that uses the library, such as `Native()`, for error messages.
    """

    name: str
    backend: str

    def problem(self) -> str | None:
        """Return why these kernels do not work in this process, and what to do; `None` if they work."""
        return build()["problem"] or loading_problem(self.name) or _fft_problem()

    @functools.cache  # noqa: B019 - the two instances live as long as the process
    def load(self) -> ctypes.CDLL:
        """Load and return the library. Raises `ImportError` if the library does not work."""
        if found := self.problem():
            raise ImportError(f"`backend={self.backend}` does not work here: {found}.")
        library = open_kernels(self.name)
        library.decompops_error.restype = ctypes.c_char_p
        library.decompops_set_limits.argtypes = [ctypes.c_double, ctypes.c_double]
        if (found := fft_library.find()) and library.decompops_load_fftw(found.double.encode(), found.single.encode()):
            raise ImportError(f"`backend={self.backend}` does not work here: {library.decompops_error().decode()}.")
        return library

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function of the library. Raises `RuntimeError` with the library's message if the function fails."""
        if getattr(self.load(), f"decompops_{function}")(*arguments) != 0:
            raise RuntimeError(self.load().decompops_error().decode())

    @functools.cache  # noqa: B019 - the two instances live as long as the process
    def register(self) -> str:
        """Register the kernels with XLA, and return the name of the target.

        There is a second target for exchanges of rows, whose name is `rows_target`.
        """
        library = self.load()
        instantiate, execute, rows = (pointer(library, f"decompops_{n}") for n in ("instantiate", "execute", "rows"))
        targets = {self.name: execute, self.rows_target: rows}
        stages = {name: {"instantiate": instantiate, "execute": handler} for name, handler in targets.items()}
        register_targets(stages, platform="cpu")
        return self.name

    @property
    def rows_target(self) -> str:
        return f"{self.name}_rows"

    def counters(self) -> Counters:
        """Return the counters that the kernels keep in this process."""
        numbers = (ctypes.c_int64 * 3)()
        self.call("count", numbers)
        return Counters(*numbers)


@dataclass(frozen=True)
class MpiKernels(Kernels):
    """The compiled library whose kernels communicate over MPI."""

    def problem(self) -> str | None:
        return build()["mpi_problem"] or mpi_problem() or super().problem()

    def load(self) -> ctypes.CDLL:
        library = super().load()
        if not library.decompops_mpi_runs():
            raise ImportError(
                f"`backend={self.backend}` does not work here: the kernels are linked to another copy of MPI than "
                f"mpi4py has loaded. Put the mpicxx of mpi4py's MPI first on the PATH, and {COMPILE_AGAIN}."
            )
        return library

    def sharing(self, communicator: int | None) -> tuple[int, str]:
        """Return how many ranks of this host share memory, and why other ranks of this host do not.

        `communicator` is the number of a registered communicator. `None` tests whether this system allows a process to
        share memory.
        """
        ranks, problem = ctypes.c_int(), ctypes.c_char_p()
        try:
            if communicator is None:
                self.call("check_sharing")
            else:
                self.call("sharing", communicator, ctypes.byref(ranks), ctypes.byref(problem))
        except RuntimeError as error:
            return 0, str(error)
        return ranks.value, (problem.value or b"").decode()

    def name_site(self, who: Caller) -> None:
        """Tell the kernels the line of a call, for their messages.

        The line is not a part of the program. Otherwise JAX's persistent cache would not find the program again after
        an unrelated line has been inserted above the call.
        """
        self.call("name_site", *(text.encode(errors="replace") for text in (who.thread, who.site, who.line, who.place)))

    def give_up(self, reason: str) -> None:
        """Tell the other ranks that this rank has failed, and why."""
        self.call("give_up", reason.encode(errors="replace"))

    def is_repeated(self, reason: str) -> bool:
        """Return whether a lower rank has failed for the same reason."""
        repeated = ctypes.c_int()
        self.call("is_repeated", reason.encode(errors="replace"), ctypes.byref(repeated))
        return bool(repeated.value)


NATIVE = Kernels("decompops_native", "Native()")
OVER_MPI = MpiKernels("decompops_mpi", "MPI()")


def has_fft() -> bool:
    """Return whether the kernels can run Fourier transforms."""
    return fft_library.find() is not None or not build()["ducc_problem"]


def fft_version() -> str | None:
    """Return the name of the kernels' FFT library, or `None` if they have none."""
    if found := fft_library.find():
        return found.version
    return None if build()["ducc_problem"] else "DUCC"


def _fft_problem() -> str | None:
    try:
        fft_library.find()
    except (ImportError, ValueError) as error:
        return str(error).rstrip(".")
    return None


def mpi_problem() -> str | None:
    """Return why MPI does not work with these kernels, and what to do; `None` if it works."""
    try:
        from mpi4py import MPI
    except ModuleNotFoundError:
        return "mpi4py is not installed: run pip install mpi4py"
    except (ImportError, RuntimeError) as error:  # mpi4py has found no MPI library.
        return f"mpi4py does not work: {str(error).strip().splitlines()[0]}"
    loaded, _ = MPI.get_vendor()
    loaded = _MPICH_ABI.get(loaded, loaded)
    if loaded != build()["mpi"]:
        return (
            f"the kernels were built for {build()['mpi']}, but mpi4py has loaded {loaded}: put {loaded}'s mpicxx first "
            f"on the PATH and {COMPILE_AGAIN}, or reinstall mpi4py for {build()['mpi']}"
        )
    return None


def missing_features() -> str | None:
    """Return the name of this installation's FFT library. If one is missing, return why, or how to install one."""
    problem = build()["ducc_problem"]
    without_ducc = f", without DUCC: {problem}" if problem else ""
    if fft_version() is None:
        return (
            "without a library for Fourier transforms, so XLA computes them: install FFTW in single and double "
            f"precision (Debian: libfftw3-double3 and libfftw3-single3; or pip install pyfftw){without_ducc}"
        )
    return f"with {fft_version()}{without_ducc}"


def open_kernels(name: str) -> ctypes.CDLL:
    """Load the library `name` of the build. Raises `OSError` if it cannot be loaded."""
    where = folder()
    assert where is not None
    path = next(where.glob(f"lib{name}.*"), None)
    if path is None:
        raise OSError(f"{where} lacks the library lib{name}")
    return ctypes.CDLL(str(path))


def loading_problem(name: str) -> str | None:
    """Return why the library `name` of the build cannot be used, and what to do; `None` if it can be used."""
    try:
        library = open_kernels(name)
    except OSError as error:
        missing = re.match(r"(\S+): cannot open shared object file", str(error))
        if missing is None:
            return f"{error}: {COMPILE_AGAIN}"
        return f"{missing[1]} was not found: install it, or if it is installed, add its folder to LD_LIBRARY_PATH"
    if (SOURCES / "CMakeLists.txt").exists() and stamp_of(library) != source_stamp(SOURCES):
        return (
            f"the kernels were built from other sources than those in {SOURCES}: rebuild them with "
            f"`python -m pip install -e {SOURCES.parent}`"
        )
    return None


def stamp_of(library: ctypes.CDLL) -> int | None:
    """Return the stamp of the sources that `library` was built from. Old libraries have no stamp: return `None`."""
    try:
        stamp = library.decompops_stamp
    except AttributeError:
        return None
    stamp.restype = ctypes.c_int64
    return stamp()


def source_stamp(sources: Path) -> int:
    """Return the stamp of the kernels' sources, as `ffi/CMakeLists.txt` computes it."""
    files = [path for name in ("common", "cpu", "cudecomp", "mpi", "native") for path in (sources / name).rglob("*.*")]
    names = sorted(path.relative_to(sources).as_posix() for path in files if path.suffix in (".cc", ".h"))
    hashes = (f"{name} {hashlib.sha256((sources / name).read_bytes()).hexdigest()}\n" for name in names)
    return int(hashlib.sha256("".join(hashes).encode()).hexdigest()[:15], 16)


def register_targets(targets: dict[str, Any], *, platform: str) -> None:
    try:
        for name, pointers in targets.items():
            jax.ffi.register_ffi_target(name, pointers, platform=platform)
    except jax.errors.JaxRuntimeError as error:
        raise ImportError(
            f"the kernels for {', '.join(targets)} were built for another version of JAX than {jax.__version__} "
            f"({error}): {COMPILE_AGAIN}."
        ) from error


def pointer(library: ctypes.CDLL, name: str) -> Any:
    """Call a function of `library` that returns a pointer, and wrap the pointer for JAX."""
    function = getattr(library, name)
    function.restype = ctypes.c_void_p
    return jax.ffi.pycapsule(ctypes.c_void_p(function()))


def folder() -> Path | None:
    """Return the folder of the installed kernels: in this package, or in site-packages for an editable install."""
    candidates = [Path(__file__).parents[2] / "_kernels"]
    try:
        distribution = importlib.metadata.distribution("decompops")
        candidates.append(Path(str(distribution.locate_file("decompops/_kernels"))))
    except importlib.metadata.PackageNotFoundError:
        pass
    return next((path for path in candidates if (path / "build.json").exists()), None)
