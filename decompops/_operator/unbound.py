"""`Unbound`: what stands in the place of an operator's decomposition until the operator meets its first array."""

import math
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from .._backend.base import AbstractBackend
from .._backend.xla.backend import XLA
from .._common.blocks import Blocks, MeshAxis, axis_names, flat_names
from .._common.box import Box, check_box
from .._common.check import check_count, check_flag, check_shape
from .._common.remember import remembered
from .._common.sharding import mesh_of
from .._core.config import config, default_backend, resolve_backend, working_backend
from .._core.decomposition import Decomposition, check_grid
from .._core.mesh_axes import check_mesh, check_mesh_axes
from .._core.types import Lengths, MeshAxes


_T = TypeVar("_T")


class Unbound(eqx.Module):
    """What is known of the decomposition of an operator that was built without a mesh or without a shape.

    Each call of the operator takes what is missing from its array: see `bound`.
    """

    mesh: Mesh | AbstractMesh = eqx.field(static=True)  # It has no axes if the mesh is not known.
    given_shape: tuple[int, ...] | None = eqx.field(static=True)
    ndim: int = eqx.field(static=True)
    axes: tuple[MeshAxis | None, ...] | None = eqx.field(static=True)
    box: Box | None
    pad: bool = eqx.field(static=True)
    chosen: AbstractBackend | None = eqx.field(static=True)  # `None`: the default backend for the mesh of the array.

    def __getattr__(self, name: str) -> Any:
        if name not in _NAMES:
            raise AttributeError(f"`{type(self).__name__}` has no attribute `{name}`.")
        reason = "" if name == "shape" else f", because `{name}` depends on it"
        raise ValueError(f"{self._missing}{reason}; got None.")

    @property
    def backend(self) -> AbstractBackend:
        """The backend. Raises `ValueError` if it depends on the mesh, which is not known."""
        return self.chosen or self.__getattr__("backend")

    @property
    def _missing(self) -> str:
        if self.mesh.empty:
            return "`mesh` must be given to the operator, or set by `jax.set_mesh(mesh)` when you build it"
        return "`shape` must be given to the operator, such as `shape=(64, 64, 64)`"

    def complete(self, mesh: Mesh | AbstractMesh, shape: tuple[int, ...]) -> Decomposition:
        """Return the decomposition with the given `mesh` and `shape`."""
        backend = self.chosen or default_backend(mesh)
        return Decomposition(mesh, shape=shape, axes=self.axes, box=self.box, pad=self.pad, backend=backend)

    def example(self, mesh: Mesh | AbstractMesh) -> Decomposition:
        """Return a decomposition of a small grid that `mesh` divides; on one device if `mesh` has no axes.

        An example answers what does not depend on the lengths of the grid: in which order an operator takes the axes,
        how many layers of halo it expects, and whether it has an inverse.
        """
        if mesh.empty:
            names = tuple(flat_names(self.axes or ())) or ("device",)
            mesh = AbstractMesh((1,) * len(names), names)
        shape = self.given_shape or (2 * math.prod(mesh.shape.values()),) * self.ndim
        return Decomposition(mesh, shape=shape, axes=self.axes, box=self.box, pad=self.pad, backend=XLA())


# The type of `operator.decomposition`. For type checkers it is `Decomposition`, because users pass it on to functions,
# and mostly build operators with a mesh and a shape.
if TYPE_CHECKING:
    OperatorDecomposition: TypeAlias = Decomposition
else:
    OperatorDecomposition: TypeAlias = Decomposition | Unbound

# The first argument of operators.
MeshOrDecomposition: TypeAlias = Mesh | AbstractMesh | OperatorDecomposition

_NAMES = {name for name in (*dir(Decomposition), *Decomposition.__dataclass_fields__) if not name.startswith("_")}


def decomposition_of(
    mesh: MeshOrDecomposition | None,
    *,
    shape: Lengths | None = None,
    ndim: int | None = None,
    axes: MeshAxes | None = None,
    box: Box | None = None,
    pad: bool | None = None,
    backend: AbstractBackend | str | None = None,
) -> OperatorDecomposition:
    """Return the decomposition that the arguments of an operator describe; an `Unbound` if mesh or shape is missing.

    `ndim` is the number of grid axes; by default the length of `shape`, or 3 without `shape`. The other arguments and
    the errors are those of `Decomposition`.
    """
    ndim = None if ndim is None else check_count("ndim", ndim)
    if isinstance(mesh, Unbound):
        shape, ndim = mesh.given_shape if shape is None else shape, mesh.ndim if ndim is None else ndim
        axes, box = mesh.axes if axes is None else axes, mesh.box if box is None else box
        pad, backend = mesh.pad if pad is None else pad, mesh.chosen if backend is None else backend
        mesh = mesh.mesh
    if isinstance(mesh, Decomposition):
        if ndim not in (None, mesh.ndim):
            raise ValueError(f"`ndim` must be {mesh.ndim}, as in the decomposition; got {ndim}.")
        return Decomposition(mesh, shape=shape, axes=axes, box=box, pad=pad, backend=backend)
    mesh = check_mesh(mesh)
    shape = None if shape is None else check_shape("shape", shape, ndim)
    if shape is not None and not mesh.empty:
        return Decomposition(mesh, shape=shape, axes=axes, box=box, pad=pad, backend=backend)
    ndim = ndim or (3 if shape is None else len(shape))
    is_open = mesh.empty and backend is None and config.backend is None
    resolve = resolve_backend if mesh.empty else working_backend
    unbound: Any = Unbound(
        mesh,
        shape,
        ndim,
        None if axes is None and mesh.empty else check_mesh_axes(axes, mesh, ndim),
        None if box is None else check_box(box, ndim),
        False if pad is None else check_flag("pad", pad),
        None if is_open else resolve(backend, mesh),
    )
    return unbound


