"""Tests of the rules of the JAX primitive: every transformation of JAX (`jit`, `vmap`, ...) on every operator."""

import contextlib

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from helpers import assert_close, finite_difference, make_mesh, plan_of, put, random_field, thinned


SHAPE = (6, 5, 7)


def operators(mesh):
    dec = dops.Decomposition(mesh, shape=SHAPE, pad=True)
    fft, rfft = dops.FFT3D(dec), dops.FFT3D(dec, real=True, axis_contiguous=True, norm="ortho")
    halo = dops.HaloExchange(dec, ((1, 2), 1, 0), periodic=(True, False, True))
    return {
        "fft": fft,
        "inverse": fft.inverse,
        "rfft": rfft,
        "rfft.T": rfft.T,
        "transpose": dops.Transpose(dec, "z", "x"),
        "composition": dops.Transpose(dec, "x", "y") @ fft,
        "halo": halo,
        "halo.T": halo.T,
        "halo.crop": halo.crop,
        "halo.update": halo.update,
        "stencil": dops.Stencil(dec, lambda h: jnp.sin(h[..., 1:-1, :-1, :]) * h[..., :-2, 1:, :], ((1, 1), (0, 1), 0)),
    }


NAMES = list(operators(make_mesh((1, 1))))


def alternating(*few):
    """Return a parametrization over the operators, each on one kind of mesh: a second kind would test little more.

    Without the sweep, it has only a few of them, because all linear operators share the rules of one primitive. Each
    operator is in several of these tests.
    """
    cases = [(("auto", "explicit")[i % 2], name) for i, name in enumerate(NAMES)]
    return pytest.mark.parametrize(("mesh", "name"), thinned(cases, lambda _, name: name in few), indirect=["mesh"])


def input_for(operator, seed=0):
    """Return a random input of the right shape and kind, sharded by the operator's spec, with zeros in the padding."""
    if isinstance(operator, dops.Stencil):
        source, complex_input = operator.exchange.plan().source, False
    else:
        first = operator.operators[-1] if isinstance(operator, dops.Compose) else operator
        plan = plan_of(first)
        source = plan.source
        complex_input = any(getattr(stage, "kind", "") in ("c2c", "c2r") for stage in plan.stages[:1])
    x = random_field(source.shape, np.complex128 if complex_input else np.float64, seed)
    return put(operator.decomposition.mesh, x, *source.spec)


def like(x, array):
    """Return an array, sharded as `x` is. JAX would compile a program for each operation on a sharded array."""
    return jax.device_put(array, x.sharding)


def stacked(x):
    """Return three fields, and the same as a stack whose first axis is not sharded."""
    host = np.asarray(x)
    fields = [like(x, factor * host) for factor in (1, 2, -1)]
    return fields, put(x.sharding.mesh, np.stack(fields), None, *x.sharding.spec)


def real_loss(operator):
    """Return a smooth real function of the operator's result, with third derivatives that are not zero."""

    def loss(x):
        y = 0.1 * operator(x)
        return jnp.sum(jnp.sin(y.real) * 0.3 + jnp.cos(y.real * y.imag))

    return loss


# No rule depends on the backend, and programs with compiled kernels compile in half the time.
BACKENDS = {"auto": "native", "explicit": "xla"}


@pytest.fixture(params=["auto", "explicit"])
def mesh(request, monkeypatch):
    monkeypatch.setenv("DECOMPOPS_BACKEND", BACKENDS[request.param])
    mesh = make_mesh((2, 4), request.param)
    with jax.set_mesh(mesh):
        yield mesh


@alternating("inverse", "rfft", "rfft.T", "composition", "halo", "stencil")
def test_first_and_second_derivatives(mesh, name):
    operator = operators(mesh)[name]
    x, v = input_for(operator), input_for(operator, seed=1)
    loss = real_loss(operator)

    # If g is JAX's gradient of a real loss, its derivative in the direction v is Re(sum(g * v)).
    pair = lambda g, v: (g * v).real.sum()
    along = lambda x: pair(jax.grad(loss)(x), v)
    forward_over_reverse = lambda x: jax.jvp(jax.grad(loss), (x,), (v,))[1]
    reverse_over_forward = jax.grad(lambda x: jax.jvp(loss, (x,), (v,))[1])
    reverse_over_reverse = jax.grad(along)

    @jax.jit  # One program computes everything, because compiling takes most of the time.
    def derivatives(x):
        products = [product(x) for product in (forward_over_reverse, reverse_over_forward, reverse_over_reverse)]
        return (loss(x), along(x)), jax.jvp(loss, (x,), (v,)), jax.grad(loss)(x), products

    (plain, _), (value, tangent), g, products = derivatives(x)
    # These are central differences of the loss and of its derivative along `v`.
    host, direction = np.asarray(x), np.asarray(v)
    slope, curvature = (
        finite_difference(lambda x, i=i: derivatives(like(v, x))[0][i], host, direction, 1e-5) for i in (0, 1)
    )
    assert g.sharding.is_equivalent_to(x.sharding, 3)
    along_v = float(pair(np.asarray(g), direction))
    assert along_v == pytest.approx(slope, rel=1e-6, abs=1e-6)
    assert float(tangent) == pytest.approx(along_v, rel=1e-10)
    assert float(value) == pytest.approx(float(plain), rel=1e-12)
    for product in map(np.asarray, products):
        assert float(pair(product, direction)) == pytest.approx(curvature, rel=1e-5, abs=1e-5)
        assert_close(product, products[0])


