"""Programs of the whole catalogue at a middle size: how many copies of a field they hold, and their constants.

On the small grids of other tests, nobody sees a program that holds the symbols of a grid, gathers it, or pads it too
often. Here programs are compiled and not run, which takes no longer than for a small grid.
"""

import functools
import math
import re

import decompops as dops
import jax
import numpy as np
import pytest

from catalogue import Entry, catalogue
from helpers import make_mesh


SHAPE = (64, 64, 64)
# Most programs hold at most this many copies of the larger one of their argument and their result, with the result
# and besides the argument.
COPIES = 8
MORE_COPIES = {
    "Burgers, conservative: rate": 17,  # Six products on a grid with 3.4 times as many cells.
    "CG": 11,  # The vectors of the method, and those of the operator, in the loop and before it.
    "Convolution": 30,  # The symbol and the field, on a grid with eight times as many cells.
    "Convolution along x": 9,  # The same, on a grid with twice as many cells.
    "energy_transfer": 17,  # As in Burgers' equation.
    "Multigrid": 18,  # The coefficients on all faces, and all levels.
    "NavierStokes with KolmogorovForcing and Smagorinsky: rate": 14,  # The rates of strain have six components.
    "PassiveScalar with VariableViscosity: rate": 9,  # The rates of strain of the velocity, beside the scalar.
    "VariableLaplacian": 16,  # The coefficient, and the gradient as spectra and as fields.
    "VariableLaplacian between walls": 23,  # JAX 0.12 holds 22, and JAX 0.10 holds 21.
}
# A program may contain the matrices of one axis between walls, stored in bands, but no constant that is as large as a
# block of a field, 32,768 cells.
MOST_CONSTANTS = 4096
CASES = [(backend, sizes) for backend in (dops.XLA(), dops.Native()) for sizes in ((2, 4), (1, 1))]
CONSTANT = re.compile(r"\w+\[([\d,]+)\][^=]* constant\(")


@functools.cache
def everything(case: int) -> dict[str, Entry]:
    backend, sizes = CASES[case]
    return catalogue(make_mesh(sizes), 3, SHAPE, backend=backend)


def faults(name: str, entry: Entry) -> list[str]:
    """Compile a program. Return what is too large in it."""
    shape = (*entry.components, *entry.layout.blocks.shape)
    field = jax.ShapeDtypeStruct(shape, entry.dtype, sharding=entry.sharding())
    lowered = jax.jit(entry.function).lower(field)
    program = lowered.compile()
    memory = program.memory_analysis()
    # A result that is not sharded counts as several copies.
    result = sum(math.prod(one.shape) * one.dtype.itemsize for one in jax.tree.leaves(lowered.out_info))
    one = max(memory.argument_size_in_bytes, result / entry.layout.mesh.size)
    copies = (memory.output_size_in_bytes + memory.temp_size_in_bytes) / one
    constants = [math.prod(map(int, lengths.split(","))) for lengths in CONSTANT.findall(program.as_text())]
    found = [f"{name} holds {copies:.1f} copies"] * (copies > MORE_COPIES.get(name, COPIES))
    return found + [f"{name} has a constant of {n} elements" for n in constants if n > MOST_CONSTANTS]


def is_short(name: str) -> bool:
    """Return whether CI compiles a program with some backend. Steps of integrators consist of rates."""
    return not re.search(r"\.T$|: |RealSpace|Multigrid", name)


@pytest.mark.parametrize("case", range(len(CASES)))
def test_copies(case):
    """Each operator is compiled with one backend, on one device or eight, and some transposes and rates."""
    names = list(everything(case))
    short, others = ([name for name in names if is_short(name) == flag] for flag in (True, False))
    others = [name for name in others if re.search(r"\.T$|: rate", name)]
    chosen = short[case :: len(CASES)] + others[case :: 10 * len(CASES)]
    assert [fault for name in chosen for fault in faults(name, everything(case)[name])] == []


@pytest.mark.sweep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("case", range(len(CASES)))
def test_copies_of_all_programs(case):
    entries = everything(case)
    names = [name for name in entries if not re.search("ETDRK|IMEXRK|SBDF|RealSpace", name)]
    assert [fault for name in names for fault in faults(name, entries[name])] == []


def test_too_many_copies_and_constants_are_found():
    dec = dops.Decomposition(make_mesh((2, 4)), shape=SHAPE, backend=dops.XLA())
    table = np.random.default_rng(0).standard_normal((64, 64, 4))
    everywhere = jax.NamedSharding(dec.mesh, jax.P())
    entries = {
        "gathered": lambda u: jax.lax.with_sharding_constraint(2 * u, everywhere),
        "table": lambda u: u * np.tile(table, 16),
    }
    (gathered,), (constant,) = (faults(name, Entry(function, dec.layout("z"))) for name, function in entries.items())
    assert re.fullmatch(r"gathered holds \d+\.\d copies", gathered)
    assert constant == "table has a constant of 262144 elements"
