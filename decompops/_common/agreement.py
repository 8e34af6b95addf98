"""Agreement between processes: all continue, or all raise an error."""

import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from .sharding import is_eager, manual_axes, no_ambient_mesh


# If a process raises an error of one of these types, all processes raise an error of this type. For an error of
# another type, the other processes raise a `RuntimeError`.
_TYPES = (ValueError, FileNotFoundError, NotADirectoryError, OSError, TypeError, ImportError, MemoryError, RuntimeError)
_REASON = 1000  # The most bytes of an error message that a process sends to the others.

Exchange = Callable[..., Mapping[int, tuple[int, ...]]]


def exchange_numbers(mesh: Mesh, *numbers: int) -> dict[int, tuple[int, ...]]:
    """Return the 32-bit `numbers` that each process passes, by process index. All processes of the mesh must call this.

    If all devices of the mesh belong to this process, or none, the processes do not communicate.
    """
    everywhere = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    if len(everywhere.addressable_devices) in (0, mesh.size):
        return {jax.process_index(): numbers}
    shape = (mesh.size, len(numbers))
    mine = np.array([numbers], np.uint32)
    with no_ambient_mesh(unless=mesh):
        gathered = jax.make_array_from_callback(shape, everywhere, lambda _: mine)
        gathered = np.asarray(jax.device_put(gathered, NamedSharding(mesh, PartitionSpec()))).tolist()
    return {device.process_index: tuple(values) for device, values in zip(mesh.devices.flat, gathered)}


_TO_SHARD = (
    "it is not sharded",
    "Shard a field by `Decomposition.shard` first: each process then keeps only its own blocks.",
)


def check_same_array(
    mesh: Mesh | AbstractMesh, array: np.ndarray, name: str, advice: tuple[str, str] = _TO_SHARD
) -> None:
    """Raise `ValueError` on every process of the mesh if the processes have other arrays. Errors call them `name`.

    `advice` says why the arrays must be the same, and what to do.

    JAX compares them only outside of `jax.set_mesh`, takes NaNs for different, and aborts at different shapes. While
    JAX traces, the processes cannot communicate, and nothing is compared.
    """
    if jax.process_count() == 1 or manual_axes() or not is_eager():
        return
    if others := differing(mesh, contents(array)):
        raise ValueError(
            f"`{name}` must be the same array on every process, because {advice[0]}; got {array.dtype}{array.shape} "
            f"on process {jax.process_index()}, another array on {others}. {advice[1]}"
        )


def contents(array: np.ndarray) -> tuple[tuple[int, ...], str, int]:
    """Return the shape and the dtype of an array, and a checksum of its numbers."""
    return array.shape, str(array.dtype), zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def check_agreement(mesh: Mesh | AbstractMesh, array: np.ndarray, where: Any, name: str) -> None:
    """Raise `ValueError` on every process of the mesh if the processes pass arrays of different shapes or dtypes.

    `where` says where the array belongs, such as a pencil or a layout, and must be the same, too. Errors call it
    `name`. Otherwise the processes would run different programs, which would hang, abort, or continue with missing
    data.
    """
    if others := differing(mesh, (array.shape, str(array.dtype), where)):
        raise ValueError(
            f"`array` must have the same shape and dtype on every process, and {name} must be the same; got "
            f"{array.shape}, {array.dtype}, {where!r} on process {jax.process_index()}, other values on {others}."
        )


def differing(mesh: Mesh | AbstractMesh, facts: Any) -> list[int]:
    """Return the processes of the mesh whose `facts` are others than those of this process. All must call this."""
    if isinstance(mesh, AbstractMesh):
        return []
    mine = zlib.crc32(repr(facts).encode())
    return sorted(process for process, (value,) in exchange_numbers(mesh, mine).items() if value != mine)


@contextmanager
def raised_by_all(exchange: Exchange, *more_types: type[Exception]) -> Iterator[None]:
    """If this block raises an error on one process, raise an error of the same type on every process.

    All processes must run this block, and it must not communicate. The other processes name the first process that
    failed, and repeat its message. `exchange(*numbers)` returns the numbers of each process, by process index.
    `more_types` are subclasses of usual errors that the other processes raise, too.
    """
    types, error = (*more_types, *_TYPES), None
    try:
        yield
    except Exception as raised:
        error = raised
    number = next((i for i, kind in enumerate(types) if isinstance(error, kind)), len(types) - 1)
    found = exchange(0 if error is None else 1 + number)
    failed = min((process for process, (mine,) in found.items() if mine), default=None)
    if failed is None:
        return
    texts = exchange(*str(error).encode(errors="replace")[:_REASON].ljust(_REASON))
    kind: type[Exception] = types[found[failed][0] - 1]
    if error is not None and (isinstance(error, kind) or failed == jax.process_index()):
        raise error
    reason = bytes(texts[failed]).decode(errors="replace").strip()
    raise kind(f"process {failed} failed: {reason}") from error


def raised_by_all_of(mesh: Any, *more_types: type[Exception]) -> AbstractContextManager[None]:
    """Return `raised_by_all` for the processes of a mesh, or a context that does nothing if the mesh has no devices."""
    return raised_by_all(partial(exchange_numbers, mesh), *more_types) if isinstance(mesh, Mesh) else nullcontext()
