"""Run the sections of a report within a time limit, and write their results."""

import datetime
import json
import os
import re
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from ..commands.progress import Progress
from .files import write_own
from .hardware import private_names
from .sections import SECTIONS
from .setting import Setting, first_line


SCHEMA = 1


class Report:
    """The results of a run. After each section, the results are written to `file`, unless `file` is `None`."""

    def __init__(self, name: str, file: Path | None, **about: Any):
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        self.content: dict[str, Any] = {"schema": SCHEMA, "name": name, "date": date, **about, "sections": {}}
        self.file = file
        self._lock = threading.Lock()

    def run(self, setting: Setting, names: Iterable[str], progress: Progress | None = None) -> None:
        """Run sections one after the other. A section that fails is recorded, and the others still run."""
        progress = progress or Progress("report", len(SECTIONS), quiet=True)
        sections = self.content["sections"]
        left = {name: SECTIONS[name][1] for name in SECTIONS if name in names}
        while left:
            name = next(iter(left))
            setting.clock.begin(left[name] / sum(left.values()))
            del left[name]
            progress.part(name)
            start, data, error = time.monotonic(), {}, None
            sections[name] = {"seconds": None, "error": "it did not end within the time limit", "data": data}
            try:
                data = SECTIONS[name][0](setting, sections)
            except Exception as problem:
                error = first_line(problem)
            errors = _of_all_processes(error)
            seconds = round(time.monotonic() - start, 1)
            sections[name] = {"seconds": seconds, "error": errors, "data": data}
            if jax.process_index() == 0:
                progress.clear()
                print(f"{name:10} {seconds:6.1f} s  {errors or ''}", file=sys.stderr, flush=True)
            self.write()

    def write(self) -> None:
        """Write the file again. Only process 0 writes."""
        if self.file is None or jax.process_index() > 0:
            return
        with self._lock:
            write_own(self.file, self.text().encode())

    def text(self) -> str:
        """Return the report as JSON."""
        return json.dumps(without_private_names(self.content), indent=1, default=_plain) + "\n"

    def failed(self) -> bool:
        """Return whether a section, one of its cases, or a test failed."""
        sections = self.content["sections"].values()
        return any(section["error"] or section["data"].get("failed") for section in sections)


def end_after(seconds: float, report: Report) -> threading.Timer:
    """Start a timer that writes the results so far and ends the process after `seconds`, even if the process hangs."""

    def end() -> None:
        where = f"; its results so far are in {report.file}" if report.file else ""
        try:
            try:
                report.write()
            except Exception as error:  # The disk may be full.
                where = f"; its last results were not written: {first_line(error)}"
            print(f"decompops: the report was ended, because its time was up{where}", file=sys.stderr, flush=True)
        finally:
            os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    return timer


def without_private_names(value: Any, names: tuple[str, ...] | None = None) -> Any:
    """Remove host names, addresses and folders from a report. A path keeps only its last part."""
    names = tuple(private_names()) if names is None else names
    if isinstance(value, dict):
        return {key: without_private_names(one, names) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [without_private_names(one, names) for one in value]
    if not isinstance(value, str):
        return value
    for name in names:
        value = re.sub(rf"\b{re.escape(name)}\b", "host", value)
    value = re.sub(r"\b\d{1,3}(?:\.\d{1,3}){3}:\d+\b", "address", value)
    return re.sub(r"(?<![\w.:/])~?/(?:[^\s/:;,'\"]+/)+", "", value)


def _of_all_processes(error: str | None) -> str | None:
    """Return the error of this process. If it has none, name another process with an error, or return `None`."""
    failed = multihost_utils.process_allgather(np.array(error is not None)).ravel()
    if error or not failed.any():
        return error
    return f"it failed in process {int(np.argmax(failed))}"


def _plain(value: Any) -> Any:
    """Return a NumPy number as a number of Python, which JSON can hold."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a report must hold plain values; got {value!r}")
