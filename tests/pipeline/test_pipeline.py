"""The pipeline on real files: what comes out; what a plan says that the next run computes, and why, by the settings
alone that decide a stage's result. That a run then does just that: tests/law, test_every_stage.py. Pruning changes
files, never results; deleted documents are really gone; a lost fit, and a fit of another corpus, are noticed and said
with what to do."""

from __future__ import annotations

import re
import shutil
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
from dagster_divorder.errors import MissingStageError, StoreError
from dagster_divorder.pipeline.graph import Graph
from dagster_divorder.pipeline.plan import Plan, make_plan
from dagster_divorder.pipeline.prune import prune
from dagster_divorder.pipeline.stage import changed_settings, given_settings
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH
from dagster_divorder.store.base import STATE
from dagster_divorder.store.fragments import Fragments
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.stages import Reader
from dagster_divorder.store.state import HISTORY, Receipt, load_state
from dagster_divorder.view.words import ORDERS
from tests.conftest import Notes, topic_records, write_jsonl
from tests.pipeline.runs import Make, output_bytes, ran, run


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
    fingerprint, given = GRAPH[stage].fingerprint(Settings(**before)), given_settings(Settings(**before))
    made = Receipt(stage=stage, fingerprint=fingerprint, key="", version="", upstream={}, settings=given)
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
    made = Receipt(
        stage="centroids", fingerprint="", key="", version="", upstream={}, settings={"gone": {"k": 1}}
    )
    assert changed_settings(GRAPH["centroids"], made, Settings()) == []


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
    # A fit that no output needs is made where it is asked for.
    asked = make_plan(GRAPH, first.refitting("cluster_map"))
    assert planned(asked).keys() - planned(make_plan(GRAPH, first)).keys() == {"map_fit"}
    assert planned(asked)["map_fit"] == ("all", 80)
    assert whys(asked)["map_fit"] == "asked for by --refit cluster_map"
    made = make_plan(GRAPH, other)
    assert whys(made)["shallow_embeddings"] == "embedding.pooling idf -> mean"
    assert whys(made)["greedy_order"] == "traits is made again"
    assert planned(made)["token_counts"] == ("nothing", 0)
    assert planned(make_plan(GRAPH, first.refitting("model")))["token_counts"] == ("all", 80)
    fitted = run_all(other, Silent())["centroids"].figures["fitted"]
    assert fitted == "clusters.k 4 -> 3"

    assert "80 records in the input, 0 of them new" in str(plan_page(first))
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


def test_prune_says_what_it_frees_frees_it_and_changes_no_result(tmp_path: Path, make_settings: Make) -> None:
    order = {"traits": dict.fromkeys(("cluster", "length", "source", "score"), 1.0)}
    settings = make_settings(order=order)
    store = LocalStore(settings.store.path)
    records = topic_records()
    write_jsonl(tmp_path / "docs.jsonl", records)
    other = make_settings(order=order, clusters={"k": 3})
    run(other)
    write_jsonl(tmp_path / "docs.jsonl", [*records[:50], *records[60:]])
    run(settings)
    before = output_bytes(settings)
    assert "deleted documents among it: yes" in str(prune_page(settings, dry_run=True))
    planned, used = prune(GRAPH, store, dry_run=True), store.files()
    assert planned.texts and store.files() == used
    assert prune(GRAPH, store) == planned
    del used[STATE]
    assert (
        sum(size for name, size in store.files().items() if name != STATE)
        == sum(used.values()) - planned.bytes
    )
    gone = used.keys() - store.files().keys()
    for part in ("fits/centroids/", "records/", "stages/clusters/", "views/"):
        assert any(name.startswith(part) for name in gone), part
    last = Reader(store)
    stored = Fragments(store, last.receipt("raw_docs").key).present()
    assert stored.keys() == {piece.name for piece in last.view.pieces}
    again = run(settings)
    kept = [stage for stage in again if GRAPH[stage].asset and not GRAPH[stage].quotes]
    assert {again[stage]["new_documents"] for stage in kept} == {0}
    assert not again["curated_output"]["written"]
    assert output_bytes(settings) == before
    assert prune(GRAPH, store, dry_run=True).bytes == 0
    assert "deleted documents among it: no" in str(prune_page(settings, dry_run=True))
    gone = records[55]["text"].encode()
    assert not [path for path in store.root.rglob("*") if path.is_file() and gone in path.read_bytes()]
    # A fit that went is made again without asking.
    assert run(other)["centroids"]["fitted"] == "clusters.k 4 -> 3"


@pytest.mark.usefixtures("undrawn")
def test_words_of_deleted_documents_are_gone_wherever_people_see_them(
    tmp_path: Path, make_settings: Make
) -> None:
    settings = make_settings(
        refit={"clusters": "never"},
        output={"sidecars": ("plot",)},
    )
    store = LocalStore(settings.store.path)
    stages = GRAPH.needed(settings, "curated_output", "ari_comparison", "ordering_report")
    records = topic_records(20)
    secrets = [{"text": f"xylophone {number} zeppelin xylophone quagmire " * 9} for number in range(20)]
    write_jsonl(tmp_path / "docs.jsonl", [*records, *secrets])
    run_all(settings, Silent(), stages)

    def where(word: str) -> set[str]:
        """Places that have a word, in the store and in the output."""
        files = [path for path in (*store.root.rglob("*"), *settings.output.path.iterdir()) if path.is_file()]
        return {
            path.relative_to(tmp_path).as_posix()
            for path in files
            if word.encode() in path.read_bytes().lower()
        }

    assert any("fits/cluster_names" in place for place in where("xylophone"))
    assert "curated/ordering_report.html" in where("xylophone")
    write_jsonl(tmp_path / "docs.jsonl", records)
    run_all(settings, Silent(), stages)
    pruned = prune(GRAPH, store)
    assert pruned.texts
    assert not list(settings.output.path.glob("ordering_report*.html"))

    written = output_bytes(settings).items()
    # What people look at has other names now.
    before = {name: data for name, data in written if not name.endswith((".png", ".html"))}
    again = run_all(settings, Silent(), stages)
    assert before.items() <= output_bytes(settings).items(), "prune changes no result"
    assert again["ari_comparison"].figures["new_documents"] == 0 and again["ari_comparison"].figures["ari"]
    # The bootstrap tokenizer, of which its decoder has a copy, was trained on them.
    assert {place.split("/")[2] for place in where("xylophone")} <= {"base_model", "deep_model"}
    assert (settings.output.path / "ordering_report.html").exists()
    assert load_results(store.root).documents["cluster_name"].notna().all()
    # And it is over: nothing is made again after that.
    assert not prune(GRAPH, store).texts
    assert {receipt.figures["new_documents"] for receipt in run_all(settings, Silent(), stages).values()} == {
        0
    }


