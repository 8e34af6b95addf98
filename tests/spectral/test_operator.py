"""Tests of common properties of all spectral operators: meshes, transposes, blocks, derivatives, communication."""

import contextlib
import math

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import spectral
from decompops.testing import assert_adjoint, assert_transposed
from decompops.tools.hlo import collectives
from jax.sharding import PartitionSpec as P

from helpers import assert_close, finite_difference, make_mesh, random_field, spec_of


AXES = (-3, -2, -1)
LENGTHS = (1.0, 2.0, 3.5)
BOX = dops.Box(LENGTHS)


def waves(shape, lengths=LENGTHS, nyquist=True):
    """Return the wavenumbers of the full spectrum by their definition."""
    found = []
    for axis, (n, length) in enumerate(zip(shape, lengths)):
        modes = np.fft.fftfreq(n, 1 / n)
        modes = modes if nyquist else np.where(2 * abs(modes) == n, 0, modes)
        found.append(np.expand_dims(2 * np.pi * modes / length, [i for i in range(3) if i != axis]))
    return found


def convolved(u, factors):
    return np.fft.ifftn(factors * np.fft.fftn(u, axes=AXES), axes=AXES)


def smooth(k):
    return 1 / (1 + 0.01 * k**2)


def skewed(kx, ky, kz):
    """Return a complex symbol of a real operator: its real part is even, and its imaginary part is odd."""
    return jax.lax.complex(1 + 0.01 * kx * ky + kz**2 * 0.01, 0.1 * kx - 0.2 * ky + 0 * kz)


def operators(fft):
    return {
        "derivative": spectral.Derivative(fft, (1, 2, 0)),
        "gradient": spectral.Gradient(fft),
        "laplacian": spectral.Laplacian(fft),
        "poisson": spectral.Poisson(fft),
        "helmholtz": spectral.Helmholtz(fft, -1.0),
        "isotropic": spectral.IsotropicFilter(fft, smooth),
        "gaussian": spectral.GaussianFilter(fft, 0.2),
        "dealias": spectral.Dealias(fft),
        "symbol": spectral.SpectralOperator(fft, skewed, nyquist=False),
        "divergence": spectral.Divergence(fft),
        "curl": spectral.Curl(fft),
        "leray": spectral.LerayProjection(fft),
        "inverse divergence": spectral.InverseDivergence(fft),
        "inverse curl": spectral.InverseCurl(fft),
    }


VECTORS = ("divergence", "curl", "leray", "inverse curl")


def references(u, v):
    """Return NumPy's results for the operators of this file, computed with full spectra."""
    shape = u.shape[-3:]
    kx, ky, kz = waves(shape)
    square = kx**2 + ky**2 + kz**2
    odd = waves(shape, nyquist=False)
    ox, oy, oz = odd
    parts = [np.fft.fftn(v[..., i, :, :, :], axes=AXES) for i in range(3)]
    kv = sum(k * part for k, part in zip(odd, parts))
    kk = ox**2 + oy**2 + oz**2
    # Inverses divide by all wavenumbers. The projection divides by the wavenumbers of the divergence.
    whole, inverse = (np.divide(1, k, out=np.zeros_like(k), where=k != 0) for k in (square, kk))
    curl = np.stack((oy * parts[2] - oz * parts[1], oz * parts[0] - ox * parts[2], ox * parts[1] - oy * parts[0]), -4)
    back = lambda spectrum: np.fft.ifftn(spectrum, axes=AXES)
    kept = math.prod(
        (3 * abs(np.rint(k * length / (2 * np.pi))) < n) for k, length, n in zip(waves(shape), LENGTHS, shape)
    )
    symbol = 1 + 0.01 * ox * oy + 0.01 * oz**2 + 1j * (0.1 * ox - 0.2 * oy)
    return {
        "derivative": convolved(u, -1j * ox * ky**2),
        "gradient": np.stack([convolved(u, 1j * k) for k in odd], -4),
        "laplacian": convolved(u, -square),
        "poisson": convolved(u, -whole),
        "helmholtz": convolved(u, 1 / (square - 1)),
        "isotropic": convolved(u, smooth(np.sqrt(square))),
        "gaussian": convolved(u, np.exp(-square * 0.2**2 / 2)),
        "dealias": convolved(u, kept),
        "symbol": convolved(u, symbol),
        "divergence": back(1j * kv),
        "curl": back(1j * curl),
        "leray": back(np.stack([part - k * inverse * kv for k, part in zip(odd, parts)], -4)),
        "inverse divergence": np.stack([convolved(u, -1j * k * whole) for k in odd], -4),
        "inverse curl": back(1j * whole * curl),
    }