@pytest.mark.parametrize(
    ("mesh", "name"),
    thinned(
        [(kind, name) for name in NAMES if name != "stencil" for kind in ("auto", "explicit")],
        lambda kind, name: (
            kind == ("auto", "explicit")[NAMES.index(name) % 2]
            and name in ("fft", "inverse", "rfft.T", "composition", "halo", "halo.crop")
        ),
    ),
    indirect=["mesh"],
)
def test_vjp_and_linear_transpose_are_the_transposed_operator(mesh, name):
    operator = operators(mesh)[name]
    x = input_for(operator)
    y = jax.jit(operator)(x)
    cotangent = y * 0.5
    expected = operator.T(cotangent)
    (by_vjp,) = jax.vjp(operator, x)[1](cotangent)
    (by_transpose,) = jax.linear_transpose(operator, x)(cotangent)
    assert_close(by_vjp, expected)
    assert_close(by_transpose, expected)
    _, linear = jax.linearize(operator, x)
    assert_close(linear(x), y)


@pytest.mark.parametrize("ambient", [True, False])
@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_a_cotangent_from_elsewhere_is_placed_like_an_input(kind, ambient):
    mesh = make_mesh((2, 4), kind)
    with jax.set_mesh(mesh) if ambient else contextlib.nullcontext():
        fft = dops.FFT3D(mesh)
        u = put(mesh, random_field((8, 8, 8), np.complex128), "x", "y", None)
        ct = random_field((8, 8, 8), np.complex128, seed=1)
        expected = np.fft.fftn(ct)  # The transform is its own transpose.
        pull = lambda u, ct: jax.vjp(fft, u)[1](ct)[0]
        for result in (pull(u, ct), jax.jit(pull)(u, ct), pull(u, jax.device_put(ct, jax.devices()[0]))):
            assert_close(result, expected)
            assert result.sharding.is_equivalent_to(u.sharding, 3)
        assert_close(pull(np.asarray(u), ct), expected)  # A NumPy array has no sharding.


@pytest.mark.parametrize(
    ("name", "ambient"),
    thinned(
        [(name, bool(i % 2)) for i, name in enumerate(NAMES)],
        lambda name, _: name in ("inverse", "rfft.T", "composition", "halo.crop", "halo.T", "stencil"),
    ),
)
@pytest.mark.promotes_ranks
def test_a_tangent_from_elsewhere_is_placed_like_an_input(name, ambient, monkeypatch):
    """Test tangents that are not sharded, as random probes and unit vectors are, on Explicit axes.

    On Auto axes, types have no sharding, so an unsharded tangent has the same type as a sharded one.
    """
    monkeypatch.setenv("DECOMPOPS_BACKEND", BACKENDS["explicit" if ambient else "auto"])
    mesh = make_mesh((2, 4), "explicit")
    with jax.set_mesh(mesh) if ambient else contextlib.nullcontext():
        operator = operators(mesh)[name]
        x, e = input_for(operator), np.asarray(input_for(operator, seed=1))
        along = lambda x, e: jax.jvp(operator, (x,), (e,))[1]

        def derivatives(x, e):
            mapped = jax.vmap(along, in_axes=(None, 0))(x, np.array([1.0, 2.0])[:, None, None, None] * e)
            return along(x, e), jax.linearize(operator, x)[1](e), mapped

        behind, ahead = (np.asarray(operator(like(x, np.asarray(x) + step * e))) for step in (-1e-4, 1e-4))
        expected = (ahead - behind) / 2e-4
        for *results, mapped in (derivatives(x, e), jax.jit(derivatives)(x, e)):
            for result in results:
                assert_close(result, expected, 1e-7)
            assert_close(mapped, np.stack([expected, 2 * expected]), 1e-7)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_dense_derivatives_and_random_probes(kind, monkeypatch):
    monkeypatch.setenv("DECOMPOPS_BACKEND", BACKENDS[kind])
    shape = (2, 4, 2)
    fft = dops.FFT3D(make_mesh((2, 2), kind), shape=shape)
    u = fft.decomposition.shard(random_field(shape))
    energy = lambda u: jnp.sum(jnp.abs(fft(u)) ** 2) / 2  # Its matrix of second derivatives is 16 times one.

    @jax.jit
    def derivatives(u, key):
        probe = jax.random.rademacher(key, shape, u.dtype)
        trace = jnp.sum(probe * jax.jvp(jax.grad(energy), (u,), (probe,))[1])
        return jax.jacfwd(fft)(u), jax.hessian(energy)(u), trace

    columns, hessian, trace = derivatives(u, jax.random.key(0))
    for result in (columns, jax.jacfwd(fft)(u)):
        assert_close(
            np.asarray(result).reshape(*shape, -1), np.fft.fftn(np.eye(16).reshape(*shape, 16), axes=(0, 1, 2))
        )
    assert_close(np.asarray(hessian).reshape(16, 16), 16 * np.eye(16))
    assert float(trace) == pytest.approx(16**2)
    on_one_device = jax.device_put(np.ones(shape, complex), jax.devices()[0])
    tangent = jax.jvp(fft, (u.astype(complex),), (on_one_device,))[1]
    assert_close(tangent, np.fft.fftn(np.ones(shape)))


