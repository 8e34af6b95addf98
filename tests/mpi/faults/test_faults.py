"""Tests of faults in a job under `mpiexec`: the output of the job, its exit status, and the time to its end.

`python tests/mpi/faults/test_faults.py` prints the table in docs/cluster_faults.md.
"""

import re
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest


# When this file runs as a script, Python needs this path.
sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

import mpiexec


HERE = Path(__file__).parent
pytestmark = mpiexec.MARKS

FFT = r"FFT3D yz-pencils -> xz-pencils of a complex128 field \(16, 16, 16\) on mesh \(x=\d\) at \w+\.py:\d+"
EXCHANGE = r"ParticleMesh\.exchange .* on mesh \(x=2\) at ends\.py:\d+"
GAVE_UP = rf"^decompops: rank \d: {FFT}: rank \d gave up: ValueError: the victim's own error$"
OWN_ERROR = r"^ValueError: the victim's own error$"
WAITED = rf"^decompops: rank 0 has waited \d+ s in {FFT} for rank \d \("
ENDED = rf"^decompops: rank 0: {FFT}: rank \d has ended its program, while this rank waits for it here; all ranks must "
TERMINATED = rf"^decompops: rank {{}} was terminated by SIGTERM in {FFT}: look for an earlier error of another rank"
BY_JAX = rf"^decompops: rank 1 was terminated by JAX in {FFT}: rank 0, JAX's coordinator, has ended"
NAN = r"(?s)run different programs: .* at ends\.py:\d+ \(with `jax_debug_nans`, JAX runs a program again on the ranks"
FAULT = r"fault at ([\d.]+)"  # Ranks print this line (`happens` in job.py).
NOISE = r"$|\[Gloo\]|\w+ ended$"
NAMED = r"decompops: rank \d"  # By default, the first line that is not `NOISE` begins like this.
STACK = r"^\*\*\* Check failure stack trace: \*\*\*$"  # JAX prints this line before a stack trace.


@dataclass(frozen=True)
class Fault:
    """A fault and the expected output of the job. The function `name` of `script` causes the fault.

    - `what`, `says`: the fault and its effect, as shown in the table.
    - `patterns`, `absent`: patterns that the output must and must not contain.
    - `first`: the pattern at the beginning of the output, if the job fails.
    - `sweep`: whether only `pytest -m sweep` tests the fault, because it is almost the same as another fault.
    """

    script: str
    name: str
    what: str
    says: str
    patterns: tuple[str, ...] = ()
    absent: tuple[str, ...] = (STACK,)
    first: str = NAMED
    fails: bool = True
    within: float = 60  # The job must end within this many seconds of the fault. An idle machine needs far less.
    lines: int = 25
    ranks: int = 2
    variables: dict[str, str] = field(default_factory=dict)
    sweep: bool = False
    open_mpi: bool = False  # The patterns are for Open MPI only, because MPICH kills ranks without output.

    @property
    def id(self) -> str:
        return "-".join([self.name, *(f"{k}={v}" for k, v in self.variables.items()), f"{self.ranks}-ranks"])


