"""Tests that matrix products have full precision. By default, GPUs round the float32 factors of a product to 11 bits.

The results of CPUs do not show this, so these tests read the lowered programs.
"""

import re

import jax
import jax.numpy as jnp
import pytest
from decompops import nn, particles

from catalogue import SIZES, catalogue, with_few_steps
from helpers import make_mesh


PRODUCT = re.compile(r"stablehlo\.(?:dot_general|dot|convolution)\b.*")
# The products of fields and learned weights have JAX's default precision, as users expect of layers, and
# `jax.default_matmul_precision` changes it.
LAYERS = [name for name in vars(nn) if name[0].isupper() and name != "GroupNorm"]


def rounded(function, *arguments) -> list[str]:
    """Return the products in the lowered program of a function that are not of full precision."""
    text = jax.jit(function).lower(*arguments).as_text()
    return [line for line in PRODUCT.findall(text) if "precision = [HIGHEST, HIGHEST]" not in line]


@pytest.mark.parametrize(
    ("ndim", "everything"), [(2, False), *(pytest.param(n, True, marks=pytest.mark.sweep) for n in (2, 3))]
)
def test_operators(ndim, everything):
    entries = catalogue(make_mesh(SIZES[ndim]), ndim)
    if not everything:  # In real space, an equation has the products of its rate.
        entries = {name: one for name, one in with_few_steps(entries).items() if not name.endswith(" in RealSpace")}
    of_layers = re.compile(rf"\b({'|'.join(LAYERS)})\b")
    found = {}
    for name, entry in entries.items():
        if not of_layers.search(name):
            x = jax.device_put(entry.field(), entry.sharding())
            found |= {name: lines} if (lines := rounded(entry.function, x)) else {}
    assert found == {}


def test_cosmology():
    assert rounded(particles.Cosmology(0.3).growth, jnp.ones(4, jnp.float32)) == []


def test_products_that_round_are_found():
    x = jnp.ones((4, 4), jnp.float32)
    assert len(rounded(lambda a: a @ a, x)) == 1
    assert len(rounded(lambda a: jnp.convolve(a[0], a[1]), x)) == 1
