"""Helpers of several test files: meshes, random fields, and assertions."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops._operator.derived import Derived
from decompops.extend import plan_in_form
from decompops.testing import tolerance
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P


TYPES = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}
# The meshes of jaxDecomp's tests, a mesh of one axis, a mesh of one device, and a mesh of 3 x 2 devices.
MESHES = [(8, 1), (1, 8), (4, 2), (2, 4), (8,), (1, 1), (3, 2)]
# Two shapes of jaxDecomp's tests, a shape of primes that no mesh divides, cuDecomp's 9x10x11, and a shape with fewer
# cells than devices along an axis.
SHAPES = [(8, 16, 32), (8, 8, 8), (13, 17, 19), (9, 10, 11), (3, 5, 2)]


@contextmanager
def compiled_programs() -> Iterator[list[dict]]:
    """Return a list to which each program is added that JAX compiles, or reads from its cache, inside of the block."""
    programs: list[dict] = []

    def listen(event: str, seconds: float, **options) -> None:
        if event.endswith("backend_compile_duration"):
            programs.append(options)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield programs
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def make_mesh(
    sizes: tuple[int, ...], kind: str | tuple[str, ...] = "auto", names: tuple[str, ...] | None = None
) -> Mesh:
    """Return a mesh of the first devices. `kind` is "auto" or "explicit", or one of these for each mesh axis."""
    kinds = (kind,) * len(sizes) if isinstance(kind, str) else kind
    names = names or {1: ("x",), 2: ("x", "y"), 3: ("c", "x", "y")}[len(sizes)]
    devices = np.array(jax.devices()[: np.prod(sizes)]).reshape(sizes)
    return Mesh(devices, names, axis_types=tuple(TYPES[one] for one in kinds))


def thinned(cases: Iterable[tuple], kept: Callable[..., bool]) -> list:
    """Return the cases of a test. Those that `kept` refuses repeat what others test, and have the marker `sweep`."""
    return [case if kept(*case) else pytest.param(*case, marks=pytest.mark.sweep) for case in cases]


def gpus() -> list:
    try:
        return jax.devices("gpu")
    except RuntimeError:
        return []


def random_field(shape: tuple[int, ...], dtype=np.float64, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    field = rng.standard_normal(shape)
    if np.issubdtype(dtype, np.complexfloating):
        field = field + 1j * rng.standard_normal(shape)
    return field.astype(dtype)


def assert_close(got, expected, rtol: float | None = None) -> None:
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape
    rtol = tolerance(got.dtype) if rtol is None else rtol
    scale = np.abs(expected).max(initial=1e-30)
    np.testing.assert_allclose(got, expected, rtol=0, atol=rtol * scale)


def assert_blocks(field: jax.Array, expected: np.ndarray) -> None:
    """Assert that this process's blocks of `field` are close to `expected`, and that their padding is zero."""
    assert not field.is_fully_addressable
    widths = [(0, have - want) for have, want in zip(field.shape, expected.shape)]
    expected = np.pad(expected, widths)
    for shard in field.addressable_shards:
        assert_close(shard.data, expected[shard.index])


def plan_of(operator):
    """Return the plan of an operator, or of its transpose, conjugate or inverse."""
    if isinstance(operator, Derived):
        return plan_in_form(operator.operator.plan(), operator.form)
    return operator.plan()


def put(mesh: Mesh, array: np.ndarray, *spec) -> jax.Array:
    return jax.device_put(array, NamedSharding(mesh, P(*spec)))


