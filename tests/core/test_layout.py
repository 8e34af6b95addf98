"""Tests of `Layout` and of padding. Fields in real space have padding only with `pad=True`."""

import itertools
import re

import decompops as dops
import jax
import numpy as np
import pytest
from decompops._common.blocks import Blocks
from jax.sharding import AbstractMesh, PartitionSpec as P

from helpers import assert_close, make_mesh, random_field, spec_of


SHAPE = (9, 10, 7)  # On 2 x 4 devices, fields are padded to (10, 12, 7).


def transform(**options) -> dops.FFT3D:
    return dops.FFT3D(make_mesh((2, 4)), shape=SHAPE, pad=True, **options)


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("axis_contiguous", [False, True])
def test_a_spectrum_in_any_storage_order(axis_contiguous, real):
    fft = transform(real=real, axis_contiguous=axis_contiguous)
    layout, modes = fft.out_layout, 4 if real else 7
    assert layout.true_shape == (9, 10, modes)
    assert layout.shape == ((10, 4 if real else 8, 9) if axis_contiguous else (9, 10, 4 if real else 8))
    assert layout.local_shape == ((5, 1 if real else 2, 9) if axis_contiguous else (9, 5, 1 if real else 2))
    assert layout.spec == fft.out_spec
    assert layout.sharding == jax.NamedSharding(make_mesh((2, 4)), layout.spec)

    u = (
        random_field((2, *SHAPE), seed=1)
        if real
        else random_field((2, *SHAPE)) + 1j * random_field((2, *SHAPE), seed=1)
    )
    expected = (np.fft.rfftn if real else np.fft.fftn)(u, axes=(1, 2, 3))
    k = fft(u)
    assert k.shape == (2, *layout.shape)
    assert_close(layout.gather(k), expected)
    stored = np.moveaxis(expected, 1, -1) if axis_contiguous else expected
    assert_close(layout.crop(k), stored)
    assert_close(layout.gather(layout.crop(k)), expected)
    assert_close(layout.sum(k + 1), np.sum(expected + 1, axis=(1, 2, 3)))
    assert_close(layout.mean(k + 1), np.mean(expected + 1, axis=(1, 2, 3)))
    assert_close(layout.norm(k + 1), np.sqrt(np.sum(abs(expected + 1) ** 2, axis=(1, 2, 3))))
    assert_close(layout.vdot(k + 1, 1j * k), np.sum((expected + 1).conj() * 1j * expected, axis=(1, 2, 3)))

    again = layout.shard(expected)
    assert_close(again, np.asarray(k))
    assert spec_of(again) == P(None, *layout.spec)
    assert_close(fft.decomposition.gather(fft.inverse(again)), u)


def test_a_grid_of_two_axes():
    """A layout works with any number of grid axes. Mesh axes that do not shard the grid may shard batch axes."""
    blocks = Blocks((5, 6), (1, 4), (None, "y"), order=(1, 0))
    layout = dops.Layout(make_mesh((2, 4)), blocks)
    u = random_field((2, 5, 6))
    x = layout.shard(u)
    assert layout.shape == (8, 5)
    assert layout.true_shape == (5, 6)
    assert x.shape == (2, 8, 5)
    assert spec_of(x) == P("x", "y", None)
    np.testing.assert_array_equal(layout.gather(x), u)
    np.testing.assert_array_equal(layout.crop(x), u.transpose(0, 2, 1))
    assert_close(layout.mean(x + 1), np.mean(u + 1, axis=(1, 2)))
    assert layout == dops.Layout(make_mesh((2, 4)), blocks)


def test_every_operator_has_layouts():
    fft = transform(real=True)
    dec = fft.decomposition
    z, x = dec.layout("z"), dec.layout("x")
    assert (fft.in_layout, fft.inverse.in_layout, fft.T.out_layout) == (z, fft.out_layout, z)
    assert fft.H.in_layout == fft.inverse.in_layout == fft.inverse.T.out_layout == fft.out_layout
    assert dops.FFT3D(dec).out_layout == x
    assert dops.FFT3D(dec, axis_contiguous=True).out_layout == dec.layout("x", axis_contiguous=True)
    transpose = dops.Transpose(dec, "y", "x")
    assert (transpose.in_layout, transpose.inverse.in_layout) == (dec.layout("y"), x)
    halo = dops.HaloExchange(dec, (1, 2, 0))
    assert halo.in_layout == halo.crop.out_layout == halo.T.out_layout == z
    assert halo.out_layout.shape == (2 * (5 + 2), 4 * (3 + 4), 7)
    assert dops.Stencil(dec, lambda h: h[..., 1:-1, 1:-1, 1:-1]).T.in_layout == z
    assert dops.spectral.Poisson(fft).H.out_layout == z
    resample = dops.spectral.Resample(fft, (4, 8, 5))
    assert resample.out_layout == resample.inverse.in_layout == resample.resampled.layout()
    assert resample.out_layout.true_shape == (4, 8, 5)


