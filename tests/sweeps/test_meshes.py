"""Tests of operators on all kinds of meshes: ambient or passed, of some of the devices, and with groups of devices."""

import itertools

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec as P

from helpers import assert_close, make_mesh, put, random_field, spec_of, thinned


KINDS = [AxisType.Auto, AxisType.Explicit]


@pytest.mark.parametrize("kind", KINDS)
def test_make_mesh_and_no_context(kind):
    """Operators work on a mesh of `jax.make_mesh` without an ambient mesh, which is how most users start.

    The axes of this mesh are Explicit by default.
    """
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(kind,) * 2)
    fft = dops.FFT3D(mesh, shape=(8, 8, 8))
    u = random_field((8, 8, 8))
    assert_close(fft(u), np.fft.fftn(u))
    assert_close(jax.jit(fft)(u), np.fft.fftn(u))
    assert_close(jax.jit(jax.vmap(fft))(np.stack([u, u]))[1], np.fft.fftn(u))
    assert_close(jax.jit(lambda: fft(jnp.ones((8, 8, 8))))(), np.fft.fftn(np.ones((8, 8, 8))))
    loss = lambda v: jnp.sum(jnp.abs(fft(v)) ** 2)
    assert_close(jax.jit(jax.grad(loss))(u), 2 * u.size * u)
    x = fft.decomposition.shard(u)
    assert_close(jax.jit(jax.grad(loss))(x), 2 * u.size * u)
    on_one_device = jax.device_put(u, jax.devices()[3])
    assert_close(fft(on_one_device), np.fft.fftn(u))


