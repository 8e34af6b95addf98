"""Tests of the images of `plot.slice` against NumPy, and of the communication for them."""

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import plot
from decompops.plot import _planes
from decompops.tools.hlo import collectives

from helpers import make_mesh, random_field


SHAPE = (9, 10, 11)  # The mesh does not divide these lengths, so fields are padded.
BOX = dops.Box((1.0, 2.0, 4.0))


def sharded(shape=SHAPE, components=(), kind="auto"):
    dec = dops.Decomposition(make_mesh((2, 4), kind), shape=shape, box=BOX, pad=True)
    u = random_field((*components, *shape))
    return dec, dec.shard(u), u


def image(axes) -> np.ndarray:
    """Return the pixels of the only image on `axes`. The lowest row comes first."""
    (found,) = axes.images
    assert found.origin == "lower"
    return np.asarray(found.get_array())


@pytest.mark.parametrize("kind", ["auto", "explicit"])
@pytest.mark.parametrize(("axis", "index"), [("x", 8), ("y", -1), ("z", 3), (None, None)])
def test_plane_and_its_coordinates(axis, index, kind):
    dec, field, u = sharded(kind=kind)
    axes = plot.slice(dec, field, axis, index=index, label="velocity [m/s]")
    normal = "xyz".index(axis or "z")
    number = SHAPE[normal] // 2 if index is None else index % SHAPE[normal]
    plane = u.take(number, normal)
    np.testing.assert_allclose(image(axes), plane.T, rtol=1e-12)
    names = [name for name in "xyz" if name != "xyz"[normal]]
    assert [axes.get_xlabel(), axes.get_ylabel()] == names
    bounds = []
    for name in names:
        n, length = SHAPE["xyz".index(name)], BOX.lengths["xyz".index(name)]
        bounds += [-length / n / 2, length - length / n / 2]  # Cells are centred on the points.
    np.testing.assert_allclose(axes.images[0].get_extent(), bounds)
    assert axes.get_aspect() == 1
    limit = abs(plane).max()
    assert axes.images[0].get_clim() == (-limit, limit)
    assert axes.images[0].get_cmap().name == "RdBu_r"
    assert axes.images[0].colorbar.ax.get_ylabel() == "velocity [m/s]"
    assert axes.get_title() == f"{'xyz'[normal]} = {number * BOX.lengths[normal] / SHAPE[normal]:.3g}"


def test_components_and_several_planes_share_their_colours():
    dec, field, u = sharded(components=(2,))
    axes = plot.slice(dec, field, "y", at=(0, 1.0))
    assert [panel.get_title() for panel in axes] == ["y = 0", "y = 1"] * 2
    planes = [u[component, :, number] for component in range(2) for number in (0, 5)]
    for panel, plane in zip(axes, planes):
        np.testing.assert_allclose(image(panel), plane.T, rtol=1e-12)
        assert panel.images[0].get_clim() == (-np.abs(planes).max(), np.abs(planes).max())
        assert panel.figure is axes[0].figure
    assert len(axes[0].figure.axes) == 5  # There are four panels and one colour bar.


@pytest.mark.parametrize("place", [0, 0.1, 1.9, 3.4, 3.7, 3.9, 4, np.float32(4.0000005), -1e-7])
def test_the_nearest_plane_of_a_periodic_axis(place):
    """The end of a periodic axis is its start. Between walls, the planes at both ends differ."""
    dec, field, u = sharded()
    angles = 2 * np.pi * (np.arange(11) / 11 - place / 4)
    number = np.cos(angles).argmax()
    (axes,) = plot.slice(dec, field, "z", at=np.array([place]))
    np.testing.assert_allclose(image(axes), u[..., number].T, rtol=1e-12)


def test_the_nearest_plane_between_walls():
    bases = (dops.Chebyshev(), dops.Fourier(), dops.Fourier(half=True))
    transform = dops.Transform(make_mesh((2, 4)), shape=(9, 10, 11), bases=bases, box=BOX, pad=True)
    u = random_field(SHAPE)
    field = transform.decomposition.shard(u)
    points = bases[0].points(9)
    for place in (0, 0.3, 0.99, 1):
        (drawn,) = plot.slice(transform, field, "x", at=place).images
        np.testing.assert_allclose(drawn.get_array(), u[abs(points - place).argmin()].T, rtol=1e-12)


