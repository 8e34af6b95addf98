"""The example of nested parallelism: its claims about communication, and its exact solution."""

import decompops as dops
import jax
import numpy as np
import pytest
from decompops.tools.hlo import collectives

import example
from helpers import assert_close, make_mesh, put


pytestmark = pytest.mark.promotes_ranks
nested_parallelism = example.load("nested_parallelism")


def test_run_of_a_user(tmp_path):
    """Run the example with 9 cells along each axis. Two devices along x and along y do not divide 9, so it pads."""
    output = example.run_for_gallery("nested_parallelism", tmp_path)
    lines = output.splitlines()
    assert lines[0] == "4 flows of 9³ cells on 8 cpu devices, P('c', None, 'x', 'y', None)"
    assert "  device 3: members (0, 2), x (5, 10), y (5, 10)" in lines
    assert "  device 4: members (2, 4), x (0, 5), y (0, 5)" in lines
    assert "  all-to-all within each of {0, 1}, {2, 3}, {4, 5}, {6, 7}" in lines
    assert "  all-to-all within each of {0, 2}, {1, 3}, {4, 6}, {5, 7}" in lines
    assert any("collectives are all-to-alls within {0, 1, 2, 3} or {4, 5, 6, 7}." in line for line in lines)
    errors = [float(line.split()[5]) for line in lines if "exact solution" in line]
    assert len(errors) == 4
    assert max(errors) < 1e-4


def test_groups_of_an_ensemble_do_not_communicate(monkeypatch):
    """The groups of an ensemble do not communicate on an Auto mesh. The example itself makes an Explicit mesh."""
    monkeypatch.setenv("DECOMPOPS_BACKEND", "xla")  # Only XLA's programs show what they communicate.
    n, viscosities = 8, np.array([0.05, 0.1])
    mesh = make_mesh((2, 2, 2), "auto")
    fft = dops.FFT3D(mesh, shape=(n,) * 3, real=True)
    flows = fft.decomposition.shard(nested_parallelism.exact(n, viscosities, 0.0))
    arguments = fft, put(mesh, viscosities, "c"), flows
    with jax.set_mesh(mesh):
        program = jax.jit(nested_parallelism.ensemble).lower(*arguments).compile()
        result = program(*arguments)
    assert_close(result, nested_parallelism.exact(n, viscosities, nested_parallelism.END), rtol=1e-4)

    text = program.as_text()
    found = collectives(text)
    assert {c.kind for c in found} == {"all-to-all"}
    assert all(len({device // 4 for device in group}) == 1 for c in found for group in c.groups)
    listed = [(c.kind, [set(group) for group in c.groups]) for c in found]
    assert nested_parallelism.collectives(text) == listed


def test_exact_solution_is_one():
    """Check with NumPy that the exact solution u is divergence-free, (u·∇)u is a nonzero gradient, and ∇²u = -3u."""
    n = 12
    u, later = nested_parallelism.exact(n, np.array([0.2, 0.2 / 3]), 1.0)
    modes = np.fft.fftfreq(n, 1 / n)
    k = np.stack(np.meshgrid(modes, modes, modes, indexing="ij"))

    def derivatives(field):
        spectrum = np.fft.fftn(field, axes=(-3, -2, -1))
        return np.fft.ifftn(1j * k * spectrum[..., None, :, :, :], axes=(-3, -2, -1)).real

    gradient = derivatives(u)
    np.testing.assert_allclose(np.trace(gradient), 0, rtol=0, atol=1e-13)
    assert_close(np.einsum("ijjxyz->ixyz", derivatives(gradient)), -3 * u)
    advection = np.einsum("jxyz,ijxyz->ixyz", u, gradient)
    rotation = derivatives(advection)
    assert np.abs(advection).max() > 0.1
    np.testing.assert_allclose(rotation, rotation.swapaxes(0, 1), rtol=0, atol=1e-13)
    assert_close(later, u * np.exp(3 * 0.2 - 0.2))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("all-to-all(%p), replica_groups={{0,1},{2,3}}, dimensions={0}", ("all-to-all", [{0, 1}, {2, 3}])),
        ("all-gather-start(%p), replica_groups=[2,2]<=[2,2]T(1,0), dim", ("all-gather", [{0, 2}, {1, 3}])),
        ("all-reduce(%p), replica_groups=[1,4]<=[4], to_apply=%add", ("all-reduce", [{0, 1, 2, 3}])),
        ("all-to-all(%p), replica_groups=mesh['x'=2,'y'=2] {'x'}, dim", ("all-to-all", [{0, 2}, {1, 3}])),
        ("all-gather(%p), replica_groups=mesh['c'=2,'x'=1,'y'=2] {'y','x'}, dim", ("all-gather", [{0, 1}, {2, 3}])),
        ("collective-permute(%p), source_target_pairs={{0,1},{1,0}}", ("collective-permute", [{0, 1}, {0, 1}])),
    ],
)
def test_collectives_are_read(line, expected):
    assert nested_parallelism.collectives(f"  %a = f32[8]{{0}} {line}\n  %b = f32[8]{{0}} add(%a, %a)") == [expected]


@pytest.mark.parametrize(
    "groups", ["mesh['x'=4] {'x':(1)2}", "mesh['x'=2,'y'=2], device_ids=([2,2]T(1,0)) {'y'}", "<new>"]
)
def test_unknown_groups_are_refused(groups):
    with pytest.raises(ValueError, match="unknown replica groups"):
        nested_parallelism.collectives(
            f"  %a = f32[8]{{0}} all-to-all(%p), replica_groups={groups}, dimensions={{0}}\n"
        )


@pytest.mark.parametrize("found", [("all-to-all", [{0, 4}]), ("all-gather", [{0, 1}]), ("all-reduce", [{4, 5, 6, 7}])])
def test_other_communication_is_refused(found):
    with pytest.raises(SystemExit, match="more than all-to-alls"):
        nested_parallelism.check(make_mesh((2, 2, 2)), [("all-to-all", [{0, 1}, {4, 5}]), found])


@pytest.mark.parametrize(
    ("option", "value"),
    [("--n", "7"), ("--members", "3"), ("--mesh", "2x4"), ("--mesh", "2x2x4"), ("--out", "figure.pdf")],
)
def test_bad_option_is_refused_in_one_line(option, value, capsys):
    example.assert_refused(nested_parallelism, option, value, capsys)
