"""Packages of extras: imported in one place, and refused with the line that installs them where they are missing."""

from __future__ import annotations

import ast
import re
import sys
import tomllib

import pytest

from dagster_divorder.engine import open_engine
from dagster_divorder.errors import InputError
from dagster_divorder.extras import EXTRAS, load_extra, why_missing
from dagster_divorder.models.tensor_parallel import Group
from dagster_divorder.results import load_results
from dagster_divorder.settings.sections import Engine
from tests.test_layers import MODULES, PACKAGE, imports_that_run, tree_of

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
    modules: list[str] = []
    for node in imports_that_run(tree):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif node.module and not node.level:
            modules.append(node.module)
    return {module.partition(".")[0] for module in modules}


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
