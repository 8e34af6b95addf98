"""Tests of the structures of operators and pipelines: printed text, and errors for operators that do not fit."""

import os
import subprocess
import sys

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import mpmd, pde, spectral
from jax.sharding import AbstractMesh

from helpers import assert_close, make_mesh, random_field


SHAPE = (8, 16, 32)


@pytest.fixture(scope="module")
def mesh():
    return make_mesh((2, 4))


@pytest.fixture(scope="module")
def dec(mesh):
    return dops.Decomposition(mesh, shape=SHAPE, backend="native")  # This compiles in less time than by XLA.


REPRS = [
    (lambda d: dops.FFT3D(d, real=True), "FFT3D  f[*, 8, 16, 32] z-pencils 2x4 -> c[*, 8, 16, 17] x-pencils 2x4"),
    (
        lambda d: dops.FFT3D(d, axis_contiguous=True).inverse,
        "FFT3D.inverse  c[*, 16, 32, 8] x-pencils 2x4 stored as yzx -> c[*, 8, 16, 32] z-pencils 2x4",
    ),
    (
        lambda d: dops.FFT3D(d).inverse.T,
        "FFT3D.inverse.T  c[*, 8, 16, 32] z-pencils 2x4 -> c[*, 8, 16, 32] x-pencils 2x4",
    ),
    (lambda d: dops.FFT3D(d.mesh), "FFT3D  (on the grid of its input)"),
    (lambda d: dops.FFT3D(d, axes="x"), "FFT3D  c[*, 8, 16, 32] yz-pencils 2 -> c[*, 8, 16, 32] xz-pencils 2"),
    (
        lambda d: dops.Transpose(d, "y", "x"),
        "Transpose  any[*, 8, 16, 32] y-pencils 2x4 -> any[*, 8, 16, 32] x-pencils 2x4",
    ),
    (
        lambda d: dops.HaloExchange(d, (1, 0, 0)).T,
        "HaloExchange.T  any[*, 8, 16, 32] z-pencils 2x4 with halo ((1, 1), (0, 0), (0, 0)) -> "
        "any[*, 8, 16, 32] z-pencils 2x4",
    ),
    (
        lambda d: spectral.Gradient(dops.FFT3D(d, real=True)),
        "Gradient  f[*, 8, 16, 32] z-pencils 2x4 -> f[*, 3, 8, 16, 32] z-pencils 2x4",
    ),
    (
        lambda d: spectral.Gradient(dops.FFT3D(d, real=True)).T,
        "Gradient.T  f[*, 3, 8, 16, 32] z-pencils 2x4 -> f[*, 8, 16, 32] z-pencils 2x4",
    ),
    (
        lambda d: spectral.Resample(dops.FFT3D(d, real=True), (4, 8, 8)),
        "Resample  f[*, 8, 16, 32] z-pencils 2x4 -> f[*, 4, 8, 8] z-pencils 2x4",
    ),
]


@pytest.mark.parametrize(("make", "text"), REPRS)
def test_repr_is_one_line_with_types(dec, make, text):
    assert repr(make(dec)) == text


def test_repr_of_a_pipeline_has_a_line_for_each_stage(dec):
    fft = dops.FFT3D(dec, real=True)
    pipeline = fft.inverse @ jnp.conj @ fft
    assert repr(pipeline).splitlines() == [repr(fft), "conj  (a plain function)", repr(fft.inverse)]


def test_structures_say_what_is_known(dec):
    fft = dops.FFT3D(dec, real=True)
    source, target = fft.in_structure, fft.out_structure
    assert (source.shape, target.shape) == ({"x": 8, "y": 16, "z": 32}, {"kx": 8, "ky": 16, "kz": 17})
    assert (source.kind, target.kind, source.space, target.space) == ("real", "complex", "field", "spectrum")
    assert (source.layout.spec, target.layout.spec) == (fft.in_spec, fft.out_spec)
    assert fft.inverse.in_structure == fft.T.in_structure == target