def inputs(fft, *batch, seed=0):
    """Return a scalar and a vector field as NumPy arrays."""
    dtype = np.float64 if fft.real else np.complex128
    shape = fft.decomposition.shape
    return random_field((*batch, *shape), dtype, seed), random_field((*batch, 3, *shape), dtype, seed + 1)


def apply_all(some, u, v):
    return {name: operator(v if name in VECTORS else u) for name, operator in some.items()}


@pytest.mark.parametrize(
    ("sizes", "kind", "real", "shape"),
    [
        ((2, 4), "auto", True, (9, 10, 11)),
        ((2, 4), "explicit", False, (8, 6, 10)),
        pytest.param((8, 1), "explicit", True, (8, 6, 10), marks=pytest.mark.sweep),
        ((8,), "auto", True, (5, 4, 6)),
        pytest.param((8, 1), "auto", False, (9, 10, 11), marks=pytest.mark.sweep),
        pytest.param((1, 1), "auto", False, (5, 4, 6), marks=pytest.mark.sweep),
        ((1, 1), "explicit", True, (4, 6, 5)),
    ],
)
def test_every_operator_equals_numpy_on_every_mesh(sizes, kind, real, shape):
    mesh = make_mesh(sizes, kind)
    with jax.set_mesh(mesh) if kind == "explicit" else contextlib.nullcontext():
        fft = dops.FFT3D(mesh, shape=shape, box=BOX, pad=True, real=real)
        dec = fft.decomposition
        u, v = inputs(fft)
        x, y = dec.shard(u), dec.shard(v)
        results = jax.jit(lambda u, v: apply_all(operators(fft), u, v))(x, y)
        expectations = references(u, v)
        assert expectations.keys() == operators(fft).keys()
        for name, got in results.items():
            expected = expectations[name]
            assert got.dtype == u.dtype
            sharding = jax.NamedSharding(mesh, P(*[None] * (got.ndim - 3), *dec.spec()))
            assert got.sharding.is_equivalent_to(sharding, got.ndim)
            assert_close(dec.gather(got), expected.real if real else expected, rtol=1e-12)
            rest = np.array(got)
            rest[..., : shape[0], : shape[1], : shape[2]] = 0
            assert not rest.any()


@pytest.mark.xla
@pytest.mark.parametrize("kind", [pytest.param("auto", marks=pytest.mark.sweep), "explicit"])
def test_batches_and_vmap_over_groups_of_devices(kind):
    """On a mesh ("c", "x", "y"), operators do not communicate along "c", and results stay sharded over "c"."""
    mesh, shape = make_mesh((2, 2, 2), kind), (4, 6, 5)
    with jax.set_mesh(mesh):
        fft = dops.FFT3D(mesh, shape=shape, box=BOX, real=True)
        some = {name: op for name, op in operators(fft).items() if name in ("gradient", "symbol", "leray")}
        u, v = inputs(fft, 2)
        x, y = map(fft.decomposition.shard, (u, v))
        expected = references(u, v)
        for function in (lambda u, v: apply_all(some, u, v), jax.vmap(lambda u, v: apply_all(some, u, v))):
            compiled = jax.jit(function).lower(x, y).compile()
            assert {(c.kind, c.group_size) for c in collectives(compiled.as_text())} == {("all-to-all", 2)}
            for name, got in compiled(x, y).items():
                assert spec_of(got)[0] == "c"
                assert_close(fft.decomposition.gather(got), expected[name].real)


