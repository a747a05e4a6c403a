"""Packed sequences and their order on real files: sections, phases of a mix, what follows a beginning that stays, parts
of a large corpus, epochs, copies apart, scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
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
from dagster_divorder.pipeline.run import Run, run_checks
from dagster_divorder.settings import Settings, model
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.mix.repeats import load_stream
from dagster_divorder.stages.order import bin_edges
from dagster_divorder.stages.order import sections as stage_sections
from dagster_divorder.stages.order import traits as traits_stage
from dagster_divorder.stages.order.greedy_order import load_order
from dagster_divorder.stages.order.packed_sequences import load_bounds, load_packed
from dagster_divorder.stages.order.sequence_order import load_sequence_order
from dagster_divorder.stages.order.traits import load_traits
from dagster_divorder.store.state import Receipt
from tests.conftest import Notes, changed, over, topic_records, write_jsonl
from tests.pipeline import runs
from tests.pipeline.runs import Make

Sequences = list[tuple[tuple[int, int, int], ...]]
LENGTH, BATCH = 64, 4
SEA, KITCHEN, GARDEN, RAIL = (f"{topic}.example" for topic in ("sea", "kitchen", "garden", "rail"))
EQUAL = dict.fromkeys((SEA, KITCHEN, GARDEN, RAIL), 0.25)
RECORDS = [{**record, "id": f"doc-{at}"} for at, record in enumerate(topic_records(60))]


@pytest.fixture
def make(make_settings: Make, tmp_path: Path) -> Make:
    write_jsonl(tmp_path / "docs.jsonl", RECORDS)

    def settings(**given: Any) -> Settings:
        base = {"input": {"id_field": "id"}, "sequence": {"length": LENGTH, "batch": BATCH}}
        return make_settings(**over(base, given))

    return settings


def ran(settings: Settings) -> tuple[Run, Sequences]:
    """A run to its output, whose checks of the orders pass, and its sequences in the order of the first epoch."""
    run = runs.ran(settings, "curated_output")
    for stage in ("greedy_order", "packed_sequences", "sequence_order"):
        for finding in run_checks(GRAPH, settings, stage=stage).values():
            assert finding.passed, finding.text
    return run, runs.sequences_of(run)[: len(load_packed(run))]


def tokens_of(sequences: Iterable[tuple[tuple[int, int, int], ...]]) -> Counter[str]:
    """Tokens of each source."""
    tokens: Counter[str] = Counter()
    for record, _, length in (run for sequence in sequences for run in sequence):
        tokens[RECORDS[record]["source"]] += length
    return tokens


PHASES = [
    {"until": 0.3, "weights": {SEA: 0.7, KITCHEN: 0.3}},
    {"until": 0.6, "weights": {SEA: 0.6, RAIL: 0.4}},
    {"weights": {SEA: 0.1, KITCHEN: 0.2, RAIL: 0.7}},
]


def test_phases_have_their_shares_and_go_on_where_values_were_read_to(make: Make) -> None:
    total, phases, trait = 15_000, PHASES, "source"
    run, _ = ran(make(mixing={"trait": trait, "phase": phases, "total_tokens": total}))
    traits, made, name = load_traits(run), load_order(run), run.settings.mixed_trait
    values, names = traits.codes[name], traits.names[name]
    whole, read = np.bincount(values, traits.tokens), np.zeros(len(names))
    times, ends = np.zeros(len(values), np.int64), [0.0, *(phase.get("until", 1.0) for phase in phases)]
    for number, phase in enumerate(phases):
        first, last = made.sections[np.searchsorted(made.stretch, [number, number + 1])]
        records = load_stream(run).record_of[made.items[first:last]]
        here = np.bincount(values[records], traits.tokens[records], len(names))
        for value, of_value in zip(names, here, strict=True):
            asked = (ends[number + 1] - ends[number]) * total * phase["weights"].get(value, 0.0)
            assert abs(of_value - asked) <= traits.tokens.max()
        read, times = read + here, times + np.bincount(records, minlength=len(times))
        for value in np.flatnonzero(read):
            # No record again before all of its value.
            full = int(read[value] / whole[value])
            assert set(times[values == value]) <= {full, full + 1}


@pytest.mark.parametrize("method", ["concat", "best_fit"])
def test_after_a_swap_of_weights_everything_unread_has_the_new_shares(make: Make, method: str) -> None:
    total, packing = 15_000, {"method": method}
    _, before = ran(make(mixing={"weights": EQUAL, "total_tokens": total}, packing=packing))
    n, new = len(before) // 2, {SEA: 0.7, RAIL: 0.3}
    order = {"frozen_tokens": n * LENGTH}
    run, now = ran(make(mixing={"weights": new, "total_tokens": total}, packing=packing, order=order))
    assert now[:n] == before[:n]
    rest, longest = tokens_of(now[n:]), load_traits(run).tokens.max()
    left = total - sum(tokens_of(now[:n]).values())
    assert rest.keys() == new.keys()
    assert all(abs(rest[source] - share * left) <= longest for source, share in new.items())
    # Each value goes on where it was read to.
    tokens, source = load_traits(run).tokens, np.array([record["source"] for record in RECORDS])
    read = np.bincount(
        *zip(*((record, length) for s in now for record, _, length in s), strict=True), minlength=len(tokens)
    )
    for of_source in new:
        epochs = tokens_of(now)[of_source] / tokens[source == of_source].sum()
        full = np.minimum(read / np.maximum(tokens, 1), 99)[source == of_source]
        assert full.min() >= int(epochs) and full.max() <= int(epochs) + 1
    begun = {record for s in now[:n] for record, _, _ in s if source[record] not in new}
    rests = sum(read[record] < tokens[record] for record in begun)
    assert 0 < rests <= run.receipt("greedy_order").figures["left_out_rests"]


def test_after_a_beginning_and_an_append_no_two_batches_stray_farther_than_without(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing makes up for what a trainer has read without a new source."""
    # Bins of many records each, as in a corpus of some size.
    for module in (bin_edges, traits_stage):
        monkeypatch.setattr(module, "BINS", 5)
    traits = {"cluster": 1.0, "length": 1.0, "source": 1.0}
    write_jsonl(tmp_path / "docs.jsonl", RECORDS[:180])
    _, before = ran(make(order={"traits": traits}))
    n = len(before) // 2
    write_jsonl(tmp_path / "docs.jsonl", RECORDS)
    run, now = ran(make(order={"traits": traits, "frozen_tokens": n * LENGTH}))
    assert now[:n] == before[:n]
    assert load_bounds(run)[1].tolist() == [0, n, len(now)]
    _, whole = ran(make(order={"traits": traits, "frozen_tokens": 0}))

    def farthest(sequences: Sequences) -> float:
        asked, size = tokens_of(sequences), sum(tokens_of(sequences).values())
        batches = [tokens_of(sequences[at : at + 8]) for at in range(0, len(sequences) - 8, 8)]
        return max(
            sum(abs(batch[name] / sum(batch.values()) - of / size) for name, of in asked.items()) / 2
            for batch in batches
        )

    assert farthest(now[n:]) <= farthest(whole)


