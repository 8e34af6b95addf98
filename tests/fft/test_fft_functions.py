"""Tests of all functions of `dops.fft` on sharded arrays, against NumPy, JAX and SciPy, and of collectives."""

import functools
import itertools

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.fft
from decompops._common.blocks import flat_names
from decompops.fft import _call
from decompops.tools.hlo import collectives
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from jax.sharding import NamedSharding, PartitionSpec as P

from helpers import assert_close, make_mesh, put, random_field, spec_of, thinned


PENCILS = make_mesh((2, 4), "explicit")
AUTO = make_mesh((2, 4))
GRID, FLAT = (4, 8, 12), (8, 16)
XY, COMPOUND = P("x", "y"), P(("x", "y"))
BOTH = ("x", "y")


def field(name: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    real = name.startswith(("rfft", "ihfft")) or name.rstrip("n")[-2:] in ("ct", "st")
    return random_field(shape, np.float64 if real else np.complex128, seed)


def expected(name: str, x: np.ndarray, *args, **options) -> np.ndarray:
    module = jnp.fft if hasattr(jnp.fft, name) else scipy.fft
    # In double precision, NumPy's functions return the same as JAX's, which would compile a program for each call.
    module = np.fft if module is jnp.fft and x.dtype in (np.float64, np.complex128) else module
    return np.asarray(getattr(module, name)(x, *args, **options))


def assert_same(got: jax.Array, wanted: np.ndarray) -> None:
    assert got.dtype == wanted.dtype
    assert_close(got, wanted)


# Each case has a function, the shape and the sharding of its input, options, the sharding of its result, and its number
# of all-to-alls.
CASES = [
    ("fft", GRID, XY, {}, P("x", "y", None), 0),
    ("fft", GRID, XY, {"axis": 0, "norm": "ortho"}, P(None, "y", "x"), 1),
    ("fft", (8, 3), COMPOUND, {"axis": 0}, P(BOTH, None), 2),  # Eight devices do not divide three cells.
    ("ifft", FLAT, P(None, BOTH), {"n": 12}, P(BOTH, None), 1),
    ("rfft", FLAT, P(None, "y"), {"n": 10, "norm": "forward"}, P("y", None), 1),
    ("rfft", (8, 128), P("x", "y"), {}, P(("x", "y"), None), 1),
    ("irfft", FLAT, P("x", "y"), {}, P(("x", "y"), None), 1),
    ("irfft", GRID, P(None, "x", "y"), {"n": 15, "axis": 1}, P("x", None, "y"), 1),
    ("hfft", GRID, P("y", "x"), {"n": 9, "norm": "ortho"}, P("y", "x", None), 0),
    ("ihfft", GRID, P("y", None, "x"), {"n": 6, "norm": "forward"}, None, 1),
    ("fft2", FLAT, XY, {}, P(("y", "x"), None), 2),  # Both axes of the input are sharded.
    ("fft2", FLAT, COMPOUND, {"norm": "ortho"}, P(None, BOTH), 1),
    ("ifft2", GRID, XY, {}, None, 1),
    ("rfft2", GRID, P("x"), {"axes": (2, 1)}, P("x", None, None), 0),
    ("rfft2", GRID, P("x", None, "y"), {"axes": (2, 0), "norm": "forward"}, None, 2),
    ("irfft2", GRID, P(None, "x", "y"), {"s": (6, 8), "axes": (0, 1)}, None, 1),
    ("fftn", GRID, XY, {}, P(None, "x", "y"), 2),
    ("fftn", (2, 4, 2, 8), P("x", "y"), {"axes": (1, 3)}, None, 1),
    ("fftn", (2, 4, 2, 8), P("x", "y"), {"s": (3, 4), "axes": (-1, 0)}, None, 1),
    ("ifftn", GRID, P(None, "x", "y"), {"norm": "forward"}, P("x", "y", None), 2),
    ("rfftn", GRID, P("x"), {}, P(None, "x", None), 1),
    ("rfftn", GRID, XY, {"s": (6, 8, 14), "axes": (0, 1, 2)}, None, 2),
    ("irfftn", GRID, P(None, "x"), {}, P("x", None, None), 1),
    ("irfftn", (8, 16, 13), XY, {"s": (8, 8, 25), "axes": (1, 0, 2)}, None, 2),
    ("dct", GRID, XY, {"type": 4, "axis": 1, "n": 6}, None, 1),
    ("idct", FLAT, P(None, "y"), {"norm": "ortho"}, P("y", None), 1),
    ("dst", FLAT, COMPOUND, {"axis": 0, "type": 3}, P(None, BOTH), 1),
    ("idst", FLAT, P("x"), {"type": 2}, P("x", None), 0),
    ("dctn", GRID, XY, {}, P(None, "x", "y"), 2),
    ("idctn", GRID, P(None, "x", "y"), {"type": 3, "norm": "ortho", "orthogonalize": False}, P("x", "y", None), 2),
    ("dstn", GRID, XY, {"s": (5, 8), "axes": (2, 1), "type": 2, "norm": "forward"}, None, 2),
    ("idstn", FLAT, P("x"), {"type": 4}, P(None, "x"), 1),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[3]}")
def test_functions_of_sharded_arrays(case):
    name, shape, spec, options, out_spec, count = case
    x = field(name, shape)
    function = lambda x: getattr(dops.fft, name)(x, **options)
    sharded = put(PENCILS, x, *spec)
    program = jax.jit(function).lower(sharded).compile()
    result = program(sharded)
    assert_same(result, expected(name, x, **options))
    assert [c.kind for c in collectives(program.as_text())] == ["all-to-all"] * count
    assert jax.eval_shape(function, sharded).sharding.spec == spec_of(result)
    assert out_spec is None or spec_of(result) == out_spec
    assert sorted(flat_names(spec_of(result))) == sorted(flat_names(spec))  # No mesh axis is lost or added.


def test_every_function_is_tested():
    others = {"fftfreq", "rfftfreq", "fftshift", "ifftshift"}
    assert {case[0] for case in CASES} == {name for name, value in vars(dops.fft).items() if callable(value)} - others


@pytest.mark.parametrize("name", ["dct", "idct", "dst", "idst"])
def test_types_and_norms_of_cosines_and_sines(name):
    x = random_field((5, 3))
    choices = [("backward", None), ("ortho", None), ("forward", True), (None, True), ("ortho", False)]
    for kind, (norm, orthogonalize) in zip((1, 2, 3, 4, 2, 3), itertools.cycle(choices)):
        options = {"norm": norm, "orthogonalize": orthogonalize, "axis": 0}
        got = getattr(dops.fft, name)(x, kind, **options)
        assert_same(got, expected(name, x, kind, **options))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int32, np.bool_, np.complex64])
