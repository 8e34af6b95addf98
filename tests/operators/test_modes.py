"""Tests of `FFT3D` with `modes` against truncated transforms of NumPy, and of `replace` and `multiplicity`."""

import contextlib

import decompops as dops
import jax
import numpy as np
import pytest
from decompops.extend import Call
from decompops.testing import assert_adjoint, assert_transposed
from decompops.tools.hlo import collectives
from jax.sharding import PartitionSpec as P

from helpers import assert_close, make_mesh, random_field, spec_of


AXES = (-3, -2, -1)


def stored_modes(modes, *, real):
    """Return the signed modes along each axis of the spectrum of a grid of shape `modes`."""
    return [(np.fft.rfftfreq if real and i == 2 else np.fft.fftfreq)(m, 1 / m).astype(int) for i, m in enumerate(modes)]


def places(shape, modes, *, real):
    """Return the positions of the stored modes in the whole spectrum, and which of the stored modes are kept."""
    signed = stored_modes(modes, real=real)
    inside = [(2 * abs(j) < m) | (m == n) for j, m, n in zip(signed, modes, shape)]
    return np.ix_(*[j % n for j, n in zip(signed, shape)]), np.logical_and.outer(
        np.logical_and.outer(inside[0], inside[1]), inside[2]
    )


def forward(u, modes, norm, *, real):
    full = (np.fft.rfftn if real else np.fft.fftn)(u, axes=AXES, norm=norm)
    where, inside = places(u.shape[-3:], modes, real=real)
    return np.where(inside, full[..., *where], 0)


