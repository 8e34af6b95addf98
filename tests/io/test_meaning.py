"""Tests that files and checkpoints say what the numbers of spectra mean, and that readers heed it."""

import itertools
import warnings

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import io, pde

from helpers import assert_close, make_mesh, random_field


SHAPE, NORMS, SUFFIXES = (8, 7, 6), ("backward", "ortho", "forward"), (".zarr", ".h5")


def make(sizes=(2, 2), shape=SHAPE, **options):
    return dops.FFT3D(make_mesh(sizes), shape=shape, pad=True, **({"real": True} | options))


def spectrum(fft):
    return fft(fft.decomposition.shard(random_field((2, *SHAPE))))


def expected(norm):
    return np.fft.rfftn(random_field((2, *SHAPE)), axes=(1, 2, 3), norm=norm)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_files_record_the_norm(tmp_path, suffix):
    """A spectrum is rescaled to the norm of the transform that reads it. Without a transform, it is read as it is."""
    for norm in NORMS:
        fft, path = make(norm=norm), tmp_path / f"{norm}{suffix}"
        io.write(path, {"u": spectrum(fft)}, fft, space="spectrum", attributes={"norm": "mine"})
        for other in NORMS:
            there = make((4, 1), norm=other)
            found = io.read(path, there)
            assert found.norm == other
            assert_close(there.out_layout.gather(found.arrays["u"]), expected(other), 1e-13)
        for grid in (None, fft.out_layout):
            found = io.read(path, grid)
            u = found.arrays["u"] if grid is None else grid.gather(found.arrays["u"])
            assert_close(u, expected(norm), 1e-13)
            assert (found.norm, found.attributes) == (norm, {"norm": "mine"})
    io.write(tmp_path / f"field{suffix}", {"u": spectrum(fft).real}, fft.out_layout)
    assert io.read(tmp_path / f"field{suffix}").norm is None


def test_files_of_other_coefficients_are_refused(tmp_path):
    walls = lambda basis: dops.Transform(make_mesh((2,)), shape=(8, 8), bases=(basis, dops.Fourier(half=True)))
    for name, before, now, message in (
        ("modes", make(), make(shape=(8, 7, 7)), r"`modes` of .*, \[8, 7, 6\]; got \[8, 7, 7\]"),
        ("bases", walls(dops.Cosine(2)), walls(dops.Sine(2)), r"`bases` of .*Cosine.*; got .*Sine"),
        (
            "norm",
            walls(dops.Cosine(2)),
            walls(dops.Cosine(2)).replace(norm="ortho"),
            "`norm` of .*, backward; got ortho",
        ),
    ):
        path = tmp_path / f"{name}.zarr"
        io.write(path, {"u": before(np.ones(before.decomposition.shape))}, before, space="spectrum")
        io.read(path, before)
        with pytest.raises(ValueError, match=rf"`grid` must have the {message}"):
            io.read(path, now)


def test_checkpoints_rescale_spectra(tmp_path):
    """The restored spectrum has the scale of its structure, whatever the mesh, the storage order and the type."""
    for i, norm in enumerate(NORMS):
        before = make(norm=norm)
        with io.Checkpoints(tmp_path / norm) as checkpoints:
            checkpoints.save(i, {"u": spectrum(before), "w": jnp.ones(3)}, {"u": before.out_structure})
    for norm, (other, options) in itertools.product(
        NORMS, zip(NORMS, ({}, {"sizes": (4, 1)}, {"sizes": (1, 1), "axis_contiguous": True}))
    ):
        now = make(norm=other, **options)
        like = {"u": spectrum(now), "w": jnp.zeros(3)}
        with io.Checkpoints(tmp_path / norm) as checkpoints:
            found = checkpoints.restore(like, {"u": now.out_structure})
        assert_close(now.out_layout.gather(found["u"]), expected(other), 1e-13)
        assert found["u"].sharding == like["u"].sharding
        np.testing.assert_array_equal(found["w"], 1)
        if norm == other and "sizes" not in options:
            np.testing.assert_array_equal(found["u"], like["u"])