def test_explicit_types_show_in_every_result():
    mesh = make_mesh((2, 4), "explicit")
    with jax.set_mesh(mesh):
        fft, halo = dops.FFT3D(mesh, shape=(8, 8, 8)), dops.HaloExchange(mesh, 1)
        seen = []

        def program(u):
            k = fft(u)
            h = halo(u)
            seen.extend(jax.typeof(v).sharding.spec for v in (k, fft.inverse(k), h, halo.T(h), jax.vmap(fft)(u[None])))
            return k

        jax.eval_shape(program, jax.ShapeDtypeStruct((8, 8, 8), complex, sharding=fft.decomposition.sharding()))
    z, x = P("x", "y", None), P(None, "x", "y")
    assert seen == [x, z, z, z, P(None, *x)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrongly_sharded_explicit_input_is_resharded_and_its_gradient_comes_back(kind):
    mesh = make_mesh((2, 4), kind.name.lower())
    with jax.set_mesh(mesh):
        fft = dops.FFT3D(mesh)
        u = random_field((8, 8, 8))
        x = put(mesh, u, None, "y", "x")
        assert_close(jax.jit(fft)(x), np.fft.fftn(u))
        g = jax.jit(jax.grad(lambda v: jnp.sum(jnp.abs(fft(v)) ** 2)))(x)
        assert_close(g, 2 * u.size * u)
        if kind == AxisType.Explicit:
            assert spec_of(g) == P(None, "y", "x")


def test_mixed_axis_types():
    devices = np.array(jax.devices()).reshape(2, 2, 2)
    mesh = Mesh(devices, ("c", "x", "y"), axis_types=(AxisType.Explicit, AxisType.Auto, AxisType.Auto))
    u = random_field((4, 4, 4, 4))
    with jax.set_mesh(mesh):
        fft = dops.FFT3D(mesh)
        k = jax.jit(jax.vmap(fft))(put(mesh, u, "c", "x", "y", None))
        assert_close(k, np.fft.fftn(u, axes=(1, 2, 3)))
        assert spec_of(k) == P("c", None, "x", "y")


def test_auto_axes_inside_an_explicit_mesh():
    mesh = make_mesh((2, 4), "explicit")
    with jax.set_mesh(mesh):
        fft = dops.FFT3D(mesh)
        u = random_field((8, 8, 8), np.complex128)
        relaxed = jax.sharding.auto_axes(lambda v: fft(v), out_sharding=P(None, "x", "y"))
        assert_close(jax.jit(relaxed)(put(mesh, u, "x", "y", None)), np.fft.fftn(u))


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_sub_mesh(kind):
    """A transform and its gradient work on a mesh of the second half of the devices."""
    mesh = Mesh(np.array(jax.devices()[4:]).reshape(2, 2), ("x", "y"), axis_types=(AxisType[kind.title()],) * 2)
    with jax.set_mesh(mesh):
        fft = dops.FFT3D(mesh, shape=(8, 8, 8))
        u = random_field((8, 8, 8))
        k = fft(u)
        assert_close(k, np.fft.fftn(u))
        assert k.sharding.device_set == set(jax.devices()[4:])
        g = jax.jit(jax.grad(lambda v: jnp.sum(jnp.abs(fft(v)) ** 2)))(fft.decomposition.shard(u))
        assert_close(g, 2 * u.size * u)


CALLS = {
    "eager": lambda fft, x: fft(x),
    "vmap": lambda fft, x: jax.vmap(fft)(x[None]),
    "jvp": lambda fft, x: jax.jvp(fft, (x,), (x,)),
    "vjp": lambda fft, x: jax.vjp(fft, x),
    "transpose": lambda fft, x: fft.T(x),
}


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_an_array_on_other_devices_is_refused(plain, kind):
    """Operators refuse arrays on other devices than their mesh, even if the number of devices is the same."""
    devices, types = np.array(jax.devices()), (AxisType[kind.title()],) * 2
    meshes = [Mesh(devices[i].reshape(-1, 2), ("x", "y"), axis_types=types) for i in (range(8), range(4), range(2, 6))]
    u = random_field((8, 8, 8))
    for mesh, other in itertools.permutations(meshes, 2):
        fft, x = plain.FFT3D(mesh), put(other, u, "x", "y", None)
        for name, call in CALLS.items():
            if name != "vmap" or mesh.size != other.size:
                with pytest.raises(ValueError, match=r"must lie on the operator's mesh, devices .*; got an array on"):
                    call(fft, x)
        if mesh.size != other.size:
            with pytest.raises(ValueError, match=r"incompatible devices|got an array on [48] devices"):
                jax.jit(fft)(x)
    for mesh in meshes:
        # An operator shards arrays without a mesh, and accepts arrays on its devices in another order.
        turned = Mesh(mesh.devices[::-1], ("x", "y"), axis_types=types)
        fft = plain.FFT3D(mesh)
        for x in (u, jnp.asarray(u), jax.device_put(u, mesh.devices[1, 1]), put(turned, u, "x", "y", None)):
            k = fft(x)
            assert k.sharding.device_set == set(mesh.devices.flat)
            assert_close(k, np.fft.fftn(u))
    with pytest.raises(ValueError, match=r"mesh, devices \[2, 3, 4, 5\]; got an array on devices \[7\]"):
        fft(jax.device_put(u, devices[7]))


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (dops.FFT3D, (8, 8, 8)),
        (lambda mesh, shape: dops.HaloExchange(mesh, 1, shape=shape, pad=True), (7, 8, 5)),
        (lambda mesh, shape: dops.spectral.Laplacian(dops.FFT3D(mesh, shape=shape, pad=True)), (8, 8, 8)),
    ],
    ids=["fft", "padded-halo", "laplacian"],
)
def test_what_the_error_says_moves_an_array_to_the_operator(make, shape):
    operator = make(make_mesh((2, 4)), shape=shape)
    u = random_field((2, *shape))
    x = put(make_mesh((1, 1)), u)
    with pytest.raises(ValueError, match=r"`sharding = NamedSharding\(operator.decomposition.mesh, .*\)`") as error:
        operator(x)
    sharding = eval(str(error.value).split("`sharding = ")[1].split("`")[0], globals() | {"operator": operator})
    assert_close(operator(jax.device_put(x, sharding)), operator(u))


