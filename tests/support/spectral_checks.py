"""Checks of what is built on transforms: spectral operators, equations and layers, with compiled kernels."""

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from checks import UNEVEN, assert_block, meshes
from helpers import random_field


def spectral(backend, *, everything: bool = False) -> None:
    """Compare spectral operators, an equation and a convolution on a mesh, with `backend`, with those on one device.

    The one device belongs to the first rank and uses `XLA()`. `everything` adds the operators, equations and layers of
    `on_top`, which take long to compile.
    """
    u = random_field((3, *UNEVEN))

    def results(backend, mesh: Mesh) -> list[jax.Array]:
        fft = dops.FFT3D(mesh, shape=UNEVEN, pad=True, real=True, backend=backend)
        some = fft.replace(modes=(5, 4, 7), axis_contiguous=True)
        equation = dops.pde.NavierStokes(fft, 0.1)
        field = fft.decomposition.shard(u)
        found = [k := some(field), some.inverse(k), some.H(k)]
        found += [dops.spectral.Gradient(fft)(field[0]), dops.spectral.Resample(fft, (6, 12, 13))(field)]

        convolution = dops.spectral.Convolution(fft, dops.spectral.PoissonKernel(), ("x", "z"))
        found += [convolution(field), convolution.T(field)]

        def energy(field):
            return jnp.sum(equation.transform.inverse(equation(0.0, equation.transform(field))) ** 2)

        with jax.set_mesh(mesh):
            found.append(jax.jit(jax.grad(energy))(field))
            if everything:
                found += jax.jit(lambda field: on_top(fft, field))(field)
        return found

    expected = None
    if jax.process_index() == 0:
        expected = [np.asarray(x) for x in results(dops.XLA(), Mesh(jax.local_devices()[:1], ("x",)))]
    if jax.process_count() > 1:
        from mpi4py import MPI

        multihost_utils.sync_global_devices("expected")  # Ranks that wait in a collective of MPI keep their cores busy.
        expected = MPI.COMM_WORLD.bcast(expected)
    for ours, values in zip(results(backend, meshes()[-1]), expected, strict=True):
        assert_block(ours, values)


def on_top(fft: dops.FFT3D, u: jax.Array) -> list[jax.Array]:
    """Return the results of every operator, equation and layer for a vector field."""
    spectral, nn, pde = dops.spectral, dops.nn, dops.pde
    scalars = spectral.Laplacian, spectral.Poisson, spectral.InverseDivergence, spectral.Dealias
    vectors = spectral.Divergence, spectral.Curl, spectral.LerayProjection, spectral.InverseCurl
    found = [operator(fft)(u[0]) for operator in scalars] + [operator(fft)(u) for operator in vectors]
    found += [spectral.Helmholtz(fft, 2.5)(u), spectral.GaussianFilter(fft, 0.3)(u)]
    found += [spectral.power_spectrum(fft, u[0]).power, spectral.Derivative(fft, (1, 0, 2))(u)]
    found.append(spectral.GaussianRandomField(fft, lambda k: jnp.exp(-k))(jax.random.key(0)))
    for equation in (
        pde.Diffusion(fft, 0.1),
        pde.Burgers(fft, 0.1),
        pde.KuramotoSivashinsky(fft.replace(box=dops.Box(9.0))),
    ):
        field = u if isinstance(equation, pde.Burgers) else u[0]
        found.append(equation.transform.inverse(pde.ETDRK(equation, 0.01, 2).step(0.0, equation.transform(field))))
    dec, key = fft.decomposition, jax.random.key(1)
    layers = (
        nn.SpectralConv3D(fft, 3, 2, 3, dtype=u.dtype, key=key),
        nn.HaloConv3D(dec, 3, 2, 3, dtype=u.dtype, key=key),
    )
    found += [layer(u) for layer in layers]
    return [*found, nn.FNO3D(fft, 3, 1, width=4, modes=3, depth=1, dtype=u.dtype, key=key)(u)]
