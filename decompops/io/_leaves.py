"""The leaves of the trees that checkpoints save: arrays, random keys and numbers."""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, Sharding

from .._common.blocks import axis_names
from .._common.host import host_array
from .._core.expansion import Mismatch
from .._core.layout import Layout
from .._core.structure import Structure
from ._parts import processes_of
from ._storable import OF_TENSORSTORE, check_storable


_NUMBERS = bool | int | float | complex


class Leaf:
    """A leaf that is saved: an array, a random key or a number. An array of a state has its `structure`."""

    def __init__(self, leaf: Any, structure: Structure | None):
        self.leaf, self.structure = leaf, structure
        self.layout = None if structure is None else structure.layout
        self.is_number = isinstance(leaf, _NUMBERS)  # NumPy's `float64` and `complex128` are Python numbers, too.
        self.is_key = not self.is_number and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)

    @property
    def data(self) -> Any:
        """The array to save: the data of a random key, a NumPy copy of an array without a mesh, or the leaf itself."""
        data = self.leaf
        if self.is_key:
            data = jax.random.key_data(data) if isinstance(data, Array) else _abstract_data(data)
        return np.asarray(data) if isinstance(data, Array) and not self.is_sharded else data

    @property
    def is_sharded(self) -> bool:
        """Whether the leaf lies on a mesh. Each process reads a whole copy of any other array."""
        return isinstance(getattr(self.leaf, "sharding", None), NamedSharding)

    @property
    def agreed(self) -> list[Any]:
        """What must be the same on every process: the sharding on a mesh, and the facts except the value of a number.

        Otherwise the processes would run different programs, and wait for each other.
        """
        where = f"{dict(self.leaf.sharding.mesh.shape)} {self.leaf.sharding.spec}" if self.is_sharded else None
        return [where, {**self.facts, "value": None}]

    @property
    def sharding(self) -> Sharding | None:
        """The sharding that the result must have; `None` if JAX may choose its device."""
        is_free = isinstance(self.leaf, Array) and not self.leaf.committed
        return None if is_free else getattr(self.leaf, "sharding", None)

    @property
    def is_too_wide(self) -> bool:
        """Whether JAX would replace the dtype of the leaf by a dtype with fewer bits, because 64-bit mode is off."""
        on_host = self.is_number or self.is_key or isinstance(self.leaf, np.ndarray | np.generic)
        return not on_host and jax.dtypes.canonicalize_dtype(self.leaf.dtype) != self.leaf.dtype

    @property
    def kind(self) -> dict[str, Any]:
        """The type and the true shape. A saved leaf and the same leaf in `like` must have the same `kind`."""
        if self.is_number:
            return {"type": type(self.leaf).__name__}
        shape = list(np.shape(self.leaf))
        if self.layout is not None:
            shape[-self.layout.blocks.ndim :] = self.layout.true_shape
        return {"type": str(self.leaf.dtype), "shape": shape}

    @property
    def facts(self) -> dict[str, Any]:
        """What a checkpoint stores as JSON: the type, the shape without padding, and the value of a number.

        For an array of a state also the storage order, the box, and the meaning of a spectrum.
        """
        if self.is_number:
            is_complex = isinstance(self.leaf, complex)
            return {**self.kind, "value": [self.leaf.real, self.leaf.imag] if is_complex else self.leaf}
        if self.structure is None or self.layout is None:
            return {**self.kind, "order": None}
        expansion, order = self.structure.expansion, list(self.layout.blocks.order)
        meaning = {"expansion": None if expansion is None else expansion.facts, "box": self._box()}
        return {**self.kind, "order": order, **meaning}

    def check(self, name: str, known: dict, where: Any) -> None:
        """Raise `ValueError` unless the array that was saved can become the array of the result.

        `known` has the `facts` of the array that was saved in the checkpoint `where`.
        """
        order = known.get("order")
        if self.layout is None and order is not None and order != sorted(order):
            stored = "".join(axis_names(len(order))[axis] for axis in order)
            raise ValueError(
                f"`structures` must have the structure of {name}, because {where} stores its axes in the order "
                f"{stored}; got none. Pass `structures` to `restore` as to `save`."
            )
        if self.layout is not None and order is None:
            raise ValueError(
                f"`structures` must not have the structure of {name}, because {where} was saved without it. Pass "
                "`structures` to `restore` as to `save`."
            )
        try:
            self.factor(known)
        except Mismatch as error:
            raise ValueError(
                f"`structures` must have the transform of {where}, whose {name} has the `{error.option}` {error.known};"
                f" got {error.own}. Restore it with a transform like the saved one. To change the grid of its fields, "
                "use `spectral.Resample`."
            ) from error
        if self.kind != {key: known.get(key) for key in self.kind}:
            raise ValueError(
                f"`like` must have the types and shapes of the checkpoint; got {self.kind} for {name}, but {where} has "
                f"{known}. Pass the structures of states on padded grids as `structures`."
            )
        if self.is_too_wide:
            raise ValueError(
                f"`like` must have types that JAX has without 64-bit mode; got {self.kind['type']} for {name}. "
                'Type `jax.config.update("jax_enable_x64", True)`, or pass a NumPy array.'
            )

    def factor(self, known: dict) -> float:
        """Return the factor that turns the coefficients of a spectrum that was saved into those of this transform.

        The factor is one for other arrays. Raises `Mismatch` if there is no such factor.
        """
        if self.structure is None or "expansion" not in known:  # Earlier versions did not store the expansion.
            return 1.0
        own, saved = self.structure.expansion, known["expansion"]
        if own is None or saved is None:
            if own is not saved:
                raise Mismatch("space", *("field" if of is None else "spectrum" for of in (saved, own)))
            return 1.0
        return own.factor_from(saved)

    def other_box(self, known: dict) -> str | None:
        """Return a text with both boxes if the array was saved with another box; `None` if the boxes agree."""
        saved, own = known.get("box"), self._box()
        if saved is None or own is None or np.allclose(saved, own, rtol=1e-6, atol=0):
            return None
        return f"the box was {saved}, and is {own}"

    def _box(self) -> list[float] | None:
        """Return the lengths of the box, one for each axis; `None` if the box is not known."""
        box = None if self.layout is None else self.layout.box
        return None if box is None or box.is_traced else np.asarray(box.lengths, float).tolist()

    def stored(self, known: dict) -> Layout | None:
        """Return the layout of the state on this mesh, with the storage order of the checkpoint."""
        if self.layout is None or list(self.layout.blocks.order) == known["order"]:
            return self.layout
        return Layout(self.layout.mesh, replace(self.layout.blocks, order=tuple(known["order"])), self.layout.box)

    def options(self, orbax: Any, known: dict) -> Any:
        """Return the arguments with which orbax reads the leaf."""
        if not self.is_sharded:
            return orbax.RestoreArgs(restore_type=np.ndarray)
        shape, sharding, layout = self.data.shape, self.data.sharding, self.stored(known)
        if layout is not None and layout is not self.layout:
            shape = (*shape[: -layout.blocks.ndim], *layout.shape)
            sharding = layout.sharding_of(shape)
        return orbax.ArrayRestoreArgs(sharding=sharding, global_shape=shape, strict=False)

    def value(self, array: Any, known: dict) -> Any:
        """Return the leaf of the result, made from the `array` that was read."""
        if self.is_number:
            value = complex(*known["value"]) if isinstance(self.leaf, complex) else known["value"]
            return type(self.leaf)(value)
        if (factor := self.factor(known)) != 1:
            array = array * np.asarray(factor, array.dtype)
        if isinstance(self.leaf, np.ndarray | np.generic):
            return array
        array = jnp.asarray(array)
        if self.is_key:
            array = jax.random.wrap_key_data(array, impl=_implementation(self.leaf))
        stored = self.stored(known)
        if self.layout is not None and stored is not None and stored is not self.layout:
            lead = array.ndim - stored.blocks.ndim
            axes = [lead + stored.blocks.order.index(axis) for axis in self.layout.blocks.order]
            array = array.transpose(*range(lead), *axes)
        return array if self.sharding is None else jax.device_put(array, self.sharding)


