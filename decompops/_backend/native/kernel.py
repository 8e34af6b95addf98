"""What the two backends with compiled CPU kernels share: which stages a kernel runs, and how JAX calls it."""

import itertools
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

import jax
import numpy as np
from jax import Array
from jax.sharding import AbstractMesh, Mesh

from ..._basis import short_lines
from ..._basis.cosine import RealToReal
from ..._basis.fourier import DFT
from ..._common.blocks import Blocks, MeshAxis, axis_names, entry_names
from ..._common.check import check_choice
from ..._plan.lower import Wire
from ..._plan.pieces import Pieces, plain_stages
from ..._plan.plan import Plan
from ..._plan.stage import AbstractStage, Clear, Crop, Extend, LocalTransform, Move, Resize
from ..base import Call
from ..wire import narrower
from . import caller, library
from .encode import encoded


# FFTW's planning modes: how long FFTW searches for a fast plan.
Planning = Literal["estimate", "measure", "patient", "exhaustive"]


def check_planning(planning: object) -> None:
    """Raise `ValueError` if `planning`, an option of backends, is not one of the four modes."""
    check_choice("planning", planning, get_args(Planning))


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count_supported(stages: tuple[AbstractStage, ...]) -> int:
    """Return how many of the first `stages` one kernel runs."""
    return len(list(itertools.takewhile(_is_supported, stages)))


def run_kernel(
    target: str,
    plan: Plan,
    block: Array,
    call: Call,
    entries: tuple[MeshAxis, ...],
    planning: Planning,
    threads: int,
    **attributes: Any,
) -> Array:
    """Apply `plan` to one block with the kernel `target`. `entries` are the mesh axes that the kernel sees."""
    if block.dtype.name.startswith("float8") and any(
        isinstance(stage, Extend) and stage.transposed for stage in plain_stages(plan.stages)
    ):
        raise TypeError(
            f"`x` must hold numbers that compiled kernels can add; got {block.dtype}. Pass `x.astype(jnp.float16)`, or "
            "build the operator with `backend=XLA()`."
        )
    lead = block.shape[: -plan.source.ndim]
    result = jax.ShapeDtypeStruct((*lead, *plan.target.block_shape), plan.result_dtype(np.dtype(block.dtype)))
    sizes = [math.prod(call.mesh.shape[name] for name in entry_names(entry)) for entry in entries]
    label, wire = _label(plan, call, lead, block.dtype), narrower(call.backend.wire, block.dtype)
    common = site_attributes(plan, entries, sizes, label, planning, threads, wire=wire)
    return jax.ffi.ffi_call(target, result)(block, **common, **attributes)


def site_attributes(
    plan: Plan,
    entries: tuple[MeshAxis, ...],
    sizes: Sequence[int],
    label: str,
    planning: Planning,
    threads: int,
    *,
    back: bool = False,
    wire: Wire | None = None,
) -> dict[str, Any]:
    """Return what the kernels are told when XLA compiles a call. `sizes` are those of the mesh axes `entries`."""
    return {
        "numbers": encoded(plan, entries, int(library.build()["stamp"]), wire),
        "mesh": np.array(sizes, np.int64),
        "scale": np.float64(scale_of(plan)),
        "label": label,
        "planning": np.int64(get_args(Planning).index(planning)),
        "threads": np.int64(threads),
        "back": back,
    }


def scale_of(plan: Plan) -> float:
    """Return the factor that a kernel multiplies by while it transforms."""
    return math.prod((s.scale for s in plain_stages(plan.stages) if isinstance(s, LocalTransform)), start=1.0)


def _is_supported(stage: AbstractStage) -> bool:
    """Return whether the kernels run `stage`. They run Fourier transforms, and cosines and sines of types 2 and 3.

    XLA runs short lines whose length has a large prime factor, as products with a matrix, because this is faster.
    """
    match stage:
        case Pieces(stages=stages):
            supported = all(_is_supported(part) and not isinstance(part, Extend | Crop | Pieces) for part in stages)
        case Move(before=before, after=after):
            # If several mesh axes shard a grid axis, the kernels can move all of them to another grid axis, but not
            # only some of them.
            cuts = zip(before.names, before.parts, after.names, after.parts)
            supported = all(name == other or 1 in (parts, now) for name, parts, other, now in cuts)
        case Extend() | Crop() | Clear() | Resize(changes_ends=True):
            supported = True
        case LocalTransform(transform=DFT(normalised=False)):
            supported = library.has_fft()
        case LocalTransform(transform=RealToReal(type=(2 | 3) as number), points=points):
            supported = library.has_fft() and not any(short_lines.are_faster_than_kernels(number, n) for n in points)
        case _:
            supported = False
    return supported and stage.before.ndim <= int(library.build()["axes"])


def in_order(entries: tuple[MeshAxis, ...], mesh: Mesh | AbstractMesh, numbers: list[int]) -> np.ndarray:
    """Reorder `numbers`, which belong to the devices of `mesh`, as if the axes of the mesh were `entries`."""
    positions = [tuple(mesh.shape).index(name) for entry in entries for name in entry_names(entry)]
    return np.array(numbers, np.int64).reshape(tuple(mesh.shape.values())).transpose(positions).ravel()


def _label(plan: Plan, call: Call, lead: tuple[int, ...], dtype: Any) -> str:
    """Return the text that describes an operator in error messages."""
    mesh = ", ".join(f"{axis}={size}" for axis, size in call.mesh.shape.items())
    shape = (*lead, *plan.source.lengths)
    ends = " -> ".join(map(_pencil, (plan.source, plan.target)))
    thread = call.caller.thread
    in_thread = f" in thread {thread!r}" if thread not in ("", caller.MAIN) else ""
    return f"{plan.name} {ends} of a {dtype} field {shape} on mesh ({mesh}){in_thread}"


def details(plan: Plan, wire: Wire | None) -> Iterator[str]:
    """Yield properties of an operator that its label does not tell. Errors quote them if two labels are equal."""
    names = axis_names(plan.source.ndim)
    for stage in plan.stages:
        if isinstance(stage, Pieces):
            yield f"{stage.count} pieces along {'the batch' if stage.axis is None else names[stage.axis]}"
    for stage in plain_stages(plan.stages):
        match stage:
            case LocalTransform(transform=DFT() as dft):
                axes = "".join(names[axis] for axis in stage.axes)
                yield f"{dft.kind} along {axes} with sign {dft.sign:+d}{', weighted' if dft.weighted else ''}"
            case LocalTransform(transform=RealToReal() as waves):
                axes = "".join(names[axis] for axis in stage.axes)
                ends = f", ends times √2^{waves.before} and √2^{waves.after}" if waves.before or waves.after else ""
                yield f"{waves.kind} of type {waves.type} along {axes}{ends}"
            case Extend():
                halo = (stage.before if stage.transposed else stage.after).halo[stage.axis]
                kind = "periodic" if stage.periodic else "bounded"
                yield f"{kind} halo {halo} along {names[stage.axis]}{', transposed' if stage.transposed else ''}"
            case Crop(transposed=True):
                yield "transposed"
    yield "stored as " + " -> ".join("".join(names[i] for i in blocks.order) for blocks in (plan.source, plan.target))
    yield f"times {scale_of(plan):g}"
    if wire:
        yield f"sent as {wire}"


def _pencil(blocks: Blocks) -> str:
    whole = "".join(axis for axis, name in zip(axis_names(blocks.ndim), blocks.names) if name is None)
    return f"{whole}-pencils"
