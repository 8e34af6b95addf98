"""Pictures of fields for the pages: points and modes of a non-uniform Fourier transform.

`python docs/tools/pictures.py` draws them. All numbers come from real operators.
"""

import decompops as dops
import jax
import numpy as np
from decompops import particles
from svg import INK, SIGNED, UPWARDS, arrow, frame, image, label, picture


def draw() -> dict[str, str]:
    """Return the text of each SVG file by its name."""
    with jax.enable_x64(True):
        return {
            "points.svg": points(),
        }


def points() -> str:
    """A wave at random points, and the modes that `type1` makes of it."""
    n, count, side = 16, 300, 18
    dec = dops.Decomposition(jax.make_mesh((1,), ("x",), devices=jax.devices()[:1]), (n, n), backend=dops.XLA())
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
