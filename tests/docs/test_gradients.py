"""The code of docs/gradients.md."""

from pages import blocks, check, errors


PAGE = "docs/gradients.md"
CHECK = """
mode = np.fft.fftfreq(16, 1 / 16)
square = sum(k**2 for k in np.meshgrid(mode, mode, mode[:9], indexing="ij"))
laplacian = lambda a: -np.fft.irfftn(square * np.fft.rfftn(a))
close = lambda found, expected: np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * abs(expected).max())
close(gradient, -laplacian(a))
close(eager, -laplacian(a))
close(product, -laplacian(b))
close(tangent, -(laplacian(a) * b).sum())
P = jax.P
assert {array.sharding.spec for array in (gradient, eager, product)} == {P("x", "y", None)}

weights = np.where((np.arange(9) == 0) | (np.arange(9) == 8), 1, 2)
close(same, 16**3 * np.fft.irfftn(np.conj(np.fft.rfftn(a)) / weights))
np.testing.assert_array_equal(pulled, same)
np.testing.assert_allclose([left, right], np.vdot(np.fft.rfftn(a), np.fft.rfftn(b)).real, rtol=1e-2)
halo = dops.HaloExchange(dec, 1)
counts = np.asarray(halo.T(jnp.ones_like(halo(u))))
assert (counts.min(), counts.max()) == (1, 8)

close(z, np.asarray(target))
cubic = jax.jit(jax.grad(lambda z: jnp.sum(z.real**2 * z.imag)))(target)
real, imaginary = np.asarray(target).real, np.asarray(target).imag
np.testing.assert_allclose(cubic, 2 * real * imaginary - 1j * real**2, rtol=1e-5)
assert cubic.sharding.spec == P(None, "x", "y")

assert sizes[1] < sizes[0] / 4
h = 1e-2
value = jax.jit(final_energy)
difference = (value(0.1 + h, start) - value(0.1 - h, start)) / (2 * h)
np.testing.assert_allclose([by_viscosity, with_less], difference, rtol=1e-3)

xla = dops.FFT3D(fft.decomposition.mesh, shape=fft.decomposition.shape, real=True, backend="xla")
"""
ERRORS = {
    "Please enter your `jit` into a mesh context via `jax.set_mesh`": "jax.grad(energy)(u)",
    "`x` must be on a mesh with the axes": "jax.jit(jax.hessian(lambda s: jnp.sum(jnp.abs(xla(s * u)) ** 2)))(1.0)",
    "grad requires real-valued outputs": "jax.jit(jax.grad(lambda u: jnp.sum(fft(u))))(u)",
    "`keep` must be at least": "jax.jit(jax.grad(lambda nu, start: final_energy(nu, start, 3)))(0.1, start)",
    "can't apply forward-mode autodiff (jvp) to a custom_vjp function": (
        "jax.jit(lambda nu, start: jax.jvp(lambda nu: final_energy(nu, start, 25), (nu,), (1.0,)))(0.1, start)"
    ),
}


def test_the_code():
    check("".join(blocks(PAGE)) + CHECK + errors(PAGE, ERRORS))
