"""The stage `repeats`: every record as often as planned in all that follows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow.parquet as pq
import pytest

from dagster_divorder import load_results, run_all, where
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import InputError, SettingsError
from dagster_divorder.pipeline.plan import make_plan
from dagster_divorder.pipeline.run import Run, run_checks
from dagster_divorder.settings import Settings, load_settings
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.state import load_receipt
from dagster_divorder.torch import SequenceDataset
from tests.conftest import topic_records, write_jsonl

Make = Callable[..., Settings]
MIX = {"sea.example": 0.5, "kitchen.example": 0.3, "rail.example": 0.2}
"""Some more than once, one not at all."""


@pytest.fixture
def mixed(tmp_path: Path, make_settings: Make) -> Settings:
    records = [{**record, "id": f"doc-{at}"} for at, record in enumerate(topic_records(30))]
    records.append(records[5])
    write_jsonl(tmp_path / "docs.jsonl", records)
    return make_settings(
        input={"id_field": "id", "source_field": "source"},
        mixing={"weights": MIX},
        sequence={"length": 64, "batch": 8, "epochs": 2},
        exports={"formats": ("parquet", "olmo"), "path": tmp_path / "exports"},
    )


def ran(settings: Settings, *stages: str) -> Run:
    run_all(settings, Silent(), GRAPH.needed(settings, *stages))
    return open_run(settings)


def test_every_record_is_everywhere_as_often_as_it_is_planned(mixed: Settings) -> None:
    run = ran(mixed)
    documents = load_results(mixed.store.path).documents
    times = documents["repeats"].to_numpy()
    by_source = (documents.tokens * documents.repeats).groupby(documents.source).sum()
    assert by_source["garden.example"] == 0
    there_is = documents.tokens[documents.source != "garden.example"].sum()
    assert abs(by_source.sum() - there_is) <= 3 * documents.tokens.max()
    shares = by_source / by_source.sum()
    for name, share in MIX.items():
        assert abs(shares[name] - share) * by_source.sum() <= documents.tokens[documents.source == name].max()
    assert times.max() >= 2

    out = mixed.output.path
    order = np.load(out / "order.npy")
    assert np.bincount(order, minlength=len(times)).tolist() == times.tolist()
    assert (documents.position[times == 0] == -1).all()
    assert [order[at] for at in documents.position[times > 0]] == np.flatnonzero(times).tolist()
    written = [orjson.loads(line)["id"] for line in (out / "curated.jsonl").read_bytes().splitlines()]
    assert written == documents.id.to_numpy()[order].tolist()

    # The plan that is written, what notebooks and `where` see: the tokens of each document as often as planned.
    expected = (documents.tokens * documents.repeats).to_numpy()
    plan = pq.read_table(out / "packed_sequences.parquet").to_pandas()
    for of in (plan, load_results(mixed.store.path).sequences):
        assert np.bincount(of.document, of.length, len(times)).tolist() == expected.tolist()
    steps = range(-(-2 * (plan.sequence.max() + 1) // 8))
    read = where(mixed, steps=steps).groupby("id").tokens.sum()
    twice = Counter()
    for name, tokens in zip(documents.id, 2 * expected, strict=True):
        twice[name] += int(tokens)
    assert read.to_dict() == {name: tokens for name, tokens in twice.items() if tokens}
    assert where(mixed, ids=["doc-3"]).tokens.sum() == twice["doc-3"]

    # And what a trainer reads.
    stored, exported = Counter[int](), Counter[int]()
    for count, ids in zip(times.tolist(), token_ids(run), strict=True):
        stored.update({token: 2 * count * number for token, number in Counter(ids).items() if count})
    dataset = SequenceDataset(mixed.exports.path / "parquet")
    for row in range(len(dataset)):
        exported.update(dataset[row]["input_ids"].reshape(-1).tolist())
    padding = exported.total() - stored.total()
    assert 0 <= padding < 2 * 64
    assert (exported - stored).total() == padding
    assert not stored - exported

    findings = run_checks(GRAPH, mixed)
    assert all(finding.passed for name, finding in findings.items() if name not in OPINIONS), findings
    assert {stage.scope for stage in make_plan(GRAPH, mixed).stages} == {"nothing"}


OPINIONS = (
    "order_beats_shuffling",
    "nothing_drifts",
    "clusters_not_degenerate",
)
"""Checks that a corpus so small may fail."""


def token_ids(run: Run) -> list[list[int]]:
    """Of every record."""
    rows: list[list[int]] = []
    for _, arrays in run.files("token_counts").each(list(run.view.fragments)):
        ends = np.cumsum(arrays["lengths"])
        rows += [part.tolist() for part in np.split(arrays["ids"], ends[:-1])]
    return rows


def test_a_value_that_is_left_out_is_refused_with_what_leaves_it_out(
    tmp_path: Path, make_settings: Make
) -> None:
    write_jsonl(tmp_path / "docs.jsonl", sourced(0, 40))

    def says(**sections: Any) -> str:
        with pytest.raises(InputError) as caught:
            run_all(make_settings(input={"source_field": "source"}, **sections), Silent())
        return str(caught.value)

    chosen = {"method": "random", "tokens": 60}
    said = says(mixing={"weights": {"a": 1.0, "b": 1.0}}, selection=chosen)
    assert "mixing.weights names '" in said
    assert "held out, not selected, cut, or empty; expected some of" in said


def test_a_mix_is_refused_where_its_settings_say_nothing(tmp_path: Path) -> None:
    file = tmp_path / "divorder.toml"
    for text, said in (
        ("[mixing]\ntotal_tokens = 5", "set mixing.weights"),
        ('[mixing]\nweights = "unimax"', "set mixing.max_repeats"),
    ):
        file.write_text(text)
        with pytest.raises(SettingsError, match=said):
            load_settings(file, environ={})
    file.write_text("")
    table = load_settings(file, environ={"DIVORDER_MIXING__WEIGHTS": '{"web": 0.5}'})
    assert table.mixing.weights == {"web": 0.5}
    assert table.order.traits == {"cluster": 1.0, "length": 1.0, "source": 1.0}
    assert load_settings(file, environ={"DIVORDER_MIXING__WEIGHTS": "sqrt"}).mixing.weights == "sqrt"


def sourced(first: int, count: int) -> list[dict[str, Any]]:
    """Records of two sources, of many lengths, in order."""
    records = topic_records(-(-(first + count) // 4))
    for at, record in enumerate(records):
        record |= {"text": record["text"] + f" {at}" * (at % 13), "source": "ab"[at % 3 > 0]}
    return records[first : first + count]


@pytest.mark.slow
def test_what_is_consumed_of_a_mix_stays_whatever_the_input_becomes(
    tmp_path: Path, make_settings: Make
) -> None:
    options: dict[str, Any] = {
        "mixing": {"weights": {"a": 0.2, "b": 0.8}},
        "selection": {"method": "random", "tokens": 2_000},
    }
    records, file, length = sourced(0, 120), tmp_path / "docs.jsonl", 64

    def run(records: list[dict[str, Any]], frozen: int, **changed: Any) -> tuple[list[str], list[str]]:
        """(the documents in order, those that a trainer reads in its first `frozen` tokens, by sequence)."""
        write_jsonl(file, records)
        order = {"traits": {"cluster": 1.0, "length": 1.0}, "frozen_tokens": frozen}
        settings = make_settings(
            input={"paths": [str(file)], "source_field": "source"},
            order=order,
            sequence={"length": length, "batch": 4},
            **(options | changed),
        )
        done = ran(settings)
        for stage in ("greedy_order", "sequence_order"):
            assert all(finding.passed for finding in run_checks(GRAPH, settings, stage=stage).values())
        text = np.array([record["text"] for record in records], object)
        plan = pq.read_table(settings.output.path / "packed_sequences.parquet").to_pandas()
        order = np.load(settings.output.path / "sequence_order.npy")[0]
        by_sequence = plan.groupby("sequence").document.apply(list)
        read = [document for sequence in order[: frozen // length] for document in by_sequence[sequence]]
        assert len(load_results(done.settings.store.path).documents) == len(records)
        return text[np.load(settings.output.path / "order.npy")].tolist(), text[read].tolist()

    frozen = 6 * length
    run(records, 0)
    order, read = run(records, frozen)
    consumed = load_consumed(make_settings)
    for changed in (records[::-1], records[40:] + records[:40] + sourced(120, 30)):
        after, read_after = run(changed, frozen)
        assert after[:consumed] == order[:consumed]
        assert read_after == read
    # A mix that gives what is consumed less than it has keeps that, and nothing else of it.
    after, read_after = run(records, frozen, mixing={"weights": {"b": 1.0}, "total_tokens": 1800})
    assert (after[:consumed], read_after) == (order[:consumed], read)
    sources = {record["text"]: record["source"] for record in records}
    assert {text for text in after if sources[text] == "a"} <= {*order[:consumed], *read}
    # What is gone is said.
    rest = [record for record in records if record["text"] != order[0]]
    with pytest.raises(InputError, match=r"1 of the .* consumed records .* no longer in the input"):
        run(rest, frozen)


def load_consumed(make_settings: Make) -> int:
    store = make_settings().store.path
    receipt = load_receipt(LocalStore(store).open(), "greedy_order")
    assert receipt is not None
    return int(receipt.figures["frozen_documents"])
