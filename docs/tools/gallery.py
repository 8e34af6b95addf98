"""Make the gallery of the site: run each example and write its page, figure, script and notebook to docs/gallery.

    python docs/tools/gallery.py            # small sizes: a few minutes on two cores
    python docs/tools/gallery.py --full     # the sizes of a release

An example runs again only if its script, its options or the package have changed.
"""

import argparse
import ast
import hashlib
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple


ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
GALLERY = ROOT / "docs" / "gallery"


class Entry(NamedTuple):
    """An example with its options for a quick build and for a release.

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
        "--n 32 --t-end 4 --dt 0.05",
        "--n 128 --dt 0.0125",
        data="data/taylor_green_re1600_spectral_512.txt",
        more=VORTEX,
    ),
    Entry("rayleigh_benard", "--n 24 --t-end 40", ""),
    Entry("kolmogorov", "--n 64 --t-end 10", "--n 256 --dt 0.005"),
    Entry("inertial_range", "--n 48", "--n 128 --t-end 5"),
    Entry("cylinder", "--cells 8 --length 16 --height 8 --t-end 70", ""),
    Entry("gray_scott", "--n 64 --t-end 1000", "--n 256 --length 2.5"),
    Entry("lpt_nbody", "--n 32", "--n 128"),
    Entry("reconstruction", "--n 16 --iterations 30 --box 128", "", uses="lpt_nbody"),
    Entry("plasma", "--case two-stream --electrons 65536", "--case two-stream --shape 256x64 --electrons 4194304"),
    Entry("gyrokinetics", "--shape 12x24x8x12x12", ""),
    Entry("tracers", "--n 32 --tracers 8", "--n 128 --tracers 32"),
    Entry("halo_gradient", "", "", packages="jaxdecomp"),
    Entry("fno_training", "--steps 40 --samples 16", ""),
    Entry("darcy", "--steps 250", "--n 64 --samples 1024 --steps 10000 --width 32"),
    Entry("control_convection", "--n 16 --spin-up 20 --horizon 4 --iterations 2", ""),
    Entry("inverse_problem", "--n 16 --steps 5 --iterations 15", ""),
    Entry("conductivity", "--n 32 --iterations 60", ""),
    Entry("channel", "", "--t-end 1"),
    Entry("two_groups", "--n 16 --snapshots 8", ""),
    Entry("nested_parallelism", "--n 16", "--n 48"),
    Entry("poisson", "--sizes 8 16 24", ""),
    Entry("galaxy", "", "--n 128"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the pages of the gallery from the examples.")
    parser.add_argument("--full", action="store_true", help="run the sizes of a release, not small ones")
    args = parser.parse_args()
    GALLERY.mkdir(exist_ok=True)
    package = _digest(sorted((ROOT / "decompops").rglob("*.py")), "")
    for entry in ENTRIES:
        make_page(entry, entry.full if args.full else entry.quick, package)
    (GALLERY / "options.py").write_text((EXAMPLES / "options.py").read_text())
    (GALLERY / "index.md").write_text(index())


def make_page(entry: Entry, options: str, package: str) -> None:
    """Run an example with the given options and write its page, unless the page is up to date."""
    script, record = entry.script, GALLERY / f"{entry.name}.json"
    key = _digest([script, *entry.imported, Path(__file__)], options + package)
    if record.exists() and json.loads(record.read_text())["key"] == key:
        return
    print(f"{script.name} {options}", flush=True)
    command = [sys.executable, str(script), *shlex.split(options), "--out", str(GALLERY / f"{entry.name}.png")]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, cwd=GALLERY)
    if done.returncode:
        sys.exit(f"{script.name} failed:\n{done.stderr}")
    seconds = time.perf_counter() - start
    output = "\n".join(line for line in done.stdout.splitlines() if not line.startswith("Figure:"))
    (GALLERY / f"{entry.name}.md").write_text(page(entry, options, output, seconds))
    (GALLERY / f"{entry.name}.ipynb").write_text(json.dumps(notebook(entry, options), indent=1))
    (GALLERY / script.name).write_text(script.read_text())
    if entry.data:
        (GALLERY / "data").mkdir(exist_ok=True)
        (GALLERY / entry.data).write_text((EXAMPLES / entry.data).read_text())
    record.write_text(json.dumps({"key": key}))


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


def _digest(paths: list[Path], extra: str) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths) + extra.encode()).hexdigest()


if __name__ == "__main__":
    main()
