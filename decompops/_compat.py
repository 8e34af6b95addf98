"""Workarounds for bugs of particular versions of JAX and jaxlib.

A comment in each workaround says which versions need it, which issue reports the bug, and when it can be removed.
"""

import math
import os
from collections.abc import Callable, MutableMapping
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


def saving_nothing(function: Callable, *, prevent_cse: bool = True) -> Callable:
    """Return `function`, the body of a `shard_map`, so that its derivative recomputes all intermediate results."""
    # Inside another `shard_map`, JAX cannot lower the derivative of a `shard_map` that saves values which vary over the
    # axes of the outer `shard_map`: "Cannot lower jaxpr with verifier errors" (JAX 0.10.2 and 0.12.0, no issue known).
    # Remove this when tests/nn/test_halo_conv.py and tests/test_matrix.py pass without it.
    return jax.checkpoint(function, prevent_cse=prevent_cse)


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
