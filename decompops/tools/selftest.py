"""The checks of `python -m decompops selftest`, which compare operators on this machine with NumPy."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from .. import FFT, FFT3D, AbstractBackend, Decomposition, HaloExchange, Stencil, Transpose
from .._common.blocks import mesh_sizes
from .bench.run import make_mesh


# Most numbers of devices do not divide these lengths, so that padding is tested.
SHAPE = (18, 20, 22)
PLANE, FOUR_AXES = (90, 88), (6, 10, 9, 14)
TOLERANCE = 1e-5  # Relative to the largest value, in single precision.


@dataclass(frozen=True)
class Outcome:
    """The result of one check on one mesh: its error relative to the largest value, or the exception that it raised."""

    check: str
    mesh: tuple[int, ...]
    error: float
    raised: str | None = None

    @property
    def passed(self) -> bool:
        return self.raised is None and self.error <= TOLERANCE


def count(devices: list) -> int:
    """Return the number of checks on all meshes of the devices."""
    return len(CHECKS) * len(mesh_sizes(len(devices)))


def run(
    backend: AbstractBackend, devices: list, on_check: Callable[[str], None] = lambda text: None
) -> Iterator[Outcome]:
    """Run all checks on every mesh of the devices, and announce each one to `on_check`.

    In a run of several processes, all of them must call this function.
    """
    for sizes in mesh_sizes(len(devices)):
        dec = Decomposition(make_mesh(sizes, devices), shape=SHAPE, pad=True, backend=backend)
        for check in CHECKS:
            # `python -OO` removes docstrings.
            name = (check.__doc__ or check.__name__.replace("_", " ")).rstrip(".")
            on_check(f"{name}, mesh {'x'.join(map(str, sizes))}")
            try:
                yield Outcome(name, sizes, float(check(dec)))
            except Exception as error:  # The other checks still run.
                yield Outcome(name, sizes, np.inf, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")


def _field(shape: tuple[int, ...] = SHAPE, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _error(got, expected) -> float:
    got, expected = np.asarray(got), np.asarray(expected)
    if got.shape != expected.shape:
        raise ValueError(f"the result has shape {got.shape}, not {expected.shape}")
    return np.max(np.abs(got - expected)) / np.max(np.abs(expected))


def complex_transform(dec: Decomposition) -> float:
    """complex FFT3D."""
    u = _field() + 1j * _field(seed=1)
    return _error(dec.gather(FFT3D(dec)(dec.shard(u)), "x"), np.fft.fftn(u))


def real_transform(dec: Decomposition) -> float:
    """real FFT3D."""
    return _rfftn(dec, SHAPE)


def on_a_plane(dec: Decomposition) -> float:
    """real FFT2D, one axis sharded over all devices."""
    return _rfftn(Decomposition(dec.mesh, shape=PLANE, axes=(dec.mesh_axes,), pad=True, backend=dec.backend), PLANE)


def in_four_dimensions(dec: Decomposition) -> float:
    """real FFT on a grid of four axes."""
    return _rfftn(Decomposition(dec.mesh, shape=FOUR_AXES, pad=True, backend=dec.backend), FOUR_AXES)


def _rfftn(dec: Decomposition, shape: tuple[int, ...]) -> float:
    u, fft = _field(shape), FFT(dec, real=True)
    return _error(fft.out_layout.gather(fft(dec.shard(u))), np.fft.rfftn(u))


def there_and_back(dec: Decomposition) -> float:
    """batched real FFT3D and inverse, axis-contiguous."""
    u = np.stack([_field(), _field(seed=1)])
    fft = FFT3D(dec, real=True, axis_contiguous=True)
    return _error(dec.gather(jax.jit(jax.vmap(fft.inverse @ fft))(dec.shard(u))), u)


def transposes(dec: Decomposition) -> float:
    """Transpose z -> y -> x -> z."""
    u = _field()
    round_trip = Transpose(dec, "x", "z") @ Transpose(dec, "y", "x") @ Transpose(dec, "z", "y")
    return _error(dec.gather(round_trip(dec.shard(u))), u)


def laplacian(dec: Decomposition) -> float:
    """Stencil over a HaloExchange of width 1."""
    u = _field()

    def inner(h, axis, shift):
        for i in (-3, -2, -1):
            start = 1 + (shift if i == axis else 0)
            h = jax.lax.slice_in_dim(h, start, h.shape[i] - 2 + start, axis=h.ndim + i)
        return h

    def stencil(h):
        return sum(inner(h, axis, s) for axis in (-3, -2, -1) for s in (-1, 1)) - 6 * inner(h, -1, 0)

    expected = sum(np.roll(u, s, axis) for axis in range(3) for s in (-1, 1)) - 6 * u
    return _error(dec.gather(Stencil(dec, stencil, halo=1)(dec.shard(u))), expected)


def halo_adjoint(dec: Decomposition) -> float:
    """HaloExchange.T is the adjoint, with uneven widths."""
    halo = HaloExchange(dec, ((2, 1), (0, 3), (1, 1)), periodic=(True, False, True))
    x = dec.shard(_field())
    h = halo(x)
    return _error(jnp.vdot(halo.T(h), x), jnp.vdot(h, h))


def gradient(dec: Decomposition) -> float:
    """gradient of sum |FFT3D(u)|^2."""
    u = _field()
    fft = FFT3D(dec, norm="ortho")
    return _error(dec.gather(jax.jit(jax.grad(lambda v: jnp.sum(jnp.abs(fft(v)) ** 2)))(dec.shard(u))), 2 * u)


CHECKS: tuple[Callable[[Decomposition], float], ...] = (
    *(complex_transform, real_transform, on_a_plane, in_four_dimensions, there_and_back, transposes),
    *(laplacian, halo_adjoint, gradient),
)
