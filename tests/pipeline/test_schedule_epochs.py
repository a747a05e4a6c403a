"""Orders along a score through the stages: one schedule over all epochs, its check, exports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagster_divorder import load_results, run_all
from dagster_divorder.core.order.schedule import window_share
from dagster_divorder.engine.progress import Silent
from dagster_divorder.pipeline.stage import Finding
from dagster_divorder.readers.export import open_export
from dagster_divorder.settings import Settings, model
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.order.packed_sequences import load_packed
from dagster_divorder.stages.order.sequence_order import first_reads, load_sequence_order, output_order
from tests.conftest import topic_records, write_jsonl

Make = Callable[..., Settings]
LENGTH, BATCH = 64, 4


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "window_share", lambda _, *rest: window_share(3, *rest))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "docs.jsonl", scored(60))


def scored(number: int, first: int = 0, *, above: float = 0.0) -> list[dict[str, Any]]:
    """Records with a score from `above` to 1 that has nothing to do with their text."""
    records = topic_records(number, first)
    scores = np.random.default_rng(number + first).permutation(len(records)) / len(records)
    return [
        record | {"quality": above + (1 - above) * score}
        for record, score in zip(records, scores.tolist(), strict=True)
    ]


def along(make_settings: Make, *, epochs: int = 1, **sections: Any) -> Settings:
    sections = {"sequence": {}, "curriculum": {}, **sections}
    sections["sequence"] = {"length": LENGTH, "batch": BATCH, "epochs": epochs, **sections["sequence"]}
    sections["curriculum"] = {"score": "quality", **sections["curriculum"]}
    return make_settings(**sections)


def read(settings: Settings, *stages: str) -> tuple[np.ndarray, np.ndarray]:
    """(the orders, int64 (E, S); the mean rank of each sequence, float64 (S,)) of a run."""
    run_all(settings, Silent(), GRAPH.needed(settings, "sequence_order", *stages))
    run = open_run(settings)
    packed, orders = load_packed(run), load_sequence_order(run)
    rank = run.arrays("scores", "scores")["rank"][packed.document]
    sequence = np.repeat(np.arange(len(packed)), np.diff(packed.indptr))
    return orders, np.bincount(sequence, rank * packed.length) / np.bincount(sequence, packed.length)


def check(settings: Settings) -> Finding:
    return GRAPH["sequence_order"].checks[0].check(open_run(settings))


@pytest.mark.parametrize("fault", ["lost", "doubled", "unknown"])
def test_the_check_of_the_order_counts_over_all_epochs(
    corpus: Path, make_settings: Make, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    settings = along(make_settings, epochs=2)
    orders, rank = read(settings)
    broken = orders.copy()
    at = np.flatnonzero(broken[0] == broken[0, 0])[0]
    broken[0, at] = {"lost": broken[0, 1], "doubled": broken[0, 1], "unknown": len(rank)}[fault]
    monkeypatch.setattr(
        "dagster_divorder.stages.order.sequence_order.load_sequence_order", lambda run: broken
    )
    found = check(settings)
    assert not found.passed
    doubled, unknown = (0, 1) if fault == "unknown" else (1, 0)
    assert found.text == (
        f"Of {len(rank)} sequences: 1 named less than 2 times, {doubled} named more than 2 times, "
        f"{unknown} that do not exist."
    )


def test_a_beginning_with_repeats_stays(corpus: Path, make_settings: Make) -> None:
    settings = along(make_settings, epochs=2)
    orders, _ = read(settings, "curated_output")
    frozen = {"order": {"frozen_tokens": orders.shape[1] // 3 * LENGTH}}
    again, _ = read(along(make_settings, epochs=2, **frozen))
    begun = orders.shape[1] // 3
    assert len(np.unique(orders.ravel()[:begun])) == len(np.unique(again.ravel()[:begun])) < begun
    assert check(along(make_settings, epochs=2, **frozen)).passed


@pytest.mark.parametrize("format", ["megatron", "parquet", "olmo"])
def test_exports_hold_all_epochs_of_one_schedule(corpus: Path, make_settings: Make, format: str) -> None:
    settings = along(
        make_settings, epochs=2, exports={"formats": [format], "path": corpus.parent / "exports"}
    )
    orders, _ = read(settings, "exports")
    packed = load_packed(open_run(settings))
    export = open_export(settings.exports.path / format)
    assert len(export) == orders.size
    read_at_once, one_by_one = (
        export.block(range(len(export))).ids,
        np.concatenate([export.block([row]).ids for row in range(len(export))]),
    )
    assert np.array_equal(read_at_once, one_by_one)
    by_sequence: dict[int, bytes] = {}
    lengths = packed.tokens[orders.reshape(-1)]
    for row, sequence, length in zip(
        read_at_once, orders.reshape(-1).tolist(), lengths.tolist(), strict=True
    ):
        tokens = row[:length].tobytes()
        assert by_sequence.setdefault(sequence, tokens) == tokens
    # Some texts of the corpus are equal.
    assert len(set(by_sequence.values())) > 0.8 * len(packed)
    frame = load_results(settings.store.path).sequences
    assert frame.drop_duplicates("position")["sequence"].tolist() == orders[0].tolist()
    # A stretch that ends in the first epoch, behind sequences that come again there.
    assert np.array_equal(export.block(range(orders.shape[1] - 1)).ids, one_by_one[: orders.shape[1] - 1])


def test_records_that_are_not_packed_are_all_in_the_output(corpus: Path, make_settings: Make) -> None:
    settings = along(make_settings, epochs=2, packing={"method": "none"})
    orders, rank = read(settings, "curated_output")
    assert len(set(orders[0].tolist())) < len(rank)
    run = open_run(settings)
    order = output_order(run)
    assert sorted(order) == list(range(240))
    records = load_packed(run).document[first_reads(orders)]
    # A long record is several sequences.
    assert list(dict.fromkeys(records.tolist())) == order.tolist()
    lines = (settings.output.path / "curated.jsonl").read_bytes().splitlines()
    before = corpus.read_bytes().splitlines()
    assert lines == [before[record] for record in order]


def test_the_number_of_epochs_decides_only_a_schedule_over_all(make_settings: Make, corpus: Path) -> None:
    one = along(make_settings)
    two = along(make_settings, epochs=2)
    without = make_settings(sequence={"epochs": 2})
    assert two.schedule_epochs == 2 and without.schedule_epochs == 1
    # A window is a share of the whole schedule.
    assert two.window(1_000_000) == pytest.approx(one.window(1_000_000) / 2)
