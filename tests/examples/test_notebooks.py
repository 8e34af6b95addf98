"""The notebooks of the gallery. Their cells run in one process, as in Jupyter."""

import json

import pytest

import example


# This script runs the cells of a notebook inside a running event loop, without `__file__` and arguments. The last cell
# runs twice. A function that checks the picture replaces IPython's `Image`.
RUN = """
import asyncio, json, sys
from pathlib import Path

def image(path):
    assert Path(path).read_bytes()[:4] == b"\\x89PNG"
    Path(path).unlink()

cells = ["".join(cell["source"]) for cell in json.loads(Path("notebook.ipynb").read_text())["cells"]
         if cell["cell_type"] == "code"]
sys.argv = ["ipykernel_launcher.py", "-f", "kernel.json"]
sys.path.insert(0, "")
space = {"__name__": "__main__", "__doc__": None, "Image": image}

async def run():
    for cell in [*cells, cells[-1]]:
        if cell.startswith("%%writefile "):
            name, _, text = cell.partition("\\n")
            path = Path(name.split()[1])
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        elif not cell.startswith("%pip "):
            exec(compile(cell.replace("from IPython.display import Image", ""), "cell", "exec"), space)

if "--started" in sys.orig_argv:
    import jax
    jax.devices()
asyncio.run(run())
print("The notebook ran.")
"""

SMALL = {
    "poisson": "--sizes 8 12",
    "taylor_green": "--n 16 --t-end 0.2 --dt 0.05",
    "gray_scott": "--n 16 --length 0.5 --t-end 20",
}


@pytest.mark.parametrize(
    ("name", "started"),
    [("poisson", True), ("taylor_green", False), pytest.param("gray_scott", True, marks=pytest.mark.sweep)],
    ids=str,
)
def test_a_notebook_runs_twice_in_one_process(name, started, tmp_path):
    """The cells of a notebook run without errors and show their figure. The last cell runs twice.

    With `started`, JAX already runs with its default devices when the notebook starts.
    """
    notebook = example.gallery.notebook(example.entry(name), SMALL[name])
    (tmp_path / "notebook.ipynb").write_text(json.dumps(notebook))
    result = example.run("-c", RUN, *["--started"] * started, cwd=tmp_path, imported=not started)
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("The notebook ran.\n")
    assert result.stdout.count(f"Figure: {name}.png") == 2
    if name == "taylor_green":
        assert result.stdout.count("(reference 0.12") == 2  # Both runs print the published value.


def test_no_notebook_needs_a_file_or_a_command_line():
    for entry in example.gallery.ENTRIES:
        notebook = example.gallery.notebook(entry, entry.quick)
        *_, functions, call = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
        assert "__file__" not in functions
        assert "sys.argv" not in functions
        assert "def main(" in functions
        assert call.startswith("main([")
        assert entry.packages in "".join(notebook["cells"][1]["source"])
        compile(functions, entry.name, "exec")