@alternating("fft", "rfft", "transpose", "composition", "halo.T", "stencil")
def test_vmap_nested_and_of_gradients(mesh, name):
    operator = operators(mesh)[name]
    fields, stack = stacked(input_for(operator))
    expected = np.stack([operator(s) for s in fields])
    assert_close(jax.vmap(operator)(stack), expected)
    gradient = jax.grad(real_loss(operator))

    @jax.jit
    def programs(stack):
        last = jax.vmap(operator, in_axes=-1, out_axes=1)(jnp.moveaxis(stack, 0, -1))
        return jax.vmap(jax.vmap(operator))(stack[None])[0], jnp.moveaxis(last, 1, 0), jax.vmap(gradient)(stack)

    nested, last, gradients = programs(stack)
    assert_close(nested, expected)
    assert_close(last, expected)
    one = jax.jit(gradient)
    for g, s in zip(np.asarray(gradients), fields):
        assert_close(g, one(s))


@alternating("inverse", "rfft", "transpose", "halo.update", "stencil")
def test_scan_and_checkpoint(mesh, name):
    operator = operators(mesh)[name]
    x = input_for(operator)
    fields, stack = stacked(x)
    loss = real_loss(operator)

    @jax.jit
    def programs(stack, x):
        _, scanned = jax.lax.scan(lambda carry, x: (carry, operator(x)), 0, stack)
        return scanned, jax.grad(jax.checkpoint(loss))(x), jax.grad(loss)(x)

    scanned, checkpointed, gradient = programs(stack, x)
    assert_close(scanned, np.stack([operator(s) for s in fields]))
    assert_close(checkpointed, gradient)


def test_time_steps_in_a_checkpointed_scan(mesh):
    fft = dops.FFT3D(mesh, shape=(8, 8, 8), norm="ortho")
    x = put(mesh, random_field((8, 8, 8), np.complex128), "x", "y", None)

    def evolve(x, steps=3, wrap=lambda f: f):
        def step(u, _):
            u = fft.inverse(fft(u) * 0.9)
            return jax.lax.complex(jnp.sin(u.real), u.imag), jnp.sum(jnp.abs(u) ** 2)

        return jax.lax.scan(wrap(step), x, length=steps)

    def by_hand(u, steps=3):
        energies = []
        for _ in range(steps):
            u = 0.9 * u
            energies.append(np.sum(np.abs(u) ** 2))
            u = np.sin(u.real) + 1j * u.imag
        return u, np.array(energies)

    for got, expected in zip(jax.jit(evolve)(x), by_hand(np.asarray(x))):
        assert_close(got, expected)
    loss = lambda wrap: lambda x: evolve(x, wrap=wrap)[1].sum()
    value_and_grad = jax.jit(jax.value_and_grad(loss(lambda f: f)))
    plain = np.asarray(value_and_grad(x)[1])
    assert_close(jax.jit(jax.grad(loss(jax.checkpoint)))(x), plain)
    v = random_field((8, 8, 8), np.complex128, 1)
    numeric = finite_difference(lambda x: value_and_grad(put(mesh, x, "x", "y", None))[0], np.asarray(x), v, 1e-6)
    assert np.sum((plain * v).real) == pytest.approx(numeric, rel=1e-6)


