"""`Samples` reads samples for training from snapshots on disk, in batches that are sharded over a mesh."""

import os
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh

from .._common.agreement import differing
from .._common.check import check_count
from .._operator.grid import GridLike
from ._agreement import raised_by_all_of
from ._contents import Contents, Variable
from ._format import AbstractFile
from ._formats import format_of
from ._parts import Bounds, read_array, slices
from ._read import chosen_names, layout_for
from ._staging import find


class Samples:
    """Samples in snapshots on disk. Each process reads only the blocks of its own devices.

    `samples[i]` is a dictionary of the fields of one sample, by name. `samples[[4, 0, 7]]` is a batch of samples: the
    fields have one more axis in front, for the samples. A batch is sharded as `Decomposition.shard` shards it: mesh
    axes that do not shard the grid shard the batch if they divide it. Every process of the mesh must create its
    `Samples` and call `batches` with the same arguments, and must read the same indices.

    Reading needs no communication, so threads may read while the program computes. `samples.batches` does this with
    grain, JAX's library for training data. `Samples` is a `grain.sources.RandomAccessDataSource`, so it can also be the
    source of other grain pipelines.

    !!! example

        ```python
        samples = io.Samples(sorted(Path("data").glob("*.zarr")), fft, ["input", "target"])
        with closing(samples.batches(2, seed=0, epochs=10)) as batches:
            for batch in batches:
                model, state = train(model, state, batch["input"], batch["target"])
        ```

    - `names`: the names of the fields of a sample.
    """

    names: tuple[str, ...]

    def __init__(
        self,
        paths: str | os.PathLike | Iterable[str | os.PathLike],
        grid: GridLike,
        names: Any = None,
        *,
        stacked: bool = False,
    ):
        """**Arguments:**

        - `paths`: the snapshots, which `io.write` wrote. They must not change while samples are read.
        - `grid`: a transform, a `Decomposition` or a `Layout`, as in `io.read`. Its mesh must have devices of this
            process.
        - `names`: the name or the names of the arrays to read. The default is all arrays.
        - `stacked`: if it is `False`, each snapshot is one sample. If it is `True`, the first axis of each array counts
            samples, and the samples of all snapshots follow one another. A file is stored in chunks of at most 16 MiB,
            and each chunk is read as a whole. So smaller samples are read faster if each has its own snapshot.

        **Raises:** `FileNotFoundError` if a snapshot does not exist. `ValueError` if there are no snapshots, if a
        snapshot is damaged, if it has spectra, if `grid` or `names` do not fit it, or if the processes pass other
        arguments. Every process then raises an error of the same type. If snapshots are not `stacked`, only the first
        one is opened here. A call that reads another one may raise these errors, too, on one process alone.
        """
        with raised_by_all_of(grid):
            given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
            if not given:
                raise ValueError("`paths` must have at least one snapshot; got none.")
            formats, files = zip(*map(format_of, given))
            self._places = [(format, find(path)) for format, path in zip(formats, files)]
            self._stacked, self._known = stacked, {}
            with closing(self._open(0)) as file:
                contents = file.contents
            self._layout = layout_for(grid, contents, self._places[0][1])
            if not isinstance(self._layout.mesh, Mesh) or not self._layout.mesh.local_devices:
                raise ValueError(
                    f"`grid` must have a mesh with devices of this process; got {self._layout.mesh} on process "
                    f"{jax.process_index()}."
                )
            self.names = chosen_names(names, contents)
            if not self.names:
                raise ValueError("`names` must have at least one name; got none.")
            if stacked and any(len(contents.variables[name].shape) == self._layout.blocks.ndim for name in self.names):
                raise ValueError("`stacked` must be False for arrays that have only the axes of the grid; got True.")
            self._known = {name: self._of_sample(contents.variables[name]) for name in self.names}
            counts = [self._count(number) if stacked else 1 for number in range(len(given))]
            self._ends = np.cumsum(counts)
            self._starts = self._ends - counts
        # Each process reads its own blocks of a sample. The folder of all files may have another name on each host.
        order = [os.path.relpath(path, os.path.commonpath(files)) for path in files]
        if others := differing(self._layout.mesh, (order, counts, self.names, str(self._layout.spec))):
            raise ValueError(
                "`paths` must be the same on every process, in the same order, and so must `grid`, `names` and "
                f"`stacked`; got {len(self)} samples of {', '.join(self.names)} from {files[0]} to {files[-1]} on "
                f"process {jax.process_index()}, others on {others}. Sort the paths."
            )

    def __len__(self) -> int:
        """Return the number of samples."""
        return int(self._ends[-1])

    def __getitem__(self, index: Any) -> dict[str, Array]:
        """Read samples onto the devices of this process.

        **Arguments:**

        - `index`: an integer for one sample; a slice or an array of integers for a batch. Negative integers count from
            the end.

        **Returns:** a dictionary of arrays of shape `(*index.shape, *shape)`, with the dtypes of the files. But if JAX
        is not in 64-bit mode, 64-bit arrays become 32-bit arrays; larger integers raise `ValueError`.

        **Raises:** `IndexError` if there is no such sample. `ValueError` if a snapshot is damaged, or if its arrays
        have other shapes or dtypes than the arrays of the first snapshot.
        """
        chosen = np.asarray(np.arange(len(self))[index])
        files: dict[int, AbstractFile] = {}
        lock = Lock()

        def described(number: int) -> AbstractFile:
            with lock:
                if number not in files:
                    # A batch may have more snapshots than a process may open at once (`ulimit -n`).
                    with closing(self._open(number)) as file:
                        files[number] = file
                return files[number]

        def read(name: str, bounds: Bounds, cells: np.ndarray) -> None:
            batch, rest = bounds[: chosen.ndim], bounds[chosen.ndim :]
            samples = chosen[slices(batch)]
            for place in np.ndindex(samples.shape):
                number = int(np.searchsorted(self._ends, samples[place], side="right"))
                if self._stacked:
                    one = int(samples[place] - self._starts[number])
                    described(number).read(name, ((one, one + 1), *rest), cells[place][None])
                else:
                    described(number).read(name, rest, cells[place])

        return {
            name: read_array(name, partial(read, name), (*chosen.shape, *known.shape), known.dtype, self._layout)
            for name, known in self._known.items()
        }

    def batches(self, size: int, *, seed: int | None = None, epochs: int | None = None, prefetch: int = 2) -> Any:
        """Iterate over batches. A background thread reads the next batches while the program computes.

        In each epoch, each sample is in at most one batch. If `size` does not divide the number of samples, some
        samples are left out. With a `seed`, these are other samples in each epoch.

        **Arguments:**

        - `size`: the number of samples of a batch.
        - `seed`: the order is a function of this integer and of the epoch, the same on each machine. With `None`, the
            samples keep their order.
        - `epochs`: the number of epochs; `None` repeats without end.
        - `prefetch`: how many batches are read ahead. They are on the devices already, and take memory there.

        **Returns:** a `grain.DatasetIterator` of dictionaries, as `samples[index]` returns them. `iterator.get_state()`
        is a dictionary with an integer, the position in the order; it can be a part of a checkpoint.
        `iterator.set_state(state)` continues at this position. `iterator.close()` ends the thread.

        **Raises:** `ImportError` if grain is not installed. `ValueError` if `size` is not an integer between 1 and the
        number of samples, if `epochs` or `prefetch` is not a positive integer, or if `seed` is not an integer between 0
        and 2³² - 1. The iterator raises the errors of `samples[index]`.
        """
        with raised_by_all_of(self._layout):
            try:
                import grain
            except ImportError as error:
                raise ImportError("`Samples.batches` needs grain: pip install grain.") from error
            size, prefetch = check_count("size", size), check_count("prefetch", prefetch)
            if size > len(self):
                raise ValueError(f"`size` must be between 1 and the number of samples, {len(self)}; got {size}.")
            epochs = None if epochs is None else check_count("epochs", epochs)
            seed = None if seed is None else check_count("seed", seed, least=0)
            if seed is not None and seed >= 2**32:
                raise ValueError(f"`seed` must be below 2**32; got {seed}.")
        if others := differing(self._layout.mesh, (size, seed, epochs)):
            raise ValueError(
                f"`size`, `seed` and `epochs` must be the same on every process; got {size}, {seed} and {epochs} on "
                f"process {jax.process_index()}, others on {others}."
            )
        order = grain.MapDataset.range(len(self))
        order = order if seed is None else order.shuffle(seed=seed)
        batches = order.batch(size, drop_remainder=True).repeat(epochs).map(self.__getitem__)
        # By default, grain would read 500 batches ahead.
        return iter(batches.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=prefetch)))

    def _open(self, number: int) -> AbstractFile:
        """Open a snapshot. Raises `ValueError` if its arrays differ from the known arrays."""
        format, path = self._places[number]
        file = format.open(path)
        try:
            self._check(path, file.contents)
        except BaseException:
            file.close()
            raise
        return file

    def _check(self, path: Path, contents: Contents) -> None:
        if contents.space != "field":
            raise ValueError(f"`paths` must be snapshots of fields; got spectra in {path}. Read them by `io.read`.")
        if self._known and contents.lengths != self._layout.true_shape:
            raise ValueError(
                f"`paths` must be snapshots on a grid of shape {self._layout.true_shape}; got {contents.lengths} in "
                f"{path}."
            )
        for name, known in self._known.items():
            found = contents.variables.get(name)
            if found is None:
                raise ValueError(f"`paths` must have arrays of the same names; got no {name!r} in {path}.")
            own = self._of_sample(found)
            if (own.shape, own.dtype) != (known.shape, known.dtype):
                raise ValueError(
                    f"`paths` must have arrays of the same shape and dtype; got {own.dtype}{list(own.shape)} for "
                    f"{name!r} in {path}, and {known.dtype}{list(known.shape)} in {self._places[0][1]}."
                )

    def _of_sample(self, variable: Variable) -> Variable:
        """Return the description of an array of one sample."""
        return replace(variable, dims=variable.dims[1:], shape=variable.shape[1:]) if self._stacked else variable

    def _count(self, number: int) -> int:
        """Return how many samples a stacked snapshot has."""
        with closing(self._open(number)) as file:
            counts = {name: file.contents.variables[name].shape[0] for name in self.names}
        if len(set(counts.values())) > 1:
            raise ValueError(
                f"`stacked` arrays must have the same number of samples; got {counts} in {self._places[number][1]}."
            )
        return counts[self.names[0]]