def _in_box(d, lengths):
    return _real(d).replace(box=dops.Box(lengths))


def _real(d):
    return dops.FFT3D(d, real=True)


MISFITS = [
    (
        lambda d: _real(d) @ _real(d),
        "`FFT3D` must get f.*, but `FFT3D` returns c.*: a field is wanted, .* `fft.inverse`",
    ),
    (
        lambda d: _real(d).inverse @ _real(d).inverse,
        "`FFT3D.inverse` must get .*: a spectrum is wanted, .* `fft`",
    ),
    (lambda d: dops.HaloExchange(d, 1) @ dops.HaloExchange(d, 1), "the halo must be dropped first, with `.crop`"),
    (
        lambda d: dops.HaloExchange(d, 1).crop @ dops.FFT3D(d).inverse,
        "blocks must be extended first, with `HaloExchange`",
    ),
    (
        lambda d: dops.HaloExchange(d, 2).crop @ dops.HaloExchange(d, 1),
        r"halos differ, \(\(1, 1\), .* and \(\(2, 2\)",
    ),
    (
        lambda d: dops.Transpose(d, "z", "y") @ dops.Transpose(d, "z", "x"),
        r'another axis is whole on each device. Insert `Transpose\(mesh, "x", "z"\)`',
    ),
    (
        lambda d: dops.FFT3D(d, axes=("y", "x")).inverse @ dops.FFT3D(d),
        "different mesh axes shard the grid. .* same `axes`",
    ),
    (
        lambda d: dops.FFT3D(d, axis_contiguous=True).inverse @ dops.FFT3D(d),
        "`FFT3D.inverse` must get .* stored as yzx, but .* storage orders of the axes differ.* `axis_contiguous`",
    ),
    (
        lambda d: dops.FFT3D(make_mesh((4, 2)), shape=SHAPE).inverse @ dops.FFT3D(d),
        r"the meshes differ, Mesh\('x': 2, .* and Mesh\('x': 4, .*. Build both .* or put `lambda x: mpmd",
    ),
    (
        lambda d: dops.FFT3D(d, shape=(8, 8, 8), real=True) @ spectral.Poisson(_real(d)),
        r"the grids differ, \(8, 16, 32\) and \(8, 8, 8\). Interpolate with `spectral.Resample\(fft, shape\)`",
    ),
    (lambda d: dops.FFT3D(d).inverse @ _real(d), "grids differ, .* the same `shape`, `real` and `modes`"),
    (lambda d: dops.HaloExchange(d, 1) @ dops.FFT3D(d), r"Insert .*. If a field is meant: Transform it back first"),
    (lambda d: _real(d) @ dops.FFT3D(d).inverse, "real numbers are wanted, not complex ones. .* `jnp.real`"),
    (
        lambda d: _real(d) @ (lambda u: jax.lax.complex(u, u)) @ spectral.Poisson(_real(d)),
        "but `<lambda>` returns c.*real numbers",
    ),
    (
        lambda d: spectral.Gradient(_real(d)) @ spectral.Gradient(_real(d)),
        r"a scalar field is wanted, not one with components \(3,\). .* `eqx.filter_vmap\(operator\)`",
    ),
    (
        lambda d: spectral.Divergence(_real(d)) @ dops.HaloExchange(d, 0) @ spectral.Divergence(_real(d)),
        r"`Divergence` must get .*, but `HaloExchange` returns .*: a field with components \(3,\) .* is wanted",
    ),
    (
        lambda d: spectral.Poisson(_real(d)) @ spectral.Poisson(_in_box(d, 2.0)),
        r"the boxes differ, Box\(\(2.0, 2.0, 2.0\)\) and Box\(\(6.28",
    ),
    (
        lambda d: spectral.Poisson(_in_box(d, 2.0)) @ spectral.Poisson(_real(d)),
        r"the boxes differ, Box\(\(6.28",
    ),
    (
        lambda d: spectral.Poisson(_in_box(d, 1.0)) @ spectral.Poisson(_in_box(d, 2.0)),
        r"the boxes differ, Box\(\(2.0, 2.0, 2.0\)\) and Box\(\(1.0, .*\)\). Build both operators with one `Box`",
    ),
]


