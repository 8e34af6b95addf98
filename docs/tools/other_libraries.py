"""Measure the table of docs/other_libraries.md: which libraries work on sharded fields, and what they gather.

python docs/tools/other_libraries.py            # writes the table into the page
python docs/tools/other_libraries.py --check    # fails if the page has another table

The script runs the code of this page and of docs/training_and_sampling.md on a mesh of Explicit axes and on a mesh of
Auto axes. It then compiles each call of the table. Blocks whose library is not installed are left out, and so are their
rows.
"""

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch


os.environ["EQX_ON_ERROR"] = "nan"  # as on the page
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

import jax
import jax.numpy as jnp
import numpy as np
from decompops.tools.hlo import Collective, collectives

from pages import blocks


PAGE = Path(__file__).parents[1] / "other_libraries.md"
PROGRAMS = ("docs/other_libraries.md", "docs/training_and_sampling.md")
BEGIN, END = "<!-- table -->\n", "<!-- end of the table -->\n"
LIBRARIES = ("diffrax", "lineax", "optimistix", "optax", "blackjax", "numpyro", "scipy")
EXPLICIT, AUTO = (
    'jax.make_mesh((2, 4), ("x", "y"))',
    'jax.make_mesh((2, 4), ("x", "y"), (jax.sharding.AxisType.Auto,) * 2)',
)
HEAD = """
| call | as for one device, Auto mesh | as for one device, Explicit mesh | as on these pages |
|---|---|---|---|
"""
SHARES = {Fraction(1): "the field", Fraction(1, 2): "half of the field", Fraction(1, 4): "a quarter of the field"}
# Each row: what is called; the call for one device, if it is measured; the program of a page, and its arguments. All
# are Python expressions in the names of the pages.
ROWS = {
    "diffrax, adaptive steps": (
        """lambda u, d: dfx.diffeqsolve(
            dfx.ODETerm(lambda t, u, d: d * laplacian(u)), dfx.Tsit5(), 0.0, 1.0, 0.1, u, d,
            stepsize_controller=dfx.PIDController(rtol=1e-4, atol=1e-4),
        ).ys[-1]""",
        "diffuse",
        "(u, 0.1)",
    ),
    "diffrax, `RecursiveCheckpointAdjoint`": (None, "by_checkpoints", "(0.1, u)"),
    "diffrax, `BacksolveAdjoint`": (None, "by_integration", "(0.1, u)"),
    "diffrax, event and dense output": (None, "until_half", "(u, 0.5)"),
    "lineax, CG": (
        """lambda f: lx.linear_solve(
            lx.FunctionLinearOperator(
                lambda v: v - laplacian(v), jax.eval_shape(lambda: f), lx.positive_semidefinite_tag
            ),
            f, lx.CG(**tolerance),
        ).value""",
        "screened",
        "(u,)",
    ),
    "optimistix, Newton with GMRES": (
        """lambda f: optx.root_find(
            residual, optx.Newton(**tolerance, linear_solver=lx.GMRES(**tolerance)), 0 * f, f
        ).value""",
        "newton",
        "(u,)",
    ),
    "optimistix, Levenberg–Marquardt": (
        None,
        "marquardt",
        "(u,)",
    ),
    "optimistix, L-BFGS": (
        "lambda f: optx.minimise(potential, optx.LBFGS(**tolerance), 0 * f, f).value",
        "lbfgs",
        "(u,)",
    ),
    "optimistix, gradient of a root": (
        """jax.grad(lambda f: dec.norm(
            optx.root_find(residual, optx.Newton(**tolerance, linear_solver=krylov), 0 * f, f).value
        ) ** 2)""",
        "sensitivity",
        "(u,)",
    ),
    "optax, Adam on batches of sharded samples": (None, "train", "(flat, state, jax.random.key(0), samples, targets)"),
    "BlackJAX, a step of NUTS": (
        """lambda chain, key, observed: (
            lambda sampler: sampler.step(key, sampler.init(unravel(chain.position)))[0].position
        )(
            blackjax.nuts(
                lambda u: -dec.norm(u) ** 2 / 2 - dec.norm(smooth(u) - observed) ** 2 * 50, 0.1, jnp.ones(u.size),
                max_num_doublings=5,
            )
        )""",
        "step",
        "(chain, keys[0], observed)",
    ),
    "NumPyro, `kernel.init`": (None, "prepare", "(vector, keys[0], observed)"),
    "NumPyro, `kernel.sample`": (None, "advance", "(sampler, observed)"),
    "SciPy, L-BFGS-B, on the devices": (None, "value_and_slope", "(vector, u)"),
}


