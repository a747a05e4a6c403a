"""Imports go downwards only, light modules stay light, and packages of extras are refused with the line that installs
them where they are missing."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Set
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from dagster_divorder.engine import open_engine
from dagster_divorder.errors import InputError
from dagster_divorder.extras import EXTRAS, load_extra, why_missing
from dagster_divorder.models.tensor_parallel import Group
from dagster_divorder.results import load_results
from dagster_divorder.settings.sections import Engine
from tests.faults.conftest import make_corpus

PACKAGE = Path(__file__).parent.parent / "dagster_divorder"
MODULES = sorted(path for path in PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def modules_after(code: str) -> set[str]:
    """All modules in sys.modules of a fresh interpreter after some code."""
    script = f"{code}\nimport sys; print('modules', *sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {*run.stdout.splitlines()[-1].split()[1:]}


HELP = "import dagster_divorder.cli\ntry: dagster_divorder.cli.main([{}'--help'])\nexcept SystemExit: pass"
CORE = ", ".join(name_of(path) for path in MODULES if "core" in path.relative_to(PACKAGE).parts)
OF_DG = (
    "import dagster_divorder, dagster_dg_cli; [getattr(dagster_divorder, at) for at in dir(dagster_divorder)]"
)
LIGHT = {"numpy", "pandas", "pyarrow", "torch", "dagster", "numba", "pydantic", "dagster_divorder.settings"}
NO_MODELS = {
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
READER = {"dagster", "pandas", "numba", "pyarrow", "pydantic", "transformers", "scipy", "sklearn"}
LOADED: dict[str, tuple[str, set[str], set[str]]] = {
    "the package": ("import dagster_divorder", LIGHT, {"dagster_divorder"}),
    "help": (HELP.format(""), LIGHT, {"dagster_divorder.cli"}),
    # Its options are names of settings.
    "help of a verb": (HELP.format("'run', "), {"torch"}, {"pydantic", "dagster_divorder.settings"}),
    "models of trainers": (
        "import dagster_divorder.trainers",
        {"torch", "datasets", "scipy", "pydantic", "dagster"},
        {"numpy"},
    ),
    "core": (f"import {CORE}", {"dagster", "ray", "torch", "transformers"}, {"numba", "numpy"}),
    "commands of dg": (OF_DG, {"numpy", "pyarrow"}, {"dagster"}),
    "the reader": ("import dagster_divorder.torch", READER, {"torch", "numpy"}),
    "the code location": ("import dagster_divorder.definitions", NO_MODELS, {"dagster"}),
}
"""Code -> what it does not load, and what it loads, so that the check can fail."""


@pytest.mark.slow
@pytest.mark.parametrize(("code", "without", "loaded"), LOADED.values(), ids=LOADED)
def test_what_is_imported_is_what_is_needed(
    code: str, without: set[str], loaded: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Loading definitions makes no request.
    monkeypatch.setenv("DIVORDER_INPUT__PATHS", '["s3://bucket/docs.jsonl"]')
    found = modules_after(code)
    assert not found & without and loaded <= found


@pytest.mark.slow
def test_a_run_imports_what_it_computes_with_and_one_with_nothing_new_none_of_it(tmp_path: Path) -> None:
    """With ids and fields of the records read, traits cut, and exports written."""
    config = make_corpus(tmp_path, files=1)
    config.write_text(config.read_text().replace("[store]", 'id_field = "source"\n[store]', 1))
    run = f"from dagster_divorder.cli import main\nassert main(['--config', {str(config)!r}, 'run']) == 0"
    first, second = (modules_after(run) for _ in range(2))
    assert first.isdisjoint({"dagster", "matplotlib", "torch", "umap"}), first
    assert {"numba", "tokenizers", "sklearn", "dagster_divorder.core.topics.terms"} <= first
    assert COMPUTING & second == set()
    assert (tmp_path / "exports/_parquet/manifest.json").is_file()


COMPUTING = {
    "gigatoken",
    "joblib",
    "matplotlib",
    "numba",
    "pandas",
    "pyarrow.compute",
    "pyarrow.parquet",
    "rich.console",
    "scipy",
    "sklearn",
    "tokenizers",
    "torch",
    "dagster_divorder.core.kernels",
    "dagster_divorder.core.mix.selection",
    "dagster_divorder.core.topics.terms",
    "dagster_divorder.core.vectors.ppmi",
    "dagster_divorder.models.embed",
    "dagster_divorder.stages.evidence",
    "dagster_divorder.stages.topics.ari_comparison",
    "dagster_divorder.stages.topics.deep_embeddings",
    "dagster_divorder.stages.topics.external_embeddings",
    "dagster_divorder.stages.topics.k_calibration",
    "dagster_divorder.stages.output.ordering_animation",
    "dagster_divorder.stages.output.ordering_report",
    "dagster_divorder.view.pictures",
}
"""Modules that a run with nothing new does without."""


BELOW_ALL = {"errors", "removed", "extras", "caches", "units"}
"""Modules that any layer may import; they import no layer."""
BELOW_SETTINGS = {"core", "chats", "trainers", *(f"{module}.py" for module in BELOW_ALL)}
BELOW_PIPELINE = {"chats", "write", "corpus", "engine", "models", "store", "view", "core"}
# What a layer may import of this package, BELOW_ALL aside; every layer above core may also import settings.
ALLOWED = {
    **{f"{module}.py": set() for module in BELOW_ALL},
    "core": {"core"},
    "chats": {"chats"},
    "settings": {"settings", "chats", "trainers", "core"},
    "view": {"view", "core"},
    "engine": {"engine"},
    "trainers": {"trainers"},
    "streams.py": {"core"},
    "tables": {"tables", "view", "core"},
    "store": {"store", "chats", "view", "core", "engine"},
    "corpus": {"corpus", "chats", "store", "core", "engine"},
    "readers": {"readers", "trainers", "tables", "store", "core"},
    "models": {"models", "chats", "core", "engine", "readers"},
    "write": {"write", "chats", "corpus", "store", "models", "readers", "trainers", "engine", "core"},
    "pipeline": {"pipeline", *BELOW_PIPELINE},
    "torch.py": {"readers"},
    "stages": {"stages", "pipeline", "trainers", *BELOW_PIPELINE},
    "results.py": {"stages", "chats", "pipeline", "write", "corpus", "store", "view", "core"},
    "defs": {
        "defs",
        "stages",
        "results",
        "readers",
        "propose",
        "pipeline",
        "write",
        "corpus",
        "engine",
        "store",
        "view",
    },
}


def modules_of(node: ast.AST) -> list[str]:
    """The modules that a statement imports from."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []


