"""Real programs whose ranks exchange nothing by XLA. Run `mpiexec -n N python reductions.py FOLDER`.

XLA writes the programs that it compiles into FOLDER. The first rank prints "as expected".
"""

import os
import sys
from pathlib import Path

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
from decompops import finite_volume, particles, pde, solve, spectral


N = 8


def main(folder: Path) -> None:
    os.environ["XLA_FLAGS"] += f" --xla_dump_to={folder} --xla_dump_hlo_as_text"
    jax.config.update("jax_enable_x64", True)
    dops.MPI.initialize()
    mesh = jax.make_mesh((jax.device_count(),), ("x",))
    dec = dops.Decomposition(mesh, shape=(N, N, N), box=dops.Box(2 * np.pi), backend=dops.MPI())
    random = np.random.default_rng(0).standard_normal((4, N, N, N))
    u = dec.shard(random[:3])

    for method in ("sum", "mean", "max", "min"):
        assert np.allclose(getattr(dec, method)(u), getattr(np, method)(random[:3], (1, 2, 3))), method
    assert np.allclose(dec.vdot(u, u[0]), (random[:3] * random[0]).sum((1, 2, 3)))
    slope = jax.jit(jax.grad(lambda x: dec.norm(x)[1] ** 2))(u)
    assert np.allclose(dec.norm(slope), np.array([0, 2, 0]) * np.linalg.norm(random[1]))

    padded = dops.Decomposition(mesh, shape=(N - 1, N, N), pad=True, backend=dops.MPI())
    short = padded.shard(random[0, 1:])
    assert np.allclose(padded.norm(short), np.linalg.norm(random[0, 1:]))

    operator = finite_volume.Diffusion(dec, dec.shard(np.exp(random[3])))
    right = u[0] - dec.mean(u[0])
    for method in (solve.CG(operator, preconditioner=solve.Multigrid(operator)), solve.GMRES(operator)):
        assert dec.norm(operator(method(right)) - right) < 1e-4 * dec.norm(right)

    fft = dops.FFT3D(dec, real=True)
    equation = pde.NavierStokes(fft, viscosity=0.1)
    solver = pde.ETDRK(equation, dt=0.01, order=2)
    energy = lambda t, x: jnp.sum(spectral.mean_square(equation.transform, x)) / 2
    for control in (None, pde.CFL(0.5), pde.ErrorControl(1e-3)):
        done = pde.simulate(solver, equation.state(u), 0.02, control=control, observe=energy, progress=False)
        assert done.t == 0.02
        assert 0 < done.observed[-1] < done.observed[0]

    # The integral of a spectrum over all modes is the mean square. The box is a cube of length 2π.
    spectrum = spectral.power_spectrum(fft, u, edges=(0.0, 100.0))
    squares = np.mean(random[:3] ** 2, (1, 2, 3))
    assert np.allclose((spectrum.power * spectrum.modes)[:, 0] / (2 * np.pi) ** 3, squares)
    moments = spectral.structure_functions(fft, u, (1,), orders=(2,)).longitudinal
    steps = [np.mean((np.roll(random[i], -1, i) - random[i]) ** 2) for i in range(3)]
    assert np.allclose(moments, np.mean(steps))

    grid = particles.ParticleMesh(dec, "tsc")
    p = grid.lattice(1)
    shifts = jnp.sin(p.positions)
    p = grid.exchange(p.replace(positions=p.positions + 0.1 * shifts, velocity=shifts))
    step = particles.KickDriftKick(grid, particles.Gravity(grid), jnp.linspace(0.0, 0.1, 3))
    last, _ = step.rollout(p)
    assert np.allclose(grid.sum(last, last["velocity"]), 0, atol=1e-8)
    assert np.isclose(dec.sum(grid.deposit(last)), N**3)
    if jax.process_index() == 0:
        print("as expected", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