@pytest.mark.parametrize(("make", "text"), MISFITS)
def test_misfits_are_errors_when_a_pipeline_is_built(dec, make, text):
    with pytest.raises(ValueError, match=text):
        make(dec)


def test_what_fits_is_joined_and_right(mesh, dec):
    fft = _real(dec)
    laplacian = spectral.Divergence(_in_box(dec, 1.0)) @ spectral.Gradient(_in_box(dec, (1.0, 1.0, 1.0)))
    assert laplacian.out_structure.components == ()
    hessian = eqx.filter_vmap(spectral.Gradient(fft)) @ spectral.Gradient(fft)
    assert hessian.in_structure.shape == {"x": 8, "y": 16, "z": 32}
    rotated = dops.Transpose(dec, "x", "z") @ dops.Transpose(mesh, "z", "x") @ spectral.Poisson(fft)
    u = random_field(SHAPE)
    assert_close(rotated(u), spectral.Poisson(fft)(u))
    assert rotated.out_structure.shape == {"x": 8, "y": 16, "z": 32}
    abstract = dops.FFT3D(AbstractMesh((2, 4), ("x", "y")), real=True, shape=SHAPE)
    assert (abstract.inverse @ fft).out_structure.space == "field"


def test_layers_are_typed_stages(dec):
    key, fft = jax.random.key(0), _real(dec)
    convolution = dops.nn.SpectralConv3D(fft, 3, 2, modes=2, key=key)
    neural = dops.nn.FNO3D(fft, 2, 1, width=2, modes=2, depth=1, key=key)
    pipeline = spectral.Poisson(fft) @ neural @ convolution @ spectral.Gradient(fft)
    assert pipeline.out_structure.components == (1,)
    assert (spectral.Poisson(fft) @ convolution).in_structure == convolution.in_structure  # The layer runs first.
    assert repr(pipeline).splitlines()[1:3] == [
        "SpectralConv3D  f[*, 3, 8, 16, 32] z-pencils 2x4 -> f[*, 2, 8, 16, 32] z-pencils 2x4",
        "FNO3D  f[*, 2, 8, 16, 32] z-pencils 2x4 -> f[*, 1, 8, 16, 32] z-pencils 2x4",
    ]
    halo = dops.nn.HaloConv3D(dec, 2, 2, 3, key=key)
    for wrong, text in (
        (lambda: spectral.Poisson(fft) @ halo @ spectral.Gradient(fft), r"`HaloConv3D` must get .* components \(2,\)"),
        (lambda: convolution @ fft, "a field is wanted, not a spectrum"),
        (lambda: halo @ dops.FFT3D(dec).inverse, "real numbers are wanted"),
    ):
        with pytest.raises(ValueError, match=text):
            wrong()


PADDED = (8, 6, 8)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda f: dops.HaloExchange(f.decomposition.mesh, 1) @ f.inverse,
            r"`HaloExchange` must be built with `shape=\(8, 6, 8\)` and `pad=True`, because its input is padded; got",
        ),
        (
            lambda f: dops.Stencil(f.decomposition.mesh, jnp.abs, halo=1) @ f.inverse,
            "`Stencil` must be built with .* because its input is padded",
        ),
        (lambda f: dops.FFT3D(f.decomposition.mesh).inverse @ f, r"4 devices .*Or pass `shape=\(8, 6, 8\), pad=T"),
        (lambda f: spectral.Resample(f, PADDED) @ f, "a field is wanted, not a spectrum"),
    ],
)
def test_padding_is_not_taken_for_cells(mesh, make, text):
    with pytest.raises(ValueError, match=text):
        make(dops.FFT3D(mesh, shape=PADDED, pad=True))


