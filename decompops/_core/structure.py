"""`Structure`: the type of an operator's input or result, and checks that the result of one operator fits the next."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from .._basis.base import AbstractBasis, Kind
from .._common.blocks import Blocks, MeshAxis, axis_names, pencil_blocks
from .._common.box import Box
from .._common.host import dtype_of
from .._common.placement import refuse_other_devices
from .expansion import Expansion
from .layout import Layout
from .primitive import operator_p


Space = Literal["field", "spectrum"]


@dataclass(frozen=True)
class Structure:
    """The type of an operator's input or result, as far as it is known without an array.

    - `layout`: the mesh of the array, how it is cut into blocks, and the box of its grid.
    - `kind`: "real" or "complex"; `None` for either.
    - `space`: "field" or "spectrum"; `None` for either.
    - `components`: the lengths of the component axes, which are directly before the grid axes: `()` for a scalar,
        `(3,)` for a vector; `None` for any. All axes before the component axes are batch axes.
    - `may_move`: whether a function that is not an operator may have moved the array to other devices.
    - `passes_on`: whether `None` as the `kind` or `components` of a result means that they are the same as in the
        operator's input. If False, `None` means unknown.
    - `expansion`: what the numbers of a spectrum mean, such as their bases and `norm`; `None` if it is not known.
    - `bases`: the basis of each grid axis, which sets the coordinates of the points of a field; empty if not known.
    """

    layout: Layout
    kind: Kind | None = None
    space: Space | None = None
    components: tuple[int, ...] | None = None
    may_move: bool = False
    passes_on: bool = field(default=True, compare=False)
    expansion: Expansion | None = field(default=None, compare=False)
    bases: tuple[AbstractBasis, ...] = field(default=(), compare=False)

    @property
    def ndim(self) -> int:
        """The number of axes of the grid."""
        return self.layout.blocks.ndim

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the grid axes: x, y, z for points; kx, ky, kz for the modes of a spectrum."""
        names = axis_names(self.ndim)
        return tuple(f"k{name}" for name in names) if self.space == "spectrum" else names

    @property
    def lengths(self) -> tuple[float, ...]:
        """The length of the box along each axis; 2π if there is no box. The lengths must not be traced."""
        box = self.layout.box or Box().with_axes(self.ndim)
        return tuple(map(float, cast(tuple, box.lengths)))

    def points(self, axis: int) -> np.ndarray:
        """Return the coordinates of the points of a field along an axis."""
        return self.lengths[axis] * self.bases[axis].points(self.layout.true_shape[axis])

    def edges(self, axis: int) -> np.ndarray:
        """Return the bounds of the cells around the points along an axis: `n + 1` bounds for `n` points."""
        return self.lengths[axis] * self.bases[axis].edges(self.layout.true_shape[axis])

    def coordinates(self) -> dict[str, np.ndarray]:
        """Return the points, or the angular wavenumbers of a spectrum, by the name of the axis; empty if not known."""
        if self.space != "spectrum":
            return {name: self.points(axis) for axis, name in enumerate(self.names[: len(self.bases)])}
        along = () if self.expansion is None else zip(self.expansion.bases, self.expansion.modes, self.lengths)
        return {name: basis.wavenumbers(n) / length for name, (basis, n, length) in zip(self.names, along)}

    @property
    def shape(self) -> dict[str, int]:
        """The length of each axis without padding, by name, in the storage order."""
        return {self.names[axis]: self.layout.true_shape[axis] for axis in self.layout.blocks.order}

    def __str__(self) -> str:
        """Return the kind (float, complex or any), batch axes, components, lengths and layout as text.

        For example "c[*, 256, 256, 129] x-pencils 2x4".
        """
        kind = {"real": "f", "complex": "c", None: "any"}[self.kind]
        return f"{kind}[{', '.join(map(str, ('*', *(self.components or ()), *self.shape.values())))}] {self.layout}"

    def following(self, given: "Structure") -> "Structure":
        """Return this structure of a result. Entries that are `None` are taken from `given`, the input's structure."""
        layout = replace(self.layout, box=self.layout.box or given.layout.box)
        filled = replace(self, layout=layout, space=self.space or given.space)
        if not self.passes_on:
            return filled
        components = given.components if self.components is None else self.components
        return replace(filled, kind=self.kind or given.kind, components=components)

    def through(self, function: Callable) -> "Structure | None":
        """Return the structure of the result of `function` for an input of this structure; `None` if not known.

        `function` is a part of a pipeline that is neither an operator nor a layer.
        """
        blocks = self.layout.blocks
        dtype = jnp.zeros((), complex if self.kind == "complex" else float).dtype
        shape = (*(self.components or ()), *blocks.shape)
        try:
            jaxpr, result = jax.make_jaxpr(function, return_shape=True)(jax.ShapeDtypeStruct(shape, dtype))
            grid, lead = result.shape[-blocks.ndim :], result.shape[: -blocks.ndim]
        except Exception:  # The function may work only for other shapes, or only in a compiled program.
            return None
        # A function that calls an operator may return a spectrum, or other pencils.
        if grid != blocks.shape or operator_p.name in str(jaxpr):
            return None
        kind = "complex" if jnp.issubdtype(result.dtype, jnp.complexfloating) else "real"
        components = self.components if lead == (self.components or ()) else None  # New leading axes may be batch axes.
        return replace(self, kind=kind if self.kind else None, components=components, may_move=True)

    def check(self, x: Any, name: str = "x", *, may_move: bool = False) -> None:
        """Raise `TypeError` or `ValueError` if the dtype, shape or devices of an array do not fit this structure.

        With `may_move=True` the array may lie on other devices, but it must contain the padding.
        """
        what, dtype = self.space or "field", dtype_of(x)
        is_complex = jnp.issubdtype(dtype, jnp.complexfloating)
        if (self.kind == "real" and is_complex) or (
            (self.kind, self.space) == ("complex", "spectrum") and not is_complex
        ):
            raise TypeError(f"`{name}` must be a {what} {self}; got {dtype}.")
        shape, ndim = jnp.shape(x), self.layout.blocks.ndim
        components = self.components or ()
        if not any(shape[-len(components) - ndim :] == (*components, *grid) for grid in self._grids(stored=may_move)):
            wanted = ", ".join(map(str, ("*batch", *components, *self.layout.shape)))
            raise ValueError(f"`{name}` must be a {what} {self}, of shape ({wanted}); got {shape}.")
        if isinstance(x, Array) and not may_move:
            refuse_other_devices(x, self.layout.mesh, self.layout.spec, name)

    def _grids(self, *, stored: bool) -> list[tuple[int, ...]]:
        """Return the lengths that the grid axes of an array may have; with `stored=True`, only those with padding."""
        blocks = self.layout.blocks
        if self.space == "spectrum" or blocks.has_halo or stored:
            return [blocks.shape]
        return [blocks.shape, blocks.true_shape]  # Operators pad the second.

    def misfit(self, wanted: "Structure", *, lengths: bool = True) -> str | None:
        """Return why an array of this structure does not fit `wanted`, and what would help; `None` if it fits.

        With `lengths=False`, the lengths of the grid are not compared.
        """
        checks = (check for check in _CHECKS if lengths or check is not _grid)
        return next(filter(None, (check(self, wanted) for check in checks)), None)