def test_layouts_refuse_what_they_do_not_hold(plain):
    mesh = make_mesh((2, 4))
    fft = plain.FFT3D(mesh, shape=(8, 8, 8), real=True)
    k, halo = fft.out_layout, plain.HaloExchange(mesh, 1, shape=(8, 8, 8))
    nowhere = plain.FFT3D(AbstractMesh((2, 4), ("x", "y")), shape=(8, 8, 8)).in_layout
    inside = jax.shard_map(fft.in_layout.sum, mesh=mesh, in_specs=P("x", "y"), out_specs=P())
    for call, message in (
        (
            lambda: k.shard(np.ones((8, 8, 8))),
            r"`array` must have shape \(\*batch, 8, 8, 5\), with its axes in the order of the grid; ",
        ),
        (lambda: k.gather(np.ones((8, 8, 7))), r"`field` must have shape \(\*batch, 8, 8, 5\) or \(\*batch, 8, 8, 8\)"),
        (lambda: k.sum(np.ones((8, 8))), r"`field` must have shape .* in x-pencils 2x4; got \(8, 8\)"),
        (lambda: k.vdot(np.ones((8, 8, 8)), np.ones((8, 8, 7))), r"`v` must have shape .*; got \(8, 8, 7\)"),
        (lambda: k.vdot(np.ones((8, 8, 8)), np.ones((8, 8, 5))), "`u` and `v` must both have padding, or neither"),
        (lambda: halo.out_layout.gather(np.ones((12, 16, 10))), "`field` must have no halo layers; got .* with halo"),
        (
            lambda: halo.out_layout.shard(np.ones((8, 8, 8))),
            "`array` must have no halo layers; got .* use `halo.in_layout`",
        ),
        (lambda: nowhere.shard(np.ones((8, 8, 8))), "`mesh` must be a `jax.sharding.Mesh`, which has devices"),
        (lambda: inside(np.ones((8, 8, 8))), "`field` must be a global field; got .* `shard_map` over mesh axis 'x'"),
        (lambda: plain.Decomposition(mesh, shape=(8, 8, 6)).layout("x"), "`shape` must be divisible by the mesh"),
        (lambda: plain.FFT3D(mesh).in_layout, "`shape` must be given to the operator, .*; got None"),
        (lambda: plain.FFT3D(mesh).inverse.in_layout, "`shape` must be given to the operator, .*; got None"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


# For each pencil, `DIVIDED` gives the grid axes that the first and the second mesh axis shard.
DIVIDED = {"z": (0, 1), "y": (0, 2), "x": (1, 2)}


def meshes_that_divide(shape: tuple[int, ...], devices: int, pencils: str) -> list[tuple[int, ...]]:
    """Return the sizes of all meshes that divide the grid in the given pencils, by trying all pairs of sizes."""
    return [
        sizes
        for sizes in itertools.product(range(1, devices + 1), repeat=2)
        if sizes[0] * sizes[1] == devices
        and all(shape[axis] % n == 0 for pencil in pencils for axis, n in zip(DIVIDED[pencil], sizes))
    ]


@pytest.mark.parametrize("sizes", [(2, 4), (8, 1), (3, 4), (8,)])
def test_the_error_names_the_meshes_that_divide_the_grid(plain, sizes):
    mesh, devices = AbstractMesh(sizes, ("x", "y")[: len(sizes)]), int(np.prod(sizes))
    refused = 0
    for shape in itertools.product((6, 8, 30), (7, 12, 16), (8, 9, 24)):
        for pencils in ("z", "zy", "zx", "xy"):
            if pencils == "z":
                build = lambda shape=shape: plain.Decomposition(mesh, shape=shape)
            else:
                build = lambda shape=shape, pencils=pencils: plain.Transpose(mesh, *pencils, shape=shape)
            right = meshes_that_divide(shape, devices, "z" + pencils)
            # The decomposition is built first, so its z-pencils may be refused before the other pencils are checked.
            right_for_z = meshes_that_divide(shape, devices, "z")
            own = (*sizes, 1)[:2]
            if own in right:
                assert build() is not None
                continue
            refused += 1
            with pytest.raises(ValueError, match="`shape` must be divisible by the mesh, unless `pad=True`") as caught:
                build()
            text, expected = str(caught.value), right if own in right_for_z else right_for_z
            found = re.search(
                rf"Meshes \(rows, columns\) of {devices} devices that divide this shape: (.*)\. Or pass", text
            )
            named = re.findall(r"\((\d+), (\d+)\)", found.group(1)) if found else []
            assert [(int(rows), int(columns)) for rows, columns in named] == expected
            assert found or f"No mesh (rows, columns) of {devices} devices divides this shape" in text
            ((count, cells, axis, pencil),) = re.findall(
                r"(\d+) devices do not divide (\d+) cells along (.) in (.)-", text
            )
            assert int(cells) % int(count) > 0
            assert int(cells) == shape["xyz".index(axis)]
            assert int(count) == own[DIVIDED[pencil].index("xyz".index(axis))]
            assert f"pass `shape={shape}, pad=True`" in text
    assert refused > 50


def test_fields_are_padded_only_when_asked(plain):
    mesh, u = make_mesh((2, 4)), np.ones((9, 8, 8))
    dec = plain.Decomposition(mesh, shape=(8, 8, 8))
    some = plain.FFT3D(dec, real=True)
    for call in (
        lambda: plain.FFT3D(mesh, shape=u.shape),
        lambda: plain.HaloExchange(dec, 1, shape=u.shape),
        lambda: plain.Stencil(mesh, lambda h: h, shape=u.shape),
        lambda: plain.Decomposition(dec, shape=u.shape),
        lambda: plain.Decomposition(plain.Decomposition(mesh, shape=u.shape, pad=True), pad=False),
        lambda: plain.spectral.Resample(some, u.shape),
        lambda: some.replace(shape=u.shape),
        lambda: plain.Decomposition(mesh, shape=(8, 8, 9)).shard(np.ones((8, 8, 9)), "x"),
        # These operators learn the shape only when they are called.
        lambda: plain.FFT3D(mesh)(u),
        lambda: plain.HaloExchange(mesh)(u),
        lambda: plain.Stencil(mesh, lambda h: h)(u),
        lambda: plain.Transpose(mesh, "z", "y")(np.ones((8, 8, 9))),
        lambda: plain.nn.HaloConv3D(mesh, 1, 1, 3, key=jax.random.key(0))(u[None]),
    ):
        with pytest.raises(
            ValueError, match=r"`shape` must be divisible by the mesh, unless `pad=True`; got .* \d devices"
        ):
            call()
    with pytest.raises(TypeError, match="`pad` must be True or False; got 1"):
        plain.Decomposition(mesh, shape=(8, 8, 8), pad=1)


def test_whether_to_pad_is_inherited_and_told_apart():
    mesh = make_mesh((2, 4))
    padded = dops.Decomposition(mesh, shape=(8, 8, 8), pad=True)
    plain = dops.Decomposition(mesh, shape=(8, 8, 8))
    assert padded.pad
    assert not plain.pad
    assert padded != plain
    assert dops.FFT3D(padded, shape=(9, 8, 8)).decomposition == dops.Decomposition(mesh, shape=(9, 8, 8), pad=True)
    assert dops.Decomposition(padded, pad=False) == plain
    assert dops.FFT3D(plain, pad=True).replace(real=True).decomposition == padded


def test_spectra_are_padded_without_asking():
    """A spectrum that the mesh does not divide gets padding even without `pad=True`, if the mesh divides the field."""
    fft = dops.FFT3D(make_mesh((2, 4)), shape=(4, 8, 6), real=True)
    u = random_field((4, 8, 6))
    k = fft(fft.decomposition.shard(u))
    assert k.shape == fft.out_layout.shape == (4, 8, 4)
    assert fft.out_layout.true_shape == (4, 8, 4)
    whole = dops.FFT3D(fft.decomposition)
    assert whole.out_layout.shape == (4, 8, 8)
    k = whole(u)
    assert_close(fft.decomposition.gather(k, "x"), np.fft.fftn(u))
    assert complex(fft.decomposition.mean(k + 1, "x")) == pytest.approx(np.mean(np.fft.fftn(u) + 1))
    assert_close(whole.inverse(k), u)
