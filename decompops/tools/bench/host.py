"""Libraries that transform NumPy arrays with the threads of one process: SciPy, FFTW (called by pyFFTW), MKL."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from .program import Contestant
from .task import Task, pair, wavenumbers, weights


def scipy(task: Task, u: np.ndarray) -> Contestant:
    import scipy.fft

    return _like_scipy(task, u, scipy.fft)


def _mkl(task: Task, u: np.ndarray) -> Contestant:
    if task.kind == "dct":
        raise ValueError("mkl_fft has no cosine transforms")
    from mkl_fft.interfaces import scipy_fft  # pyright: ignore[reportMissingImports]  (in no extra)

    return _like_scipy(task, u, scipy_fft)


def _like_scipy(task: Task, u: np.ndarray, library: Any) -> Contestant:
    """Return a contestant for a library whose functions and options have the same names as in `scipy.fft`."""
    threads = os.cpu_count()
    transform, inverse = pair(task, library)
    forward = partial(transform, u, workers=threads)
    back = partial(inverse, workers=threads, overwrite_x=True)
    return _contestant(task, forward, back)


def _fftw(task: Task, u: np.ndarray) -> Contestant:
    """Return a contestant for FFTW, which chooses its plans by measurement and uses the same arrays in every run."""
    if task.kind == "dct":
        raise ValueError("pyFFTW has no cosine transforms of several axes")
    import pyfftw  # pyright: ignore[reportMissingImports]  (in no extra)

    axes = tuple(range(u.ndim))
    half = (*u.shape[:-1], u.shape[-1] // 2 + 1) if task.real else u.shape
    field = pyfftw.empty_aligned(u.shape, u.dtype)
    spectrum = pyfftw.empty_aligned(half, np.result_type(u.dtype, np.complex64))
    result = pyfftw.empty_aligned(u.shape, u.dtype)
    options = {"axes": axes, "threads": os.cpu_count(), "flags": ("FFTW_MEASURE",)}
    forward = pyfftw.FFTW(field, spectrum, **options)
    backward = pyfftw.FFTW(spectrum, result, direction="FFTW_BACKWARD", **options)
    field[...] = u  # after planning, which overwrites the array
    return _contestant(task, forward, lambda spectrum: backward())


def _contestant(task: Task, forward: Callable[[], Any], back: Callable[[Any], Any]) -> Contestant:
    weight = weights(*wavenumbers(task, half=task.real)) if task.action == "gradient" else None

    def gradient() -> Any:
        k = forward()
        k *= weight
        return np.conj(back(k))  # JAX returns the conjugate of the gradient for a complex field.

    run = {"": forward, "inverse": lambda: back(forward()), "gradient": gradient}[task.action]
    return Contestant(run, note=f"one process, {os.cpu_count()} threads", alone=True)


MAKERS = {"SciPy": scipy, "FFTW": _fftw, "MKL": _mkl}
