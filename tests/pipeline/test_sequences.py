"""Packed sequences and their order on real files: consumed beginnings kept, epochs, copies apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from dagster_divorder import load_results, run_all, run_stage
from dagster_divorder.core.packing import METHODS, PackedSequences
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.plan import make_plan
from dagster_divorder.settings import Settings, model
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.order.greedy_order import load_sections
from dagster_divorder.stages.order.packed_sequences import load_packed
from dagster_divorder.stages.order.sequence_order import load_sequence_order
from tests.conftest import topic_records, write_jsonl

Make = Callable[..., Settings]
LENGTH = 64


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "docs.jsonl", topic_records(120))


def run(settings: Settings, *stages: str) -> tuple[PackedSequences, np.ndarray]:
    """The plan and the orders that a run leaves, as far as the order of the sequences or stages after it."""
    run_all(settings, Silent(), GRAPH.needed(settings, "sequence_order", *stages))
    left = open_run(settings)
    return load_packed(left), load_sequence_order(left)


def held(packed: PackedSequences, sequence: int) -> list[tuple[int, int, int]]:
    """The runs of a sequence."""
    inside = slice(packed.indptr[sequence], packed.indptr[sequence + 1])
    columns = (packed.document[inside], packed.start[inside], packed.length[inside])
    return list(zip(*(column.tolist() for column in columns), strict=True))


def token_numbers(packed: PackedSequences) -> Iterator[tuple[int, int]]:
    for document, start, length in zip(packed.document, packed.start, packed.length, strict=True):
        yield from ((int(document), int(at)) for at in range(start, start + length))


def every_token(lengths: np.ndarray) -> list[tuple[int, int]]:
    return [(document, at) for document, length in enumerate(lengths.tolist()) for at in range(length)]


def test_the_plan_is_in_the_output_and_in_the_results(corpus: Path, make_settings: Make) -> None:
    settings = make_settings(sequence={"length": LENGTH, "epochs": 2})
    packed, orders = run(settings, "curated_output")
    assert orders.shape == (2, len(packed)) and not np.array_equal(*orders)
    assert np.array_equal(np.load(settings.output.path / "sequence_order.npy"), orders)
    table = pq.read_table(settings.output.path / "packed_sequences.parquet").to_pydict()
    assert [
        list(
            zip(
                *(column[a:b] for column in (table["document"], table["start"], table["length"])), strict=True
            )
        )
        for a, b in pairwise(packed.indptr)
    ] == [held(packed, sequence) for sequence in range(len(packed))]
    assert table["sequence"] == np.repeat(np.arange(len(packed)), np.diff(packed.indptr)).tolist()

    frame = load_results(settings.store.path).sequences
    assert frame["sequence"].drop_duplicates().tolist() == orders[0].tolist()
    assert frame["position"].is_monotonic_increasing
    first = frame[frame["position"] == 0][["document", "start", "length"]]
    assert list(first.itertuples(index=False, name=None)) == held(packed, orders[0][0])


@pytest.mark.parametrize("packing", [{"method": "concat"}, {"method": "best_fit"}], ids=str)
def test_a_consumed_beginning_stays(corpus: Path, make_settings: Make, packing: dict[str, Any]) -> None:
    settings = make_settings(sequence={"length": LENGTH}, packing=packing)
    packed, orders = run(settings, "curated_output")
    documents = load_results(settings.store.path).documents
    consumed = int(0.3 * documents["tokens"].sum())
    before = documents.sort_values("position")

    write_jsonl(corpus, topic_records(160) + topic_records(120)[:7])
    frozen = make_settings(sequence={"length": LENGTH}, packing=packing, order={"frozen_tokens": consumed})
    after_packed, after_orders = run(frozen)
    after = load_results(settings.store.path).documents.sort_values("position")

    kept = int((before["tokens"].cumsum() - before["tokens"] < consumed).sum())
    assert 0 < kept < len(before)
    assert after["record_id"].tolist()[:kept] == before["record_id"].tolist()[:kept]

    def contents(
        plan: PackedSequences, order: np.ndarray, ids: list[str]
    ) -> list[list[tuple[str, int, int]]]:
        return [
            [(ids[document], start, length) for document, start, length in held(plan, sequence)]
            for sequence in order[: -(-consumed // LENGTH)]
        ]

    now = load_results(settings.store.path).documents
    assert contents(packed, orders[0], documents["record_id"].tolist()) == contents(
        after_packed, after_orders[0], now["record_id"].tolist()
    )
    assert sorted(token_numbers(after_packed)) == every_token(now["tokens"].to_numpy())

    again = run(frozen)
    assert np.array_equal(again[1], after_orders)
    assert np.array_equal(again[0].document, after_packed.document)


def test_consumed_records_that_are_not_packed_stay_first(corpus: Path, make_settings: Make) -> None:
    unpacked: dict[str, Any] = {"sequence": {"length": 512, "epochs": 2}, "packing": {"method": "none"}}
    packed, orders = run(make_settings(**unpacked), "curated_output")
    ids = load_results(corpus.parent / "store").documents["record_id"].to_numpy()
    assert packed.length.sum() < 100 * 512, "with padding a trainer consumes more tokens than there are"
    first = ids[packed.document[orders[0][:100]]]

    write_jsonl(corpus, topic_records(160))
    packed, orders = run(make_settings(**unpacked, order={"frozen_tokens": 100 * 512}))
    now = load_results(corpus.parent / "store").documents
    assert now["record_id"].to_numpy()[packed.document[orders[0][:100]]].tolist() == first.tolist()
    assert sorted(token_numbers(packed)) == every_token(now["tokens"].to_numpy())

    with pytest.raises(InputError, match=r"frozen_tokens is 1000000000, but plan \w+ has only \d+ tokens"):
        run(make_settings(**unpacked, order={"frozen_tokens": 1_000_000_000}))


def test_a_consumed_record_that_is_gone_is_an_error(corpus: Path, make_settings: Make) -> None:
    settings = make_settings()
    run(settings, "curated_output")
    documents = load_results(settings.store.path).documents
    first = int(np.flatnonzero(documents["position"] == 0)[0])
    records = topic_records(120)
    del records[first]
    write_jsonl(corpus, records)
    with pytest.raises(InputError, match=f"1 of the .* {documents['record_id'][first]}.*frozen_tokens = 0"):
        run(make_settings(order={"frozen_tokens": 100}))


def test_no_more_can_be_frozen_than_there_was(corpus: Path, tmp_path: Path, make_settings: Make) -> None:
    for command in (run, partial(make_plan, GRAPH)):
        with pytest.raises(
            InputError, match=r"frozen_tokens is 10, but no plan was published in .*/store; exp"
        ):
            command(make_settings(order={"frozen_tokens": 10}))
    assert not list((tmp_path / "store").glob("*/*"))
    run_stage("raw_docs", make_settings(), Silent())
    with pytest.raises(InputError, match=r"frozen_tokens is 10, but no plan was published"):
        run(make_settings(order={"frozen_tokens": 10}))
    settings = make_settings()
    run(settings, "curated_output")
    sequences = load_results(settings.store.path).sequences["position"].max() + 1
    tokens = int(sequences) * settings.sequence.length
    with pytest.raises(InputError, match=f"frozen_tokens is {tokens + 1}.*has only {tokens} tokens"):
        run(make_settings(order={"frozen_tokens": tokens + 1}))


def test_the_beginning_of_another_sequence_length_is_refused(corpus: Path, make_settings: Make) -> None:
    run(make_settings(sequence={"length": 32}), "curated_output")
    with pytest.raises(InputError, match=r"sequence\.length was 32, is 64"):
        run(make_settings(sequence={"length": 64}, order={"frozen_tokens": 100}))
    run(make_settings(sequence={"length": 32}, order={"frozen_tokens": 100}), "curated_output")
    with pytest.raises(InputError, match=r"sequence\.length was 32, is 64"):
        run(make_settings(sequence={"length": 64}, order={"frozen_tokens": 100}))


@pytest.mark.parametrize(("method", "frozen"), [*((method, 0) for method in METHODS), ("best_fit", 200)])
def test_copies_go_to_different_sections_and_sequences(
    corpus: Path, make_settings: Make, method: str, frozen: int
) -> None:
    records = topic_records(240)
    write_jsonl(corpus, records + records[::4] + records[7:9] * 6)
    sections = {"packing": {"method": method}, "sequence": {"length": LENGTH, "batch": 8, "epochs": 2}}
    run(make_settings(**sections), *(["curated_output"] if frozen else []))
    settings = make_settings(**sections, order={"separate_copies": True, "frozen_tokens": frozen * LENGTH})
    packed, _ = run(settings)
    left = open_run(settings)
    texts, made = left.copies, load_sections(left)
    figures = left.receipt("sequence_order").figures["copies"]
    parts = len(made.stretch)
    assert parts >= 4
    times = np.bincount(texts[made.items])
    for first, last in pairwise(made.bounds):
        here = np.bincount(texts[made.items[first:last]], minlength=len(times))
        assert (here <= -(-times // parts)).all()
    begins = packed.start == 0
    sequence = np.repeat(np.arange(len(packed)), np.diff(packed.indptr))
    begun = [*zip(sequence[begins].tolist(), texts[packed.document[begins]].tolist(), strict=True)]
    new = [pair for pair in begun if pair[0] >= frozen]
    if method == "best_fit":
        assert len(set(new)) == len(new)
        assert figures["together"] == 0 or frozen
    assert figures["copies"] == len(texts) - len(set(texts.tolist()))
    assert figures["median_share"] > 0.9 or frozen


@pytest.mark.parametrize("method", ["concat", "none"])
def test_sequences_follow_a_score_also_behind_a_beginning(
    corpus: Path, make_settings: Make, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window is packed alone, so that the score of a sequence means something."""
    sections = {
        "sequence": {"length": LENGTH, "batch": 2},
        "packing": {"method": method},
        "curriculum": {"score": "score"},
    }
    monkeypatch.setattr(model, "window_share", lambda *_: 1 / 8)
    contents = []
    for frozen in (0, 200):
        settings = make_settings(**sections, order={"frozen_tokens": frozen * LENGTH})
        packed, orders = run(settings, "curated_output")
        rank = open_run(settings).arrays("scores", "scores")["rank"][packed.document]
        means = np.add.reduceat(rank * packed.length, packed.indptr[:-1]) / packed.tokens
        inside = np.repeat(means, np.diff(packed.indptr))
        spread, everywhere = (
            np.average((rank - middle) ** 2, weights=packed.length) ** 0.5 for middle in (inside, 0.5)
        )
        assert spread < 0.2 * everywhere
        assert (np.diff([part.mean() for part in np.array_split(means[orders[0]][:-1], 10)]) > 0.05).all()
        contents.append([held(packed, sequence) for sequence in orders[0][:200]])
    assert contents[0] == contents[1]