@pytest.mark.parametrize("kind", [tuple, list, np.array, jnp.array])
def test_several_planes_in_any_kind_of_sequence(kind):
    dec, field, u = sharded()
    for options in ({"index": kind([0, 3])}, {"at": kind([0, 12 / 11])}, {"index": kind([3])}):
        panels = plot.slice(dec, field, "z", **options)
        assert isinstance(panels, list)
        for panel, number in zip(panels, (0, 3) if len(panels) == 2 else (3,), strict=True):
            np.testing.assert_allclose(image(panel), u[..., number].T, rtol=1e-12)
    assert not isinstance(plot.slice(dec, field, "z", index=jnp.array(3)), list)
    assert not isinstance(plot.slice(dec, field, "z", at=np.array(1.0)), list)


@pytest.mark.parametrize("limits", [(0, 1), [0.0, 1.0], np.array([0, 1]), jnp.array([0.0, 1.0])], ids=repr)
def test_limits_in_any_kind_of_sequence(limits):
    dec, field, _ = sharded()
    assert plot.slice(dec, field, limits=limits).images[0].get_clim() == (0, 1)


def test_positive_fields_limits_and_logarithmic_colours():
    dec, field, u = sharded()
    (drawn,) = plot.slice(dec, abs(field), "x", index=0).images
    assert drawn.get_clim() == (abs(u[0]).min(), abs(u[0]).max())
    assert drawn.get_cmap().name == "viridis"
    (drawn,) = plot.slice(dec, field, "x", index=0, limits=(0.5, 2), log=True, cmap="magma").images
    np.testing.assert_allclose(drawn.get_array(), u[0].clip(0.5).T, rtol=1e-12)
    assert type(drawn.norm).__name__ == "LogNorm"
    assert drawn.get_clim() == (0.5, 2)
    assert drawn.get_cmap().name == "magma"
    assert drawn.colorbar.extend == "both"


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    ("least", "most", "extend"),
    [(1.0, 1e6, "neither"), (0.0, 1e6, "min"), (1.0, 1e12, "max"), (0.0, 1e12, "both"), (1 - 1e-6, 1e6, "neither")],
)
def test_values_beyond_limits_of_several_decades(log, least, most, extend):
    """The colour bar shows values beyond the limits, as far beyond as the scale of the colours tells apart."""
    dec = dops.Decomposition(make_mesh((2,)), shape=(4, 4))
    u = np.full((4, 4), 1e3)
    u[0, :2] = least if log or least > 0 else -1e4, most
    (drawn,) = plot.slice(dec, dec.shard(u), limits=(1.0, 1e6), log=log).images
    assert drawn.colorbar.extend == extend


def test_default_limits_of_logarithmic_colours_are_those_of_positive_values():
    dec = dops.Decomposition(make_mesh((2,)), shape=(4, 4))
    u = np.full((4, 4), 1e3)
    u[0, :2] = 0, 1e-3
    (drawn,) = plot.slice(dec, dec.shard(u), log=True).images
    assert (*drawn.get_clim(), drawn.colorbar.extend) == (1e-3, 1e3, "min")


@pytest.mark.parametrize("vertical", [None, "x", "y"])
def test_grid_of_two_axes(vertical):
    dec = dops.Decomposition(make_mesh((4,)), shape=(10, 7), box=dops.Box((2.0, 1.0)), pad=True)
    u = random_field((10, 7))
    axes = plot.slice(dec, dec.shard(u), vertical=vertical)
    np.testing.assert_array_equal(image(axes), u if vertical == "x" else u.T)
    assert axes.get_ylabel() == (vertical or "y")
    left, right, bottom, top = axes.images[0].get_extent()
    lengths = (1, 2) if vertical == "x" else (2, 1)
    np.testing.assert_allclose((right - left, top - bottom), lengths)