def extended_axis(u: np.ndarray, axis: int, parts: int, before: int, after: int, periodic: bool) -> np.ndarray:
    """Add halo layers along an axis of n cells, as `HaloExchange` defines them.

    If the axis is periodic, a layer at position g holds cell g mod n of the field. If not, layers outside the field
    are zero.
    """
    n = u.shape[axis]
    cells = -(-n // parts)
    u = np.moveaxis(u, axis, 0)
    out = np.zeros((parts * (before + cells + after), *u.shape[1:]), u.dtype)
    for block in range(parts):
        for i in range(-before, cells + after):
            g = block * cells + i
            inside = -before <= g < n + after if periodic else 0 <= g < n
            if inside:
                out[block * (before + cells + after) + before + i] = u[g % n]
    return np.moveaxis(out, 0, axis)


def extended(u: np.ndarray, parts, halo, periodic) -> np.ndarray:
    """Return the result of `HaloExchange`, computed by its definition."""
    for axis, p, (before, after), flag in zip((-3, -2, -1), parts, halo, periodic):
        u = extended_axis(u, axis, p, before, after, flag)
    return u


def surrounded(u: np.ndarray, parts, halo) -> np.ndarray:
    """Return a field whose blocks have halo layers of zeros."""
    for axis, p, pair in zip((-3, -2, -1), parts, halo):
        u = np.moveaxis(u, axis, -1)
        cells = -(-u.shape[-1] // p)
        u = np.pad(u, [(0, 0)] * (u.ndim - 1) + [(0, p * cells - u.shape[-1])]).reshape(*u.shape[:-1], p, cells)
        u = np.pad(u, [(0, 0)] * (u.ndim - 1) + [pair])
        u = np.moveaxis(u.reshape(*u.shape[:-2], -1), -1, axis)
    return u


def finite_difference(function: Callable, x: np.ndarray, direction: np.ndarray, step: float) -> float:
    return (float(function(x + step * direction)) - float(function(x - step * direction))) / (2 * step)


def spec_of(x) -> P:
    """Return the `PartitionSpec` of an array, with an entry for every axis."""
    spec = tuple(x.sharding.spec)
    return P(*spec, *[None] * (jnp.ndim(x) - len(spec)))


def expansion(
    u: np.ndarray, bases: Sequence, norm: str = "backward", modes=None, *, nyquist: bool = False
) -> np.ndarray:
    """Compute with NumPy and SciPy what a `Transform` along the last axes of a field should return."""
    import scipy.fft  # This takes a fifth of a second in each process that a test starts.

    u = u.astype(np.result_type(u.dtype, np.float64))
    modes = modes or u.shape[u.ndim - len(bases) :]
    # Real-to-real transforms come first, then the transform that gives a half spectrum, because they need real input.
    rank = {dops.Chebyshev: 0, dops.Cosine: 0, dops.Sine: 0, dops.Fourier: 2}
    transformed = [axis for axis, basis in enumerate(bases) if not isinstance(basis, dops.Points)]
    for axis in sorted(transformed, key=lambda axis: rank[type(bases[axis])] - getattr(bases[axis], "half", False)):
        basis, place, kept = bases[axis], axis - len(bases), modes[axis]
        n = u.shape[place]
        if isinstance(basis, dops.Fourier):
            u = (np.fft.rfft if basis.half else np.fft.fft)(u, axis=place, norm=norm)
        else:
            u = (scipy.fft.dst if isinstance(basis, dops.Sine) else scipy.fft.dct)(u, basis.type, axis=place, norm=norm)
        if isinstance(basis, dops.Chebyshev):
            ends = [0, n - 1][: 3 - basis.type]
            u = np.moveaxis(u, place, -1).copy()
            u[..., ends] /= 2
            u = np.moveaxis(u, -1, place)
        if kept < n:
            u = np.moveaxis(truncated(np.moveaxis(u, place, -1), n, kept, basis, nyquist), -1, place)
    return u


def truncated(k: np.ndarray, n: int, kept: int, basis, nyquist: bool) -> np.ndarray:
    """Truncate the coefficients of `n` points along the last axis to the coefficients of `kept` points.

    If `kept` is even, the Fourier mode `kept // 2` stands for two modes. With `nyquist`, the result holds the sum of
    these two modes, and otherwise zero. The last mode of `Cosine(1)` and of `Sine(2)` also stands for two modes. The
    result always holds zero for this last mode.
    """
    if not isinstance(basis, dops.Fourier):
        k = k[..., :kept].copy()
        if (type(basis), basis.type) in ((dops.Cosine, 1), (dops.Sine, 2)):
            assert not nyquist
            k[..., -1] = 0
        return k
    signed = (np.fft.rfftfreq if basis.half else np.fft.fftfreq)(kept, 1 / kept).astype(int)
    short = k[..., signed]  # A negative mode is a negative index, which counts from the end.
    if kept % 2 == 0:
        other = k[..., kept // 2].conj() if basis.half else k[..., -(kept // 2)]
        short[..., kept // 2] = nyquist * (k[..., kept // 2] + other)
    return short


def mapped() -> int:
    """Return into how many parts Linux maps the memory of this process. A program of XLA adds three or more."""
    return Path("/proc/self/maps").read_bytes().count(b"\n")
