"""Computes the derivative of many steps within a given memory."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from .._common.sharding import map_blocks
from .._common.typed import zeros_like
from .binomial import binomial_schedule


@runtime_checkable
class Placement(Protocol):
    """Where the arrays of a state are: a `Layout`, for example."""

    @property
    def mesh(self) -> Mesh | AbstractMesh: ...

    def sharding_of(self, shape: tuple[int, ...]) -> NamedSharding:
        """Return the sharding of an array of this shape."""
        ...


class Chain(eqx.Module):
    """A chain of `steps` steps. The state is observed after every `every` steps.

    - `step`: a function `(state, i)` that returns the state after step i.
    - `result`: a function `(state, n)` that returns the observation of the state after `n * every` steps.
    - `report`: a function `(n)` that is called after `n * every` steps.
    """

    step: Callable[[Any, Array], Any]
    result: Callable[[Any, Array], Any]
    report: Callable[[Array], None] = eqx.field(static=True)
    steps: int = eqx.field(static=True)
    every: int = eqx.field(static=True)

    def advance(self, state: Any, number: Array, block: int) -> Any:
        """Return the state after block `number`, for the `state` before this block. A block has `block` steps."""

        def one(state: Any, i: Array) -> tuple[Any, None]:
            # The derivative of a block stores the fields that the transforms of the block return, and recomputes the
            # products of these fields.
            step = jax.checkpoint(lambda *of: self.step(*of), policy=_makes_real_fields, prevent_cse=False)
            return step(state, _index(number * block + i)), None

        steps = jnp.arange(block, dtype=jnp.int32)
        return one(state, steps[0])[0] if block == 1 else lax.scan(one, state, steps)[0]

    def closed(self, first: Any) -> "Chain":
        """Return the same chain as a PyTree whose leaves are the arrays that its functions close over.

        So JAX can differentiate with respect to these arrays.
        """
        step, result = (eqx.filter_closure_convert(each, first, _index(0)) for each in (self.step, self.result))
        return Chain(step, result, self.report, self.steps, self.every)


class Plan(NamedTuple):
    """The plan of a derivative that differentiates `block` steps at a time and stores at most `places` states.

    `host` is the layout of the states if they are stored in the host's memory. It is `None` if they are stored on the
    devices.
    """

    block: int
    places: int
    host: Placement | None = None

    def places_for(self, state: Any) -> Any:
        """Allocate the places for states like `state`."""

        def on_device(x: Array) -> Array:
            return lax.broadcast(x, (self.places,))

        def on_host(x: Array, layout: Placement) -> Array:
            # XLA would allocate a broadcast array on the device first, but it allocates an empty array directly on the
            # host. Outside a `shard_map`, XLA would allocate whole states on each device, and not only one block of
            # each state.
            spec = layout.sharding_of(x.shape).spec
            empty = map_blocks(
                lambda block: lax.empty((self.places, *block.shape), block.dtype),
                layout.mesh,
                layout.mesh.axis_names,
                spec,
                PartitionSpec(None, *spec),
                check_types=False,
            )
            return jax.device_put(empty(x), jax.memory.Space.Host)

        return jax.tree.map(lambda x: on_host(x, self.host) if self.host and x.ndim else on_device(x), state)

    def write(self, stored: Any, at: Array, state: Any) -> Any:
        """Return the stored states after writing `state` to the place `at`."""

        def write(x: Array, new: Array) -> Array:
            new = jax.device_put(new, jax.memory.Space.Host) if self.host and new.ndim else new
            return lax.dynamic_update_index_in_dim(x, new, at, 0)

        return jax.tree.map(write, stored, state)

    def read(self, stored: Any, at: Array) -> Any:
        """Return the state at the place `at`, in the device's memory."""

        def read(x: Array) -> Array:
            x = lax.dynamic_index_in_dim(x, at, keepdims=False)
            return jax.device_put(x, jax.memory.Space.Device) if self.host and x.ndim else x

        return jax.tree.map(read, stored)


def checkpointed(chain: Chain, first: Any, plan: Callable[[Chain, Any, Any], Plan]) -> tuple[Any, Any]:
    """Return the last state of a chain that starts with the state `first`, and the stacked results.

    The derivative follows the plan that `plan(chain, first, perturbed)` returns. `perturbed` marks the leaves of the
    chain with respect to which JAX differentiates.
    """

    @eqx.filter_custom_vjp
    def run(arguments: tuple[Chain, Any]) -> tuple[Any, Any]:
        chain, first = arguments
        last, _, results = _forward(chain, first, Plan(chain.every, 2))
        return last, results

    def run_forward(perturbed: Any, arguments: tuple[Chain, Any]) -> tuple[Any, Any]:
        chain, first = arguments
        chosen = plan(chain, first, perturbed[0])
        last, stored, results = _forward(chain, first, chosen)
        return (last, results), (last, stored, chosen, perturbed[0])

    def run_backward(residuals: Any, cotangents: Any, perturbed: Any, arguments: tuple[Chain, Any]) -> Any:
        del perturbed  # Its leaves have become arrays. The residuals hold the original Booleans.
        (last, stored, chosen, perturbed), (chain, _) = residuals, arguments
        return _backward(chain, last, stored, chosen, perturbed, cotangents)

    run.def_fwd(run_forward)
    run.def_bwd(run_backward)
    first = jax.tree.map(lambda x: x if x.ndim else _index(x), first)
    return run((chain.closed(first), first))


