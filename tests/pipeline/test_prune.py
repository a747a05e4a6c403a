"""Pruning changes files, never results; deleted documents are really gone; a lost fit, and a fit of another corpus, are
noticed and said with what to do."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from dagster_divorder import load_results, run_all
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import StoreError
from dagster_divorder.pipeline.plan import make_plan
from dagster_divorder.pipeline.prune import prune
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH
from dagster_divorder.store.base import STATE
from dagster_divorder.store.fragments import Fragments
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.stages import Reader
from dagster_divorder.store.state import HISTORY, load_state
from tests.conftest import Notes, topic_records, write_jsonl
from tests.pipeline.runs import Make, output_bytes, run

TRAITS = {"cluster": 1.0, "length": 1.0, "source": 1.0, "score": 1.0}


def test_prune_says_what_it_frees_frees_it_and_changes_no_result(tmp_path: Path, make_settings: Make) -> None:
    settings = make_settings(order={"traits": TRAITS})
    store = LocalStore(settings.store.path)
    records = topic_records()
    write_jsonl(tmp_path / "docs.jsonl", records)
    run(make_settings(order={"traits": TRAITS}, clusters={"k": 3}))
    write_jsonl(tmp_path / "docs.jsonl", [*records[:50], *records[60:]])
    run(settings)
    before = output_bytes(settings)
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
    gone = records[55]["text"].encode()
    assert not [path for path in store.root.rglob("*") if path.is_file() and gone in path.read_bytes()]


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

    def results() -> dict[str, bytes]:
        """The output but for what people look at, which has other names now."""
        return {
            name: data
            for name, data in output_bytes(settings).items()
            if not name.endswith((".png", ".html"))
        }

    before = results()
    again = run_all(settings, Silent(), stages)
    assert results() == before, "prune changes no result"
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


def versions(settings: Settings) -> dict[str, str]:
    receipts = run_all(settings, Notes(), GRAPH.needed(settings, "curated_output", "cluster_map"))
    return {stage: receipt.version for stage, receipt in receipts.items()}


def lose_fit(store: Path, stage: str) -> Path:
    (fit, *_) = (store / "fits" / stage).iterdir()
    shutil.rmtree(fit)
    return fit


def test_fits_that_were_pruned_are_made_again_without_asking(tmp_path: Path, make_settings: Make) -> None:
    write_jsonl(tmp_path / "docs.jsonl", topic_records(15))
    settings, other = (make_settings(seed=seed) for seed in (0, 1))
    before = [versions(one) for one in (settings, other)]
    prune(GRAPH, LocalStore(settings.store.path))
    assert [versions(one) for one in (settings, other)] == before


def test_prune_does_not_forget_a_fit_that_was_lost(tmp_path: Path, make_settings: Make) -> None:
    write_jsonl(tmp_path / "docs.jsonl", topic_records(15))
    settings = make_settings()
    run_all(settings, Notes())
    lost = lose_fit(settings.store.path, "centroids")
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
    again_notes = Notes()
    again = run_all(settings, again_notes, stages)
    assert warning in notes.said
    assert warning in again_notes.said
    assert {receipt.figures["new_documents"] for receipt in again.values()} == {0}
    assert make_plan(GRAPH, settings).stages[1].why == planned["base_model"]

    run_all(settings.refitting("model", "clusters", "cluster_map"), Notes(), stages)
    renewed = run_all(settings, Notes(), stages)
    assert renewed["base_model"].figures["note"] is None
    places = {"store": {"path": tmp_path / "fresh"}, "output": {"path": tmp_path / "new"}}
    fresh = run_all(make_settings(**places), Notes(), stages)
    for stage in ("token_counts", "clusters", "cluster_map", "greedy_order", "sequence_order"):
        assert renewed[stage].version == fresh[stage].version, stage
