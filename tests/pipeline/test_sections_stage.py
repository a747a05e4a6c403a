"""Sections through the pipeline: phases of a mix, what follows a beginning that stays, parts of a large corpus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagster_divorder import run_all
from dagster_divorder.core.order import sections
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.run import Run, run_checks
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.mix.repeats import load_stream
from dagster_divorder.stages.order import bin_edges
from dagster_divorder.stages.order import sections as stage_sections
from dagster_divorder.stages.order import traits as traits_stage
from dagster_divorder.stages.order.greedy_order import load_order
from dagster_divorder.stages.order.packed_sequences import load_bounds, load_packed
from dagster_divorder.stages.order.sequence_order import load_sequence_order
from dagster_divorder.stages.order.traits import load_traits
from dagster_divorder.store.state import load_receipt
from tests.conftest import over, topic_records, write_jsonl
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


def tokens_of(
    sequences: Iterable[tuple[tuple[int, int, int], ...]], records: list[Any] = RECORDS
) -> Counter[str]:
    """Tokens of each source."""
    tokens: Counter[str] = Counter()
    for record, _, length in (run for sequence in sequences for run in sequence):
        tokens[records[record]["source"]] += length
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


@pytest.mark.parametrize("mixing", [{}, {"weights": EQUAL}], ids=["plain", "mixed"])
def test_what_is_cut_is_not_read_behind_the_beginning(make: Make, mixing: dict[str, Any]) -> None:
    _, before = ran(make(mixing=mixing))
    n = len(before) // 3
    read, unread = ({record for s in part for record, _, _ in s} for part in (before[:n], before[n:]))
    cut = [min(read & unread), *sorted(unread - read)[:5]]
    order = {"frozen_tokens": n * LENGTH, "cut": [f"doc-{record}" for record in cut]}
    _, now = ran(make(mixing=mixing, order=order))
    assert now[:n] == before[:n]
    assert not {record for s in now[n:] for record, _, _ in s} & set(cut)


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


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mixing": {"phase": [{"until": 1e-9, "weights": EQUAL}, PHASES[2]]}},
         r"phase 1 of mixing ends at 0 tokens; expected more than 0.*change its end, or mixing.total_tokens"),
        ({"mixing": {"phase": [{"until": 0.5, "weights": {"web": 1.0}}, {"weights": "natural"}]}}, "web"),
        ({"mixing": {"phase": PHASES, "max_repeats": 1}}, r"max_repeats"),
        ({"order": {"frozen_tokens": 10**6}, "mixing": {"phase": PHASES}}, "no plan was published"),
        ({}, r"240 records make 4 sections of at most 60; expected at most 3 sections: 180 records"),
    ],
    ids=["a phase of no token", "no such value", "max_repeats over all phases", "no plan", "too many sections"],
)  # fmt: skip
def test_what_makes_no_sections_is_refused(
    make: Make, given: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sections, "MOST_PARTS", 3)
    monkeypatch.setattr(stage_sections, "FEWEST_SEQUENCES", 1)
    monkeypatch.setattr(stage_sections, "SECTION_RECORDS", 60 if "240" in said else 10**7)
    with pytest.raises(InputError, match=said):
        run_all(make(**given), Silent())
    assert load_receipt(open_run(make(**given)).store, "greedy_order") is None
