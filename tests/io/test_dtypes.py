"""Tests of the dtypes that files hold: each comes back bit by bit, or is refused before anything is written."""

import decompops as dops
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from decompops import io

from helpers import make_mesh


SHAPE = (4, 3, 2)
DEC = dops.Decomposition(make_mesh((1, 1)), shape=SHAPE)
BITS = np.arange(24).reshape(SHAPE) % 2
# The dtypes of NumPy that every format stores, those that only tensorstore stores, and those that nothing stores.
NUMPY = ["?", *"bBhHiIlLqQ", "e", "f", "d", "F", "D", ">i2", ">f8", ">c16"]
NARROW = [
    "int4",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e4m3b11fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
]
REFUSED = ["uint4", "int2", "uint2", "float8_e8m0fnu", "float8_e4m3", "float4_e2m1fn", "float6_e2m3fn"]
REFUSED += ["longdouble", "clongdouble", "U3", "S3", "datetime64[s]", "timedelta64[s]", "object"]


def array_of(dtype: str) -> np.ndarray:
    return BITS.astype(getattr(ml_dtypes, dtype, dtype))


@pytest.mark.filterwarnings("ignore:.*XDMF has no complex numbers")
@pytest.mark.parametrize("suffix", [".zarr", ".h5"])
@pytest.mark.parametrize("dtype", [*NUMPY, *NARROW, *REFUSED])
def test_snapshots(tmp_path, dtype, suffix):
    u, path = array_of(dtype), tmp_path / f"u{suffix}"
    if dtype in REFUSED or (dtype in NARROW and suffix == ".h5"):
        otherwise = "choose a `path` that ends in .zarr" if dtype in NARROW else "leave it out"
        with pytest.raises(
            TypeError, match=rf"^`arrays` must have dtypes that a {suffix} file stores, .* for 'u'\. .* {otherwise}\.$"
        ):
            io.write(path, {"u": u}, DEC)
        assert not list(tmp_path.iterdir())
        return
    io.write(path, {"u": u}, DEC)
    found = io.read(path).arrays["u"]
    assert found.dtype == u.dtype.newbyteorder("=")
    np.testing.assert_array_equal(found, u)
    np.testing.assert_array_equal(io.read(path, DEC).arrays["u"], u)


@pytest.mark.parametrize(
    ("dtype", "library"),
    [
        *((dtype, np) for dtype in (*NUMPY, *NARROW, *REFUSED)),
        *((dtype, jnp) for dtype in ("?", "Q", "F", *NARROW, *REFUSED[:6])),
    ],
)
def test_checkpoints(tmp_path, dtype, library):
    u = library.asarray(array_of(dtype))
    with io.Checkpoints(tmp_path) as checkpoints:
        if dtype in REFUSED:
            with pytest.raises(TypeError, match=r"^`tree` must have dtypes that a checkpoint stores, .* for m/u\. "):
                checkpoints.save(1, {"m": {"u": u}})
            assert checkpoints.steps == []
            return
        checkpoints.save(1, {"m": {"u": u}})
        found = checkpoints.restore({"m": {"u": library.zeros_like(u)}})["m"]["u"]
        assert found.dtype == u.dtype.newbyteorder("=")
        np.testing.assert_array_equal(found, u)
