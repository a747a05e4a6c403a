"""The trait `difficulty` through the pipeline: whatever becomes of corpus and store, a document keeps its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dagster_divorder.engine.progress import Silent
from dagster_divorder.pipeline import merge
from dagster_divorder.pipeline.prune import plan_prune, prune
from dagster_divorder.pipeline.run import Run, run_all
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH
from dagster_divorder.stages.order.bin_edges import DIFFICULTY_BINS
from dagster_divorder.stages.order.traits import load_traits
from dagster_divorder.stages.text import difficulty_counts as stage
from dagster_divorder.store.arrays import unpack
from dagster_divorder.store.ids import to_bytes
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.sample import document_ids
from dagster_divorder.store.state import load_receipt, load_state
from tests.conftest import copy_fits, topic_records, write_jsonl
from tests.pipeline.test_pipeline import output_bytes, run

Make = Callable[..., Settings]
TRAITS = {"cluster": 1.0, "length": 1.0, "difficulty": 1.0}


@pytest.fixture
def settings(make_settings: Make) -> Settings:
    return make_settings(order={"traits": TRAITS}, refit={"clusters": "never"})


def by_document(settings: Settings) -> dict[bytes, float]:
    """Difficulty by id of the document, as the last run has left it."""
    of = Run(settings, LocalStore(settings.store.path).open(), Silent())
    view = of.view
    ids = document_ids(of.store, view)
    used = view.used_documents()
    bits = of.column("difficulty", "bits")
    data = to_bytes(ids)
    return {bytes(data[16 * at : 16 * at + 16]): bits[at] for at in np.flatnonzero(used).tolist()}


def test_difficulty_is_a_trait_in_bins_of_its_own_number(tmp_path: Path, settings: Settings) -> None:
    """A document that repeats its phrases is easier than one of the same words in no order."""
    rng = np.random.default_rng(0)
    phrase = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "and", "runs", "away"]
    records = [{"text": " ".join(phrase * (2 + n % 5)), "id": n} for n in range(60)]
    records += [{"text": " ".join(rng.permutation(phrase * (2 + n % 5))), "id": 100 + n} for n in range(60)]
    write_jsonl(tmp_path / "docs.jsonl", records)
    run(settings)
    of = Run(settings, LocalStore(settings.store.path).open(), Silent())
    traits = load_traits(of)
    codes, names = traits.codes["difficulty"], traits.names["difficulty"]
    assert len(names) <= DIFFICULTY_BINS + 1
    assert codes[:60].max() < codes[60:].min()
    receipt = load_receipt(of.store, "greedy_order")
    assert receipt is not None
    assert receipt.figures["traits"]["difficulty"] == len(names)


def test_no_append_edit_merge_or_prune_changes_what_a_document_has(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge, "MERGE_FROM", 3)
    write_jsonl(tmp_path / "docs.jsonl", topic_records(20))
    run(settings)
    known = by_document(settings)
    for more in range(1, 5):
        write_jsonl(tmp_path / "docs.jsonl", [*topic_records(20)[more:], *topic_records(more, start=100)])
        run(settings)
        now = by_document(settings)
        assert all(now[document] == known[document] for document in known.keys() & now.keys())
        known |= now
    store = LocalStore(settings.store.path)
    (folder,) = store.folders("stages/difficulty")
    assert set(store.hashed(folder)) == set(store.hashed("documents"))
    before = output_bytes(settings)
    prune(settings, store)
    assert plan_prune(store).bytes == {}
    assert load_state(store).results["difficulty_counts"] and store.hashed(folder)
    again = run(settings)
    assert {report["new_documents"] for stage, report in again.items() if GRAPH[stage].asset} == {0}
    assert by_document(settings) == {document: known[document] for document in by_document(settings)}
    assert output_bytes(settings) == before


def test_incremental_equals_from_scratch_given_the_same_fits(
    tmp_path: Path, settings: Settings, make_settings: Make
) -> None:
    write_jsonl(tmp_path / "docs.jsonl", topic_records(20))
    run(settings)
    fits = tmp_path / "fits"
    copy_fits(settings.store.path, fits)
    write_jsonl(tmp_path / "docs.jsonl", topic_records(27)[::-1])
    run(settings)
    incremental, known = output_bytes(settings), by_document(settings)
    shutil.rmtree(settings.output.path)
    fresh = make_settings(order={"traits": TRAITS}, refit={"clusters": "never"}, store={"path": fits})
    run(fresh)
    assert by_document(fresh) == known
    assert output_bytes(fresh) == incremental


def test_another_corpus_is_counted_anew(tmp_path: Path, settings: Settings) -> None:
    write_jsonl(tmp_path / "docs.jsonl", topic_records(20))
    run(settings)
    store = LocalStore(settings.store.path)
    first = load_receipt(store, "difficulty_counts")
    write_jsonl(tmp_path / "docs.jsonl", topic_records(20, start=500))
    run(settings)
    second = load_receipt(store, "difficulty_counts")
    assert first is not None
    assert second is not None
    assert first.version != second.version


def test_only_a_sample_is_counted_and_of_a_long_document_the_beginning(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A document has the same difficulty, given what else is counted, whether it is in the sample or not."""
    monkeypatch.setattr(stage, "SAMPLE_TOKENS", 400)
    monkeypatch.setattr(stage, "CLIP_TOKENS", 8)
    write_jsonl(tmp_path / "docs.jsonl", topic_records(20))
    run_all(settings, Silent(), GRAPH.needed(settings, "token_counts"))
    of = Run(settings, LocalStore(settings.store.path).open(), Silent())
    counted = unpack(stage._count_token_pairs(of)[stage.COUNTS])
    assert 300 < counted["tokens"].sum() <= 400
    assert len(counted["documents"]) >= 400 // 8 - 1
    assert (np.diff(counted["documents"].astype(object)) > 0).all()


def test_a_damaged_result_is_computed_again(tmp_path: Path, settings: Settings) -> None:
    write_jsonl(tmp_path / "docs.jsonl", topic_records(20))
    run(settings)
    before, known = output_bytes(settings), by_document(settings)
    (file,) = settings.store.path.glob("stages/difficulty/*/*")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    write_jsonl(tmp_path / "docs.jsonl", [*topic_records(20), *topic_records(1, start=900)])
    run(settings)
    write_jsonl(tmp_path / "docs.jsonl", topic_records(20))
    run(settings)
    assert by_document(settings) == known
    assert output_bytes(settings) == before
