"""Tests of spectral operators between walls, against exact derivatives of cosines and sines."""

import decompops as dops
import jax
import numpy as np
import pytest
from decompops import spectral
from decompops.testing import assert_transposed

from helpers import assert_close, finite_difference, make_mesh, random_field, thinned


F, H, C, S = dops.Fourier(), dops.Fourier(half=True), dops.Cosine, dops.Sine
LENGTHS = (2.0, 3.0, 1.5)
BOX = dops.Box(LENGTHS)


def wavenumber(basis, mode: int) -> float:
    if isinstance(basis, dops.Fourier):
        return 2 * np.pi * mode
    return np.pi * (mode + (0.5 if basis.type in (3, 4) else 0))


def along(basis, mode: int, order: int, s: np.ndarray) -> np.ndarray:
    """Return a derivative of one mode of a basis at positions `s` on an axis of length one."""
    phase = {dops.Fourier: 0.3, dops.Cosine: 0.0, dops.Sine: -np.pi / 2}[type(basis)]
    k = wavenumber(basis, mode)
    return k**order * np.cos(k * s + phase + order * np.pi / 2)


class Known:
    """The sum of some modes, and its derivatives."""

    modes = ((1, 2, 3), (2, 1, 1), (3, 3, 2))

    def __init__(self, bases, shape):
        self.bases, self.shape = bases, shape

    def derivative(self, *orders: int) -> np.ndarray:
        total = 0
        for modes in self.modes:
            parts = [
                along(basis, mode, order, basis.points(n)) / length**order
                for basis, mode, order, n, length in zip(self.bases, modes, orders, self.shape, LENGTHS)
            ]
            total = total + np.einsum("i,j,k->ijk", *parts)
        return total

    @property
    def gradient(self) -> np.ndarray:
        return np.stack([self.derivative(*orders) for orders in np.eye(3, dtype=int)])

    @property
    def laplacian(self) -> np.ndarray:
        return sum(self.derivative(*orders) for orders in 2 * np.eye(3, dtype=int))


# The cases have all types of cosine and sine, walls normal to each axis, and some grids that the mesh does not divide.
CASES = [
    ((F, H, C(2)), (8, 8, 12), (2, 4), "auto"),
    ((C(1), F, H), (9, 8, 8), (2, 4), "explicit"),
    ((C(2), S(2), H), (8, 10, 9), (4, 2), "auto"),
    ((S(1), H, C(1)), (7, 8, 9), (8,), "auto"),
    ((C(2), C(2), C(2)), (8, 8, 8), (2, 4), "explicit"),
    ((S(3), C(3), C(4)), (8, 8, 8), (1, 1), "auto"),
    ((H, S(4), C(2)), (9, 7, 10), (2, 2, 2), "auto"),
]
CENTRED = [case for case in CASES if not any(getattr(basis, "type", 2) == 3 or basis == S(1) for basis in case[0])]


def transform(bases, shape, sizes, kind, **options) -> dops.Transform:
    """Return a transform: by XLA on Explicit axes, and by the kernels, which compile faster, on Auto axes."""
    backend = "xla" if kind == "explicit" else "native"
    return dops.Transform(
        make_mesh(sizes, kind), bases=bases, shape=shape, box=BOX, pad=True, backend=backend, **options
    )


@pytest.mark.parametrize(("bases", "shape", "sizes", "kind"), CASES)
def test_operators_are_exact(bases, shape, sizes, kind):
    fft = transform(bases, shape, sizes, kind)
    known, dec = Known(bases, shape), fft.decomposition
    u, laplacian = known.derivative(0, 0, 0), known.laplacian

    @jax.jit
    def run(u, laplacian):
        return {
            "gradient": spectral.Gradient(fft)(u),
            "laplacian": spectral.Laplacian(fft)(u),
            "derivative": spectral.Derivative(fft, (1, 2, 3))(u),
            "poisson": spectral.Poisson(fft)(laplacian),
            "helmholtz": spectral.Helmholtz(fft, 2.0)(2 * u - laplacian),
        }

    with jax.set_mesh(dec.mesh):
        found = run(dec.shard(u), dec.shard(laplacian))
    expected = {"gradient": known.gradient, "laplacian": laplacian, "derivative": known.derivative(1, 2, 3)}
    for name, value in found.items():
        assert_close(dec.gather(value), expected.get(name, u), 1e-12)


