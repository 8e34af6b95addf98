"""Measure the errors of JaxPM's gradients on 8 virtual devices against one device: the numbers in docs/peers.md.

    pip install jaxdecomp jaxpm && python docs/tools/jaxpm_gradients.py
    PYTHONPATH=JaxPM python docs/tools/jaxpm_gradients.py    # with a clone of JaxPM; its main branch runs unchanged

JaxPM's own functions run twice: with `jaxdecomp.halo_exchange`, and with `decompops.HaloExchange` in its place. Nothing
else changes, so the error of the first run comes from jaxDecomp's derivative. `paint` is the variance of `cic_paint_dx`
as a function of the displacements. `read` is the mean square of `cic_read_dx` as a function of the field that it reads.
Particles move by less than half of the halo.
"""

import jax


jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_enable_x64", True)

import importlib.metadata  # noqa: E402
import inspect  # noqa: E402

import decompops as dops  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import jaxdecomp  # noqa: E402  # pyright: ignore[reportMissingImports]
import jaxpm.distributed  # noqa: E402  # pyright: ignore[reportMissingImports]
import numpy as np  # noqa: E402
from jax import Array  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P  # noqa: E402
from jaxpm.painting import cic_paint_dx, cic_read_dx  # noqa: E402  # pyright: ignore[reportMissingImports]


# JaxPM 0.1.6 passes arguments to `shard_map` that JAX 0.10 no longer takes. In JaxPM 0.1.6, a halo has the same width
# along both axes.
RELEASE = "check_rep" in inspect.signature(jaxpm.distributed.autoshmap).parameters
if RELEASE:
    jaxpm.distributed.shard_map = lambda f, mesh, in_specs, out_specs, *_: jax.shard_map(
        f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )


def main() -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("x", "y"))
    sharding = NamedSharding(mesh, P("x", "y"))

    def exchange(x: Array, halo_extents, halo_periods) -> Array:
        assert halo_periods == (True, True)
        return dops.HaloExchange(mesh, (*halo_extents, 0)).update(x)

    exchanges = {f"jaxDecomp {importlib.metadata.version('jaxdecomp')}": jaxdecomp.halo_exchange, "decompops": exchange}
    print("relative error of".ljust(33) + "value of paint   its gradient   value of read   its gradient")
    for n in (16, 32, 64):
        for halo in (4, 8):
            if n // 4 < halo:  # A block along y must be as wide as its halo.
                continue
            for name, jaxdecomp.halo_exchange in exchanges.items():  # JaxPM finds the function here when JAX traces.
                jax.clear_caches()  # Otherwise JAX would reuse the functions that it traced with the other exchange.
                errors = [error for function in (paint, read) for error in compare(function, n, halo, sharding)]
                print(f"{n}³, halo {halo}, {name}".ljust(32) + "".join(f"{e:15.1e}" for e in errors), flush=True)


def compare(function, n: int, halo: int, sharding: NamedSharding) -> tuple[float, float]:
    """Return the relative errors of the value and of the gradient on several devices, compared with one device."""
    field, displacement = made(n, halo / 2 - 0.01)
    widths = halo if RELEASE else (halo, halo)
    one = jax.jit(jax.value_and_grad(lambda *args: function(*args, 0, None)))
    several = jax.jit(jax.value_and_grad(lambda *args: function(*args, widths, sharding)))
    value, gradient = one(*arguments(function, field, displacement))
    sharded = jax.device_put((field, displacement), sharding)
    found, found_gradient = several(*arguments(function, *sharded))
    error = np.linalg.norm(np.asarray(found_gradient) - np.asarray(gradient)) / np.linalg.norm(gradient)
    return abs(float(found / value) - 1), float(error)


def paint(displacement: Array, field: Array, halo, sharding) -> Array:
    """The variance of the density of displaced particles. The mean density is 1."""
    return jnp.mean((cic_paint_dx(displacement, halo, sharding) - 1) ** 2)


def read(field: Array, displacement: Array, halo, sharding) -> Array:
    """The mean square of a field at displaced particles."""
    return jnp.mean(cic_read_dx(field, displacement, halo, sharding) ** 2)


def arguments(function, field, displacement) -> tuple:
    return (displacement, field) if function is paint else (field, displacement)


def made(n: int, largest: float) -> tuple[np.ndarray, np.ndarray]:
    """Return a random field (n, n, n) and smooth displacements (n, n, n, 3) of at most `largest` cells."""
    noise = np.random.default_rng(0).standard_normal((n, n, n, 4))
    k = 2 * np.pi * np.fft.fftfreq(n)
    smoothing = np.exp(-2 * (k[:, None, None] ** 2 + k[:, None] ** 2 + k**2))[..., None]
    smooth = np.fft.ifftn(np.fft.fftn(noise, axes=(0, 1, 2)) * smoothing, axes=(0, 1, 2)).real
    return noise[..., 3], smooth[..., :3] * largest / abs(smooth[..., :3]).max()


if __name__ == "__main__":
    main()