_BACK = "Transform it back first, with `fft.inverse`"


def _mesh(given: Structure, wanted: Structure) -> str | None:
    have, want = given.layout.mesh, wanted.layout.mesh
    concrete = isinstance(have, Mesh) and isinstance(want, Mesh)
    if given.may_move or (have == want if concrete else dict(have.shape) == dict(want.shape)):
        return None
    return (
        f"the meshes differ, {have} and {want}. Build both operators on one mesh, or put "
        "`lambda x: mpmd.reshard(x, operator.in_structure)` between them"
    )


def _space(given: Structure, wanted: Structure) -> str | None:
    match given.space, wanted.space:
        case "spectrum", "field":
            return f"a field is wanted, not a spectrum. {_BACK}"
        case "field", "spectrum":
            return "a spectrum is wanted, not a field. Transform it first, with `fft`"
    return None


def _components(given: Structure, wanted: Structure) -> str | None:
    if None in (given.components, wanted.components) or given.components == wanted.components:
        return None
    if not wanted.components:
        return (
            f"a scalar field is wanted, not one with components {given.components}. To apply the operator to each "
            "component, use `eqx.filter_vmap(operator)` instead"
        )
    return f"a field with components {wanted.components} before the grid axes is wanted"


def _dimensions(given: Structure, wanted: Structure) -> str | None:
    have, want = given.layout.blocks.ndim, wanted.layout.blocks.ndim
    if have == want:
        return None
    return f"the grids have different numbers of axes, {have} and {want}. Build both operators for one grid"


