"""Tests of `Decomposition`: its layouts against their definition, and copies from host to devices and back."""

import decompops as dops
import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, PartitionSpec as P

from helpers import make_mesh, put, random_field, spec_of


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_specs_are_the_three_pencils(kind):
    dec = dops.Decomposition(make_mesh((2, 4), kind), shape=(9, 10, 11), pad=True)
    assert dec.spec("z") == P("x", "y", None)
    assert dec.spec("y") == P("x", None, "y")
    assert dec.spec("x") == P(None, "x", "y")
    assert dec.sharding("y").spec == dec.spec("y")
    assert dec.padded_shape("z") == (10, 12, 11)
    assert dec.padded_shape("y") == (10, 10, 12)
    assert dec.padded_shape("x") == (9, 10, 12)
    assert dec.local_shape("z") == (5, 3, 11)
    assert dec.local_shape("x") == (9, 5, 3)


def test_default_axes_are_the_last_two():
    cube = CUBE
    assert dops.Decomposition(make_mesh((2, 2, 2)), shape=cube).axes == ("x", "y")
    assert dops.Decomposition(make_mesh((8,)), shape=cube).axes == ("x",)
    assert dops.Decomposition(make_mesh((2, 2, 2)), shape=cube, axes=("c", None)).axes == ("c",)
    assert dops.Decomposition(make_mesh((2, 2, 2)), shape=(*cube, 8)).axes == ("c", "x", "y")
    assert dops.Decomposition(make_mesh((2, 2, 2)), shape=(8, 8)).spec() == P("y", None)
    assert dops.Decomposition(make_mesh((2, 2, 2)), shape=(8,)).spec() == P(None)
    assert dops.Decomposition(make_mesh((2, 2, 2)), shape=(8, 8), axes=(("c", "x"),)).spec("x") == P(None, ("c", "x"))
    assert dops.Decomposition(make_mesh((2, 2, 2)), shape=cube, axes=(None, ["y"])).spec("x") == P(None, None, "y")
    assert dops.Decomposition(make_mesh((2, 2, 2)), shape=cube, axes=("y", "c")).spec("x") == P(None, "y", "c")


def test_options_change_on_a_copy():
    dec = dops.Decomposition(make_mesh((2, 4)), shape=(8, 8, 8))
    other = dops.Decomposition(dec, shape=(4, 4, 4))
    assert (other.mesh, other.axes, other.backend, other.shape) == (dec.mesh, dec.axes, dec.backend, (4, 4, 4))
    assert dec.shape == (8, 8, 8)
    assert dops.FFT3D(dec, axes=("x",)).decomposition.axes == ("x",)


@pytest.mark.parametrize("pencil", ["x", "y", "z"])
@pytest.mark.parametrize("shape", [(8, 8, 8), (9, 10, 11), (1, 2, 3)])
@pytest.mark.parametrize("sizes", [(2, 4), (8,), (2, 2, 2)])
def test_shard_and_gather(sizes, shape, pencil):
    dec = dops.Decomposition(make_mesh(sizes), shape=shape, pad=True)
    u = random_field((4, *shape))
    x = dec.shard(u, pencil)
    assert x.shape == (4, *dec.padded_shape(pencil))
    assert spec_of(x) == P("c" if len(sizes) == 3 else None, *dec.spec(pencil))
    np.testing.assert_array_equal(dec.gather(x), u)
    np.testing.assert_array_equal(dec.crop(x), u)
    assert not np.asarray(x)[:, shape[0] :].any()
    for shard in x.addressable_shards:
        assert shard.data.shape[-3:] == dec.local_shape(pencil)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_crop_in_jit_and_its_gradient(kind):
    mesh = make_mesh((2, 4), kind)
    with jax.set_mesh(mesh):
        dec = dops.Decomposition(mesh, shape=(9, 8, 11), pad=True)
        u = random_field((9, 8, 11))
        x = dec.shard(u)
        np.testing.assert_array_equal(jax.jit(dec.crop)(x), u)
        g = jax.jit(jax.grad(lambda v: (dec.crop(v) ** 2).sum()))(x)
        assert g.shape == x.shape
        np.testing.assert_array_equal(dec.gather(g), 2 * u)