class Mixing(spectral.AbstractSpectralOperator):
    """A user's operator that maps vectors to vectors, with a matrix that is neither symmetric nor real."""

    fft: dops.FFT
    components = ("vector", "vector")

    def multiply(self, spectrum):
        kx, ky, kz = self.wavenumbers(spectrum)
        x, y, z = (spectrum[..., i, :, :, :] for i in range(3))
        factor = jax.lax.complex(kx + 0 * ky, ky - kz + 0 * kx)
        return jnp.stack([x + factor * y, 2j * z, y - 3 * x], -4)


@pytest.mark.parametrize(("real", "kind"), [(True, "auto"), (False, "explicit")])
def test_transposes_by_dot_products(real, kind):
    mesh = make_mesh((2, 4), kind)
    with jax.set_mesh(mesh):
        fft = dops.FFT3D(mesh, shape=(5, 6, 4), box=BOX, pad=True, real=real)
        symbol = lambda kx, ky, kz: jax.lax.complex(1 + kx * ky + kz, kx - 2 * ky + kz**2)  # This is not symmetric.
        cases = {
            "symbol": spectral.SpectralOperator(fft, symbol),
            "vectors": spectral.Gradient(fft) if real else Mixing(fft),
        }
        fields = [np.asarray(fft.decomposition.shard(field)) for field in inputs(fft)]
        fields += [np.asarray(fft.decomposition.shard(field)) for field in inputs(fft, seed=2)]
        kinds = {"any": fields[::2], "scalar": fields[::2], "vector": fields[1::2]}
        pairs = {name: [kinds[kind][i] for i, kind in enumerate(op.components)] for name, op in cases.items()}
        run = lambda op, x, y: (op(x), op.T(y), op.H(y), op.H.T(x))
        results = jax.jit(lambda pairs: {name: run(op, *pairs[name]) for name, op in cases.items()})(pairs)
        for name, (x, y) in pairs.items():
            forward, transposed, adjoint, conjugated = results[name]
            assert_transposed(lambda _, y=forward: y, lambda _, x=transposed: x, x, y)
            assert_adjoint(lambda _, y=forward: y, lambda _, x=adjoint: x, x, y)
            assert_transposed(lambda _, y=conjugated: y, lambda _, x=adjoint: x, x, y)
        for operator in cases.values():
            assert operator.T.T is operator.H.H is operator.T.H.T.H is operator
            assert operator.T.in_spec == operator.out_spec == P("x", "y", None)


def test_blocks_inside_shard_map_equal_the_global_call():
    mesh = make_mesh((2, 4))
    fft = dops.FFT3D(mesh, shape=(5, 6, 7), box=BOX, pad=True, real=True)
    u, v = map(fft.decomposition.shard, inputs(fft))
    scalar, vector = P("x", "y", None), P(None, "x", "y", None)
    some = operators(fft)
    cases = {"gradient": some["gradient"], "symbol.H": some["symbol"].H, "leray": some["leray"]}
    out = {"gradient": vector, "leray": vector}

    def body(u, v):
        results = {name: op.local(v if name in VECTORS else u) for name, op in cases.items()}
        return results | {"mean": jax.lax.pmean(jnp.mean(results["symbol.H"]), ("x", "y"))}

    specs = {name: out.get(name, scalar) for name in cases} | {"mean": P()}
    mapped = jax.shard_map(body, mesh=mesh, in_specs=(scalar, vector), out_specs=specs, check_vma=True)
    everywhere = lambda u, v: {name: op(v if name in VECTORS else u) for name, op in cases.items()}
    loss = lambda f: lambda u, v: jnp.sum(jnp.sin((y := f(u, v))["gradient"] + y["leray"]))
    inside, outside = (
        jax.jit(lambda u, v, f=f: (f(u, v), jax.grad(loss(f), (0, 1))(u, v))) for f in (mapped, everywhere)
    )
    (blocks, gradients), (fields, expected) = inside(u, v), outside(u, v)
    assert float(blocks.pop("mean")) == pytest.approx(float(jnp.mean(fields["symbol.H"])), abs=1e-12)
    for name, field in fields.items():
        assert_close(blocks[name], field)
    for got, gradient in zip(gradients, expected):
        assert_close(got, gradient)


