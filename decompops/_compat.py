"""Workarounds for particular versions of JAX and jaxlib, and nothing else.

Each says which versions need it, which issue reports the bug, and when it can go.
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
    """With two versions of jaxlib, let XLA's FFTs on CPUs do without its threads, unless the user has decided.

    There an FFT that follows other work occupies a thread of XLA's pool and waits in it for parts of its own, which no
    thread may be left to run (`jnp.fft` hangs as well). XLA reads the flags at its first computation.
    """
    # jaxlib 0.11.1 and 0.11.2, openxla/xla#46347. It can go when the package requires jaxlib 0.12.
    flags = environment.get("XLA_FLAGS", "")
    if version in ("0.11.1", "0.11.2") and "xla_cpu_multi_thread_eigen" not in flags:
        environment["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()


def most_fft_elements(platform: str) -> float | int:
    """How many elements one FFT of XLA may have, in its input and its result, on "cpu", "gpu" or "tpu"."""
    # XLA for GPUs leaves out the 1/n of inverse FFTs of more elements than cuBLAS counts in 32 bits: results are wrong
    # by that factor (all versions up to jaxlib 0.12.0, openxla/xla#45009). Other FFTs are right as far as known, but
    # count their batches in 32 bits, too. This can go when the package requires a release with openxla/xla#45227.
    return 2**31 - 1 if platform == "gpu" else math.inf


def partitions(spec: PartitionSpec) -> tuple[Any, ...]:
    """The entries of a spec. JAX refuses to iterate over one that names reduced axes, which shard nothing."""
    if hasattr(spec, "partitions"):
        return spec.partitions
    # JAX 0.10.0 has no such attribute, JAX 0.10.2 has it. This can go when the package requires the latter.
    return tuple(spec.update(reduced=frozenset(), unreduced=frozenset()))


def by_parts(retyped: Callable[[Array], Array], x: Array) -> Array:
    """`retyped(x)` for a `retyped` that only drops reduced mesh axes from the type of its argument."""
    # In the transpose of that, XLA crashes for complex numbers (jaxlib 0.10.2 and 0.12.0, no issue known). Of their
    # parts JAX refuses the transpose. This can go when `jax.grad` through a `reshard` of reduced complex numbers works.
    return jax.lax.complex(retyped(x.real), retyped(x.imag)) if jnp.iscomplexobj(x) else retyped(x)


def saving_nothing(function: Callable, *, prevent_cse: bool = True) -> Callable:
    """`function`, the body of a `shard_map`, with its intermediate results computed again for the derivative."""
    # Inside another `shard_map`, JAX cannot lower the derivative of a `shard_map` that saves values which vary over the
    # axes of the outer one: "Cannot lower jaxpr with verifier errors" (JAX 0.10.2 and 0.12.0, no issue known). This can
    # go when tests/nn/test_halo_conv.py and tests/test_matrix.py pass without it.
    return jax.checkpoint(function, prevent_cse=prevent_cse)


def count_up_to(bounds: tuple[float, ...], k: Array) -> Array:
    """How many of the increasing `bounds` are at most `k`: `jnp.searchsorted(bounds, k, side="right")`."""
    # Where a `shard_map` maps over some axes of an Auto mesh only, JAX fails in `searchsorted` of an array that varies
    # over them: an `AssertionError` (JAX 0.10.0 to 0.12.0, no issue known). This can go when
    # tests/spectral/test_statistics.py passes with `jnp.searchsorted`.
    bits = len(bounds).bit_length()
    table = jnp.asarray((*bounds, *[math.inf] * (2**bits - 1 - len(bounds))), k.dtype)
    count = jnp.zeros(k.shape, np.int32)
    for bit in reversed(range(bits)):
        more = count + 2**bit
        count = jnp.where(table[more - 1] <= k, more, count)
    return count
