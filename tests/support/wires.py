"""Checks of narrow exchanges with compiled kernels: bytes, errors, and how numbers are rounded."""

from dataclasses import replace

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec as P

from checks import EVEN, UNEVEN, assert_block, assert_exact, distributed, in_pieces
from helpers import random_field


# For each dtype: how many times fewer bytes of float64 it sends, and the largest relative error of a transform.
WIRES = {"float32": (2, 6e-8), "bfloat16": (4, 4e-3), "float16": (4, 5e-4)}


def check(backend, mesh: Mesh) -> None:
    check_transforms(backend, mesh)
    check_rounding(backend, mesh)
    check_batch(backend, mesh)


def check_transforms(backend, mesh: Mesh) -> None:
    """Test the bytes and the errors of transforms, with and without overlap."""
    u = random_field(EVEN, np.complex128)
    expected = np.fft.fftn(u)

    def sent(wire: str | None, overlap: int = 1) -> tuple[jax.Array, int, int]:
        chosen = replace(in_pieces(backend, overlap), wire=wire)
        fft = dops.FFT3D(mesh, shape=EVEN, backend=chosen)
        before = chosen.counters()
        k = jax.block_until_ready(fft(fft.decomposition.shard(u)))
        after = chosen.counters()
        return k, after.sent_bytes - before.sent_bytes, after.messages - before.messages

    exact, many, _ = sent(None)
    assert_block(exact, expected)
    for wire, (share, most) in WIRES.items():
        for overlap in (1, 2):
            k, few, messages = sent(wire, overlap)
            # Each message in float16 begins with an exponent of four bytes.
            heads = 4 * messages if wire == "float16" else 0
            assert many == share * (few - heads) > 0
            for shard in k.addressable_shards:
                error = np.asarray(shard.data) - expected[shard.index]
                assert most / 100 < np.linalg.norm(error) / np.linalg.norm(shard.data) < most


def check_rounding(backend, mesh: Mesh) -> None:
    """Test that a transpose rounds all numbers as a cast does, also those that stay on their device."""
    for wire, dtype in (("float32", np.complex128), ("bfloat16", np.float32), ("float16", np.complex64)):
        options = {"shape": UNEVEN, "pad": True, "backend": replace(backend, wire=wire)}
        for contiguous in (False, True):
            transpose = dops.Transpose(mesh, "z", "x", axis_contiguous=contiguous, **options)
            source, target = transpose.plan().source, transpose.plan().target
            u = random_field(UNEVEN, dtype)
            moved = transpose(distributed(u.transpose(source.order), mesh, source.spec, source.shape))
            parts = [np.asarray(jnp.asarray(part).astype(wire).astype(part.dtype)) for part in (u.real, u.imag)]
            rounded = (parts[0] + 1j * parts[1]).astype(dtype) if np.iscomplexobj(u) else parts[0]
            assert_exact(moved, rounded.transpose(target.order))


def padding(before: tuple[int, ...], after: tuple[int, ...]) -> list[tuple[int, int]]:
    return [(0, have - want) for have, want in zip(after, before)]


def check_batch(backend, mesh: Mesh) -> None:
    """Test that float16 keeps its precision for fields of any size in a batch, whatever their padding holds."""
    sizes = np.array([1, 1e-30, 1e30, 0], np.float32)
    u = random_field((4, *UNEVEN), np.float32) * sizes[:, None, None, None]
    expected = np.fft.rfftn(u.astype(float), axes=(1, 2, 3))
    for overlap in (1, 2):
        options = {"pad": True, "real": True, "backend": replace(in_pieces(backend, overlap), wire="float16")}
        fft = dops.FFT3D(mesh, shape=UNEVEN, **options)
        source = fft.plan().source
        unclear = np.pad(u, padding(u.shape, (4, *source.shape)), constant_values=np.nan)
        k = fft(distributed(unclear, mesh, P(None, *source.spec), unclear.shape))
        padded = np.pad(expected, padding(expected.shape, k.shape))
        for shard in k.addressable_shards:
            found, right = np.asarray(shard.data), padded[shard.index]
            for i, size in enumerate(sizes[:3]):
                error = np.linalg.norm(found[i] / size - right[i] / size)
                assert error <= WIRES["float16"][1] * np.linalg.norm(padded[i] / size)
            assert not found[3].any()
