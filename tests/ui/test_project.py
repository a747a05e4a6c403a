"""A Dagster project with two corpora, and assets, an executor and resources of its own around them: begun from the
command line, and made whole on Dagster's pages."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from dagster_divorder import load_results
from tests.conftest import topic_records, write_jsonl
from tests.defs.dg_project import dg_command, make_project
from tests.ui.browser import new_page
from tests.ui.dagster_dev import ROOT, DagsterDev
from tests.ui.pages import materialise_all, open_graph

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def test_commands_begin_a_project_and_the_pages_make_all_of_it_after_its_corpus_has_grown(
    tmp_path: Path, browser: Browser
) -> None:
    make_project(tmp_path)
    shutil.copy(ROOT / "dagster.yaml", tmp_path)
    launched = dg_command(tmp_path, "launch", "--assets", "+key:news/raw_docs or key:blog/raw_docs")
    assert launched.returncode == 0, launched.stderr
    write_jsonl(tmp_path / "data/site.jsonl", topic_records(31))
    dev = DagsterDev(tmp_path, workspace=None, module="shop.definitions")
    dev.environment["PYTHONPATH"] = f"{os.environ.get('PYTHONPATH', '')}:{tmp_path / 'src'}"
    with dev, new_page(browser, width=1400) as page:
        open_graph(page, dev)
        for group in ("crawl", "news_corpus", "blog_evidence", "training"):
            page.get_by_text(re.compile(f"^{group}$")).first.wait_for()
        materialise_all(page, dev)
        grown, same = dev.made("news/raw_docs"), dev.made("blog/raw_docs")
        assert (grown["documents"], grown["new_documents"]) == (124, 4)
        assert (same["documents"], same["new_documents"], same["changed"]) == (80, 0, False)
        assert dev.made("model")["run"] == grown["run"]
    # Folders in dagster.yaml are relative to the working directory.
    with contextlib.chdir(tmp_path), dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        keys = {key.to_user_string() for key in instance.get_asset_keys()}
        model = instance.get_latest_materialization_event(dg.AssetKey("model"))
        runs = instance.get_runs()
    assert {"pages", "model", "topics", "news/exports", "blog/ordering_report"} <= keys
    assert keys >= {key.replace("blog", "news") for key in keys}
    assert len(runs) == 2 and all(run.is_success for run in runs)
    assert model and model.asset_materialization
    assert model.asset_materialization.metadata["sequences"].value > 1
    for name, documents in (("news", 124), ("blog", 80)):
        assert len(load_results(tmp_path / f"divorder/{name}/store").documents) == documents
        curated = tmp_path / f"divorder/{name}/curated/curated.jsonl"
        assert len(curated.read_text().splitlines()) == documents