@pytest.mark.parametrize(
    ("sizes", "axis_contiguous", "modes"), [((2, 4), True, None), ((2, 4), False, (4, 3, 7)), ((8, 1), True, None)]
)
def test_wavenumbers_and_multiplicity_inside_shard_map_belong_to_the_block(sizes, axis_contiguous, modes):
    mesh = make_mesh(sizes)
    fft = dops.FFT3D(mesh, shape=(5, 6, 7), box=BOX, pad=True, real=True, axis_contiguous=axis_contiguous, modes=modes)
    everything = lambda: (*fft.wavenumbers(), fft.multiplicity())

    def body(block):
        spectrum = fft.local(block)
        return tuple(jnp.broadcast_to(k, spectrum.shape) + 0 * spectrum.real for k in everything())

    mapped = jax.shard_map(body, mesh=mesh, in_specs=fft.in_spec, out_specs=(fft.out_spec,) * 4, check_vma=True)
    u = fft.decomposition.shard(inputs(fft)[0])
    shape = fft.plan().target.shape
    for got, expected in zip(jax.jit(mapped)(u), everything()):
        np.testing.assert_array_equal(got, np.broadcast_to(expected, shape))


class Learned(eqx.Module):
    """A symbol with parameters."""

    weights: jax.Array
    scale: jax.Array

    def __call__(self, kx, ky, kz):
        a, b = (weight.astype(kx.dtype) for weight in self.weights)
        return jnp.exp(-self.scale.astype(kx.dtype) * (a * kx**2 + b * ky**2 + kz**2))


def test_gradients_by_the_parameters_of_a_symbol():
    mesh = make_mesh((2, 4), "explicit")
    with jax.set_mesh(mesh):
        fft = dops.FFT3D(mesh, shape=(5, 6, 4), box=BOX, pad=True, real=True)
        u = fft.decomposition.shard(inputs(fft)[0])
        operator = spectral.SpectralOperator(fft, Learned(jnp.array([0.1, 0.2]), jnp.array(0.3)))
        loss = eqx.filter_jit(lambda operator, u: jnp.sum(jnp.sin(operator(u) + operator.T(2 * u))))
        g = eqx.filter_jit(eqx.filter_grad(loss))(operator, u)
        assert len(jax.tree.leaves(g)) == 2  # Wavenumbers and lengths are not parameters.
        at = lambda w: loss(eqx.tree_at(lambda o: o.symbol, operator, Learned(jnp.array(w[:2]), jnp.array(w[2]))), u)
        for direction in np.eye(3):
            slope = finite_difference(at, np.array([0.1, 0.2, 0.3]), direction, 1e-6)
            got = np.dot(np.append(g.symbol.weights, g.symbol.scale), direction)
            assert got == pytest.approx(slope, rel=1e-6, abs=1e-8)


