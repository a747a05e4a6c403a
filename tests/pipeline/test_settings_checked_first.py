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
from tests.conftest import topic_records, write_jsonl

COMMANDS = pytest.mark.parametrize(
    "command", [partial(make_plan, GRAPH), lambda settings: run_all(settings, Silent())]
)


@COMMANDS
@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"order": {"traits": {"lang": 1.0}}}, "no record has the field 'lang'"),
        ({"input": {"source_field": "origin"}}, "no record has the field 'origin'"),
        ({"input": {"id_field": "key"}}, "no record has a string or a whole number in the field 'key'"),
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
    assert not list(settings.store.path.glob("*/*"))


BY = {"weights": "sqrt", "max_repeats": 2}


@COMMANDS
@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"order": {"traits": {"day": 1.0}}}, "order.traits: field 'day' holds date32[day]; a trait is made of"),
        ({"order": {"traits": {"tags": 1.0}}}, "order.traits: field 'tags' holds list<"),
        ({"input": {"source_field": "tags"}}, "input.source_field: field 'tags' holds list<"),
        ({"mixing": {"trait": "day", **BY}}, "mixing.trait: field 'day' holds date32"),
        ({"mixing": {"trait": "day"}, "heldout": {"documents": 0.1}}, "mixing.trait: field 'day' holds date32"),
        ({"curriculum": {"score": "site"}}, "curriculum.score: field 'site' holds 'a'"),
        ({"curriculum": {"score": "day"}}, "curriculum.score: field 'day' holds '2020-01-01'"),
        ({"curriculum": {"score": "digits"}}, "curriculum.score: field 'digits' holds numbers as text"),
        ({"curriculum": {"score": "late"}}, "curriculum.score: field 'late' holds timestamp[us]; expected numbers"),
    ],
)  # fmt: skip
def test_types_that_a_setting_cannot_use_are_refused_before_the_first_stage(
    command: Callable[[Settings], Any],
    sections: dict[str, Any],
    said: str,
    tmp_path: Path,
    make_settings: Callable[..., Settings],
) -> None:
    texts = [record["text"] for record in topic_records(40)]
    rows = len(texts)
    columns = {
        "text": texts,
        "day": [date(2020, 1, 1)] * rows,
        "tags": [["mit"]] * rows,
        "site": ["a", "b"] * (rows // 2),
        "digits": ["1"] * rows,
        "late": [None] * (rows - 1) + [datetime(2020, 1, 1)],
    }
    pq.write_table(pa.table(columns), tmp_path / "docs.parquet")
    paths = {"paths": [str(tmp_path / "docs.parquet")]}
    settings = make_settings(**{**sections, "input": paths | sections.get("input", {})})
    with pytest.raises(DivOrderError, match=re.escape(said)):
        command(settings)
    assert not list(settings.store.path.glob("*/*"))


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        (
            {"heldout": {"documents": 0.1}},
            "'source', the default of mixing.trait, which heldout.documents needs; expected a field of the input, `cl",
        ),
        ({"mixing": {"trait": "site", **BY}}, "'site', which mixing.trait names; expected a field of the input, `cl"),
        ({"input": {"source_field": "site"}}, "'site', which input.source_field names; expected a field of the input"),
        ({"curriculum": {"score": "site"}}, "'site', which curriculum.score names; expected a field of the input, `le"),
    ],
)  # fmt: skip
def test_a_missing_field_is_said_with_the_one_setting_that_names_it(
    sections: dict[str, Any], said: str, tmp_path: Path, make_settings: Callable[..., Settings]
) -> None:
    write_jsonl(tmp_path / "docs.jsonl", [{"text": record["text"]} for record in topic_records(5)])
    with pytest.raises(DivOrderError, match=re.escape(said)):
        make_plan(GRAPH, make_settings(**sections))


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
        input={"paths": [str(path)], "format": "text"},
        order={"traits": {"source": 1.0, "late": 1.0}},
    )
    for _ in range(2):
        run_all(settings, Silent())
        assert len(read) == 81


@COMMANDS
def test_an_output_of_another_store_is_refused_before_the_first_stage(
    command: Callable[[Settings], Any], tmp_path: Path, make_settings: Callable[..., Settings]
) -> None:
    write_jsonl(tmp_path / "docs.jsonl", topic_records(5))
    run_all(make_settings(store={"path": tmp_path / "other"}), Silent())
    settings = make_settings()
    with pytest.raises(DivOrderError, match="holds the output of another store"):
        command(settings)
    assert not list(settings.store.path.glob("*/*"))
