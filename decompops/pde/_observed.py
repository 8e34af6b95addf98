"""What a simulation has observed, in memory and on disk."""

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
    """The times and results of a function `(t, u)` of the state."""

    def __init__(self, observe: Callable | None, mesh: Mesh):
        if not (observe is None or callable(observe)):
            raise TypeError(f"`observe` must be a function of (t, u) or None; got {observe!r}.")
        self._observe = None if observe is None else eqx.filter_jit(observe)
        self._everywhere = NamedSharding(mesh, PartitionSpec())
        self._tree = None
        self.times: list[float] = []
        self._leaves: list[list[np.ndarray]] = []

    def look(self, t: float, u: Array) -> None:
        """Observe a state."""
        self.times.append(t)
        if self._observe is not None:
            leaves, self._tree = jax.tree.flatten(self._observe(np.asarray(t), u))
            self._leaves.append([self._on_host(leaf) for leaf in leaves])

    def stacked(self) -> tuple[np.ndarray, Any]:
        """The times, and the results along a new leading axis."""
        leaves = [np.stack(values) for values in zip(*self._leaves)]
        return np.array(self.times), None if self._observe is None else jax.tree.unflatten(self._tree, leaves)

    def save(self, path: Path) -> None:
        """Write everything to a file that appears as a whole."""
        arrays: dict[str, Any] = {f"leaf{i}": np.stack(values) for i, values in enumerate(zip(*self._leaves))}
        new = path.with_name(f".{path.name}.partial")
        with new.open("wb") as file:
            np.savez(file, **arrays, times=np.array(self.times))
            os.fsync(file.fileno())
        os.replace(new, path)

    def load(self, path: Path, count: int, u: Array) -> None:
        """Read the first `count` observations, of a run that now is at the state `u`.

        Raises `ValueError` where the file has fewer of them, or results of another kind.
        """
        shapes = [] if self._observe is None else jax.eval_shape(self._observe, np.asarray(0.0), u)
        wanted, self._tree = jax.tree.flatten(shapes)
        try:
            with np.load(path, allow_pickle=False) as file:
                times, leaves = file["times"], [file[f"leaf{i}"] for i in range(len(file.files) - 1)]
        except (OSError, ValueError, KeyError) as error:
            raise ValueError(f"`checkpoint` must have the observations of the run, but {path} is damaged.") from error
        fits = len(times) >= count and [leaf.shape[1:] for leaf in leaves] == [leaf.shape for leaf in wanted]
        if not fits:
            raise ValueError(
                f"`observe` must return what it returned before; {path} has {len(times)} times and results of shapes "
                f"{[leaf.shape[1:] for leaf in leaves]}, but there are {count} and {[leaf.shape for leaf in wanted]}. "
                "Use another folder for `checkpoint`."
            )
        self.times = times[:count].tolist()
        self._leaves = [list(values) for values in zip(*(leaf[:count] for leaf in leaves))]

    def _on_host(self, leaf: Any) -> np.ndarray:
        if isinstance(leaf, Array) and not leaf.is_fully_addressable:
            leaf = jax.device_put(leaf, self._everywhere)
        return np.asarray(leaf)