def test_gradients_by_the_lengths_of_the_box():
    """Gradients by box lengths equal finite differences, although operators divide by wavenumbers (one is zero)."""
    fft = dops.FFT3D(make_mesh((2, 4)), shape=(5, 6, 4), pad=True, real=True)
    u, v = map(fft.decomposition.shard, inputs(fft))
    weights = {"poisson": 1.0, "helmholtz": 1.0, "isotropic": 2.0, "leray": 1.0}

    def loss(lengths):
        some = {name: op for name, op in operators(fft.replace(box=dops.Box(lengths))).items() if name in weights}
        return sum(weights[name] * jnp.mean(result**2) for name, result in sorted(apply_all(some, u, v).items()))

    lengths, direction = np.array(LENGTHS), np.array([1.0, -2.0, 0.5])
    run = jax.jit(jax.value_and_grad(loss))
    _, gradient = run(lengths)
    assert np.isfinite(gradient).all()
    numeric = finite_difference(lambda at: run(at)[0], lengths, direction, 1e-6)
    assert np.dot(gradient, direction) == pytest.approx(numeric, rel=1e-6)


def test_hessians_by_the_lengths_of_the_box():
    """Hessians by box lengths equal finite differences. `jax.hessian` gives a batch axis to tangents only."""
    fft = dops.FFT3D(make_mesh((2, 4)), shape=(5, 6, 4), pad=True, real=True)
    u = fft.decomposition.shard(inputs(fft)[0])
    loss = lambda lengths: 1e3 * jnp.mean(spectral.IsotropicFilter(fft.replace(box=dops.Box(lengths)), smooth)(u) ** 2)
    lengths, direction = np.array(LENGTHS), np.array([1.0, -2.0, 0.5])
    run = jax.jit(lambda at: (jax.grad(loss)(at), jax.hessian(loss)(at)))
    slope, hessian = (lambda at: np.dot(run(at)[0], direction)), np.asarray(run(lengths)[1])
    numeric = finite_difference(slope, lengths, direction, 1e-6)
    assert direction @ hessian @ direction == pytest.approx(numeric, rel=1e-6)


def test_single_precision_stays_single():
    fft = dops.FFT3D(make_mesh((2, 4)), shape=(5, 6, 4), box=BOX, pad=True, real=True)
    single = lambda array: jax.ShapeDtypeStruct(array.shape, np.float32)
    u, v = map(single, inputs(fft))
    some = operators(fft) | {
        "helmholtz": spectral.Helmholtz(fft, jnp.float64(2.0)),
        "resample": spectral.Resample(fft, (4, 6, 8)),
    }
    resized = lambda lengths: operators(fft.replace(box=dops.Box(lengths)))
    for results in (
        jax.eval_shape(lambda u, v: apply_all(some, u, v), u, v),
        jax.eval_shape(lambda u, v, lengths: apply_all(resized(lengths), u, v), u, v, np.array(LENGTHS)),
        jax.eval_shape(lambda u: {name: some[name].T(u) for name in ("symbol", "divergence", "gaussian")}, u),
    ):
        assert {result.dtype for result in results.values()} == {np.dtype("float32")}


@pytest.mark.xla
@pytest.mark.parametrize(
    ("sizes", "count", "names"),
    [((2, 4), 2, ("symbol", "gradient", "divergence", "leray")), ((8, 1), 1, ("symbol", "leray"))],
)
def test_one_batched_exchange_per_stage(sizes, count, names):
    """An operator has only the all-to-alls of one forward and one inverse transform, even for three components."""
    fft = dops.FFT3D(make_mesh(sizes), shape=(16, 16, 16), box=BOX, real=True)
    sent = {}
    for name in names:
        lead = (3,) if name in VECTORS else ()
        sharding = jax.NamedSharding(fft.decomposition.mesh, P(*[None] * len(lead), *fft.in_spec))
        x = jax.ShapeDtypeStruct((*lead, 16, 16, 16), np.float32, sharding=sharding)
        found = collectives(jax.jit(operators(fft)[name]).lower(x).compile().as_text())
        assert [c.kind for c in found] == ["all-to-all"] * 2 * count, name
        sent[name] = sum(c.bytes for c in found)
    fields = {"symbol": 1 + 1, "gradient": 1 + 3, "divergence": 3 + 1, "leray": 3 + 3}
    assert sent == {name: sent["symbol"] * fields[name] / 2 for name in names}


