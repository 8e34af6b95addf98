"""Measures the memory of a derivative, and chooses the fastest plan of checkpoints that fits into a given memory."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from .._common.check import check_count
from .._common.typed import struct_of
from .binomial import count_moves
from .checkpointing import Chain, Placement, Plan, gradient


UNITS = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


class Budget(NamedTuple):
    """The memory that a derivative may take: `keep` on each device, and `keep_on_host` on the host for each device.

    Each is a number of states, a text such as "1.5 GiB", or `None`. The derivative stores states in the host's memory
    if `keep_on_host` is not `None`.
    """

    keep: int | str | None
    keep_on_host: int | str | None


def check_budget(keep: Any, keep_on_host: Any) -> Budget | None:
    """Return both arguments as a `Budget`, or `None` if both are `None`.

    Raises an error unless each is a number of states, a number of bytes with a unit, or `None`.
    """
    for name, value in (("keep", keep), ("keep_on_host", keep_on_host)):
        if isinstance(value, str):
            _bytes_of_text(name, value)
        elif value is not None:
            check_count(name, value)
    return None if keep is None and keep_on_host is None else Budget(keep, keep_on_host)


def _bytes_of(name: str, value: int | str | None, state: int) -> float | int:
    """Return the number of bytes that an entry of a `Budget` allows, for states of `state` bytes."""
    if value is None:
        return math.inf
    return _bytes_of_text(name, value) if isinstance(value, str) else value * state


def _bytes_of_text(name: str, text: str) -> float:
    match = re.fullmatch(r"\s*(\d+\.?\d*)\s*(\w+)\s*", text)
    if match is None or match[2] not in UNITS:
        units = ", ".join(UNITS)
        raise ValueError(
            f"`{name}` must be a number of states, or a number of bytes with one of the units {units}; got {text!r}. "
            f'For example, pass `{name}="1.5 GiB"`.'
        )
    return float(match[1]) * UNITS[match[2]]


def best_plan(
    chain: Chain, first: Any, perturbed: Any, *, memory: Budget, layout: Placement, state_of: Callable[[Any], Any]
) -> Plan:
    """Return the plan with the fewest moves whose compiled derivative takes at most the given memory.

    A move advances a state by one block (see `Schedule`). The derivative of a few blocks is compiled to measure its
    memory. For each further place for a stored state, the memory of one state is added. `layout` is the layout of the
    arrays, and `state_of(first)` is what users call a state: without what a step also carries.

    Raises `ValueError` if `memory.keep` is too small for the derivative of one step, or if `memory.keep_on_host` is too
    small for two states, or for two histories.
    """
    state, place = (_bytes_on_device(carried, layout) for carried in (state_of(first), first))
    on_host = None if memory.keep_on_host is None else layout
    host, budget = (_bytes_of(name, getattr(memory, name), state) for name in ("keep_on_host", "keep"))
    # With observations, the full program takes more than the small program that is measured. The difference depends on
    # how XLA arranges arrays in memory: 1.5 to 2.5 states were seen with JAX 0.10 and 0.12.
    reserve = 4 * place if chain.every < chain.steps else 0
    budget -= reserve

    def plan(block: int, scratch: float | int) -> Plan:
        """Return the plan with as many places as fit. A plan with two places takes `scratch` bytes on each device."""
        spare = budget - scratch
        places = (host // place if spare >= 0 else 0) if on_host else 2 + spare // place
        return Plan(block, int(min(places, chain.steps // block + 1)), on_host)

    def moves(plan: Plan) -> float | int:
        return plan.block * count_moves(chain.steps // plan.block, plan.places - 1) if plan.places > 1 else math.inf

    least = _scratch_of_few(chain, first, perturbed, layout, Plan(1, 2, on_host))
    single = plan(1, least)
    if least > budget:
        needed = f"{math.ceil((least + reserve) / state)} states of {state / 1e6:.3g} MB"
        needed += ", the memory of the derivative of a step"
        raise ValueError(f"`keep` must be at least {needed}; got {memory.keep!r}.")
    if single.places < 2:
        needed = f"{math.ceil(2 * place / state)} states of {state / 1e6:.3g} MB"  # A `History` is several states.
        raise ValueError(f"`keep_on_host` must be at least {needed}; got {memory.keep_on_host!r}.")
    if memory.keep is None:
        return single
    residuals = _residuals_of_step(chain, first, perturbed) * state / _bytes_of_arrays(state_of(first))
    divisors = [n for n in range(1, chain.every + 1) if chain.every % n == 0]
    expected = [moves(plan(n, least + (n - 1) * residuals)) for n in divisors]
    # If a block has several steps, its derivative computes the products of fields in these steps twice, and stores
    # arrays that do not fit into the cache. In measurements, these two effects together took as much extra time as
    # repeating every eighth step.
    block = next(n for n, made in zip(divisors, expected) if made <= min(expected) + chain.steps / 8)
    if block == 1:
        return single
    scratch = _scratch_of_few(chain, first, perturbed, layout, Plan(block, 2, on_host))
    return min(single, plan(block, scratch), key=moves)


def scratch_bytes(compiled: Any) -> int:
    """Return the memory that a compiled program takes on each device, in addition to its arguments and results."""
    return compiled.memory_analysis().temp_size_in_bytes


def _bytes_on_device(state: Any, layout: Placement) -> int:
    """Return the memory that the arrays of a state take on each device."""
    arrays = [x for x in jax.tree.leaves(state) if x.ndim]
    return sum(math.prod(layout.sharding_of(x.shape).shard_shape(x.shape)) * x.dtype.itemsize for x in arrays)


def _bytes_of_arrays(state: Any) -> int:
    """Return the memory that the arrays of a state take on all devices together."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))