def _grid(given: Structure, wanted: Structure) -> str | None:
    have, want = given.layout.true_shape, wanted.layout.true_shape
    if have == want:
        return None
    hint = "Interpolate with `spectral.Resample(fft, shape)`"
    if given.space == "spectrum":
        both = wanted.space == "spectrum"
        hint = "Give both transforms the same `shape`, `real` and `modes`" if both else f"If a field is meant: {_BACK}"
    return f"the grids differ, {have} and {want}. {hint}"


def _halo(given: Structure, wanted: Structure) -> str | None:
    have, want = given.layout.blocks, wanted.layout.blocks
    if have.halo == want.halo:
        return None
    if not want.has_halo:
        return "the halo must be dropped first, with `.crop` of the halo exchange"
    if not have.has_halo:
        return "the blocks must be extended first, with `HaloExchange`"
    return f"the halos differ, {have.halo} and {want.halo}"


def _pencil(given: Structure, wanted: Structure) -> str | None:
    have, want = given.layout.blocks, wanted.layout.blocks
    if _divided(have) == _divided(want):
        return None
    source, target = _pencil_name(have), _pencil_name(want)
    if source is None or target is None or source == target:
        return "different mesh axes shard the grid. Give both operators the same `axes`"
    hint = f". If a field is meant: {_BACK}" if (given.space, wanted.space) == ("spectrum", None) else ""
    return f'another axis is whole on each device. Insert `Transpose(mesh, "{source}", "{target}")`{hint}'


def _order(given: Structure, wanted: Structure) -> str | None:
    if given.layout.blocks.order == wanted.layout.blocks.order:
        return None
    return "the storage orders of the axes differ. Give both operators the same `axis_contiguous`"


def _kind(given: Structure, wanted: Structure) -> str | None:
    if (given.kind, wanted.kind) != ("complex", "real"):
        return None
    return "real numbers are wanted, not complex ones. Take the real part first, with `jnp.real`"


def _box(given: Structure, wanted: Structure) -> str | None:
    have, want = given.layout.box, wanted.layout.box
    if have is None or want is None or have.is_traced or want.is_traced:
        return None
    lengths = [cast(tuple, box.lengths) for box in (have, want)]
    # Lengths that are arrays of one or more axes are mapped by `vmap`, and are not compared.
    if any(np.ndim(length) for length in (*lengths[0], *lengths[1])) or np.allclose(*lengths, rtol=1e-6, atol=0):
        return None
    return f"the boxes differ, {have} and {want}. Build both operators with one `Box`"


_CHECKS = (_mesh, _dimensions, _space, _components, _halo, _grid, _pencil, _order, _kind, _box)


def _divided(blocks: Blocks) -> dict[int, MeshAxis | None]:
    """Return the mesh axis that shards each grid axis, for grid axes of more than one block."""
    return {axis: blocks.names[axis] for axis in range(blocks.ndim) if blocks.parts[axis] > 1}


def _pencil_name(blocks: Blocks) -> str | None:
    """Return the name of the pencil of these blocks; `None` if it is not one that `Transpose` accepts."""
    entries = [name for name in blocks.names if name is not None]
    sizes = [parts for name, parts in zip(blocks.names, blocks.parts) if name is not None]
    for axis, own in reversed(list(enumerate(axis_names(blocks.ndim)))):
        pencil = pencil_blocks(axis, blocks.lengths, entries, sizes)
        if (pencil.names, pencil.parts) == (blocks.names, blocks.parts):
            return own
    return None
