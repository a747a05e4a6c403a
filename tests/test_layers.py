"""Imports go downwards only, and light modules stay light. Each claim is proved in a fresh interpreter."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Set
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.faults.conftest import make_corpus

PACKAGE = Path(__file__).parent.parent / "dagster_divorder"
MODULES = sorted(path for path in PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def loaded(code: str) -> set[str]:
    """Top-level modules in sys.modules after running code in a fresh interpreter."""
    script = f"{code}\nimport sys; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


@pytest.mark.slow
def test_core_loads_without_orchestrator_engine_or_network() -> None:
    core = [name_of(path) for path in MODULES if "core" in path.relative_to(PACKAGE).parts]
    assert len(core) > 20
    found = loaded("import " + ", ".join(core))
    assert found.isdisjoint({"dagster", "ray", "torch", "transformers"})
    # The check can fail: it sees a module that is loaded.
    assert {"numba", "numpy"} <= found


@pytest.mark.slow
def test_the_package_itself_loads_nothing_heavy() -> None:
    heavy = {"numpy", "pandas", "pyarrow", "torch", "dagster", "numba", "pydantic"}
    assert loaded("import dagster_divorder").isdisjoint(heavy)


@pytest.mark.slow
def test_the_code_location_loads_no_model_library() -> None:
    heavy = {
        "torch",
        "transformers",
        "umap",
        "faiss",
        "sklearn",
        "numba",
        "matplotlib",
        "tokenizers",
        "gigatoken",
    }
    found = loaded("import dagster_divorder.definitions")
    assert found.isdisjoint(heavy), found & heavy
    assert "dagster" in found


@pytest.mark.slow
def test_the_reader_loads_little_beside_torch() -> None:
    heavy = {"dagster", "pandas", "numba", "pyarrow", "pydantic", "transformers", "scipy", "sklearn"}
    found = loaded("import dagster_divorder.torch")
    assert found.isdisjoint(heavy), found & heavy
    assert {"torch", "numpy"} <= found


@pytest.mark.slow
def test_topics_load_no_model_library() -> None:
    found = loaded(
        "import dagster_divorder as d; d.fit_topics(['wave tide', 'oven bread', 'salt'], 2)('tide')"
    )
    assert found.isdisjoint({"dagster", "torch", "transformers", "sklearn"}), found
    assert "numba" in found


@pytest.mark.slow
def test_a_run_loads_neither_pandas_nor_matplotlib(tmp_path: Path) -> None:
    """With ids and fields of the records read, traits cut, and exports written: pandas alone takes 0.3 s."""
    config = make_corpus(tmp_path, files=1)
    config.write_text(config.read_text().replace("[store]", 'id_field = "source"\n[store]', 1))
    settings = f"load_settings({str(config)!r})"
    found = loaded(
        "from dagster_divorder import run_all\n"
        "from dagster_divorder.settings import load_settings\n"
        f"run_all({settings})"
    )
    assert found.isdisjoint({"pandas", "matplotlib", "torch", "sklearn"}), found
    assert "numba" in found
    assert (tmp_path / "exports/_parquet/manifest.json").is_file()


BELOW_ALL = {"errors", "extras", "caches"}
"""Modules that any layer may import; they import no layer."""
BELOW_SETTINGS = {"core", *(f"{module}.py" for module in BELOW_ALL)}
# What a layer may import of this package, BELOW_ALL aside; every layer above core may also import settings.
ALLOWED = {
    **{f"{module}.py": set() for module in BELOW_ALL},
    "core": {"core"},
    "settings": {"settings", "core"},
    "view": {"view", "core"},
    "engine": {"engine"},
    "trainers": {"trainers"},
    "streams": {"streams", "core"},
    "tables": {"tables", "view", "core"},
    "store": {"store", "view", "core", "engine"},
    "corpus": {"corpus", "store", "core", "engine"},
    "readers": {"readers", "trainers", "tables", "store", "core"},
    "models": {"models", "core", "engine", "readers"},
    "write": {"write", "corpus", "store", "models", "readers", "trainers", "engine", "core"},
    "pipeline": {"pipeline", "write", "corpus", "engine", "models", "store", "view", "core"},
    "torch.py": {"readers"},
    "stages": {
        *("stages", "pipeline", "write", "corpus", "trainers", "engine", "models", "store", "view", "core")
    },
    "results.py": {"stages", "pipeline", "write", "corpus", "store", "view", "core"},
    "estimates": {"estimates", "stages", "pipeline", "corpus", "engine", "store", "propose"},
    "defs": {"defs", "pipeline", "write", "corpus", "engine", "store"},
}


def imported_by(tree: ast.AST) -> list[str]:
    """The modules that code imports, at its top or inside functions, or by a name that it spells out."""
    nodes = list(ast.walk(tree))
    modules = [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    modules += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return modules + [
        node.args[0].value
        for node in nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "import_module"
        and isinstance(node.args[0], ast.Constant)
    ]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_go_downwards_only(path: Path) -> None:
    layer = path.relative_to(PACKAGE).parts[0]
    imported = imported_by(ast.parse(path.read_text()))
    ours = {name.split(".")[1] for name in imported if name.startswith("dagster_divorder.")}
    if layer in ALLOWED:
        settings = set() if layer in BELOW_SETTINGS else {"settings"}
        assert ours <= ALLOWED[layer] | BELOW_ALL | settings
    if layer not in ("defs", "definitions.py"):
        assert not any(name.split(".")[0] == "dagster" for name in imported)


def arrows(tree: ast.Module, known: Set[str]) -> set[str]:
    """Modules of this package that code imports, at its top or inside functions; not those for type checkers alone."""
    for_types = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.dump(branch.test)
        for node in ast.walk(branch)
    }
    nodes = [
        node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and id(node) not in for_types
    ]
    names = {(node.module or "", alias.name) for node in nodes for alias in node.names}
    return {f"{module}.{name}" if f"{module}.{name}" in known else module for module, name in names} & known


def test_no_modules_import_each_other() -> None:
    known = {name_of(path) for path in MODULES}
    graph = {name_of(path): arrows(ast.parse(path.read_text()), known - {name_of(path)}) for path in MODULES}
    TopologicalSorter(graph).prepare()
    graph["dagster_divorder.errors"] = {"dagster_divorder.core.order"}
    with pytest.raises(CycleError):
        TopologicalSorter(graph).prepare()
