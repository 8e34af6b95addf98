"""Tests of `FFT3D` against NumPy, and of its transposes by dot products."""

import itertools

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from beartype import beartype
from beartype.roar import BeartypeCallHintParamViolation
from decompops.extend import Call
from decompops.testing import assert_adjoint, assert_transposed
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from helpers import MESHES, SHAPES, assert_close, finite_difference, make_mesh, put, random_field, spec_of, thinned


AXES = (-3, -2, -1)


def reference(u: np.ndarray, *, real: bool, norm: str = "backward") -> np.ndarray:
    return (np.fft.rfftn if real else np.fft.fftn)(u, axes=AXES, norm=norm)


def field_for(real: bool, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return random_field(shape, np.float64 if real else np.complex128, seed)


def spectrum_for(fft: dops.FFT3D, seed: int) -> np.ndarray:
    """Return a spectrum with random values in its modes and zeros in its padding."""
    layout = fft.out_layout
    return np.asarray(layout.shard(random_field(layout.true_shape, np.complex128, seed)))


# Only every second combination is tested. Each mesh still runs a real transform, even without the sweep.
CASES = [(sizes, shape) for i, sizes in enumerate(MESHES) for j, shape in enumerate(SHAPES) if (i + j) % 2 == 0]
FEW = {
    *(((8, 1), (13, 17, 19)), ((8, 1), (8, 16, 32)), ((1, 8), (13, 17, 19)), ((4, 2), (3, 5, 2))),
    *(((2, 4), (9, 10, 11)), ((8,), (13, 17, 19)), ((8,), (3, 5, 2)), ((1, 1), (9, 10, 11))),
    *(((3, 2), (13, 17, 19)), ((3, 2), (3, 5, 2))),
}


@pytest.mark.parametrize(
    ("sizes", "shape"), thinned([*CASES, ((1, 8), (13, 17, 19))], lambda sizes, shape: (sizes, shape) in FEW)
)
def test_forward_and_round_trip(sizes, shape):
    number = sum(sizes) + sum(shape)
    real, axis_contiguous = number % 2 == 0, number // 2 % 2 == 0  # These options vary from case to case.
    fft = dops.FFT3D(make_mesh(sizes), shape=shape, pad=True, real=real, axis_contiguous=axis_contiguous)
    u = field_for(real, shape)
    k = fft(u)
    assert_close(fft.out_layout.gather(k), reference(u, real=real))
    assert spec_of(k) == fft.out_spec
    padding = np.asarray(k).copy()
    x, y, z = fft.out_layout.true_shape
    padding[tuple(slice(n) for n in ((y, z, x) if axis_contiguous else (x, y, z)))] = 0
    assert not padding.any()
    back = fft.inverse(k)
    assert back.dtype == u.dtype
    assert back.shape == fft.decomposition.padded_shape("z")
    assert spec_of(back) == fft.inverse.out_spec == fft.in_spec
    assert_close(fft.decomposition.gather(back), u)


@pytest.mark.parametrize(
    ("sizes", "axis_contiguous", "shape", "kind"),
    [
        pytest.param((8, 1), True, (232, 152, 136), "auto", marks=pytest.mark.sweep),
        ((2, 4), False, (88, 56, 40), "explicit"),
        ((8, 1), True, (56, 40, 24), "explicit"),
        pytest.param((2, 4), False, (56, 40, 24), "auto", marks=pytest.mark.sweep),
    ],
)
def test_primes_times_eight_in_float32(sizes, axis_contiguous, shape, kind):
    mesh = make_mesh(sizes, kind)
    with jax.set_mesh(mesh):
        backend = "native" if axis_contiguous else "xla"
        fft = dops.FFT3D(mesh, shape=shape, axis_contiguous=axis_contiguous, backend=backend)
        u = random_field(shape, np.complex64)
        x = put(mesh, u, "x", "y", None)
        k = fft(x)
        spectrum = fft.decomposition.gather(k, "x", axis_contiguous=axis_contiguous)
        assert_close(spectrum, reference(u, real=False), rtol=1e-5)
        assert_close(fft.inverse(k), u, rtol=1e-5)
        g = jax.jit(jax.grad(lambda v: jnp.sum(jnp.abs(fft(v)) ** 2)))(x)
        assert_close(g, 2 * u.size * np.conj(u), rtol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "real", "norm"),
    thinned(
        [
            *(((2, 4), real, norm) for real in (False, True) for norm in ("backward", "ortho", "forward")),
            *(((8, 1), False, "ortho"), ((8, 1), True, "forward"), ((1, 1), False, "forward"), ((1, 1), True, "ortho")),
        ],
        lambda sizes, real, norm: real == (sizes == (8, 1) or (sizes == (2, 4) and norm != "backward")),
    ),
)
def test_norms(sizes, real, norm):
    shape = (6, 7, 9)
    fft = dops.FFT3D(make_mesh(sizes), shape=shape, pad=True, real=real, norm=norm)
    u = field_for(real, shape)
    k = fft(u)
    assert_close(fft.out_layout.gather(k), reference(u, real=real, norm=norm))
    inverse = np.fft.irfftn if real else np.fft.ifftn
    expected = inverse(fft.out_layout.gather(k), s=shape, axes=AXES, norm=norm)
    assert_close(fft.decomposition.gather(fft.inverse(k)), expected)


