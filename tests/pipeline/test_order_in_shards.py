"""A corpus that is ordered in shards: every document and token once, the mix of the whole in each."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagster_divorder import load_results, run_all
from dagster_divorder.core.packing import FILLED
from dagster_divorder.core.packing.coverage import coverage
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.run import Run
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.order.greedy_order import load_order, load_shards
from dagster_divorder.stages.order.packed_sequences import load_packed
from dagster_divorder.stages.order.sequence_order import load_sequence_order
from dagster_divorder.stages.order.traits import load_traits
from dagster_divorder.stages.output import shards
from tests.conftest import topic_records, write_jsonl

Make = Callable[..., Settings]
RECORDS, SHARDS = 361, 4
"""The last record repeats the first one's text."""


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    records = topic_records(90)
    return write_jsonl(tmp_path / "docs.jsonl", [*records, {**records[0], "source": "again"}])


def ran(settings: Settings, *stages: str) -> Run:
    run_all(settings, Silent(), GRAPH.needed(settings, "sequence_order", *stages))
    return open_run(settings)


@pytest.mark.parametrize(
    ("packing", "others"),
    [
        ({"method": "concat"}, {"sequence": {"length": 64, "batch": 4, "epochs": 2}}),
        ({"method": "best_fit"}, {"order": {"shards_of": 100, "separate_copies": True}}),
        ({"method": "related"}, {"order": {"shards_of": 100, "strategy": "stratified"}}),
        (
            {"method": "concat", "piece_tokens": 20, "end_of_text": True},
            {"order": {"shards_of": 100, "separate_copies": True}},
        ),
        ({"method": "none"}, {"order": {"shards_of": 100, "separate_copies": True}}),
    ],
    ids=["concat, epochs", "best_fit, copies", "related, stratified", "pieces, copies", "none, copies"],
)
def test_every_document_and_token_comes_once_and_one_sequence_is_not_full(
    corpus: Path, make_settings: Make, packing: dict[str, Any], others: dict[str, Any]
) -> None:
    base = {"order": {"shards_of": 100}, "sequence": {"length": 64, "batch": 4}}
    run = ran(make_settings(**base | others, packing=packing))
    order, packed, orders = load_order(run), load_packed(run), load_sequence_order(run)
    assert sorted(order.tolist()) == list(range(RECORDS))
    bounds = [0, *load_shards(run).tolist(), RECORDS]
    assert len(bounds) == SHARDS + 1
    assert max(np.diff(bounds)) == -(-RECORDS // SHARDS)

    lengths = load_results(run.settings.store.path).documents["tokens"].to_numpy()
    assert coverage(packed, lengths + packing.get("end_of_text", False)).exact
    ends = [0, *packed.shards.tolist(), len(packed)]
    for epoch in orders:
        assert len(ends) == SHARDS + 1
        for begin, end in pairwise(ends):
            assert sorted(epoch[begin:end].tolist()) == list(range(begin, end))
    if packing["method"] in FILLED:
        assert (packed.padding[:-1] == 0).all()
        assert (orders[:, -1] == len(packed) - 1).all()


def test_shards_have_the_mix_of_the_whole_and_copies_are_apart(corpus: Path, make_settings: Make) -> None:
    run = ran(make_settings(order={"shards_of": 100, "separate_copies": True}, sequence={"length": 64}))
    traits, order = load_traits(run), load_order(run)
    labels, tokens = traits.codes["cluster"], traits.tokens
    whole = np.bincount(labels, tokens) / tokens.sum()
    for part in np.split(order, load_shards(run)):
        mix = np.bincount(labels[part], tokens[part], len(whole)) / tokens[part].sum()
        # A document is 1 % of a shard.
        assert np.abs(mix - whole).max() < 0.02
    copies = np.searchsorted(load_shards(run), np.flatnonzero(np.isin(order, [0, RECORDS - 1])), side="right")
    assert copies[1] - copies[0] == 2, "half an epoch apart"


def test_within_orders_every_shard(corpus: Path, make_settings: Make) -> None:
    shards = []
    for within in (1.0, 0.0):
        run = ran(make_settings(order={"shards_of": 100, "within": within}, sequence={"length": 64}))
        shards.append(np.split(load_order(run), load_shards(run)))
    for one, other in zip(*shards, strict=True):
        assert np.array_equal(np.sort(one), np.sort(other))
        assert not np.array_equal(one, other)


def test_what_looks_at_no_trait_is_one_order(corpus: Path, make_settings: Make) -> None:
    run = ran(make_settings(order={"shards_of": 100, "strategy": "original"}, sequence={"length": 64}))
    assert load_order(run).tolist() == list(range(RECORDS))
    assert not len(load_shards(run))


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (
            {"targets": {"cluster": {"progress": (0.0, 1.0), "0": (0.7, 0.2)}}},
            "order.targets moves cluster, and order.shards_of = 100 makes 4 shards of 361 records.*to 361 or more",
        ),
        (
            {"most": 3},
            "order.shards_of = 100 makes 4 shards of 361 records; expected at most 3 shards.*to 121",
        ),
    ],
    ids=["targets", "too many"],
)
def test_what_shards_cannot_do_is_refused(
    corpus: Path,
    make_settings: Make,
    monkeypatch: pytest.MonkeyPatch,
    order: dict[str, Any],
    message: str,
) -> None:
    monkeypatch.setattr(shards, "MOST_SHARDS", order.pop("most", 4096))
    with pytest.raises(InputError, match=message):
        run_all(make_settings(order={"shards_of": 100, **order}), Silent())


@pytest.mark.cluster
def test_processes_do_not_change_the_result(
    corpus: Path, make_settings: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    orders = {}
    for workers in (1, 2):
        monkeypatch.setattr(shards, "WORKER_RECORDS", 1)
        settings = make_settings(
            order={"shards_of": 100, "separate_copies": True},
            sequence={"length": 64},
            engine={"workers": workers},
            store={"path": tmp_path / f"store{workers}"},
            output={"path": tmp_path / f"out{workers}"},
        )
        run = ran(settings)
        orders[workers] = [run.receipt(stage).version for stage in ("greedy_order", "packed_sequences")] + [
            load_sequence_order(run).tolist()
        ]
    assert orders[1] == orders[2]
