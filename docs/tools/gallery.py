"""Make the gallery of the site: run each example and write its page, figure, script and notebook to docs/gallery.

    python docs/tools/gallery.py            # the sizes of tests: two minutes on two cores
    python docs/tools/gallery.py --full     # the sizes of a release

An example runs again only if its script, its options or the package have changed. Most tests of examples check what
these runs print. Where `DECOMPOPS_GALLERY` is set, they write the pages of their runs (`write`).
"""

import argparse
import ast
import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple


ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
GALLERY = ROOT / "docs" / "gallery"


class Entry(NamedTuple):
    """An example with its options for a quick build, which its test checks, and for a release.

    - `data`: a file that the example reads, inside `examples`.
    - `uses`: another example that the example imports.
    - `packages`: what a notebook installs besides decompops.
    - `more`: Markdown below the figure.
    """

    name: str
    quick: str
    full: str
    data: str = ""
    uses: str = ""
    packages: str = ""
    more: str = ""

    @property
    def script(self) -> Path:
        return EXAMPLES / f"{self.name}.py"

    @property
    def imported(self) -> list[Path]:
        """The files beside the script that it imports."""
        return [EXAMPLES / "options.py", *([EXAMPLES / f"{self.uses}.py"] if self.uses else [])]


VORTEX = """
<figure markdown>
![Four vortices break up into rings and filaments](../pictures/vortex.png)
<figcaption>The same flow on a finer grid of 128³ cells, at t = 8: the greatest magnitude of the vorticity along z. The
script draws this picture with <code>--n 128 --dt 0.025 --t-end 8 --vortex vortex.png</code>.</figcaption>
</figure>
"""
ENTRIES = [
    Entry(
        "taylor_green",
        "--n 24 --t-end 1 --dt 0.05 --vortex vortex.png",
        "--n 128 --dt 0.0125",
        data="data/taylor_green_re1600_spectral_512.txt",
        more=VORTEX,
    ),
    Entry(
        "rayleigh_benard",
        "--rayleigh 3000 --prandtl 0.71 --aspect 2.0155 --n 16 --t-end 40 --dt 0.1 --mesh 2",
        "--n 24 --t-end 40",
    ),
    Entry(
        "kolmogorov",
        "--n 32 --mode 2 --viscosity 0.02 --t-end 4 --dt 0.02 --mesh 2",
        "--n 256 --dt 0.005",
    ),
    Entry("inertial_range", "--n 32 --spin-up 8 --t-end 8", "--n 128 --t-end 5"),
    Entry(
        "cylinder",
        "--cells 6 --length 12 --height 6 --t-end 3 --mesh 2",
        "--cells 8 --length 16 --height 8 --t-end 70",
    ),
    Entry("gray_scott", "--n 32 --length 0.5 --t-end 400 --mesh 2", "--n 256 --length 2.5"),
    Entry("lpt_nbody", "--n 16 --box 100 --steps 2 --slots 3 --mesh 2x2", "--n 128"),
    Entry(
        "reconstruction",
        "--n 8 --box 160 --steps 1 --iterations 40 --slots 4 --mesh 2x2",
        "--n 16 --iterations 30 --box 128",
        uses="lpt_nbody",
    ),
    Entry(
        "plasma",
        "--shape 32x8 --electrons 4096 --t-end 16 --mesh 2",
        "--case two-stream --shape 256x64 --electrons 4194304",
    ),
    Entry("gyrokinetics", "--shape 12x24x12x4x8 --t-end 40", "--shape 12x24x8x12x12"),
    Entry("tracers", "--n 16 --tracers 8 --spin-up 2 --t-end 1", "--n 128 --tracers 32"),
    Entry("halo_gradient", "--n 8 --mesh 2x2", "", packages="jaxdecomp"),
    Entry("fno_training", "--n 8 --samples 4 --steps 60 --batch 4 --width 4 --depth 1", "--steps 40 --samples 16"),
    Entry(
        "darcy",
        "--n 17 --samples 8 --unseen 2 --steps 40 --batch 4 --width 4 --depth 1 --data rock",
        "--n 64 --samples 1024 --steps 10000 --width 32",
    ),
    Entry(
        "control_convection",
        "--n 12 --dt 0.1 --spin-up 20 --horizon 8 --iterations 3 --mesh 1",
        "--n 16 --spin-up 20 --horizon 4 --iterations 2",
    ),
    Entry("inverse_problem", "--n 8 --steps 4 --iterations 20 --mesh 2x2", "--n 16 --steps 5 --iterations 15"),
    Entry("conductivity", "--n 14 --iterations 10 --mesh 2", "--n 32 --iterations 60"),
    Entry("channel", "--n 49 8 8 --re-tau 30 --dt 0.002 --t-end 0.2 --average 0.1 --mesh 1x1", "--t-end 1"),
    Entry("two_groups", "--n 16 --snapshots 8 --width 4", "--n 16 --snapshots 8"),
    Entry("nested_parallelism", "--n 9", "--n 48"),
    Entry("poisson", "--sizes 8 12 18 --mesh 2x4", "--sizes 8 16 24"),
    Entry("galaxy", "--n 64 --mesh 2x4", "--n 128"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the pages of the gallery from the examples.")
    parser.add_argument("--full", action="store_true", help="run the sizes of a release, not small ones")
    args = parser.parse_args()
    for entry in ENTRIES:
        options = entry.full if args.full else entry.quick
        record = GALLERY / f"{entry.name}.json"
        if not record.exists() or json.loads(record.read_text())["key"] != key(entry, options):
            run(entry, options)
    (GALLERY / "options.py").write_text((EXAMPLES / "options.py").read_text())
    (GALLERY / "index.md").write_text(index())


def run(entry: Entry, options: str) -> None:
    """Run an example with the given options, and write its page."""
    print(f"{entry.script.name} {options}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        command = [sys.executable, str(entry.script), *shlex.split(options)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
        if done.returncode:
            sys.exit(f"{entry.script.name} failed:\n{done.stderr}")
        write(entry, options, done.stdout, time.perf_counter() - start, Path(folder))


def write(entry: Entry, options: str, printed: str, seconds: float, folder: Path) -> None:
    """Write the page of a run that has left its figure in `folder`."""
    GALLERY.mkdir(exist_ok=True)
    output = "\n".join(line for line in printed.splitlines() if not line.startswith("Figure:"))
    (GALLERY / f"{entry.name}.png").write_bytes((folder / f"{entry.name}.png").read_bytes())
    (GALLERY / f"{entry.name}.md").write_text(page(entry, options, output, seconds))
    (GALLERY / f"{entry.name}.ipynb").write_text(json.dumps(notebook(entry, options), indent=1))
    (GALLERY / entry.script.name).write_text(entry.script.read_text())
    if entry.data:
        (GALLERY / "data").mkdir(exist_ok=True)
        (GALLERY / entry.data).write_text((EXAMPLES / entry.data).read_text())
    (GALLERY / f"{entry.name}.json").write_text(json.dumps({"key": key(entry, options)}))


def key(entry: Entry, options: str) -> str:
    """Return a text that changes with the package, the example, its options and this script."""
    package = sorted((ROOT / "decompops").rglob("*.py"))
    read = (path.read_bytes() for path in (*package, entry.script, *entry.imported, Path(__file__)))
    return hashlib.sha256(b"".join(read) + options.encode()).hexdigest()


def page(entry: Entry, options: str, output: str, seconds: float) -> str:
    """Return the Markdown page of an example."""
    name, (title, text) = entry.name, _described(entry.script)
    files = " and ".join(f"[{path.name}]({path.name})" for path in entry.imported)
    files += f" and its [data]({entry.data})" if entry.data else ""
    return f"""# {title}

{text}

![{title}: the figure that the script draws]({name}.png)
{entry.more}
```console
$ python examples/{name}.py {options}
{output}
```

The run took {seconds:.0f} s on {os.cpu_count()} CPU cores, including compilation.

Download the [script]({name}.py) with its {files}, or the [notebook]({name}.ipynb).

??? note "The whole script"

    ```python
{_indented(entry.script.read_text())}
    ```
"""


def index() -> str:
    """Return the first page of the gallery."""
    cards = "\n".join(
        f'<a href="{entry.name}/"><img src="{entry.name}.png" alt="" loading="lazy">'
        f"<span>{_described(entry.script)[0]}</span></a>"
        for entry in ENTRIES
    )
    return f"""# Gallery

Each page shows a script of the folder `examples`, the figure that it draws, and what it prints. Every script runs on a
laptop, on virtual CPU devices, and on GPUs where JAX finds them.

<div class="gallery">
{cards}
</div>
"""


def notebook(entry: Entry, options: str) -> dict:
    """Return a Jupyter notebook with the description of the example, its data, its functions and a call of `main`."""
    title, text = _described(entry.script)
    code = entry.script.read_text()
    functions = code[: code.index('if __name__ == "__main__":')].rstrip()
    figure = f"{entry.name}.png"
    call = (
        f"main({[*shlex.split(options), '--out', figure]!r})\n\nfrom IPython.display import Image\n\nImage({figure!r})"
    )
    cells = [
        ("markdown", f"# {title}\n\n{text}"),
        ("code", f'%pip install "decompops[examples,training]" {entry.packages}'.rstrip()),
        *(("code", f"%%writefile {path.name}\n" + path.read_text()) for path in entry.imported),
        *([("code", _writes(entry.data))] if entry.data else []),
        ("code", functions),
        ("code", call),
    ]
    return {
        "cells": [_cell(kind, source) for kind, source in cells],
        "metadata": {"language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 4,
    }


def _cell(kind: str, source: str) -> dict:
    cell = {"cell_type": kind, "metadata": {}, "source": source.splitlines(keepends=True)}
    return cell if kind == "markdown" else {**cell, "execution_count": None, "outputs": []}


def _writes(data: str) -> str:
    """Return code that writes the data of an example to the folder where its `options.py` looks for the data."""
    text = (EXAMPLES / data).read_text()
    folder = Path(data).parent.as_posix()
    return f'from pathlib import Path\n\nPath("{folder}").mkdir(exist_ok=True)\nPath("{data}").write_text("""{text}""")'


def _described(script: Path) -> tuple[str, str]:
    """Return the title and the text of an example. In its docstring, the title ends at the first colon or full stop."""
    first, _, rest = (ast.get_docstring(ast.parse(script.read_text())) or "").partition("\n")
    title, _, more = first.rstrip(".").partition(": ")
    return title, f"{more[:1].upper()}{more[1:]}.\n{rest}" if more else rest


def _indented(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.splitlines())


if __name__ == "__main__":
    main()
