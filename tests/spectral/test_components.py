"""Tests that spectral operators check the number of components that they declare."""

from typing import ClassVar

import decompops as dops
import numpy as np
import pytest
from decompops.extend import AbstractSpectralOperator

from helpers import make_mesh


def scaling(of):
    class Scaling(AbstractSpectralOperator):
        fft: dops.FFT
        components: ClassVar = of

        def multiply(self, spectrum):
            return 2 * spectrum

    return Scaling(dops.FFT3D(make_mesh((1, 1)), shape=(4, 4, 4), real=True))


@pytest.mark.parametrize(
    ("components", "text"),
    [
        ("vector", r"`components` must be a pair, for fields and for results.*; got 'vector'"),
        (("any", "scalar"), r"`components` must be a pair.*; got \('any', 'scalar'\)"),
        (("vektor", "scalar"), r"`components` must be a positive number or one of .*; got 'vektor'"),
    ],
)
def test_components_are_a_pair_of_known_names(components, text):
    with pytest.raises(ValueError, match=text):
        scaling(components)


def test_the_result_must_have_the_declared_components():
    with pytest.raises(
        ValueError, match=r"`Scaling.multiply` must return a spectrum of shape \(3, 4, .*; got \(4, 4, 3"
    ):
        scaling(("scalar", "vector"))(np.ones((4, 4, 4)))


@pytest.mark.parametrize(
    ("multiply", "text"),
    [
        (lambda self, spectrum: None, r"must return a spectrum of shape \(4, 4, 3\); got None"),
        (lambda self, spectrum: spectrum.real, "must return a complex spectrum; got float64"),
    ],
)
def test_the_result_must_be_a_spectrum(multiply, text):
    operator = type("Own", (type(scaling(("any", "any"))),), {"multiply": multiply})
    with pytest.raises(ValueError, match=f"`Own.multiply` {text}"):
        operator(dops.FFT3D(make_mesh((1, 1)), shape=(4, 4, 4), real=True))(np.ones((4, 4, 4)))


def test_transpose_of_a_nonlinear_multiply(plain):
    class Squares(plain.spectral.AbstractSpectralOperator):
        fft: plain.FFT

        def multiply(self, spectrum):
            return spectrum * spectrum

    squares = Squares(plain.FFT3D(make_mesh((1, 1)), shape=(4, 4, 4), real=True))
    with pytest.raises(ValueError, match=r"`Squares\.multiply` must be linear for the transpose"):
        squares.T(np.ones((4, 4, 4)))