@pytest.mark.parametrize("shared", [False, True])
def test_runs_on_a_folder_remove_what_none_of_the_last_views_needs(
    shared: bool, tmp_path: Path, make_settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStore, "shared", shared)
    settings = make_settings(refit={"clusters": "never"})
    store = LocalStore(settings.store.path)
    added: list[set[str]] = []
    for number in range(HISTORY + 2):
        before = set(store.files())
        write_jsonl(tmp_path / "docs.jsonl", topic_records(5, start=100 * number))
        run(settings)
        parts = ("records/", "stages/token_counts/")
        added.append({name for name in set(store.files()) - before if name.startswith(parts)})
    present = set(store.files())
    assert all(added) and set().union(*added[2:]) <= present
    superseded = set().union(*added[:2])
    assert superseded <= present if shared else superseded.isdisjoint(present)
    # What the last clusters are called may still quote what is gone.
    assert load_state(store).removed != shared
    prune(GRAPH, store)
    assert "cluster_names" not in load_state(store).receipts and not load_state(store).removed


def test_a_prune_that_is_killed_is_gone_on_with(
    tmp_path: Path, make_settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings()
    store = LocalStore(settings.store.path)
    write_jsonl(tmp_path / "docs.jsonl", topic_records(10))
    run(make_settings(clusters={"k": 3}))
    run(settings)
    before, delete = output_bytes(settings), LocalStore.delete

    def dies(self: LocalStore, *names: str) -> None:
        delete(self, *names[: len(names) // 2])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(LocalStore, "delete", dies)
        prune(GRAPH, store)
    assert {figures["new_documents"] for figures in run(settings).values()} == {0}
    assert output_bytes(settings) == before
    assert prune(GRAPH, store).bytes and prune(GRAPH, store, dry_run=True).bytes == 0


def test_prune_does_not_forget_a_fit_that_was_lost(tmp_path: Path, make_settings: Make) -> None:
    write_jsonl(tmp_path / "docs.jsonl", topic_records(15))
    settings = make_settings()
    run_all(settings, Notes())
    (lost,) = (settings.store.path / "fits/centroids").iterdir()
    shutil.rmtree(lost)
    prune(GRAPH, LocalStore(settings.store.path))
    with pytest.raises(StoreError, match=re.escape(f"fit {lost} is missing")):
        run_all(settings, Notes())


# Another corpus ---------------------------------------------------------------------------------------------------


def test_another_corpus_in_the_same_store_is_said_and_a_refit_is_as_a_fresh_run(
    tmp_path: Path, make_settings: Make
) -> None:
    settings = make_settings()
    stages = GRAPH.needed(settings, "curated_output", "cluster_map")
    write_jsonl(tmp_path / "docs.jsonl", topic_records(30))
    run_all(settings, Notes(), stages)

    other = [{**record, "text": record["text"][::-1]} for record in topic_records(30, start=500)]
    write_jsonl(tmp_path / "docs.jsonl", other)
    planned = {stage.stage: stage.why for stage in make_plan(GRAPH, settings).stages}
    reason = "0% of the fit's documents are left"
    assert planned["base_model"] == f"{reason}; divorder run --refit model makes it again"
    assert planned["centroids"] == reason

    notes = Notes()
    receipts = run_all(settings, notes, stages)
    warning = receipts["base_model"].figures["note"]
    assert warning.startswith("0% of the documents that base_model was made on are left")
    assert "divorder run --refit model" in warning
    assert f"cutting lengths and numeric fields into bins ({reason})" in notes.said
    assert receipts["clusters"].figures["fitted"] == reason
    assert receipts["cluster_map"].figures["fitted"] == "100% of the documents have changed since"
    # Said in every run, until it is asked for.
    said = [*notes.said]
    again = run_all(settings, notes, stages)
    assert warning in said and warning in notes.said[len(said) :]
    assert {receipt.figures["new_documents"] for receipt in again.values()} == {0}
    assert make_plan(GRAPH, settings).stages[1].why == planned["base_model"]

    run_all(settings.refitting("model", "clusters", "cluster_map"), Notes(), stages)
    renewed = run_all(settings, Notes(), stages)
    assert renewed["base_model"].figures["note"] is None
    places = {"store": {"path": tmp_path / "fresh"}, "output": {"path": tmp_path / "new"}}
    fresh = run_all(make_settings(**places), Notes(), stages)
    for stage in ("token_counts", "clusters", "cluster_map", "greedy_order", "sequence_order"):
        assert renewed[stage].version == fresh[stage].version, stage
