"""Settings that cannot work are refused before anything is computed, by a run and by a plan alike."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime
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
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.state import load_state
from tests.conftest import over, topic_records, write_jsonl
from tests.pipeline.runs import Make

COMMANDS = pytest.mark.parametrize(
    "command", [partial(make_plan, GRAPH), lambda settings: run_all(settings, Silent())]
)


LINES = [
    {"text": record["text"], "word": "good", "scores": {"score": 1, "of": 2}} for record in topic_records(5)
]
ROWS = {
    "text": [record["text"] for record in topic_records(40)],
    "day": [date(2020, 1, 1)] * 160,
    "tags": [["mit"]] * 160,
    "site": ["a", "b"] * 80,
    "digits": ["1"] * 160,
    "late": [None] * 159 + [datetime(2020, 1, 1)],
    "scores": [{"score": 1, "of": 2}] * 160,
}
BY = {"weights": "sqrt", "max_repeats": 2}
OBJECTS = (
    "curriculum.score: field 'scores' holds objects; name one of their fields: 'scores.score', 'scores.of'"
)


@COMMANDS
@pytest.mark.parametrize(
    ("kind", "sections", "said"),
    [
        ("jsonl", {"order": {"traits": {"lang": 1.0}}}, "no record has the field 'lang'"),
        ("jsonl", {"input": {"source_field": "site"}}, "'site', which input.source_field names; expected a"),
        ("jsonl", {"input": {"id_field": "key"}}, "no record has a string or a whole number in the field 'key'"),
        ("jsonl", {"heldout": {"documents": 0.1}},
         "'source', the default of mixing.trait, which heldout.documents needs; expected a field"),
        ("jsonl", {"mixing": {"trait": "site", **BY}}, "'site', which mixing.trait names; expected a field"),
        ("jsonl", {"curriculum": {"score": "site"}}, "'site', which curriculum.score names; expected a field"),
        ("jsonl", {"curriculum": {"score": "word"}}, "curriculum.score: field 'word' holds 'good'"),
        ("jsonl", {"curriculum": {"score": "scores"}}, OBJECTS),
        ("jsonl", {"order": {"frozen_tokens": 10}}, "frozen_tokens is 10, but no plan was published in "),
        ("jsonl", {"output": {"format": "parquet"}}, "output.format = 'parquet' needs Parquet input"),
        ("jsonl", {"model": {"base": "./gone"}}, "model.base is './gone': there is no such directory"),
        ("jsonl", {"embedding": {"kind": "deep"}, "deep": {"model": "./gone"}}, "deep.model is './gone'"),
        ("jsonl", {"embedding": {"kind": "external", "path": "/gone.npy"}}, "there is no file '/gone.npy'"),
        ("parquet", {"order": {"traits": {"day": 1.0}}}, "order.traits: field 'day' holds date32[day]"),
        ("parquet", {"order": {"traits": {"tags": 1.0}}}, "order.traits: field 'tags' holds list<"),
        ("parquet", {"input": {"source_field": "tags"}}, "input.source_field: field 'tags' holds list<"),
        ("parquet", {"mixing": {"trait": "day", **BY}}, "mixing.trait: field 'day' holds date32"),
        ("parquet", {"mixing": {"trait": "day"}, "heldout": {"documents": 0.1}}, "trait: field 'day' holds date32"),
        ("parquet", {"curriculum": {"score": "site"}}, "curriculum.score: field 'site' holds 'a'"),
        ("parquet", {"curriculum": {"score": "day"}}, "curriculum.score: field 'day' holds '2020-01-01'"),
        ("parquet", {"curriculum": {"score": "digits"}}, "curriculum.score: field 'digits' holds numbers as text"),
        ("parquet", {"curriculum": {"score": "late"}}, "curriculum.score: field 'late' holds timestamp[us]"),
        ("parquet", {"curriculum": {"score": "scores"}}, OBJECTS),
    ],
)  # fmt: skip
def test_refused_before_the_first_stage(
    command: Callable[[Settings], Any],
    kind: str,
    sections: dict[str, Any],
    said: str,
    tmp_path: Path,
    make_settings: Make,
) -> None:
    write_jsonl(tmp_path / "docs.jsonl", LINES)
    pq.write_table(pa.table(ROWS), tmp_path / "docs.parquet")
    paths = {"input": {"paths": [str(tmp_path / f"docs.{kind}")]}}
    settings = make_settings(**over(paths, sections))
    with pytest.raises(DivOrderError, match=re.escape(said)):
        command(settings)
    assert not list(settings.store.path.glob("*/*"))


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_field_of_the_last_record_alone_is_found_and_not_looked_for_again(
    kind: str, tmp_path: Path, make_settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [*topic_records(20), {"text": "the last one of all", "source": "web", "late": True}]
    path = write_jsonl(tmp_path / "docs.jsonl", records)
    if kind == "parquet":
        path = tmp_path / "docs.parquet"
        pq.write_table(pa.Table.from_pylist([{"late": None, **record} for record in records]), path)
    read: list[Any] = []
    original = peek.first_records
    monkeypatch.setattr(
        peek,
        "first_records",
        lambda *arguments: (read.append(record) or record for record in original(*arguments)),  # type: ignore[func-returns-value]
    )
    settings = make_settings(
        input={"paths": [str(path)], "format": "text"},
        order={"traits": {"source": 1.0, "late": 1.0}},
    )
    for _ in range(2):
        run_all(settings, Silent())
        assert len(read) == 81


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"mixing": {"trait": "site", "weights": {"c": 1.0}}}, "mixing.weights names 'c', which no record has"),
        ({"mixing": {"trait": "site", "phase": [{"until": 0.5, "weights": {"c": 1.0}}, {"weights": "sqrt"}]}},
         "mixing.weights names 'c', which no record has; expected some of 'a', 'b'"),
        ({"mixing": {"trait": "url", "weights": "sqrt"}}, "mixing.trait: field 'url' has 1,500 distinct values"),
        ({"input": {"id_field": "url"}, "order": {"cut": ["url 3", "url 1500"]}}, "the id 'url 1500'; expected one"),
        ({"order": {"traits": {"url": 1.0}}}, "order.traits: field 'url' has 1,500 distinct values in 1,500 rows"),
    ],
)  # fmt: skip
def test_values_of_fields_are_checked_before_the_first_costly_stage(
    sections: dict[str, Any], said: str, tmp_path: Path, make_settings: Make
) -> None:
    records = [{"text": f"text {at}", "site": "ab"[at % 2], "url": f"url {at}"} for at in range(1500)]
    write_jsonl(tmp_path / "docs.jsonl", records)
    settings = make_settings(**sections)
    with pytest.raises(DivOrderError, match=re.escape(said)):
        run_all(settings, Silent())
    made = load_state(LocalStore(settings.store.path)).receipts
    assert made.keys() == {"raw_docs"}


@COMMANDS
def test_an_output_of_another_store_is_refused_before_the_first_stage(
    command: Callable[[Settings], Any], tmp_path: Path, make_settings: Make
) -> None:
    write_jsonl(tmp_path / "docs.jsonl", topic_records(5))
    run_all(make_settings(store={"path": tmp_path / "other"}), Silent())
    settings = make_settings()
    with pytest.raises(DivOrderError, match="holds the output of another store"):
        command(settings)
    assert not list(settings.store.path.glob("*/*"))
