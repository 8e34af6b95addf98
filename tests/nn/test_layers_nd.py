"""Tests of layers on grids of one, two and four axes, against layers that get the whole grid on one device."""

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import assert_close, make_mesh, random_field


# Each case has a shape, the number of kept wavenumbers along each axis, the sizes of the mesh, and the mesh axes that
# shard the grid.
CASES = [((10,), 3, (1,), ()), ((9, 10), (3, 4), (2, 2), (("x", "y"),)), ((4, 5, 3, 6), (2, 2, 1, 3), (2, 2), "x")]


@pytest.mark.parametrize(("shape", "modes", "sizes", "axes"), CASES)
def test_a_spectral_convolution(shape, modes, sizes, axes):
    ndim = len(shape)
    fft = dops.FFT(make_mesh(sizes), shape=shape, axes=axes, pad=True, real=True)
    layer = dops.nn.SpectralConv(fft, 2, 3, modes, key=jax.random.key(0))
    u = random_field((2, *shape))
    real, imaginary = layer.weight_layout.gather(layer.weight)
    kept = [np.r_[:m, n - m + 1 : n] for m, n in zip(layer.modes, shape)]
    kept[-1] = np.arange(layer.modes[-1])
    axes, spectrum = tuple(range(-ndim, 0)), np.fft.rfftn(u, axes=tuple(range(-ndim, 0)))
    whole, place = np.zeros((3, *spectrum.shape[1:]), complex), np.ix_(*kept)
    whole[(slice(None), *place)] = np.einsum("oi...,i...->o...", real + 1j * imaginary, spectrum[(slice(None), *place)])
    got = fft.decomposition.gather(jax.jit(lambda u: layer(u))(fft.decomposition.shard(u)))
    assert_close(got, np.fft.irfftn(whole, s=shape, axes=axes))


@pytest.mark.parametrize(("shape", "sizes"), [((9, 10), (4,)), ((12,), (1,))])
def test_a_convolution_with_a_small_kernel(shape, sizes):
    dec = dops.Decomposition(make_mesh(sizes), shape=shape, pad=True)
    options = {"dilation": 2, "key": jax.random.key(1)}
    layer = dops.nn.HaloConv(dec, 2, 3, 3, padding_mode="ZEROS", **options)
    whole = eqx.nn.Conv(len(shape), 2, 3, 3, padding="SAME", **options)
    x = random_field((2, *shape))
    assert_close(dec.gather(jax.jit(lambda u: layer(u))(dec.shard(x))), jax.jit(lambda u: whole(u))(jnp.asarray(x)))


def test_the_fourier_neural_operator_in_two_dimensions():
    """A Fourier neural operator in two dimensions gives the same results and gradients as on one device.

    Two mesh axes together shard one axis of the grid.
    """
    results = []
    for sizes, axes in (((1,), "x"), ((2, 4), (("x", "y"),))):
        fft = dops.FFT2D(make_mesh(sizes), shape=(9, 10), axes=axes, pad=True, real=True)
        model = dops.nn.FNO2D(fft, 1, 2, width=3, modes=3, depth=1, key=jax.random.key(0))
        assert model.title == "FNO2D"
        assert isinstance(model, dops.nn.FNO)
        loss = lambda u, model=model: (jnp.sum(jnp.sin(v := model(u))), v)
        (_, v), slope = jax.jit(jax.value_and_grad(loss, has_aux=True))(
            fft.decomposition.shard(random_field((1, 9, 10)))
        )
        results.append([fft.decomposition.gather(array) for array in (v, slope)])
    for other, one in zip(results[1], results[0]):
        assert_close(other, one)


def test_names_check_the_number_of_axes(plain):
    key = jax.random.key(0)
    mesh = make_mesh((1,))
    two, three = (plain.FFT(mesh, shape=shape, real=True) for shape in ((8, 8), (8, 8, 8)))
    carried = plain.FFT(mesh, shape=(8, 8), transformed=("y",), real=True)
    nn, options = plain.nn, {"width": 2, "modes": 2, "depth": 1}
    for make, message in (
        (lambda: nn.SpectralConv3D(two, 1, 1, 2, key=key), r"`fft` must transform a grid of 3 axes; got .* \(8, 8\)"),
        (lambda: nn.SpectralConv2D(three, 1, 1, 2, key=key), "`fft` must transform a grid of 2 axes"),
        (lambda: nn.FNO3D(two, 1, 1, **options, key=key), "`fft` must transform a grid of 3 axes"),
        (lambda: nn.FNO2D(three, 1, 1, **options, key=key), "`fft` must transform a grid of 2 axes"),
        (lambda: nn.HaloConv2D(three.decomposition, 1, 1, 3, key=key), "`ndim` must be 3, as in the decomposition"),
        (lambda: nn.HaloConvTranspose2D(three.decomposition, 1, 1, 3, key=key), "`ndim` must be 3, as in the decomp"),
        (lambda: nn.SpectralConv(carried, 1, 1, 2, key=key), r"`fft` must transform all axes .*`transformed=\(1,\)`"),
        (lambda: nn.SpectralConv2D(two, 1, 1, 2, key=key)(np.ones((8, 8))), r"shape \(\*batch, 1, nx, ny\)"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
    assert nn.HaloConv3D(mesh, 1, 1, 3, key=key).title == "HaloConv3D"
    assert nn.HaloConvTranspose3D(mesh, 1, 1, 3, key=key).title == "HaloConvTranspose3D"
    assert nn.HaloConvTranspose2D(two.decomposition, 1, 1, 3, stride=2, key=key).title == "HaloConvTranspose2D"
    assert nn.SpectralConv2D(two, 1, 1, 2, key=key).title == "SpectralConv2D"
