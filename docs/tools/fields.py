"""Pictures of fields for the pages: points and their modes, a bent potential, a body in a flow, a field in a file.

`python docs/tools/pictures.py` draws them. All numbers come from real operators.
"""

import tempfile

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
from curves import one_device
from decompops import io, particles, pde, solve, spectral
from svg import COLOURS, INK, SIGNED, UPWARDS, arrow, box, cube, frame, image, label, picture, shape_text


def draw() -> dict[str, str]:
    """Return the text of each SVG file by its name."""
    with jax.enable_x64(True):
        return {
            "points.svg": points(),
            "conductivity.svg": conductivity(),
            "body.svg": body(),
            "read.svg": read(),
        }


def points() -> str:
    """A wave at random points, and the modes that `type1` makes of it."""
    n, count, side = 16, 300, 18
    dec = dops.Decomposition(one_device(), (n, n), backend=dops.XLA())
    nufft = particles.NUFFT(dec, tolerance=1e-8)
    x = np.random.default_rng(5).uniform(0, 2 * np.pi, (count, 2))
    wave = np.cos(3 * x[:, 0] + 2 * x[:, 1])
    p = nufft.particle_mesh.place(x, c=wave + 0j)
    modes = np.fft.fftshift(np.abs(nufft.type1(p, p["c"]))) / count
    left, right, top, size = 20, 410, 60, side * n
    parts = [
        label(left, 36, f"cos(3x + 2y) at {count} points", 19, "start"),
        label(right, 36, f"Its {n} × {n} modes, |fₖ| / {count}", 19, "start"),
        frame(left, top, size, size),
        arrow(left + size + 14, top + size / 2 - 20, right - 34),
        label((left + size + right - 20) / 2, top + size / 2 - 32, "type1", 18),
        arrow(right - 34, top + size / 2 + 20, left + size + 14),
        label((left + size + right - 20) / 2, top + size / 2 + 48, "type2", 18),
    ]
    for (along, up), value in zip(x, wave):
        at = f'cx="{left + size * along / (2 * np.pi):.1f}" cy="{top + size * (1 - up / (2 * np.pi)):.1f}"'
        colour = SIGNED[min(int((value + 1) / 2 * len(SIGNED)), len(SIGNED) - 1)]
        parts.append(f'<circle {at} r="5" fill="{colour}" stroke="{INK}" stroke-width="0.6"/>')
    # x and kx to the right, y and ky upwards
    parts += [image(modes.T[::-1], right, top, side, (0, 0.5), UPWARDS), frame(right, top, size, size)]
    for k in (-n // 2, 0, n // 2 - 1):
        place, text = side * (k + n // 2 + 0.5), str(k).replace("-", "−")
        parts.append(label(right + place, top + size + 20, text, 16))
        parts.append(label(right - 5, top + size - place + 6, text, 16, "end"))
    return picture(720, top + size + 34, parts)


def conductivity() -> str:
    """A coefficient that varies by two powers of ten, and the solutions for a = 1 and for this coefficient."""
    n, side, top = 36, 6, 50
    fft = dops.FFT(one_device(), shape=(n, n), real=True, backend=dops.XLA())
    x, y = np.meshgrid(*2 * [2 * np.pi * np.arange(n) / n], indexing="ij")
    bump = lambda at, to: np.exp(-3 * (2 - np.cos(x - at) - np.cos(y - to)))
    a = 10 ** (bump(1.6, 2.4) - 1.2 * bump(4.6, 3.9))
    operator = spectral.VariableLaplacian(fft, jnp.asarray(a))
    f = jnp.asarray(np.cos(x))
    constant = np.asarray(spectral.Poisson(fft)(f))
    solution = np.asarray(solve.CG(operator, operator.approximate_inverse, rtol=1e-10)(f))
    parts = []
    shown = {"a, from 1/15 to 10": np.log10(a), "u for a = 1": constant, "u for this a": solution}
    for i, (title, values) in enumerate(shown.items()):
        left = 12 + (side * n + 16) * i
        parts += [label(left, 34, title, 19, "start"), image(values.T[::-1], left, top, side, (-1.2, 1.2), SIGNED)]
        parts.append(frame(left, top, side * n, side * n))
    return picture(704, top + side * n + 14, parts)


def body() -> str:
    """The speed of a flow around a cylinder that a force keeps at rest."""
    cells, radius, (x0, y0), dt, fastest = 8, 0.5, (2.0, 2.5), 0.05, 1.4
    lengths = dops.Box((10.0, 5.0))
    fft = dops.FFT(one_device(), shape=(10 * cells, 5 * cells), real=True, box=lengths, backend=dops.XLA())
    x, y = fft.coordinates()
    cylinder = pde.Penalisation(fft, lambda x, y: jnp.hypot(x - x0, y - y0) - radius, viscosity=1 / 40)
    # The box is periodic. Behind the part that is drawn, a force brings the flow back to its speed.
    sponge = jnp.sin(jnp.pi * jnp.clip((x - 7.5) / 2.5, 0, 1)) ** 2 + 0 * y
    onwards = pde.Penalisation(fft, sponge, time=0.25, value=(1.0, 0.0))
    equation = pde.NavierStokes(fft, 1 / 40, forcing=(cylinder, onwards))
    solver = pde.ETDRK(equation, dt, order=3)
    start = equation.state(jnp.stack([jnp.ones(fft.decomposition.shape), jnp.zeros(fft.decomposition.shape)]))
    end = jax.jit(lambda u: jax.lax.fori_loop(0, 240, lambda i, u: solver.step(i * dt, u), u))(start)
    speed = np.hypot(*np.asarray(equation.fields(end)))[: 15 * cells // 2].T[::-1]
    left, top, side = 20, 50, 8
    high, wide = (side * n for n in speed.shape)
    at = f'cx="{left + side * (cells * x0 + 0.5):g}" cy="{top + high - side * (cells * y0 + 0.5):g}"'
    parts = [
        label(left, 34, "Speed of a flow from the left around a body", 19, "start"),
        image(speed, left, top, side, (0, fastest), UPWARDS),
        f'<circle {at} r="{side * cells * radius:g}" fill="none" stroke="{COLOURS[5]}" stroke-width="2.5"/>',
        frame(left, top, wide, high),
    ]
    key = 24
    parts.append(image(np.arange(len(UPWARDS))[::-1, None] + 0.5, 530, top + 10, key, (0, len(UPWARDS)), UPWARDS))
    parts.append(frame(530, top + 10, key, key * len(UPWARDS)))
    for share, text in ((0, f"{fastest}"), (1 - 1 / fastest, "1.0: far away"), (1, "0.0: at rest")):
        parts.append(label(562, top + 16 + key * len(UPWARDS) * share, text, 16, "start"))
    parts.append(
        f'<circle cx="542" cy="{top + high - 22}" r="10" fill="none" stroke="{COLOURS[5]}" stroke-width="2.5"/>'
    )
    parts.append(label(562, top + high - 16, "distance = 0", 16, "start"))
    return picture(720, top + high + 20, parts)


def read() -> str:
    """A field that is written on eight devices and read on two."""
    mesh = jax.make_mesh((2, 4), ("x", "y"))
    few = jax.make_mesh((1, 2), ("x", "y"), devices=jax.devices()[:2])
    first, second = (dops.Decomposition(one, shape=(16, 16, 16), backend=dops.XLA()) for one in (mesh, few))
    written = first.shard(np.random.default_rng(0).standard_normal(first.shape))
    with tempfile.TemporaryDirectory() as folder:
        io.write(f"{folder}/u.zarr", {"u": written}, first)
        found = io.read(f"{folder}/u.zarr", second).arrays["u"]
    np.testing.assert_array_equal(found, written)
    parts = [arrow(x, 176, x + 42) for x in (226, 424)]
    for x, size, array, note in ((120, "2 × 4", written, "written on"), (590, "1 × 2", found, "read on")):
        parts += [label(x + 8, 32, f"{note} {size} devices", 19), cube(array, x, 176)]
        parts.append(label(x + 8, 322, shape_text(array.addressable_shards[0].data.shape), 18))
    parts += [box(352, 160, "u.zarr", 1, 130), label(352, 222, shape_text(written.shape), 18)]
    parts.append(label(352, 248, "the same numbers", 18))
    return picture(720, 342, parts)
