"""The command `python -m decompops scaling`."""

import argparse

import jax

from ... import MPI
from ..bench.scaling import STEPS, Future, report_scaling
from .arguments import Parser, count, grid, positive
from .devices import is_quiet
from .progress import Progress


def add(parser: Parser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    block = "the block of each rank: 64, 128x128x64 (default: 64)"
    add("--block", type=grid, default=(64, 64, 64), metavar="SIZES", help=block)
    ranks = "numbers of ranks (default: 64 1024 16384)"
    add("--ranks", nargs="+", type=count, default=[64, 1024, 16384], metavar="N", help=ranks)
    latency = "microseconds that a message takes from rank to rank (default: the time measured on this machine)"
    add("--latency", type=positive, metavar="TIME", help=latency)
    add("--link", type=positive, metavar="RATE", help="GB/s that a node sends (default: as measured)")
    nodes = "ranks on each node of the predicted machine (default: as on this machine)"
    add("--ranks-per-node", type=count, metavar="N", help=nodes)
    parser.add_quiet()
    parser.set_defaults(run=lambda options: _run(parser, options))


def _run(parser: Parser, options: argparse.Namespace) -> int:
    try:
        MPI.initialize(share_memory=False)  # Ranks of one node then send messages, as ranks of different nodes do.
        if jax.process_count() < 2:
            raise RuntimeError("scaling needs two ranks or more: mpiexec -n 2 python -m decompops scaling")
    except (ImportError, RuntimeError) as error:
        parser.error(str(error))
    with Progress("scaling", STEPS, quiet=is_quiet(options)) as progress:
        future = Future(
            options.ranks,
            options.ranks_per_node,
            None if options.latency is None else 1e-6 * options.latency,
            None if options.link is None else 1e9 * options.link,
        )
        lines = report_scaling(options.block, future, progress.part)
    if jax.process_index() == 0:
        print(*lines, sep="\n")
    return 0
