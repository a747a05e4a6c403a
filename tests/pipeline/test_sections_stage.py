"""Sections through the pipeline: phases of a mix, what follows a beginning that stays, copies apart, epochs packed
anew."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagster_divorder import run_all
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import InputError, SettingsError
from dagster_divorder.pipeline.checks import run_checks
from dagster_divorder.pipeline.run import Run
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.mix.repeats import load_stream
from dagster_divorder.stages.order.greedy_order import load_sections
from dagster_divorder.stages.order.packed_sequences import load_bounds, load_packed
from dagster_divorder.stages.order.sequence_order import load_sequence_order
from tests.conftest import topic_records, write_jsonl

Make = Callable[..., Settings]
LENGTH, BATCH = 64, 4
SEA, KITCHEN, GARDEN, RAIL = (f"{topic}.example" for topic in ("sea", "kitchen", "garden", "rail"))
EQUAL = dict.fromkeys((SEA, KITCHEN, GARDEN, RAIL), 0.25)
RECORDS = topic_records(60)


@pytest.fixture
def make(make_settings: Make, tmp_path: Path) -> Make:
    write_jsonl(tmp_path / "docs.jsonl", RECORDS)

    def settings(**sections: Any) -> Settings:
        given = {"input": {"source_field": "source"}, "sequence": {"length": LENGTH, "batch": BATCH}}
        for name, section in sections.items():
            given[name] = {**given.get(name, {}), **section}
        return make_settings(**{"input": {}, **given})

    return settings


def ran(settings: Settings) -> Run:
    """A run to its output, whose blocking checks pass."""
    run_all(settings, Silent(), GRAPH.needed(settings, "curated_output"))
    for stage in ("greedy_order", "packed_sequences", "sequence_order"):
        findings = run_checks(GRAPH, settings, stage=stage)
        assert all(finding.passed for finding in findings.values()), findings
    return open_run(settings)


def sequences(run: Run) -> list[list[tuple[int, int, int]]]:
    """The sequences in the order of the first epoch: (record, start, length) of each of their runs."""
    packed, stream = load_packed(run), load_stream(run)
    columns = (stream.record(packed.document), packed.start, packed.length)
    runs = list(zip(*(column.tolist() for column in columns), strict=True))
    return [runs[packed.indptr[at] : packed.indptr[at + 1]] for at in load_sequence_order(run)[0]]


def tokens_of_sources(run: Run, read: list[list[tuple[int, int, int]]]) -> dict[str, int]:
    """Tokens of each source in sequences."""
    traits = load_stream(run).traits
    of_record = dict(zip(load_stream(run).record(np.arange(len(traits.tokens))).tolist(), traits.codes["source"], strict=True))
    tokens = dict.fromkeys(traits.names["source"], 0)
    for record, _, length in (entry for sequence in read for entry in sequence):
        tokens[traits.names["source"][of_record[record]]] += length
    return tokens


def total(run: Run) -> int:
    return int(load_packed(run).length.sum())


def frozen(beginning: Run, sequences: int = 0) -> int:
    """The tokens of a beginning of a plan, by default of half its sequences."""
    return LENGTH * (sequences or len(load_packed(beginning)) // 2)


PHASES = [
    {"until": 0.3, "weights": {SEA: 0.7, KITCHEN: 0.3}},
    {"until": 0.6, "weights": {SEA: 0.6, RAIL: 0.4}},
    {"weights": {SEA: 0.1, KITCHEN: 0.2, RAIL: 0.7}},
]


@pytest.mark.parametrize("trait", ["source", ("source", "checked")], ids=["source", "crossed"])
def test_phases_have_their_shares_and_values_go_on_where_they_were_read_to(make: Make, trait: Any) -> None:
    phases = PHASES
    if trait != "source":
        phases = [
            {**phase, "weights": {f"{name} / false": share for name, share in phase["weights"].items()}}
            for phase in PHASES
        ]
    run = ran(make(mixing={"trait": trait, "phase": phases, "total_tokens": 15_000}))
    stream, made = load_stream(run), load_sections(run)
    traits, name = stream.traits, run.settings.mixed_trait
    longest, size = traits.tokens.max(), np.bincount(traits.codes[name], minlength=len(traits.names[name]))
    times, read, done = np.zeros(len(run.view), np.int64), np.zeros(len(size)), 0.0
    values = np.zeros(len(run.view), np.int64)
    values[stream.records] = traits.codes[name]
    tokens = np.zeros(len(run.view), np.int64)
    tokens[stream.records] = traits.tokens
    whole = np.bincount(values, tokens, len(size))
    for number, phase in enumerate(phases):
        first, last = np.searchsorted(made.stretch, [number, number + 1])
        items = made.items[made.bounds[first] : made.bounds[last]]
        asked = (phase.get("until", 1.0) - done) * 15_000
        done = phase.get("until", 1.0)
        here = np.bincount(traits.codes[name][items], traits.tokens[items], len(size))
        for value, tokens_read in zip(traits.names[name], here, strict=True):
            assert abs(tokens_read - asked * phase["weights"].get(value, 0.0)) <= longest
        read += here
        times += np.bincount(stream.records[items], minlength=len(times))
        for value in np.flatnonzero(read):
            epochs = read[value] / whole[value]
            assert set(times[(values == value) & (tokens > 0)]) <= {int(epochs), int(epochs) + 1}
