"""Tests of `dops.fft` where the sharding of the input is not known: under `jit` on Auto axes, and for NumPy arrays."""

import functools

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from helpers import assert_close, make_mesh, random_field


AUTO = make_mesh((2, 4))


@pytest.mark.parametrize("wrap", [jax.jit, lambda function: function], ids=["compiled", "numpy"])
@pytest.mark.parametrize(
    ("name", "shape", "options", "spec"),
    [("fftn", (2, 4), {}, None), ("irfft2", (2, 3), {"s": (2, 4)}, None), ("fft", (8,), {}, P("x"))],
)
def test_the_error_says_what_helps(plain, name, shape, options, spec, wrap):
    """Another sharding of `x` would change nothing, because the functions take the default layout."""
    x = random_field(shape, np.complex128)
    function = functools.partial(getattr(plain.fft, name), mesh=AUTO, **options)
    with pytest.raises(ValueError, match=r"Pass an `out_sharding` with fewer mesh axes, such as `jax\.P\(\)`"):
        wrap(functools.partial(function, out_sharding=spec))(x)
    assert_close(wrap(functools.partial(function, out_sharding=P()))(x), getattr(np.fft, name)(x, **options))