@pytest.mark.parametrize(
    ("bases", "shape", "sizes", "kind"), thinned(CENTRED, lambda *case: case not in (CENTRED[0], CENTRED[3]))
)
def test_operators_of_vectors_are_exact(bases, shape, sizes, kind):
    """Divergence, curl and projection of the sum of a gradient and a solenoidal field equal exact results."""
    fft = transform(bases, shape, sizes, kind)
    known, dec = Known(bases, shape), fft.decomposition
    a, b = known.gradient, known.derivative(1, 1, 1)  # `b` is a scalar field.
    solenoidal = np.stack([known.derivative(1, 2, 2), -2 * known.derivative(2, 1, 2), known.derivative(2, 2, 1)])
    assert b.shape == u_shape(a)

    @jax.jit
    def run(v, w):
        potential, curl = spectral.InverseDivergence(fft), spectral.Curl(fft)
        return {
            "divergence": spectral.Divergence(fft)(v + w),
            "curl": curl(v),
            "potential": potential(spectral.Divergence(fft)(v)),
            "projection": spectral.LerayProjection(fft)(v + w),
            "velocity": spectral.InverseCurl(fft)(curl(w + v)),
        }

    with jax.set_mesh(dec.mesh):
        found = {name: dec.gather(value) for name, value in run(dec.shard(a), dec.shard(solenoidal)).items()}
    assert_close(found["divergence"], known.laplacian, 1e-11)
    assert_close(found["potential"], a, 1e-11)
    assert_close(found["projection"], solenoidal, 1e-11)
    assert_close(found["velocity"], solenoidal, 1e-11)
    assert abs(found["curl"]).max() < 1e-11 * abs(known.laplacian).max()


def u_shape(vector: np.ndarray) -> tuple[int, ...]:
    return vector.shape[1:]


def test_poisson_with_walls_is_the_inverse_of_the_laplacian():
    """If one basis has no constant mode, a solution always exists, and `Poisson` is the inverse of `Laplacian`."""
    for bases in ((S(1), F, H), (C(1), S(2), H), (C(3), S(4), C(2))):
        fft = transform(bases, (6, 7, 8), (2, 4), "auto")
        f = random_field((2, 6, 7, 8))
        both = jax.jit(spectral.Laplacian(fft) @ spectral.Poisson(fft))
        assert_close(fft.decomposition.gather(both(fft.decomposition.shard(f))), f, 1e-12)


@pytest.mark.parametrize("bases", [(C(1), H, C(3)), pytest.param((S(2), H, C(2)), marks=pytest.mark.sweep)])
def test_transposes_and_derivatives(bases):
    shape = (5, 6, 4)
    fft = transform(bases, shape, (2, 2), "auto")
    dec = fft.decomposition
    u, v = random_field(shape), random_field((3, *shape), seed=1)
    gradient, poisson = spectral.Gradient(fft), spectral.Poisson(fft)
    every = jax.jit(lambda u, v, w: (gradient(u), gradient.T(v), poisson(u), poisson.H(w)))
    slopes, slopes_t, potential, potential_h = map(dec.gather, every(*map(dec.shard, (u, v, u[::-1]))))
    assert_transposed(lambda _: slopes, lambda _: slopes_t, u, v)
    assert_transposed(lambda _: potential, lambda _: potential_h, u, u[::-1])

    @jax.value_and_grad
    def energy(u):
        return (gradient(poisson(u)) ** 2).sum()

    both = jax.jit(lambda u, v: jax.jvp(energy, (u,), (v,)))
    direction = random_field(shape, seed=2)
    (_, slope), (_, second) = both(dec.shard(u), dec.shard(direction))
    value = lambda x: both(dec.shard(x), dec.shard(direction))[0][0]
    assert np.vdot(dec.gather(slope), direction) == pytest.approx(
        finite_difference(value, u, direction, 1e-5), rel=1e-7
    )
    (_, expected), _ = both(dec.shard(direction), dec.shard(u))
    assert_close(dec.gather(second), dec.gather(expected), 1e-10)


def test_operators_that_walls_do_not_allow_are_refused(plain):
    def fft(*bases):
        return plain.Transform(make_mesh((1, 1)), bases=bases, shape=(8, 8, 8), box=plain.Box())

    f, h = plain.Fourier(), plain.Fourier(half=True)
    for make, message in (
        (lambda: plain.spectral.Divergence(fft(plain.Sine(1), f, h)), "points at each wall .*got Sine"),
        (lambda: plain.spectral.Curl(fft(f, h, plain.Cosine(3))), "along z with points .* the z component"),
        (lambda: plain.spectral.Helmholtz(fft(f, h, plain.Cosine(2)), 0.0), "`shift` must not be minus the square"),
        (
            lambda: plain.spectral.SpectralOperator(fft(f, h, plain.Cosine(2)), lambda *k: k[0], nyquist=False),
            "`nyquist` must be True between walls",
        ),
        (lambda: plain.pde.NavierStokes(fft(f, h, plain.Sine(2)), 0.1), "`fft` must have a constant mode along"),
        (lambda: plain.pde.Advection(fft(f, h, plain.Cosine(2)), (1.0, 0.0, 0.0)), "must be periodic along z for"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
    plain.spectral.Helmholtz(fft(f, h, plain.Sine(2)), 0.0)  # With Dirichlet walls, no mode has the wavenumber zero.