def is_unbound(decomposition: Any) -> bool:
    """Return whether `decomposition` lacks a mesh or a shape."""
    return isinstance(decomposition, Unbound)


def bound(module: _T, x: Any, *, local: bool = False) -> _T:
    """Return a bound copy of an operator or layer, for arrays that have the mesh and the shape of `x`.

    With `local=True`, `x` is one block inside a `shard_map`. Raises `ValueError` if the mesh of `x` is not known, or if
    the shape of `x` does not tell the lengths of the grid.
    """
    own: Any = module
    mesh = mesh_of(x) if own.decomposition.mesh.empty else own.decomposition.mesh
    if mesh is None:
        raise ValueError(
            f"`mesh` must be given to `{own.title}`, or set by `jax.set_mesh(mesh)`, because the mesh of `x` is not "
            f"known; got {jnp.result_type(x)}{jnp.shape(x)}. (Inside `jax.jit` the mesh of an array is known only if "
            "its axes are Explicit.)"
        )
    return bound_to(module, mesh, np.shape(x), local=local)


@remembered
def bound_to(module: _T, mesh: Mesh | AbstractMesh, shape: tuple[int, ...], *, local: bool = False) -> _T:
    """Return a copy of an unbound operator or layer for arrays of `shape`, on its own mesh or else on `mesh`."""
    own: Any = module
    unbound: Unbound = own.decomposition
    mesh = mesh if unbound.mesh.empty else unbound.mesh
    if unbound.given_shape is not None:
        return _on(module, unbound.complete(mesh, unbound.given_shape))
    name = "block" if local else "x"
    check_grid(name, shape, unbound.ndim)
    source: Blocks = _on(own, unbound.example(mesh)).in_structure.layout.blocks
    parts = [source.parts[axis] for axis in source.order]
    cells = [n * count if local else n for n, count in zip(shape[-unbound.ndim :], parts)]
    lengths = source.lengths_of(cells)
    if min(lengths) < 1:
        raise ValueError(
            f"`{name}` must contain the halo {source.halo} of each of its {tuple(parts)} blocks; got shape {shape}."
        )
    found: Any = _on(own, unbound.complete(mesh, lengths))
    source, target = found.in_structure.layout.blocks, found.out_structure.layout.blocks
    unknown = [axis for axis, n in zip(axis_names(unbound.ndim), zip(lengths, source.lengths)) if n[0] != n[1]]
    if unknown:
        raise ValueError(
            f"`shape` must be given to the operator, because a half spectrum does not tell the length of the field "
            f"along {', '.join(unknown)}; got `{name}` of shape {shape}."
        )
    _refuse_padding(own.title, source, f"`{name}`", "the true shape of the grid", f"`{name}` of shape {shape}")
    _refuse_padding(own.title, target, "the result", f"`shape={lengths}`", f"`{name}` of shape {shape}")
    return found


def example_of(module: _T) -> _T:
    """Return a copy of an unbound operator or layer for a small grid: see `Unbound.example`."""
    unbound: Unbound = cast(Any, module).decomposition
    return _on(module, unbound.example(unbound.mesh))


def _on(module: _T, decomposition: Decomposition) -> _T:
    replaced = lambda node: decomposition if isinstance(node, Unbound) else node
    return jax.tree.map(replaced, module, is_leaf=is_unbound)


def _refuse_padding(title: str, blocks: Blocks, of: str, wanted: str, got: str) -> None:
    """Raise `ValueError` for an array with padding, whose shape does not tell the true lengths."""
    for axis in blocks.padded_axes:
        raise ValueError(
            f"`shape` must be given to `{title}`, because {blocks.parts[axis]} devices do not divide the "
            f"{blocks.lengths[axis]} cells of {of} along {axis_names(blocks.ndim)[axis]}: pass {wanted}; got {got}."
        )
