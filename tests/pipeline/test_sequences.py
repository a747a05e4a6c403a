"""Packed sequences and their order on real files: consumed beginnings kept, epochs, copies apart."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_divorder import load_results, run_all
from dagster_divorder.core.packing import METHODS, PackedSequences
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import DivOrderError, InputError
from dagster_divorder.settings import Settings, model
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.order.greedy_order import load_order
from dagster_divorder.stages.order.packed_sequences import load_packed
from dagster_divorder.stages.order.sequence_order import load_sequence_order
from dagster_divorder.store.state import Receipt
from tests.conftest import Notes, topic_records, write_jsonl
from tests.pipeline.runs import Make

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


def test_no_more_can_be_frozen_than_there_was(corpus: Path, make_settings: Make) -> None:
    settings = make_settings()
    packed, _ = run(settings, "curated_output")
    tokens = len(packed) * settings.sequence.length
    with pytest.raises(InputError, match=f"frozen_tokens is {tokens + 1}.*has only {tokens} tokens"):
        run(make_settings(order={"frozen_tokens": tokens + 1}))


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
    texts, made = left.copies, load_order(left)
    figures = left.receipt("sequence_order").figures["copies"]
    parts = len(made.stretch)
    assert parts >= 4
    times = np.bincount(texts[made.items])
    for first, last in pairwise(made.sections):
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


def scored(values: list[Any], make_settings: Make, folder: Path) -> tuple[Receipt, list[str]]:
    """A run on 40 Parquet records with these values in the field that the order follows, and its notes."""
    texts = [record["text"] for record in topic_records(10)]
    pq.write_table(pa.table({"text": texts, "q": values}), folder / "docs.parquet")
    paths, notes = {"paths": [str(folder / "docs.parquet")]}, Notes()
    settings = make_settings(input=paths, curriculum={"score": "q"})
    return run_all(settings, notes, GRAPH.needed(settings, "scores"))["scores"], notes.said


@pytest.mark.usefixtures("small_fragments")
def test_infinite_and_missing_scores_are_counted_and_said(make_settings: Make, tmp_path: Path) -> None:
    values: list[Any] = [float(at) for at in range(40)]
    values[3:7] = [float("inf"), float("-inf"), float("nan"), None]
    receipt, notes = scored(values, make_settings, tmp_path)
    figures = receipt.figures
    assert (figures["missing"], figures["lowest"], figures["highest"]) == (4, 0, 39)
    assert "2 records have an infinite q: these count as missing" in notes
    assert figures["notes"][0] == (
        "The order follows q: 36 of 40 records have one, from 0 to 39, 36 different; "
        "the 4 others are spread evenly"
    )
    for useless, said in (
        ([(1 << 60) + at for at in range(40)], "in every record; expected scores that differ"),
        ([float("nan")] * 40, "40 of 40 records have no 'q'"),
    ):
        with pytest.raises(DivOrderError, match=said):
            scored(useless, make_settings, tmp_path)
