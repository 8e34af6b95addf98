"""Tests of local transforms of the XLA backend, for blocks that are too large for one FFT."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops._backend.xla.backend import local_transform
from decompops._basis.fourier import DFT
from decompops._common.blocks import Blocks
from decompops._common.compat import most_fft_elements
from decompops._plan.stage import LocalTransform

from dense import apply_stage
from helpers import assert_close, random_field


def whole(*lengths):
    return Blocks(lengths, (1,) * len(lengths), (None,) * len(lengths))


POINTS, HALF = whole(5, 4, 6), whole(5, 4, 4)
STAGES = [
    LocalTransform(POINTS, POINTS, (1, 2), DFT("c2c", -1), 0.5),
    LocalTransform(POINTS, POINTS, (0, 1, 2), DFT("c2c", 1, normalised=True)),
    LocalTransform(POINTS, HALF, (0, 1, 2), DFT("r2c", -1, weighted=True)),
    LocalTransform(POINTS, HALF, (0, 1, 2), DFT("r2c", 1)),
    LocalTransform(HALF, POINTS, (0, 1, 2), DFT("c2r", 1, normalised=True)),
    LocalTransform(HALF, POINTS, (0, 1, 2), DFT("c2r", -1, weighted=True, normalised=True), 3.0),
]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("lead", "most"), [((3,), 30), ((3,), 125)])
def test_transforms_of_limited_size(stage, lead, most):
    """A transform that is split into smaller FFTs equals the dense matrix of the stage.

    No FFT has more than `most` elements. The block is a batch of three fields. A plane of a field has up to 30
    elements, and a whole field has up to 125.
    """
    u = random_field((*lead, *stage.before.shape), np.float64 if stage.transform.kind == "r2c" else np.complex128)

    def run(u):
        return local_transform(stage, u, most)

    lowered = jax.jit(run).lower(u)
    assert_close(lowered.compile()(u), apply_stage(stage, u))
    found = re.findall(r"stablehlo\.fft .*tensor<([\dx]+)x.*-> tensor<([\dx]+)x", lowered.as_text())
    assert found
    assert max(math.prod(map(int, sizes.split("x"))) for pair in found for sizes in pair) <= most


def test_one_line_is_never_split():
    line = whole(8)
    stage = LocalTransform(line, line, (0,), DFT("c2c", -1))
    u = random_field((8,), np.complex128)
    assert_close(local_transform(stage, jnp.asarray(u), 4), np.fft.fft(u))


def test_only_gpus_have_a_limit():
    assert most_fft_elements("gpu") == 2**31 - 1
    assert most_fft_elements("cpu") == most_fft_elements("tpu") == np.inf