@pytest.mark.xla
def test_a_field_is_transformed_once_for_many_parameters():
    fft = dops.FFT3D(make_mesh((8, 1)), shape=(16, 16, 16), box=BOX, real=True)
    x = jax.ShapeDtypeStruct((16, 16, 16), np.float32, sharding=fft.decomposition.sharding())
    apply = lambda width, x: spectral.GaussianFilter(fft, width)(x)
    sent = []
    for function, width in ((apply, 0.1), (jax.vmap(apply, (0, None)), np.array([0.1, 0.2, 0.3]))):
        found = collectives(jax.jit(function).lower(width, x).compile().as_text())
        assert [c.kind for c in found] == ["all-to-all"] * 2
        sent.append(sum(c.bytes for c in found))
    assert sent[1] == sent[0] * (1 + 3) / 2


BAD = [
    (
        lambda d, f: d.spectral.Laplacian(d.FFT3D(f.decomposition.mesh)),
        "`fft` must be built with a `shape`, and on a mesh; got FFT3D",
    ),
    (lambda d, f: d.spectral.Laplacian(f.inverse), "`fft` must be an `FFT` or a `Transform`; got FFT3D.inverse"),
    (lambda d, f: f.replace(box=1.0), r"`box` must be a `Box`, such as `Box\(1.0\)` .*; got 1.0"),
    (
        lambda d, f: f.replace(box=d.Box((1.0, 2.0))),
        r"`box` has 2 lengths, but the grid has 3 axes; got Box\(\(1.0, 2.0\)\)",
    ),
    (lambda d, f: d.spectral.Divergence(f)(np.ones((4, 4, 4))), r"`x` must be a vector field .*; got \(4, 4, 4\)"),
    (lambda d, f: d.spectral.Curl(f).T(np.ones((2, 4, 4, 4))), r"`x` must be a vector field .*; got \(2, 4, 4, 4\)"),
    (lambda d, f: d.spectral.Laplacian(f)(np.ones((4, 4, 5))), r"`x` must have shape .*; got \(4, 4, 5\)"),
    (
        lambda d, f: d.spectral.Laplacian(f)(np.ones((4, 4, 4), complex)),
        "`x` must be real for a real transform; got complex128",
    ),
    (lambda d, f: d.spectral.Derivative(f, (1, -1, 0)), r"`orders` must be integers .*; got \(1, -1, 0\)"),
    (lambda d, f: d.spectral.Derivative(f, (1, 0.5, 0)), r"`orders` must be integers .*; got \(1, 0.5, 0\)"),
    (lambda d, f: d.spectral.Derivative(f, 1), "`orders` must be integers .*; got 1"),
    (lambda d, f: d.spectral.SpectralOperator(f, 3), r"`symbol` must be a function of \(kx, ky, kz\); got 3"),
    (lambda d, f: d.spectral.SpectralOperator(f, np.sin, nyquist=1), "`nyquist` must be True or False; got 1"),
    (
        lambda d, f: d.spectral.SpectralOperator(f, lambda *k: jnp.ones(5))(np.ones((4, 4, 4))),
        r"`symbol` must return factors that broadcast against the spectrum .*; got \(5,\)",
    ),
    (
        lambda d, f: d.spectral.SpectralOperator(f, lambda *k: None)(np.ones((4, 4, 4))),
        "`symbol` must return an array of factors; got None",
    ),
    (lambda d, f: f.replace(lengths=1), "lengths"),
]


@pytest.mark.parametrize(("call", "text"), BAD)
def test_bad_input(plain, call, text):
    with pytest.raises((ValueError, TypeError), match=text):
        call(plain, plain.FFT3D(make_mesh((2, 4)), shape=(4, 4, 4), real=True))