@pytest.mark.parametrize(
    ("basis", "expected"),
    [
        (dops.Chebyshev(), lambda p: [0, *(p[1:] + p[:-1]) / 2, 1]),
        (dops.Cosine(1), lambda p: [0, *(p[1:] + p[:-1]) / 2, 1]),
        (dops.Cosine(2), lambda p: np.linspace(0, 1, len(p) + 1)),
        (dops.Sine(1), lambda p: [p[0] / 2, *(p[1:] + p[:-1]) / 2, 1 - p[0] / 2]),
        (dops.Cells([0, 0.1, 0.3, 0.6, 0.7, 1]), lambda p: [0, 0.1, 0.3, 0.6, 0.7, 1]),
    ],
    ids=["chebyshev", "cosines from wall to wall", "cosines", "sines", "cells"],
)
def test_cells_between_walls_end_at_the_walls(basis, expected):
    n, along = 5, 8
    bases, box = (basis, dops.Fourier(half=True)), dops.Box((3.0, 1.0))
    transform = dops.Transform(make_mesh((2,)), shape=(n, along), bases=bases, box=box, pad=True)
    u = random_field((n, along))
    axes = plot.slice(transform, transform.decomposition.shard(u), vertical="x")
    edges = 3 * np.array(expected(basis.points(n)))
    if np.ptp(np.diff(edges)) < 1e-12:
        np.testing.assert_array_equal(image(axes), u)
        np.testing.assert_allclose(axes.images[0].get_extent()[2:], edges[[0, -1]], atol=1e-12)
        return
    (mesh,) = axes.collections
    np.testing.assert_array_equal(mesh.get_array(), u)
    drawn = mesh.get_coordinates()  # These are the corners of the cells.
    np.testing.assert_allclose(drawn[:, 0, 1], edges, atol=1e-12)
    np.testing.assert_allclose(drawn[0, :, 0], (np.arange(along + 1) - 0.5) / along, atol=1e-12)


def test_a_layout_with_another_storage_order():
    dec = dops.Decomposition(make_mesh((2, 4)), shape=SHAPE, pad=True)
    layout = dec.layout("x", axis_contiguous=True)
    u = random_field(SHAPE)
    for axis in "xyz":
        axes = plot.slice(layout, layout.shard(u), axis, index=2)
        np.testing.assert_allclose(image(axes), u.take(2, "xyz".index(axis)).T, rtol=1e-12)


def test_padding_and_other_planes_do_not_matter():
    dec, field, u = sharded()
    field = jnp.where(jnp.arange(field.shape[1])[:, None] == 4, field, jnp.nan)
    np.testing.assert_allclose(image(plot.slice(dec, field, "y", index=4)), u[:, 4].T, rtol=1e-12)
    for array in (field[:9, :10], np.asarray(field)[:9, :10]):  # These fields have no padding.
        np.testing.assert_allclose(image(plot.slice(dec, array, "y", index=4)), u[:, 4].T, rtol=1e-12)


@pytest.mark.parametrize("dtype", [jnp.int64, jnp.bool_, jnp.bfloat16, jnp.float32])
def test_dtypes(dtype):
    dec = dops.Decomposition(make_mesh((2, 4)), shape=(8, 8, 8))
    u = (4 * random_field((8, 8, 8))).astype(dtype)
    u = u + 2**40 if dtype == jnp.int64 else u
    axes = plot.slice(dec, dec.shard(u), "x", index=1)
    np.testing.assert_array_equal(image(axes), u[1].T.astype(float))


@pytest.mark.parametrize("scale", [1e-3, 1e300])
def test_numpy_fields_keep_64_bits_in_32_bit_mode(scale):
    """Small differences stay visible, and large numbers finite."""
    u = 1e8 + np.arange(4.0 * 8 * 6).reshape(4, 8, 6) * scale
    with jax.enable_x64(False):
        dec = dops.Decomposition(make_mesh((2, 4)), shape=u.shape, box=dops.Box((4.0, 8.0, 6.0)), pad=True)
        for expected, axes in (
            (u[:, :, 2], plot.slice(dec, u, axis="z", index=2)),
            (u.max(2), plot.projection(dec, u, axis="z", reduce="max")),
            (u.mean(2), plot.projection(dec, u, axis="z", reduce="mean")),
        ):
            np.testing.assert_allclose(image(axes), expected.T, rtol=1e-15)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_only_the_plane_is_gathered(axis, monkeypatch):
    n, gathered = 16, []
    dec = dops.Decomposition(make_mesh((2, 4)), shape=(n, n, n))
    field = dec.shard(random_field((n, n, n)))
    weights = np.eye(n)[3]
    program = _planes.reduce_axis.lower(field, weights, axis - 3, "max").compile()
    found = collectives(program.as_text())
    assert {collective.kind for collective in found} <= {"all-reduce"}
    assert sum(collective.bytes for collective in found) <= 2 * 8 * n**2  # The field has n times as many bytes.
    reduced = program(field, weights)
    assert reduced.shape == (n, n)
    np.testing.assert_allclose(reduced, np.asarray(field).take(3, axis), rtol=1e-12)

    original = dops.Layout.gather
    monkeypatch.setattr(dops.Layout, "gather", lambda layout, x: gathered.append(x.shape) or original(layout, x))
    plot.slice(dec, field, axis, index=3)
    assert gathered == [(n, n)]


