"""Fields of the input: the user's own ids (`input.id_field`), where they are shown and what they leave alone; fields
inside objects (structs in Parquet), named by the way to them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_divorder import load_results, run_all
from dagster_divorder.corpus.find import find_files
from dagster_divorder.corpus.inputs import read_batches
from dagster_divorder.corpus.peek import first_records
from dagster_divorder.engine.progress import Silent
from dagster_divorder.pipeline.plan import make_plan
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.corpus.ids import record_names
from dagster_divorder.stages.output.ordering_report import PAGE
from dagster_divorder.store.state import Receipt
from tests.conftest import Notes, topic_records, write_jsonl
from tests.pipeline.runs import Make

READ = ("raw_docs", "ids")


def with_ids(per_topic: int = 15) -> list[dict[str, Any]]:
    return [{**record, "id": f"doc-{at}"} for at, record in enumerate(topic_records(per_topic))]


def write_json(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """As Python writes them, with whole numbers of any size."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def output_of(settings: Settings) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in settings.output.path.iterdir()}


def made_anew(receipts: dict[str, Receipt]) -> set[str]:
    return {stage for stage, receipt in receipts.items() if receipt.figures["new_documents"]}


@pytest.mark.usefixtures("undrawn")
def test_ids_are_shown_and_nothing_that_does_not_show_them_is_made_again(
    tmp_path: Path, make_settings: Make
) -> None:
    write_jsonl(tmp_path / "docs.jsonl", [*with_ids(), {"id": 7, "body": "no text"}])
    limit = {"max_reject_share": 0.5}
    without, named = make_settings(input=limit), make_settings(input={**limit, "id_field": "id"})
    stages = GRAPH.needed(without, "ordering_report")
    before = {stage: receipt.version for stage, receipt in run_all(without, Silent(), stages).items()}
    files = output_of(without)
    assert load_results(without.store.path).documents["id"].isna().all()

    planned = {stage.stage for stage in make_plan(GRAPH, named).stages if stage.scope != "nothing"}
    assert planned == {"ids", "curated_output"}
    receipts = run_all(named, Silent(), GRAPH.needed(named, "ordering_report"))
    assert made_anew(receipts) == {"ids", "curated_output", "ordering_report"}
    changed = {stage for stage in before if receipts[stage].version != before[stage]}
    assert changed == {"curated_output", "ordering_report"}
    assert load_results(named.store.path).documents["id"].tolist() == [f"doc-{at}" for at in range(60)]
    assert output_of(named).keys() == files.keys()
    other = {name for name in files if output_of(named)[name] != files[name]}
    assert other == {"curated_meta.json", PAGE}

    run_all(without, Silent(), stages)
    assert output_of(without) == files
    assert load_results(without.store.path).documents["id"].isna().all()


BIG = 2**60 + 1


NUMBERS = [BIG, BIG + 1, None], pd.array([BIG, BIG + 1, None], "Int64")
TEXTS = ["007", "7", ""], ["007", "7", ""]


@pytest.mark.parametrize(
    ("kind", "ids", "shown"),
    [
        ("jsonl", *NUMBERS),
        ("parquet", *NUMBERS),
        ("jsonl", *TEXTS),
        ("parquet", *TEXTS),
        ("jsonl", [7, "a", 2**64 - 1], ["7", "a", str(2**64 - 1)]),
        ("jsonl", [True, 1.5, "only"], [None, None, "only"]),
        ("jsonl", [2**64, -(2**70), 7], pd.array([None, None, 7], "Int64")),
        (
            "parquet",
            pa.array([2**64 - 1, 2**64 - 2, None], pa.uint64()),
            [str(2**64 - 1), str(2**64 - 2), None],
        ),
    ],
)
def test_ids_keep_their_type_and_every_digit(
    tmp_path: Path, make_settings: Make, kind: str, ids: list[Any], shown: Any
) -> None:
    records = [{"text": f"text {at}", "name": own} for at, own in enumerate(ids)]
    file = tmp_path / f"docs.{kind}"
    if kind == "jsonl":
        write_json(file, records)
    else:
        texts = [record["text"] for record in records]
        pq.write_table(pa.table({"text": texts, "name": ids}), file)
    settings = make_settings(input={"paths": [str(file)], "id_field": "name"}, clusters={"k": 1})
    run_all(settings, Silent(), GRAPH.needed(settings, "greedy_order"))
    documents = load_results(settings.store.path).documents
    expected = pd.Series(shown, dtype="str" if isinstance(shown, list) else "Int64")
    pd.testing.assert_series_equal(documents["id"], expected, check_names=False)
    run = open_run(settings)
    for at in range(3):
        unnamed = pd.isna(expected[at]) or expected[at] == ""
        shown = f"record_id {documents['record_id'][at]}" if unnamed else str(expected[at])
        assert record_names(run, np.array([at]), "record_id ") == [shown]


def test_what_is_amiss_with_ids_is_counted_and_said(tmp_path: Path, make_settings: Make) -> None:
    notes = Notes()
    records = with_ids()
    records[3]["id"], records[4]["id"] = None, "doc-5"
    del records[9]["id"]
    write_jsonl(tmp_path / "docs.jsonl", records)
    figures = run_all(make_settings(input={"id_field": "id"}), notes, READ)["ids"].figures
    assert (figures["records_without_id"], figures["repeated_ids"]) == (2, 1)
    assert "of 60 records 2 have no id in 'id', and 1 repeat the id of an earlier record" in notes.said


def test_a_column_of_the_whole_name_comes_first(tmp_path: Path) -> None:
    rows = [{"text": "a", "meta": {"source": "inner", "id": 1}, "meta.source": "column"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "docs.parquet")
    (batch,) = read_batches(tmp_path / "docs.parquet", None, fields=["meta.source"])
    assert batch.schema.names == ["meta", "meta.source"]
    found = find_files([str(tmp_path / "docs.parquet")])
    assert list(first_records([found], ["meta.source", "meta.id", "gone"])) == [
        {"meta.source": "column", "meta.id": 1, "gone": None}
    ]
    pq.write_table(pa.table({"text": ["a"], "source.x": ["b"]}), tmp_path / "docs.parquet")
    assert list(first_records([found], ["source.x"])) == [{"source.x": "b"}]
