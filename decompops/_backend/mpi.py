"""The backend for CPU clusters: compiled kernels over MPI and FFTW (`ffi/mpi`)."""

import itertools
import math
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import jax
import numpy as np
from jax import Array

from .._blocks import AXES, Blocks
from .._stage import Caller, Clear, Crop, Extend, Fourier, Move, Plan, Resize, Stage, result_dtype
from . import caller, launch, library
from .base import AbstractBackend, Counters
from .xla import fourier, normalisation, resize, scaled


Planning = Literal["estimate", "measure", "patient", "exhaustive"]
FORMAT = 2  # of `_numbers`; changes with `kFormat` in ffi/common/plan.h
_TRANSFORMS = ("c2c", "r2c", "c2r")
_KINDS: tuple[type, ...] = (Move, Fourier, Extend, Crop, Clear)


@dataclass(frozen=True)
class MPI(AbstractBackend):
    """Compiled kernels over MPI and FFTW, for CPU clusters: one process for each CPU device, started by `mpiexec`.

    A whole operator is one kernel: Fourier transforms, exchange and all. See docs/kernels.md.

    - `communicator`: the key of a communicator made known by `MPI.initialize`.
    - `planning`: how long FFTW looks for a fast plan at the first call: "estimate", "measure", "patient" or
        "exhaustive". All but the first may round differently from one run to the next.
    - `threads`: of each rank, within a kernel (OpenMP). Give them cores: see docs/cluster.md.

    Call `MPI.initialize()` first.
    """

    communicator: str = "world"
    planning: Planning = "measure"
    threads: int = 1

    differentiable_block: ClassVar[bool] = False

    def __post_init__(self):
        if not isinstance(self.communicator, str):
            raise TypeError(f"`communicator` must be a key, a string; got {self.communicator!r}.")
        if self.planning not in get_args(Planning):
            raise ValueError(f"`planning` must be one of {get_args(Planning)}; got {self.planning!r}.")
        if not isinstance(self.threads, int) or isinstance(self.threads, bool) or self.threads < 1:
            raise ValueError(f"`threads` must be a positive integer; got {self.threads!r}.")

    @staticmethod
    def initialize(
        communicator: Any = None,
        *,
        key: str = "world",
        timeout: float = 60.0,
        limit: float | None = None,
        heartbeat: float = 100.0,
        reuse_memory: bool = True,
    ) -> None:
        """Start JAX over the ranks of an MPI communicator, one CPU device in each.

        To be called by every rank before any JAX computation; calling it again does nothing.

        **Arguments:**

        - `communicator`: an `mpi4py` communicator; `None` for `MPI.COMM_WORLD`.
        - `key`: a name for it, for `MPI(communicator=key)`.
        - `timeout`: seconds after which a rank that waits in an operator prints where it is and which ranks it waits
            for; it does so again whenever that time has doubled. If those ranks are in another operator, all raise an
            error.
        - `limit`: seconds of waiting in an operator after which all ranks raise an error; `None` for never.
        - `heartbeat`: seconds after which JAX ends all processes when one of them gives no sign of life.
        - `reuse_memory`: keep freed memory in the process (glibc only). Results of many megabytes otherwise come from
            the system each time, page by page, which costs more than moving the data.

        **Raises:** `ImportError` if kernels, MPI or mpi4py are missing or do not fit together; `ValueError` for a
        number of seconds that is not positive; `RuntimeError` if JAX is in use already, if not all ranks call this, or
        if they do not agree with JAX's processes.
        """
        launch.initialize(communicator, key, launch.Limits(timeout, limit, heartbeat), reuse_memory)

    @staticmethod
    def thread(name: str) -> AbstractContextManager[None]:
        """Let the calling Python thread run operators with this backend, inside a `with` block.

        The thread that called `MPI.initialize` needs no such block. `jax.jit` compiles a function anew for each thread.
        What is compiled ahead of time, by `.lower().compile()`, must be called in the thread that has compiled it.

        !!! example

            ```python
            def diagnose(u):
                with dops.MPI.thread("diagnostics"):
                    print(power(u))

            threading.Thread(target=diagnose, args=(u,)).start()
            ```

        **Arguments:**

        - `name`: the same on every rank; of one thread at a time.

        **Raises:** `ValueError` for a name that another thread uses.
        """
        return caller.thread(name)

    def problem(self) -> str | None:
        return library.problem()

    def lacks(self) -> str | None:
        return library.lacks()

    def counters(self) -> Counters:
        return library.counters()

    def caller(self) -> Caller:
        return caller.current()

    def check(self, mesh) -> None:
        library.load()
        if self.threads > 1 and library.build()["openmp"] != "yes":
            raise ImportError(f"`threads` must be 1: the kernels were built without OpenMP; got {self.threads}.")
        self._ranks(mesh)

    def _ranks(self, mesh) -> list[int]:
        return launch.ranks_of(mesh, self.communicator, "cpu", self)

    def run(self, plan: Plan, block: Array) -> Array:
        if not plan.stages:
            return block
        # Some stages stay with XLA, between kernels for everything else.
        foreign = (Resize,) if library.build()["fftw"] == "yes" else (Resize, Fourier)
        groups = [(own, tuple(g)) for own, g in itertools.groupby(plan.stages, lambda s: not isinstance(s, foreign))]
        scale = plan.scale * math.prod(normalisation(s) for own, stages in groups if not own for s in stages)
        for own, stages in groups:
            if own:
                # A kernel scales while it transforms.
                now = scale if any(isinstance(stage, Fourier) for stage in stages) else 1.0
                ends = {"source": stages[0].before, "target": stages[-1].after}
                block, scale = self._call(replace(plan, stages=stages, scale=now, **ends), block), scale / now
                continue
            for stage in stages:
                if isinstance(stage, Fourier):
                    block, scale = scaled(fourier(stage, block), scale), 1.0
                elif isinstance(stage, Resize):
                    block = resize(stage, block)
        return block

    def _call(self, plan: Plan, block: Array) -> Array:
        dtype = np.dtype(block.dtype)
        for stage in plan.stages:
            dtype = result_dtype(stage, dtype)
        lead = block.shape[:-3]
        result = jax.ShapeDtypeStruct((*lead, *plan.target.block_shape), dtype)
        mesh = plan.mesh
        numbers = itertools.chain(*_numbers(plan))
        return jax.ffi.ffi_call(library.TARGET, result)(
            block,
            numbers=np.fromiter(numbers, np.int64),
            mesh=np.array(list(mesh.shape.values()), np.int64),
            ranks=np.array(self._ranks(mesh), np.int64),
            scale=np.float64(plan.scale),
            label=_label(plan, lead, block.dtype),
            details=", ".join(_details(plan)),
            thread=plan.caller.thread,
            communicator=np.int64(launch.known[self.communicator].number),
            planning=np.int64(get_args(Planning).index(self.planning)),
            threads=np.int64(self.threads),
        )


