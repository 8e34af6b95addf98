"""Shows the progress of a simulation on a terminal or in a log file."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax

from .._common.say import Said, say


SECONDS_TO_FIRST_LINE = 5
SECONDS_BETWEEN_LINES = 30
Report = Callable[[float, int], None]


@contextmanager
def progress(show: Callable | bool, start: float, t: float, t_end: float) -> Iterator[Report]:
    """Provide a function `(t, steps)` that shows the progress and the remaining time.

    If `show` is a function `(t, t_end)` of the user, it is called instead, on every process. Otherwise, the first
    process shows the progress: a bar on a terminal if the package rich is installed, else a line after five seconds,
    then every 30 seconds, and at the end. A run that continues from a checkpoint has a time `t` later than `start`.
    """
    if callable(show):
        of_user = show
        yield lambda now, steps: of_user(now, t_end)
        return
    show = show and jax.process_index() == 0
    if show and t > start:
        say(f"The run continues from t = {t:.6g}.")
    if not show or t_end <= t:
        yield lambda now, steps: None
        return
    try:
        from rich import console as terminals, progress as bars
    except ImportError:
        terminals = bars = None
    stream: Any = Said(sys.stderr)
    if terminals is None or bars is None or not stream.isatty():
        yield _lines(t_end)
        return
    console, text = terminals.Console(file=stream), "t = {task.fields[t]:.4g} of {task.fields[end]:.4g}"
    columns = bars.TextColumn(text), bars.BarColumn(), bars.TextColumn("{task.description}"), bars.TimeRemainingColumn()
    with bars.Progress(*columns, console=console) as bar:
        # rich accepts floats as well as integers.
        facts: Any = {"total": t_end - start, "completed": t - start, "t": t, "end": t_end}
        task, rate = bar.add_task("compiling", **facts), _rate()
        yield lambda now, steps: bar.update(task, completed=now - start, description=rate(steps), t=now)


def _lines(t_end: float) -> Report:
    """Return a function that prints lines.

    A simulation calls compiled programs one after the other. The estimate of the remaining time leaves out the first
    call, because this call includes compilation.
    """
    due, rate = time.monotonic() + SECONDS_TO_FIRST_LINE, _rate()
    first: tuple[float, float] | None = None

    def report(t: float, steps: int) -> None:
        nonlocal first, due
        now, text = time.monotonic(), rate(steps)
        if first is None:
            first = now, t
        if now < due and t < t_end:
            return
        due = now + SECONDS_BETWEEN_LINES
        since, begin = now - first[0], first[1]
        left = f", {since * (t_end - t) / (t - begin) / 60:.3g} min left" if begin < t < t_end else ""
        say(f"t = {t:.4g} of {t_end:.4g}, {text}{left}")

    return report


def _rate() -> Callable[[int], str]:
    """Return a function that takes the number of steps and returns, as text, this number and the time of a step.

    The time of a step leaves out the first call of a compiled program, because this call includes compilation.
    """
    begun: list[tuple[float, int]] = []

    def rate(steps: int) -> str:
        if len(begun) < 2:
            begun.append((time.monotonic(), steps))
        if len(begun) < 2 or steps == begun[1][1]:
            return f"{steps} steps"
        seconds = (time.monotonic() - begun[1][0]) / (steps - begun[1][1])
        return f"{steps} steps, {1e3 * seconds:.3g} ms each"

    return rate
