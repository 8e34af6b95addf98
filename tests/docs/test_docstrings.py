"""The examples in docstrings, which the API pages show."""

import ast
import functools
import re
import textwrap
import threading
from typing import Any

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest

from helpers import make_mesh, random_field
from pages import ROOT


def examples() -> dict[str, str]:
    """Return the Python blocks in the docstrings of the package, as `{file::name: code}`."""
    found = {}
    for path in sorted((ROOT / "decompops").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.Module):
                blocks = re.findall(r"^( *)```python\n(.*?)^\1```", ast.get_docstring(node) or "", re.DOTALL | re.M)
                for _, code in blocks:
                    name = f"{path.relative_to(ROOT / 'decompops')}::{getattr(node, 'name', '')}"
                    found[name] = found.get(name, "") + textwrap.dedent(code)
    return found


EXAMPLES = examples()
# These examples need arrays with values: they write files, draw, or start threads. All other examples are only traced,
# which takes much less time than compilation.
WITH_VALUES = (
    "_autotune/",
    "_backend/",
    "_core/decomposition",
    "_core/layout",
    "io/",
    "plot/",
    "pde/_simulate",
    "testing",
)
NEEDS_GPUS = {"_autotune/cudecomp.py::CuDecompTuner"}
# The test replaces these numbers in the examples by smaller numbers, so that the examples run fast.
SMALLER = {"12": "6", "16": "12", "32": "16", "50": "2", "64": "16", "65": "17", "96": "16", "100": "10", "128": "16"}
SMALLER |= {"256": "16", "1000": "10", "0.5": "0.05", "10.0": "0.1"}
STATE = "u = pde.NavierStokes(fft, 1e-3).state(velocity)"
FLAT = "fft = dops.FFT2D(mesh, axes='x', shape=(16, 16), real=True); velocity = jnp.ones((2, 16, 16))"
SOLVER = "solver = pde.ETDRK(pde.NavierStokes(fft, 1e-3), 0.01)"
MOVING = "pm = particles.ParticleMesh(fft.decomposition); p = pm.lattice()"
CONDENSATE = "fft = dops.FFT2D(mesh, axes='x', shape=(16, 16), box=dops.Box(10.0))"
PARTICLES = "positions, m = np.random.default_rng(0).random((20, 3)), np.ones(20); field = velocity"
# `prepared` does not define all names that these examples use. This code defines the missing names.
GIVEN = {
    "_core/layout.py::ravel": "dec = fft.decomposition",
    "_backend/mpi/backend.py::thread": "power = np.sum",
    "_core/window.py::Window": "dec = fft.decomposition",
    "finite_volume/_body.py::Body": "dec, f = fft.decomposition, u",
    "finite_volume/_diffusion.py::Diffusion": "a = f = u",
    "finite_volume/_staggered.py::Gradient": "dec, p, u = fft.decomposition, u, velocity",
    "io/_checkpoints.py::Checkpoints": f"{FLAT}; {SOLVER}; {STATE}; step = 1; model = memory = {{}}",
    "io/_snapshot.py::write": "p = u",
    "io/_snapshot.py::Writer": "class solver: rollout = lambda u, steps: (u, None)\n"
    "fields = lambda u: velocity; dt = 0.01",
    "io/_read.py::read": "io.write('run/000100.zarr', {'velocity': velocity}, fft)",
    "io/_samples.py::Samples": "io.write('data/0.zarr', {'input': u, 'target': u}, fft); model = state = None\n"
    "io.write('data/1.zarr', {'input': u, 'target': u}, fft)\n"
    "from contextlib import closing; from pathlib import Path; train = lambda model, state, a, b: (model, state)",
    "nn/_fno.py::FNO": "u = u[None]",
    "nn/_fno.py::UFNO": "u = u[None]",
    "pde/_magnetohydrodynamics.py::Magnetohydrodynamics": "magnetic = velocity",
    "nn/_group_norm.py::GroupNorm": "u = velocity",
    "nn/_halo_conv.py::HaloConv": "u = velocity",
    "nn/_halo_conv_transpose.py::HaloConvTranspose": "u = velocity",
    "nn/_spectral_conv.py::SpectralConv": "u = velocity",
    "nn/_unet.py::UNet": "u = velocity",
    "_operator/multiply.py::Multiply": "dec, a = fft.decomposition, u",
    "solve/_cg.py::CG": "from decompops import solve; a = f = u",
    "spectral/_variable.py::VariableLaplacian": "from decompops import solve; a = f = u",
    "particles/_gravity.py::Gravity": f"{MOVING}; p = p.replace(mass=p.positions[:, 0]); G = 1.0",
    "particles/_kick_drift_kick.py::KickDriftKick": f"{MOVING}; p = p.replace(velocity=p.positions)",
    "particles/_mesh.py::ParticleMesh": PARTICLES,
    "particles/_mesh.py::contrast": MOVING,
    "particles/_mesh.py::loads": f"{PARTICLES}; {MOVING}",
    "particles/_modes.py::Deconvolution": MOVING,
    "particles/_nufft.py::NUFFT": f"{PARTICLES}; dec, c = fft.decomposition, np.ones(20)",
    "particles/_nufft_type3.py::NUFFTType3": f"{PARTICLES}; dec, c, wavenumbers = fft.decomposition, m, positions",
    "particles/_particles.py::Particles": f"{PARTICLES}; {MOVING}; v = dt = 1",
    "pde/_channel.py::Channel": "velocity = np.zeros((3, 17, 16, 16))",
    "pde/_gross_pitaevskii.py::GrossPitaevskii": CONDENSATE,
    "pde/_imaginary_time.py::ImaginaryTime": CONDENSATE,
    "pde/_equation.py::state_transform": "field = velocity",
    "pde/_passive_scalar.py::PassiveScalar": "c = u",
    "pde/_rayleigh_benard.py::RayleighBenard": "fields = np.zeros((3, 16, 16))",
    "pde/_sbdf.py::SBDF": STATE,
    "pde/_simulate.py::simulate": FLAT,
    "plot/_curves.py::curves": "time = known_time = energy = enstrophy = known_energy = np.arange(1.0, 5.0)",
    "plot/_panels.py::panels": "time = energy = np.arange(1.0, 5.0); vorticity = u",
    "plot/_projection.py::projection": "enstrophy = density = u**2",
    "plot/_spectrum.py::spectrum": "before = after = u",
    # lineax does not support Explicit meshes.
    "solve/_multigrid.py::Multigrid": "dec, a = fft.decomposition, u; right = u",
    "spectral/_linear.py::as_linear_operator": "fft = dops.FFT3D(auto, shape=(16, 16, 16), real=True); b = numpy_array",
    "spectral/_solve.py::Poisson": "f = u",
    "spectral/_spectra.py::cross_spectrum": "v = u",
}


