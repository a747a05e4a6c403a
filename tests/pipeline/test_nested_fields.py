"""Fields inside objects (structs in Parquet), named by the way to them: all that a field can be named for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_divorder import load_results, run_all
from dagster_divorder.corpus.find import find_files
from dagster_divorder.corpus.inputs import read_batches
from dagster_divorder.corpus.peek import first_records
from dagster_divorder.engine.progress import Silent
from dagster_divorder.settings import Settings
from tests.conftest import topic_records, write_jsonl

Make = Callable[..., Settings]


def plain_records() -> list[dict[str, Any]]:
    return [{**record, "id": f"doc-{at}"} for at, record in enumerate(topic_records(12))]


def nested(record: dict[str, Any]) -> dict[str, Any]:
    meta = {"id": record["id"], "source": record["source"], "scores": {"score": record["score"]}}
    return {"doc": {"text": record["text"]}, "meta": meta, "checked": record["checked"]}


def write(folder: Path, kind: str, records: list[dict[str, Any]]) -> Path:
    file = folder / f"docs.{kind}"
    if kind == "jsonl":
        return write_jsonl(file, records)
    pq.write_table(pa.Table.from_pylist(records), file, row_group_size=17)
    return file


def orders(settings: Settings) -> dict[str, bytes]:
    names = ("order.npy", "packed_sequences.parquet", "sequence_order.npy")
    return {name: (settings.output.path / name).read_bytes() for name in names}


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_fields_inside_objects_do_what_plain_ones_do(tmp_path: Path, make_settings: Make, kind: str) -> None:
    """Text, ids, source, traits and mix."""
    fields = {"text": "doc.text", "id": "meta.id", "source": "meta.source", "score": "meta.scores.score"}
    made = []
    for inside in (False, True):
        name = {field: way if inside else field for field, way in fields.items()}
        records = [nested(record) for record in plain_records()] if inside else plain_records()
        folder = tmp_path / str(inside)
        folder.mkdir()
        settings = make_settings(
            input={
                "paths": [str(write(folder, kind, records))],
                "text_field": name["text"],
                "id_field": name["id"],
                "source_field": name["source"],
            },
            store={"path": folder / "store"},
            output={"path": folder / "out", "sidecars": ()},
            order={"traits": {"cluster": 1.0, name["score"]: 1.0}},
            mixing={"trait": name["source"], "weights": {"sea.example": 0.5, "rail.example": 0.5}},
        )
        run_all(settings, Silent())
        documents = load_results(settings.store.path).documents
        made.append(
            (orders(settings), documents.rename(columns={name["score"]: "score"}).drop(columns="record_id"))
        )
        assert {name["score"], "source"} <= {*documents.columns}
    (plain, frame), (inner, other) = made
    assert plain == inner
    assert other.pop("meta.source").tolist() == other["source"].tolist()
    assert frame.equals(other[frame.columns])
    assert frame["id"].tolist() == [f"doc-{at}" for at in range(48)]


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