FOLLOWS = (
    "the rank prints its error; the others print in which operator they waited, and which rank gave up; the job ends"
)
SPEAKS = "the launcher ends the job; the others print in which operator they were"
WAITS = "the others print which rank they wait for, and fail three seconds later; the job ends"
ALL = "all ranks raise an exception that names the operator, the line and what differs on both sides"
FAULTS = [
    Fault("ends.py", "raises", "a rank raises an exception", FOLLOWS, (OWN_ERROR, GAVE_UP), sweep=True),
    Fault("ends.py", "raises", "the same, on four ranks", FOLLOWS, (OWN_ERROR, GAVE_UP), ranks=4, sweep=True),
    Fault(
        *("ends.py", "raises", "the same, by rank 0 of four, with pieces under way (`overlap=2`)", FOLLOWS),
        (OWN_ERROR, GAVE_UP),
        ranks=4,
        variables={"VICTIM": "0", "OVERLAP": "2"},
    ),
    Fault(
        *("ends.py", "raises_before_the_first_call", "the same, before the first operator", FOLLOWS),
        (OWN_ERROR, GAVE_UP),
        sweep=True,
    ),
    Fault(
        *("ends.py", "raises_before_an_exchange", "the same, before an exchange of particles", FOLLOWS),
        (OWN_ERROR, rf"^decompops: rank 0: {EXCHANGE}: rank 1 gave up: ValueError: the victim's own error$"),
    ),
    Fault(
        *("ends.py", "raises_in_a_thread", "the same, in another Python thread", FOLLOWS, (OWN_ERROR, GAVE_UP)),
        sweep=True,
    ),
    Fault(
        *("ends.py", "raises_in_a_callback", "the same, in a callback of JAX"),
        "JAX logs the traceback; the rest is as above",
        (OWN_ERROR, r"^decompops: rank 1 ends the job: ValueError: .*, in a callback of JAX$", GAVE_UP),
        absent=(STACK, r"(?s)Traceback.*Traceback"),
        first="jax.pure_callback failed",
        lines=25,
    ),
    Fault(
        *("ends.py", "raises_without_a_folder", "the same, and no temporary folder can be used"),
        "as above, with the tracebacks of the others",
        (OWN_ERROR, GAVE_UP),
        lines=60,
        sweep=True,
    ),
    Fault(
        *("ends.py", "raises_on_all_ranks", "all ranks raise the same exception"),
        "rank 0 prints its traceback; the others print nothing; the job ends",
        (r"^ValueError: everybody's error$",),
        absent=(STACK, r"(?s)Traceback.*Traceback"),
        lines=18,
    ),
    Fault(
        *("ends.py", "is_killed", "a rank is killed", SPEAKS, (TERMINATED.format(0),)),
        open_mpi=True,
        lines=10,
        sweep=True,
    ),
    Fault(
        *(
            "ends.py",
            "is_killed",
            "rank 0, JAX's coordinator, is killed",
            "JAX ends the others; they print in which operator they were",
        ),
        (BY_JAX,),
        variables={"VICTIM": "0"},
        open_mpi=True,
        lines=10,
    ),
    Fault(
        *("ends.py", "is_killed", "the same, with `MPI.initialize(traces=True)`", "as above, with JAX's stack trace"),
        *((STACK, rf"^decompops: rank 1 was terminated by SIGABRT in {FFT}: the lines before"), (), r"E\d"),
        variables={"VICTIM": "0", "TRACES": "1"},
        sweep=True,
        open_mpi=True,
    ),
    Fault(
        *("ends.py", "gets_sigterm", "a rank gets SIGTERM", SPEAKS, (TERMINATED.format(0),)),
        open_mpi=True,
        lines=10,
        sweep=True,
    ),
    Fault(
        *(
            "ends.py",
            "gets_sigterm_in_an_operator",
            "the same, inside an operator",
            "the rank prints the operator; the launcher ends the job",
        ),
        (TERMINATED.format(1),),
        lines=10,
    ),
    Fault(
        *("ends.py", "is_killed_in_a_simulation", "a rank is killed in `simulate(checkpoint=...)`"),
        "the launcher ends the job; the others print in which operator they wait",
        (r"^decompops: rank 0 got SIGTERM in FFT3D.*, where it waits for rank 1: if the program does not",),
        open_mpi=True,
        lines=10,
    ),
    Fault(
        *("ends.py", "gets_sigterm_after_a_simulation", "all ranks get SIGTERM in `simulate(checkpoint=...)`"),
        "the simulation saves itself; a later SIGTERM has the usual effect",
        (r"^Stopped by signal 15 at t =", "(?s)^stopped with 143$.*^stopped with 143$", TERMINATED.format(1)),
        first=rf"Stopped by signal|stopped with 143|{NAMED} got SIGTERM in Layout",  # A rank may wait for a slow one.
        lines=16,
    ),
    Fault(
        *("ends.py", "crashes", "a rank crashes inside an operator"),
        "the rank prints the operator; Open MPI prints its stack; the launcher ends the job",
        (rf"^decompops: rank 1 was terminated by SIGSEGV in {FFT}: compiled code has crashed; ",),
        lines=50,
    ),
    Fault(
        *("ends.py", "crashes_after_a_simulation", "the same, after a simulation, with `faulthandler`"),
        "as above, with Python's stack",
        (r"^decompops: rank 0 was terminated by SIGSEGV outside of operators: compiled code has crashed; ",),
        absent=(STACK, r"(?s)Fatal Python error.*Fatal Python error"),
        first="Fatal Python error: Segmentation fault",
        lines=70,
        ranks=1,
    ),
    Fault("ends.py", "ends_early", "a rank ends before the others", WAITS, (WAITED, ENDED)),
    Fault("ends.py", "ends_before_the_first_call", "the same, before the first operator", WAITS, (ENDED,), sweep=True),
    Fault(
        *("ends.py", "ends_one_of_two_meshes", "the same, by `sys.exit(3)`, with two meshes", WAITS, (WAITED, ENDED)),
        sweep=True,
    ),
    Fault(
        *("ends.py", "exits_at_once", "the same, by `os._exit(0)`", SPEAKS, (TERMINATED.format(0),)),
        lines=30,  # Open MPI's banner has 24 lines.
        open_mpi=True,
        sweep=True,
    ),
    Fault(
        *("ends.py", "does_not_initialize", "a rank does not call `initialize()`"),
        "the others print so after `timeout`, and raise after `limit` (300 s by default)",
        (
            r"^decompops: rank 0 has waited 1 s in `initialize\(\)` for other ranks$",
            r"^decompops: rank 0: `initialize\(\)` must be called by all 2 ranks, and some have not come for 4 s; look",
            OWN_ERROR,
        ),
        absent=(STACK, r"(?s)Traceback.*Traceback"),
        first="Traceback|decompops: rank 0 has waited",  # On a busy machine, the others come first.
    ),
    Fault(
        *("ends.py", "finds_a_nan", "one rank finds NaNs with `jax_debug_nans`"),
        "all ranks raise an exception that names the option",
        (NAN,),
        first="Invalid nan value",  # JAX prints this line.
        within=50,
        sweep=True,
    ),
    Fault(
        *("ends.py", "finds_a_nan", "the same, by rank 0", "as above", (NAN,)),
        first="Invalid nan value",
        within=50,
        variables={"VICTIM": "0"},
    ),
    Fault(
        *("ends.py", "stopped_for_a_while", "a rank is late"),
        "the others print which rank they wait for: after `timeout`, and each time the wait doubles; results are right",
        (WAITED, "^right$"),
        fails=False,
        sweep=True,
    ),
    Fault(
        *("ends.py", "stopped_for_ever", "a rank is stopped forever"),
        "as above; after `limit` all others raise an exception; the job ends",
        (WAITED, rf"^decompops: rank 0: {FFT}: gave up after \d+ s of waiting for rank 1; if it is only slow, pass"),
    ),
    Fault(
        *("misfits.py", "different_programs", "ranks call different operators (shape, dtype, norm, order, mesh)"),
        ALL + " (after at most 5 s, or `timeout`)",
        tuple(f"^caught {name} after" for name in ("skipped", "reordered", "shape", "dtype", "norm", "order", "mesh")),
        fails=False,
        within=120,
    ),
    Fault(
        *(
            "python_threads.py",
            "threads",
            "Python threads with names (`MPI.thread`); without names; one program in two threads",
        ),
        "right results; an exception in each thread; an exception on all ranks",
        ("^right$", "^caught threads without names$", "^caught threads that pass for one$"),
        fails=False,
    ),
    Fault("ends.py", "finalizes", "`MPI.Finalize()` at the end", "nothing happens", ("^finalized$",), fails=False),
    Fault(
        *("ends.py", "forks", "forked children that end, raise, are terminated or call an operator"),
        "nothing happens in the parent; the operator raises an exception in the child",
        ("^right$",),
        fails=False,
        lines=40,
    ),
    Fault(
        *("ends.py", "ends_one_by_one", "some ranks finish earlier than others", "they wait; results are right"),
        (r"^decompops: rank 2 has waited \d+ s in Transpose .* for rank 3 \(", "^right$"),
        fails=False,
        ranks=4,
    ),
    Fault(
        *("stress.py", "mixed", "100,000 mixed calls", "results are right, memory does not grow"),
        (r"^\d+ calls, ",),
        fails=False,
        within=240,
    ),
]


