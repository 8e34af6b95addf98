"""The code of docs/solvers.md. The code blocks form one program, which the tests run in three parts."""

from pages import blocks, check


# This code checks Poisson's equation, a projection, and the curl in two dimensions.
OPERATORS = """
def modes(n, lengths):
    return np.meshgrid(*(2 * np.pi * np.fft.fftfreq(m, l / m) for m, l in zip(n, lengths)), indexing="ij")


kx, ky, kz = modes((32, 32, 32), (2, 1, 1))
k2 = kx**2 + ky**2 + kz**2
k2[0, 0, 0] = np.inf
np.testing.assert_allclose(u, np.fft.ifftn(-np.fft.fftn(f) / k2).real, atol=1e-6)
divergence = spectral.Divergence(fft)(solenoidal)
np.testing.assert_allclose(divergence, 0, atol=1e-4)
np.testing.assert_allclose(spectral.LerayProjection(fft)(solenoidal), solenoidal, atol=1e-5)
kx, ky = modes((64, 64), (2 * np.pi, 2 * np.pi))
kx[32], ky[:, 32] = 0, 0  # the Nyquist mode
hat = np.fft.fft2(flow)
np.testing.assert_allclose(vorticity, np.fft.ifft2(1j * kx * hat[1] - 1j * ky * hat[0]).real, atol=1e-3)
whole = sum(k**2 for k in modes((64, 64), (2 * np.pi, 2 * np.pi)))  # The inverse divides by all wavenumbers.
kept = np.divide(kx**2 + ky**2, whole, out=np.zeros_like(whole), where=whole > 0)
np.testing.assert_allclose(same_flow, np.fft.ifft2(hat * kept).real, atol=1e-4)
"""
# A Gaussian filter is its own transfer function, up to its change within a shell.
STATISTICS = """
np.testing.assert_allclose(transfer, np.exp(-0.5 * 0.3**2 * power.k**2), rtol=0.05)
np.testing.assert_allclose(multipoles.power[0], power.power, rtol=1e-5)
assert bispectrum.bispectrum.shape == bispectrum.number.shape == (len(bispectrum.triangles),)
assert correlation.correlation[0] > 0
np.testing.assert_allclose(kinetic, np.mean(np.sum(np.asarray(solenoidal) ** 2, 0)) / 2, rtol=1e-5)
"""
# The enstrophy of the Taylor-Green vortex is 3/8 and grows slowly at first. So the energy falls by 3/4 nu t.
FLOW = """
assert energy.shape == (4,)
np.testing.assert_allclose(0.125 - np.asarray(energy), 0.75 / 1600 * 0.1 * np.arange(1, 5), rtol=0.1)
by_etdrk = equation.fields(last)
"""
HISTORY = """
np.testing.assert_allclose(equation.fields(last), by_etdrk, atol=1e-5)
once, _ = multistep.rollout(start, 40)
np.testing.assert_allclose(equation.fields(last), equation.fields(once), atol=1e-6)
"""
# The test moves the initial state `start` by `-length` times the conjugate of the gradient. If `length` is small, the
# loss falls by `length` times the squared norm of the gradient.
GRADIENT = """
with jax.set_mesh(mesh):
    slope = np.sum(np.abs(gradient) ** 2)
    length = 1e-3 * loss(start) / slope
    change = loss(start - length * jnp.conj(gradient)) - loss(start)
np.testing.assert_allclose(change, -length * slope, rtol=0.02)
"""
FORCED = """
rest = equation.state(0 * velocity)
wave = forced.fields(forced.nonlinear(0.0, rest, None))
np.testing.assert_allclose(wave, np.stack([np.sin(4 * y), 0 * x, 0 * x]) + 0.1 * np.asarray(velocity), atol=1e-5)
"""
# This code computes the exact solutions along x. The tolerances allow the second-order errors of a grid of 32 cells.
BUOYANT = """
scalar = convection.state(jnp.concatenate([0 * velocity, jnp.ones((1, 32, 32, 32), velocity.dtype) + velocity[:1]]))
rate = convection.fields(convection.nonlinear(0.0, scalar, None))
solenoidal = spectral.LerayProjection(fft)(jnp.zeros_like(velocity).at[2].set(1 + velocity[0]))
np.testing.assert_allclose(rate[:3], solenoidal, atol=1e-5)
"""
BODY = """
points = np.meshgrid(*(np.arange(32) / 32 * np.asarray(body.products.box_lengths)[:, None]), indexing="ij")
thickness = 0.7 * max(body.products.box_lengths) / 32
mask = (1 - np.tanh(2 * sphere(*points) / thickness)) / 2
pull = mask * np.asarray(around.fields(around.state(velocity))) / ((thickness / 2.6482282) ** 2 / 1e-2)
whole = pull.mean((1, 2, 3)) * np.prod(body.products.box_lengths)
np.testing.assert_allclose([drag, *lift], whole, rtol=1e-3, atol=1e-3)
"""
STIRRED = """
late = (1 - np.tanh(2 * sphere(points[0] - 0.3, *points[1:]) / thickness)) / 2
force = np.stack([late / ((thickness / 2.6482282) ** 2 / 1e-2), 0 * late, 0 * late])
pushed = spectral.LerayProjection(fft)(around.fields(around.state(jnp.asarray(force, velocity.dtype))))
rate = stirred.fields(jax.jit(lambda t, u: stirred.nonlinear(t, u, None))(0.3, stirred.state(0 * velocity)))
np.testing.assert_allclose(rate, pushed, atol=1e-4)
"""
WALLS = """
def helmholtz(x):  # (10 - d²/dx²) u = cos(pi x / 2), and its derivative
    particular = 1 / (10 + np.pi**2 / 4)
    return particular * np.cos(np.pi * x / 2), -particular * np.pi / 2 * np.sin(np.pi * x / 2)


q, x = np.sqrt(10), np.asarray(across)
expected = -4 / np.pi**2 * np.cos(np.pi * x / 2) + 0 * np.asarray(f)
np.testing.assert_allclose(transform.decomposition.gather(pressure), expected, atol=5e-3)
exact = helmholtz(x)[0] + (1 - helmholtz(0)[0]) * np.cosh(q * (2 - x)) / np.cosh(2 * q) + 0 * np.asarray(f)
np.testing.assert_allclose(transform.decomposition.gather(temperature), exact, atol=5e-3)
np.testing.assert_allclose(mean, (1 - helmholtz(0)[0]) * np.tanh(2 * q) / q / 2, atol=2e-3)
"""
POLYNOMIALS = """
x, zero = across, np.zeros((33, 16, 16))
first, second = 1 - helmholtz(0)[0], -helmholtz(2)[0]  # u = 1 and u = 0 at the walls
sinh = np.sinh(2 * q)
exact = helmholtz(x)[0] + (first * np.sinh(q * (2 - x)) + second * np.sinh(q * x)) / sinh + zero
derivative = helmholtz(x)[1] + q * (second * np.cosh(q * x) - first * np.cosh(q * (2 - x))) / sinh + zero
np.testing.assert_allclose(transform.decomposition.gather(u), exact, atol=1e-5)
np.testing.assert_allclose(transform.decomposition.gather(slope), derivative, atol=1e-3)
"""
COUETTE = """
linear = np.asarray(across).ravel() / 2
np.testing.assert_allclose(np.asarray(profile)[:33], linear, atol=1e-4)
np.testing.assert_allclose(stress, [0.05, -0.05], atol=1e-4)
np.testing.assert_allclose(force, 0, atol=1e-4)
"""
NETWORK = """
assert prediction.shape == (3, 32, 32, 32)
"""
MOVED = """
np.testing.assert_allclose(moved(np.asarray(velocity)), prediction, atol=1e-5)
count = sum(part.size for part in jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)))
moments = [part for part in jax.tree.leaves(state) if jnp.issubdtype(part.dtype, jnp.inexact)]
assert sum(part.size for part in moments) == 2 * count
assert all(part.sharding.mesh == there.decomposition.mesh for part in moments)
"""
CHECKS = (OPERATORS, STATISTICS, FLOW, HISTORY, GRADIENT, FORCED, BUOYANT, BODY, STIRRED, WALLS, POLYNOMIALS)
CHECKS += (COUETTE, NETWORK, MOVED)
CODE = blocks("docs/solvers.md")
CHECKED = [code + check for code, check in zip(CODE, CHECKS)]


def test_every_block_has_a_check():
    assert len(CODE) == len(CHECKS)


def test_operators_and_integrators():
    check("".join(CHECKED[:4]))


def test_gradients_and_forces():
    check("".join([CODE[0], CODE[2], *CHECKED[4:9]]))


def test_walls_and_layers():
    check("".join([CODE[0], "from decompops import pde\n\nvelocity = v\n", *CHECKED[9:]]))