@pytest.mark.parametrize(("name", "length"), [("x", 4), ("q", 4), ("c", 3)])
def test_a_wrong_spmd_axis_name_is_refused(plain, name, length):
    fft = plain.FFT3D(mesh := make_mesh((2, 2, 2)))
    with (
        jax.set_mesh(mesh),
        pytest.raises(ValueError, match=r"`spmd_axis_name` of `jax.vmap` must name batch axes .*; got"),
    ):
        jax.vmap(fft, spmd_axis_name=name)(np.ones((length, 4, 4, 4)))


def test_the_type_of_an_explicit_batch_axis_counts_more_than_spmd_axis_name():
    mesh = make_mesh((2, 2, 2), "explicit")
    with jax.set_mesh(mesh):
        u = random_field((4, 4, 4, 4), np.complex128)
        k = jax.vmap(dops.FFT3D(mesh), spmd_axis_name="c")(put(mesh, u, None, "x", "y", None))
        assert_close(k, np.fft.fftn(u, axes=(1, 2, 3)))


@pytest.mark.parametrize(("own", "ambient"), [("auto", "explicit"), ("explicit", "auto")])
def test_an_ambient_mesh_with_other_axis_types_is_the_one_that_counts(own, ambient):
    fft = dops.FFT3D(make_mesh((2, 4), own), shape=(8, 8, 8), backend="native" if own == "auto" else "xla")
    loss = lambda u: jnp.sum(jnp.abs(fft(u)) ** 2)
    u = random_field((8, 8, 8), np.complex128)
    mesh = make_mesh((2, 4), ambient)
    with jax.set_mesh(mesh):
        for x in (u, put(mesh, u, "x", "y", None)):
            for wrap in (lambda f: f, jax.jit):
                k = wrap(fft)(x)
                assert_close(k, np.fft.fftn(u))
                assert k.sharding.is_equivalent_to(NamedSharding(mesh, P(None, "x", "y")), 3)
                assert_close(wrap(jax.grad(loss))(x), 2 * u.size * np.conj(u))
        kx, _, _ = fft.wavenumbers()
        np.testing.assert_allclose(np.ravel(kx), np.fft.fftfreq(8, 1 / 8))
        assert kx.sharding.mesh == mesh
        odd = random_field((7, 9, 5))
        stencil = dops.Stencil(fft.decomposition, lambda h: h[..., 2:, 1:-1, :], (1, 1, 0), shape=odd.shape, pad=True)
        assert_close(stencil.decomposition.gather(stencil(odd)), np.roll(odd, -1, 0))
        assert_close(fft(put(make_mesh((2, 4), own), u, "x", "y", None)), np.fft.fftn(u))


def test_another_ambient_mesh_is_refused_clearly(plain):
    fft = plain.FFT3D(make_mesh((2, 2)))
    with jax.set_mesh(make_mesh((2, 4))), pytest.raises(ValueError, match=r"must be the ambient mesh, .*; got"):
        jax.jit(fft)(np.ones((8, 8, 8)))
    # The operator converts the real field to complex numbers. With another ambient mesh, JAX refuses this conversion,
    # so the operator must check the mesh first.
    x = jax.device_put(np.ones((8, 8, 8)), NamedSharding(make_mesh((2, 2), "explicit"), P("x", "y")))
    with jax.set_mesh(make_mesh((2, 4))), pytest.raises(ValueError, match=r"must be the ambient mesh, .*; got"):
        fft(x)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