def happen(fault: Fault) -> tuple[int, str, float]:
    """Return the exit status, the output, and the seconds from the fault to the end of the job."""
    start = time.time()
    limit = 60 + fault.within
    with tempfile.TemporaryDirectory() as folder:
        variables = {"FOLDER": folder, **fault.variables}
        done = mpiexec.run(HERE / fault.script, fault.name, ranks=fault.ranks, limit=limit, **variables)
    times = [float(t) for t in re.findall(FAULT, done.stdout)]
    return done.returncode, re.sub(FAULT, "", done.stdout), time.time() - max(times, default=start)


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, id=fault.id, marks=[pytest.mark.sweep] * fault.sweep) for fault in FAULTS]
)
def test_fault(fault):
    has = lambda pattern: re.search(pattern, output, flags=re.MULTILINE)
    # Open MPI's launcher sends SIGKILL a quarter of a second after SIGTERM. On a busy machine, a rank may not have said
    # where it was by then.
    for _ in range(3 if fault.open_mpi else 1):
        status, output, seconds = happen(fault)
        if all(map(has, fault.patterns)):
            break
    printed = [line for line in output.splitlines() if not re.match(NOISE, line)]
    assert (status != 0) == fault.fails, output
    if "prterun" in output or not (fault.open_mpi and fault.fails):
        for pattern in fault.patterns:
            assert has(pattern), f"{pattern}\n{output}"
        assert not fault.fails or re.match(fault.first, "\n".join(printed)), output
    for pattern in fault.absent:
        assert not has(pattern), f"{pattern}\n{output}"
    assert len(printed) <= fault.lines, output
    assert seconds < fault.within, output
    assert "\0" not in output
    assert fault.name.startswith("crashes") or "Segmentation" not in output


def test_the_file_of_a_traceback(tmp_path):
    """The file is new, and only its owner can read it."""
    done = mpiexec.run(HERE / "ends.py", "raises_where_links_lie", ranks=2, limit=120, FOLDER=str(tmp_path))
    assert done.returncode != 0
    (path,) = re.findall(r"^  \(traceback: (.*)\)$", done.stdout, flags=re.MULTILINE)
    assert "rank 1 gave up" in Path(path).read_text()
    assert Path(path).parent == tmp_path
    assert not Path(path).is_symlink()
    assert Path(path).stat().st_mode & 0o777 == 0o600
    assert {kept.read_text() for kept in tmp_path.glob("kept-*")} == {"of someone else"}


def table() -> None:
    """Print a table of all faults: the effect, the measured seconds and the number of output lines of each fault."""
    print("| what happens to a rank | what follows | seconds | lines |\n|---|---|---|---|")
    for fault in FAULTS:
        _, output, seconds = happen(fault)
        lines = sum(not re.match(NOISE, line) for line in output.splitlines())
        print(f"| {fault.what} | {fault.says} | {seconds:.1f} | {lines} |", flush=True)


if __name__ == "__main__":
    table()