def leaves_of(argument: str, tree: Any, structures: Any) -> dict[str, Leaf]:
    """Return the leaves to save or to restore, with their paths as keys. Errors call the tree `argument`."""
    if not isinstance(structures, Mapping | None):
        raise TypeError(f"`structures` must be a dictionary of structures by name; got {type(structures).__name__}.")
    structures = dict(structures or {})
    if not isinstance(tree, Mapping) or not all(isinstance(name, str) for name in tree):
        raise TypeError(f"`{argument}` must be a dictionary whose keys are strings; got {type(tree).__name__}.")
    if not structures.keys() <= tree.keys() or not all(isinstance(s, Structure) for s in structures.values()):
        raise ValueError(f"`structures` must map some of the names {list(tree)} to a `Structure`; got {structures}.")
    leaves, names = {}, set()
    for path, leaf in jax.tree_util.tree_flatten_with_path(dict(tree))[0]:
        if (name := name_of(path)) in names:
            raise ValueError(
                f"`{argument}` must have leaves with different paths; got two with the path {name}. Rename one."
            )
        names.add(name)
        if isinstance(leaf, np.ndarray | np.generic) and not isinstance(leaf, _NUMBERS):
            leaf = host_array(leaf, name)
        if isinstance(leaf, Array | np.ndarray | jax.ShapeDtypeStruct | _NUMBERS):
            structure = structures.get(path[0].key)
            saved = leaves[name] = Leaf(leaf, structure if structure and structure.layout.holds(leaf) else None)
            if not (saved.is_number or saved.is_key):
                check_storable(argument, name, saved.leaf.dtype, "a checkpoint", OF_TENSORSTORE, "leave it out")
            if not (saved.is_sharded or saved.sharding is None or saved.sharding.is_fully_addressable):
                raise ValueError(
                    f"`{argument}` must have arrays on a mesh or on a device of this process, {jax.process_index()}; "
                    f"got {saved.sharding} for {name}. Pass another sharding."
                )
            mesh = saved.leaf.sharding.mesh if saved.is_sharded else None
            # orbax waits for every process, also for one that has no part of the array.
            if mesh is not None and len(owners := processes_of(mesh)) < jax.process_count():
                raise ValueError(
                    f"`{argument}` must have arrays on meshes with devices of every process; got {mesh}, with devices "
                    f"of the processes {list(owners)}, for {name}. Choose a mesh of devices of all processes. "
                    "`mpmd.reshard` moves arrays to it."
                )
    return leaves


def warn_of_other_boxes(leaves: Mapping[str, Leaf], known: Mapping[str, dict], where: Any) -> None:
    """Warn once if states were saved with another box. The spectra are read as they are."""
    boxes = {text for name, leaf in leaves.items() if (text := leaf.other_box(known[name]))}
    if boxes and jax.process_index() == 0:
        text = "; ".join(sorted(boxes))
        warnings.warn(f"The states of {where} now belong to another box: {text}.", stacklevel=3)


def name_of(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _abstract_data(keys: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """Return the abstract data of abstract keys, on their devices: `eval_shape` returns an abstract mesh, or none."""
    data = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(keys.shape, keys.dtype))
    return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=keys.sharding)


def _implementation(key: Any) -> Any:
    """Return the PRNG implementation of a key. The key may be a `jax.ShapeDtypeStruct`."""
    return jax.random.key_impl(key if isinstance(key, Array) else jnp.empty((), key.dtype))
