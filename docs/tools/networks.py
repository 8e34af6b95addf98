"""Compare the model of `python -m decompops scaling` with hosts on this machine, whose links are limited.

python docs/tools/networks.py --rates 0.1 1 10 --hosts 2 4 --ranks 1 2 --blocks 64 128

Each row of the table that is printed is one run. The model knows only operators on one rank and single messages: it
never sees an operator on several ranks. Hosts need root or user namespaces: see tests/support/hosts.py.
"""

import argparse
import re
import sys
from itertools import product
from pathlib import Path


sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

import hosts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rates", nargs="+", default=["0.1", "1", "10"], help="Gbit/s of the link of each host")
    parser.add_argument("--hosts", nargs="+", type=int, default=[2])
    parser.add_argument("--ranks", nargs="+", type=int, default=[1], help="ranks on each host")
    parser.add_argument("--blocks", nargs="+", default=["64"])
    options = parser.parse_args()
    print("| Gbit/s | hosts | ranks each | block | link, GB/s | operator | real, ms | model, ms | model / real |")
    print("|---|---|---|---|---|---|---|---|---|")
    for number in options.hosts:
        with hosts.cluster(number) as cluster:
            for rate, ranks, block in product(options.rates, options.ranks, options.blocks):
                for host in cluster.hosts:
                    host.limit(f"{float(rate):g}gbit")
                command = ("-m", "decompops", "scaling", "--quiet", "--block", block, "--ranks", number * ranks)
                with cluster.mpiexec(*command, ranks=ranks) as job:
                    if job.wait(600) != 0:
                        sys.exit(job.output)
                link = re.findall(r"^link ([\d.e+-]+) GB/s", job.output, re.MULTILINE)
                found = re.findall(r"^([a-z ]+?) +[\d.]+ +([\d.]+) +([\d.]+) +([\d.]+)$", job.output, re.MULTILINE)
                for cells in found:
                    print("|", " | ".join((rate, str(number), str(ranks), block, link[0], *cells)), "|")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
