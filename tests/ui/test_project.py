"""A Dagster project with two corpora, and assets, an executor and resources of its own around them: made whole from the
command line, and again on Dagster's pages."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pytest

from dagster_divorder import load_results
from tests.conftest import topic_records, write_jsonl
from tests.defs.dg_project import dg_command, make_project
from tests.ui.browser import new_page
from tests.ui.dagster_dev import ROOT, DagsterDev
from tests.ui.pages import materialise_all, open_graph

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project after `dg launch --assets '*'`."""
    root = tmp_path_factory.mktemp("shop")
    make_project(root)
    shutil.copy(ROOT / "dagster.yaml", root)
    launched = dg_command(root, "launch", "--assets", "*")
    assert launched.returncode == 0, launched.stderr
    return root


def test_one_command_makes_all_assets_of_a_project(project: Path) -> None:
    # Folders in dagster.yaml are relative to the working directory.
    with contextlib.chdir(project), dg.DagsterInstance.from_config(str(project)) as instance:
        keys = {key.to_user_string() for key in instance.get_asset_keys()}
        model = instance.get_latest_materialization_event(dg.AssetKey("model"))
        (run,) = instance.get_runs()
    assert {
        "pages",
        "model",
        "news/raw_docs",
        "news/exports",
        "blog/raw_docs",
        "blog/ordering_report",
    } <= keys
    assert keys >= {key.replace("blog", "news") for key in keys}
    assert run.is_success
    assert model and model.asset_materialization
    assert model.asset_materialization.metadata["sequences"].value > 1
    for name, documents in (("news", 120), ("blog", 80)):
        assert len(load_results(project / f"divorder/{name}/store").documents) == documents
        assert (project / f"divorder/{name}/curated/manifest.json").is_file()


def test_the_pages_make_a_project_anew_after_its_corpus_has_grown(project: Path, browser: Browser) -> None:
    write_jsonl(project / "data/site.jsonl", topic_records(31))
    dev = DagsterDev(project, workspace=None, module="shop.definitions")
    dev.environment["PYTHONPATH"] = f"{os.environ.get('PYTHONPATH', '')}:{project / 'src'}"
    with dev, new_page(browser, width=1400) as page:
        open_graph(page, dev)
        for group in ("crawl", "news_corpus", "blog_evidence", "training"):
            page.get_by_text(re.compile(f"^{group}$")).first.wait_for()
        materialise_all(page, dev)
        grown, same = dev.made("news/raw_docs"), dev.made("blog/raw_docs")
        assert (grown["documents"], grown["new_documents"]) == (124, 4)
        assert (same["documents"], same["new_documents"], same["changed"]) == (80, 0, False)
        assert dev.made("model")["run"] == grown["run"]
