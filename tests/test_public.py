"""What the package shows, and how its files depend on each other."""

import ast
import re
from pathlib import Path
from types import ModuleType

import decompops as dops


PACKAGE = Path(dops.__file__).parent
NAMES = {
    *("AbstractBackend", "AbstractOperator", "Compose", "CuDecomp", "Decomposition", "FFT3D", "HaloExchange"),
    *("MPI", "Stencil", "Transpose", "Trial", "XLA", "autotune", "config"),
}
SUBPACKAGES = {
    dops.spectral: {
        *("AbstractSpectralOperator", "Curl", "Dealias", "Derivative", "Divergence", "GaussianFilter"),
        *("GaussianRandomField", "Gradient", "Helmholtz", "InverseCurl", "InverseDivergence", "IsotropicFilter"),
        *(
            "Laplacian",
            "LerayProjection",
            "Poisson",
            "PowerSpectrum",
            "Resample",
            "SpectralOperator",
            "as_linear_operator",
            "dealiased",
            "mean_square",
        ),
        *("power_spectrum", "white_noise"),
    },
    dops.mpmd: {
        *("MpmdArray", "MpmdMesh", "MpmdSharding", "logically_stacked", "mpmd_to_spmd_reshard", "reshard"),
        "spmd_to_mpmd_reshard",
    },
    dops.nn: {"FNO3D", "HaloConv3D", "SpectralConv3D"},
    dops.pde: {
        *("AbstractEquation", "Advection", "Burgers", "Diffusion", "ETDRK", "KuramotoSivashinsky", "NavierStokes"),
        "RealSpace",
    },
}
# Imports run one way: a file may import from its own layer's predecessors only.
LAYERS = [
    ["_blocks", "_compat"],
    ["_sharding"],
    ["_check"],
    ["_basis.base", "_basis.fourier"],
    ["_backend.base"],
    ["_backend.xla_halo"],
    ["_backend.xla", "_backend.library", "_backend.caller", "_backend.ending"],
    ["_backend.grids"],
    ["_backend.launch"],
    ["_backend.mpi", "_backend.cudecomp"],
    ["_registry"],
    ["_config", "_reductions"],
    ["_decomposition"],
    ["_primitive"],
    ["_operator.base"],
    ["_operator.planned"],
    ["_operator.fft", "_operator.transpose", "_operator.halo"],
    ["_operator.stencil", "_autotune"],
    ["_autotune_cudecomp"],
    ["spectral._vector"],
    ["spectral._operator"],
    ["spectral._derivative", "spectral._solve", "spectral._filter", "spectral._resample"],
    ["spectral._linear", "spectral._statistics"],
    ["spectral"],
    ["pde._equation"],
    ["pde._burgers", "pde._etdrk", "pde._kuramoto_sivashinsky", "pde._navier_stokes", "pde._transport"],
    ["pde"],
    ["nn._channels"],
    ["nn._halo_conv", "nn._spectral_conv"],
    ["nn._fno"],
    ["nn"],
    ["mpmd._mesh"],
    ["mpmd._transfer"],
    ["mpmd._array", "mpmd._batches"],
    ["mpmd._reshard", "mpmd._stack"],
    ["mpmd"],
    ["__init__", "_hlo", "_bench.tables", "_bench.targets"],
    ["_bench.program"],
    ["_bench.groups", "_bench.reference", "_bench.peers"],
    ["_bench.operators", "_bench.solvers"],
    ["_bench.run"],
    ["_selftest"],
    ["cli"],
    ["__main__"],
]

EXCEPTION = ("_backend.cudecomp", "_autotune_cudecomp")  # what `CuDecomp.autotune` calls returns a decomposition


def module_name(path: Path) -> str:
    """Dotted; a subpackage's `__init__` goes by the subpackage's name."""
    *folders, name = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join([*folders, name] if name != "__init__" or not folders else folders)


