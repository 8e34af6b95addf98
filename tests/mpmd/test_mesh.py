"""Tests of `MpmdMesh` and `MpmdSharding`: the devices of groups, and the shardings of arrays on these devices."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from groups import make_groups
from helpers import TYPES, make_mesh


def ids(mesh: Mesh) -> list:
    return np.vectorize(lambda device: device.id)(mesh.devices).tolist()


@pytest.mark.parametrize("kind", TYPES)
def test_groups(kind):
    mpmd_mesh = make_groups((2, 2, 2), kind)
    assert mpmd_mesh.mpmd_dim == 2
    assert [group.axis_names for group in mpmd_mesh.groups] == [("x", "y")] * 2
    assert [ids(group) for group in mpmd_mesh.groups] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert mpmd_mesh.groups[0].axis_types == (TYPES[kind],) * 2
    assert mpmd_mesh.mpmd_idx(mpmd_mesh.groups[1]) == 1


def test_any_mesh_axis_can_be_the_group_axis():
    mesh = make_mesh((2, 4))
    by_column = make_groups((2, 4), axis="x")
    assert [ids(group) for group in by_column.groups] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert ids(by_column.submesh([3, 1])) == [[1, 3], [5, 7]]
    assert by_column.submesh(range(4)).axis_names == ("g", "x")
    assert ids(by_column.submesh(range(4))) == ids(mesh)


def test_one_process_has_all_groups():
    mpmd_mesh = make_groups((4, 2))
    assert mpmd_mesh.local_mpmd_idxs == (0, 1, 2, 3)
    with pytest.raises(ValueError, match=r"`my_mpmd_idx` needs a process that .* exactly one group; .* \(0, 1, 2, 3\)"):
        mpmd_mesh.my_mpmd_idx  # noqa: B018
    assert make_groups((1, 4)).my_mpmd_idx == 0


def test_meshes_and_shardings_are_values(plain):
    assert make_groups((2, 4)) == make_groups((2, 4))
    assert len({make_groups((2, 4)), make_groups((2, 4)), make_groups((4, 2))}) == 2
    mpmd_mesh = make_groups((2, 2, 2))
    one = plain.mpmd.MpmdSharding(mpmd_mesh_of(plain), [1, 0, 1], P(("g", "x"), None))
    other = plain.mpmd.MpmdSharding(mpmd_mesh_of(plain), {0, 1}, P("x"))
    assert one == other
    assert hash(one) == hash(other)
    assert one.mesh_ids == (0, 1)
    assert one.spec == P("x")
    assert one.sharding == NamedSharding(mpmd_mesh.mesh, P("x"))
    assert one.group_sharding(1) == NamedSharding(mpmd_mesh.groups[1], P("x"))
    assert "mesh_ids=(0, 1)" in repr(one)
    assert "g=2, x=2, y=2" in repr(one)


def test_arrays_without_groups_go_to_group_0(plain):
    assert plain.mpmd.MpmdSharding(mpmd_mesh_of(plain), (), P()).mesh_ids == (0,)


def mpmd_mesh_of(plain):
    return plain.mpmd.MpmdMesh(make_mesh((2, 2, 2), names=("g", "x", "y")), "g")


def test_refused(plain):
    mpmd = plain.mpmd
    mesh = make_mesh((2, 4))
    with pytest.raises(ValueError, match=r"`axis` must be one of the mesh axes \('x', 'y'\); got 'g'"):
        mpmd.MpmdMesh(mesh, "g")
    with pytest.raises(ValueError, match=r"`mesh` must have axes besides `axis`.*got \('x',\)"):
        mpmd.MpmdMesh(make_mesh((8,)), "x")
    with pytest.raises(TypeError, match=r"`mesh` must be a jax.sharding.Mesh; got list"):
        mpmd.MpmdMesh(jax.devices(), "x")
    mpmd_mesh = mpmd.MpmdMesh(mesh, "x")
    for found in ([2], [-1], [0.5], ["x"], [True], [[0]]):
        with pytest.raises(ValueError, match=r"`mesh_ids` must be indices of groups from 0 to 1; got"):
            mpmd_mesh.submesh(found)
        with pytest.raises(ValueError, match=r"`mesh_ids` must be indices of groups from 0 to 1; got"):
            mpmd.MpmdSharding(mpmd_mesh, found, P())
    for found in (0, None):
        with pytest.raises(TypeError, match=rf"`mesh_ids` must be indices of groups from 0 to 1; got {found}"):
            mpmd_mesh.submesh(found)
    for spec in (P("x", "x"), P(("y", "y")), P(P.UNCONSTRAINED), P("y", unreduced={"x"})):
        with pytest.raises(ValueError, match="`spec` must contain only mesh axes, each at most once"):
            mpmd.MpmdSharding(mpmd_mesh, [0], spec)
    with pytest.raises(ValueError, match=r"`mpmd_idx` must be one of the groups \(0,\); got 1"):
        mpmd.MpmdSharding(mpmd_mesh, [0], P()).group_sharding(1)
    with pytest.raises(ValueError, match=r"`mesh` must be one of the groups .*; got 'x'"):
        mpmd_mesh.mpmd_idx("x")
    with pytest.raises(ValueError, match="`mesh_ids` must name at least one group"):
        mpmd_mesh.submesh([])
    with pytest.raises(ValueError, match=r"`mesh` must be one of the groups of MpmdMesh.*got Mesh\(x=2, y=4"):
        mpmd_mesh.mpmd_idx(mesh)
    with pytest.raises(ValueError, match=r"`spec` must name axes of MpmdMesh.*\['z'\]"):
        mpmd.MpmdSharding(mpmd_mesh, [0], P("z"))
    with pytest.raises(TypeError, match=r"`spec` must be a jax.sharding.PartitionSpec; got 'y'"):
        mpmd.MpmdSharding(mpmd_mesh, [0], "y")
    with pytest.raises(TypeError, match="`mpmd_mesh` must be an MpmdMesh; got Mesh"):
        mpmd.MpmdSharding(mesh, [0], P("y"))
