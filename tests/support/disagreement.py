"""Checks of ranks that pass different arrays. All ranks raise an error at once, and can continue afterwards."""

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import finite_volume, nn, particles, pde, spectral
from jax.sharding import Mesh


def check_other_shape_or_box_on_one_rank(mesh: Mesh) -> None:
    n = 8 * (1 + jax.process_index())
    with pytest.raises(ValueError, match="`array` must have the same shape and dtype on every process"):
        dops.Decomposition(mesh, shape=(n, 8, 8)).shard(np.ones((n, 8, 8)))
    # Operators in other boxes would multiply the modes on each rank by other wavenumbers.
    dec = dops.Decomposition(mesh, shape=(8, 8), box=dops.Box((1.0, jnp.asarray(1.0 + jax.process_index()))))
    for sharded in (dec, dec.layout()):
        with pytest.raises(ValueError, match=r"on every process, and .* box must be the same; got \(8, 8\), "):
            sharded.shard(np.ones((8, 8)))


def check_bad_array_on_one_rank(mesh: Mesh) -> None:
    """The other ranks repeat what the rank says that refuses its array."""
    dec, last = dops.Decomposition(mesh, shape=(8, 8), box=dops.Box(1.0)), jax.process_count() - 1
    pm, u, x = particles.ParticleMesh(dec, "cic"), np.ones((8, 8)), np.full((3, 2), 0.5)
    cases = (
        (dec.shard, u, np.ma.masked_less(u * u.cumsum(0), 2), "`array` must hide no values"),
        (dec.shard, u, dec.shard(u), "`array` must be in this process as a whole"),
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


def check_other_particles_on_one_rank(mesh: Mesh) -> None:
    """Attributes that only one rank has would be arrays that the other ranks do not make."""
    pm = particles.ParticleMesh(dops.Decomposition(mesh, shape=(8, 8), box=dops.Box(1.0)), "cic")
    rank, x = jax.process_index(), np.full((3, 2), 0.5)
    for options in (
        {"mq"[min(rank, 1)]: x},
        {"m": x} if rank else {},
        {"m": x[:, : 1 + rank]},
        {"m": x + rank},
        {"capacity": 8 + rank},
    ):
        with pytest.raises(ValueError, match="`capacity` and the attributes must be the same"):
            pm.place(x, **options)
    for function in (pm.loads, lambda own: pm.place(own, capacity=16)):
        for own in (x[rank:], x + 0.1 * rank, x.astype((np.float32, np.float64)[min(rank, 1)])):
            with pytest.raises(ValueError, match="`positions` must be the same array on every process"):
                function(own)


def check_other_run_on_one_rank(mesh: Mesh) -> None:
    """With other times, the ranks would make different numbers of steps."""
    fft = dops.FFT(dops.Decomposition(mesh, shape=(8, 8)), real=True)
    solver, rank = pde.ETDRK(pde.Diffusion(fft, 0.1), 0.25), jax.process_index()
    u = solver.equation.state(fft.decomposition.shard(np.ones((8, 8))))
    observe = [lambda t, u: t, None][min(rank, 1)]
    other = pde.ETDRK(pde.Diffusion(fft, 0.1 * (1 + rank)), 0.25)
    different = {"t_end": 1.0 + rank, "t": -1.0 * rank, "interval": 0.25 * (1 + min(rank, 1)), "observe": observe}
    different |= {"solver": other, "args": {"force": 1.0 + rank}, "control": pde.ErrorControl(1e-3 * (1 + rank))}
    for options in ({name: value} for name, value in different.items()):
        with pytest.raises(ValueError, match=r"every process must simulate .*; processes \[.* simulates from t = "):
            pde.simulate(**{"solver": solver, "u": u, "t_end": 1.0, **options})
    for name, wrong in (("t_end", "late"), ("minutes", None), ("write", "u.h5"), ("u", np.ones(3))):
        with pytest.raises(TypeError if name != "u" else (TypeError, ValueError), match=f"`{name}` must|must be"):
            pde.simulate(**{"solver": solver, "u": u, "t_end": 1.0, **({name: wrong} if rank else {})})


def check_other_numpy_array_on_one_rank(mesh: Mesh) -> None:
    """Functions that shard a NumPy array need the same array on each process. NaN then equals NaN."""
    fft = dops.FFT(dops.Decomposition(mesh, shape=(8, 8)), real=True)
    dec, u, rank = fft.decomposition, np.ones((8, 8)), jax.process_index()
    for ambient in (mesh, Mesh(np.empty((), object), ())):
        with jax.set_mesh(ambient):
            _, unravel = dec.ravel(dec.shard(u))
            for function, same in ((fft, u), (dec.norm, u), (unravel, u.ravel())):
                for other in (same * (1 + rank), np.stack([same] * (1 + rank)))[: same.ndim]:
                    with pytest.raises(ValueError, match=r"^`\w+` must be the same array on every process"):
                        function(other)
                assert np.isnan(float(jnp.sum(jnp.abs(function(same * np.nan)))))


def check_other_coefficient_on_one_rank(mesh: Mesh) -> None:
    """Coefficients and rows of particles become arguments of programs, which JAX does not compare."""
    fft = dops.FFT(dops.Decomposition(mesh, shape=(8, 8)), real=True)
    dec, u = fft.decomposition, np.full((8, 8), 1.0 + jax.process_index())
    pm = particles.ParticleMesh(dec, "cic")
    p = pm.lattice()
    rows = np.full(p.positions.shape[0], u[0, 0])
    cases = (
        lambda: finite_volume.Diffusion(dec, u),
        lambda: finite_volume.Diffusion(dec, body=finite_volume.Body(u)),
        lambda: finite_volume.Diffusion(dec, cells=(u[0], None)),
        lambda: pm.read(p, u),
        lambda: pm.deposit(p, rows),
        lambda: p.replace(mass=rows),
        lambda: spectral.power_spectrum(fft, u),
        lambda: pde.GrossPitaevskii(dops.FFT(dec), 1.0, potential=u),
    )
    for ambient in (mesh, Mesh(np.empty((), object), ())):
        with jax.set_mesh(ambient):
            for case in cases:
                with pytest.raises(ValueError, match=r"^`\w+` must be the same array on every process"):
                    case()


def check_other_key_on_one_rank(mesh: Mesh) -> None:
    """Fields would be mixtures of several draws, and weights would differ between the processes."""
    fft = dops.FFT2D(dops.Decomposition(mesh, shape=(8, 8)), real=True)
    dec, convolution = fft.decomposition, {"in_channels": 1, "out_channels": 1, "kernel_size": 1, "ndim": 2}
    cases = (
        lambda key: spectral.white_noise(dec, key),
        lambda key: spectral.GaussianRandomField(fft, jnp.ones_like)(key),
        lambda key: particles.ParticleMesh(dec, "cic").sample(np.ones((8, 8)), key, capacity=99),
        lambda key: pde.OrnsteinUhlenbeckForcing(fft, key, amplitude=1.0, time=1.0, shell=(1.0, 1.5)),
        lambda key: nn.SpectralConv2D(fft, 1, 1, modes=2, key=key),
        lambda key: nn.FNO2D(fft, 1, 1, width=1, modes=2, depth=1, key=key),
        lambda key: nn.UNet(dec, 1, 1, width=1, depth=1, groups=None, key=key),
        lambda key: nn.HaloConv(mesh, **convolution, key=key),
        lambda key: nn.HaloConvTranspose(mesh, **convolution, key=key),
    )
    rank, numpys = jax.process_index(), np.array([0, jax.process_index()], np.uint32)
    keys = ((cases[0], jax.random.PRNGKey(rank)), (cases[0], numpys), *((case, jax.random.key(rank)) for case in cases))
    for case, key in keys:
        with pytest.raises(ValueError, match=r"^`key` must be the same array .* Write the same seed"):
            case(key)
    same = jax.random.key(0)
    cases[0](same)
    jax.eval_shape(lambda: cases[0](same))  # Inside of a program, nothing is compared.


def check_other_search_on_one_rank(mesh: Mesh) -> None:
    """With other candidates, the ranks would time different programs. Without a cache, they would begin earlier."""
    rank = min(jax.process_index(), 1)
    for name, values in (("shape", ((8, 8), (8, 16))), ("repeats", (1, 2)), ("cache", ("none.json", None))):
        with pytest.raises(ValueError, match="`autotune` must get the same arguments on every process"):
            dops.autotune(**{"shape": (8, 8), "devices": mesh.devices, name: values[rank]})
    with pytest.raises(ValueError, match=f"^{'' if rank else 'process 1 failed: '}`repeats` must"):
        dops.autotune((8, 8), devices=mesh.devices, repeats=1 - rank)


CHECKS = (
    check_other_shape_or_box_on_one_rank,
    check_other_numpy_array_on_one_rank,
    check_other_coefficient_on_one_rank,
    check_bad_array_on_one_rank,
    check_other_particles_on_one_rank,
    check_other_run_on_one_rank,
    check_other_key_on_one_rank,
    check_other_search_on_one_rank,
)