def test_one_device_is_exactly_jnp():
    fft, rfft = (dops.FFT3D(make_mesh((1, 1)), shape=(8, 9, 10), real=real) for real in (False, True))
    u = random_field((8, 9, 10))
    np.testing.assert_array_equal(fft(u), jnp.fft.fftn(u))
    np.testing.assert_array_equal(rfft(u), jnp.fft.rfftn(u))
    np.testing.assert_array_equal(rfft.inverse(rfft(u)), jnp.fft.irfftn(jnp.fft.rfftn(u), s=u.shape))


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "complex128", "int32", "uint8", "bool"]
)
def test_dtypes_are_those_of_jnp_fft(dtype):
    mesh = make_mesh((2, 4))
    u = jnp.asarray(random_field((4, 8, 8)) * 3, dtype) if dtype != "bool" else jnp.ones((4, 8, 8), bool)
    k = dops.FFT3D(mesh)(u)
    assert k.dtype == jnp.fft.fftn(u).dtype
    expected = np.fft.fftn(np.asarray(u, np.complex128))
    rtol = 1e-10 if k.dtype == np.complex128 else 1e-5
    assert_close(k, expected, rtol=rtol)
    if not jnp.issubdtype(u.dtype, jnp.complexfloating):
        rfft = dops.FFT3D(mesh, shape=u.shape, real=True)
        assert rfft(u).dtype == k.dtype
        assert_close(rfft.out_layout.gather(rfft(u)), expected[..., :5], rtol=rtol)


OPTIONS = list(itertools.product([False, True], [False, True], ["auto", "explicit"]))
# Each pair of values of two options stays in CI.
PAIRS = thinned(OPTIONS, lambda real, contiguous, kind: (real + contiguous + (kind == "auto")) % 2 == 0)


@pytest.mark.parametrize(("real", "axis_contiguous", "kind"), PAIRS)
def test_batch_axes(real, axis_contiguous, kind):
    mesh = make_mesh((2, 4), kind)
    shape = (4, 8, 6)
    with jax.set_mesh(mesh):
        backend = "native" if axis_contiguous else "xla"
        fft = dops.FFT3D(mesh, shape=shape, real=real, axis_contiguous=axis_contiguous, backend=backend)
        u = field_for(real, (3, 2, *shape))
        got = fft.out_layout.gather(fft(u))
        assert_close(got, reference(u, real=real))
        mapped = jax.vmap(jax.vmap(fft), in_axes=1, out_axes=1)(fft.decomposition.shard(u))
        assert_close(fft.out_layout.gather(mapped), reference(u, real=real))
        assert_close(fft.decomposition.gather(fft.inverse(mapped)), u)


