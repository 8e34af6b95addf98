"""Tests of the imports between the files of the package, and of what each file may import from JAX."""

import ast
import graphlib
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import decompops as dops
import pytest


PACKAGE = Path(dops.__file__).parent
# The package is a house. Its rooms are the folders and files at its root, each with its floor: a room imports only
# rooms on floors below, also for type checkers.
FLOORS = (
    ("_common",),
    ("_basis",),
    ("_plan",),
    ("_backend",),
    ("_core",),
    ("_operator", "mpmd"),
    ("_autotune", "_rollout", "fft", "finite_volume", "io"),
    ("solve", "spectral"),
    ("nn", "particles", "pde", "plot"),
    ("__init__", "extend", "testing"),
    ("tools",),
    ("__main__",),
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
# `FORBIDDEN` lists what some files must not import although it lies below them.
FORBIDDEN = {
    "_common.blocks": ("*",),
    "_core.layout": ("_plan", "_core.decomposition", *(f"_backend.{name}" for name in ("execute", "native", "xla"))),
    "_core.decomposition": ("_plan",),
    "fft": ("_core.decomposition",),
}
# `tools` imports the public names of the library, as users and other packages do, and of its private files only these.
OPEN_TO_TOOLS = {
    *("_backend.native.library", "_common.blocks", "_common.ownership", "_common.placement", "_common.sharding"),
    *("_backend.native", "_core.config", "_core.registry", "mpmd._transfer", "nn._fno"),
    *("_rollout.binomial", "_rollout.memory"),
}
# These files hold plain data. From JAX they may import only `PartitionSpec`.
PLAIN = ("_common.blocks", "_plan")


def module_name(path: Path) -> str:
    """Return the dotted name of a file. The name of a subpackage's `__init__` is the name of the subpackage."""
    *folders, name = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join([*folders, name] if name != "__init__" or not folders else folders)


def imports(path: Path) -> set[str]:
    """Return the modules of this package that a file imports, at its top, inside functions or for type checkers.

    A file that imports a module of a subpackage also imports the subpackage.
    """
    here = path.relative_to(PACKAGE).with_suffix("").parts
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = [*here[: len(here) - node.level], *(node.module.split(".") if node.module else ())]
            targets = [[*base, alias.name] if is_module(*base, alias.name) else base for alias in node.names]
        elif isinstance(node, ast.Import):
            targets = [alias.name.split(".")[1:] for alias in node.names if alias.name.split(".")[0] == "decompops"]
        else:
            continue
        for target in targets:
            packages = (target[:i] for i in range(1, len(target)) if tuple(target[:i]) != here[:i])
            found |= {".".join(package) or "__init__" for package in (*packages, target)}
    return found


def is_module(*parts: str) -> bool:
    path = PACKAGE.joinpath(*parts)
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def nodes(path: Path) -> Iterator[ast.AST]:
    """Return the nodes of the syntax tree of a file, without code for type checkers."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            node.body = []
    return ast.walk(tree)


def in_room(module: str, room: str) -> bool:
    return room == "*" or module == room or module.startswith(f"{room}.")


def circle(graph: dict[str, set[str]]) -> str | None:
    """Return a circular import as text, or `None` if there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return " imports ".join(reversed(error.args[1]))
    return None


def test_nobody_inside_uses_the_door_for_others(graph):
    assert [module for module, found in graph.items() if "extend" in found and not in_room(module, "tools")] == []
    tree = ast.parse((PACKAGE / "extend.py").read_text())
    assert {type(node) for node in tree.body} == {ast.Expr, ast.ImportFrom, ast.Assign}  # The file re-exports names.


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    return {module_name(path): imports(path) for path in PACKAGE.rglob("*.py")}


def test_imports_make_no_circle(graph):
    assert graph["_operator.fft"] >= {"_operator.transform", "_operator.unbound"}  # The graph is not empty.
    assert graph["pde._burgers"] >= {"spectral", "spectral._vector"}
    assert circle(graph) is None
    tangled = graph | {"_backend.cudecomp.backend": graph["_backend.cudecomp.backend"] | {"_autotune.cudecomp"}}
    found = str(circle(tangled))
    assert "_backend.cudecomp.backend imports _autotune.cudecomp" in found
    names = found.split(" imports ")
    assert names[0] == names[-1]
    assert all(b in tangled[a] for a, b in pairwise(names))


def test_rooms_import_only_rooms_on_floors_below(graph):
    for module, found in graph.items():
        room = module.split(".")[0]
        for other in found:
            other_room = other.split(".")[0]
            assert other_room == room or FLOOR[other_room] < FLOOR[room], f"{module} imports {other}"


def test_the_root_is_small():
    rooms = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert rooms == set(FLOOR)
    assert len(FLOORS) <= 12
    assert len([path for path in PACKAGE.iterdir() if path.is_file()]) <= 10


def test_tools_use_the_library_as_a_user_does(graph):
    found = set().union(*(graph[module] for module in graph if in_room(module, "tools")))
    private = {name for name in found if "._" in f".{name}" and not name.startswith("__")}
    assert private - {name.split(".")[0] for name in private} == OPEN_TO_TOOLS


def test_some_files_know_less_than_their_floor(graph):
    for module, names in FORBIDDEN.items():
        for one in [one for one in graph if in_room(one, module)]:
            for other in graph[one]:
                assert not any(in_room(other, name) for name in names), f"{one} imports {other}"


def test_plain_data_knows_nothing_of_jax():
    for path in PACKAGE.rglob("*.py"):
        if any(in_room(module_name(path), room) for room in PLAIN):
            for node in nodes(path):
                names = node.names if isinstance(node, ast.Import | ast.ImportFrom) else ()
                module = node.module if isinstance(node, ast.ImportFrom) and not node.level else None
                for alias in names:
                    name = f"{module}.{alias.name}" if module else alias.name
                    assert name == "jax.sharding.PartitionSpec" or name.split(".")[0] != "jax", f"{path}: {name}"


def test_equations_and_layers_stand_on_the_same_few_files():
    """`pde` and `nn` do not import each other, and import only a few files of `spectral`."""
    shared = {f"spectral.{name}" for name in ("_chebyshev", "_check", "_dealiasing", "_modes", "_vector", "_walls")}
    for package, other in (("pde", "nn"), ("nn", "pde")):
        for path in PACKAGE.joinpath(package).glob("*.py"):
            found = {name for name in imports(path) if name.split(".")[0] in ("spectral", other)} - {"spectral"}
            assert found <= shared, f"{module_name(path)} imports {found - shared}"


def test_six_files_touch_the_extension_interface_and_none_private_jax():
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        assert "jax._src" not in text
        if re.search(r"jax\.(extend|interpreters)", text):
            core = {f"_core.{name}" for name in ("order", "points", "primitive", "rows")}
            assert module_name(path) in core | {"_common.placement", "_common.sharding"}


# Only `placement.py`, `sharding.py` and `typed.py` in `_common` may use these names of JAX. All files may use the plain
# types `Mesh`, `AbstractMesh`, `NamedSharding` and `PartitionSpec`.
SHARDING_NAMES = {
    *("AxisType", "auto_axes", "explicit_axes", "get_abstract_mesh", "get_mesh", "reshard", "set_mesh", "shard_map"),
    *("typeof", "use_abstract_mesh", "use_mesh", "with_sharding_constraint"),
}
VERSION_NAMES = {"__version__", "__version_info__"}


def uses_of_jax(tree: ast.AST) -> list[tuple[ast.AST, str]]:
    """Return the dotted names that a file imports or uses from JAX and jaxlib, each with its node."""
    names, found = {}, []  # `names` maps names in the file to names of JAX.
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found.append((node, alias.name))
                names |= {alias.asname: alias.name} if alias.asname else {(top := alias.name.split(".")[0]): top}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                found.append((node, f"{node.module}.{alias.name}"))
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def dotted(node: ast.AST) -> str:
        if isinstance(node, ast.Attribute):
            return f"{dotted(node.value)}.{node.attr}"
        return names.get(node.id, "") if isinstance(node, ast.Name) else ""

    for node in ast.walk(tree):  # An assignment `name = jax.…` makes a second name for an object of JAX.
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and dotted(node.value):
            names[node.targets[0].id] = dotted(node.value)
    found += [(node, dotted(node)) for node in ast.walk(tree)]
    return [(node, name) for node, name in found if name.split(".")[0] in ("jax", "jaxlib")]


def handles_shardings(tree: ast.AST) -> bool:
    names = {name.split(".")[-1] for _, name in uses_of_jax(tree)}
    keywords = {node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword)}
    return not names.isdisjoint({*SHARDING_NAMES, "*"}) or "out_sharding" in keywords


