"""Pictures of numbers for the pages: potentials, errors, residuals, runs, stored modes, and points on a grid.

`python docs/tools/pictures.py` draws them. All numbers come from real operators.
"""

import contextlib
import tempfile

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from decompops import finite_volume, nn, particles, pde, solve, spectral
from scipy.special import erf
from svg import CELL, COLOURS, FAINT, INK, PADDING, borders, frame, label, line, owners_of, picture, square


def draw() -> dict[str, str]:
    """Return the text of each SVG file by its name."""
    with jax.enable_x64(True):
        return {
            "open_box.svg": open_box(),
            "orders.svg": orders(),
            "half_spectrum.svg": half_spectrum(),
            "window.svg": window(),
            "cycles.svg": cycles(),
            "restart.svg": restart(),
            "learned.svg": learned(),
        }


def open_box() -> str:
    """The potential of a charge in a periodic box and in open space, along a line through the charge."""
    n, width, place = 64, 0.12, 0.5
    fft = dops.FFT3D(one_device(), shape=(n, n, n), real=True, box=dops.Box((2.0, 2.0, 2.0)), backend=dops.XLA())
    x = np.arange(n) * 2 / n - 1
    r = np.sqrt((x[:, None, None] - place) ** 2 + x[:, None] ** 2 + x**2)
    density = -jnp.asarray(np.exp(-(r**2) / (2 * width**2)) / (2 * np.pi * width**2) ** 1.5)
    middle = lambda field: np.asarray(field)[:, n // 2, n // 2]
    curves = {
        "periodic box: `spectral.Poisson`": middle(spectral.Poisson(fft)(density)),
        "open space: `spectral.Convolution`": middle(spectral.Convolution(fft, spectral.PoissonKernel())(density)),
    }
    # The exact potential of a Gaussian charge.
    near = np.maximum(middle(r), 1e-9)
    exact = erf(near / (np.sqrt(2) * width)) / (4 * np.pi * near)
    left, top, wide, high = 50, 60, 600, 230
    across, up = (lambda s: left + wide * (s + 1) / 2), (lambda s: top + high * (0.62 - s) / 0.66)
    parts = [
        label(20, 32, "Potential of a charge at x = 0.5", 19, "start"),
        f'<path d="M{left} {up(0):.1f}H{left + wide}" stroke="{FAINT}"/>',
        label(left + wide + 8, up(0) + 6, "0", 17, "start"),
    ]
    for i, (name, values) in enumerate(curves.items()):
        colour = COLOURS[(5, 1)[i]]
        parts.append(line([(across(s), up(value)) for s, value in zip(x, values)], colour))
        y = top + 20 + 30 * i
        parts.append(f'<path d="M{left} {y}h30" stroke="{colour}" stroke-width="2.5"/>')
        parts.append(label(left + 40, y + 6, name.replace("`", ""), 17, "start"))
    for s, value in list(zip(x, exact))[::4]:
        parts.append(f'<circle cx="{across(s):.1f}" cy="{up(value):.1f}" r="4" fill="none" stroke="{INK}"/>')
    parts.append(f'<circle cx="{left + 15}" cy="{top + 80}" r="4" fill="none" stroke="{INK}"/>')
    parts.append(label(left + 40, top + 86, "open space: exact", 17, "start"))
    parts += [label(across(s), top + high + 24, f"{s:g}", 17) for s in (-1, -0.5, 0, 0.5, 1)]
    return picture(690, top + high + 40, parts)


def orders() -> str:
    """The error of Burgers' equation at t = 1 against the time step, for integrators of several orders."""
    fft = dops.FFT(one_device(), shape=(64,), real=True, backend=dops.XLA())
    equation = pde.Burgers(fft, 0.05)
    start = equation.state(jnp.sin(jnp.arange(64) * 2 * jnp.pi / 64)[None])

    def at_1(solver, steps):
        @jax.jit
        def run(u):
            return jax.lax.fori_loop(0, steps, lambda i, u: solver.step(i / steps, u), u)

        return np.asarray(equation.fields(run(start)))

    # Errors far above rounding look the same on every machine.
    exact, counts = at_1(pde.ETDRK(equation, 1 / 2048), 2048), [2**k for k in range(2, 8)]
    left, top, wide, high = 90, 60, 330, 300
    across, up = (lambda dt: left + wide * (7 + np.log2(dt)) / 5), (lambda e: top + high * -np.log10(e) / 9)
    parts = [label(20, 32, "Error at t = 1 against the time step", 19, "start")]
    for power in range(-8, 1, 4):
        y = up(10.0**power)
        parts.append(f'<path d="M{left} {y:.1f}h{wide}" stroke="{FAINT}" stroke-width="0.6"/>')
        parts.append(label(left - 8, y + 6, f"1e{power:d}" if power else "1", 17, "end"))
    parts += [label(across(1 / n), top + high + 24, f"1/{n}", 17) for n in counts[1::2]]
    for i, order in enumerate((1, 2, 3, 4)):
        solvers = [pde.IMEXRK(equation, 1 / n) if order == 3 else pde.ETDRK(equation, 1 / n, order) for n in counts]
        errors = [np.abs(at_1(solver, n) - exact).max() for solver, n in zip(solvers, counts)]
        colour, name = COLOURS[(5, 7, 2, 0)[i]], "IMEXRK" if order == 3 else f"ETDRK, order {order}"
        points = [(across(1 / n), up(error)) for n, error in zip(counts, errors)]
        parts.append(line(points, colour))
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in points]
        y = top + 20 + 34 * i
        parts += [f'<path d="M460 {y}h30" stroke="{colour}" stroke-width="2.5"/>', label(500, y + 6, name, 17, "start")]
    return picture(690, top + high + 40, parts)