@pytest.mark.parametrize(("real", "norm"), [(False, "backward"), (True, "ortho")])
@pytest.mark.parametrize(
    ("sizes", "shape"),
    thinned([((2, 4), (8, 16, 8)), ((2, 4), (5, 7, 6)), ((8,), (4, 3, 9))], lambda _, shape: shape != (8, 16, 8)),
)
def test_transposes_by_dot_products(sizes, shape, real, norm):
    axis_contiguous = (len(sizes) + sum(shape) + len(norm)) % 2 == 0  # These options vary from case to case.
    options = {"axis_contiguous": axis_contiguous, "backend": "native" if real else "xla"}
    fft = dops.FFT3D(make_mesh(sizes), shape=shape, pad=True, real=real, norm=norm, **options)
    x = fft.decomposition.shard(field_for(real, shape, seed=1))
    y = spectrum_for(fft, seed=2)
    for operator, a, b in ((fft, np.asarray(x), y), (fft.inverse, y, np.asarray(x))):
        assert_transposed(operator, operator.T, a, b)
        assert_adjoint(operator, operator.H, a, b)
        # A transpose is an operator with its own transpose: `.T.T` is the original operator.
        assert_transposed(operator.T, operator.T.T, b, a)
        assert_adjoint(operator.H, operator.H.H, b, a)
    assert fft.T.T is fft
    assert fft.inverse.inverse is fft
    assert fft.H.T.H.T is fft


def test_ortho_transform_is_unitary():
    fft = dops.FFT3D(make_mesh((2, 4)), norm="ortho")
    k = random_field((8, 8, 8), np.complex128)
    assert_close(fft.H(k), fft.inverse(k))
    assert_close(fft.H(k), np.fft.ifftn(k, norm="ortho"))


STORED = [((8, 1), False), ((1, 8), False), ((2, 4), False), ((4, 2), True), ((8,), True)]
COMPLEX = {(8, 1), (2, 4)}  # In CI, transforms are complex on these meshes, and real on all except the first.


@pytest.mark.parametrize(
    ("real", "sizes", "axis_contiguous"),
    thinned(
        [(real, *stored) for real in (False, True) for stored in STORED],
        lambda real, sizes, _: real == (sizes not in COMPLEX) or sizes == (2, 4),
    ),
)
@pytest.mark.promotes_ranks
def test_gradient_of_power(real, sizes, axis_contiguous):
    """By Parseval's theorem, the gradient of sum |F u|^2 is 2 N u. The gradient is sharded like u.

    For a half spectrum, the modes in this sum have weights.
    """
    kind = ("auto", "explicit")[(sizes[0] + real) % 2]  # Each mesh runs with both kinds of axes.
    mesh, shape = make_mesh(sizes, kind), (8, 16, 8)
    with jax.set_mesh(mesh):
        backend = "native" if kind == "explicit" else "xla"
        fft = dops.FFT3D(mesh, shape=shape, real=real, axis_contiguous=axis_contiguous, backend=backend)
        u = random_field(shape)
        weights = np.ones(1)
        if real:
            stored = fft.out_layout.shape
            weights = np.pad([1.0, 2.0, 2.0, 2.0, 1.0], (0, stored[1 if axis_contiguous else 2] - 5))
            weights = weights[:, None] if axis_contiguous else weights
        loss = lambda v: jnp.sum(weights * jnp.abs(fft(v)) ** 2)
        x = fft.decomposition.shard(u)
        op_by_op = [jax.grad(loss)] if sizes == (2, 4) else []
        for gradient in (*op_by_op, jax.jit(jax.grad(loss))):
            g = gradient(x)
            assert_close(g, 2 * u.size * u)
            assert g.sharding.is_equivalent_to(x.sharding, 3)


