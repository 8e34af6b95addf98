"""Fourier transforms of sharded arrays: `numpy.fft` and `scipy.fft` as functions of arrays on a mesh."""

from collections.abc import Sequence

import numpy as np
from jax import Array
from jax.sharding import AbstractMesh, Mesh
from jaxtyping import Complex, Float, Shaped

from .._backend.base import AbstractBackend
from .._basis.fourier import Fourier
from .._plan.transform import Norm
from ._call import Function, OutSharding, transform


AnyMesh = Mesh | AbstractMesh | None
AnyBackend = AbstractBackend | str | None
X = Shaped[Array | np.ndarray, "*shape"]
C = Complex[Array, "*result"]
R = Float[Array, "*result"]
_FULL, _HALF = Fourier(), Fourier(half=True)


_FFT = Function("fft", _FULL, _FULL)


def fft(
    x: X,
    n: int | None = None,
    axis: int = -1,
    norm: Norm | None = None,
    *,
    mesh: AnyMesh = None,
    out_sharding: OutSharding = None,
    backend: AnyBackend = None,
) -> C:
    """Return the discrete Fourier transform along one axis.

    - `n`: the length to transform, by default the length of `axis`. `x` is cropped or zero-padded to this length.
    """
    return transform(_FFT, x, n, axis, norm, mesh, out_sharding, backend)


_IFFT = Function("ifft", _FULL, _FULL, inverse=True)


def ifft(
    x: X,
    n: int | None = None,
    axis: int = -1,
    norm: Norm | None = None,
    *,
    mesh: AnyMesh = None,
    out_sharding: OutSharding = None,
    backend: AnyBackend = None,
) -> C:
    """Return the inverse Fourier transform along one axis: the inverse of `fft`.

    - `n`: the length of the result along `axis`, by default the length of `x`. `x` is cropped or zero-padded to this
        length.
    """
    return transform(_IFFT, x, n, axis, norm, mesh, out_sharding, backend)


_RFFT = Function("rfft", _FULL, _HALF)


def rfft(
    x: X,
    n: int | None = None,
    axis: int = -1,
    norm: Norm | None = None,
    *,
    mesh: AnyMesh = None,
    out_sharding: OutSharding = None,
    backend: AnyBackend = None,
) -> C:
    """Return the half spectrum of real numbers along one axis: the modes from 0 to `n // 2`.

    - `n`: the length to transform, by default the length of `axis`. `x` is cropped or zero-padded to this length.
    """
    return transform(_RFFT, x, n, axis, norm, mesh, out_sharding, backend)


_IRFFT = Function("irfft", _FULL, _HALF, inverse=True)


def irfft(
    x: X,
    n: int | None = None,
    axis: int = -1,
    norm: Norm | None = None,
    *,
    mesh: AnyMesh = None,
    out_sharding: OutSharding = None,
    backend: AnyBackend = None,
) -> R:
    """Return the real numbers whose half spectrum is `x`: the inverse of `rfft`.

    - `n`: the length of the result along `axis`, by default `2 * (m - 1)` for `m` modes. For an odd length, `n` must be
        given.
    """
    return transform(_IRFFT, x, n, axis, norm, mesh, out_sharding, backend)


_HFFT = Function("hfft", _FULL, _HALF, inverse=True, conjugated=True)


def hfft(
    x: X,
    n: int | None = None,
    axis: int = -1,
    norm: Norm | None = None,
    *,
    mesh: AnyMesh = None,
    out_sharding: OutSharding = None,
    backend: AnyBackend = None,
) -> R:
    """Return the real Fourier transform of a signal with Hermitian symmetry. `x` is one half of the signal.

    - `n`: the length of the result along `axis`, by default `2 * (m - 1)` for `m` numbers. For an odd length, `n` must
        be given.
    """
    return transform(_HFFT, x, n, axis, norm, mesh, out_sharding, backend)


_IHFFT = Function("ihfft", _FULL, _HALF, conjugated=True)


def ihfft(
    x: X,
    n: int | None = None,
    axis: int = -1,
    norm: Norm | None = None,
    *,
    mesh: AnyMesh = None,
    out_sharding: OutSharding = None,
    backend: AnyBackend = None,
) -> C:
    """Return the half spectrum of a real signal: the inverse of `hfft`.

    - `n`: the length to transform, by default the length of `axis`. `x` is cropped or zero-padded to this length.
    """
    return transform(_IHFFT, x, n, axis, norm, mesh, out_sharding, backend)


_FFT2 = Function("fft2", _FULL, _FULL, several=True)


