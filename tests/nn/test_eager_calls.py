"""Tests that eager calls of layers, and of `ravel`, compile their programs once."""

import decompops as dops
import jax
import numpy as np
import pytest
from decompops import nn

from helpers import compiled_programs, make_mesh, random_field


SHAPE, KEY = (8, 6), jax.random.key(0)
CALLS = {
    "HaloConv": lambda dec: nn.HaloConv2D(dec, 2, 2, kernel_size=3, stride=2, key=KEY),
    "HaloConvTranspose": lambda dec: nn.HaloConvTranspose2D(dec, 2, 2, 2, stride=2, key=KEY),
    "AvgPool": lambda dec: nn.AvgPool(dec, 2),
    "MaxPool": lambda dec: nn.MaxPool(dec, (1, 2)),
    "Upsample": lambda dec: nn.Upsample(dec, 2),
    "GroupNorm": lambda dec: nn.GroupNorm(dec, 2, 2),
    "UNet": lambda dec: nn.UNet(dec, 2, 2, width=2, depth=1, key=KEY),
    "SpectralConv": lambda dec: nn.SpectralConv2D(dops.FFT2D(dec, real=True), 2, 2, 3, key=KEY),
    "ravel": lambda dec: lambda u: dec.ravel(u)[0],
    "unravel": lambda dec: lambda u: (lambda vector, unravel: unravel(vector))(*dec.ravel(u)),
}


@pytest.mark.parametrize("kind", ["auto", "explicit"])
@pytest.mark.parametrize("name", CALLS)
def test_the_second_call_compiles_nothing(name, kind):
    dec = dops.Decomposition(make_mesh((2, 2), kind), shape=SHAPE, axes="y", pad=True)
    call, u = CALLS[name](dec), dec.shard(random_field((2, *SHAPE)))
    first, again = np.asarray(call(u)), u + 0
    with compiled_programs() as programs:
        np.testing.assert_array_equal(np.asarray(call(again)), first)
    assert not programs