def _forward(chain: Chain, first: Any, plan: Plan) -> tuple[Any, Any, Any]:
    """Return the last state, the stored states, and the results."""
    spans, blocks = chain.steps // chain.every, chain.every // plan.block
    places = binomial_schedule(spans * blocks, plan.places).first

    def one(carry: Any, row: Any) -> tuple[Any, None]:
        state, stored = carry
        number, place = row
        return (chain.advance(state, number, plan.block), plan.write(stored, place, state)), None

    def span(carry: Any, row: Any) -> tuple[Any, Any]:
        rows, n = row
        (state, stored), _ = lax.scan(one, carry, rows)
        chain.report(n)
        return (state, stored), chain.result(state, _index(n))

    rows = jnp.arange(spans * blocks, dtype=jnp.int32), jnp.asarray(places)
    rows = jax.tree.map(lambda row: row.reshape(spans, blocks), rows)
    stored = plan.places_for(first)
    (last, stored), results = lax.scan(span, (first, stored), (rows, jnp.arange(1, spans + 1, dtype=jnp.int32)))
    return last, stored, results


def _backward(chain: Chain, last: Any, stored: Any, plan: Plan, perturbed: Any, cotangents: Any) -> Any:
    """Return two cotangents: for the perturbed leaves of the chain, and for the first state."""
    spans, blocks = chain.steps // chain.every, chain.every // plan.block
    schedule = binomial_schedule(spans * blocks, plan.places)
    moves = jax.tree.map(jnp.asarray, (schedule.blocks, schedule.sources, schedule.targets))
    varied, fixed = eqx.partition(chain, perturbed)
    of_last, of_results = cotangents

    def pull(function: Callable[[Chain, Any], Any], state: Any, cotangent: Any) -> tuple[Any, Any]:
        """Return the cotangents of the chain and of the state, if the result of `function` has the given cotangent."""
        numbers, rest = eqx.partition(state, eqx.is_inexact_array)

        def differentiable(varied: Any, numbers: Any) -> Any:
            return eqx.filter(function(eqx.combine(varied, fixed), eqx.combine(numbers, rest)), eqx.is_inexact_array)

        value, pullback = jax.vjp(differentiable, varied, numbers)
        return pullback(_materialised(value, cotangent))

    def pull_result(n: Array, state: Any, pulled: Any) -> Any:
        cotangent = jax.tree.map(lambda x: x[n - 1], of_results)
        return jax.tree.map(
            jnp.add, pulled, pull(lambda chain, state: chain.result(state, _index(n)), state, cotangent)
        )

    def reverse(carry: Any, row: Any) -> tuple[Any, None]:
        stored, (total, cotangent) = carry
        number, start, stop, top = row

        def move(i: Array | int, stored: Any) -> Any:
            block, source, target = (column[i] for column in moves)
            return plan.write(stored, target, chain.advance(plan.read(stored, source), block, plan.block))

        if schedule.blocks.size:
            stored = lax.fori_loop(start, stop, move, stored)
        state = plan.read(stored, top)
        own, cotangent = pull(lambda chain, state: chain.advance(state, number, plan.block), state, cotangent)
        pulled = jax.tree.map(jnp.add, total, own), cotangent
        if jax.tree.leaves(of_results):
            n = number // blocks
            seen = (number % blocks == 0) & (n > 0)
            pulled = lax.cond(seen, pull_result, lambda n, state, pulled: pulled, n, state, pulled)
        return (stored, pulled), None

    pulled = jax.tree.map(zeros_like, varied), _materialised(eqx.filter(last, eqx.is_inexact_array), of_last)
    if jax.tree.leaves(of_results):
        pulled = pull_result(jnp.asarray(spans, jnp.int32), last, pulled)
    ends = [0, *schedule.ends[::-1].tolist()]
    order = jnp.arange(spans * blocks, dtype=jnp.int32)[::-1]
    rows = order, jnp.asarray(ends[:-1], jnp.int32), jnp.asarray(ends[1:], jnp.int32), jnp.asarray(schedule.tops[::-1])
    (_, pulled), _ = lax.scan(reverse, (stored, pulled), rows)
    return pulled


def gradient(chain: Chain, first: Any, plan: Plan, perturbed: Any) -> Any:
    """Return the gradient of half the sum of the squares of all numbers in the last state and in the results.

    The gradient is with respect to the perturbed arrays of `chain` and to the state `first`. `best_plan` measures the
    memory of this gradient.
    """
    last, stored, results = _forward(chain, first, plan)
    return _backward(chain, last, stored, plan, perturbed, eqx.filter((last, results), eqx.is_inexact_array))


def _index(number: Array | int) -> Array:
    """Return the number of a step as an array that always has the same type.

    Under `jax.set_mesh`, JAX (0.10.2) gives loop counters a type without a mesh, and scanned arrays a type with the
    mesh.
    """
    return jnp.arange(1, dtype=jnp.int32)[0] + number


def _materialised(value: Any, cotangent: Any) -> Any:
    """Return the cotangent of `value`, with zeros for leaves that are `None`."""
    return jax.tree.map(lambda x, ct: zeros_like(x) if ct is None else ct, value, cotangent)


def _makes_real_fields(primitive: Any, *operands: Any, **params: Any) -> bool:
    """Return whether a primitive of a step is a transform to real fields, from which products are computed."""
    if not primitive.name.startswith("distributed_operator"):
        return False
    # JAX (0.10.2) cannot store complex results: it fails with "reduce_precision does not accept dtype complex64".
    return not jnp.issubdtype(params["call"].plan.result_dtype(operands[0].dtype), jnp.complexfloating)