def _scratch_of_few(chain: Chain, first: Any, perturbed: Any, layout: Placement, plan: Plan) -> int:
    """Return the scratch memory that the derivative of a few blocks takes on each device, if it follows `plan`.

    The number of blocks is large enough for each loop to have several iterations, because XLA removes a loop of one
    iteration.
    """
    every = plan.block * min(3, chain.every // plan.block)
    steps = every * min(3, chain.steps // chain.every)
    chain, perturbed = (replace(each, steps=steps, every=every) for each in (chain, perturbed))
    arrays, rest = eqx.partition((chain, first), eqx.is_array)

    def derivative(arrays: Any) -> Any:
        chain, first = eqx.combine(arrays, rest)
        return gradient(chain, first, plan, perturbed)

    def struct(x: Any, *, placed: bool) -> jax.ShapeDtypeStruct:
        return struct_of(x, layout.sharding_of(x.shape) if placed and x.ndim else None, layout.mesh)

    of_chain, of_first = arrays
    structs = (
        jax.tree.map(lambda x: struct(x, placed=False), of_chain),
        jax.tree.map(lambda x: struct(x, placed=True), of_first),
    )
    return scratch_bytes(jax.jit(derivative).lower(structs).compile())


def _residuals_of_step(chain: Chain, first: Any, perturbed: Any) -> int:
    """Return the memory that the derivative of a block needs on all devices for each further step in the block."""
    varied, fixed = eqx.partition(chain, perturbed)
    numbers, rest = eqx.partition(first, eqx.is_inexact_array)

    def stored_bytes(block: int) -> int:
        def pullback(varied: Any, numbers: Any) -> Any:
            def advance(varied: Any, numbers: Any) -> Any:
                state, number = eqx.combine(numbers, rest), jnp.zeros((), jnp.int32)
                return eqx.filter(eqx.combine(varied, fixed).advance(state, number, block), eqx.is_inexact_array)

            return jax.vjp(advance, varied, numbers)[1]

        return _bytes_of_arrays(jax.eval_shape(pullback, varied, numbers))

    return stored_bytes(3) - stored_bytes(2)
