"""Traits of whole numbers that float64 would round, and of one value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_divorder import run_all
from dagster_divorder.engine.progress import Silent
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.order.traits import load_traits
from tests.conftest import topic_records, write_jsonl

Make = Callable[..., Settings]
BASE = 1 << 60


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "decimal parquet"])
def test_ids_of_19_digits_are_told_apart_and_one_value_balances_nothing(
    tmp_path: Path, make_settings: Make, kind: str
) -> None:
    records: list[dict[str, Any]] = [
        {"text": record["text"], "forum": BASE + at % 3, "shard": BASE}
        for at, record in enumerate(topic_records(12))
    ]
    file = tmp_path / f"docs.{kind.split()[-1]}"
    if kind == "jsonl":
        write_jsonl(file, records)
    else:
        table = pa.Table.from_pylist(records)
        if kind != "parquet":
            table = table.set_column(1, "forum", table["forum"].cast(pa.decimal128(38, 0)))
        pq.write_table(table, file)
    settings = make_settings(
        input={"paths": [str(file)], "text_field": "text"},
        order={"traits": {"cluster": 1.0, "forum": 1.0, "shard": 1.0}},
    )
    receipts = run_all(settings, Silent(), GRAPH.needed(settings, "diversity_metrics"))
    traits = load_traits(open_run(settings))
    assert np.bincount(traits.codes["forum"]).tolist() == [16, 16, 16]
    assert traits.names["forum"][:3] == (f"below {BASE + 1}", str(BASE + 1), f"{BASE + 2} and above")
    told = receipts["diversity_metrics"].figures["findings"]
    of_shard = [line for line in told if "shard" in line]
    assert of_shard == ["shard: one value in all documents, so it balances nothing"]
    assert any(line.startswith("forum: closer to the mix") for line in told)