def test_local_shape_covers_fewer_cells_than_devices():
    dec = dops.Decomposition(make_mesh((8, 1)), shape=(3, 4, 5), pad=True)
    assert dec.padded_shape("z") == (8, 4, 5)
    np.testing.assert_array_equal(dec.gather(dec.shard(np.ones((3, 4, 5)))), np.ones((3, 4, 5)))


def test_it_is_a_pytree_without_leaves_and_hashable():
    first, second = (dops.Decomposition(make_mesh((2, 4)), shape=(8, 8, 8)) for _ in range(2))
    assert jax.tree.leaves(first) == []
    assert first == second
    assert hash(first) == hash(second)
    assert first != dops.Decomposition(make_mesh((4, 2)), shape=(8, 8, 8))


def test_abstract_mesh_has_layouts():
    dec = dops.Decomposition(AbstractMesh((16, 16), ("x", "y")), shape=(4096,) * 3)
    assert dec.local_shape("z") == (256, 256, 4096)


CUBE = (8, 8, 8)
BAD = [
    (lambda d, m: d.Decomposition("mesh"), TypeError, "`mesh` must be a `jax.sharding.Mesh` .*; got 'mesh'"),
    (
        lambda d, m: d.FFT3D(m, shape=(8, 8)),
        ValueError,
        r"`shape` must be three positive integers .*; got \(8, 8\)",
    ),
    (lambda d, m: d.Decomposition(m, shape=(8, 8, 0)), ValueError, r"`shape` must be .*; got \(8, 8, 0\)"),
    (
        lambda d, m: d.Decomposition(m, shape=(8, 8, 2.5)),
        ValueError,
        r"`shape` must be .*; got \(8, 8, 2.5\)",
    ),
    (lambda d, m: d.Decomposition(m, shape=8), ValueError, "`shape` must be .*; got 8"),
    (
        lambda d, m: d.Decomposition(m, shape=CUBE, axes=("x", "z")),
        ValueError,
        r"`axes` must be different axes of the mesh, \('x', 'y'\); got",
    ),
    (lambda d, m: d.Decomposition(m, shape=CUBE, axes=("x", "x")), ValueError, "`axes` must be different axes"),
    (lambda d, m: d.Decomposition(m, shape=CUBE, axes=3), TypeError, "`axes` must be names of mesh axes.*; got 3"),
    (lambda d, m: d.Decomposition(m, shape=CUBE, axes=("x", [3])), TypeError, r"`axes` must be .*; got \('x', \[3\]\)"),
    (
        lambda d, m: d.Decomposition(m, shape=(8, 8), axes=("x", "y")),
        ValueError,
        r"`axes` must be at most 1 mesh axes .*To shard one grid axis .*, pass `axes=\(\('x', 'y'\),\)`",
    ),
    (lambda d, m: d.FFT2D(d.Decomposition(m, shape=CUBE)), ValueError, "`ndim` must be 3, as in the .*; got 2"),
    (
        lambda d, m: d.Decomposition(m, shape=CUBE).shard(np.ones((0, 8, 8))),
        ValueError,
        r"`array` must have at least .*; got \(0, 8",
    ),
    (lambda d, m: d.Decomposition(m, shape=CUBE, backend="a"), ValueError, "`backend` must be one of .*; got 'a'"),
    (lambda d, m: d.Decomposition(m, shape=CUBE, backend=3), TypeError, "`backend` must be a backend .*; got 3"),
    (lambda d, m: d.Decomposition(m, shape=CUBE).spec("w"), ValueError, '`pencil` must be "x" or "y" or "z", or'),
    (lambda d, m: d.Decomposition(m), ValueError, "`shape` must be given to a decomposition, .*; got None"),
    (lambda d, m: d.Decomposition(shape=CUBE), ValueError, "`mesh` must be given, or set by .*; got None and no amb"),
    (
        lambda d, m: d.Decomposition(m, shape=CUBE).shard(np.ones((8, 8))),
        ValueError,
        r"`array` must have shape .*; got \(8, 8\)",
    ),
    (
        lambda d, m: d.Decomposition(m, shape=(8, 8, 8)).shard(np.ones((8, 8, 9))),
        ValueError,
        r"`array` must have shape \(\*batch, 8, 8, 8\), with its axes in the order of the grid; got \(8, 8, 9\)",
    ),
    (
        lambda d, m: d.Decomposition(m, shape=(8, 8, 8)).gather(put(m, np.ones((8, 8, 16)), "x", "y")),
        ValueError,
        r"`field` must end with the shape of the grid, .*; got \(8, 8, 16\)",
    ),
    (
        lambda d, m: d.Decomposition(m, shape=CUBE).gather(np.ones((8, 8))),
        ValueError,
        r"`field` must have shape \(\*batch, nx, ny, nz\); got \(8, 8\)",
    ),
    (
        lambda d, m: d.Decomposition(m, shape=(8, 8, 8)).crop(np.ones((8, 8, 8)), axis_contiguous=True),
        ValueError,
        "`pencil` must be given for an axis-contiguous field; got None",
    ),
    (
        lambda d, m: d.Decomposition(m, shape=(9, 8, 8), pad=True).gather(
            np.ones((9, 8, 8)), "x", axis_contiguous=True
        ),
        ValueError,
        r"`field` must end with the shape of the grid, .*\(8, 8, 9\).*; got \(9, 8, 8\)",
    ),
    (
        lambda d, m: d.Decomposition(AbstractMesh((2, 4), ("x", "y")), shape=(8, 8, 8)).shard(np.ones((8, 8, 8))),
        ValueError,
        "`mesh` must be a `jax.sharding.Mesh`, which has devices",
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), BAD)
def test_bad_input(plain, call, error, text):
    with pytest.raises(error, match=text):
        call(plain, make_mesh((2, 4)))


