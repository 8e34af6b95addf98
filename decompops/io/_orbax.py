"""orbax, which stores checkpoints, as the processes of a run use it to read."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from ._agreement import raised_by_all
from ._contents import Damaged, why_not_read


# orbax numbers the checkpoints of a process, and its parts look up the newest number. If two threads began checkpoints
# at the same time, one would write to a folder that is not there yet.
SAVING = threading.Lock()


def reader(handler: Any) -> Any:
    """Return an orbax checkpointer that does not wait for other processes when it reads, because they may fail."""
    orbax, process = orbax_checkpoint(), jax.process_index()
    alone = orbax.options.MultiprocessingOptions(primary_host=process, active_processes={process})
    return orbax.Checkpointer(handler, multiprocessing_options=alone)


@contextmanager
def reading_by_all(where: Path) -> Iterator[None]:
    """Raise the error of `why_not_read` on every process if reading fails on one process."""
    with raised_by_all():
        try:
            yield
        except Exception as error:  # The parts of orbax raise errors of many types.
            why = why_not_read(where, error)
            raise why from error if isinstance(why, Damaged) else None


def orbax_checkpoint() -> Any:
    try:
        import orbax.checkpoint
    except ImportError as error:
        raise ImportError("Checkpoints need orbax: pip install orbax-checkpoint.") from error
    return orbax.checkpoint