@pytest.mark.parametrize("real", [False, True])
def test_spectral_derivative_and_its_gradient(real):
    mesh, n = make_mesh((2, 4)), 16
    fft = dops.FFT3D(mesh, shape=(n, n, n), real=real, backend="native" if real else "xla")
    x, y, z = np.meshgrid(*[2 * np.pi * np.arange(n) / n] * 3, indexing="ij")
    u = np.sin(2 * x) * np.cos(3 * y) * np.sin(z)

    def derivative(v):
        kx, _, _ = fft.wavenumbers()
        return fft.inverse(1j * kx.astype(complex) * fft(v)).real

    assert_close(derivative(u), 2 * np.cos(2 * x) * np.cos(3 * y) * np.sin(z), rtol=1e-12)
    both = jax.jit(jax.value_and_grad(lambda v: jnp.sum(jnp.sin(derivative(v)))))
    d = random_field(u.shape, seed=3)
    slope = np.vdot(both(u)[1], d)
    assert slope == pytest.approx(finite_difference(lambda v: both(v)[0], u, d, 1e-5), rel=1e-7)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_coordinates_are_points_of_the_box_and_sharded(kind):
    mesh, shape = make_mesh((2, 4), kind), (4, 6, 5)
    fft = dops.FFT3D(mesh, shape=shape, pad=True, box=dops.Box((1.0, 3.0, 10.0)))
    lengths, names = (1.0, 3.0, 10.0), ("x", "y", None)
    for axis, x in enumerate(fft.coordinates(dtype=np.float32)):
        wanted = np.pad(lengths[axis] * np.arange(shape[axis]) / shape[axis], (0, (0, 2, 0)[axis]))
        np.testing.assert_array_equal(np.ravel(x), wanted.astype(np.float32))
        expected = P(*[names[axis] if i == axis else None for i in range(3)])
        assert x.sharding.is_equivalent_to(NamedSharding(mesh, expected), 3)
    blocks = jax.shard_map(lambda: jnp.sum(fft.coordinates()[1])[None], mesh=mesh, in_specs=(), out_specs=P("y"))
    np.testing.assert_allclose(jax.jit(blocks)(), [0.5, 2.5, 4.5, 0.0])  # Two points of 0.5 on each device along y.