@functools.cache
def prepared(sizes: tuple[int, int]) -> dict[str, Any]:
    """Return the names that examples use: modules, a mesh of the given sizes, a transform and fields."""
    mesh = jax.make_mesh(sizes, ("x", "y"))
    fft = dops.FFT3D(mesh, shape=(16, 16, 16), real=True)
    numpy_array = random_field((16, 16, 16))
    shard = fft.decomposition.shard
    modules = {name: getattr(dops, name) for name in ("io", "mpmd", "particles", "pde", "plot", "spectral")}
    modules |= {"finite_volume": dops.finite_volume, "solve": dops.solve}
    modules |= {"dops": dops, "eqx": eqx, "jax": jax, "jnp": jnp, "lx": lx, "np": np, "threading": threading}
    return {
        **modules,
        "mesh": mesh,
        "auto": make_mesh(sizes),
        "fft": fft,
        "numpy_array": numpy_array,
        "u": shard(numpy_array),
        "velocity": shard(np.stack([numpy_array] * 3)),
        "key": jax.random.key(0),
    }


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    threads = set(threading.enumerate())
    code = re.sub(r"(?<![\w.])[\d.]+(?![\w.])", lambda number: SMALLER.get(number[0], number[0]), EXAMPLES[name])
    program = compile(f"{GIVEN.get(name, '')}\n{code}", name, "exec")
    if name in NEEDS_GPUS:
        return
    if name.startswith(WITH_VALUES):
        device = jax.devices()[:1]
        monkeypatch.setattr(jax, "devices", lambda *_: device)  # On one device, `autotune` tries fewer meshes.
        exec(program, dict(prepared((1, 1))))
    else:
        names = prepared((2, 4))
        fields = {name: names[name] for name in ("u", "velocity")}
        jax.eval_shape(lambda fields: exec(program, names | fields), fields)
    if name == "_backend/mpi/backend.py::thread":
        for thread in set(threading.enumerate()) - threads:
            thread.join()


def test_every_example_is_found():
    text = "".join(path.read_text() for path in (ROOT / "decompops").rglob("*.py"))
    assert len(EXAMPLES) == len(re.findall(r"^ *```python", text, re.MULTILINE)) > 30
    assert not {*GIVEN, *NEEDS_GPUS} - set(EXAMPLES)
