"""Operators with variable coefficients and the solvers of their systems, for any backend and mesh, against NumPy."""

from collections.abc import Callable, Sequence

import decompops as dops
import equinox as eqx
import jax
import numpy as np
from decompops import finite_volume, pde, solve, spectral
from jax.sharding import Mesh
from jax.tree_util import Partial

from checks import assert_block
from helpers import random_field
from volumes import diffusion_matrix


SHAPE, LENGTHS = (4, 6, 5), (1.0, 2.0, 3.0)
SIDES = ("periodic", ("dirichlet", "neumann"), ("dirichlet", "dirichlet"))
OPERATORS = ("laplacian", "diffusion", "product", "gradient", "divergence", "penalisation")
NAMES = (*OPERATORS, "CG", "MINRES", "GMRES", "BiCGStab")


def variable_laplacian(a: np.ndarray, u: np.ndarray, lengths: tuple[float, ...] = LENGTHS) -> np.ndarray:
    """Apply the periodic `VariableLaplacian` by full FFTs, from its definition."""
    result = np.zeros(u.shape)
    for axis, (n, length) in enumerate(zip(u.shape, lengths)):
        k = np.fft.fftfreq(n, length / n / (2 * np.pi)).reshape([-1 if i == axis else 1 for i in range(3)])
        shift = np.exp(0.5j * k * length / n)
        middle = np.where(np.isclose(np.abs(k), np.pi * n / length), 0, shift)
        a_there = np.exp(np.fft.ifftn(middle * np.fft.fftn(np.log(a))).real)
        slope = np.fft.ifftn(1j * k * shift * np.fft.fftn(u)).real
        result += np.fft.ifftn(1j * k * shift.conj() * np.fft.fftn(a_there * slope)).real
    return result


def found(
    backend: dops.AbstractBackend,
    mesh: Mesh,
    lead: tuple[int, ...] = (),
    together: bool = True,
    names: Sequence[str] = NAMES,
) -> dict[str, jax.Array]:
    """Return the results of the operators and solvers whose names are in `names`. The fields have batch axes `lead`.

    `together`, they are one program, in which they are independent of each other. Otherwise each is a program.
    """
    dec = dops.Decomposition(mesh, shape=SHAPE, box=dops.Box(LENGTHS), pad=True, backend=backend)
    fft = dops.FFT3D(dec, real=True)
    sides = tuple(side if side == "periodic" else tuple(side) for side in SIDES)

    def calls(a: jax.Array, m: jax.Array, u: jax.Array, v: jax.Array, one: jax.Array) -> dict[str, tuple]:
        laplacian = spectral.VariableLaplacian(fft, a)
        diffusion = finite_volume.Diffusion(dec, one, 0.5, boundary=sides)
        product = dops.Multiply(dec, m)
        cycle = solve.Multigrid(diffusion) if {"MINRES", "BiCGStab"} & {*names} else None
        body = pde.Penalisation(fft, one, time=0.1, dealiasing=None)
        return {
            "laplacian": (laplacian, u),
            "diffusion": (diffusion, u),
            "product": (product, u),
            "gradient": (finite_volume.Gradient(dec), u),
            "divergence": (finite_volume.Divergence(dec), v),
            "penalisation": (Partial(force, body), v),
            "CG": (solve.CG(laplacian, laplacian.approximate_inverse, rtol=1e-11, null_space="constants"), u),
            "MINRES": (solve.MINRES(diffusion, cycle, rtol=1e-11), u),
            "GMRES": (solve.GMRES(product @ diffusion, rtol=1e-11), u),
            "BiCGStab": (solve.BiCGStab(product @ diffusion, cycle, rtol=1e-11), u),
        }

    def run(*arrays: jax.Array) -> dict[str, jax.Array]:
        apply = call if together else eqx.filter_jit(call)
        each = calls(*arrays)
        return {name: apply(*each[name]) for name in names}

    with jax.set_mesh(mesh):
        return (jax.jit(run) if together else run)(*map(dec.shard, fields(lead)))


def call(operator: Callable[[jax.Array], jax.Array], u: jax.Array) -> jax.Array:
    return operator(u)


def force(body: pde.Penalisation, v: jax.Array) -> jax.Array:
    """Return the force of a body on a velocity, on the grid."""
    return body.transform.inverse(body(0.0, body.transform(v)))


def check(backend: dops.AbstractBackend, mesh: Mesh, together: bool = True, names: Sequence[str] = NAMES) -> None:
    """Compare the blocks of this process with NumPy."""
    results, whole = found(backend, mesh, together=together, names=names), expected()
    for name in names:
        assert_block(results[name], whole[name])


def fields(lead: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """Return a coefficient and a factor for each field of a batch, fields, vectors, and a coefficient for all."""
    a, m, one = (np.exp(0.3 * random_field((*axes, *SHAPE), seed=i)) for i, axes in enumerate((lead, lead, ())))
    return a, m, random_field((*lead, *SHAPE), seed=3), random_field((*lead, 3, *SHAPE), seed=4), one


def expected(lead: tuple[int, ...] = ()) -> dict[str, np.ndarray]:
    """Return what `found` should be, by dense matrices and FFTs."""
    *varying, one = fields(lead)
    size = int(np.prod(SHAPE))
    flat = [array.reshape(-1, *array.shape[len(lead) :]) for array in varying]
    diffusion = diffusion_matrix(one, 0.5, LENGTHS, SIDES)

    def single(a: np.ndarray, m: np.ndarray, u: np.ndarray, v: np.ndarray) -> dict[str, np.ndarray]:
        laplacian = np.stack([variable_laplacian(a, e.reshape(SHAPE)).ravel() for e in np.eye(size)], 1)
        steps = [length / n for length, n in zip(LENGTHS, SHAPE)]
        solved = lambda matrix: np.linalg.solve(matrix, u.ravel()).reshape(SHAPE)
        return {
            "laplacian": variable_laplacian(a, u),
            "diffusion": (diffusion @ u.ravel()).reshape(SHAPE),
            "product": m * u,
            "gradient": np.stack([(u - np.roll(u, 1, axis)) / h for axis, h in enumerate(steps)]),
            "divergence": sum((np.roll(v[axis], -1, axis) - v[axis]) / h for axis, h in enumerate(steps)),
            "penalisation": -one * v / 0.1,
            "CG": np.linalg.lstsq(laplacian, (u - u.mean()).ravel(), rcond=1e-10)[0].reshape(SHAPE),
            "MINRES": solved(diffusion),
            "GMRES": solved(m.reshape(-1, 1) * diffusion),
            "BiCGStab": solved(m.reshape(-1, 1) * diffusion),
        }

    each = [single(*arrays) for arrays in zip(*flat)]
    return {name: np.stack([one[name] for one in each]).reshape(*lead, *each[0][name].shape) for name in each[0]}
