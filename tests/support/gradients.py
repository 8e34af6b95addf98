"""A slow comparison of gradients of long rollouts with exponax and finite differences, in float64.

`python tests/support/gradients.py --steps 10 100 1000 5000` prints relative errors and cosines. The flow decays, so its
gradients stay small. In a chaotic flow, gradients and the errors of all methods would grow with every step.
"""

import argparse

import exponax
import jax
import jax.numpy as jnp
import numpy as np
from decompops import FFT3D, pde, spectral


VISCOSITY, DT, SIZE = 0.02, 0.01, 12


def compare(steps: int, keep: int) -> tuple[float, float, float]:
    """Compare our gradient with the gradient of exponax, and with finite differences.

    Return three numbers: the relative error of our gradient compared with exponax, the cosine of the angle between the
    two gradients, and the relative error of our derivative in a random direction compared with finite differences.
    """
    fft = FFT3D(jax.make_mesh((1, 1), ("x", "y")), shape=(SIZE,) * 3, real=True)
    equation = pde.NavierStokes(fft, VISCOSITY, dealiasing=spectral.Mask(2 / 3))
    solver = pde.ETDRK(equation, DT)
    stepper = exponax.stepper.NavierStokesVelocity(3, 2 * np.pi, SIZE, DT, diffusivity=VISCOSITY, order=4)
    noise, direction = np.random.default_rng(0).standard_normal((2, 3, SIZE, SIZE, SIZE))
    project = spectral.LerayProjection(fft)
    u, direction = project(jnp.asarray(0.3 * noise)), project(jnp.asarray(direction))

    def ours(u):
        return jnp.sum(equation.fields(solver.rollout(equation.state(u), steps, keep=keep)[0]) ** 2)

    def theirs(u):
        step = jax.checkpoint(lambda u, _: (stepper(u), None))
        chunk = jax.checkpoint(lambda u, _: jax.lax.scan(step, u, None, length=10))
        return jnp.sum(jax.lax.scan(chunk, u, None, length=steps // 10)[0] ** 2)

    got = np.asarray(jax.jit(lambda u: project(jax.grad(ours)(u)))(u))
    expected = np.asarray(jax.jit(lambda u: project(jax.grad(theirs)(u)))(u))
    norm, loss, h = np.linalg.norm, jax.jit(ours), 1e-3
    near, far = (loss(u + n * h * direction) - loss(u - n * h * direction) for n in (1, 2))
    slope = np.vdot(got, np.asarray(direction))
    cosine = np.vdot(got, expected) / (norm(got) * norm(expected))
    return (
        float(norm(got - expected) / norm(expected)),
        float(cosine),
        float(abs(slope - (8 * near - far) / (12 * h)) / abs(slope)),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, nargs="+", default=[10, 100, 1000], help="multiples of 10")
    parser.add_argument("--keep", type=int, default=60, help="states")
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    print("| steps | error to exponax | 1 - cosine | error to differences |\n|---|---|---|---|")
    for number in args.steps:
        error, cosine, difference = compare(number, args.keep)
        print(f"| {number} | {error:.1e} | {1 - cosine:.1e} | {difference:.1e} |", flush=True)
