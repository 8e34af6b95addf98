"""A function that builds the `CuDecomp()` kernels with a mock of cuDecomp (tests/cudecomp/mock) instead of cuDecomp."""

import functools
import subprocess
import sys
from pathlib import Path


SOURCES = Path(__file__).parents[2] / "ffi"


@functools.cache
def build(temporary: Path) -> Path:
    """Build the kernels once in the temporary folder of all tests, and return the folder of the library."""
    folder = temporary / "mock_kernels"
    options = ("-DDECOMPOPS_TESTS=ON", "-DDECOMPOPS_DUCC=OFF", f"-DPython_EXECUTABLE={sys.executable}")
    for command in (
        ("cmake", "-S", SOURCES, "-B", folder, *options),
        ("cmake", "--build", folder, "--parallel", "2", "--target", "cudecomp_mock"),
    ):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout
    return folder / "mock"
