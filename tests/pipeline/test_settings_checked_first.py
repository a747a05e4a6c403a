"""Settings that cannot work are refused before anything is computed, by a run and by a plan alike."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_divorder.corpus import peek
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import DivOrderError
from dagster_divorder.pipeline.plan import make_plan
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, run_all
from tests.conftest import topic_records, write_jsonl

MIX = {"progress": (0.0, 1.0), "sea.example": (0.1, 0.4)}


@pytest.mark.parametrize("command", [partial(make_plan, GRAPH), lambda settings: run_all(settings, Silent())])
@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"order": {"traits": {"lang": 1.0}}}, "no record has the field 'lang'"),
        ({"input": {"source_field": "origin"}}, "no record has the field 'origin'"),
        ({"input": {"id_field": "key"}}, "no record has a string or a whole number in the field 'key'"),
        (
            {"order": {"traits": {"source": 1.0}, "targets": {"source": {**MIX, "web": (0.1, 0.1)}}}},
            "order.targets.source names 'web', which no document has; the values are ",
        ),
        ({"output": {"format": "parquet"}}, "output.format = 'parquet' needs Parquet input"),
        ({"model": {"base": "./gone"}}, "model.base is './gone': there is no such directory"),
        ({"embedding": {"kind": "deep"}, "deep": {"model": "./gone"}}, "deep.model is './gone'"),
        ({"embedding": {"kind": "external", "path": "/gone.npy"}}, "there is no file '/gone.npy'"),
    ],
)
def test_refused_before_the_first_stage(
    command: Callable[[Settings], Any],
    sections: dict[str, Any],
    said: str,
    tmp_path: Path,
    make_settings: Callable[..., Settings],
) -> None:
    write_jsonl(tmp_path / "docs.jsonl", topic_records(5))
    settings = make_settings(**sections)
    with pytest.raises(DivOrderError, match=said.replace("(", r"\(")):
        command(settings)
    assert not list(settings.store.path.glob("documents/**/*"))


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_field_of_the_last_record_alone_is_found_and_not_looked_for_again(
    kind: str, tmp_path: Path, make_settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [*topic_records(20), {"text": "the last one of all", "source": "web", "late": True}]
    path = write_jsonl(tmp_path / "docs.jsonl", records)
    if kind == "parquet":
        path = tmp_path / "docs.parquet"
        pq.write_table(pa.Table.from_pylist([{"late": None, **record} for record in records]), path)
    read: list[Any] = []
    original = peek.first_records
    monkeypatch.setattr(
        "dagster_divorder.corpus.peek.first_records",
        lambda *arguments: (read.append(record) or record for record in original(*arguments)),  # type: ignore[func-returns-value]
    )
    settings = make_settings(
        input={"paths": [str(path)]},
        order={
            "traits": {"source": 1.0, "late": 1.0},
            "targets": {"source": {"progress": (0.0, 1.0), "web": (0.0, 0.1)}},
        },
    )
    run_all(settings, Silent())
    assert len(read) == 81
    run_all(settings, Silent())
    assert len(read) == 81


def test_fields_of_the_first_record_read_no_more_than_that(
    tmp_path: Path, make_settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_jsonl(tmp_path / "docs.jsonl", topic_records(20))
    read: list[Any] = []
    original = peek.first_records
    monkeypatch.setattr(
        "dagster_divorder.corpus.peek.first_records",
        lambda *arguments: (read.append(record) or record for record in original(*arguments)),  # type: ignore[func-returns-value]
    )
    make_plan(GRAPH, make_settings(order={"traits": {"score": 1.0}}, input={"source_field": "source"}))
    assert len(read) == 1