def test_dtypes(dtype):
    x = random_field(FLAT, np.complex64 if dtype is np.complex64 else np.float64).astype(dtype)
    # `jnp.fft` refuses half precision. decompops computes in single precision instead, as SciPy does.
    wide = x.astype(np.float32) if dtype is np.float16 else x
    names = ["fft", "irfft", "dct"] if dtype is np.complex64 else ["fft", "rfft", "irfft", "dct"]
    for name in names:
        got = getattr(dops.fft, name)(put(AUTO, x, "x", None))
        assert_same(got, expected(name, wide))
        assert spec_of(got) == P("x", None)


def test_the_default_sharding_on_auto_axes():
    """Under `jit`, the sharding of an array on Auto axes is unknown.

    The functions then shard the leading axes of the array over the mesh axes.
    """
    x, k = random_field(GRID), put(AUTO, random_field(GRID, np.complex128), None, "x", "y")
    program = jax.jit(lambda x: dops.fft.irfftn(2 * dops.fft.rfftn(x))).lower(put(AUTO, x, "x", "y")).compile()
    # `irfftn` assumes the sharding of the spectrum that `rfftn` returns, so `irfftn` needs no additional exchange.
    forward = jax.jit(dops.fft.rfftn).lower(put(AUTO, x, "x", "y")).compile()
    assert [c.kind for c in collectives(program.as_text())] == 2 * [c.kind for c in collectives(forward.as_text())]
    assert_same(program(put(AUTO, x, "x", "y")), 2 * x)
    inverse = jax.jit(dops.fft.ifftn)(k)
    assert_same(inverse, np.fft.ifftn(k))
    assert spec_of(inverse) == P("x", "y", None)


