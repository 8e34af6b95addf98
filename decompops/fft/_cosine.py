"""Cosine and sine transforms of sharded arrays, as in `scipy.fft`."""

from collections.abc import Callable, Sequence
from typing import Any

from jax import Array
from jaxtyping import Inexact

from .._basis.cosine import AbstractSeries, Cosine, Sine, Type
from .._plan.transform import Norm
from ._call import Function, OutSharding, transform
from ._fourier import AnyBackend, AnyMesh, X


Result = Inexact[Array, "*result"]


def _function(
    name: str, series: Callable[[Type, bool], AbstractSeries], kind: Type, norm: Any, orthogonalize: bool | None
) -> Function:
    basis = series(kind, norm == "ortho" if orthogonalize is None else orthogonalize)
    return Function(name, basis, basis, inverse=name.startswith("i"), several=name.endswith("n"))


def dct(
    x: X,
    type: Type = 2,
    n: int | None = None,
    axis: int = -1,
    norm: Norm | None = None,
    *,
    orthogonalize: bool | None = None,
    mesh: AnyMesh = None,
    out_sharding: OutSharding = None,
    backend: AnyBackend = None,
) -> Result:
    """Return the cosine transform of `type` 1, 2, 3 or 4 along one axis. Complex numbers are allowed.

    - `orthogonalize`: whether to weight the end points, so that the matrix of the transform is orthogonal up to a
        factor. `None` means True for `norm="ortho"`, and False for any other `norm`.
    """
    function = _function("dct", Cosine, type, norm, orthogonalize)
    return transform(function, x, n, axis, norm, mesh, out_sharding, backend)


def idct(
    x: X,
    type: Type = 2,
    n: int | None = None,
    axis: int = -1,
    norm: Norm | None = None,
    *,
    orthogonalize: bool | None = None,
    mesh: AnyMesh = None,
    out_sharding: OutSharding = None,
    backend: AnyBackend = None,
) -> Result:
    """Return the inverse transform of `x`: the inverse of `dct` with the same arguments."""
    function = _function("idct", Cosine, type, norm, orthogonalize)
    return transform(function, x, n, axis, norm, mesh, out_sharding, backend)


def dst(
    x: X,
    type: Type = 2,
    n: int | None = None,
    axis: int = -1,
    norm: Norm | None = None,
    *,
    orthogonalize: bool | None = None,
    mesh: AnyMesh = None,
    out_sharding: OutSharding = None,
    backend: AnyBackend = None,
) -> Result:
    """Return the sine transform of `type` 1, 2, 3 or 4 along one axis. Complex numbers are allowed.

    - `orthogonalize`: whether to weight the end points, so that the matrix of the transform is orthogonal up to a
        factor. `None` means True for `norm="ortho"`, and False for any other `norm`.
    """
    function = _function("dst", Sine, type, norm, orthogonalize)
    return transform(function, x, n, axis, norm, mesh, out_sharding, backend)


def idst(
    x: X,
    type: Type = 2,
    n: int | None = None,
    axis: int = -1,
    norm: Norm | None = None,
    *,
    orthogonalize: bool | None = None,
    mesh: AnyMesh = None,
    out_sharding: OutSharding = None,
    backend: AnyBackend = None,
) -> Result:
    """Return the inverse transform of `x`: the inverse of `dst` with the same arguments."""
    function = _function("idst", Sine, type, norm, orthogonalize)
    return transform(function, x, n, axis, norm, mesh, out_sharding, backend)


def dctn(
    x: X,
    type: Type = 2,
    s: Sequence[int] | int | None = None,
    axes: Sequence[int] | int | None = None,
    norm: Norm | None = None,
    *,
    orthogonalize: bool | None = None,
    mesh: AnyMesh = None,
    out_sharding: OutSharding = None,
    backend: AnyBackend = None,
) -> Result:
    """Return the cosine transform of `type` 1, 2, 3 or 4 along several axes. Complex numbers are allowed.

    - `axes`: the axes to transform; by default all axes, or the last `len(s)` axes if `s` is given.
    - `orthogonalize`: whether to weight the end points, so that the matrix of the transform is orthogonal up to a
        factor. `None` means True for `norm="ortho"`, and False for any other `norm`.
    """
    function = _function("dctn", Cosine, type, norm, orthogonalize)
    return transform(function, x, s, axes, norm, mesh, out_sharding, backend)


def idctn(
    x: X,
    type: Type = 2,
    s: Sequence[int] | int | None = None,
    axes: Sequence[int] | int | None = None,
    norm: Norm | None = None,
    *,
    orthogonalize: bool | None = None,
    mesh: AnyMesh = None,
    out_sharding: OutSharding = None,
    backend: AnyBackend = None,
) -> Result:
    """Return the inverse transform of `x`: the inverse of `dctn` with the same arguments."""
    function = _function("idctn", Cosine, type, norm, orthogonalize)
    return transform(function, x, s, axes, norm, mesh, out_sharding, backend)


def dstn(
    x: X,
    type: Type = 2,
    s: Sequence[int] | int | None = None,
    axes: Sequence[int] | int | None = None,
    norm: Norm | None = None,
    *,
    orthogonalize: bool | None = None,
    mesh: AnyMesh = None,
    out_sharding: OutSharding = None,
    backend: AnyBackend = None,
) -> Result:
    """Return the sine transform of `type` 1, 2, 3 or 4 along several axes. Complex numbers are allowed.

    - `axes`: the axes to transform; by default all axes, or the last `len(s)` axes if `s` is given.
    - `orthogonalize`: whether to weight the end points, so that the matrix of the transform is orthogonal up to a
        factor. `None` means True for `norm="ortho"`, and False for any other `norm`.
    """
    function = _function("dstn", Sine, type, norm, orthogonalize)
    return transform(function, x, s, axes, norm, mesh, out_sharding, backend)


def idstn(
    x: X,
    type: Type = 2,
    s: Sequence[int] | int | None = None,
    axes: Sequence[int] | int | None = None,
    norm: Norm | None = None,
    *,
    orthogonalize: bool | None = None,
    mesh: AnyMesh = None,
    out_sharding: OutSharding = None,
    backend: AnyBackend = None,
) -> Result:
    """Return the inverse transform of `x`: the inverse of `dstn` with the same arguments."""
    function = _function("idstn", Sine, type, norm, orthogonalize)
    return transform(function, x, s, axes, norm, mesh, out_sharding, backend)
