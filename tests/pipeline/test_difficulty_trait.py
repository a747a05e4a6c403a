"""The trait `difficulty` through the pipeline: whatever becomes of corpus and store, a document keeps its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dagster_divorder.engine.progress import Silent
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run, run_all
from dagster_divorder.stages.order.bin_edges import DIFFICULTY_BINS
from dagster_divorder.stages.order.traits import load_traits
from dagster_divorder.stages.text import difficulty_counts as stage
from dagster_divorder.store.arrays import unpack
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.state import load_receipt
from tests.conftest import topic_records, write_jsonl
from tests.pipeline.test_pipeline import run

Make = Callable[..., Settings]
TRAITS = {"cluster": 1.0, "length": 1.0, "difficulty": 1.0}


@pytest.fixture
def settings(make_settings: Make) -> Settings:
    return make_settings(order={"traits": TRAITS}, refit={"clusters": "never"})


def test_difficulty_is_a_trait_in_bins_of_its_own_number(tmp_path: Path, settings: Settings) -> None:
    """A document that repeats its phrases is easier than one of the same words in no order."""
    rng = np.random.default_rng(0)
    phrase = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "and", "runs", "away"]
    records = [{"text": " ".join(phrase * (2 + n % 5)), "id": n} for n in range(60)]
    records += [{"text": " ".join(rng.permutation(phrase * (2 + n % 5))), "id": 100 + n} for n in range(60)]
    write_jsonl(tmp_path / "docs.jsonl", records)
    run(settings)
    of = open_run(settings)
    traits = load_traits(of)
    codes, names = traits.codes["difficulty"], traits.names["difficulty"]
    assert len(names) <= DIFFICULTY_BINS + 1
    assert codes[:60].max() < codes[60:].min()
    receipt = load_receipt(of.store, "greedy_order")
    assert receipt is not None
    assert receipt.figures["traits"]["difficulty"] == len(names)


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
    of = open_run(settings)
    counted = unpack(stage._count_token_pairs(of)[stage.COUNTS])
    assert 300 < counted["tokens"].sum() <= 400
    assert len(counted["documents"]) >= 400 // 8 - 1
    assert (np.diff(counted["documents"].astype(object)) > 0).all()
