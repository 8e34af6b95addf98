"""Workarounds for bugs of particular versions of JAX and jaxlib.

A comment in each workaround says which versions need it, which issue reports the bug, and when it can be removed.
"""

import functools
import math
import os
import re
import warnings
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec


def avoid_hanging_ffts(
    environment: MutableMapping[str, str] = os.environ, version: str = jaxlib.version.__version__
) -> None:
    """Turn off multi-threading of XLA's FFTs on CPUs, in the two versions of jaxlib where these FFTs can hang.

    In these versions an FFT splits its work into tasks for XLA's pool of threads. An FFT that follows other work
    occupies one of these threads while it waits for its tasks. If no other thread is free, the tasks never run
    (`jnp.fft` hangs as well). This function sets a flag in the environment variable `XLA_FLAGS`, which XLA reads at its
    first computation. If the user has set this flag, the function changes nothing.
    """
    # jaxlib 0.11.1 and 0.11.2, openxla/xla#46347. Remove this when the package requires jaxlib 0.12.
    flags = environment.get("XLA_FLAGS", "")
    if version in ("0.11.1", "0.11.2") and "xla_cpu_multi_thread_eigen" not in flags:
        environment["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()


def avoid_deadlocks(cores: int, environment: MutableMapping[str, str] = os.environ) -> None:
    """Make XLA start at least four threads for each CPU device of a process that may have several.

    XLA starts a program on n CPU devices by n tasks in a pool of threads, and runs the program by n other tasks in the
    same pool. If 32 programs are under way on a device, a task that starts a further program waits, and holds a thread
    until one of the 32 programs has ended. By default the pool has a thread for each core, and at least n threads. So
    tasks that wait may occupy all threads that the older programs need. Then no program ever ends. This happens to
    every program on several devices; `jax_cpu_enable_async_dispatch` does not apply to such programs. With 2 n threads,
    n threads remain for the older programs, of which XLA runs one at a time. Each further Python thread that starts
    programs needs n more threads.

    XLA reads the environment variable `PJRT_NPROC` when JAX starts its first computation. The function changes nothing
    if the user has set the variable, and in processes with one device: those of MPI and of `jax.distributed`. A second
    variable tells child processes, which may have another number of devices, that the first one is not the user's.
    """
    chosen = "DECOMPOPS_PJRT_NPROC"
    if (inherited := environment.pop(chosen, None)) is not None and environment.get("PJRT_NPROC") == inherited:
        del environment["PJRT_NPROC"]
    # XLA's pool: GetPjRtCpuClient in xla/pjrt/cpu/cpu_client.cc (all versions up to jaxlib 0.12.0, no issue known).
    # Remove this, and `warn_of_few_threads`, when the sweeps of tests/sweeps/test_hangs.py pass without it.
    ranks = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
    if jax.distributed.is_initialized() or any(environment.get(name, "1") != "1" for name in ranks):
        return
    flag = re.search(r"--xla_force_host_platform_device_count=(\d+)", environment.get("XLA_FLAGS", ""))
    devices = jax.config.jax_num_cpu_devices  # pyright: ignore[reportAttributeAccessIssue]
    if devices < 0:  # The user may still choose a number. 32 threads suffice for 16 devices, and more slow XLA down.
        devices = int(flag[1]) if flag else 8
    if not {"PJRT_NPROC", "NPROC"} & environment.keys() and devices > 1 and 4 * devices > cores:
        environment["PJRT_NPROC"] = environment[chosen] = str(4 * devices)


@functools.cache  # One warning is enough.
def warn_of_few_threads(devices: int) -> None:
    """Warn if XLA runs, but has too few threads for programs on several CPU devices: see `avoid_deadlocks`."""
    threads = _xla_threads() if devices > 1 else 0
    if 0 < threads < min(2 * devices, 256):  # XLA starts at most 256 of the threads that are counted.
        warnings.warn(
            f"JAX may deadlock when more than 32 programs are under way on {devices} CPU devices: XLA has {threads} "
            f"threads and needs {2 * devices}. Set `PJRT_NPROC={4 * devices}` in the environment, or import decompops "
            "before JAX starts its first computation.",
            RuntimeWarning,
            stacklevel=2,
        )


def _xla_threads(tasks: str = "/proc/self/task") -> int:
    """Return the size of XLA's pool of threads on CPUs; 0 if JAX has not started or the system does not tell."""
    # XLA has two pools of this size. Only the threads of the other pool have a name.
    try:
        return sum("XLAEigen" in (task / "comm").read_text() for task in Path(tasks).iterdir())
    except OSError:  # The system is not Linux, or a thread has just ended.
        return 0


def most_fft_elements(platform: str) -> float | int:
    """Return the largest number of elements that the input or the result of one XLA FFT may have on a platform.

    The platform is "cpu", "gpu" or "tpu".
    """
    # On GPUs, XLA omits the factor 1/n of inverse FFTs with more elements than the 32-bit counter of cuBLAS can count
    # (all versions up to jaxlib 0.12.0, openxla/xla#45009). No error of forward FFTs is known. But forward FFTs also
    # count their batches in 32 bits, so the limit applies to all FFTs. Remove this when the package requires a release
    # with openxla/xla#45227.
    return 2**31 - 1 if platform == "gpu" else math.inf


def partitions(spec: PartitionSpec) -> tuple[Any, ...]:
    """Return the entries of a spec. JAX itself refuses to iterate over a spec with reduced axes."""
    if hasattr(spec, "partitions"):
        return spec.partitions
    # JAX 0.10.0 has no attribute `partitions`. Remove this line when the package requires JAX 0.10.2.
    return tuple(spec.update(reduced=frozenset(), unreduced=frozenset()))


def by_parts(retyped: Callable[[Array], Array], x: Array) -> Array:
    """Return `retyped(x)`. The function `retyped` only drops reduced mesh axes from the type of its argument."""
    # For complex numbers, XLA crashes in the transpose of `retyped` (jaxlib 0.10.2 and 0.12.0, no issue known). If the
    # real and imaginary parts are separate, JAX raises an error instead. Remove this when `jax.grad` through a
    # `reshard` of reduced complex numbers works.
    return jax.lax.complex(retyped(x.real), retyped(x.imag)) if jnp.iscomplexobj(x) else retyped(x)


def custom_linear_solve(matvec: Callable, b: Any, solve: Callable, transpose_solve: Callable, **options: Any) -> Any:
    """Return `jax.lax.custom_linear_solve`, whose functions `solve` and `transpose_solve` take b only."""
    # Inside a `shard_map`, JAX lets the constants of these functions, such as wavenumbers, vary over the mesh axes over
    # which b varies, and then evaluates the operations with them: "Primitive add requires varying manual axes to match"
    # (JAX 0.12.0, no issue known). It does not evaluate the operations of a program. Remove this when
    # tests/sweeps/test_groups.py passes without it.
    programs = jax.jit(solve), jax.jit(transpose_solve)
    own, transposed = ((lambda _, b, run=run: run(b)) for run in programs)
    # In JAX 0.12, pyright infers that `lax.custom_linear_solve` never returns.
    solution: Any = jax.lax.custom_linear_solve(jax.jit(matvec), b, own, transposed, **options)
    return solution


def count_up_to(bounds: tuple[float, ...], k: Array) -> Array:
    """Count how many of the increasing `bounds` are at most `k`: `jnp.searchsorted(bounds, k, side="right")`."""
    # In a `shard_map` over some, but not all axes of an Auto mesh, `searchsorted` of an array that varies over these
    # axes raises an `AssertionError` (JAX 0.10.0 to 0.12.0, no issue known). Remove this when
    # tests/spectral/test_statistics.py passes with `jnp.searchsorted`.
    bits = len(bounds).bit_length()
    table = jnp.asarray((*bounds, *[math.inf] * (2**bits - 1 - len(bounds))), k.dtype)
    count = jnp.zeros(k.shape, np.int32)
    for bit in reversed(range(bits)):
        more = count + 2**bit
        count = jnp.where(table[more - 1] <= k, more, count)
    return count