@pytest.mark.parametrize("nz", [10, 11])
def test_modes_without_imaginary_part_where_a_library_reads_it(nz, monkeypatch):
    """On GPUs, an inverse real transform first sets the imaginary part of some modes to zero.

    These modes have no imaginary part in the spectrum of a real field. Some FFT libraries for GPUs read the imaginary
    parts of these modes, at least for some lengths. Other libraries ignore these parts.
    """
    irfftn = jnp.fft.irfftn

    def reading(k, s, axes):
        (length,), (axis,) = s, axes
        ends = k.imag.take(jnp.array([0, length // 2] if length % 2 == 0 else [0]), axis=axis)
        return irfftn(k, s=s, axes=axes) + ends.sum(axis, keepdims=True)

    monkeypatch.setattr(jnp.fft, "irfftn", reading)
    for platform, right, nx in (("cpu", False, 5), ("gpu", True, 3)):
        shape = (nx, 7, nz)  # Each platform has its own shape, so that JAX compiles again.
        k = random_field((2, nx, 7, nz // 2 + 1), np.complex128)
        monkeypatch.setattr(Call, "platform", platform)
        fft = dops.FFT3D(make_mesh((2, 2)), shape=shape, pad=True, real=True)
        got = fft.decomposition.gather(fft.inverse(fft.out_layout.shard(k)))
        assert np.allclose(got, np.fft.irfftn(k, s=shape, axes=AXES)) == right


def test_garbage_in_padding_does_not_leak():
    fft = dops.FFT3D(make_mesh((2, 4)), shape=(5, 6, 7), pad=True)
    dec = fft.decomposition
    u = random_field((5, 6, 7), np.complex128)
    dirty = np.full(dec.padded_shape("z"), np.nan, np.complex128)
    dirty[:5, :6, :7] = u
    k = np.array(fft(dirty))
    assert_close(k[:5, :6, :7], np.fft.fftn(u))
    assert np.isfinite(k).all()
    k[:, 6:], k[:, :, 7:] = np.nan, np.inf
    back = np.asarray(fft.inverse(k))
    assert_close(back[:5, :6, :7], u)
    assert np.isfinite(back).all()


def test_nothing_is_padded_where_sizes_divide():
    fft = dops.FFT3D(make_mesh((2, 4)))
    assert fft(np.ones((8, 8, 16))).shape == (8, 8, 16)
    assert dops.Decomposition(make_mesh((2, 4)), shape=(8, 8, 16)).padded_shape("x") == (8, 8, 16)


def test_ambient_mesh():
    mesh = make_mesh((2, 4), "explicit")
    with jax.set_mesh(mesh):
        fft = dops.FFT3D()
        assert fft.decomposition.mesh == mesh
        k = jax.jit(lambda u: dops.FFT3D()(u))(put(mesh, np.ones((8, 8, 8)), "x", "y", None))
        assert jax.typeof(k).sharding.spec == P(None, "x", "y")
        assert jax.typeof(k).sharding.mesh.axis_types == (AxisType.Explicit,) * 2
    with pytest.raises(ValueError, match=r"`mesh` must be given to `FFT3D`, or set by `jax\.set_mesh"):
        dops.FFT3D()(np.ones((8, 8, 8)))


@pytest.mark.parametrize(("name", "ndim"), [("FFT2D", 2), ("FFT3D", 3)])
def test_types_for_annotations(plain, name, ndim):
    kind, other = (getattr(plain, one) for one in (name, "FFT3D" if ndim == 2 else "FFT2D"))
    mesh, shape = make_mesh((2,)), (8, 4, 6)[:ndim]
    fft = kind(mesh, shape=shape, axes="x")
    unbound = kind()
    for one in (fft, unbound, fft.replace(norm="ortho"), kind(fft.decomposition, real=True), jax.tree.map(abs, fft)):
        assert isinstance(one, kind)
        assert isinstance(one, plain.FFT)
        assert not isinstance(one, other)
        assert str(one).split()[0] == name
    u = random_field(shape, np.complex128)
    assert_close(plain.FFT(fft.decomposition)(u), np.fft.fftn(u))
    assert_close(fft(u), np.fft.fftn(u))

    @beartype
    def transformed(fft: kind, u):
        return fft(u)

    assert_close(transformed(fft.replace(norm="ortho"), u), np.fft.fftn(u, norm="ortho"))
    with pytest.raises(BeartypeCallHintParamViolation):
        transformed(other(make_mesh((1,)), axes="x"), u)


BAD = [
    (lambda d, m: d.FFT3D(m, norm="none"), "`norm` must be one of .*; got 'none'"),
    (lambda d, m: d.FFT3D(m)(np.ones((8, 8))), r"`x` must have shape \(\*batch, nx, ny, nz\); got \(8, 8\)"),
    (
        lambda d, m: d.FFT3D(m)(np.ones((9, 8, 8))),
        "`shape` must be divisible by the mesh, unless `pad=True`; got .* 2 devices",
    ),
    (
        lambda d, m: d.FFT3D(m)(np.ones((8, 8, 9))),
        r"because 4 devices do not divide the 9 cells of the result along z: pass `shape=\(8, 8, 9\)`; got `x`",
    ),
    (
        lambda d, m: d.FFT3D(m, real=True)(np.ones((8, 8, 8))),
        r"5 cells of the result along z: pass `shape=\(8, 8, 8\)`; got",
    ),
    (lambda d, m: d.FFT3D(m, shape=(8, 8, 8))(np.ones((8, 8, 9))), r"got \(8, 8, 9\)"),
    (
        lambda d, m: d.FFT3D(m, shape=(8, 8, 8), real=True)(np.ones((8, 8, 8), complex)),
        "`x` must be real for a real transform; got complex128",
    ),
    (
        lambda d, m: d.FFT3D(m, real=True).inverse(np.ones((8, 8, 8))),
        "`shape` must be given .* half spectrum does not tell .*; got",
    ),
    (lambda d, m: d.FFT3D(m).wavenumbers(), "`shape` must be given"),
    (lambda d, m: d.FFT3D(m).out_layout, "`shape` must be given"),
    (lambda d, m: d.FFT3D(m, box=1.0), "`box` must be a `Box`.*; got 1.0"),
    (lambda d, m: d.FFT3D(m, box=d.Box((1, 2))), "`box` has 2 lengths, but the grid has 3 axes"),
    (lambda d, m: d.FFT3D(m, shape=(8, 8, 8)).wavenumbers(dtype=complex), "`dtype` must be real; got complex128"),
    (lambda d, m: d.FFT3D(m, real="no"), "`real` must be True or False; got 'no'"),
    (lambda d, m: d.FFT3D(m, axis_contiguous=1), "`axis_contiguous` must be True or False; got 1"),
    (lambda d, m: d.FFT3D(m).local(np.ones((4, 2, 8))), r"`.local\(block\)` must be called inside a `shard_map`"),
    (lambda d, m: d.FFT3D(m)(np.ones((0, 8, 8))), r"`x` must have at least one cell .*; got \(0, 8, 8\)"),
]


@pytest.mark.parametrize(("call", "text"), BAD)
def test_bad_input(plain, call, text):
    with pytest.raises((ValueError, TypeError), match=text):
        call(plain, make_mesh((2, 4)))
