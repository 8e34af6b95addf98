"""Tests of `jax.export` and of compiled programs: other processes load and run them."""

import pickle
import subprocess
import sys

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.fft
from jax import export
from jax.experimental import serialize_executable
from jax.sharding import NamedSharding, PartitionSpec as P

from helpers import make_mesh, random_field


SHAPE = (4, 6, 8)
# This program knows nothing of decompops. It prints the largest error relative to the largest value.
READER = """
import pathlib, sys
import jax, numpy as np
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_enable_x64", True)
mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 2), ("x", "y"))
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.bin")):
    program = jax.export.deserialize(bytearray(path.read_bytes()))
    with np.load(path.with_suffix(".npz")) as file:
        x, expected = file["x"], file["expected"]
    if program.nr_devices > 1:
        x = jax.device_put(x, program.in_shardings_jax(mesh)[0])
    result = np.asarray(program.call(x))
    assert result.shape == expected.shape, path
    error = np.abs(result - expected).max() / np.abs(expected).max()
    assert error < 1e-10, (path, error)
assert "decompops" not in sys.modules
"""


def test_a_process_without_decompops_runs_exported_programs(tmp_path, plain):
    pytest.importorskip("flatbuffers", reason="`jax.export` needs it to write programs")
    backend = "xla" if plain.Native().problem() else "native"  # An exported program contains no kernels.
    # Type checks at run time, which `plain` lacks, refuse lengths that are symbols.
    mesh = make_mesh((2, 2))
    fft = plain.FFT3D(mesh, shape=SHAPE, pad=True, backend=backend)
    u, c = random_field(SHAPE), random_field((3, *SHAPE), np.complex128)
    even = plain.FFT3D(mesh, shape=(4, 4, 4), real=True, backend=backend)
    walls = plain.Transform(
        mesh, bases=[plain.Fourier(), plain.Fourier(half=True), plain.Cosine(2)], shape=SHAPE, pad=True
    )
    flow = np.zeros((3, 4, 4, 4))
    flow[1] = np.sin(np.pi / 2 * np.arange(4))[:, None, None]  # A shear flow, which only viscosity changes.
    equation = plain.pde.RealSpace(plain.pde.NavierStokes(even, 0.5))
    along_y = lambda x, spec: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec))
    (b,) = export.symbolic_shape("b")
    batch = jax.ShapeDtypeStruct((b, *SHAPE), c.dtype, sharding=NamedSharding(mesh, P(None, "x", "y")))
    flat = jax.ShapeDtypeStruct((b, *SHAPE), c.dtype)
    energy = lambda u: jnp.sum(jnp.abs(fft(u)) ** 2)
    field = along_y(u, P("x", "y"))
    cases = {
        "fft": (fft, field, u, np.fft.fftn(u)),
        "walls": (walls.inverse @ walls, field, u, u),
        "gradient": (jax.grad(energy), field, u, 2 * u.size * u),
        "batch": (fft, batch, c, np.fft.fftn(c, axes=(1, 2, 3))),
        "batch gradient": (jax.grad(lambda u: energy(u * u)), batch, c.real + 0j, 4 * u.size * c.real**3 + 0j),
        "function": (lambda u: plain.fft.dctn(u, 3, mesh=mesh, backend=backend), field, u, scipy.fft.dctn(u, 3)),
        "function of a batch": (jax.vmap(plain.fft.fftn), flat, c, np.fft.fftn(c, axes=(1, 2, 3))),
        "equation": (lambda u: equation(0.0, u), along_y(flow, P(None, "x", "y")), flow, -0.5 * flow),
    }
    even_batch = jax.ShapeDtypeStruct((b, 4, 4, 4), u.dtype, sharding=batch.sharding)
    for function in (plain.nn.AvgPool(even.decomposition, 2), even.decomposition.ravel):  # These contain a `shard_map`.
        with pytest.raises(ValueError, match=r"must have known lengths .*; got shape \(b, 4, 4, 4\)"):
            export.export(jax.jit(lambda x, function=function: function(x)))(even_batch)
    for name, (function, argument, x, expected) in cases.items():
        (tmp_path / f"{name}.bin").write_bytes(export.export(jax.jit(function))(argument).serialize())
        np.savez(tmp_path / f"{name}.npz", x=x, expected=expected)
    done = subprocess.run([sys.executable, "-c", READER, tmp_path], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


# This program builds no operator before it runs the compiled one.
RUNNER = """
import pickle, sys
import jax, numpy as np
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_enable_x64", True)
import decompops
from jax.experimental import serialize_executable
with open(sys.argv[1], "rb") as file:
    programs, u = pickle.load(file)
for parts in programs:
    program = serialize_executable.deserialize_and_load(*parts)
    result = program(jax.device_put(u, program.input_shardings[0][0]))
    np.testing.assert_allclose(np.asarray(result), np.fft.fftn(u), atol=1e-10)
"""


def test_a_new_process_runs_compiled_programs(tmp_path):
    """Without a kernel, and with kernels if they are there."""
    u, programs = random_field((4, 4, 8), np.complex128), []
    for backend in ("xla",) if dops.Native().problem() else ("xla", "native"):
        fft = dops.FFT3D(make_mesh((2, 4)), shape=(4, 4, 8), backend=backend)
        compiled = jax.jit(lambda v, fft=fft: fft(v)).lower(fft.decomposition.shard(u)).compile()
        programs.append(serialize_executable.serialize(compiled))
    file = tmp_path / "program"
    file.write_bytes(pickle.dumps((programs, u)))
    done = subprocess.run([sys.executable, "-c", RUNNER, file], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
