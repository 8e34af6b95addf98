"""The observations of a simulation."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec


class Observed:
    """Collects the results of a function `observe(t, u)` of the time t and the state u."""

    def __init__(self, observe: Callable | None, mesh: Mesh):
        if not (observe is None or callable(observe)):
            raise TypeError(f"`observe` must be a function of (t, u) or None; got {observe!r}.")
        self._observe = None if observe is None else eqx.filter_jit(observe)
        self._everywhere = NamedSharding(mesh, PartitionSpec())
        self._tree: Any = None
        self._leaves: list[list[np.ndarray]] = []

    def add(self, t: float, u: Array) -> None:
        """Add the observation of the state `u` at the time `t`."""
        if self._observe is not None:
            leaves, self._tree = jax.tree.flatten(self._observe(np.asarray(t), u))
            self._leaves.append([self._on_host(leaf) for leaf in leaves])

    @property
    def results(self) -> Any:
        """The results, stacked along a new leading axis."""
        return None if self._observe is None else jax.tree.unflatten(self._tree, self.leaves)

    @property
    def leaves(self) -> list[np.ndarray]:
        """The leaves of the results, which a checkpoint saves."""
        return [np.stack(values) for values in zip(*self._leaves)]

    @property
    def names(self) -> list[str]:
        """The place of each leaf in the results, such as `['energy']`."""
        if self._tree is None:
            return []
        paths = jax.tree_util.tree_leaves_with_path(jax.tree.unflatten(self._tree, [0] * self._tree.num_leaves))
        return [jax.tree_util.keystr(path) for path, _ in paths]

    def like(self, count: int, u: Array) -> list[np.ndarray]:
        """Return arrays with the shapes and types that `leaves` has after `count` observations of states like `u`."""
        if self._observe is None:
            return []
        wanted, self._tree = jax.tree.flatten(jax.eval_shape(self._observe, np.asarray(0.0), u))
        return [np.empty((count, *leaf.shape), leaf.dtype) for leaf in wanted]

    def restore(self, leaves: list[np.ndarray]) -> None:
        """Replace the results by the results of a saved run, given as `leaves`."""
        self._leaves = [list(values) for values in zip(*leaves)]

    def _on_host(self, leaf: Any) -> np.ndarray:
        if isinstance(leaf, Array) and not leaf.is_fully_addressable:
            leaf = jax.device_put(leaf, self._everywhere)
        return np.asarray(jnp.asarray(leaf))
