"""One process of a run with two processes. test_curves.py starts both processes.

python rank.py curves --rank R --processes N --devices D --port P
"""

import argparse

import jax
import numpy as np
from decompops import plot


def curves() -> None:
    """Draw times, values and references that are sharded over the processes, and replicated ones on one process."""
    mesh = jax.make_mesh((jax.device_count(),), ("x",))
    numbers = np.arange(8.0, dtype=np.float32)
    sharded, replicated = (jax.device_put(numbers, jax.NamedSharding(mesh, jax.P(axis))) for axis in ("x", None))
    assert not sharded.is_fully_addressable
    axes = plot.curves(sharded, {"a": 2 * sharded, "b": numbers}, references={"c": (sharded, 3 * sharded)})
    for line, factor in zip(axes.lines, (2, 1, 3), strict=True):
        np.testing.assert_array_equal(line.get_data(), (numbers, factor * numbers))
    if jax.process_index() == 0:  # Replicated arrays are not gathered, so no other process takes part.
        np.testing.assert_array_equal(plot.curves(replicated, replicated).lines[0].get_data(), (numbers, numbers))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=["curves"])
    for name in ("rank", "processes", "devices", "port"):
        parser.add_argument(f"--{name}", type=int)
    args = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", args.devices)
    jax.distributed.initialize(f"127.0.0.1:{args.port}", args.processes, args.rank)
    curves()