def test_errors_say_how_to_get_what_is_missing(plain):
    """Operators take a grid or a transform. Users pass the one for the other, and the error names the missing step."""
    d, key = plain, jax.random.key(0)
    fft = d.FFT3D(make_mesh((2, 2)), shape=(8, 8, 8), real=True)
    of_grid = [
        lambda grid: d.Roll(grid, (1, 0, 0)),
        lambda grid: d.Stencil(grid, lambda block: block, 1),
        lambda grid: d.Multiply(grid, 1.0),
        d.particles.ParticleMesh,
        d.particles.NUFFT,
        d.particles.NUFFTType3,
        d.finite_volume.Diffusion,
        lambda grid: d.nn.UNet(grid, 1, 1, width=2, depth=1, key=key),
        lambda grid: d.nn.GroupNorm(grid, 1, 1),
        lambda grid: d.spectral.white_noise(grid, key),
    ]
    for build in of_grid:
        with pytest.raises(TypeError, match=r"`Decomposition`; got FFT3D .*\. Pass its attribute `decomposition`\."):
            build(fft)
    of_transform = [
        d.spectral.Gradient,
        lambda fft: d.pde.NavierStokes(fft, 0.1),
        lambda fft: d.nn.FNO3D(fft, 1, 1, width=2, modes=2, depth=1, key=key),
        lambda fft: d.spectral.power_spectrum(fft, np.zeros((8, 8, 8))),
    ]
    for build in of_transform:
        with pytest.raises(TypeError, match=r"got Decomposition.*\. Pass `FFT\(decomposition, real=True\)`\."):
            build(fft.decomposition)
    for missing in (fft.decomposition.mesh, d.FFT3D(fft.decomposition.mesh), None):
        with pytest.raises(TypeError, match=r"Pass `Decomposition\(mesh, shape=shape\)`\."):
            d.particles.ParticleMesh(missing)
