"""A job on two hosts with another FFT library, CPU features and clocks."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from decompops._backend.native import fft_library

import hosts
import mpiexec


WORKER = Path(__file__).with_name("differing.py")
CLOCK = """
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
extern "C" int clock_gettime(clockid_t id, timespec* t) noexcept {
  long status = syscall(SYS_clock_gettime, id, t);
  if (id == CLOCK_REALTIME) t->tv_sec += 86400;
  return status;
}
extern "C" time_t time(time_t* t) noexcept {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (t) *t = now.tv_sec;
  return now.tv_sec;
}
extern "C" int gettimeofday(timeval* t, void*) noexcept {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  *t = {now.tv_sec, now.tv_nsec / 1000};
  return 0;
}
"""
pytestmark = mpiexec.MARKS


@pytest.fixture
def shared(tmp_path) -> Path:
    """A folder with a library whose wall clock is a day ahead."""
    (tmp_path / "clock.cpp").write_text(CLOCK)
    command = ["g++", "-shared", "-fPIC", "-O1", "-o", tmp_path / "clock.so", tmp_path / "clock.cpp"]
    subprocess.run(command, check=True)
    return tmp_path


@pytest.fixture
def two(shared) -> Iterator[hosts.Cluster]:
    hosts.need()
    with mpiexec.in_turn(), hosts.cluster(2, shared) as cluster:
        yield cluster


def test_hosts_that_differ(two, shared):
    """Rank 0 prints how the hosts differ, and transforms, solvers and checkpoints are right."""
    text = re.sub(r"\b(avx2|avx512f|fma)\b", "", Path("/proc/cpuinfo").read_text())
    (shared / "cpuinfo").write_text(text)
    two[1].run(f"mount --bind {shared / 'cpuinfo'} /proc/cpuinfo")
    days = [int(two[0].run("date +%s")), int(two[1].run(f"LD_PRELOAD={shared / 'clock.so'} date +%s"))]
    assert 86000 < days[1] - days[0] < 87000
    with two.mpiexec(WORKER, shared / "clock.so", shared / "files", ranks=2) as job:
        assert job.wait(200) == 0, job.output
        assert job.output.count("operators agree") == 4, job.output
        assert job.output.count("all checks passed") == 4, job.output
    notices = re.findall(r"decompops: rank 0: hosts differ: .*", job.output)
    assert len(notices) == 1, job.output
    assert notices[0].count("host 'host2' (rank 2): it has ") == 1, job.output
    assert "--xla_cpu_max_isa SSE4_2 instead of none. Results agree up to rounding." in notices[0], job.output
    if fft_library.find():  # Without FFTW, both hosts use DUCC.
        assert " FFT library DUCC instead of " in notices[0], job.output
        assert "set DECOMPOPS_FFT=ducc for all ranks" in notices[0], job.output
    if re.search(r"\b(avx2|avx512f|fma)\b", Path("/proc/cpuinfo").read_text()):
        assert re.search(r", CPU \S+[^,]* instead of ", notices[0]), job.output