@pytest.mark.parametrize("backend", [dops.XLA(), dops.Native(planning="estimate")], ids=["xla", "native"])
def test_a_function_that_reduces_leaves_the_field_where_it_is(mesh, backend):
    fft = dops.FFT3D(mesh, shape=SHAPE, pad=True, real=True, backend=backend)
    dec = fft.decomposition
    with pytest.raises(ValueError, match="pencil"):
        fft @ (lambda u: u / dec.norm(u)) @ dops.Transpose(dec, "z", "x")
    u = random_field(SHAPE)
    unit = fft @ (lambda u: u / dec.norm(u)) @ dops.Transpose(dec, "x", "z")
    found = unit(dec.shard(u, "x"))
    assert_close(fft.out_layout.gather(found), np.fft.rfftn(u) / np.linalg.norm(u))


def test_what_is_not_known_is_not_refused(mesh, dec):
    """Pipelines accept functions and stencils, which may contain operators or add batch axes."""
    c, r, u = dops.FFT3D(dec), _real(dec), random_field(SHAPE)
    assert_close((c @ jax.jit(c.inverse) @ c)(u), np.fft.fftn(u))
    assert_close((c @ (lambda k: c.inverse(k) ** 2) @ c)(u), np.fft.fftn(u**2))
    absolute = dops.Stencil(dec, jnp.abs, halo=0)
    assert_close(r.out_layout.gather((r @ absolute @ c.inverse @ c)(u)), np.fft.rfftn(np.abs(u)))
    first = dops.Stencil(dec, lambda v: v[0], halo=0)
    gradient = spectral.Gradient(r)
    assert_close((gradient @ first @ gradient)(u), gradient(gradient(u)[0]))
    doubled = gradient @ (lambda s: jnp.stack([s, 2 * s])) @ spectral.Divergence(r) @ gradient
    assert_close(doubled(u)[1], 2 * doubled(u)[0])
    for length in (float(np.float32(0.1)), jnp.asarray(0.1, jnp.float32)):
        both = spectral.Poisson(_in_box(dec, length)) @ spectral.Poisson(_in_box(dec, 0.1))
        np.testing.assert_array_equal(both.out_structure.layout.box.lengths, [length] * 3)


def test_layers_join_by_themselves_and_types_are_handed_on(dec):
    key, fft = jax.random.key(0), _real(dec)
    one, two = (dops.nn.SpectralConv3D(fft, *channels, modes=2, key=key) for channels in ((3, 2), (2, 1)))
    joined = two @ one @ spectral.Gradient(fft)
    assert repr(two @ one) == "\n".join([one.signature, two.signature])
    assert_close(joined(random_field(SHAPE)), two(one(spectral.Gradient(fft)(random_field(SHAPE)))))
    with pytest.raises(AttributeError, match="layers only"):
        _ = (two @ one).decomposition
    with pytest.raises(ValueError, match=r"`SpectralConv3D` must get .* components \(2,\) .* is wanted"):
        two @ two
    after = dops.Stencil(dec.mesh, jnp.abs, halo=1) @ fft.inverse
    assert repr(after).splitlines()[1].startswith("Stencil  f[*, 8, 16, 32] z-pencils 2x4 -> any[*, 8, 16, 32]")


def test_a_pipeline_over_two_groups_of_devices():
    solver, learner = mpmd.MpmdMesh(make_mesh((2, 2, 2), names=("group", "x", "y")), "group").groups
    poisson = spectral.Poisson(dops.FFT3D(solver, shape=SHAPE, real=True))
    gradient = spectral.Gradient(dops.FFT3D(learner, shape=SHAPE, real=True))
    with pytest.raises(ValueError, match="the meshes differ"):
        gradient @ poisson
    pipeline = gradient @ (lambda x: mpmd.reshard(x, gradient.in_structure)) @ poisson
    u = random_field(SHAPE)
    result = pipeline(u)
    assert result.sharding.mesh == learner
    assert_close(result, spectral.Gradient(poisson.fft)(poisson(u)))


