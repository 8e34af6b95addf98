"""Pictures of fields for the pages: points and their modes, and a potential that a coefficient bends.

`python docs/tools/pictures.py` draws them. All numbers come from real operators.
"""

import decompops as dops
import jax
import numpy as np
from decompops import particles, solve, spectral
from svg import INK, SIGNED, UPWARDS, arrow, frame, image, label, picture


def draw() -> dict[str, str]:
    """Return the text of each SVG file by its name."""
    with jax.enable_x64(True):
        return {
            "points.svg": points(),
            "conductivity.svg": conductivity(),
        }


def points() -> str:
    """A wave at random points, and the modes that `type1` makes of it."""
    n, count, side = 16, 300, 18
    dec = dops.Decomposition(_one_device(), (n, n), backend=dops.XLA())
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
    fft = dops.FFT(_one_device(), shape=(n, n), real=True, backend=dops.XLA())
    x, y = np.meshgrid(*2 * [2 * np.pi * np.arange(n) / n], indexing="ij")
    bump = lambda at, to: np.exp(-3 * (2 - np.cos(x - at) - np.cos(y - to)))
    a = 10 ** (bump(1.6, 2.4) - 1.2 * bump(4.6, 3.9))
    operator = spectral.VariableLaplacian(fft, jax.numpy.asarray(a))
    f = jax.numpy.asarray(np.cos(x))
    constant = np.asarray(spectral.Poisson(fft)(f))
    solution = np.asarray(solve.CG(operator, operator.approximate_inverse, rtol=1e-10)(f))
    parts = []
    for i, (title, values, limit) in enumerate(
        (("a, from 1/16 to 10", np.log10(a), 1.2), ("u for a = 1", constant, 1.2), ("u for this a", solution, 1.2))
    ):
        left = 12 + (side * n + 16) * i
        parts += [label(left, 34, title, 19, "start"), image(values.T[::-1], left, top, side, (-limit, limit), SIGNED)]
        parts.append(frame(left, top, side * n, side * n))
    return picture(704, top + side * n + 14, parts)


def _one_device() -> jax.sharding.Mesh:
    return jax.make_mesh((1,), ("x",), devices=jax.devices()[:1])