@cache
def run(kind: str) -> dict[str, Any]:
    """Run the code of both pages on meshes of `kind`, "Explicit" or "Auto", and return its names."""
    first, second = (names_of(page, kind) for page in PROGRAMS)
    return first | second


def names_of(page: str, kind: str) -> dict[str, Any]:
    """Run the code of a page, which needs no names of another page."""
    names: dict[str, Any] = {}
    skipped = False
    for block in blocks(page):
        missing = [name for name in LIBRARIES if f"import {name}" in block and not find_spec(name)]
        skipped = skipped or bool(missing)
        try:
            with TemporaryDirectory() as folder, contextlib.chdir(folder):
                exec(block.replace(EXPLICIT, AUTO) if kind == "Auto" else block, names)
        except (ImportError, NameError) as error:
            if not skipped:
                raise
            print(f"NOT CHECKED on {kind} axes: {error}")
    return names


def row(call: str, alone: str | None, program: str, arguments: str) -> str | None:
    """Return a row of the table; `None` if a library is not installed."""
    cells = {}
    for kind in ("Auto", "Explicit"):
        names = run(kind)
        jax.set_mesh(names["mesh"])
        try:
            values = eval(arguments, names)
            expected, here = measured(eval(program, names), values, names)
        except NameError as error:
            print(f"NOT CHECKED: {call}: {error}")
            return None
        cells[kind] = here
        cells[f"{kind} alone"] = "–"
        if alone is not None:
            # Equinox raises errors by default. It has no public way to change this after its import.
            with patch.object(sys.modules["equinox._errors"], "EQX_ON_ERROR", "raise"):
                found, cells[f"{kind} alone"] = measured(jax.jit(eval(alone, names)), values, names)
            if isinstance(expected, jax.Array) and found is not None:
                np.testing.assert_allclose(found, expected, atol=1e-3, err_msg=call)
    both = cells["Auto"]
    if cells["Explicit"] != both:
        both = f"Auto: {both}; Explicit: {cells['Explicit']}"
    return f"| {call} | {cells['Auto alone']} | {cells['Explicit alone']} | {both} |\n"


def measured(program: Any, arguments: tuple, names: dict[str, Any]) -> tuple[Any, str]:
    """Run a program. Return its result, `None` if it raises, and what the table says about it."""
    field = names["u"]
    try:
        compiled = program.lower(*arguments).compile()
    except NameError:
        raise
    except Exception as error:
        return None, f"raises `{type(error).__name__}`"
    results = compiled(*arguments)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(results) if jnp.issubdtype(x.dtype, jnp.inexact))
    text = compiled.as_text()
    sizes = [gathered(one) for one in collectives(text)]
    part = Fraction(max(sizes, default=0), field.nbytes).limit_denominator(8)
    facts = ["gathers nothing" if part < Fraction(1, 8) else f"gathers {SHARES.get(part, f'{part} fields')}"]
    like = [x for x in jax.tree.leaves(results) if x.size == field.size]
    if any(x.sharding.is_fully_replicated for x in like):
        facts.append("the result is whole on each device")
    elif re.search(rf" = \w+\[(1,)*(8,8,8|{field.size})\]", text):
        facts.append("a field is whole on each device for a while")
    return results, ", ".join(facts)


def gathered(collective: Collective) -> int:
    """Return how many bytes each device has after a collective, if these come from all devices of its group."""
    share = collective.group_size / max(collective.group_size - 1, 1)
    return round(collective.bytes * {"all-gather": share, "all-reduce": share / 2}.get(collective.kind, 0))


def table() -> list[str]:
    """Return the rows of the table that can be measured."""
    return [found for call, programs in ROWS.items() if (found := row(call, *programs))]


def shown() -> list[str]:
    """Return the rows of the table on the page."""
    return re.findall(r"^\| [^|]*,.*\n", PAGE.read_text().partition(BEGIN)[2].partition(END)[0], re.MULTILINE)


def check() -> None:
    """Fail if a row that can be measured differs from the page, or if the page has other rows."""
    calls = [line.split(" | ")[0][2:] for line in shown()]
    assert calls == list(ROWS), f"The page has the rows {calls}."
    different = [line for line in table() if line not in shown()]
    assert not different, "Run docs/tools/other_libraries.py: the page has other rows than\n" + "".join(different)


def write() -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + HEAD + "".join(table()) + END + rest.partition(END)[2])


@contextlib.contextmanager
def cached_programs() -> Iterator[None]:
    """Keep compiled programs, because the rows compile programs that the page has compiled."""
    with TemporaryDirectory() as folder:
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        yield


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure the table of docs/other_libraries.md.")
    parser.add_argument("--check", action="store_true", help="compare with the page instead of writing into it")
    options = parser.parse_args()
    with cached_programs():
        check() if options.check else write()