def test_given_axes_are_drawn_on():
    dec, field, _ = sharded(components=(2,))
    left, middle, right = plot.panels(1, 3)
    found = plot.slice(dec, field, "z", index=0, ax=(left, right), title=("u", "v"))
    assert found == [left, right]
    assert [left.get_title(), middle.get_title(), right.get_title()] == ["u", "", "v"]
    assert plot.slice(dec, field[0], "z", ax=middle) is middle


def test_errors(plain):
    dec = plain.Decomposition(make_mesh((2, 4)), shape=(8, 8, 8))
    u = dec.shard(random_field((8, 8, 8)))
    flat = plain.Decomposition(make_mesh((2,)), shape=(8, 8))
    line = plain.Decomposition(make_mesh((2,)), shape=(8,), axes=())
    draw = plain.plot.slice
    two = plain.plot.panels(1, 2)
    for error, message, call in (
        (TypeError, "`grid` must be a transform such as `FFT3D`", lambda: draw(make_mesh((2, 4)), u)),
        (TypeError, "`field` must be real; got complex128", lambda: draw(dec, u.astype(complex))),
        (TypeError, "`field` must not be traced", lambda: jax.jit(lambda u: draw(dec, u))(u)),
        (ValueError, r"`field` must have shape .*got \(8, 8, 4\)", lambda: draw(dec, u[..., :4])),
        (ValueError, "`field` must be a scalar field, or have one leading axis", lambda: draw(dec, u[None, None])),
        (ValueError, "`field` must be a scalar field, or have one leading axis", lambda: draw(dec, u[None][:0])),
        (ValueError, "`field` must have a finite value", lambda: draw(dec, u * np.nan)),
        (ValueError, "`field` must have a positive value", lambda: draw(dec, -abs(u), log=True)),
        (ValueError, "`grid` must have two or three axes", lambda: draw(line, random_field((8,)))),
        (ValueError, "`axis`, `index` and `at` must be None", lambda: draw(flat, random_field((8, 8)), "x")),
        (ValueError, "`axis` must be", lambda: draw(dec, u, "w")),
        (ValueError, "`index` must be one or more integers below 8", lambda: draw(dec, u, index=8)),
        (ValueError, "`index` must be one or more integers below 8", lambda: draw(dec, u, index=0.5)),
        (ValueError, "`index` must be one or more integers below 8", lambda: draw(dec, u, index=())),
        (ValueError, "`index` must be one or more integers below 8", lambda: draw(dec, u, index=((0, 1), 2))),
        (ValueError, "`index` must be None if `at` is given", lambda: draw(dec, u, index=1, at=1.0)),
        (ValueError, "`at` must be from 0 to 6.28", lambda: draw(dec, u, at=7.0)),
        *(
            (ValueError, "`at` must be from 0 to 6.28", lambda at=at: draw(dec, u, at=at))
            for at in (np.nan, "a", (), ((0, 1),), ((0, 1), 2), (None, 1), -1e-3)
        ),
        (ValueError, "`vertical` must be an axis of the drawn plane", lambda: draw(dec, u, "x", vertical="x")),
        *(
            (ValueError, "`limits` must be two increasing numbers", lambda limits=limits: draw(dec, u, limits=limits))
            for limits in ((1, 0), 3, (None, 1), (0, 1, 2), np.zeros(2), "ab", (0, np.inf))
        ),
        (ValueError, "`limits` must be positive", lambda: draw(dec, u, limits=(0, 1), log=True)),
        (TypeError, "`log` must be True or False", lambda: draw(dec, u, log="x")),
        (ValueError, "`ax` must be 1 `Axes`", lambda: draw(dec, u, ax=two)),
        (TypeError, "`ax` must be matplotlib's `Axes`", lambda: draw(dec, u, ax=two[0].figure)),
        (ValueError, "`title` must be 2 strings", lambda: draw(dec, u, index=(0, 1), title="u")),
        (ValueError, "`title` must be one string; got 3", lambda: draw(dec, u, title=3)),
    ):
        with pytest.raises(error, match=message):
            call()


def test_lengths_must_be_known(plain):
    dec = plain.Decomposition(make_mesh((2, 4)), shape=(8, 8, 8))
    u = random_field((8, 8, 8))
    with pytest.raises(TypeError, match="`grid` must have a `box` of lengths that are known"):
        jax.jit(lambda length: plain.plot.slice(plain.Decomposition(dec, box=plain.Box(length)), u) and None)(1.0)
