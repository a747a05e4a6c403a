"""The scores that a curriculum follows, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_divorder.engine.progress import Log, Silent
from dagster_divorder.errors import DivOrderError, InputError
from dagster_divorder.pipeline.plan import make_plan
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, run_all
from dagster_divorder.store.state import Receipt
from tests.conftest import topic_records, write_jsonl

pytestmark = pytest.mark.usefixtures("small_fragments")

Make = Callable[..., Settings]

RECORDS = topic_records(30)


def run(settings: Settings, notes: list[str] | None = None) -> Receipt:
    progress = Silent() if notes is None else Log(notes.append)
    return run_all(settings, progress, GRAPH.needed(settings, "scores"))["scores"]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("good", "field 'q' holds 'good'; expected a number in each record"),
        ({"score": 1, "of": 2}, "field 'q' holds objects; name one of their fields: 'q.score', 'q.of'"),
    ],
)
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_fields_that_hold_no_numbers_are_refused_before_the_first_stage(
    value: Any, said: str, kind: str, make_settings: Make, tmp_path: Path
) -> None:
    records = [{"text": record["text"], "q": value} for record in RECORDS]
    if kind == "jsonl":
        write_jsonl(tmp_path / "docs.jsonl", records)
    else:
        pq.write_table(pa.Table.from_pylist(records), tmp_path / "docs.parquet")
    settings = make_settings(input={"paths": [str(tmp_path / f"docs.{kind}")]}, curriculum={"score": "q"})
    with pytest.raises(InputError, match=re.escape(f"curriculum.score: {said}")):
        make_plan(GRAPH, settings)
    assert not list(settings.store.path.glob("*/*"))


def run_on(
    values: list[Any], make_settings: Make, tmp_path: Path, **sections: Any
) -> tuple[Receipt, list[str]]:
    """A run on Parquet records with these values in the field `q`."""
    texts = [record["text"] for record in topic_records(len(values) // 4 + 1)][: len(values)]
    pq.write_table(pa.table({"text": texts, "q": values}), tmp_path / "docs.parquet")
    notes: list[str] = []
    paths = {"paths": [str(tmp_path / "docs.parquet")]}
    return run(make_settings(input=paths, curriculum={"score": "q"}, **sections), notes), notes


def test_infinite_and_missing_scores_are_counted_and_said(make_settings: Make, tmp_path: Path) -> None:
    values = [float(at) for at in range(40)]
    values[3:7] = [float("inf"), float("-inf"), float("nan"), None]
    receipt, notes = run_on(values, make_settings, tmp_path)
    figures = receipt.figures
    assert (figures["missing"], figures["lowest"], figures["highest"]) == (4, 0, 39)
    assert "2 records have an infinite q: these count as missing" in notes
    assert figures["notes"][0] == (
        "The order follows q: 36 of 40 records have one, from 0 to 39, 36 different; "
        "the 4 others are spread evenly"
    )


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([(1 << 60) + at for at in range(40)], "in every record; expected scores that differ"),
        ([float("nan")] * 40, r"40 of 40 records have no 'q'"),
    ],
)
def test_scores_that_rank_nothing_are_refused(
    values: list[Any], said: str, make_settings: Make, tmp_path: Path
) -> None:
    with pytest.raises(DivOrderError, match=said):
        run_on(values, make_settings, tmp_path)