def half_spectrum() -> str:
    """The modes of a real field in the plane kx = 0: those that a half spectrum stores, and their multiplicities."""
    n = 12
    fft = dops.FFT3D(one_device(), shape=(n, n, n), real=True, backend=dops.XLA())
    _, ky, kz = (np.asarray(k).ravel() for k in fft.wavenumbers())
    counts = np.asarray(fft.multiplicity()).ravel()
    left, top, side = 60, 66, 30
    down = lambda k: top + side * (k + n // 2)
    across = lambda k: left + side * (k + n // 2 - 1)
    parts = [label(20, 32, "Modes of a real field with kx = 0", 19, "start")]
    for k in range(-n // 2, n // 2):
        frames = "".join(f"M{across(q)} {down(k)}h{side}v{side}h-{side}z" for q in range(1 - n // 2, 0))
        parts.append(f'<path d="{frames}" fill="{PADDING}" stroke="white"/>')
    for q, count in zip(kz, counts):
        for k in ky:
            frame = f'x="{across(int(q))}" y="{down(int(k))}" width="{side}" height="{side}"'
            parts.append(f'<rect {frame} fill="{COLOURS[1 if count == 2 else 3]}" stroke="white"/>')
            ink = "white" if count == 2 else INK
            parts.append(label(across(int(q)) + side / 2, down(int(k)) + 21, f"{count:.0f}", 17, fill=ink))
    for k in (-n // 2, 0, n // 2 - 1):
        parts.append(label(left - 10, down(k) + 21, str(k), 17, "end"))
    for q in (1 - n // 2, 0, n // 2):
        parts.append(label(across(q) + side / 2, top - 8, str(q), 17))
    notes = (
        (COLOURS[1], "stored: stands for two modes"),
        (COLOURS[3], "stored: stands for itself"),
        (PADDING, "not stored: the conjugate"),
    )
    for i, (colour, note) in enumerate(notes):
        y = top + 40 + 40 * i
        parts += [f'<path d="{square(450, y)}" fill="{colour}"/>', label(480, y + 16, note, 17, "start")]
    parts.append(label(480, top + 160, "of a stored mode", 17, "start"))
    parts.append(label(450, top + 210, "ky downwards, kz to the right", 17, "start"))
    return picture(700, top + side * n + 24, parts)


def window() -> str:
    """Points on a grid in the colours of their devices, and the cells to which four of them deposit."""
    mesh = jax.make_mesh((4,), ("x",), devices=jax.devices()[:4])
    dec = dops.Decomposition(mesh, shape=(12, 32), box=dops.Box((12.0, 32.0)), backend=dops.XLA())
    pm = particles.ParticleMesh(dec, "tsc")
    points = np.random.default_rng(3).uniform((0, 0), (12, 32), (40, 2))
    chosen = np.array([(2.6, 8.1), (5.9, 13.4), (5.4, 24.3), (9.7, 30.2)])
    points = np.concatenate([chosen, points])
    p = pm.place(points, mass=(np.arange(len(points)) < len(chosen)) * 1.0)
    shares = np.asarray(pm.deposit(p, p["mass"]))
    owners = owners_of(dec.shard(np.zeros((12, 32))))
    left, top, colours = 25, 50, (COLOURS[1], COLOURS[5], COLOURS[0], COLOURS[6])
    parts = [label(left, 32, "Points, and the cells that four of them touch", 19, "start")]
    for (i, j), owner in np.ndenumerate(owners):
        frame = f'x="{left + CELL * j}" y="{top + CELL * i}" width="{CELL}" height="{CELL}"'
        opacity = 0.15 + 0.85 * np.sqrt(shares[i, j] / shares.max())
        parts.append(f'<rect {frame} fill="{colours[owner]}" fill-opacity="{opacity:.2f}" stroke="white"/>')
    parts.append(borders(owners, left, top))
    # A point of the grid is the centre of its square.
    for x, y in points:
        owner = owners[int(x), int(y)]
        at = f'cx="{left + CELL * (y + 0.5):.1f}" cy="{top + CELL * (x + 0.5):.1f}"'
        parts.append(f'<circle {at} r="4.5" fill="{colours[owner]}" stroke="{INK}"/>')
    return picture(690, top + CELL * 12 + 25, parts)


def cycles() -> str:
    """The residual of conjugate gradients without and with multigrid, and of cycles of multigrid alone."""
    n, steps = 96, 30
    dec = dops.Decomposition(one_device(), shape=(n, n), backend=dops.XLA())
    x, y = np.meshgrid(*2 * [2 * np.pi * np.arange(n) / n], indexing="ij")

    @jax.jit
    def residuals(a, f):
        operator = finite_volume.Diffusion(dec, a, boundary="dirichlet")
        multigrid = solve.Multigrid(operator, anisotropy=(1, 1))

        def cycle(u, _):
            residual = f - operator(u)
            return u + multigrid(residual), jnp.linalg.norm(residual) / jnp.linalg.norm(f)

        # Later residuals of conjugate gradients alone depend on rounding.
        options = {"rtol": 1e-8, "max_steps": steps, "if_unconverged": "return"}
        return {
            "conjugate gradients alone": solve.CG(operator, **options).solve(f).residuals,
            "cycles of multigrid alone": jax.lax.scan(cycle, jnp.zeros_like(f), length=steps)[1],
            "conjugate gradients with multigrid": solve.CG(operator, multigrid, **options).solve(f).residuals,
        }

    found = residuals(np.exp(np.sin(x) * np.cos(y)), np.random.default_rng(0).standard_normal(dec.shape))
    left, top, wide, high = 90, 60, 570, 270
    across, up = (lambda k: left + wide * k / steps), (lambda e: top + high * (1 - np.log10(e)) / 10)
    parts = [label(20, 32, "Residual against the number of steps, 96² cells", 19, "start")]
    for power in range(-8, 1, 4):
        y = up(10.0**power)
        parts.append(f'<path d="M{left} {y:.1f}h{wide}" stroke="{FAINT}" stroke-width="0.6"/>')
        parts.append(label(left - 8, y + 6, f"1e{power:d}" if power else "1", 17, "end"))
    parts += [label(across(k), top + high + 24, str(k), 17) for k in range(0, steps + 1, 10)]
    for i, (name, colour) in enumerate(zip(sorted(found), (COLOURS[5], COLOURS[0], COLOURS[2]))):
        values = np.asarray(found[name])
        last = np.argmax(values <= 1e-8) or steps
        points = [(across(k), up(value)) for k, value in enumerate(values[: last + 1])]
        parts.append(line(points, colour))
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in points]
        y = top + 160 + 32 * i
        parts += [line([(350, y), (380, y)], colour), label(390, y + 6, name, 17, "start")]
    return picture(690, top + high + 40, parts)


def restart() -> str:
    """A run that stops and goes on from its checkpoint, beside a run without interruption."""
    n, saved, stopped, end = 16, 5.0, 7.5, 10.0
    fft = dops.FFT(one_device(), shape=(n,), real=True, backend=dops.XLA())
    x = np.arange(n) * 2 * np.pi / n
    equation = pde.Wave(fft)
    start = equation.state(jnp.stack([np.cos(x) + np.cos(2 * x) / 2, 0 * x]))

    def run(t_end, folder=None, progress=False):
        return pde.simulate(
            pde.ETDRK(equation, 0.125),
            start,
            t_end,
            interval=0.25,
            observe=lambda t, u: equation.fields(u)[0, 0],
            checkpoint=folder,
            minutes=1e6,
            progress=progress,
        )

    def stop(t, t_end):
        if t >= stopped:
            raise InterruptedError

    with tempfile.TemporaryDirectory() as folder:
        run(saved, folder)  # A run saves itself at its end. Earlier checkpoints depend on the clock.
        with contextlib.suppress(InterruptedError):
            run(end, folder, stop)
        second = run(end, folder)
    whole = run(end)
    difference = np.abs(second.observed - whole.observed).max()
    left, wide, top, high, blue, orange = 128, 540, 150, 170, COLOURS[0], COLOURS[5]
    across, up = (lambda t: left + wide * t / end), (lambda h: top + high * (1.6 - h) / 2.6)
    bars = ((56, 0, saved, blue, 1), (56, saved, stopped, blue, 0.35), (96, saved, end, orange, 1))
    parts = [label(20, 32, "A run that stops, and its second start", 19, "start")]
    for y, begin, until, colour, opacity in bars:
        shape = f'x="{across(begin):g}" y="{y}" width="{across(until) - across(begin):g}" height="22"'
        parts.append(f'<rect {shape} fill="{colour}" fill-opacity="{opacity}"/>')
    parts += [label(20, y, text, 17, "start") for y, text in ((73, "first start"), (113, "second start"))]
    parts.append(label(across(stopped) + 10, 73, "stops", 17, "start"))
    parts.append(label(across(saved) - 10, 113, "checkpoint", 17, "end"))
    parts.append(f'<path d="M{across(saved):g} 50V{top + high}" stroke="{INK}" stroke-dasharray="5 4"/>')
    parts.append(line([(across(t), up(h)) for t, h in zip(whole.times, whole.observed)], FAINT))
    parts += [label(20, up(0.3) + 22 * i, text, 17, "start") for i, text in enumerate(("height", "of a wave"))]
    for t, h in zip(second.times, second.observed):
        at = f'cx="{across(t):.1f}" cy="{up(h):.1f}" r="4"'
        parts.append(f'<circle {at} fill="{blue if t <= saved else orange}"/>')
    parts += [label(across(t), top + high + 24, f"{t:g}", 17) for t in (0, saved, end)]
    parts.append(f'<path d="M{left} {top + high + 46}h30" stroke="{FAINT}" stroke-width="2.5"/>')
    note = f"without interruption: the largest difference is {difference:g}"
    parts.append(label(left + 40, top + high + 52, note, 17, "start"))
    return picture(700, top + high + 68, parts)


def learned() -> str:
    """Two fields that a trained network has not seen: its prediction, beside the solution of Burgers' equation."""
    n, count, steps = 32, 128, 200
    mesh = jax.make_mesh((1,), ("x",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:1])
    fft = dops.FFT(mesh, shape=(n,), real=True, backend=dops.XLA())
    x = np.arange(n) * 2 * np.pi / n
    equation = pde.Burgers(fft, 0.2)
    solver = pde.ETDRK(equation, 0.05)
    waves = np.concatenate([[np.cos(k * x) / k, np.sin(k * x) / k] for k in (1, 2, 3)])
    fields = (np.random.default_rng(0).standard_normal((count + 2, len(waves))) @ waves)[:, None]

    @jax.jit
    def at_1(u):
        return equation.fields(jax.lax.fori_loop(0, 20, lambda i, u: solver.step(i / 20, u), equation.state(u)))

    solutions = at_1(fields)
    model = nn.FNO(fft, 1, 1, width=8, modes=12, depth=2, key=jax.random.key(0))
    parameters, rest = eqx.partition(model, eqx.is_inexact_array)
    # In single precision, the rounding of a machine would be visible.
    parameters = jax.tree.map(lambda weights: weights.astype(jnp.float64), parameters)
    optimizer = optax.adam(optax.cosine_decay_schedule(2e-2, steps))

    def step(carry, _):
        parameters, state = carry
        loss = lambda p: jnp.mean((eqx.combine(p, rest)(fields[:count]) - solutions[:count]) ** 2)
        updates, state = optimizer.update(jax.grad(loss)(parameters), state)
        return (eqx.apply_updates(parameters, updates), state), None

    @jax.jit
    def predictions(parameters):
        (parameters, _), _ = jax.lax.scan(step, (parameters, optimizer.init(parameters)), length=steps)
        return eqx.combine(parameters, rest)(fields[count:])

    predicted = np.asarray(predictions(parameters))
    top, wide, high = 56, 320, 220
    parts = [label(20, 32, "Two fields that the network has not seen", 19, "start")]
    for i, (before, truth, guess) in enumerate(
        zip(fields[count:, 0], np.asarray(solutions)[count:, 0], predicted[:, 0])
    ):
        left = 20 + (wide + 20) * i
        place = lambda field, left=left: [
            (left + wide * (j + 0.5) / n, top + high * (0.5 - value / 5)) for j, value in enumerate(field)
        ]
        parts += [frame(left, top, wide, high), line(place(before), FAINT), line(place(guess), COLOURS[5])]
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="none" stroke="{INK}"/>' for x, y in place(truth)]
    y = top + high + 28
    parts += [line([(20, y), (50, y)], FAINT), label(60, y + 6, "input, t = 0", 17, "start")]
    parts += [
        f'<circle cx="215" cy="{y}" r="4" fill="none" stroke="{INK}"/>',
        label(230, y + 6, "solution, t = 1", 17, "start"),
    ]
    parts += [line([(400, y), (430, y)], COLOURS[5]), label(440, y + 6, "prediction, t = 1", 17, "start")]
    return picture(700, y + 20, parts)


def one_device() -> jax.sharding.Mesh:
    return jax.make_mesh((1, 1), ("x", "y"), devices=jax.devices()[:1])
