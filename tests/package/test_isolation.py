"""Tests do not depend on what an earlier test of the same process has left behind."""

import jax
import jax.numpy as jnp
import pytest

import mpiexec
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


@mpiexec.NEEDED
@mpiexec.IN_TURN
def test_a_rank_that_hangs_says_where(tmp_path):
    (tmp_path / "hangs.py").write_text("import time\n\n\ndef waits():\n    time.sleep(20)\n\n\nwaits()\n")
    with pytest.raises(pytest.fail.Exception, match=r"(?s)took more than 12 s.*line 5 in waits"):
        mpiexec.run(tmp_path / "hangs.py", ranks=2, limit=12, STACKS_AFTER="2")
