"""The observations of a simulation, in memory and on disk."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec


class Observed:
    """The times and the results of a function `(t, u)` of a time and a state."""

    def __init__(self, observe: Callable | None, mesh: Mesh):
        if not (observe is None or callable(observe)):
            raise TypeError(f"`observe` must be a function of (t, u) or None; got {observe!r}.")
        self._observe = None if observe is None else eqx.filter_jit(observe)
        self._everywhere = NamedSharding(mesh, PartitionSpec())
        self._tree = None
        self.times: list[float] = []
        self._leaves: list[list[np.ndarray]] = []

    def add(self, t: float, u: Array) -> None:
        """Add the observation of the state `u` at the time `t`."""
        self.times.append(t)
        if self._observe is not None:
            leaves, self._tree = jax.tree.flatten(self._observe(np.asarray(t), u))
            self._leaves.append([self._on_host(leaf) for leaf in leaves])

    def stacked(self) -> tuple[np.ndarray, Any]:
        """Return the times, and the results stacked along a new leading axis."""
        leaves = [np.stack(values) for values in zip(*self._leaves)]
        return np.array(self.times), None if self._observe is None else jax.tree.unflatten(self._tree, leaves)

    def save(self, path: Path) -> None:
        """Write all observations to a file. The file only appears when it is complete."""
        arrays: dict[str, Any] = {f"leaf{i}": np.stack(values) for i, values in enumerate(zip(*self._leaves))}
        new = path.with_name(f".{path.name}.partial")
        with new.open("wb") as file:
            np.savez(file, **arrays, times=np.array(self.times))
            os.fsync(file.fileno())
        os.replace(new, path)

    def load(self, path: Path, count: int, u: Array) -> None:
        """Read the first `count` observations of a run. `u` is a state of this run.

        Raises `ValueError` if the file has fewer observations, or if `observe` returns other shapes.
        """
        shapes = [] if self._observe is None else jax.eval_shape(self._observe, np.asarray(0.0), u)
        wanted, self._tree = jax.tree.flatten(shapes)
        try:
            with np.load(path, allow_pickle=False) as file:
                times, leaves = file["times"], [file[f"leaf{i}"] for i in range(len(file.files) - 1)]
        except (OSError, ValueError, KeyError) as error:
            raise ValueError(
                f"`checkpoint` must have the observations of the run, but {path} is damaged: {error}. Use another "
                "folder for `checkpoint`."
            ) from error
        fits = len(times) >= count and [leaf.shape[1:] for leaf in leaves] == [leaf.shape for leaf in wanted]
        if not fits:
            raise ValueError(
                f"`observe` must return results of the same shapes as in the saved run; {path} has {len(times)} "
                f"results of shapes {[leaf.shape[1:] for leaf in leaves]}, but this run needs {count} results of "
                f"shapes {[leaf.shape for leaf in wanted]}. Use another folder for `checkpoint`."
            )
        self.times = times[:count].tolist()
        self._leaves = [list(values) for values in zip(*(leaf[:count] for leaf in leaves))]

    def _on_host(self, leaf: Any) -> np.ndarray:
        if isinstance(leaf, Array) and not leaf.is_fully_addressable:
            leaf = jax.device_put(leaf, self._everywhere)
        return np.asarray(leaf)