def _label(plan: Plan, lead: tuple[int, ...], dtype: Any) -> str:
    """What an error calls the operator."""
    kinds = [type(stage) for stage in plan.stages]
    name = next((n for kind, n in _NAMES.items() if kind in kinds), "copy")
    mesh = ", ".join(f"{axis}={size}" for axis, size in plan.mesh.shape.items())
    shape = (*lead, *plan.source.lengths)
    ends = " -> ".join(_pencil(layout) for layout in (plan.source, plan.target))
    thread = "" if plan.caller.thread == caller.MAIN else f" in thread {plan.caller.thread!r}"
    return f"{name} {ends} of a {dtype} field {shape} on mesh ({mesh}) at {plan.caller.line}{thread}"


def _details(plan: Plan) -> Iterator[str]:
    """What else tells the operator from others: an error says it where all the rest is the same."""
    for stage in plan.stages:
        match stage:
            case Fourier():
                axes = "".join(AXES[axis] for axis in stage.axes)
                yield f"{stage.kind} along {axes} with sign {stage.sign:+d}{', weighted' if stage.weighted else ''}"
            case Extend():
                halo = (stage.before if stage.transposed else stage.after).halo[stage.axis]
                kind = "periodic" if stage.periodic else "bounded"
                yield f"{kind} halo {halo} along {AXES[stage.axis]}{', transposed' if stage.transposed else ''}"
            case Crop(transposed=True):
                yield "transposed"
    yield "stored as " + " -> ".join("".join(AXES[i] for i in layout.order) for layout in (plan.source, plan.target))
    yield f"times {plan.scale:g}"
    yield f"called at {plan.caller.place}"


_NAMES = {Fourier: "FFT3D", Extend: "HaloExchange", Move: "Transpose", Crop: "HaloExchange.crop", Clear: "Transpose"}


def _pencil(layout: Blocks) -> str:
    whole = "".join(axis for axis, name in zip(AXES, layout.names) if name is None)
    return f"{whole}-pencils"


def _numbers(plan: Plan) -> Iterator[Iterable[int]]:
    """The plan as integers, for `decode` in ffi/common/plan.cc."""
    axes = {name: i for i, name in enumerate(plan.mesh.shape)}
    yield (FORMAT,)
    yield _layout(plan.source, axes)
    yield _layout(plan.target, axes)
    for stage in plan.stages:
        yield _header(stage)
        yield _layout(stage.before, axes)
        yield _layout(stage.after, axes)


def _header(stage: Stage) -> Iterator[int]:
    yield _KINDS.index(type(stage))
    yield getattr(stage, "transposed", False)
    yield getattr(stage, "periodic", False)
    yield getattr(stage, "weighted", False)
    yield getattr(stage, "axis", -1)
    yield _TRANSFORMS.index(getattr(stage, "kind", "c2c"))
    yield getattr(stage, "sign", 0)
    transformed = getattr(stage, "axes", ())
    yield len(transformed)
    yield from transformed


def _layout(layout: Blocks, axes: dict[str, int]) -> Iterator[int]:
    yield from layout.lengths
    yield from layout.parts
    yield from (-1 if name is None else axes[name] for name in layout.names)
    yield from layout.order
    yield from itertools.chain(*layout.halo)
