"""The pipeline on real files: what comes out; what a plan says that the next run computes, and why, by the settings
alone that decide a stage's result. That a run then does just that: tests/law, test_every_stage.py."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from dagster_divorder import load_results, run_all, run_stage
from dagster_divorder.cli.runs import plan as plan_page
from dagster_divorder.cli.runs import prune as prune_page
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import MissingStageError
from dagster_divorder.pipeline.graph import Graph
from dagster_divorder.pipeline.plan import Plan, make_plan
from dagster_divorder.pipeline.stage import changed_settings, given_settings
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.state import Receipt
from dagster_divorder.view.words import ORDERS
from tests.conftest import topic_records, write_jsonl
from tests.pipeline.runs import Make, ran, run


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "docs.jsonl", topic_records())


def test_results_for_notebooks(corpus: Path, make_settings: Make) -> None:
    settings = make_settings(
        input={"source_field": "source"}, order={"traits": {"cluster": 1.0, "score": 1.0}}
    )
    run(settings)
    results = load_results(settings.store.path)
    documents = results.documents
    columns = "id record_id doc_id source tokens cluster cluster_name cluster_distance position repeats score"
    assert list(documents.columns) == columns.split()
    assert documents["repeats"].tolist() == [1] * 240
    assert documents["source"].tolist() == [record["source"] for record in topic_records()]
    order = np.load(settings.output.path / "order.npy")
    assert documents["position"].to_numpy()[order].tolist() == list(range(240))
    assert documents["record_id"].str.len().unique().tolist() == [32]
    assert isinstance(results.embeddings, np.memmap)
    assert results.embeddings.shape == (240, 16)
    assert np.allclose(np.linalg.norm(results.embeddings, axis=1), 1, atol=1e-5)
    metrics = results.metrics.set_index("measure")
    assert list(metrics)[:2] == ["unit", "better"] and set(ORDERS) < set(metrics)
    held = metrics.loc["clusters in a sequence, mean"]
    measured = orjson.loads((settings.output.path / "curated_meta.json").read_bytes())["diversity"]
    assert held["better"] == "more"
    assert held["sequences"] == measured["sequences"]["distinct"]["cluster"]["mean"]
    assert metrics.loc["batch TV of cluster, mean", "unit"] == "%" and metrics["about"].str.len().min() > 10
    assert repr(results) == f"load_results({str(settings.store.path)!r})"
    assert load_results(settings.store.path).embeddings.filename == results.embeddings.filename


def test_stages_alone_need_the_ones_before_them_up_to_date(corpus: Path, make_settings: Make) -> None:
    settings = make_settings()
    with pytest.raises(MissingStageError, match=r"raw_docs has no result.*; `divorder run` makes it, or"):
        run_stage("base_model", settings, Silent())
    run(settings)
    with pytest.raises(
        MissingStageError, match=r"centroids was last made with other settings; `divorder run`"
    ):
        run_stage("greedy_order", make_settings(clusters={"k": 3}), Silent())
    write_jsonl(corpus, topic_records(30))
    run_stage("raw_docs", settings, Silent())
    with pytest.raises(MissingStageError, match="was made for an earlier state of raw_docs"):
        run_stage("clusters", settings, Silent())


def test_a_part_is_made_with_one_asset_alone() -> None:
    """Else a fit that is asked for would be made with every asset that reads it."""
    settings = Settings(embedding={"kind": "auto"}, clusters={"k": "auto"})
    needed = GRAPH.needed(settings)
    made = [part for stage in needed if GRAPH[stage].asset for part in GRAPH.step(settings, stage)]
    assert Counter(made) == Counter(needed)


def told(stage: str, before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    old = Settings(**before)
    made = Receipt(
        stage=stage,
        fingerprint=GRAPH[stage].fingerprint(old),
        key="",
        version="",
        upstream={},
        settings=given_settings(old),
    )
    return changed_settings(GRAPH[stage], made, Settings(**now))


@pytest.mark.parametrize(
    ("stage", "before", "now", "expected"),
    [
        ("centroids", {"clusters": {"k": 30}}, {"clusters": {"k": 15}}, ["clusters.k 30 -> 15"]),
        ("token_counts", {"clusters": {"k": 30}}, {"clusters": {"k": 15}}, []),
        (
            "traits",
            {"order": {"traits": {"cluster": 1, "length": 1}}},
            {"order": {"traits": {"cluster": 1, "lang": 1}}},
            ["order.traits.lang unset -> 1.0", "order.traits.length 1.0 -> unset"],
        ),
        (
            "greedy_order",
            {"order": {"strategy": "f2", "options": {"f2_lambda": 0.5}}},
            {"order": {"strategy": "f3"}},
            ["order.options.f2_lambda 0.5 -> unset", "order.strategy f2 -> f3"],
        ),
        ("packed_sequences", {}, {"order": {"cut": ["a"], "append": "extend"}}, ['order.cut [] -> ["a"]']),
        ("raw_docs", {"input": {"text_field": "de"}}, {}, ["input.text_field de -> text"]),
        (
            "base_model",
            {},
            {"advanced": {"token_dims": 64}, "store": {"path": "/other"}},
            ["advanced.token_dims 128 -> 64"],
        ),
    ],
)
def test_the_settings_that_decide_a_stage_are_named(
    stage: str, before: dict[str, Any], now: dict[str, Any], expected: list[str]
) -> None:
    assert told(stage, before, now) == expected


def test_long_values_are_cut_and_unknown_settings_name_nothing() -> None:
    now = {"input": {"paths": [f"/data/part-{number}.jsonl" for number in range(100)]}}
    (change,) = told("raw_docs", {}, now)
    assert change.startswith('input.paths ["data/sample/docs.jsonl"] -> ["/data/part-0.jsonl",')
    assert len(change) < 130
    stage = GRAPH["centroids"]
    made = Receipt(
        stage=stage.name, fingerprint="", key="", version="", upstream={}, settings={"gone": {"k": 1}}
    )
    assert changed_settings(stage, made, Settings()) == []


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "docs.jsonl", topic_records(20))


def planned(made: Plan) -> dict[str, tuple[str, int]]:
    return {stage.stage: (stage.scope, stage.documents) for stage in made.stages}


def whys(made: Plan) -> dict[str, str]:
    return {stage.stage: stage.why for stage in made.stages}


def test_a_change_is_told_and_switching_back_is_free_but_for_the_output(
    small: Path, make_settings: Make
) -> None:
    first, other = make_settings(), make_settings(embedding={"pooling": "mean"}, clusters={"k": 3})
    ran(first)
    made = make_plan(GRAPH, other)
    assert whys(made)["shallow_embeddings"] == "embedding.pooling idf -> mean"
    assert whys(made)["greedy_order"] == "traits is made again"
    assert planned(made)["token_counts"] == ("nothing", 0)
    assert planned(make_plan(GRAPH, first.refitting("model")))["token_counts"] == ("all", 80)
    fitted = run_all(other, Silent())["centroids"].figures["fitted"]
    assert fitted == "clusters.k 4 -> 3"

    made = make_plan(GRAPH, first)
    assert {stage for stage, (scope, _) in planned(made).items() if scope != "nothing"} == {"curated_output"}
    why = whys(made)
    assert (why["token_counts"], why["clusters"]) == ("up to date", "kept from other settings")
    assert why["greedy_order"] == why["diversity_metrics"] == "kept from other settings"
    assert why["curated_output"] == "output.path holds the output of other settings or files"
    # What was appended meanwhile is new to them.
    write_jsonl(small, [*topic_records(20), *topic_records(1, start=90)])
    ran(first)
    made = make_plan(GRAPH, other)
    assert planned(made)["clusters"] == ("new", 4)
    assert planned(made)["token_counts"] == ("nothing", 0)
    assert planned(made)["greedy_order"] == ("all", 84)
    # Raising the version of a stage is how its code says that it gives other bytes.
    packing = GRAPH["packed_sequences"]
    changed = {**GRAPH, "packed_sequences": replace(packing, version=packing.version + 1)}
    assert (
        whys(make_plan(Graph(changed, changed.__getitem__), first))["packed_sequences"] == "its code changed"
    )


def test_the_pages_people_read(small: Path, make_settings: Make) -> None:
    settings = make_settings()
    ran(settings)
    write_jsonl(small, topic_records(20)[:-5])
    ran(settings)
    page = str(plan_page(settings))
    assert "75 records in the input, 0 of them new" in page
    assert "up to date" in page
    assert "would be freed: " in str(prune_page(settings, dry_run=True))
    assert "deleted documents among it: yes" in str(prune_page(settings, dry_run=False))
    assert "deleted documents among it: no" in str(prune_page(settings, dry_run=True))
    assert not [name for name in LocalStore(settings.store.path).files() if "tmp" in name]


def test_a_fit_that_no_output_needs_is_made_where_it_is_asked_for(small: Path, make_settings: Make) -> None:
    settings = make_settings()
    ran(settings)
    assert "map_fit" not in planned(make_plan(GRAPH, settings))
    asked = make_plan(GRAPH, settings.refitting("cluster_map"))
    assert planned(asked)["map_fit"] == ("all", 80)
    assert whys(asked)["map_fit"] == "asked for by --refit cluster_map"
    assert planned(asked).keys() == {*planned(make_plan(GRAPH, settings)), "map_fit"}
