"""Start Python programs as forks of a process that has already imported what they import.

Most programs that tests start import decompops, JAX and Matplotlib, which takes one or two seconds of each of them. A
fork has them at once. It is a process of its own, in which JAX starts as in any other one: no import starts JAX. A
program that sets variables which packages read at their import, or starts JAX before it imports decompops, needs
another process.

The fork server of `multiprocessing` is no substitute: it runs functions, and its forks share one environment and one
set of options. These programs need their own variables, options, arguments, folders and outputs.
"""

import atexit
import faulthandler
import gc
import importlib.util
import inspect
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import types
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path


LIMIT = 240  # In seconds, for the programs of `run`.
# The two latest processes that fork, by their options and their environment, and others whose forks still run.
_parents: dict[tuple, subprocess.Popen] = {}
_running: Counter[subprocess.Popen] = Counter()


class Fork:
    """A program in a fork, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, parent: subprocess.Popen, *request: object):
        self.parent, self.returncode = parent, None
        self.pid = _ask(parent, "start", *request)
        _running[parent] += 1

    def wait(self, options: int = 0) -> int | None:
        if self.returncode is None:
            self.returncode = _ask(self.parent, "wait", self.pid, options)
            _running[self.parent] -= self.returncode is not None
        return self.returncode

    def poll(self) -> int | None:
        return self.wait(os.WNOHANG)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    *command: str,
    out: str,
    err: str,
    environment: Mapping[str, str],
    options: Sequence[str] = (),
    cwd: str | Path = ".",
    limit: int | None = None,
) -> Fork | subprocess.Popen:
    """Start Python with these options and this command: a script, `-c` or `-m`, and what follows it.

    The program appends its output to the files `out` and `err`. If it takes longer than `limit`, it prints its stacks
    and ends.
    """
    environment = {name: value for name, value in environment.items() if name != "PYTEST_CURRENT_TEST"}
    if sys.platform != "linux":  # The libraries of other systems may not work in forks.
        with open(out, "a") as printed, open(err, "a") as errors:
            started = [sys.executable, *options, *command]
            return subprocess.Popen(started, stdout=printed, stderr=errors, cwd=cwd, env=environment)
    return Fork(_parent(options, environment), command, str(Path(cwd).resolve()), [out, err], limit)


def run(*command: str, **options: object) -> subprocess.CompletedProcess:
    """Run a program (`start`), and return its exit code and its output."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = (os.path.join(folder, name) for name in ("out", "err"))
        code = start(*command, out=out, err=err, limit=LIMIT, **options).wait()
        return subprocess.CompletedProcess(command, code, *(Path(path).read_text("utf-8") for path in (out, err)))


def _parent(options: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen:
    """Return a process that forks with these options of Python and this environment."""
    key = (*options, frozenset(environment.items()))
    parent = _parents.pop(key, None)
    if parent is None:
        for unused in [key for key, other in _parents.items() if not _running[other]][:-1]:
            _end(unused)
        command = [sys.executable, *options, __file__]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        parent = subprocess.Popen(command, **pipes, text=True, env=environment)
    _parents[key] = parent
    return parent


def _end(key: tuple) -> None:
    parent = _parents.pop(key)
    parent.communicate()
    del _running[parent]


@atexit.register
def _end_all() -> None:
    for key in list(_parents):
        _end(key)


def _ask(parent: subprocess.Popen, *request: object) -> int | None:
    print(json.dumps(request), file=parent.stdin, flush=True)
    answer = parent.stdout.readline()
    assert answer, "the process that forks has ended"
    return json.loads(answer)


def _serve() -> list:
    """Answer the requests on the standard input. Returns only in a fork, with what it has to run."""
    for name in ("decompops", "matplotlib.pyplot"):
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            package = importlib.import_module(name)
            if name == "decompops":
                inspect.getmembers(package)  # imports the subpackages, too
    gc.collect()
    gc.freeze()  # The forks share the memory of what was imported, and their collections skip it.
    for line in sys.stdin:
        task, *request = json.loads(line)
        if task == "wait":
            ended, status = os.waitpid(*request)
            answer = os.waitstatus_to_exitcode(status) if ended else None
        else:
            with warnings.catch_warnings(action="ignore"):  # of the threads of NumPy's OpenBLAS, which can be forked
                answer = os.fork()
            if answer == 0:
                return request
        print(json.dumps(answer), flush=True)
    sys.exit()


def _run(command: list[str], folder: str, outputs: list[str], limit: int | None) -> None:
    """Run a command as `python *command` does."""
    os.chdir(folder)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in enumerate(outputs, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    if limit is not None:
        faulthandler.dump_traceback_later(limit, exit=True)
    sys.orig_argv = [sys.executable, *command]
    if command[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *command[2:]], ""
        program = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(command[1], "<string>", "exec", dont_inherit=True), vars(program))
    elif command[0] == "-m":
        sys.argv, sys.path[0] = command[1:], folder
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = command, os.path.dirname(os.path.abspath(command[0]))
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    _run(*_serve())
