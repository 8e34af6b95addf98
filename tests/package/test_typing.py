"""Tests of the public annotations: mypy and pyright accept a right program, and report common mistakes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import decompops as dops
import pytest


ROOT = Path(dops.__file__).parent.parent
RIGHT = """
import decompops as dops
import jax
import numpy as np

mesh = jax.make_mesh((2, 4), ("x", "y"))
dec = dops.Decomposition(mesh, shape=np.array([8, 8, 8]), axes=(("x", "y"),), pad=True)
u = dec.shard(np.zeros((8, 8, 8)))
mean: jax.Array = dec.mean(u)
fft: dops.FFT3D = dops.FFT3D(dec, real=True, norm="ortho", modes=4)
other: dops.FFT3D = fft.replace(real=False)
of_any_axes: dops.FFT = fft
k: jax.Array = fft(u)
v: jax.Array = (fft.inverse @ fft)(u)
kx, ky, kz = fft.wavenumbers()
halo = dops.HaloExchange(mesh, ((1, 2), 0, 3), periodic=(True, False, True))
cropped: jax.Array = halo.crop(halo(u))
stencil = dops.Stencil(mesh, lambda block: block[1:-1, 1:-1, 1:-1], halo=1)
moved: jax.Array = dops.Transpose(mesh, "z", 1, source_order=("z", "x", 1))(u)
cosine = dops.Transform(mesh, bases=[dops.Cosine(2), dops.Fourier()], shape=(8, 8), axes="x")
best: dops.Decomposition = dops.autotune((64, 64, 64), dtype="float32")
navier_stokes: type[dops.pde.NavierStokes] = dops.pde.NavierStokes
pressure: jax.Array = dops.spectral.Poisson(cosine, "neumann")(u)
slope = dops.spectral.Derivative(fft, [1, 0, 0])
noise = dops.pde.OrnsteinUhlenbeckForcing(fft, jax.random.key(1), amplitude=0.5, time=0.4, shell=(1, 2.5))
wind = dops.pde.Advection(fft, np.ones(3), np.eye(3))
solver = dops.solve.GMRES(slope, rtol=1e-8, restart=5)
"""
MISTAKES = """
import decompops as dops
import jax

mesh = jax.make_mesh((2, 4), ("x", "y"))
dops.FFT3D(mesh, shape=64)
dops.FFT2D(mesh, shape="64")
dops.FFT(mesh, shape=64)
dops.FFT3D(mesh, norm="orthogonal")
dops.FFT3D(mesh, reel=True)
dops.FFT3D(mesh, real="yes")
dops.Decomposition(mesh, shape=64)
dops.Decomposition(mesh, shape=(8, 8), axes=3)
dops.Decomposition(mesh, shape=(8, 8), backend=3)
dops.HaloExchange(mesh, halo="two")
dops.Stencil(mesh, 3, halo=1)
dops.Transpose(mesh, 1.5, "y")
dops.Transform(mesh, bases=["cosine"])
dops.particles.NUFFT(dops.Decomposition(mesh, shape=(8, 8)), tolerance="small")
dops.spectral.Poisson(dops.FFT2D(mesh, shape=(8, 8)), 3)
dops.pde.SBDF(dops.pde.Burgers(dops.FFT2D(mesh, shape=(8, 8)), 0.1), 0.1, order=5)
dops.FFT4D(mesh)
dops.pdes.NavierStokes
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> Path:
    """Return a folder with both programs, and with settings by which type checkers find decompops."""
    folder = tmp_path_factory.mktemp("programs")
    (folder / "right.py").write_text(RIGHT)
    (folder / "mistakes.py").write_text(MISTAKES)
    (folder / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(ROOT)]}))
    settings = f"[mypy]\nmypy_path = {ROOT}\nfollow_imports = silent\n"
    (folder / "mypy.ini").write_text(settings)
    return folder


def lines_of_mistakes() -> list[int]:
    return [number for number, line in enumerate(MISTAKES.splitlines(), 1) if line.startswith("dops.")]


def run(checker: str, *arguments: str, folder: Path) -> str:
    """Run a type checker in the Python environment of the tests."""
    command = [sys.executable, "-m", checker, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 1, done.stdout + done.stderr  # Type checkers that find mistakes return 1.
    return done.stdout


def test_pyright(programs):
    found = json.loads(run("pyright", "--outputjson", "--pythonpath", sys.executable, "-p", ".", folder=programs))
    assert found["summary"]["filesAnalyzed"] == 2
    reported = [
        (Path(one["file"]).name, one["range"]["start"]["line"] + 1)
        for one in found["generalDiagnostics"]
        if one["severity"] == "error"
    ]
    assert reported == [("mistakes.py", number) for number in lines_of_mistakes()]


def test_mypy(programs):
    lines = run("mypy", f"--cache-dir={os.devnull}", "right.py", "mistakes.py", folder=programs).splitlines()
    reported = [tuple(line.split(":")[:2]) for line in lines if ": error: " in line]
    assert reported == [("mistakes.py", str(number)) for number in lines_of_mistakes()]


def test_the_package_says_that_it_has_types():
    assert (ROOT / "decompops" / "py.typed").read_text() == ""
