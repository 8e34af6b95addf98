"""Checks of plans that are made by hand, on grids of any number of axes, against NumPy and SciPy."""

import math
from dataclasses import dataclass, field, replace

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import scipy.fft
from decompops._core.primitive import apply
from decompops._plan.lower import Chunks, schedule
from decompops.extend import (
    DFT,
    AbstractStage,
    Blocks,
    Call,
    Clear,
    Crop,
    Extend,
    LocalTransform,
    Move,
    Plan,
    RealToReal,
)
from jax.sharding import Mesh

from checks import assert_block, distributed, in_pieces
from helpers import extended_axis, make_mesh, random_field


Entry = str | tuple[str, ...]


def check_plans(backend) -> None:
    """Run random sequences of transforms, moves and halo exchanges on grids of 1 to 5 axes.

    A sharded grid axis is sharded over one or several mesh axes. Each exchange has one, two or three pieces. Half of
    the sequences also have cosine and sine transforms. XLA runs some of these between kernels.
    """
    n, rng = jax.device_count(), np.random.default_rng(0)
    pencils, slab = make_mesh((2, n // 2)), make_mesh((n,))
    for ndim in (1, 2, 3, 4, 5) if n == 2 else (2, 4):
        for mesh, entries in ((slab, ("x",)), (pencils, ("x", "y")), (pencils, (("y", "x"),))):
            for waves in (False, True) if len(entries) <= ndim else ():
                check(backend, mesh, random_steps(rng, mesh, ndim, entries, waves=waves), rng)
    check(backend, slab, halved_in_the_middle(slab), rng)
    check(backend, slab, planes_of_vectors(slab), rng)
    check(backend, slab, planes_between_others(slab), rng)
    check(backend, slab, two_exchanges(slab), rng)
    check(backend, slab, an_exchange_and_a_halo(slab), rng)
    check_adjoint(backend, pencils)
    if n == 4:
        check_partial_move(backend, pencils)
    check_kinds(backend, slab)
    assert backend.takes((Clear(Blocks((2,) * 9, (1,) * 9, (None,) * 9)),)) == 0  # Nine axes are too many for kernels.


@dataclass
class Steps:
    """A plan under construction, and its expected result for `u`.

    `u` is a field without padding in the order of the grid axes.
    """

    u: np.ndarray
    source: Blocks
    stages: list[AbstractStage] = field(default_factory=list)
    batch: int = 0
    expected: np.ndarray = field(init=False)

    def __post_init__(self):
        self.expected = self.u

    @property
    def here(self) -> Blocks:
        return self.stages[-1].after if self.stages else self.source

    @property
    def whole(self) -> list[int]:
        return [axis for axis, parts in enumerate(self.here.parts) if parts == 1]

    def transform(self, transform: DFT | RealToReal, axes: tuple[int, ...], n: int = 0) -> None:
        """Add a transform. `n` is the number of points of the halved axis after a transform to real space."""
        lengths = list(self.here.lengths)
        if isinstance(transform, DFT) and transform.kind != "c2c":
            lengths[axes[-1]] = n or lengths[axes[-1]] // 2 + 1
        self.stages.append(LocalTransform(self.here, replace(self.here, lengths=tuple(lengths)), axes, transform))
        self.expected = transformed(self.expected, transform, [self.batch + axis for axis in axes], n)

    def move(self, source: int, target: int, order: tuple[int, ...]) -> None:
        names, parts = list(self.here.names), list(self.here.parts)
        names[source], names[target] = names[target], names[source]
        parts[source], parts[target] = parts[target], parts[source]
        self.stages.append(Move(self.here, replace(self.here, names=tuple(names), parts=tuple(parts), order=order)))

    def extend(self, axis: int, halo: tuple[int, int], periodic: bool) -> None:
        halos = tuple(halo if i == axis else pair for i, pair in enumerate(self.here.halo))
        parts = self.here.parts[axis]
        self.stages.append(Extend(self.here, replace(self.here, halo=halos), axis, periodic))
        self.expected = extended_axis(self.expected, self.batch + axis, parts, *halo, periodic)


def transformed(u: np.ndarray, transform: DFT | RealToReal, axes: list[int], n: int) -> np.ndarray:
    """Return the transform computed by NumPy and SciPy. `n` is the number of points of a halved axis in real space."""
    if isinstance(transform, RealToReal):
        for axis in axes:
            u = np.moveaxis(waves(np.moveaxis(u, axis, -1), transform), -1, axis)
        return u
    points = [u.shape[axis] for axis in axes]
    match transform.kind:
        case "c2c":
            return np.fft.fftn(u, axes=axes) if transform.sign == -1 else np.fft.ifftn(u, axes=axes, norm="forward")
        case "r2c":
            u = np.fft.rfftn(u, axes=axes)
            return u if transform.sign == -1 else u.conj()
        case "c2r":
            u = u if transform.sign == 1 else u.conj()
            return np.fft.irfftn(u, s=[*points[:-1], n], axes=axes, norm="forward")


# For each type of transform, the two lists give the end cells of the input and of the output whose weight differs.
DCT_ENDS = {1: ([0, -1], [0, -1]), 2: ([], [0]), 3: ([0], []), 4: ([], [])}
DST_ENDS = {1: ([], []), 2: ([], [-1]), 3: ([-1], []), 4: ([], [])}


def waves(u: np.ndarray, transform: RealToReal) -> np.ndarray:
    """Transform the real part and the imaginary part of `u` along the last axis."""
    if np.iscomplexobj(u):
        return waves(u.real, transform) + 1j * waves(u.imag, transform)
    before, after = (DCT_ENDS if transform.kind == "dct" else DST_ENDS)[transform.type]
    u = u.copy()
    u[..., before] *= 2 ** (transform.before / 2)
    u = (scipy.fft.dct if transform.kind == "dct" else scipy.fft.dst)(u, transform.type)
    u[..., after] *= 2 ** (transform.after / 2)
    return u


def random_steps(rng: np.random.Generator, mesh: Mesh, ndim: int, entries: tuple[Entry, ...], *, waves: bool) -> Steps:
    lengths = tuple(rng.integers(2, {1: 40, 2: 20, 3: 9}.get(ndim, 5), ndim).tolist())
    axes = rng.permutation(ndim).tolist()
    names, parts = [None] * ndim, [1] * ndim
    for axis, entry in zip(axes, entries):
        names[axis] = entry
        parts[axis] = math.prod(mesh.shape[name] for name in (entry if isinstance(entry, tuple) else (entry,)))
    order = lambda: tuple(rng.permutation(ndim).tolist())
    batch = tuple(rng.integers(1, 4, rng.integers(0, 3)).tolist())
    is_complex, halved = bool(rng.integers(2)), None
    dtypes = (np.complex64, np.complex128) if is_complex else (np.float32, np.float64)
    u = random_field((*batch, *lengths), dtypes[rng.integers(2)], int(rng.integers(99)))
    steps = Steps(u, Blocks(lengths, tuple(parts), tuple(names), order()), batch=len(batch))
    for _ in range(4):
        whole = rng.permutation(steps.whole).tolist()
        if whole:
            chosen = tuple(whole[: rng.integers(1, len(whole) + 1)])
            sign, last = int(rng.choice([-1, 1])), chosen[-1]
            if waves and rng.integers(2):
                kind, number = str(rng.choice(["dct", "dst"])), int(rng.integers(1, 5))
                steps.transform(RealToReal(kind, number, *rng.integers(-2, 3, 2).tolist()), chosen)
            elif not is_complex:
                halved, is_complex = (last, steps.here.lengths[last]), True
                steps.transform(DFT("r2c", sign), chosen)
            elif halved and halved[0] in whole and rng.integers(2):
                chosen = (*(axis for axis in chosen if axis != halved[0]), halved[0])
                steps.transform(DFT("c2r", sign), chosen, halved[1])
                is_complex, halved = False, None
            else:
                steps.transform(DFT("c2c", sign), chosen)
        divided = [axis for axis in range(ndim) if axis not in steps.whole]
        if divided and steps.whole:
            steps.move(int(rng.choice(divided)), int(rng.choice(steps.whole)), order())
    if rng.integers(2):
        for axis in rng.permutation(ndim)[:2].tolist():
            steps.extend(axis, tuple(rng.integers(0, 4, 2).tolist()), bool(rng.integers(2)))
    else:
        steps.stages.append(Clear(steps.here))
    return steps


def halved_in_the_middle(mesh: Mesh) -> Steps:
    """Return a plan with a real transform of two axes, whose halved axis is not the last axis of the block."""
    steps = Steps(random_field((3, 5, 12, 10)), Blocks((5, 12, 10), (mesh.size, 1, 1), ("x", None, None)), batch=1)
    steps.transform(DFT("r2c", -1), (2, 1))
    steps.transform(DFT("c2c", -1), (2,))
    steps.move(0, 2, (1, 2, 0))
    steps.transform(DFT("c2c", 1), (0,))
    return steps


def planes_of_vectors(mesh: Mesh) -> Steps:
    """Return a plan for a vector field whose components are its last axis.

    In this plan, the lines that a kernel transforms at once span several axes.
    """
    steps = Steps(random_field((6, 40, 9, 3)), Blocks((6, 40, 9, 3), (1, 1, mesh.size, 1), (None, None, "x", None)))
    steps.transform(DFT("r2c", -1), (0, 1))
    steps.move(2, 0, (0, 1, 2, 3))
    steps.transform(DFT("c2c", 1), (2,))
    return steps


def planes_between_others(mesh: Mesh) -> Steps:
    """Return a plan that transforms planes between other transforms.

    Lines of 4 modes become 6 real points, and then 4 modes again, which take more memory than the points.
    """
    blocks = Blocks((mesh.size, 4, 4, 4), (mesh.size, 1, 1, 1), ("x", None, None, None))
    steps = Steps(random_field((5, *blocks.lengths), np.complex128), blocks, batch=1)
    steps.transform(DFT("c2r", 1), (3,), 6)
    steps.transform(DFT("r2c", -1), (2, 3))
    steps.transform(DFT("c2c", 1), (1,))
    return steps


def two_exchanges(mesh: Mesh) -> Steps:
    """Return a plan with two consecutive exchanges, of which the second changes the storage order."""
    n = 2 * mesh.size
    steps = Steps(random_field((n, 5, n), np.complex128), Blocks((n, 5, n), (mesh.size, 1, 1), ("x", None, None)))
    steps.transform(DFT("c2c", -1), (2,))
    steps.move(0, 1, (0, 1, 2))
    steps.move(1, 2, (1, 2, 0))
    return steps


def an_exchange_and_a_halo(mesh: Mesh) -> Steps:
    steps = Steps(random_field((8, 9), np.complex128), Blocks((8, 9), (mesh.size, 1), ("x", None)))
    steps.transform(DFT("c2c", -1), (1,))
    steps.move(0, 1, (0, 1))
    steps.extend(1, (2, 1), periodic=True)
    return steps


def check(backend, mesh: Mesh, steps: Steps, rng: np.random.Generator) -> None:
    scale = float(rng.uniform(0.5, 2))
    plan = Plan("Thing", steps.source, tuple(steps.stages), scale)
    by_xla = [_is_run_by_xla(stage) for stage in plan.stages]
    assert backend.takes(plan.stages) == [*by_xla, True].index(True)
    backend = in_pieces(backend, int(rng.integers(1, 4)))
    parts = schedule(plan, backend.takes, "cpu", backend.overlap, math.prod(steps.u.shape[: steps.batch]))
    # One kernel runs all pieces, except in plans with transforms that XLA runs, or with halos of a batch. These plans
    # need a kernel for each piece.
    halos = steps.batch > 0 and any(isinstance(stage, Extend) for stage in plan.stages)
    assert halos or any(by_xla) or not any(isinstance(part, Chunks) for part in parts)
    lead = tuple(range(steps.batch))
    stored = lambda u, blocks: u.transpose(*lead, *(steps.batch + axis for axis in blocks.order))
    result = apply(Call(plan, mesh, backend), placed(stored(steps.u, plan.source), mesh, plan.source))
    expected = scale * stored(steps.expected, plan.target)
    assert result.dtype == plan.result_dtype(steps.u.dtype)
    assert_block(result, expected)


def _is_run_by_xla(stage: AbstractStage) -> bool:
    if not isinstance(stage, LocalTransform) or not isinstance(stage.transform, RealToReal):
        return False
    has_large_prime = any(n % prime == 0 for n in stage.points for prime in (13, 17, 19, 23, 29, 31, 37))
    return stage.transform.type in (1, 4) or has_large_prime


def placed(u: np.ndarray, mesh: Mesh, blocks: Blocks) -> jax.Array:
    lead = u.ndim - blocks.ndim
    spec = jax.sharding.PartitionSpec(*[None] * lead, *blocks.spec)
    return distributed(u, mesh, spec, (*u.shape[:lead], *blocks.shape))


def check_adjoint(backend, mesh: Mesh) -> None:
    """Test halos and their adjoint on a grid of four axes, one of which is sharded over the whole mesh."""
    blocks = Blocks((3, 9, 2, 4), (1, mesh.size, 1, 1), (None, ("x", "y"), None, None))
    wide = replace(blocks, halo=((0, 0), (2, 1), (0, 0), (0, 0)))
    wider = replace(wide, halo=((1, 0), (2, 1), (0, 0), (0, 0)))
    plan = Plan("Halos", blocks, (Extend(blocks, wide, 1, True), Extend(wide, wider, 0, False)))
    call = Call(plan, mesh, backend)
    x = placed(random_field((2, *blocks.lengths)), mesh, blocks)
    y = placed(random_field((2, *wider.shape), seed=1), mesh, wider)
    np.testing.assert_allclose(jnp.sum(y * apply(call, x)), jnp.sum(apply(call.transpose(), y) * x), rtol=1e-12)
    cropped = Plan("Crop", wider, (Crop(wider, blocks), Clear(blocks)))  # Padding may hold a periodic image.
    assert_block(apply(Call(cropped, mesh, backend), apply(call, x)), random_field((2, *blocks.lengths)))


def check_partial_move(backend, mesh: Mesh) -> None:
    """Test a move of one of two combined mesh axes, and its derivatives. XLA runs this move between two kernels."""
    source = Blocks((4, 3, 4), (4, 1, 1), (("x", "y"), None, None))
    half = replace(source, parts=(2, 1, 2), names=("x", None, "y"))
    whole = replace(source, parts=(1, 1, 4), names=(None, None, ("y", "x")))
    first = LocalTransform(source, source, (1,), DFT("c2c", -1))
    last = LocalTransform(whole, whole, (0,), DFT("c2c", 1))
    plan = Plan("Parts", source, (first, Move(source, half), Move(half, whole), last))
    assert [backend.takes(plan.stages[i:]) for i in range(4)] == [1, 0, 0, 1]
    call, u, y = Call(plan, mesh, backend), random_field(source.lengths), random_field(source.lengths, np.complex128, 1)
    x, t = placed(u, mesh, source), placed(y, mesh, whole)

    @jax.jit
    def programs(x, t):
        square = lambda x: jnp.sum(jnp.abs(apply(call, x * x + 0j)) ** 2) / 2
        slope = jax.grad(square)
        inverse = Call(plan.inverse(), mesh, backend)
        return apply(call, x + 0j), apply(call.transpose(), t), apply(inverse, t), jax.jvp(slope, (x,), (x,))[1]

    forward = lambda u: np.fft.ifft(np.fft.fft(u, axis=1), axis=0, norm="forward")
    matrix = forward(np.eye(u.size).reshape(-1, *u.shape).transpose(1, 2, 3, 0)).reshape(u.size, -1)
    flat = u.ravel()
    curvature = 6 * flat * (matrix.conj().T @ (matrix @ flat**2)).real  # The direction is `u`.
    inverse = np.fft.ifft(np.fft.fft(y, axis=0, norm="forward"), axis=1)
    expected = forward(u), (matrix.T @ y.ravel()).reshape(u.shape), inverse, curvature.reshape(u.shape)
    for found, values in zip(programs(x, t), expected):
        assert_block(found, values)


def check_kinds(backend, mesh: Mesh) -> None:
    """Test all real-to-real transforms between exchanges, for real and complex fields in both precisions."""
    for number, dtype in zip((1, 2, 3, 4), (np.float64, np.complex64, np.float32, np.complex128)):
        blocks = Blocks((3, 7, 4, 6), (1, mesh.size, 1, 1), (None, "x", None, None))
        steps = Steps(random_field(blocks.lengths, dtype), blocks)
        steps.transform(RealToReal("dct", number, 1, -1), (0,))
        steps.move(1, 0, (0, 2, 3, 1))
        steps.transform(RealToReal("dst", number, -2, 1), (1, 2))
        steps.transform(RealToReal("dst", number), (3,))
        check(backend, mesh, steps, np.random.default_rng(number))


def main() -> None:
    dops.MPI.initialize()
    jax.config.update("jax_enable_x64", True)
    check_plans(dops.MPI(planning="estimate"))
    print("passed")


if __name__ == "__main__":
    main()
