"""docs/dagster_project.md: its blocks are the files of one project, and do what the page says."""

from __future__ import annotations

import importlib
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster.components.testing import create_defs_folder_sandbox

from dagster_divorder.readers.export import open_export
from tests.conftest import topic_records, write_jsonl
from tests.defs.conftest import metadata_of, versions_of

PAGE = (Path(__file__).parent.parent.parent / "docs/dagster_project.md").read_text()
FILES = dict(re.findall(r"```(?:toml|python|yaml)\n# (\S+)\n(.*?)```", PAGE, re.S))
CODE = Path(__file__).read_text()
SMALL = {
    "ADVANCED__VOCAB_SIZE": "512",
    "ADVANCED__TOKEN_DIMS": "16",
    "CLUSTERS__K": "4",
    "SEQUENCE__LENGTH": "64",
    "SEQUENCE__BATCH": "4",
}
Load = Callable[[str], Any]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the page's files and two corpora. Settings of a small model are in the environment."""
    folder = tmp_path_factory.mktemp("project")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for corpus in ("news", "code"):
        records = topic_records(30)
        for at, record in enumerate(records):
            record["source"] = "web" if at % 3 else "books"
        write_jsonl(folder / f"data/{corpus}/first.jsonl", records)
    (folder / "code.toml").write_text(FILES["news.toml"].replace("news", "code"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALL.items():
            patch.setenv(f"DIVORDER_{name}", value)
        patch.syspath_prepend(str(folder))
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


@pytest.fixture(scope="module")
def load(project: Path) -> Iterator[Load]:
    """Imports a file of the page."""
    names = [name.removesuffix(".py") for name in FILES if name.endswith(".py")]
    yield importlib.import_module
    for name in names:
        sys.modules.pop(name, None)


def run(defs: dg.Definitions, instance: dg.DagsterInstance, *assets: dg.AssetsDefinition, **how: Any) -> Any:
    """Assets downstream and all before them."""
    whole = defs.resolve_implicit_global_asset_job_def()
    selection = dg.AssetSelection.assets(*assets).upstream().resolve(defs.resolve_asset_graph())
    result = whole.execute_in_process(instance=instance, asset_selection=list(selection), **how)
    assert result.success
    return result


@pytest.fixture(scope="module")
def first(load: Load, instance: dg.DagsterInstance) -> Any:
    """The first run of both corpora, and of the assets around them."""
    module = load("definitions")
    dg.Definitions.validate_loadable(module.defs)
    return run(module.defs, instance, module.first_batch, module.sources, module.announced)


def test_every_block_is_a_file_of_the_project() -> None:
    assert len(re.findall("```(?:toml|python|yaml)", PAGE)) == len(FILES)
    assert all(re.search(rf"\"{Path(name).stem}\"|{name}", CODE) for name in FILES if name != "train.py")


def test_two_corpora_and_assets_after_them(first: Any) -> None:
    assert metadata_of(first)["first_batch"]["largest id"].value < 512
    assert set(first.output_for_node("sources")) == {"web", "books"}
    made = versions_of(first)
    assert "news/exports" in made and "code/curated_output" in made and "code/exports" not in made


def test_a_component_is_the_same_corpus(project: Path) -> None:
    with create_defs_folder_sandbox() as sandbox:
        root = sandbox.project_root
        (root / "data/news").mkdir(parents=True)
        shutil.copy(project / "data/news/first.jsonl", root / "data/news")
        shutil.copy(project / "news.toml", root)
        (sandbox.defs_folder_path / "news").mkdir()
        (sandbox.defs_folder_path / "news/defs.yaml").write_text(FILES["defs/news/defs.yaml"])
        with sandbox.build_all_defs() as defs:
            dg.Definitions.validate_loadable(defs)
            specs = {spec.key: spec for spec in defs.resolve_all_asset_specs()}
    assert dg.AssetKey(["news", "exports"]) in specs
    assert {owner for spec in specs.values() for owner in spec.owners} == {"team:data"}


def test_one_corpus_and_the_commands_that_the_page_names(load: Load) -> None:
    defs = load("one").defs
    jobs = {job.name for job in defs.resolve_all_job_defs()}
    assert {"news_curate", "news_report"} <= jobs
    keys = {spec.key.to_user_string() for spec in defs.resolve_all_asset_specs()}
    assert {"news/raw_docs", "news/exports"} <= keys


def test_a_new_day_of_an_asset_upstream_is_the_only_thing_computed(
    first: Any, load: Load, instance: dg.DagsterInstance
) -> None:
    module = load("crawl")
    whole = module.defs.resolve_implicit_global_asset_job_def()
    selection = [module.crawl.key, dg.AssetKey(["news", "raw_docs"])]
    day = whole.execute_in_process(instance=instance, asset_selection=selection, partition_key="2026-11-02")
    assert metadata_of(day)["news/raw_docs"]["new_documents"].value == 20
    curated = module.defs.resolve_job_def("news_curate").execute_in_process(instance=instance)
    assert metadata_of(curated)["news/token_counts"]["new_documents"].value == 20
    assert metadata_of(curated)["news/curated_output"]["documents"].value == 140


def test_a_training_in_a_process_of_its_own(
    first: Any, load: Load, instance: dg.DagsterInstance, project: Path
) -> None:
    pytest.importorskip("torch")
    module = load("training")
    job = module.defs.resolve_implicit_global_asset_job_def()
    ended = job.execute_in_process(instance=instance, asset_selection=[module.model.key])
    metadata = metadata_of(ended)["model"]
    losses = metadata["losses"].value
    assert len(losses) > 5 and losses[-1] < losses[0]
    assert metadata["loss"].value == losses[-1]
    assert metadata["plan"].value == open_export(project / "divorder/news/exports/parquet").plan


def test_the_example_of_a_test_passes(load: Load, tmp_path: Path) -> None:
    load("test_project").test_the_first_batch_can_be_read(tmp_path)


def test_another_code_location(first: Any, load: Load, instance: dg.DagsterInstance) -> None:
    defs = load("elsewhere").defs
    job = defs.resolve_implicit_global_asset_job_def()
    assert job.execute_in_process(instance=instance).output_for_node("rows_elsewhere") > 10
