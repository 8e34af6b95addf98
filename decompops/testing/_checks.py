"""Checks of adjoints, of derivatives, and of results on several meshes."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Inexact, Num

from .._common.check import brief, check_count, check_number
from .._core.structure import Structure
from .._operator.base import AbstractOperator


Values = Inexact[Array | np.ndarray, "..."]
Numbers = Num[Array | np.ndarray, "..."]


def _dtype(dtype: Any) -> np.dtype:
    """Return a dtype. Raises `TypeError` for what is none."""
    try:
        return jnp.dtype("none" if dtype is None else dtype)
    except TypeError:
        raise TypeError(f"`dtype` must be a dtype, such as `jnp.float32`; got {dtype!r}.") from None


def tolerance(dtype: Any) -> float:
    """Return the error that the checks allow by default, relative to the largest value.

    It is 1e-10 in 64 bits, 1e-5 in 32 bits, and `10 * eps` in fewer bits: 0.01 for float16, and 0.08 for bfloat16.
    Integers and truth values must be equal, so the allowed error is zero.
    """
    dtype = _dtype(dtype)
    if not jnp.issubdtype(dtype, jnp.inexact):
        return 0.0
    kind = jnp.finfo(dtype)
    return 10 * float(kind.eps) if kind.bits < 32 else 1e-5 if kind.bits == 32 else 1e-10


def random_input(structure: Structure, *, batch: tuple[int, ...] = (), dtype: Any = None, seed: int = 0) -> Array:
    """Return a random field or spectrum of normal numbers, which is zero in the padding. Halo layers are random, too.

    **Arguments:**

    - `structure`: the `in_structure` or `out_structure` of an operator. If it allows real and complex numbers, the
        result is complex.
    - `batch`: the lengths of batch axes, or one length.
    - `dtype`: a dtype of real floating-point numbers; `None` for JAX's default. The real and imaginary parts of complex
        numbers have this dtype, or float32 if it has fewer bits.
    - `seed`: of NumPy's random numbers. The same seed gives the same numbers on every mesh.

    **Raises:** `TypeError` for a `structure` of another type, and for a `dtype` of integers or truth values;
    `ValueError` if `batch` or `seed` is not made of integers from zero.
    """
    if not isinstance(structure, Structure):
        raise TypeError(
            f"`structure` must be a structure, such as `operator.in_structure`; got {type(structure).__name__}."
        )
    batch = tuple(check_count("batch", n, least=0) for n in (batch if isinstance(batch, tuple | list) else (batch,)))
    seed = check_count("seed", seed, least=0)
    wanted = jax.dtypes.canonicalize_dtype(_dtype(np.float64 if dtype is None else dtype))
    if not jnp.issubdtype(wanted, jnp.inexact):
        raise TypeError(f"`dtype` must be a dtype of real floating-point numbers, such as float32; got {dtype!r}.")
    real = jnp.finfo(wanted).dtype
    layout, lead = structure.layout, (*batch, *(structure.components or ()))
    has_halo = layout.blocks.has_halo
    shape = (*lead, *(layout.shape if has_halo else layout.true_shape))
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape)
    if structure.kind != "real":
        values = values + 1j * rng.standard_normal(shape)
    values = values.astype(real if structure.kind == "real" else np.result_type(real, np.complex64))
    return jax.device_put(values, layout.sharding_of(shape)) if has_halo else layout.shard(values)


def assert_adjoint(
    operator: Callable,
    adjoint: Callable | None = None,
    x: Numbers | None = None,
    y: Numbers | None = None,
    *,
    rtol: float | None = None,
) -> None:
    """Assert `<y, A x> = <A^H y, x>` in the inner product `Re(sum(conj(a) * b))`.

    It is enough that the operators are linear for real factors.

    **Arguments:**

    - `operator`, `adjoint`: functions. By default, `adjoint` is `operator.H`.
    - `x`, `y`: an input of each of them, with its padding, as `layout.shard` returns it. By default random ones, if
        `operator` is an operator of decompops.
    - `rtol`: the allowed difference, relative to the norms of y and A x. The default is the larger `tolerance` of the
        dtypes of y and A x.

    **Raises:** `AssertionError` if the numbers differ, or if A x has another shape than y, or A^H y than x; `TypeError`
    if an argument has no default for this `operator`.
    """
    x, y = _given(operator, x, y)
    adjoint = _pair_of(operator, "H", "adjoint") if adjoint is None else adjoint
    _assert_paired("conjugate transpose", operator, adjoint, x, y, np.conj, rtol)


def assert_transposed(
    operator: Callable,
    transposed: Callable | None = None,
    x: Numbers | None = None,
    y: Numbers | None = None,
    *,
    rtol: float | None = None,
) -> None:
    """Assert `<y, A x> = <A^T y, x>` in JAX's pairing `Re(sum(a * b))`, without conjugation.

    `jax.vjp` computes this transpose. The arguments are those of `assert_adjoint`; `transposed` is by default
    `operator.T`.
    """
    x, y = _given(operator, x, y)
    transposed = _pair_of(operator, "T", "transposed") if transposed is None else transposed
    _assert_paired("transpose", operator, transposed, x, y, np.asarray, rtol)


def assert_derivative(
    function: Callable, x: Values, direction: Values, *, order: int = 1, step: float = 1e-3, rtol: float = 1e-6
) -> None:
    """Assert that JAX's derivatives of a real function are those of central differences of fourth order.

    **Arguments:**

    - `function`: a function of `x` that returns a real number.
    - `x`, `direction`: real or complex arrays. In 64 bits, choose `direction` so that `step * direction` is small
        against `x`.
    - `order`: 1 or 2. 1 compares the derivative along `direction`, in forward and in reverse mode. 2 also compares the
        second derivative, forward over reverse.
    - `step`: the length of the differences.
    - `rtol`: the allowed relative error.

    **Raises:** `AssertionError` if the numbers differ; `TypeError` or `ValueError` if an argument is invalid.
    """
    if check_count("order", order) > 2:
        raise ValueError(f"`order` must be 1 or 2; got {order!r}.")
    check_number("step", step, positive=True)
    x, direction = jnp.asarray(x), jnp.asarray(direction)
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        raise TypeError(f"`x` must have real or complex floating-point numbers; got {brief(x)}.")
    value = function(x)
    if not (isinstance(value, Array) and value.ndim == 0 and jnp.issubdtype(value.dtype, jnp.floating)):
        raise TypeError(f"`function` must return one real floating-point number; got {brief(value)}.")

    def gradient(x: Array) -> Array:
        return jnp.sum(jax.grad(function)(x) * direction).real

    def along(f: Callable) -> Array:
        return jax.jvp(f, (x,), (direction,))[1]

    _assert_equal("the forward derivative", along(function), _difference(function, x, direction, step), rtol)
    _assert_equal("the gradient", gradient(x), along(function), rtol)
    if order > 1:
        _assert_equal("the second derivative", along(gradient), _difference(gradient, x, direction, step), rtol)


def assert_same_on_meshes(
    make: Callable[[Mesh], Callable], meshes: Iterable[Mesh], *arrays: np.ndarray, rtol: float | None = None
) -> None:
    """Assert that a function computes the same on every mesh as on one device.

    An operator must also ignore the padding of its input, and the padding of its result must be zero.

    !!! example

        ```python
        from decompops import testing

        testing.assert_same_on_meshes(lambda mesh: dops.FFT3D(mesh, numpy_array.shape), [mesh], numpy_array)
        ```

    **Arguments:**

    - `make`: a function of a mesh that returns an operator, or a function of `arrays`. A function returns its results
        without padding, as `layout.gather` does.
    - `meshes`: meshes of `jax.make_mesh`. The mesh of one device has the axis names and types of the first of them.
    - `arrays`: NumPy arrays, which hold whole fields.
    - `rtol`: the allowed difference, relative to the largest value. The default is `tolerance(dtype)`.

    **Raises:** `AssertionError` if the numbers, shapes or dtypes of the results differ. NaN differs from every number.
    """
    meshes = [meshes] if isinstance(meshes, Mesh) else list(meshes)
    if not meshes:
        raise ValueError("`meshes` must have at least one mesh; got none.")
    if wrong := [mesh for mesh in meshes if not isinstance(mesh, Mesh)]:
        raise TypeError(f"`meshes` must be meshes of `jax.make_mesh`; got {wrong[0]!r}.")
    first = meshes[0]
    device = np.array(first.local_devices[:1]).reshape((1,) * len(first.axis_names))
    alone = _results(make(Mesh(device, first.axis_names, axis_types=first.axis_types)), arrays)
    for mesh in meshes:
        found = _results(make(mesh), arrays)
        if jax.tree.structure(found) != jax.tree.structure(alone):
            raise AssertionError(f"On {mesh}, the results have another structure than on one device.")
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(alone)):
            _assert_close(f"On {mesh}, the result", one, other, rtol)


def _given(operator: Any, x: Any, y: Any) -> tuple[Any, Any]:
    if x is not None and y is not None:
        return x, y
    if not isinstance(operator, AbstractOperator):
        raise TypeError(f"`x` and `y` must be given for a function that is no operator of decompops; got {operator!r}.")
    x = random_input(operator.in_structure) if x is None else x
    return x, random_input(operator.out_structure, seed=1) if y is None else y


def _pair_of(operator: Any, attribute: str, name: str) -> Callable:
    found = getattr(operator, attribute, None)
    if found is None:
        raise TypeError(f"`{name}` must be given for a function without `.{attribute}`; got {operator!r}.")
    return found


def _assert_paired(name: str, operator: Any, paired: Any, x: Any, y: Any, first: Callable, rtol: float | None) -> None:
    there, back, x, y = _whole(operator(x)), _whole(paired(y)), _whole(x), _whole(y)
    # NumPy would broadcast other shapes, and the inner products of a wrong transpose could be equal.
    if there.shape != y.shape or back.shape != x.shape:
        raise AssertionError(
            f"{operator!r} must give the shape of `y`, {y.shape}, and its {name} that of `x`, {x.shape}; got "
            f"{there.shape} and {back.shape}."
        )
    rtol = max(tolerance(y.dtype), tolerance(there.dtype)) if rtol is None else rtol
    there, back, x, y = map(_wide, (there, back, x, y))
    left, right = np.sum(first(y) * there).real, np.sum(first(back) * x).real
    scale = np.linalg.norm(y) * np.linalg.norm(there)
    if not abs(left - right) <= rtol * scale:
        raise AssertionError(
            f"{operator!r} and its {name} must give equal inner products: {left:.12g} = <y, A x> and {right:.12g}, "
            f"with the product of the norms {scale:.3g}."
        )


def _assert_equal(name: str, found: Array, expected: Array, rtol: float) -> None:
    if not abs(float(found) - float(expected)) <= rtol * abs(float(expected)):
        raise AssertionError(
            f"{name} must be {float(expected):.12g}, up to the relative error {rtol}; got {found:.12g}."
        )


def _assert_close(name: str, found: np.ndarray, expected: np.ndarray, rtol: float | None) -> None:
    for what in ("shape", "dtype"):
        one, other = getattr(found, what), getattr(expected, what)
        if one != other:
            raise AssertionError(f"{name} must have {what} {other}, as on one device; got {one}.")
    rtol = tolerance(found.dtype) if rtol is None else rtol
    if not rtol and (others := np.count_nonzero(found != expected)):
        raise AssertionError(f"{name} must be equal to that of one device; got {others} other values.")
    found, expected = _wide(found), _wide(expected)
    other = found != expected  # Equal infinities have no difference.
    error = np.abs(found[other] - expected[other]).max(initial=0)
    largest = np.abs(expected[np.isfinite(expected)]).max(initial=0)
    if not error <= rtol * largest:
        raise AssertionError(
            f"{name} must be that of one device up to {rtol * largest:.3g}; got an error of {error:.3g}."
        )


def _difference(function: Callable, x: Array, direction: Array, step: float) -> Array:
    def slope(h: float) -> Array:
        return (function(x + h * direction) - function(x - h * direction)) / (2 * h)

    return (4 * slope(step) - slope(2 * step)) / 3


def _results(function: Any, arrays: tuple[np.ndarray, ...]) -> Any:
    if not isinstance(function, AbstractOperator):
        return jax.tree.map(_whole, function(*arrays))
    result = function(*(_with_padding(function.in_structure, array) for array in arrays))
    found = function.out_structure.layout.gather(result)
    if np.count_nonzero(found) != np.count_nonzero(_whole(result)):
        raise AssertionError(f"The padding of the result of {function!r} must be zero; got other numbers.")
    return found


def _with_padding(structure: Structure, array: np.ndarray) -> np.ndarray:
    """Return an array with its padding, which has ones: an operator must ignore them."""
    shape = (*array.shape[: -structure.ndim], *structure.layout.shape)
    if len(shape) != array.ndim or any(n > wanted for n, wanted in zip(array.shape, shape)):
        return array  # The operator says what is wrong with its shape.
    return np.pad(array, [(0, wanted - n) for n, wanted in zip(array.shape, shape)], constant_values=1)


def _wide(array: np.ndarray) -> np.ndarray:
    """Return an array in 64 bits, in which sums over numbers of fewer bits neither overflow nor lose digits."""
    return array.astype(np.result_type(array.dtype, np.float64))


def _whole(array: Any) -> np.ndarray:
    """Return an array on the host. Arrays of several processes are gathered."""
    if isinstance(array, Array) and not array.is_fully_addressable and isinstance(array.sharding, NamedSharding):
        array = jax.device_put(array, NamedSharding(array.sharding.mesh, PartitionSpec()))
    return np.asarray(array)
