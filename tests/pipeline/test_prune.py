"""Pruning changes files, never results; deleted documents are really gone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dagster_divorder import load_results, run_all
from dagster_divorder.engine.progress import Silent
from dagster_divorder.pipeline.prune import plan_prune, prune
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH
from dagster_divorder.store.fragments import Fragments
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.reader import Reader
from dagster_divorder.store.state import HISTORY, load_state
from tests.conftest import topic_records, write_jsonl
from tests.pipeline.test_pipeline import output_bytes, run

Make = Callable[..., Settings]
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
    planned = plan_prune(GRAPH, store)
    assert planned.texts
    used = store.files()
    freed = prune(GRAPH, store)
    assert freed.texts and planned.bytes <= freed.bytes
    assert sum(store.files().values()) == sum(used.values()) - freed.bytes
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
    assert plan_prune(GRAPH, store).bytes == 0
    gone = records[55]["text"].encode()
    assert not [path for path in store.root.rglob("*") if path.is_file() and gone in path.read_bytes()]


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
    assert prune(GRAPH, store).bytes and plan_prune(GRAPH, store).bytes == 0
