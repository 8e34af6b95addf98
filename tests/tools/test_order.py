"""Tests of the model of the order of calls against times computed by hand. `tree` in mpi/worker.py tests real ranks."""

import math

import pytest
from decompops.tools.bench.order import Costs, children, simulate


def depth(rank: int) -> int:
    """Return the number of messages from rank 0 to `rank` along the tree."""
    return bin(rank).count("1")


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 13, 64, 100, 1024, 16384])
def test_an_announcement_reaches_every_rank_once(size):
    levels = (size - 1).bit_length()
    reached = [child for rank in range(size) for child in children(rank, size)]
    assert sorted(reached) == list(range(1, size))
    for rank in range(size):
        assert len(children(rank, size)) <= levels
        assert all(depth(child) == depth(rank) + 1 for child in children(rank, size))


def test_children_by_hand():
    assert [children(rank, 6) for rank in range(6)] == [[4, 2, 1], [], [3], [], [5], []]


COSTS = Costs(dispatch=10.0, overhead=2.0, latency=5.0, byte=0.25, transform=300.0, spread=0.0)


def test_without_order():
    # Each of the two exchanges costs 3 sent and 3 received messages, a latency, and the time to send 3/4 of the block.
    exchange = 2 * 3 * 2.0 + 5.0 + 0.25 * 1000 * 3 / 4
    found = simulate((4, 4), COSTS, 1000, "none", calls=7)
    assert found == pytest.approx(10 + 300 + 2 * exchange)


def test_one_rank_needs_nothing():
    assert simulate((1, 1), COSTS, 1000, "tree") == pytest.approx(310)


def test_order_of_a_few_ranks():
    """The model predicts the times computed by hand for four ranks, where only messages take time.

    In the tree, rank 0 sends the announcement to rank 2, and rank 2 forwards it to rank 3, the last rank to receive it.
    """
    costs = Costs(dispatch=0.0, overhead=2.0, latency=5.0, byte=0.0, transform=0.0, spread=0.0)
    base = simulate((4, 1), costs, 0, "none", calls=1)
    assert base == pytest.approx(2 * 3 * 2.0 + 5.0)
    # The message from rank 0 to rank 2 is sent at time 2, and received at 2 + 5 + 2 = 9. The next message, from rank 2
    # to rank 3, is sent at 11, and received at 11 + 5 + 2 = 18.
    assert simulate((4, 1), costs, 0, "tree", calls=1) == pytest.approx(base + 18)
    # The last message of rank 0, to rank 3, is sent at 3 * 2 = 6, and received at 6 + 5 + 2 = 13.
    assert simulate((4, 1), costs, 0, "one by one", calls=1) == pytest.approx(base + 13)


@pytest.mark.parametrize("size", [64, 1024, 16384])
def test_a_tree_costs_time_for_each_level(size):
    """Each level of the tree costs at most a latency, the overhead of sending and the overhead of receiving."""
    rows = math.isqrt(size)
    extra = simulate((rows, rows), COSTS, 1000, "tree") - simulate((rows, rows), COSTS, 1000, "none")
    levels = size.bit_length() - 1
    assert 0 < extra <= levels * (5.0 + 2 * 2.0) + 1e-9
    flat = simulate((rows, rows), COSTS, 1000, "one by one") - simulate((rows, rows), COSTS, 1000, "none")
    assert flat == pytest.approx((size - 1) * 2.0 + 5.0 + 2.0)
