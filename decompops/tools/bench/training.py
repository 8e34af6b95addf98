"""The benchmark's case of a training step of a Fourier neural operator, beside the same mathematics in plain JAX."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import NamedSharding, PartitionSpec as P

from ... import FFT, Decomposition
from ..._common.placement import place
from ...extend import check_fft
from ...nn import FNO
from ..hlo import collectives
from .program import Contestant, Operand, Problem, Program, compile_for, gathered, random_field
from .reference import Spectra
from .solvers import MODES, Calls, SolverTransform


# The number of channels of the operator, so that mesh axes of 2, 3, 4 or 8 devices shard the weights; the number of its
# blocks; and the length of a step against the gradient.
WIDTH, DEPTH, RATE = 24, 4, 1.0

Step = Callable[..., list[Array]]


def _fno_step(dec: Decomposition, dtype: np.dtype) -> Problem:
    """Return the problem of one step of gradient descent: from a field, a target and parameters to new parameters."""
    fft = FFT(dec, real=True)
    modes = tuple(min(MODES, (n + 1) // 2) for n in check_fft(fft))
    # The operator is made without values, because the program takes the parameters as sharded arguments.
    options = {"width": WIDTH, "modes": modes, "depth": DEPTH, "dtype": dtype, "key": jax.random.key(0)}
    model = eqx.filter_eval_shape(FNO, fft, 1, 1, **options)
    transform = SolverTransform(model.blocks[0].spectral.transform, dtype)
    parameters, rest = eqx.partition(model, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
    leaves, structure = jax.tree.flatten(parameters)
    layout = model.blocks[0].spectral.weight_layout
    weights = Operand(dtype, layout.blocks)
    operands = tuple(weights if leaf.shape == layout.shape else Operand(dtype, None, leaf.shape) for leaf in leaves)

    def predict(u: Array, leaves: Sequence[Array]) -> Array:
        return eqx.combine(structure.unflatten(leaves), rest)(u)

    def data():
        reference = transform.reference
        u, target = reference.inverse(reference.noise(1)), random_field((1, *reference.shape), np.dtype(float))
        shapes = [layout.true_shape if operand is weights else operand.lead for operand in operands]
        arrays = [random_field(shape, np.dtype(float)) / math.sqrt(WIDTH) for shape in shapes]
        with jax.enable_x64(True):
            step = step_of(partial(_prediction, partial(_on_one_device, reference)))
            device = jax.local_devices()[0]
            answer = jax.jit(step)(*(jax.device_put(array, device) for array in (u, target, *arrays)))
        return (u, target, *arrays), [np.asarray(array) for array in answer]

    calls: Calls = (("forward", (WIDTH,)), ("inverse", (WIDTH,)))
    calls *= 2 * DEPTH  # A gradient also runs the transpose of each call.
    fields = transform.field(1), transform.field(1)
    ours = Program(step_of(predict), (*fields, *operands), operands, transform.plans(calls), transform.mesh, data)

    def peers(u: np.ndarray, target: np.ndarray, *arrays: np.ndarray) -> dict[str, Callable[[], Contestant]]:
        given = dec, dtype, modes, (u, target, *arrays)
        return {
            "jnp.fft.rfftn": lambda: _plain(*given, by_axis=False),
            "jnp.fft by axis": lambda: _plain(*given, by_axis=True),
        }

    return Problem(ours, peers=peers)


def step_of(predict: Callable[[Array, Sequence[Array]], Array]) -> Step:
    """Return a step of gradient descent for the mean square error of `predict(u, parameters)`."""

    def step(u: Array, target: Array, *leaves: Array) -> list[Array]:
        def loss(leaves: Sequence[Array]) -> Array:
            return jnp.sum((predict(u, leaves) - target) ** 2) / u.size

        return [leaf - RATE * slope for leaf, slope in zip(leaves, jax.grad(loss)(leaves))]

    return step


def _prediction(convolve: Callable[[Array, Array], Array], u: Array, leaves: Sequence[Array]) -> Array:
    """Return what an `FNO` with these parameters predicts, where `convolve(weight, v)` is its `SpectralConv`."""

    def affine(first: int, v: Array) -> Array:
        matrix, bias = leaves[first], leaves[first + 1]
        return jnp.einsum("oi,i...->o...", matrix, v) + bias.reshape(-1, *(1,) * (v.ndim - 1))

    v, last = affine(0, u), len(leaves) - 4
    for i in range(2, last, 3):
        v = jax.nn.gelu(convolve(leaves[i], v) + affine(i + 1, v))
    return affine(last + 2, jax.nn.gelu(affine(last, v)))


def _multiplied(weight: Array, k: Array) -> Array:
    return jnp.einsum("oi...,i...->o...", lax.complex(weight[0], weight[1]), k)


def _on_one_device(reference: Spectra, weight: Array, v: Array) -> Array:
    """Multiply the kept modes of all channels by matrices. All modes of the grid are transformed."""
    whole = jnp.fft.rfftn(v, axes=reference.axes, norm=reference.norm)
    kept = _multiplied(weight, whole[(..., *reference.kept)])
    whole = jnp.zeros_like(whole).at[(..., *reference.kept)].set(kept)
    return jnp.fft.irfftn(whole, reference.shape, reference.axes, norm=reference.norm)


def _plain(
    dec: Decomposition, dtype: np.dtype, modes: tuple[int, ...], arrays: Sequence[np.ndarray], *, by_axis: bool
) -> Contestant:
    """Return the step as a user of `jax.jit` would write it, with sharding constraints.

    The transforms are calls of `jnp.fft.rfftn`, or, if `by_axis` is true, transforms of single axes with a constraint
    between them, for which XLA makes an all-to-all. As usual in such programs, m modes of each sign are kept, so that
    the mesh divides the spectrum and the weights. The weights of the mode -m are zero.
    """
    shape, mesh = dec.shape, dec.mesh
    a, b = (*mesh.axis_names, None)[:2]
    if len(shape) != 3 or any(2 * m > n for m, n in zip(modes, shape)):
        raise ValueError(f"the plain program needs three axes of even lengths; got {shape}")
    x, y, z = modes
    added = ((-3, x), (-2, y))  # the axes that have the mode -m

    def put(v: Array, *spec: Any) -> Array:  # `place` is `with_sharding_constraint` here.
        return place(v, NamedSharding(mesh, P(*(None,) * (v.ndim - 3), *spec)))

    def keep(k: Array, axis: int, m: int) -> Array:
        return jnp.concatenate([lax.slice_in_dim(k, 0, m, axis=axis), lax.slice_in_dim(k, -m, None, axis=axis)], axis)

    def fill(k: Array, axis: int, m: int) -> Array:
        zeros = list(k.shape)
        zeros[axis] = shape[axis] - 2 * m
        halves = jnp.split(k, 2, axis)
        return jnp.concatenate([halves[0], jnp.zeros(zeros, k.dtype), halves[1]], axis)

    def fill_last(k: Array) -> Array:
        return jnp.pad(k, [(0, 0)] * (k.ndim - 1) + [(0, shape[-1] // 2 + 1 - z)])

    def convolve(weight: Array, v: Array) -> Array:
        v = put(v, a, b, None)
        if not by_axis:
            k = jnp.fft.rfftn(v, axes=(-3, -2, -1))[..., :z]
            k = _multiplied(weight, put(keep(keep(k, -2, y), -3, x), None, a, b))
            return put(jnp.fft.irfftn(fill_last(fill(fill(k, -3, x), -2, y)), shape, (-3, -2, -1)), a, b, None)
        k = put(jnp.fft.rfft(v)[..., :z], a, None, b)
        k = put(keep(jnp.fft.fft(k, axis=-2), -2, y), None, a, b)
        k = _multiplied(weight, keep(jnp.fft.fft(k, axis=-3), -3, x))
        k = put(jnp.fft.ifft(fill(put(k, None, a, b), -3, x), axis=-3), a, None, b)
        return put(
            jnp.fft.irfft(fill_last(put(jnp.fft.ifft(fill(k, -2, y), axis=-2), a, b, None)), shape[-1]), a, b, None
        )

    def stored(array: np.ndarray) -> Array:
        """Shard fields, and weights with the mode -m."""
        spec = P()
        if array.ndim == 4:
            spec = P(None, a, b, None)
        elif array.ndim == 6:
            spec = P(None, None, None, None, a, b)
            for axis, m in added:
                array = np.insert(array, m, 0, axis)
        array = array.astype(dtype)
        return jax.make_array_from_callback(array.shape, NamedSharding(mesh, spec), lambda index: array[index])

    given = [stored(array) for array in arrays]
    step = step_of(partial(_prediction, convolve))
    shardings = [array.sharding for array in given[2:]]
    compiled = compile_for(jax.jit(step, out_shardings=shardings), *given)

    def collect(results: Sequence[Array]) -> list[np.ndarray]:
        found = [gathered(result) for result in results]
        for axis, m in added:
            found = [np.delete(array, m, axis) if array.ndim == 6 else array for array in found]
        return found

    sent = sum(one.times * one.bytes for one in collectives(compiled.as_text()))
    return Contestant(lambda: compiled(*given), collect, f"sends {sent / 2**20:.4g} MiB per device")


SOLVERS: dict[str, Callable[[Decomposition, np.dtype], Problem]] = {"fno-step": _fno_step}
