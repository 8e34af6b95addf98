"""One process of a run over several hosts. test_hosts.py starts the processes and reads their output.

    python operators.py BACKEND FOLDER [--separate] [--address A --processes N --process I --devices D]

The backend `mpi` is started under `mpiexec`; `xla` gets the address of the first process. With `--separate`, each host
has a folder of its own.
"""

import argparse
import functools
import socket
from pathlib import Path

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import io
from decompops.io import _staging
from jax.sharding import Mesh

from checks import assert_block
from files import check_checkpoints, check_snapshots
from helpers import assert_close, make_mesh, random_field


SHAPE = (6, 5, 8)
ENDS = slice(None, -2), slice(2, None)  # The neighbours before and after each point of a block with a halo.


def check_operators(mesh: Mesh, backend) -> None:
    """Compare transforms, a transpose, a halo exchange, a reduction and a gradient with NumPy."""
    fft = dops.FFT3D(mesh, shape=SHAPE, pad=True, backend=backend)
    dec = fft.decomposition
    u = random_field(SHAPE, np.complex128)
    field, expected = dec.shard(u), np.fft.fftn(u)
    assert_block(jax.jit(fft)(field), expected)
    assert_block(jax.jit(lambda v: fft.inverse(fft(v)))(field), u)
    assert_block(dops.Transpose(dec, "z", "x")(field), u)
    assert_close(dec.vdot(field, field), np.vdot(u, u))
    assert_close(jax.jit(lambda v: jnp.sum(jnp.abs(fft(v)) ** 2))(field), np.sum(np.abs(expected) ** 2))
    # By Parseval's theorem, the energy of the spectrum is N |u|^2, whose gradient is 2 N u. JAX conjugates gradients.
    gradient = jax.jit(jax.grad(lambda v: jnp.sum(jnp.abs(fft(v)) ** 2)))(field)
    assert_block(gradient, 2 * u.size * np.conj(u))
    stencil = dops.Stencil(dec, lambda h: h[..., 2:, 1:-1, 1:-1] - h[..., :-2, 1:-1, 1:-1])
    assert_block(stencil(field), np.roll(u, -1, 0) - np.roll(u, 1, 0))


def check_solver(mesh: Mesh) -> None:
    """Solve 7 u minus the sum of the six neighbours of u by conjugate gradients."""
    dec = dops.Decomposition(mesh, shape=SHAPE, pad=True)
    u = random_field(SHAPE)
    right = 7 * u - sum(np.roll(u, shift, axis) for axis in range(3) for shift in (-1, 1))
    inside = slice(1, -1)

    def minus_laplacian(h):
        parts = [h[(..., *(inside,) * axis, ends, *(inside,) * (2 - axis))] for axis in range(3) for ends in ENDS]
        return 7 * h[..., inside, inside, inside] - sum(parts)

    solver = dops.solve.CG(dops.Stencil(dec, minus_laplacian), rtol=1e-13)
    assert_block(solver(dec.shard(right)), u)


def check_separate_folders(folder: Path) -> None:
    """Check that no process writes a snapshot or a checkpoint if the hosts do not see the same folder."""
    _staging.VISIBLE = 1.0
    dec = dops.Decomposition(make_mesh((4,)), shape=SHAPE, pad=True)
    u = dec.shard(random_field(SHAPE))
    rule = "file system that all hosts share"
    with pytest.raises(RuntimeError, match=rule) as error:
        io.write(folder / "u.zarr", {"u": u}, dec, patience=3)
    if jax.process_index() > 1:
        assert f"is missing on host {socket.gethostname()!r} (process {jax.process_index()})" in str(error.value)
    assert not (folder / "u.zarr").exists()
    checkpoints = io.Checkpoints(folder / "run")
    with pytest.raises(RuntimeError, match=rf"{rule}; processes \[2, 3\] do not see"):
        checkpoints.save(1, {"u": u})
    print("refused", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("backend", choices=("mpi", "xla"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--separate", action="store_true")
    parser.add_argument("--address")
    for name in ("processes", "process", "devices"):
        parser.add_argument(f"--{name}", type=int)
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    backend = {"mpi": functools.partial(dops.MPI, planning="estimate"), "xla": dops.XLA}[given.backend]()
    if given.address:
        jax.config.update("jax_num_cpu_devices", given.devices)
        jax.distributed.initialize(given.address, given.processes, given.process, initialization_timeout=60)
    else:
        dops.MPI.initialize()
    dops.config.update(backend=backend)
    if given.separate:
        check_separate_folders(given.folder)
        return
    mesh = make_mesh((2, 2), "explicit")
    with jax.set_mesh(mesh):
        check_operators(mesh, backend)
        check_solver(mesh)
    print("operators agree", flush=True)
    for check in (check_snapshots, check_checkpoints):
        check(given.folder / check.__name__)
    print(f"{socket.gethostname()}, process {jax.process_index()}: all checks passed", flush=True)


if __name__ == "__main__":
    main()