def inverse(k, shape, modes, norm, *, real):
    where, inside = places(shape, modes, real=real)
    full = np.zeros((*k.shape[:-3], *shape[:2], shape[2] // 2 + 1 if real else shape[2]), complex)
    full[..., *where] = np.where(inside, k, 0)
    return (np.fft.irfftn if real else np.fft.ifftn)(full, shape, AXES, norm)


@pytest.mark.parametrize(
    ("sizes", "kind", "options", "shape", "modes", "platform"),
    [
        ((2, 4), "auto", {"real": True, "norm": "forward"}, (9, 10, 11), (4, 5, 6), "cpu"),
        ((2, 4), "explicit", {"axis_contiguous": True}, (8, 6, 10), (3, 6, 4), "cpu"),
        ((8, 1), "auto", {"real": True, "axis_contiguous": True}, (8, 12, 6), (5, 4, 6), "cpu"),
        ((8,), "explicit", {"real": True, "norm": "ortho"}, (6, 7, 8), (6, 7, 3), "cpu"),
        ((1, 1), "auto", {}, (5, 4, 6), (2, 1, 5), "cpu"),
        # These cases run the programs for GPUs on CPUs.
        ((2, 4), "auto", {"real": True, "axis_contiguous": True}, (9, 10, 11), (4, 5, 6), "gpu"),
        ((1, 1), "explicit", {"real": True, "norm": "ortho"}, (5, 4, 6), (3, 1, 4), "gpu"),
    ],
)
def test_a_transform_of_some_modes(sizes, kind, options, shape, modes, platform, monkeypatch):
    monkeypatch.setattr(Call, "platform", platform)
    mesh = make_mesh(sizes, kind)
    with jax.set_mesh(mesh) if kind == "explicit" else contextlib.nullcontext():
        fft = dops.FFT3D(mesh, shape=shape, pad=True, modes=modes, **options)
        real, norm, contiguous = fft.real, fft.norm, fft.axis_contiguous
        dec, layout = fft.decomposition, fft.out_layout
        u = random_field((2, *shape), np.float64 if real else np.complex128)
        spectrum = random_field((2, *layout.true_shape), np.complex128, seed=1)  # Modes that are dropped are not zero.
        x, k = dec.shard(u), layout.shard(spectrum)

        @jax.jit
        def everything(x, k):
            there = fft(x)
            back = fft.inverse(there)
            waves = fft.replace(box=dops.Box((1.0, 2.0, 3.0))).wavenumbers()
            return there, back, fft(back), fft.inverse(k), fft.T(k), fft.inverse.H(x), waves, fft.multiplicity()

        there, back, again, expanded, transposed, adjoint, waves, multiplicity = everything(x, k)
        expected = forward(u, modes, norm, real=real)
        assert_close(layout.gather(there), expected)
        assert there.sharding.is_equivalent_to(jax.NamedSharding(mesh, P(None, *fft.out_spec)), 4)
        padding = np.array(there)
        mx, my, mz = layout.true_shape
        padding[..., *map(slice, (my, mz, mx) if contiguous else (mx, my, mz))] = 0
        assert not padding.any()
        assert_close(dec.gather(back), inverse(expected, shape, modes, norm, real=real))
        assert_close(again, there)
        values = layout.gather(k)
        assert_close(dec.gather(expanded), inverse(values, shape, modes, norm, real=real))

        x, k = np.asarray(x), np.asarray(k)
        assert_transposed(lambda _: there, lambda _: transposed, x, k)
        assert_adjoint(lambda _: expanded, lambda _: adjoint, k, x)
        assert fft.T.T is fft.inverse.inverse is fft

        # In Parseval's theorem, `multiplicity` is the weight of each stored mode.
        power = {"backward": 1, "ortho": 0, "forward": -1}[norm]
        total = np.sum(np.asarray(multiplicity) * abs(np.asarray(there)) ** 2)
        assert total == pytest.approx(np.sum(abs(np.asarray(back)) ** 2) * float(np.prod(shape)) ** power, rel=1e-12)
        for wave, j, length, axis in zip(waves, stored_modes(modes, real=real), (1.0, 2.0, 3.0), range(3)):
            position = (2, 0, 1)[axis] if contiguous else axis
            # A Nyquist mode stands for both signs, so it is either dropped or the sum of both modes.
            np.testing.assert_allclose(np.ravel(wave)[: len(j)], 2 * np.pi * j / length, rtol=1e-14)
            assert not np.ravel(wave)[len(j) :].any()
            assert wave.shape[position] == wave.size == there.shape[1 + position]
            if kind == "explicit":
                assert spec_of(wave)[position] == fft.out_spec[position]


def test_fewer_modes_are_fewer_bytes():
    """A transform that keeps fewer modes sends fewer bytes.

    On 2x4 devices, z has only 5 modes (padded to 8) in the exchange before the transform of y, and y has only 8 modes
    in the exchange before the transform of x.
    """
    x = {}
    for modes in (None, 8):
        fft = dops.FFT3D(make_mesh((2, 4)), shape=(16, 16, 16), real=True, modes=modes)
        field = jax.ShapeDtypeStruct((16, 16, 16), np.float32, sharding=fft.decomposition.sharding())
        x[modes] = [(c.kind, c.bytes) for c in collectives(jax.jit(fft).lower(field).compile().as_text())]
    whole = [("all-to-all", 8 * 8 * 4 * 12 * 3 // 4), ("all-to-all", 8 * 8 * 16 * 3 // 2)]
    some = [("all-to-all", 8 * 8 * 4 * 8 * 3 // 4), ("all-to-all", 8 * 8 * 8 * 2 // 2)]
    assert (sorted(x[None]), sorted(x[8])) == (sorted(whole), sorted(some))


def test_replace_keeps_what_it_is_not_told():
    mesh = make_mesh((2, 4))
    fft = dops.FFT3D(mesh, shape=(8, 8, 8), real=True, norm="ortho", axes="x", modes=(3, 8, 8))
    assert fft.replace() == fft
    other = fft.replace(norm="forward", shape=(6, 9, 12), modes=4)
    assert (other.real, other.norm, other.axis_contiguous, other.modes) == (True, "forward", False, (4, 4, 4))
    assert (other.decomposition.shape, other.decomposition.axes) == ((6, 9, 12), ("x",))
    assert (
        fft.replace(modes=None)
        == fft.replace(modes=(8, 8, 8))
        == dops.FFT3D(mesh, shape=(8,) * 3, axes="x", real=True, norm="ortho")
    )


@pytest.mark.parametrize("real", [True, False])
@pytest.mark.parametrize("shape", [(8, 6, 4), (5, 7, 9)])
def test_multiplicity_counts_the_whole_spectrum(shape, real):
    fft = dops.FFT3D(make_mesh((2, 4)), shape=shape, pad=True, real=real)
    counts = np.broadcast_to(fft.multiplicity(dtype="float32"), fft.plan().target.shape)
    assert counts.dtype == np.float32
    assert counts.sum() == np.prod(shape)
    u = random_field(shape)
    power = np.sum(counts * abs(np.asarray(jax.jit(fft)(u if real else u + 0j))) ** 2)
    assert power == pytest.approx(np.sum(u**2) * u.size, rel=1e-6)


BAD = [
    (lambda d, m: d.FFT3D(m, modes=(4, 4, 4)), r"`shape` must be given with `modes`; got None and \(4, 4, 4\)"),
    (
        lambda d, m: d.FFT3D(m, shape=(8, 8, 4), modes=(4, 4, 5)),
        r"`modes` must be at least one and at most \(8, 8, 4\) .*; got \(4, 4, 5\)",
    ),
    (lambda d, m: d.FFT3D(m, shape=(8, 8, 4), modes=5), r"`modes` must be .*; got 5"),
    (lambda d, m: d.FFT3D(m, shape=(8, 8, 4), modes=(0, 1, 1)), r"`modes` must be .*; got \(0, 1, 1\)"),
    (lambda d, m: d.FFT3D(m, shape=(8, 8, 4), modes=(4, 4)), r"`modes` must be .*; got \(4, 4\)"),
    (lambda d, m: d.FFT3D(m, shape=(8, 8, 4), modes=(4, 2.5, 4)), r"`modes` must be .*; got \(4, 2.5, 4\)"),
    (lambda d, m: d.FFT3D(m, shape=(8, 8, 4), modes="few"), "`modes` must be .*; got 'few'"),
    (lambda d, m: d.FFT3D(m, shape=(8, 8, 4)).replace(shape=(4, 4, 4), modes=8), "`modes` must be .*; got 8"),
    (
        lambda d, m: d.FFT3D(m, shape=(8, 8, 4), modes=3)(np.ones((3, 3, 3))),
        r"`x` must have shape .*; got \(3, 3, 3\)",
    ),
    (
        lambda d, m: d.FFT3D(m, shape=(8, 8, 4), modes=3).inverse(np.ones((8, 6, 4))),
        r"`x` must have .*; got \(8, 6, 4\)",
    ),
    (lambda d, m: d.FFT3D(m).multiplicity(), "`shape` must be given to the operator, .*; got None"),
    (lambda d, m: d.FFT3D(m, shape=(8, 8, 8)).multiplicity(dtype=complex), "`dtype` must be real; got complex128"),
]


@pytest.mark.parametrize(("call", "text"), BAD)
def test_bad_input(plain, call, text):
    with pytest.raises((ValueError, TypeError), match=text):
        call(plain, make_mesh((2, 4)))
