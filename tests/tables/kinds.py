"""The same rows as every kind of table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

Rows = list[dict[str, Any]]


def _dataset(rows: Rows) -> Any:
    datasets = __import__("pytest").importorskip("datasets")
    # Rows in another order on disk, read through indices, in the format of a trainer.
    backwards = datasets.Dataset(pa.Table.from_pylist(rows[::-1]))
    return backwards.select(range(len(rows))[::-1]).with_format("numpy")


def _chunked(rows: Rows) -> pa.Table:
    table = pa.Table.from_pylist(rows)
    return pa.concat_tables([table[:1], table[1:1], table[1:]])


class Capsule:
    """Knows Arrow's C stream and nothing else, and hands it out once."""

    def __init__(self, table: pa.Table) -> None:
        self._table: pa.Table | None = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        table, self._table = self._table, None
        assert table is not None, "the stream is used up"
        return table.__arrow_c_stream__(requested_schema)


KINDS: dict[str, Callable[[Rows], Any]] = {
    "list of dicts": lambda rows: rows,
    "dict of lists": lambda rows: pa.Table.from_pylist(rows).to_pydict(),
    "pandas": lambda rows: pd.DataFrame(rows, index=range(100, 100 + len(rows))),
    "pandas of Arrow": lambda rows: pa.Table.from_pylist(rows).to_pandas(types_mapper=pd.ArrowDtype),
    "polars": lambda rows: pl.from_arrow(pa.Table.from_pylist(rows)),
    "Arrow": pa.Table.from_pylist,
    "Arrow in chunks": _chunked,
    "record batch": pa.RecordBatch.from_pylist,
    "C stream": lambda rows: Capsule(pa.Table.from_pylist(rows)),
    "Dataset": _dataset,
}


def as_rows(table: Any, names: list[str]) -> Rows:
    """The rows of any kind of table, as dicts; NaN as None."""
    if isinstance(table, list):
        return table
    if isinstance(table, dict):
        return [dict(zip(names, row, strict=True)) for row in zip(*(table[n] for n in names), strict=True)]
    if isinstance(table, pd.DataFrame):
        table = pa.Table.from_pandas(table, preserve_index=False)
    if isinstance(table, pl.DataFrame):
        table = table.to_arrow()
    if not isinstance(table, pa.Table | pa.RecordBatch):
        table = table.with_format("arrow")[:]
    return table.to_pylist()


def random_rows(rows: int, seed: int = 0) -> Rows:
    """With every type of column that makes a trait, and nulls in most."""
    import datetime

    random = np.random.default_rng(seed)

    def some(value: Any) -> Any:
        return None if random.random() < 0.15 else value

    return [
        {
            "topic": some(f"t{random.integers(3)}é"),
            "label": some(int(random.integers(5))),
            "score": some(float(random.normal())),
            "tags": some([f"g{tag}" for tag in random.integers(4, size=random.integers(4))]),
            "vector": random.normal(size=3).tolist(),
            "meta": some({"source": some(f"s{random.integers(3)}")}),
            "day": some(datetime.date(2020, 1, 1) + datetime.timedelta(int(random.integers(900)))),
            "ok": some(bool(random.integers(2))),
            "tokens": int(random.integers(1, 500)),
        }
        for _ in range(rows)
    ]
