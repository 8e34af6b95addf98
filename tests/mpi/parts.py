"""One rank of a job that uses only some of its ranks. test_parts.py starts the ranks and reads their output.

mpiexec -n N python parts.py meshes|split|stranger
"""

import sys

import decompops as dops
import jax
import numpy as np
from jax.sharding import Mesh
from mpi4py import MPI

from checks import UNEVEN, assert_block
from helpers import random_field
from pages import blocks


def check(devices: list, sizes: tuple[int, ...], seed: int, communicator: str = "world") -> None:
    """Compare transforms, a transpose and a norm with NumPy, on a mesh of these devices."""
    mesh = Mesh(np.array(devices).reshape(sizes), ("x", "y")[: len(sizes)])
    options = {"shape": UNEVEN, "pad": True, "backend": dops.MPI(communicator=communicator)}
    fft, u = dops.FFT3D(mesh, real=True, **options), random_field(UNEVEN, seed=seed)
    field = fft.decomposition.shard(u)
    k = fft(field)
    assert_block(k, np.fft.rfftn(u))
    assert_block(fft.inverse(k), u)
    transpose = dops.Transpose(mesh, "z", "x", **options)
    assert_block(transpose(field), u)
    np.testing.assert_allclose(float(fft.decomposition.norm(field)), np.linalg.norm(u), rtol=1e-12)


def meshes() -> None:
    """The first three ranks have a mesh. Then each rank has one of two meshes. At last, one mesh has all ranks."""
    dops.MPI.initialize()
    devices, rank = jax.devices(), jax.process_index()
    if rank < 3:
        check(devices[:3], (3,), 0)
    if rank < 2:
        check(devices[1::-1], (2,), 1)
    else:
        check(devices[2:], (len(devices) - 2,), 2)
    check(devices, (2, len(devices) // 2), 3)


def split() -> None:
    """Each part of a communicator that is split is a job of its own, with JAX processes of its own."""
    (code,) = blocks("docs/cluster.md")
    names = {"dops": dops, "jax": jax}
    exec(code.replace("rank // 4", "rank // 2"), names)
    part, fft = names["part"], names["fft"]
    assert (jax.process_index(), jax.process_count()) == (part.rank, part.size) == (MPI.COMM_WORLD.rank % 2, 2)
    u = random_field((8, 4, 6), seed=MPI.COMM_WORLD.rank // 2)
    assert_block(fft(u), np.fft.fftn(u))
    check(jax.devices(), (part.size,), MPI.COMM_WORLD.rank // 2, "part")


def stranger() -> None:
    """A rank calls an operator of a mesh without its device."""
    dops.MPI.initialize()
    check(jax.devices()[:1], (1,), 0)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)  # LLVM's optimisations would take most of the time.
    {task.__name__: task for task in (meshes, split, stranger)}[sys.argv[1]]()
    print(f"rank {MPI.COMM_WORLD.rank} passed", flush=True)