def test_arrays_are_checked_against_structures(dec):
    fft = _real(dec)
    equation = pde.NavierStokes(fft, 0.1)
    state, field = equation.in_structure, pde.RealSpace(equation).in_structure
    assert str(state) == "c[*, 3, 5, 11, 11] x-pencils 2x4 stored as yzx".replace("5, 11, 11", "11, 11, 5")
    assert str(field) == "f[*, 3, 8, 16, 32] z-pencils 2x4"
    assert equation.out_structure == pde.ETDRK(equation, 0.1).out_structure == state
    u = equation.transform(random_field((2, 3, *SHAPE)))
    state.check(u)
    elsewhere = jax.device_put(u, jax.devices()[0])
    state.check(elsewhere)  # The array is on one device of the mesh and is not sharded yet.
    one = dops.FFT3D(make_mesh((1, 1)), shape=SHAPE, real=True)
    for structure, x, text in (
        (state, u.real, "`u` must be a spectrum c.* x-pencils 2x4 stored as yzx; got float64"),
        (state, u[:, :2], r"`u` must be a spectrum .*, of shape \(\*batch, 3, .*\); got \(2, 2, "),
        (state, u[0, 0, 0], "`u` must be a spectrum"),
        (field, u, "`u` must be a field f.*; got complex128"),
        (fft.in_structure, np.ones(SHAPE[1:]), r"`u` must be a field .* \(\*batch, 8, 16, 32\); got \(16, 32\)"),
        (
            dops.HaloExchange(dec, 1).crop.in_structure,
            np.ones(SHAPE),
            r"`u` must be a field any.* with halo .*; got \(8, ",
        ),
        (one.in_structure, dec.shard(np.ones(SHAPE)), r"`u` must lie on the operator's mesh, devices \[0\]; got"),
    ):
        with pytest.raises((TypeError, ValueError), match=text):
            structure.check(x, "u")


def test_a_plain_function_that_changes_the_grid_ends_what_is_known(dec):
    halved = dops.FFT3D(dec, shape=(8, 16, 16)) @ (lambda u: u[..., ::2]) @ spectral.Poisson(_real(dec))
    u = random_field(SHAPE)
    assert_close(halved(u), np.fft.fftn(np.asarray(spectral.Poisson(_real(dec))(u))[..., ::2]))


def test_traced_boxes_are_left_to_the_user(dec):
    def energy(length):
        both = spectral.Poisson(_in_box(dec, length)) @ spectral.Poisson(_in_box(dec, 2 * length))
        return jnp.sum(both(np.ones(SHAPE)) ** 2)

    assert float(jax.jit(energy)(1.0)) == pytest.approx(0)


@pytest.mark.parametrize(
    ("checker", "error"),
    [
        ("beartype.beartype", "TypeCheckError"),
        ("", "ValueError: `x` must have shape (*batch, nx, ny, nz); got (2,)."),
        (
            "missing.check",
            "ImportError: `DECOMPOPS_TYPECHECKER` must name an installed type checker; got 'missing.check'",
        ),
        *((name, f"such as 'beartype.beartype'; got '{name}'.") for name in ("beartype", "beartype.missing")),
    ],
)
def test_annotations_are_checked_where_the_environment_asks_for_it(checker, error):
    # jaxtyping takes seconds to decorate the whole package, so it decorates only the method that the program calls.
    program = """
import jaxtyping

whole = jaxtyping.jaxtyped
only = lambda function, checker: whole(function, typechecker=checker) if function.__name__ == "__call__" else function
jaxtyping.jaxtyped = lambda *, typechecker: lambda function: only(function, typechecker)
import decompops, jax

decompops.FFT3D(jax.make_mesh((1,), ("x",)))([1.0, 2.0])
"""
    environment = os.environ | {"DECOMPOPS_TYPECHECKER": checker, "JAX_PLATFORMS": "cpu"}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120
    )
    assert error in ended.stderr.strip()
