"""Orders along a score through the stages: one schedule over all epochs, consumed beginnings, copies, exports."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagster_divorder import load_results, run_all
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.stage import Finding
from dagster_divorder.readers.export import open_export
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.order.packed_sequences import load_packed
from dagster_divorder.stages.order.sequence_order import first_reads, load_sequence_order, output_order
from dagster_divorder.verify import verify
from tests.conftest import topic_records, write_jsonl

Make = Callable[..., Settings]
LENGTH, BATCH = 64, 4


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
    sections["curriculum"] = {"score": "quality", "window": 3, **sections["curriculum"]}
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


def test_one_schedule_goes_over_all_epochs(corpus: Path, make_settings: Make) -> None:
    settings = along(make_settings, epochs=3, curriculum={"shape": "rise"})
    orders, rank = read(settings)
    sequences = len(rank)
    assert orders.shape == (3, sequences)
    assert (np.bincount(orders.reshape(-1), minlength=sequences) == 3).all()
    assert (orders[:, -1] == sequences - 1).all(), "the sequence that is not full ends every epoch"
    means = rank[orders[:, :-1]].mean(axis=1)
    assert means[0] < 0.25 < 0.42 < means[1] < 0.58 < 0.75 < means[2]
    assert check(settings).passed
    assert check(settings).text == f"{sequences:,} sequences, each exactly 3 times."

    each, rank = read(along(make_settings, epochs=3, curriculum={"shape": "rise", "epochs": "each"}))
    assert (np.sort(each, axis=1) == np.arange(sequences)).all()
    assert np.abs(rank[each[:, :-1]].mean(axis=1) - 0.5).max() < 0.02
    assert (
        np.diff(rank[each].reshape(3, -1)[:, : sequences // 8 * 8].reshape(3, 8, -1).mean(axis=2)) > 0
    ).all()


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


@pytest.mark.parametrize(("shape", "epochs"), [("rise", 1), ("rise", 3), ("fold", 3), ("saw", 1)])
def test_a_consumed_beginning_stays_and_the_schedule_goes_on(
    corpus: Path, make_settings: Make, shape: str, epochs: int
) -> None:
    settings = along(make_settings, epochs=epochs, curriculum={"shape": shape})
    orders, _ = read(settings, "curated_output")
    consumed = orders.shape[1] // 3
    names = contents(settings)
    before = [names[sequence] for sequence in orders[0, :consumed]]

    write_jsonl(corpus, scored(60) + scored(20, 60, above=0.7))
    frozen = replace_order(settings, frozen_tokens=consumed * LENGTH)
    orders, rank = read(frozen)
    names = contents(frozen)
    assert [names[sequence] for sequence in orders[0, :consumed]] == before
    assert (np.bincount(orders.reshape(-1), minlength=len(rank)) == epochs).all()
    assert check(frozen).passed
    # Every token is in one sequence of the plan.
    runs = sorted(run for sequence in names for run in sequence)
    tokens = load_results(settings.store.path).documents.set_index("record_id")["tokens"]
    reached: dict[str, int] = {}
    for record, start, length in runs:
        assert reached.get(record, 0) == start
        reached[record] = start + length
    assert reached == tokens.to_dict()
    if shape == "rise":
        rest = rank[orders.reshape(-1)[consumed:]]
        rest = rest[: len(rest) // 6 * 6].reshape(6, -1).mean(axis=1)
        assert (np.diff(rest) > 0).all()
        assert rest[0] > rank[orders[0, :consumed]].mean()
    again, _ = read(frozen)
    assert np.array_equal(again, orders)


def contents(settings: Settings) -> list[tuple[tuple[str, int, int], ...]]:
    """The runs of each sequence of the plan, by record."""
    packed = load_packed(open_run(settings))
    ids = load_results(settings.store.path).documents["record_id"].tolist()
    runs = list(
        zip(
            [ids[document] for document in packed.document],
            packed.start.tolist(),
            packed.length.tolist(),
            strict=True,
        )
    )
    return [
        tuple(runs[first:last]) for first, last in zip(packed.indptr[:-1], packed.indptr[1:], strict=True)
    ]


@pytest.mark.parametrize("now", [{"epochs": "each"}, {"strength": 0.0}], ids=str)
def test_a_beginning_with_repeats_needs_its_schedule(
    corpus: Path, make_settings: Make, now: dict[str, Any]
) -> None:
    settings = along(make_settings, epochs=2)
    orders, _ = read(settings, "curated_output")
    frozen = {"order": {"frozen_tokens": orders.shape[1] // 3 * LENGTH}}
    with pytest.raises(
        InputError, match=r"read a sequence 2 times, and now one schedule covers 1: restore curriculum"
    ):
        read(along(make_settings, epochs=2, curriculum=now, **frozen))
    read(along(make_settings, epochs=2, **frozen))


def replace_order(settings: Settings, **changes: Any) -> Settings:
    return settings.model_copy(update={"order": settings.order.model_copy(update=changes)})


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


@pytest.mark.parametrize("trainer", ["hf-trainer", "olmo-core", "megatron"])
def test_a_trainer_that_shuffles_is_said_to_lose_the_curriculum(
    corpus: Path, make_settings: Make, trainer: str
) -> None:
    settings = along(make_settings, epochs=2)
    run_all(settings, Silent())
    said = str(verify(settings, None, trainer))
    off, nothing = map(
        float,
        re.findall(r"([\d.]+) points off the plan's on average; without any curriculum, ([\d.]+)\.", said)[0],
    )
    assert off > 0.8 * nothing > 10
    assert f"by default: the mean rank of quality in a batch is {off}" in said
    assert "at its best: the mean rank" not in said, "with its lines it reads the plan"


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


@pytest.mark.parametrize("epochs", [1, 2])
def test_copies_stay_apart_inside_windows(corpus: Path, make_settings: Make, epochs: int) -> None:
    records = scored(120)
    write_jsonl(corpus, records + records)
    options: dict[str, Any] = {"epochs": epochs, "curriculum": {"shape": "rise", "window": 16}}
    distances = {}
    for apart in (False, True):
        settings = along(make_settings, order={"separate_copies": apart}, **options)
        orders, rank = read(settings)
        means = rank[orders.reshape(-1)]
        means = means[: len(means) // 8 * 8].reshape(8, -1).mean(axis=1)
        assert (np.diff(means) > 0).all()
        texts = load_results(settings.store.path).documents["doc_id"].to_numpy()
        packed = load_packed(open_run(settings))
        places: dict[tuple[str, int], list[int]] = {}
        for place, sequence in enumerate(orders.reshape(-1)):
            for at in range(packed.indptr[sequence], packed.indptr[sequence + 1]):
                places.setdefault((texts[packed.document[at]], packed.start[at]), []).append(place)
        gaps = np.concatenate([np.diff(found) for found in places.values() if len(found) > epochs])
        distances[apart] = np.quantile(gaps, 0.1)
    # A window has 64 sequences, so copies of a text are up to 32 / epochs apart.
    assert distances[True] >= 0.5 * 32 / epochs > distances[False]


def test_the_number_of_epochs_decides_only_a_schedule_over_all(make_settings: Make, corpus: Path) -> None:
    one = along(make_settings)
    two = along(make_settings, epochs=2)
    each = along(make_settings, epochs=2, curriculum={"epochs": "each"})
    assert one.curriculum_key == each.curriculum_key != two.curriculum_key
    assert two.schedule_epochs == 2 and each.schedule_epochs == 1
    # A window is a share of the whole schedule.
    assert two.curriculum_window(10_000) == pytest.approx(one.curriculum_window(10_000) / 2)
