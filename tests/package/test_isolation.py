"""Tests do not depend on what an earlier test of the same process has left behind."""

import jax
import jax.numpy as jnp
import pytest

from helpers import make_mesh


@pytest.mark.parametrize("turn", [1, 2])
def test_no_ambient_mesh_is_left_behind(turn):
    """The first turn leaves a mesh behind, which the fixture `no_ambient_mesh` removes before the second one."""
    assert jax.sharding.get_mesh().empty
    assert jnp.ones(8).sharding.num_devices == 1
    if turn == 1:
        jax.set_mesh(make_mesh((2, 4)))
        assert jnp.ones(8).sharding.num_devices == 8


@pytest.mark.parametrize("turn", [1, 2])
def test_no_single_precision_is_left_behind(turn):
    """The first turn leaves single precision behind, which `double_precision` ends before the second one."""
    assert jnp.zeros(()).dtype == jnp.float64
    jax.config.update("jax_enable_x64", False)