def test_checkpoints_of_other_coefficients_are_refused(tmp_path):
    before, shifted = make(), make(shape=(8, 7, 7))
    assert before.out_layout.true_shape == shifted.out_layout.true_shape  # Only the meaning of the modes differs.
    with io.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, {"u": spectrum(before)}, {"u": before.out_structure})
        with pytest.raises(ValueError, match=r"u has the `modes` \[8, 7, 6\]; got \[8, 7, 7\]"):
            checkpoints.restore({"u": spectrum(before)}, {"u": shifted.out_structure})
        complex_field = dops.FFT3D(make_mesh((2, 2)), shape=(8, 7, 4), pad=True).in_structure
        with pytest.raises(ValueError, match="u has the `space` spectrum; got field"):
            checkpoints.restore({"u": spectrum(before)}, {"u": complex_field})


def test_a_checkpoint_without_structures(tmp_path):
    """Without `structures`, an error says that a spectrum is stored in another order. It is not called damaged."""
    fft, whole = make((2, 4), axis_contiguous=True), make((1, 1))
    structures, alone = {"u": fft.out_structure}, jnp.zeros((2, *whole.out_layout.shape), complex)
    with io.Checkpoints(tmp_path / "with") as checkpoints:
        checkpoints.save(0, {"u": spectrum(fft)}, structures)
        with pytest.raises(ValueError, match=r"`structures` must have the structure of u, .* order yzx; got none"):
            checkpoints.restore({"u": alone})
        found = checkpoints.restore({"u": spectrum(whole)}, {"u": whole.out_structure})
        checkpoints.save(1, {"u": spectrum(make((2, 3)))}, {"u": make((2, 3)).out_structure})
        with pytest.raises(ValueError, match="Pass the structures of states on padded grids as `structures`"):
            checkpoints.restore({"u": spectrum(make((4, 2)))})
    assert_close(found["u"], expected("backward"), 1e-13)
    with io.Checkpoints(tmp_path / "without") as checkpoints:
        checkpoints.save(0, {"u": spectrum(whole)})
        with pytest.raises(ValueError, match=r"`structures` must not have the structure of u, .* saved without"):
            checkpoints.restore({"u": spectrum(whole)}, {"u": whole.out_structure})
        np.testing.assert_array_equal(checkpoints.restore({"u": alone})["u"], spectrum(whole))


def test_another_box_is_said(tmp_path):
    structure = lambda box: pde.Diffusion(make().replace(box=dops.Box(box)), 0.1).in_structure
    u = {"u": pde.Diffusion(make(), 0.1).state(np.ones((2, *SHAPE)))}
    with io.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, u, {"u": structure(1.0)})
        with pytest.warns(UserWarning, match=r"the box was \[1.0, 1.0, 1.0\], and is \[1.0, 2.0, 1.0\]"):
            found = checkpoints.restore(u, {"u": structure((1.0, 2.0, 1.0))})
        np.testing.assert_array_equal(found["u"], u["u"])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            checkpoints.restore(u, {"u": structure((1.0, 1.0, 1.0))})


def test_a_checkpoint_has_a_description(tmp_path):
    description = {"equation": "Channel", "viscosity": 0.1, "box": [1.0, 2.0], "forcing": None}
    with io.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, {"w": 1.5}, description=description)
        checkpoints.save(1, {"w": 1.5})
        checkpoints.wait()
        assert (checkpoints.description(0), checkpoints.description(1)) == (description, None)
        assert checkpoints.contents(0) == checkpoints.contents(1) == {"w": {"type": "float", "value": 1.5}}
        (file,) = tmp_path.glob("0-*/facts/metadata")
        file.write_text(file.read_text().replace("Channel", "channel"))
        with pytest.raises(ValueError, match="the checksum of its description is wrong"):
            checkpoints.description(0)


def test_checkpoints_of_earlier_versions_are_read_as_they_are(tmp_path, monkeypatch):
    """Earlier versions did not store what the numbers of a spectrum mean."""
    before, now = make(), make(norm="forward")
    facts = io._leaves.Leaf.facts
    with monkeypatch.context() as patch, io.Checkpoints(tmp_path) as checkpoints:
        old = property(lambda leaf: {k: v for k, v in facts.fget(leaf).items() if k not in ("expansion", "box")})
        patch.setattr(io._leaves.Leaf, "facts", old)
        checkpoints.save(0, {"u": spectrum(before)}, {"u": before.out_structure})
        checkpoints.wait()
    with io.Checkpoints(tmp_path) as checkpoints:
        found = checkpoints.restore({"u": spectrum(now)}, {"u": now.out_structure})
    assert jax.numpy.array_equal(found["u"], spectrum(before))
