"""A stage is a value: one of each kind, defined here and nowhere else, runs, plans, and is materialised by
Dagster. Nothing of the package knows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import orjson
import pytest

from dagster_divorder.corpus.stored import Records
from dagster_divorder.defs.factory import definitions
from dagster_divorder.defs.pipeline import Pipeline
from dagster_divorder.engine.progress import Silent
from dagster_divorder.pipeline.fit import PinnedFit, has_doubled
from dagster_divorder.pipeline.graph import Graph
from dagster_divorder.pipeline.plan import make_plan
from dagster_divorder.pipeline.run import Run, run_checks, run_graph
from dagster_divorder.pipeline.stage import Check, File, Finding, Made, PerDocument, Table, WholeCorpus
from dagster_divorder.settings import Settings
from dagster_divorder.stages.corpus.raw_docs import RAW_DOCS
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.view import Fragment
from tests.conftest import topic_records, write_jsonl


@dataclass(frozen=True)
class CountLetters:
    records: Records

    def __call__(self, fragment: Fragment) -> dict[str, np.ndarray]:
        texts = self.records.texts(fragment).to_pylist()
        return {"letters": np.array([len(text) for text in texts], np.int64)}


def mean_of_used(run: Run, files: StageFiles) -> dict[str, Any]:
    letters = files.column(run.view.fragments, "letters")
    return {"letters": int(letters.sum())}


LETTERS = PerDocument(
    name="letters",
    version=1,
    description="Letters of each document.",
    reads=("raw_docs",),
    doing="counting letters",
    compute=lambda run: CountLetters(run.records),
    figures=mean_of_used,
)


def fit_mean(run: Run) -> Mapping[str, bytes]:
    letters = run.column("letters", "letters")
    return {"mean.json": orjson.dumps(float(letters.mean()))}


MEAN = PinnedFit(
    name="mean_letters",
    version=1,
    asset=False,
    description="Letters of a document on average, when it was fitted.",
    reads=("raw_docs", "letters"),
    compute=fit_mean,
    refit="clusters",
    drift=has_doubled,
    facts=lambda run, fitted: {"mean": orjson.loads(fitted.files["mean.json"])},
)


def tally(run: Run) -> Made:
    letters = run.column("letters", "letters")
    above = int((letters > run.receipt("mean_letters").facts["mean"]).sum())
    return Made({"tally": File(orjson.dumps([above, len(letters)]), "json")}, figures={"above": above})


def all_are_counted(run: Run) -> Finding:
    _, records = orjson.loads(run.read("tally", "tally"))
    return Finding(passed=records == len(run.view), text=f"{records} records")


TALLY = WholeCorpus(
    name="tally",
    version=1,
    description="Records longer than the mean.",
    reads=("raw_docs", "letters", "mean_letters"),
    settings=("seed",),
    quotes=True,
    compute=tally,
    show=lambda run, receipt: {"tally": Table([{"above": receipt.figures["above"]}])},
    checks=(Check(name="all_are_counted", description="All are counted.", check=all_are_counted),),
)

GRAPH = Graph((RAW_DOCS, LETTERS, MEAN, TALLY))


def settings_in(folder: Path, **sections: Any) -> Settings:
    return Settings.model_validate(
        {
            "input": {"paths": (str(folder / "in"),)},
            "store": {"path": folder / "store"},
            "output": {"path": folder / "out"},
            **sections,
        }
    )


def append(folder: Path, number: int, documents: int = 12) -> None:
    (folder / "in").mkdir(exist_ok=True)
    records = [{**record, "text": f"{number} {record['text']}"} for record in topic_records(documents // 4)]
    write_jsonl(folder / "in" / f"{number}.jsonl", records)


def run_tally(settings: Settings) -> dict[str, Any]:
    made = run_graph(GRAPH, settings, Silent(), GRAPH.needed(settings, "tally"))
    return {name: receipt.figures for name, receipt in made.items()}


def planned(settings: Settings) -> dict[str, int]:
    return {stage.stage: stage.documents for stage in make_plan(GRAPH, settings, "tally").stages}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    append(tmp_path, 0)
    return tmp_path


def test_they_run_and_plan_alike(folder: Path) -> None:
    settings = settings_in(folder)
    assert planned(settings) == {"raw_docs": 12, "letters": 12, "mean_letters": 12, "tally": 12}
    first = run_tally(settings)
    assert {name: of["new_documents"] for name, of in first.items()} == dict.fromkeys(first, 12)
    assert planned(settings) == dict.fromkeys(first, 0)
    append(folder, 1, documents=4)
    plan = planned(settings)
    assert plan == {"raw_docs": 4, "letters": 4, "mean_letters": 0, "tally": 16}
    again = run_tally(settings)
    assert {name: of["new_documents"] for name, of in again.items()} == plan
    append(folder, 2, documents=16)
    plan = planned(settings)
    assert plan == {"raw_docs": 16, "letters": 16, "mean_letters": 32, "tally": 32}
    assert run_tally(settings)["mean_letters"]["fitted"].startswith("the corpus has grown from 12 to 32")


def test_dagster_materialises_and_checks_them(folder: Path) -> None:
    settings = settings_in(folder)
    made = definitions(Pipeline(GRAPH, settings))
    assets = list(made.assets or [])
    assert {asset.key.path[-1] for asset in assets} == {"raw_docs", "letters", "tally"}  # type: ignore[union-attr]
    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize(
            assets,  # type: ignore[arg-type]
            instance=instance,
        )
        event = instance.get_latest_materialization_event(dg.AssetKey("tally"))
    assert result.success
    assert event is not None and event.asset_materialization is not None
    shown = event.asset_materialization.metadata["tally"].value
    assert [record.data for record in shown.records] == [{"above": run_tally(settings)["tally"]["above"]}]
    evaluations = {one.check_name: one.passed for one in result.get_asset_check_evaluations()}
    assert evaluations == {"all_are_counted": True}
    assert {name: found.passed for name, found in run_checks(GRAPH, settings).items()} == evaluations