@pytest.mark.parametrize(
    "packing",
    [
        {"method": "cluster_packed"},
        {"method": "concat", "end_of_text": True},
        {"method": "none"},
    ],
    ids=str,
)
def test_a_large_corpus_is_ordered_in_parts_of_its_own_mix(
    make: Make, packing: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_sections, "FEWEST_SEQUENCES", 1)
    monkeypatch.setattr(stage_sections, "SECTION_RECORDS", 60)
    run, _ = ran(make(packing=packing, sequence={"epochs": 2}))
    made, traits = load_order(run), load_traits(run)
    assert (len(made.stretch), made.stretch.max()) == (4, 0)
    parts = [made.items[first:last] for first, last in pairwise(made.sections)]
    mixes = [
        np.bincount(traits.codes["cluster"][of], traits.tokens[of]) / traits.tokens[of].sum() for of in parts
    ]
    assert np.ptp(mixes, axis=0).max() < 0.03
    packed, orders = load_packed(run), load_sequence_order(run)
    for epoch in orders:
        for first, last in pairwise(load_bounds(run)[0]):
            assert sorted(epoch[first:last]) == list(range(first, last))
    if packing["method"] != "none":
        assert (packed.padding[:-1] == 0).all() and (orders[:, -1] == len(packed) - 1).all()


@pytest.mark.cluster
def test_processes_do_not_change_the_result(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_sections, "WORKER_RECORDS", 1)
    monkeypatch.setattr(stage_sections, "FEWEST_SEQUENCES", 1)
    monkeypatch.setattr(stage_sections, "SECTION_RECORDS", 60)
    found = []
    for workers in (1, 2):
        store, output = {"path": tmp_path / f"store{workers}"}, {"path": tmp_path / f"out{workers}"}
        own = {"engine": {"workers": workers}, "store": store, "output": output}
        run, sequences = ran(make(**own))
        found.append((load_order(run).order.tolist(), sequences))
    assert found[0] == found[1]


def test_the_most_repeats_hold_over_all_phases(make: Make) -> None:
    with pytest.raises(InputError, match="max_repeats"):
        run_all(make(mixing={"phase": PHASES, "max_repeats": 1}), Silent())


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "docs.jsonl", topic_records(120))


def run(settings: Settings, *stages: str) -> tuple[PackedSequences, np.ndarray]:
    """The plan and the orders that a run leaves, as far as the order of the sequences or stages after it."""
    run_all(settings, Silent(), GRAPH.needed(settings, "sequence_order", *stages))
    left = open_run(settings)
    return load_packed(left), load_sequence_order(left)


def test_the_plan_is_in_the_output_and_in_the_results(corpus: Path, make_settings: Make) -> None:
    settings = make_settings(sequence={"length": LENGTH, "epochs": 2})
    packed, orders = run(settings, "curated_output")
    assert orders.shape == (2, len(packed)) and not np.array_equal(*orders)
    assert np.array_equal(np.load(settings.output.path / "sequence_order.npy"), orders)
    frame = load_results(settings.store.path).sequences
    assert frame["sequence"].drop_duplicates().tolist() == orders[0].tolist()
    assert frame["position"].is_monotonic_increasing
    first = frame[frame["position"] == 0][["document", "start", "length"]]
    assert list(first.itertuples(index=False, name=None)) == [*runs.sequences_of(open_run(settings))[0]]
    # No more can be frozen than there is.
    tokens = len(packed) * LENGTH
    with pytest.raises(InputError, match=f"frozen_tokens is {tokens + 1}.*has only {tokens} tokens"):
        run(changed(settings, order={"frozen_tokens": tokens + 1}))


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
        contents.append(runs.sequences_of(open_run(settings))[:200])
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
