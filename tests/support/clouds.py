"""A particle-mesh code in plain NumPy, on one device: the independent answer for tests of `decompops.particles`."""

import itertools

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
from decompops import particles
from jax.sharding import Mesh
from scipy.interpolate import BSpline


WIDTHS = {"ngp": 1, "cic": 2, "tsc": 3, "pcs": 4}


def shares(window: str, distance: np.ndarray) -> np.ndarray:
    """Return the share of a cell at this distance, in cells."""
    width = WIDTHS[window]
    if width == 1:
        return ((distance >= -0.5) & (distance < 0.5)).astype(float)
    spline = BSpline.basis_element(np.arange(width + 1) - width / 2, extrapolate=False)
    return np.nan_to_num(spline(distance))


def touched(window: str, positions: np.ndarray, shape, lengths, periodic):
    """Yield the cells that particles touch, one for each particle, and their shares: zero outside the grid."""
    width, s = WIDTHS[window], positions / np.asarray(lengths) * np.asarray(shape)
    first = np.floor(s - width / 2 + 1).astype(int)
    for offset in itertools.product(range(width), repeat=len(shape)):
        cells, share = first + np.array(offset), np.ones(len(s))
        for axis, (n, wraps) in enumerate(zip(shape, periodic)):
            share = share * shares(window, s[:, axis] - cells[:, axis])
            outside = (cells[:, axis] < 0) | (cells[:, axis] >= n)
            share = share if wraps else np.where(outside, 0, share)
            cells[:, axis] %= n
        yield tuple(cells.T), share


def deposit(window: str, positions: np.ndarray, values: np.ndarray, shape, lengths, periodic) -> np.ndarray:
    field = np.zeros(shape, values.dtype)
    for cells, share in touched(window, positions, shape, lengths, periodic):
        np.add.at(field, cells, share * values)
    return field


def read(window: str, positions: np.ndarray, field: np.ndarray, lengths, periodic) -> np.ndarray:
    return sum(field[cells] * share for cells, share in touched(window, positions, field.shape, lengths, periodic))


def owners(positions: np.ndarray, shape, lengths, periodic, core) -> np.ndarray:
    """Return the block of each particle along each axis, for blocks of `core` cells."""
    cells = np.floor(positions / np.asarray(lengths) * np.asarray(shape)).astype(int)
    cells = np.where(periodic, cells % np.asarray(shape), np.clip(cells, 0, np.asarray(shape) - 1))
    return cells // np.asarray(core)


def check_moves(backend, mesh: Mesh, shape: tuple[int, ...] = (9, 10, 5), count: int = 200) -> None:
    """Move particles by a field, exchange them, deposit them and differentiate. Compare with NumPy."""
    rng, box = np.random.default_rng(0), dops.Box((1.0, 2.0, 3.0))
    dec = dops.Decomposition(mesh, shape=shape, box=box, pad=True, backend=backend)
    pm, periodic = particles.ParticleMesh(dec, "tsc"), (True,) * 3
    x, m, field = rng.uniform(size=(count, 3)) * dec.box_lengths, rng.normal(size=count), rng.normal(size=(3, *shape))
    p, u = pm.place(x, capacity=count, m=m, id=np.arange(count)), dec.shard(field)

    @jax.jit
    def moved(p, u):
        return pm.exchange(p.replace(p.positions + pm.read(p, u)))

    y = x + np.stack([read("tsc", x, part, dec.box_lengths, periodic) for part in field], axis=1)
    q = moved(p, u).check()
    found = pm.gather(q)
    np.testing.assert_array_equal(found["id"], np.arange(count))
    np.testing.assert_allclose(found["positions"], y, atol=1e-12)
    np.testing.assert_array_equal(found["m"], m)
    expected = deposit("tsc", y, m, shape, dec.box_lengths, periodic)
    np.testing.assert_allclose(dec.gather(jax.jit(pm.deposit)(q, q["m"])), expected, atol=1e-12)

    @jax.jit
    def gradient(p, u):
        squares = lambda m, u: jnp.sum(pm.deposit(r := moved(p.replace(m=m), u), r["m"]) ** 2)
        return jax.grad(squares, argnums=(0, 1))(p["m"], u)

    by_mass, by_field = gradient(p, u)
    cells = read("tsc", y, 2 * expected, dec.box_lengths, periodic)
    np.testing.assert_allclose(pm.gather(p.replace(g=by_mass))["g"], cells, atol=1e-11)
    assert np.isfinite(dec.gather(by_field)).all()