def imports(path: Path) -> set[str]:
    """The modules of this package that a file imports, also inside functions; type-only imports do not count."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    found = set()
    here = path.relative_to(PACKAGE).with_suffix("").parts
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = list(here[: len(here) - node.level])
            base += node.module.split(".") if node.module else []
            files = [alias.name for alias in node.names if PACKAGE.joinpath(*base, f"{alias.name}.py").exists()]
            found |= {".".join([*base, name]) for name in files} or ({".".join(base)} - {""})
        elif isinstance(node, ast.Import):
            found |= {"__init__" for alias in node.names if alias.name == "decompops"}
    return found


def test_public_names():
    for package, names in {dops: NAMES, **SUBPACKAGES}.items():
        values = vars(package).items()
        assert {n for n, value in values if not n.startswith("_") and not isinstance(value, ModuleType)} == names


def test_imports_run_one_way():
    rank = {name: i for i, layer in enumerate(LAYERS) for name in layer}
    files = [p for p in PACKAGE.rglob("*.py") if p.read_text()]
    assert {module_name(path) for path in files} == set(rank), "every file has its place in LAYERS, and no other"
    for path in files:
        name = module_name(path)
        for other in imports(path):
            assert rank[other] < rank[name] or (name, other) == EXCEPTION, f"{name} imports {other}"


def test_one_file_touches_the_extension_interface_and_none_private_jax():
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        assert "jax._src" not in text
        if re.search(r"jax\.(extend|interpreters)", text):
            assert module_name(path) == "_primitive"


# What of JAX only `_sharding.py` may use. `Mesh`, `AbstractMesh`, `NamedSharding` and `PartitionSpec` are plain types.
SHARDING_NAMES = {
    *("AxisType", "auto_axes", "explicit_axes", "get_abstract_mesh", "get_mesh", "reshard", "set_mesh", "shard_map"),
    *("typeof", "use_abstract_mesh", "use_mesh", "with_sharding_constraint"),
}
VERSION_NAMES = {"__version__", "__version_info__"}


def uses_of_jax(tree: ast.AST) -> list[tuple[ast.AST, str]]:
    """The dotted names of what a file imports from JAX and jaxlib or takes from there, each with its node."""
    names, found = {}, []  # what each name of the file stands for
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

    for node in ast.walk(tree):  # a name that is given to such a thing stands for it
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and dotted(node.value):
            names[node.targets[0].id] = dotted(node.value)
    found += [(node, dotted(node)) for node in ast.walk(tree)]
    return [(node, name) for node, name in found if name.split(".")[0] in ("jax", "jaxlib")]


def handles_shardings(tree: ast.AST) -> bool:
    return any(name.split(".")[-1] in {*SHARDING_NAMES, "*"} for _, name in uses_of_jax(tree)) or any(
        isinstance(node, ast.keyword) and node.arg == "out_sharding" for node in ast.walk(tree)
    )


def depends_on_the_version(tree: ast.AST) -> bool:
    """Whether a file takes JAX's version for anything but its name as a whole, which may be printed."""
    versions = {node for node, name in uses_of_jax(tree) if name.split(".")[-1] in VERSION_NAMES}
    compared = {inner for node in ast.walk(tree) if isinstance(node, ast.Compare) for inner in ast.walk(node)}
    taken_apart = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.Subscript)}
    return not versions.isdisjoint(compared | taken_apart)


def test_one_file_knows_of_meshes_and_shardings():
    assert {module_name(path) for path in PACKAGE.rglob("*.py") if handles_shardings(ast.parse(path.read_text()))} == {
        "_sharding"
    }
    for line in (
        *(
            "import jax\njax.sharding.AxisType.Auto",
            "from jax.sharding import AxisType",
            "import jax\njax.shard_map(f)",
        ),
        *("import jax\njax.typeof(x).sharding", "from jax import shard_map", "f(x, out_sharding=None)"),
        *("from jax import sharding as s\ns.reshard", "import jax.sharding as s\ns.set_mesh", "from jax import *"),
        *(
            "from jax.experimental.shard_map import shard_map",
            "import jax.experimental.shard_map",
            "import jax as j\nj.typeof",
        ),
        "def f():\n    import jax\n    l = jax.lax\n    l.with_sharding_constraint",
    ):
        assert handles_shardings(ast.parse(line)), line
    for line in ('"""`jax.typeof`"""', "from .mpmd import reshard", "from jax.sharding import Mesh\nmesh.axis_types"):
        assert not handles_shardings(ast.parse(line)), line


def test_one_file_depends_on_the_version_of_jax():
    for path in PACKAGE.rglob("*.py"):
        assert not depends_on_the_version(ast.parse(path.read_text())) or module_name(path) == "_compat", path
    for line in (
        *("import jax\nif jax.__version__ < '0.11': pass", "import jax\njax.__version_info__ >= (0, 11)"),
        *("import jaxlib.version\nv = jaxlib.version.__version__\nv == ''", "import jax\njax.__version__.split('.')"),
        "from jax import __version__ as v\nv[:4]",
    ):
        assert depends_on_the_version(ast.parse(line)), line
    assert not depends_on_the_version(ast.parse("import jax\nprint(f'{jax.__version__}', [jax.__version__])"))


def test_public_docstrings():
    everything = [(dops, name) for name in NAMES - {"config"}]
    everything += [(package, name) for package, names in SUBPACKAGES.items() for name in names]
    for package, name in everything:
        public = getattr(package, name)
        assert public.__doc__
        for attribute, value in vars(public).items():
            if (
                attribute.startswith("_")
                or attribute in ("decomposition", "components")
                or not hasattr(public, "__mro__")
            ):
                continue
            if callable(value) or isinstance(value, property):
                inherited = [getattr(base, attribute, None) for base in public.__mro__[1:]]
                assert value.__doc__ or any(i is not None and i.__doc__ for i in inherited), f"{name}.{attribute}"


def test_files_are_short():
    for path in [*PACKAGE.rglob("*.py"), *Path(__file__).parent.rglob("*.py")]:
        assert len(path.read_text().splitlines()) <= 400, path