def fft2(
    x: X,
    s: Sequence[int] | int | None = None,
    axes: Sequence[int] | int = (-2, -1),
    norm: Norm | None = None,
    *,
    mesh: AnyMesh = None,
    out_sharding: OutSharding = None,
    backend: AnyBackend = None,
) -> C:
    """Return the Fourier transform along two axes, by default the last two: see `fftn`."""
    return transform(_FFT2, x, s, axes, norm, mesh, out_sharding, backend)


_IFFT2 = Function("ifft2", _FULL, _FULL, inverse=True, several=True)


def ifft2(
    x: X,
    s: Sequence[int] | int | None = None,
    axes: Sequence[int] | int = (-2, -1),
    norm: Norm | None = None,
    *,
    mesh: AnyMesh = None,
    out_sharding: OutSharding = None,
    backend: AnyBackend = None,
) -> C:
    """Return the inverse of `fft2`: see `ifftn`."""
    return transform(_IFFT2, x, s, axes, norm, mesh, out_sharding, backend)


_RFFT2 = Function("rfft2", _FULL, _HALF, several=True)


def rfft2(
    x: X,
    s: Sequence[int] | int | None = None,
    axes: Sequence[int] | int = (-2, -1),
    norm: Norm | None = None,
    *,
    mesh: AnyMesh = None,
    out_sharding: OutSharding = None,
    backend: AnyBackend = None,
) -> C:
    """Return the half spectrum of real numbers along two axes, by default the last two: see `rfftn`."""
    return transform(_RFFT2, x, s, axes, norm, mesh, out_sharding, backend)


_IRFFT2 = Function("irfft2", _FULL, _HALF, inverse=True, several=True)


def irfft2(
    x: X,
    s: Sequence[int] | int | None = None,
    axes: Sequence[int] | int = (-2, -1),
    norm: Norm | None = None,
    *,
    mesh: AnyMesh = None,
    out_sharding: OutSharding = None,
    backend: AnyBackend = None,
) -> R:
    """Return the inverse of `rfft2`: see `irfftn`."""
    return transform(_IRFFT2, x, s, axes, norm, mesh, out_sharding, backend)


_FFTN = Function("fftn", _FULL, _FULL, several=True)


def fftn(
    x: X,
    s: Sequence[int] | int | None = None,
    axes: Sequence[int] | int | None = None,
    norm: Norm | None = None,
    *,
    mesh: AnyMesh = None,
    out_sharding: OutSharding = None,
    backend: AnyBackend = None,
) -> C:
    """Return the Fourier transform along several axes: by default all, or the last `len(s)` axes if `s` is given.

    - `s`: the lengths to transform, by default the lengths of `axes`. `x` is cropped or zero-padded to these lengths.
    """
    return transform(_FFTN, x, s, axes, norm, mesh, out_sharding, backend)


_IFFTN = Function("ifftn", _FULL, _FULL, inverse=True, several=True)


def ifftn(
    x: X,
    s: Sequence[int] | int | None = None,
    axes: Sequence[int] | int | None = None,
    norm: Norm | None = None,
    *,
    mesh: AnyMesh = None,
    out_sharding: OutSharding = None,
    backend: AnyBackend = None,
) -> C:
    """Return the inverse Fourier transform along several axes: the inverse of `fftn`.

    - `s`: the lengths of the result along `axes`, by default the lengths of `x`. `x` is cropped or zero-padded to these
        lengths.
    """
    return transform(_IFFTN, x, s, axes, norm, mesh, out_sharding, backend)


_RFFTN = Function("rfftn", _FULL, _HALF, several=True)


def rfftn(
    x: X,
    s: Sequence[int] | int | None = None,
    axes: Sequence[int] | int | None = None,
    norm: Norm | None = None,
    *,
    mesh: AnyMesh = None,
    out_sharding: OutSharding = None,
    backend: AnyBackend = None,
) -> C:
    """Return the half spectrum of real numbers along several axes. The last of `axes` stores half of its modes.

    - `s`: the lengths to transform, by default the lengths of `axes`. `x` is cropped or zero-padded to these lengths.
    """
    return transform(_RFFTN, x, s, axes, norm, mesh, out_sharding, backend)


_IRFFTN = Function("irfftn", _FULL, _HALF, inverse=True, several=True)


def irfftn(
    x: X,
    s: Sequence[int] | int | None = None,
    axes: Sequence[int] | int | None = None,
    norm: Norm | None = None,
    *,
    mesh: AnyMesh = None,
    out_sharding: OutSharding = None,
    backend: AnyBackend = None,
) -> R:
    """Return the real array whose half spectrum is `x`: the inverse of `rfftn`.

    - `s`: the lengths of the result along `axes`. The default is `2 * (m - 1)` for `m` modes along the last of `axes`,
        and the lengths of `x` along the others. For an odd length along the last of `axes`, `s` must be given.
    """
    return transform(_IRFFTN, x, s, axes, norm, mesh, out_sharding, backend)
