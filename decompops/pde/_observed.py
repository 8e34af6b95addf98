"""The observations of a simulation."""

import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .._common.check import brief, check_untraced
from ..io._storable import OF_TENSORSTORE, check_storable


def _takes_two(function: Callable) -> bool:
    """Return whether a function may be called with two arguments, also if it has no signature, as some in C."""
    try:
        inspect.signature(function).bind(0.0, None)
    except TypeError:
        return False
    except ValueError:
        pass
    return True


class Observed:
    """Collects the results of a function `observe(t, u)` of the time t and the state u."""

    def __init__(self, observe: Callable | None, mesh: Mesh, *, is_saved: bool):
        if not (observe is None or (callable(observe) and _takes_two(observe))):
            raise TypeError(f"`observe` must be a function of (t, u) or None; got {observe!r}.")
        self._observe = None if observe is None else eqx.filter_jit(observe)
        self._is_saved = is_saved
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
        check_untraced("observe", leaf, "simulate", "`solver.rollout`")
        if not eqx.is_array_like(leaf) or jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.extended):
            raise TypeError(f"`observe` must return numbers or arrays of numbers; got {leaf!r}.")
        if self._is_saved:  # An error now saves the time until the first checkpoint.
            dtype = jnp.result_type(leaf)
            check_storable("observe", "a result", dtype, "a checkpoint", OF_TENSORSTORE, "leave it out")
            if 0 in np.shape(leaf):
                raise ValueError(
                    f"`observe` must return arrays with elements in a run with `checkpoint`; got {brief(leaf)}. Leave "
                    "it out."
                )
        if isinstance(leaf, Array) and not leaf.is_fully_addressable:
            leaf = jax.device_put(leaf, self._everywhere)
        return np.asarray(jnp.asarray(leaf))
