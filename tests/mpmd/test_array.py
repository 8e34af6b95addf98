"""Tests of `MpmdArray` in one process with several groups of devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

from helpers import TYPES, assert_close, make_mesh, random_field


U = np.arange(24.0).reshape(4, 6)
PENCILS = P("x", "y")


@pytest.fixture
def mpmd(plain):
    return plain.mpmd


@pytest.fixture
def groups(mpmd):
    return mpmd.MpmdMesh(make_mesh((2, 2, 2), names=("g", "x", "y")), "g")


def on(groups, idx: int, spec: P = PENCILS, array: np.ndarray = U) -> jax.Array:
    return jax.device_put(array, NamedSharding(groups.groups[idx], spec))


def test_in_one_group(mpmd, groups):
    place = mpmd.MpmdSharding(groups, [1], P("x", ("g", "y")))
    array = mpmd.MpmdArray([on(groups, 1)], place)
    assert (array.shape, array.dtype, array.ndim, array.spec) == ((4, 6), np.float64, 2, P("x", "y"))
    assert array.sharding == NamedSharding(groups.submesh([1]), P("x", "y"))
    assert array.mpmd_sharding is place
    assert array.mpmd_idxs == (1,)
    assert array.is_partially_addressable
    assert not array.is_mpmd_replicated
    assert array.to_mpmd_local_array is array.first_mpmd_replica
    assert array.to_mpmd_local_array.sharding == NamedSharding(groups.groups[1], P("x", "y"))
    assert array.block_until_ready() is array
    assert repr(array) == "MpmdArray(float64[4, 6], groups=[1], spec=P('x', 'y'), here)"
    np.testing.assert_array_equal(array, U)


def test_in_several_groups(mpmd, groups):
    # The groups are always in the order of the mesh, whatever the order of the arguments is.
    array = mpmd.MpmdArray([on(groups, 1), on(groups, 0)], mpmd.MpmdSharding(groups, [0, 1], P("x", "y")))
    assert array.is_mpmd_replicated
    first, second = array.to_mpmd_local_array
    assert [first.sharding.mesh, second.sharding.mesh] == list(groups.groups)
    assert array.first_mpmd_replica is first
    assert array.sharding == NamedSharding(groups.mesh, P("x", "y"))
    assert array.local_arrays == {0: first, 1: second}
    np.testing.assert_array_equal(array, U)
    with pytest.raises(TypeError, match="MpmdArrayInSeveralGroups"):
        jax.jit(jnp.sum)(array)


def test_operators_accept_the_array_in_its_group(plain, mpmd, groups):
    u = random_field((4, 4, 4))
    array = mpmd.MpmdArray([on(groups, 1, P("x", "y"), u)], mpmd.MpmdSharding(groups, [1], P("x", "y")))
    other, here = (plain.FFT3D(group, shape=(4, 4, 4)) for group in groups.groups)
    assert_close(here(array), np.fft.fftn(u))
    with pytest.raises(ValueError, match=r"`x` must lie on the operator's mesh.*`mpmd.reshard"):
        other(array)


def test_jax_uses_the_local_array(mpmd, groups):
    array = mpmd.MpmdArray([on(groups, 1)], mpmd.MpmdSharding(groups, [1], P("x", "y")))
    doubled = jax.jit(lambda x: 2 * x)(array)
    np.testing.assert_array_equal(doubled, 2 * U)
    assert doubled.sharding.device_set == set(groups.groups[1].devices.flat)
    slope = jax.grad(lambda x: jnp.sum(jnp.sin(x)))(array)
    np.testing.assert_allclose(slope, np.cos(U), atol=1e-14)
    np.testing.assert_array_equal(jax.vmap(lambda row: row[::-1])(array), U[:, ::-1])


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("idxs", [[], [1], [0, 1]])
def test_abstract_value(mpmd, kind, idxs, monkeypatch):
    """JAX traces an `MpmdArray` that lies in two, one or none of the groups of this process.

    On Explicit axes, the type of the traced array contains its sharding.
    """
    groups = mpmd.MpmdMesh(make_mesh((2, 2, 2), kind, names=("g", "x", "y")), "g")
    if not idxs:  # Pretend that this process has no devices of the array.
        monkeypatch.setitem(vars(groups), "local_mpmd_idxs", ())
    place = mpmd.MpmdSharding(groups, idxs or [1], PENCILS)
    array = mpmd.MpmdArray([on(groups, idx) for idx in idxs], place, (4, 6), float)
    assert array.aval == jax.ShapeDtypeStruct((4, 6), float, sharding=place.group_sharding(place.mesh_ids[0]))
    tree = {"a": array, "b": None}
    (leaf,) = jax.tree.leaves(tree)
    assert (leaf.shape, leaf.dtype, leaf.sharding) == ((4, 6), float, array.aval.sharding)
    half = jax.eval_shape(lambda tree: jnp.sum(tree["a"], 1), tree)
    assert (half.shape, half.dtype) == ((4,), float)
    expected = P("x", "y") if kind == "explicit" else P(None, None)
    program = jax.make_jaxpr(lambda tree: jnp.sin(tree["a"]))(tree)
    assert [aval.sharding.spec for aval in (*program.in_avals, *program.out_avals)] == [expected] * 2
    if len(idxs) != 1:
        name = "MpmdArrayInSeveralGroups" if idxs else "MpmdArrayElsewhere"
        with pytest.raises(TypeError, match=rf"'x.*' of shape .*{name}'> is not a valid JAX type"):
            jax.jit(lambda x: 2 * x)(array)


def test_numbers(mpmd, groups):
    place = mpmd.MpmdSharding(groups, [0, 1], P())
    step = mpmd.MpmdArray([on(groups, idx, P(), np.array(3)) for idx in (0, 1)], place)
    assert int(step) == 3
    assert float(step) == 3.0
    assert f"{step:05d}" == "00003"
    assert f"{step}" == repr(step)


def test_equivalent_specs_are_accepted(mpmd):
    """Specs that differ only in mesh axes of size 1 count as equal, because JAX leaves out such axes in its results."""
    groups = mpmd.MpmdMesh(make_mesh((2, 1, 2), names=("g", "x", "y")), "g")
    array = mpmd.MpmdArray([on(groups, 0, P(None, "y"))], mpmd.MpmdSharding(groups, [0], P("x", "y")))
    assert array.spec == P("x", "y")


def test_deleted_arrays_cannot_be_used(mpmd, groups):
    array = mpmd.MpmdArray([on(groups, 0)], mpmd.MpmdSharding(groups, [0], P("x", "y")))
    assert not array.is_deleted()
    array.delete()
    assert array.is_deleted()
    assert "deleted" in repr(array)
    assert array.shape == (4, 6)
    uses = [
        lambda a: a.to_mpmd_local_array,
        lambda a: a.first_mpmd_replica,
        lambda a: a.block_until_ready(),
        np.asarray,
    ]
    array.delete()
    for use in (*uses, jax.jit(jnp.sum), lambda a: mpmd.reshard(a, NamedSharding(groups.mesh, P()))):
        with pytest.raises(RuntimeError, match="has been deleted"):
            use(array)


def test_refused(mpmd, groups):
    place = mpmd.MpmdSharding(groups, [0], P("x", "y"))
    both = mpmd.MpmdSharding(groups, [0, 1], P("x", "y"))
    u = on(groups, 0)
    with pytest.raises(ValueError, match=r"`arrays\[0\]` must be on the mesh of a group of MpmdMesh"):
        mpmd.MpmdArray([jax.device_put(U, NamedSharding(groups.mesh, P("x", "y")))], place)
    with pytest.raises(ValueError, match=r"`arrays\[0\]` must be in one of the groups \(0,\); got group 1"):
        mpmd.MpmdArray([on(groups, 1)], place)
    with pytest.raises(ValueError, match="one array for each group; got two for group 0"):
        mpmd.MpmdArray([u, u], both)
    with pytest.raises(ValueError, match=r"an array for each local group \(0, 1\); got none for \[1\]"):
        mpmd.MpmdArray([u], both)
    with pytest.raises(ValueError, match=r"an array for each local group \(0,\); got none for \[0\]"):
        mpmd.MpmdArray([], place, (4, 6), float)
    with pytest.raises(ValueError, match=r"sharded with the spec of `sharding`, P\('x', 'y'\); got P\('y',"):
        mpmd.MpmdArray([on(groups, 0, P("y"))], place)
    with pytest.raises(ValueError, match=r"must have the shape \(4, 6\) and dtype float64; got \(4, 4\) and float64"):
        mpmd.MpmdArray([u, on(groups, 1, array=U[:, :4])], both)
    with pytest.raises(ValueError, match=r"must have the shape \(4, 6\) and dtype float64; got \(4, 6\) and int64"):
        mpmd.MpmdArray([u, on(groups, 1, array=U.astype(int))], both)
    with pytest.raises(ValueError, match=r"must have the shape \(4, 8\) and dtype float64; got \(4, 6\)"):
        mpmd.MpmdArray([u], place, (4, 8))
    with pytest.raises(TypeError, match=r"`arrays\[0\]` must be a jax.Array with values; got ndarray"):
        mpmd.MpmdArray([U], place)
    with pytest.raises(TypeError, match=r"`arrays\[0\]` must be a jax.Array with values; got .*Tracer"):
        jax.jit(lambda u: mpmd.MpmdArray([u], place).shape)(u)
    with pytest.raises(TypeError, match=r"`arrays\[0\]` must have a NamedSharding; got SingleDeviceSharding"):
        mpmd.MpmdArray([jnp.ones((4, 6))], place)
    with pytest.raises(TypeError, match=r"`arrays` must be a list of arrays; got ArrayImpl"):
        mpmd.MpmdArray(u, place)
    gone = on(groups, 0)
    gone.delete()
    with pytest.raises(RuntimeError, match=r"`arrays\[0\]` has been deleted"):
        mpmd.MpmdArray([gone], place)
    with pytest.raises(TypeError, match="`sharding` must be an MpmdSharding; got NamedSharding"):
        mpmd.MpmdArray([u], u.sharding)
