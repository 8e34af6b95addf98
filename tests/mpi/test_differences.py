"""Tests of the comparison of hosts, in one process. tests/hosts has a job on hosts that differ."""

import platform

import pytest
from decompops._backend.mpi.differences import cpu, difference


FIRST = {"FFT library": "fftw-3.3.10-sse2-avx", "CPU": "x86_64 avx avx2", "--xla_cpu_max_isa": "none"}


@pytest.mark.parametrize(
    ("first", "other", "text"),
    [
        ({}, {}, None),
        ({}, {"FFT library": "DUCC"}, "it has FFT library DUCC instead of fftw-3.3.10-sse2-avx"),
        ({}, {"CPU": "x86_64 avx"}, "it has CPU x86_64 avx instead of x86_64 avx avx2"),
        (dict.fromkeys(["--xla_cpu_max_isa"], "AVX"), {"CPU": "x86_64 avx", "--xla_cpu_max_isa": "AVX"}, None),
        (
            {},
            {"CPU": "x86_64 avx", "--xla_cpu_max_isa": "AVX"},
            "it has CPU x86_64 avx instead of x86_64 avx avx2, --xla_cpu_max_isa AVX instead of none",
        ),
    ],
)
def test_difference(first, other, text):
    assert difference(FIRST | first, FIRST | other) == text


@pytest.mark.parametrize(
    ("text", "features"),
    [
        ("processor\t: 0\nflags\t\t: fpu sse4_2 avx avx512f ssse3\n\nflags\t\t: fma\n", " sse4_2 avx avx512f"),
        ("Features\t: fp asimd sve2 sve\n", " sve sve2"),
        ("", ""),
    ],
)
def test_cpu(text, features):
    assert cpu(text) == platform.machine() + features