def test_operators_are_arguments_without_retracing(mesh):
    traces = []

    @jax.jit
    def apply(operator, x):
        traces.append(operator)
        return operator(x)

    x = put(mesh, np.ones((8, 8, 8)), "x", "y", None)
    for _ in range(3):
        apply(dops.FFT3D(mesh), x)
        apply(dops.HaloExchange(mesh, (1, 1, 0)), x)
        apply(dops.FFT3D(mesh).inverse, x.astype(complex))
    assert len(traces) == 3
    eqx.filter_jit(lambda operator, x: operator(x))(dops.Transpose(mesh, "z", "y"), x)


def test_donation_reuses_the_buffer(mesh):
    fft = dops.FFT3D(mesh)
    field = random_field((8, 8, 8), np.complex128)
    x = put(mesh, field, "x", "y", None)
    compiled = jax.jit(fft, donate_argnums=0).lower(x).compile()
    assert compiled.memory_analysis().alias_size_in_bytes == x.nbytes // 8
    assert_close(compiled(x), np.fft.fftn(field))
    assert x.is_deleted()


def test_local_between_other_collectives(mesh):
    """Test `.local` in a user's `shard_map` with `check_vma=True`, and the gradient of this `shard_map`."""
    rfft = dops.FFT3D(mesh, shape=(8, 8, 8), real=True)
    halo = dops.HaloExchange(mesh, 1)
    u = random_field((8, 8, 8))

    def body(block):
        mean = jax.lax.pmean(jnp.mean(block), ("x", "y"))
        spectrum = rfft.local(block - mean)
        power = jax.lax.psum(jnp.sum(jnp.abs(spectrum) ** 2), ("x", "y"))
        smooth = halo.crop.local(halo.local(rfft.inverse.local(spectrum)))
        return power, smooth + mean

    mapped = jax.shard_map(
        body, mesh=mesh, in_specs=P("x", "y", None), out_specs=(P(), P("x", "y", None)), check_vma=True
    )
    x = put(mesh, u, "x", "y", None)
    power, same = jax.jit(mapped)(x)
    centred = u - u.mean()
    assert float(power) == pytest.approx(np.sum(np.abs(np.fft.rfftn(centred)) ** 2), rel=1e-12)
    assert_close(same, u)
    g = jax.jit(jax.grad(lambda x: mapped(x)[0]))(x)
    numeric = finite_difference(lambda v: np.sum(np.abs(np.fft.rfftn(v - v.mean())) ** 2), u, u**2, 1e-4)
    assert float(jnp.sum(g * u**2)) == pytest.approx(numeric, rel=1e-8)


@alternating("fft", "rfft.T", "composition", "halo", "halo.crop", "halo.update", "stencil")
def test_local_equals_the_global_call(mesh, name):
    operator = operators(mesh)[name]
    x = input_for(operator)
    mapped = jax.shard_map(
        operator.local, mesh=mesh, in_specs=operator.in_spec, out_specs=operator.out_spec, check_vma=True
    )
    loss = lambda f: lambda x: jnp.sum(jnp.abs(f(x)) ** 2)
    value, gradient = jax.jit(lambda x: (mapped(x), jax.grad(loss(mapped))(x)))(x)
    assert_close(value, operator(x))
    assert_close(gradient, jax.grad(loss(operator))(x))  # This gradient is eager.


def test_the_global_call_inside_shard_map_says_what_to_do(mesh, plain):
    fft = plain.FFT3D(mesh, shape=(8, 8, 8))
    mapped = jax.shard_map(fft, mesh=mesh, in_specs=P("x", "y", None), out_specs=P(None, "x", "y"))
    with pytest.raises(ValueError, match=r"inside a `shard_map` over mesh axis 'x'. Call `.local\(block\)`"):
        mapped(put(mesh, np.ones((8, 8, 8)), "x", "y", None))


def test_a_shard_map_over_the_batch_axis_only(mesh):
    del mesh
    group = make_mesh((2, 2, 2))
    with jax.set_mesh(group):
        fft = dops.FFT3D(group)
        u = random_field((4, 4, 8, 8), np.complex128)
        mapped = jax.jit(jax.shard_map(fft, in_specs=P("c"), out_specs=P("c"), axis_names={"c"}))
        assert_close(mapped(put(group, u, "c", "x", "y", None)), np.fft.fftn(u, axes=(1, 2, 3)))
