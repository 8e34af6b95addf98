"""Tests of attributes: all formats store, return and refuse the same attributes."""

import decompops as dops
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import io

from helpers import make_mesh


SUFFIXES = (".zarr", ".h5")
DEC = dops.Decomposition(make_mesh((2, 2)), shape=(4, 4, 4))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_numbers_of_all_kinds_come_back(tmp_path, suffix):
    given = {
        "integer": np.int64(3),
        "single": np.float32(0.1),
        "flag": np.bool_(True),
        "text": np.str_("größer"),
        "empty text": "",
        "scalar": jnp.float32(2.5),
        "array": np.array([1, 2, 3], np.uint8),
        "mixed": (1, 2.5),
        "flags": [True, False],
        "texts": ["a", "bc", ""],
        "empty": [],
        "large": -(2**63),
        "full": list(range(4096)),
    }
    expected = {
        **given,
        "single": float(np.float32(0.1)),
        "scalar": 2.5,
        "array": [1, 2, 3],
        "mixed": [1.0, 2.5],
    }
    io.write(tmp_path / f"u{suffix}", {"u": np.ones((4, 4, 4))}, DEC, attributes=given)
    found = io.read(tmp_path / f"u{suffix}").attributes
    assert found == expected
    plain = {"integer": int, "single": float, "flag": bool, "text": str, "scalar": float}
    assert {name: type(found[name]) for name in plain} == plain
    assert [type(value) for value in found["mixed"] + found["flags"]] == [float, float, bool, bool]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ([1, "a"], TypeError, "lists of either, which may not be mixed; got .* for 'a'"),
        ([True, 2], TypeError, "which may not be mixed"),
        (np.ones((2, 2)), TypeError, "`attributes` must map names to strings, numbers or lists of either"),
        (1j, TypeError, "`attributes` must map names to strings, numbers or lists of either"),
        (None, TypeError, "`attributes` must map names to strings, numbers or lists of either"),
        (np.ma.array([1.0, 2.0], mask=[0, 1]), ValueError, "`a` must hide no values, because its mask would be lost"),
        (2**70, ValueError, "`attributes` must have integers of at most 64 bits"),
        ([0.5] * 10_000, ValueError, "`attributes` must have at most 32768 bytes each; got 80000 for 'a'"),
        ([""] * 10_000, ValueError, "`attributes` must have at most 32768 bytes each; got 160000 for 'a'"),
        ("a\0b", ValueError, "`attributes` must have texts without zero characters"),
        ("\ud800", ValueError, "`attributes` must have texts without zero characters"),
    ],
)
def test_what_some_format_cannot_store_is_refused_by_all(tmp_path, plain, suffix, value, error, message):
    dec = plain.Decomposition(make_mesh((2, 2)), shape=(4, 4, 4))
    with pytest.raises(error, match=message):
        plain.io.write(tmp_path / f"u{suffix}", {"u": np.ones((4, 4, 4))}, dec, attributes={"a": value})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("names", [{3: "m"}, {"": "m"}])
def test_names_of_attributes_are_texts(tmp_path, plain, names):
    dec = plain.Decomposition(make_mesh((2, 2)), shape=(4, 4, 4))
    with pytest.raises(TypeError, match="`attributes` must have names that are strings"):
        plain.io.write(tmp_path / "u.zarr", {"u": np.ones((4, 4, 4))}, dec, attributes=names)