@pytest.mark.parametrize("name", ["fft", "rfft", "transpose", "gradient"])
def test_groups_stay_among_themselves(kind, name):
    """`jit(vmap(...))` over a batch that the group axis shards needs only all-to-alls inside the groups."""
    from decompops.tools.hlo import collectives

    mesh = make_mesh((2, 2, 2), kind)
    with jax.set_mesh(mesh):
        fft = dops.FFT3D(mesh, shape=(8, 8, 8), real=name == "rfft")
        operator = dops.Transpose(mesh, "z", "x") if name == "transpose" else fft
        if name == "gradient":
            operator = jax.grad(lambda v: jnp.sum(jnp.abs(fft(v)) ** 2))
        u = random_field((4, 8, 8, 8))
        x = put(mesh, u, "c", "x", "y", None)
        compiled = jax.jit(jax.vmap(operator)).lower(x).compile()
        found = collectives(compiled.as_text())
        assert [c.kind for c in found] == ["all-to-all"] * (4 if name == "gradient" else 2)
        assert {c.group_size for c in found} == {2}
        groups = {frozenset(group) for c in found for group in c.groups}
        assert groups == {frozenset(g) for g in [(0, 1), (2, 3), (4, 5), (6, 7), (0, 2), (1, 3), (4, 6), (5, 7)]}
        result = compiled(x)
        assert spec_of(result)[0] == "c"
        expected = {
            "fft": lambda: np.fft.fftn(u, axes=(1, 2, 3)),
            "rfft": lambda: np.pad(np.fft.rfftn(u, axes=(1, 2, 3)), [(0, 0)] * 3 + [(0, 1)]),
            "transpose": lambda: u,
            "gradient": lambda: 2 * 512 * u,
        }[name]()
        assert_close(result, expected)


def test_vmap_with_a_spmd_axis_name():
    """`jax.vmap` works if the group axis shards a batch axis other than the first.

    `spmd_axis_name` then says which batch axis the group axis shards.
    """
    mesh = make_mesh((2, 2, 2))
    with jax.set_mesh(mesh):
        fft = dops.FFT3D(mesh)
        u = random_field((2, 4, 4, 4, 4), np.complex128)
        x = put(mesh, u, None, "c", "x", "y", None)
        operator = jax.jit(jax.vmap(jax.vmap(fft, spmd_axis_name="c")))
        k = operator(x)
        assert_close(k, np.fft.fftn(u, axes=(2, 3, 4)))
        assert spec_of(k) == P(None, "c", None, "x", "y")


@pytest.mark.parametrize("shape", [(8, 8), (4, 4), (3, 2)])
def test_abstract_mesh_compiles_without_devices(shape):
    mesh = AbstractMesh(shape, ("x", "y"))
    fft = dops.FFT3D(mesh, shape=(64, 64, 64), pad=True)
    assert fft.decomposition.local_shape("x") == (64, -(-64 // shape[0]), -(-64 // shape[1]))
    with jax.sharding.use_abstract_mesh(mesh):
        k = jax.eval_shape(fft, jax.ShapeDtypeStruct(fft.decomposition.padded_shape("z"), np.complex64))
    assert k.shape == fft.decomposition.padded_shape("x")


@pytest.mark.parametrize(
    ("kind", "spec"),
    thinned(
        itertools.product(
            ["auto", "explicit"], [(None, "x", "y"), (("c", "x"), None, "y"), ("y", None, "x"), ("c", "x", "y")]
        ),
        lambda kind, spec: spec[0] is None or (kind == "explicit") == isinstance(spec[0], tuple),
    ),
)
def test_a_batch_sharded_in_any_way(kind, spec):
    """A batch axis may have any sharding.

    The batch axis may be replicated although the group axis could shard it, or sharded over mesh axes that the grid
    needs.
    """
    mesh = make_mesh((2, 2, 2), kind)
    with jax.set_mesh(mesh):
        fft = dops.FFT3D(mesh, backend="native" if kind == "auto" else "xla")
        u = random_field((4, 4, 4, 4))
        x = put(mesh, u, *spec, None)
        loss = lambda v: jnp.sum(jnp.abs(fft(v)) ** 2)
        for wrap in (lambda f: f, jax.jit):
            assert_close(wrap(fft)(x), np.fft.fftn(u, axes=(1, 2, 3)))
            assert_close(wrap(jax.grad(loss))(x), 2 * 64 * u)
            if kind == "auto" or spec[0] in (None, "c"):  # JAX refuses to map an Explicit axis that the grid also uses.
                assert_close(wrap(jax.vmap(fft))(x), np.fft.fftn(u, axes=(1, 2, 3)))
        if kind == "explicit" and spec[0] is None:
            assert spec_of(jax.jit(fft)(x)) == P(None, None, "x", "y")