def test_the_plan_is_that_of_the_operator(monkeypatch):
    calls = []
    monkeypatch.setattr(_call, "apply", lambda call, x: (calls.append(call), x)[1])
    for mesh in (AUTO, PENCILS):
        dops.fft.fftn(put(mesh, random_field((8, 8, 8), np.complex64), "x", "y"))
        assert calls[-1].plan.stages == dops.FFT3D(mesh, shape=(8, 8, 8)).plan().stages
        assert calls[-1].plan.scale == 1
        for _ in range(2):
            dops.fft.fftn(put(mesh, random_field((8, 8, 8), np.complex64), "x", "y"))
        assert calls[-1] is calls[-2]  # The cache returns the same call.


def test_a_route_is_the_cheapest_one():
    """`rfft2` of 8 rows and 258 columns makes the exchanges that send the fewest bytes.

    An exchange of the 130 complex modes of each row sends more bytes than an exchange of its 258 real numbers.
    """
    x = put(PENCILS, random_field((8, 258)), None, "x")
    program = jax.jit(dops.fft.rfft2).lower(x).compile()
    first, second = (c.bytes for c in collectives(program.as_text()))
    assert (first, second) == (8 * 258 // 2 * 8 // 2, 8 * 130 // 2 * 16 // 2)
    assert spec_of(program(x)) == P(None, "x")


@pytest.mark.parametrize("out", [P(None, None, BOTH), NamedSharding(PENCILS, P("x", "y"))])
def test_out_sharding(out):
    x = random_field((8, 8, 16))
    spec = out.spec if isinstance(out, NamedSharding) else out
    for name in ("fftn", "ifftn"):
        result = getattr(dops.fft, name)(put(PENCILS, x, "x", "y"), out_sharding=out)
        assert_same(result, expected(name, x))
        assert spec_of(result) == P(*spec, *[None] * (3 - len(spec)))


def test_mesh_axes_of_one_device_stay():
    """Without exchanges, a result keeps Explicit mesh axes of one device, so that its type matches other arrays."""
    x = random_field(FLAT)
    for mesh, spec in ((make_mesh((1, 1), "explicit"), P("x", "y")), (make_mesh((1, 4), "explicit"), P("x", "y"))):
        k = dops.fft.fft(put(mesh, x, "x", "y"))
        assert spec_of(k) == (spec if mesh.size == 1 else P("y", None))
        assert_same(k, np.fft.fft(x))


def test_arrays_on_no_mesh_and_on_other_devices():
    x = random_field(FLAT)
    assert_same(dops.fft.rfft2(x), np.fft.rfft2(x))
    on_three = jax.device_put(x, jax.devices()[3])
    assert dops.fft.rfft2(on_three).devices() == {jax.devices()[3]}
    assert spec_of(dops.fft.fftn(x, mesh=AUTO)) == P(("y", "x"), None)
    assert spec_of(dops.fft.fft(x, out_sharding=NamedSharding(AUTO, P("y")))) == P("y", None)
    with jax.set_mesh(PENCILS):
        assert spec_of(dops.fft.fft(x, axis=0, out_sharding=P(None, "y"))) == P(None, "y")


@pytest.mark.parametrize("name", ["rfftn", "irfftn"])
def test_derivatives(name):
    x, direction = (field(name, GRID, seed) for seed in (0, 1))
    ours, theirs = getattr(dops.fft, name), getattr(jnp.fft, name)
    energy = lambda function: lambda x: jnp.sum(jnp.abs(function(x)) ** 4)
    sharded = put(PENCILS, x, "x", "y")
    gradient = jax.jit(jax.grad(energy(ours)))(sharded)
    assert_close(gradient, jax.grad(energy(theirs))(x))
    assert spec_of(gradient) == P("x", "y", None)
    assert_close(jax.jvp(ours, (sharded,), (put(PENCILS, direction, "x", "y"),))[1], theirs(direction))


@pytest.mark.parametrize("mesh", [AUTO, None])
def test_derivatives_of_eager_calls(mesh):
    """Test an eager gradient against SciPy, for half a weighted sum of the squares of an orthogonal transform."""
    x, weights = random_field(FLAT), random_field(FLAT, seed=1)
    loss = lambda x: jnp.sum(weights * dops.fft.dstn(x, norm="ortho") ** 2) / 2
    gradient = jax.grad(loss)(put(mesh, x, None, "y") if mesh else x)
    assert_close(gradient, scipy.fft.idstn(weights * scipy.fft.dstn(x, norm="ortho"), norm="ortho"))
    assert mesh is None or spec_of(gradient) == P(None, "y")


def test_vmap_and_shard_map():
    x = put(PENCILS, random_field(GRID), "x", None, "y")
    mapped = jax.jit(jax.vmap(dops.fft.fft2)).lower(x).compile()
    assert_same(mapped(x), np.fft.fft2(x))
    assert [c.kind for c in collectives(mapped.as_text())] == ["all-to-all"]
    part = jax.shard_map(dops.fft.fft2, mesh=PENCILS, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
    assert_same(jax.jit(part)(x), np.fft.fft2(x))
    with pytest.raises(ValueError, match=r"inside a `shard_map` over the whole mesh.*call `jnp.fft.fft2`"):
        jax.shard_map(dops.fft.fft2, mesh=PENCILS, in_specs=P("x", None, "y"), out_specs=P("x"))(x)


@settings(
    max_examples=10, phases=[Phase.generate], deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
@given(data=st.data())
def test_random_shapes_axes_and_shardings(data):
    draw = data.draw
    ndim = draw(st.integers(2, 4))
    entries = draw(st.permutations([draw(st.sampled_from(["x", ("y", "x")])), "y", *[None] * ndim]))[:ndim]
    entries = [None if entry == "y" and ("y", "x") in entries else entry for entry in entries]
    sizes = [int(np.prod([PENCILS.shape[name] for name in flat_names([entry])])) for entry in entries]
    shape = tuple(size * draw(st.integers(1, 3)) for size in sizes)
    axes = tuple(draw(st.permutations(range(ndim)))[: draw(st.integers(1, ndim - 1))])
    name = draw(st.sampled_from(["fftn", "ifftn", "rfftn", "irfftn", "dctn", "idstn"]))
    lengths = draw(st.sampled_from([None, tuple(draw(st.integers(2, 9)) for _ in axes)]))
    if name == "irfftn" and lengths is None and shape[axes[-1]] == 1:
        return  # For one mode, the default length of an inverse real transform would be zero.
    x = field(name, shape)
    try:
        result = getattr(dops.fft, name)(put(PENCILS, x, *entries), s=lengths, axes=axes)
    except ValueError as error:
        if "`x` must be sharded so that" not in str(error):
            raise
        return
    assert_same(result, expected(name, x, s=lengths, axes=axes))


@pytest.mark.parametrize("mesh", [AUTO, PENCILS])
@pytest.mark.parametrize(("shape", "spec"), [((8, 3), COMPOUND), ((3, 12), P(None, "y")), ((6, 4), XY)])
def test_shifts_permute(mesh, shape, spec):
    x = random_field(shape)
    sharded = put(mesh, x, *spec)
    for name, axes in (("fftshift", None), ("ifftshift", 1)):
        function = functools.partial(getattr(dops.fft, name), axes=axes)
        program = jax.jit(function).lower(sharded).compile()
        shifted = program(sharded)
        assert np.array_equal(shifted, getattr(np.fft, name)(x, axes))
        assert shifted.sharding.is_equivalent_to(sharded.sharding, 2)
        assert {c.kind for c in collectives(program.as_text())} <= {"collective-permute"}


def test_frequencies():
    for name in ("fftfreq", "rfftfreq"):
        function, theirs = getattr(dops.fft, name), getattr(jnp.fft, name)
        assert_same(function(14, 0.5), theirs(14, 0.5))
        half = function(14, dtype=np.float32, mesh=AUTO, out_sharding=P("x" if name == "fftfreq" else None))
        assert_same(half, theirs(14, dtype=np.float32))
        assert spec_of(half) == P("x" if name == "fftfreq" else None)
    with jax.set_mesh(PENCILS):
        assert spec_of(dops.fft.fftfreq(8, out_sharding=P("y"))) == P("y")


X = put(PENCILS, random_field(GRID), "x", "y")
ERRORS = [
    (lambda fft: fft.fft(X, axis=3), ValueError, "`axis` must be an axis of the array, from -3 to 2; got 3"),
    (lambda fft: fft.fftn(X, axes=(0, -3)), ValueError, "`axes` must be different axes of the array; got (0, -3)"),
    (lambda fft: fft.fftshift(X, axes=()), ValueError, "`axes` must be axes of the array, each from -3 to 2; got ()"),
    (lambda fft: fft.fftn(X, s=(3,), axes=(0, 1)), ValueError, "`s` must have one length for each of `axes`, (0, 1)"),
    (lambda fft: fft.fft(X, n=0), ValueError, "`n` must be a positive integer; got 0"),
    (lambda fft: fft.dctn(X, s=(1.5, 2, 2)), ValueError, "`s` must be positive integers; got (1.5, 2, 2)"),
    (lambda fft: fft.irfft(X[..., :1]), ValueError, "`n` must be given if a half spectrum has only one mode"),
    (
        lambda fft: fft.rfft(X.astype(complex)),
        TypeError,
        "`x` must be real for `rfft`; got complex128. Pass `x.real`, or call `fft`",
    ),
    (lambda fft: fft.ihfft(X.astype(complex)), TypeError, "or call `ifft`, which takes complex numbers"),
    (lambda fft: fft.fft(X, norm="no"), ValueError, "`norm` must be one of ('backward', 'ortho', 'forward'); got 'no'"),
    (lambda fft: fft.dct(X, 5), ValueError, "`type` must be one of (1, 2, 3, 4); got 5"),
    (lambda fft: fft.fft([1, 2]), TypeError, "`x` must be a JAX or NumPy array; got list"),
    (lambda fft: fft.fft(np.zeros((4, 0))), ValueError, "`x` must have at least one axis, and cells along each"),
    (lambda fft: fft.fft(X, mesh="x"), TypeError, "`mesh` must be a `jax.sharding.Mesh`; got 'x'"),
    (lambda fft: fft.fft(X, out_sharding="x"), TypeError, "`out_sharding` must be a `PartitionSpec` or a"),
    (lambda fft: fft.fft(X, out_sharding=P("z")), ValueError, "`out_sharding` must have mesh axes from ('x', 'y')"),
    (lambda fft: fft.rfft(X, out_sharding=P(None, None, "y")), ValueError, "'y' do not divide 7 cells along axis 2"),
    (
        lambda fft: fft.fft(X, out_sharding=P("x")),
        ValueError,
        "must use the same mesh axes as the sharding of `x`, ['x', 'y']",
    ),
    (
        lambda fft: fft.fft(np.ones(4), out_sharding=P("x")),
        ValueError,
        "must be a `NamedSharding` if `x` is not on a mesh",
    ),
    (
        lambda fft: fft.fft(put(AUTO, np.ones(8), "x")),
        ValueError,
        "Replicate an array of one axis, or stack several",
    ),
    (lambda fft: fft.fft2(put(AUTO, np.ones((6, 4)), "x", "y")), ValueError, "Shard `x` over fewer mesh axes"),
    (
        lambda fft: fft.fftfreq(6, mesh=AUTO, out_sharding=P("y")),
        ValueError,
        "`out_sharding` must divide 6 frequencies",
    ),
    (
        lambda fft: fft.fftfreq(6, out_sharding=P("y")),
        ValueError,
        "must be a `NamedSharding` if there is no ambient",
    ),
]


@pytest.mark.parametrize(
    ("call", "error", "message"), ERRORS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_errors(plain, call, error, message):
    with pytest.raises(error) as raised:
        call(plain.fft)
    assert message in str(raised.value)


FORMS = [
    ("dctn", {"s": 8}),
    ("idstn", {"s": 8, "axes": 1}),
    ("fftn", {"s": np.array([8, 4]), "axes": np.array([1, 2])}),
    ("rfftn", {"s": [8], "axes": [0]}),
    ("fft", {"n": np.array(8), "axis": np.array(1)}),
    ("fft2", {}),
]


@pytest.mark.parametrize("mesh", [AUTO, None])
@pytest.mark.parametrize("length", [0, 4])
@pytest.mark.parametrize(("name", "options"), FORMS)
def test_forms_of_arguments_and_empty_batches_as_in_scipy(plain, name, options, mesh, length):
    x = random_field((4, length, 4) if name == "rfftn" else (length, 4, 4))
    got = getattr(plain.fft, name)(jnp.asarray(x), mesh=mesh, **options)
    expected = getattr(scipy.fft, name)(x, **options)
    assert got.dtype == expected.dtype
    assert_close(got, expected)


@pytest.mark.parametrize("mesh", [AUTO, PENCILS], ids=["auto", "explicit"])
@pytest.mark.parametrize(
    ("name", "options"),
    [("rfft", {}), ("fftn", {"axes": (1, 2)}), ("dct", {"n": 8}), ("irfft", {"out_sharding": P("y", "x", None)})],
)
def test_empty_batches_are_sharded_like_others(name, options, mesh):
    function = functools.partial(getattr(dops.fft, name), mesh=mesh, **options)
    full, empty = (field(name, (n, *GRID[1:])) for n in (8, 0))
    for arrays in ((full, empty), (put(mesh, full, "x", "y"), put(mesh, empty, "x", "y"))):
        wanted, got = map(function, arrays)
        assert got.sharding == wanted.sharding
        assert got.dtype == wanted.dtype
        assert np.asarray(got).shape == (0, *wanted.shape[1:])


TRANSFORMS = ["fft", "ifft", "rfft", "ihfft", "dct", "idst", "irfft", "hfft"]
EMPTY = list(itertools.product(TRANSFORMS, [(8, 0), (0,), (0, 0), (0, 3)], [None, AUTO, PENCILS]))


@pytest.mark.parametrize(("name", "shape", "place"), thinned(EMPTY, lambda *case: EMPTY.index(case) % 5 in (0, 2)))
def test_axes_without_elements_are_padded_with_zeros(name, shape, place):
    x = np.zeros(shape)
    wanted = getattr(scipy.fft, name)(x, n=8)
    for array in (x, x if place is None else put(place, x)):
        got = getattr(dops.fft, name)(array, n=8, mesh=place)
        assert got.shape == wanted.shape
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, 0)


def test_lengths_and_axes_must_be_whole_numbers(plain):
    x = jnp.ones((4, 8))
    plain.fft.fft(x, n=8, axis=1)  # The result for 8 must not be remembered for 8.0.
    for options in ({"n": 8.0}, {"axis": 1.0}, {"n": True}):
        with pytest.raises(ValueError, match=r"`(n|axis)` must be"):
            plain.fft.fft(x, **options)
    with pytest.raises(ValueError, match="at least one axis, and cells along each"):
        plain.fft.fft(jnp.ones((4, 0)))