def imported_by(tree: ast.AST) -> list[str]:
    """The modules that code imports, at its top or inside functions, or by a name that it spells out."""
    nodes = list(ast.walk(tree))
    return [module for node in nodes for module in modules_of(node)] + [
        node.args[0].value
        for node in nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "import_module"
        and isinstance(node.args[0], ast.Constant)
    ]


def test_imports_go_downwards_only() -> None:
    wrong: dict[str, set[str]] = {}
    for path in MODULES:
        layer = path.relative_to(PACKAGE).parts[0]
        imported = imported_by(tree_of(path))
        ours = {name.split(".")[1] for name in imported if name.startswith("dagster_divorder.")}
        settings = set() if layer in BELOW_SETTINGS else {"settings"}
        upwards = ours - ALLOWED[layer] - BELOW_ALL - settings if layer in ALLOWED else set()
        if layer not in ("defs", "definitions.py"):
            upwards |= {"dagster"} & {name.split(".")[0] for name in imported}
        if upwards:
            wrong[name_of(path)] = upwards
    assert wrong == {}


def imports_that_run(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports at the top of code or inside functions; not those for type checkers alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif not (isinstance(node, ast.If) and "TYPE_CHECKING" in vars(node.test).values()):
            yield from imports_that_run(node)


def arrows(tree: ast.Module, known: Set[str]) -> set[str]:
    """Modules of this package that code imports as it runs."""
    names = {
        (node.module or "", alias.name)
        for node in imports_that_run(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return {f"{module}.{name}" if f"{module}.{name}" in known else module for module, name in names} & known


def test_no_modules_import_each_other() -> None:
    known = {name_of(path) for path in MODULES}
    graph = {name_of(path): arrows(tree_of(path), known - {name_of(path)}) for path in MODULES}
    TopologicalSorter(graph).prepare()
    graph["dagster_divorder.errors"] = {"dagster_divorder.core.order"}
    with pytest.raises(CycleError):
        TopologicalSorter(graph).prepare()


PROJECT = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
ALWAYS = {"click", "huggingface_hub", "typing_extensions"}
"""Packages that dagster, transformers and pydantic bring."""
MODULE_OF = {"faiss-cpu": "faiss", "pillow": "PIL", "scikit-learn": "sklearn", "umap-learn": "umap"}


def names(requirements: list[str]) -> set[str]:
    """Modules of requirements."""
    packages = [re.match(r"[\w-]+", one)[0] for one in requirements]  # type: ignore[index]
    return {MODULE_OF.get(package, package.replace("-", "_")) for package in packages}


def imports_of(tree: ast.Module) -> set[str]:
    """Packages that code imports as it runs, at its top or inside functions."""
    return {module.partition(".")[0] for node in imports_that_run(tree) for module in modules_of(node)}


ELSEWHERE = {
    "corpus/inputs.py": {"backports", "compression"},  # one of them, by the version of Python
    "write/exports/megatron_cache.py": {"megatron"},  # lies beside an export, and runs in Megatron
    "readers/mix_log.py": {"lightning"},  # for a training with it
}


def test_only_packages_that_are_always_installed_are_imported_by_name() -> None:
    always = names(PROJECT["dependencies"]) | ALWAYS | sys.stdlib_module_names | {"dagster_divorder"}
    found = {path.relative_to(PACKAGE).as_posix(): imports_of(tree_of(path)) for path in MODULES}
    others = {name: imports - always for name, imports in found.items() if imports - always}
    assert others == ELSEWHERE


@pytest.mark.parametrize("package", EXTRAS)
def test_every_extra_is_one_of_the_project_and_its_absence_says_how_to_install_it(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra, name, _ = EXTRAS[package]
    assert name in {one.partition(">")[0] for one in PROJECT["optional-dependencies"][extra]}
    monkeypatch.setitem(sys.modules, package, None)
    line = re.escape(f"{name}, which is not installed: pip install 'dagster-divorder[{extra}]'")
    assert re.search(line, str(why_missing(package)))
    with pytest.raises(InputError, match=line):
        load_extra(f"{package}.anything")


def test_results_of_a_store_at_a_url_an_engine_and_ranks_are_refused_without_their_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for package in EXTRAS:
        monkeypatch.setitem(sys.modules, package, None)
    for place in ("s3://bucket/store", "gs://bucket/store", "az://container/store"):
        with pytest.raises(InputError, match="objects"):
            load_results(place)
    with pytest.raises(InputError, match=r"\[ray\]"):
        open_engine(Engine(address="ray"), str)
    with pytest.raises(InputError, match="tensor-parallel"):
        Group(2, "cpu")
