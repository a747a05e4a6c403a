"""Parquet as it comes: other schemas, no rows, rows without text, bytes that are no text, damaged files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.bad_input.conftest import Outcome
from tests.conftest import topic_records

Divorder = Callable[..., Outcome]
TABLE = pa.Table.from_pylist(topic_records(5))


def write(folder: Path, name: str, table: pa.Table) -> Path:
    path = folder / "in" / name
    pq.write_table(table, path)
    return path


def output(outcome: Outcome) -> pa.Table:
    return pq.ParquetFile(outcome.output / "curated.parquet").read()


def test_a_file_without_rows_sets_the_schema_too(tmp_path: Path, divorder: Divorder) -> None:
    write(tmp_path, "a.parquet", TABLE.slice(0, 0))
    write(tmp_path, "b.parquet", TABLE)
    assert divorder().counts["records"] == 20
    path = write(tmp_path, "c.parquet", TABLE.drop_columns(["score"]))
    assert f"{path} has other columns" in divorder().error


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"body": pa.array([], pa.string())}), "no column 'text'; the columns are body"),
        (pa.table({"text": pa.array([None, ""], pa.string())}), "all 2 were refused, the first: "),
        (pa.Table.from_arrays([pa.array(["a"])] * 2, ["text", "text"]), "several columns are called 'text'"),
        (pa.table({}), "no column 'text'"),
    ],
    ids=["no text", "refused", "twice", "nothing"],
)
def test_a_table_without_usable_text_is_an_error(
    tmp_path: Path, divorder: Divorder, table: pa.Table, message: str
) -> None:
    path = write(tmp_path, "docs.parquet", table)
    outcome = divorder()
    assert (outcome.status, outcome.output.exists()) == (1, False)
    assert message in outcome.error and str(path) in outcome.error


def test_rows_without_text_are_refused(tmp_path: Path, divorder: Divorder) -> None:
    table = pa.table({"text": ["good", None, ""], "name": ["n0", "n1", "n2"], "tags": [["x"]] * 3})
    path = write(tmp_path, "docs.parquet", table)
    outcome = divorder()
    assert outcome.status == 0
    assert [(reject["row"], reject["reason"]) for reject in outcome.rejects] == [
        (2, "null text"),
        (3, "empty text"),
    ]
    assert {reject["path"] for reject in outcome.rejects} == {str(path)}
    assert orjson.loads(outcome.rejects[1]["raw"]) == {"text": "", "name": "n2", "tags": ["x"]}
    assert output(outcome).to_pylist() == [{"text": "good", "name": "n0", "tags": ["x"]}]


@pytest.mark.parametrize(
    "of", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())], ids=str
)
def test_every_kind_of_string_column_is_text_and_comes_out_as_it_was(
    tmp_path: Path, divorder: Divorder, of: pa.DataType
) -> None:
    table = pa.table({"text": TABLE["text"].cast(of), "source": TABLE["source"].cast(of)})
    path = write(tmp_path, "docs.parquet", table)
    outcome = divorder("order.traits = { cluster = 1.0, source = 1.0 }", 'input.source_field = "source"')
    assert outcome.status == 0
    order = np.load(outcome.output / "order.npy")
    expected = pa.Table.from_pylist(pq.read_table(path).to_pylist(), output(outcome).schema)
    assert output(outcome).equals(expected.take(pa.array(order)))
