"""Checks of ranks that pass different arrays. All ranks raise an error at once, and can continue afterwards."""

import decompops as dops
import jax
import numpy as np
import pytest
from decompops import particles
from jax.sharding import Mesh


def check_other_shape_on_one_rank(mesh: Mesh) -> None:
    n = 8 * (1 + jax.process_index())
    with pytest.raises(ValueError, match="`array` must have the same shape and dtype on every process"):
        dops.Decomposition(mesh, shape=(n, 8, 8)).shard(np.ones((n, 8, 8)))


def check_bad_array_on_one_rank(mesh: Mesh) -> None:
    """The other ranks repeat what the rank says that refuses its array."""
    dec, last = dops.Decomposition(mesh, shape=(8, 8), box=dops.Box(1.0)), jax.process_count() - 1
    pm, u, x = particles.ParticleMesh(dec, "cic"), np.ones((8, 8)), np.full((3, 2), 0.5)
    cases = (
        (dec.shard, u, np.ma.masked_less(u * u.cumsum(0), 2), "`array` must hide no values"),
        (dec.layout().shard, u, np.ma.masked_less(u * u.cumsum(0), 2), "`array` must hide no values"),
        (pm.place, x, x[:, :1], r"`positions` must be real numbers of shape \(n, 2\)"),
        (pm.place, x, x * np.nan, "`positions` must be finite"),
        (pm.loads, x, x * np.nan, "`positions` must be finite"),
        (lambda m: pm.place(x, m=m), x[:, 0], x[0], "`m` must have one row for each of 3 particles"),
    )
    for function, good, bad, message in cases:
        for rank in (0, last):
            is_bad = jax.process_index() == rank
            with pytest.raises(ValueError, match=rf"^{'' if is_bad else f'process {rank} failed: '}{message}"):
                function(bad if is_bad else good)
        function(good)
