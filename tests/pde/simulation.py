"""A simulation that test_simulate.py interrupts, and continues by a second call of this script.

python simulation.py FOLDER METHOD [--sizes 2x2] [--rank R --processes N --port P]
"""

import argparse
import time
from pathlib import Path

import decompops as dops
import jax
import numpy as np
from decompops import pde, spectral


parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("method", choices=["etdrk", "sbdf", "controlled"])
parser.add_argument("--sizes", default="2x2")
parser.add_argument("--rank", type=int, default=0)
parser.add_argument("--processes", type=int, default=1)
parser.add_argument("--port")
parser.add_argument("--slow", type=float, default=0.0, help="seconds that each observation takes")
args = parser.parse_args()
sizes = tuple(map(int, args.sizes.split("x")))
jax.config.update("jax_num_cpu_devices", int(np.prod(sizes)) // args.processes)
jax.config.update("jax_enable_x64", True)
if args.processes > 1:
    jax.distributed.initialize(f"127.0.0.1:{args.port}", args.processes, args.rank)

n, shape = 9, (9, 9, 9)
fft = dops.FFT3D(jax.make_mesh(sizes, ("x", "y")), shape=shape, pad=True, real=True, norm="forward")
equation = pde.NavierStokes(fft, 0.02)
x, y, z = np.meshgrid(*[2 * np.pi * np.arange(n) / n] * 3, indexing="ij")
velocity = np.stack([np.sin(x) * np.cos(y) * np.cos(z), -np.cos(x) * np.sin(y) * np.cos(z), 0 * x])
u = equation.state(fft.decomposition.shard(velocity))
solver = pde.SBDF(equation, 0.02, 2) if args.method == "sbdf" else pde.ETDRK(equation, 0.02, 1)


def observe(t, u):
    return t, spectral.mean_square(equation.transform, u)


def pause(t, u):
    time.sleep(args.slow)
    print("observed", flush=True)
    return {"u": equation.fields(u)}


run = pde.simulate(
    solver,
    u,
    1.5,
    interval=0.1,
    observe=observe,
    control=pde.CFL(0.2) if args.method == "controlled" else None,
    write=pde.Snapshots(args.folder / "{:03}.zarr", every=3, fields=lambda u: pause(0, u)),
    checkpoint=args.folder / "checkpoints",
    minutes=0.0,
)
state = equation.transform.out_layout.gather(run.u)
if args.rank == 0:
    times, energies = run.observed
    np.savez(args.folder / "last.npz", u=state, t=run.t, steps=run.steps, times=times, energies=energies)
