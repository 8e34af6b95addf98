"""Empty batches: programs that reduce or loop return empty results, with compiled kernels and with XLA."""

import itertools

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import finite_volume, nn, pde, solve

from helpers import make_mesh, thinned


SHAPE = (8, 8, 4)


@pytest.mark.parametrize(
    ("kind", "backend"),
    thinned(
        itertools.product(("auto", "explicit"), (dops.XLA(), dops.Native())),
        lambda kind, backend: (kind == "auto") == (backend == dops.XLA()),
    ),
)
def test_results_have_the_shape_of_the_batch(kind, backend):
    """Compiled kernels cannot move an array without elements, and no `reshape` may guess a length from it."""
    mesh = make_mesh((2, 4), kind)
    dec = dops.Decomposition(mesh, shape=SHAPE, backend=backend)
    u = dec.shard(np.zeros((0, *SHAPE), np.float32))
    with jax.set_mesh(mesh):
        reductions = dec.sum, dec.mean, dec.norm, dec.max, dec.min, lambda u: dec.vdot(u, u)
        assert [reduction(u).shape for reduction in reductions] == [(0,)] * 6
        gradients = jax.jit(lambda u: [jax.grad(lambda u, f=f: jnp.sum(f(u)))(u) for f in reductions])(u)
        assert [gradient.shape for gradient in gradients] == [u.shape] * 6
        operator = finite_volume.Diffusion(dec, jnp.ones(SHAPE, np.float32), boundary="dirichlet")
        assert solve.CG(operator, solve.Multigrid(operator))(u).shape == u.shape
        channels = dec.shard(np.zeros((0, 2, *SHAPE), np.float32))
        assert nn.GroupNorm(dec, 1, 2)(channels).shape == channels.shape


@pytest.mark.parametrize("backend", [dops.XLA(), dops.Native()], ids=["xla", "native"])
def test_a_rollout(backend):
    equation = pde.Burgers(dops.FFT3D(make_mesh((2, 4)), shape=SHAPE, real=True, backend=backend), 0.1)
    start = equation.state(np.zeros((0, 3, *SHAPE), np.float32))
    observe = lambda t, u: equation.transform.out_layout.norm(u)
    last, norms = pde.ETDRK(equation, 0.1, order=1).rollout(start, 6, every=2, observe=observe)
    assert last.shape == start.shape
    assert norms.shape == (3, 0, 3)