def depends_on_the_version(tree: ast.AST) -> bool:
    """Return whether a file compares JAX's version, or reads a part of it. A file may print the whole version."""
    versions = {node for node, name in uses_of_jax(tree) if name.split(".")[-1] in VERSION_NAMES}
    compared = {inner for node in ast.walk(tree) if isinstance(node, ast.Compare) for inner in ast.walk(node)}
    taken_apart = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.Subscript)}
    return not versions.isdisjoint(compared | taken_apart)


HANDLE_SHARDINGS = [
    "import jax\njax.sharding.AxisType.Auto",
    "import jax\njax.shard_map(f)",
    "import jax as j\nj.typeof(x).sharding",
    "import jax.sharding as s\ns.set_mesh",
    "import jax.experimental.shard_map",
    "from jax import *",
    "from jax import sharding as s\ns.reshard",
    "from jax import shard_map",
    "from jax.sharding import AxisType",
    "def f():\n    import jax\n    l = jax.lax\n    l.with_sharding_constraint",
    "f(x, out_sharding=None)",
]
DO_NOT = ["'`jax.typeof`'", "from .mpmd import reshard", "from jax.sharding import Mesh\nmesh.axis_types"]
DEPEND_ON_THE_VERSION = [
    "import jax\nif jax.__version__ < '0.11': pass",
    "import jax\njax.__version_info__ >= (0, 11)",
    "import jax\njax.__version__.split('.')",
    "import jaxlib.version\nv = jaxlib.version.__version__\nv == ''",
    "from jax import __version__ as v\nv[:4]",
]
PRINTS_THE_VERSION = "import jax\nprint(f'{jax.__version__}', [jax.__version__])"


def test_three_files_know_of_meshes_and_shardings():
    found = {module_name(path) for path in PACKAGE.rglob("*.py") if handles_shardings(ast.parse(path.read_text()))}
    assert found == {"_common.placement", "_common.sharding", "_common.typed"}
    assert [text for text in HANDLE_SHARDINGS + DO_NOT if handles_shardings(ast.parse(text))] == HANDLE_SHARDINGS


def test_one_file_depends_on_the_version_of_jax():
    trees = {module_name(path): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}
    assert {name for name, tree in trees.items() if depends_on_the_version(tree)} <= {"_common.compat"}
    texts = [*DEPEND_ON_THE_VERSION, PRINTS_THE_VERSION]
    assert [text for text in texts if depends_on_the_version(ast.parse(text))] == DEPEND_ON_THE_VERSION


def test_files_are_short():
    for path in [*PACKAGE.rglob("*.py"), *Path(__file__).parents[1].rglob("*.py")]:
        assert len(path.read_text().splitlines()) <= 400, path
