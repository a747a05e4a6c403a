"""The scores that a curriculum follows: computed, a field, a column of one's own file; when they are computed again,
and what is refused."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_divorder.engine.progress import Log, Silent
from dagster_divorder.errors import DivOrderError, InputError
from dagster_divorder.pipeline.plan import make_plan
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run, run_all
from dagster_divorder.store.ids import hex_ids
from dagster_divorder.store.state import Receipt
from tests.conftest import topic_records, write_jsonl

pytestmark = pytest.mark.usefixtures("small_fragments")

Make = Callable[..., Settings]

RECORDS: list[dict[str, Any]] = [
    {**record, "id": f"record {at}", "quality": at % 7 / 7, "meta": {"score": at}}
    for at, record in enumerate(topic_records(30))
]
RECORDS.append({**RECORDS[0], "quality": 0.9, "id": "again"})  # another record of the same text


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "docs.jsonl", RECORDS)


def run(settings: Settings, notes: list[str] | None = None) -> Receipt:
    progress = Silent() if notes is None else Log(notes.append)
    return run_all(settings, progress, GRAPH.needed(settings, "scores"))["scores"]


def scores_of(settings: Settings) -> np.ndarray:
    return open_run(settings).arrays("scores", "scores")["score"]


def computed(settings: Settings, stage: str) -> int:
    return int(open_run(settings).receipt(stage).figures["new_documents"])


def record_ids(make_settings: Make) -> list[str]:
    base = make_settings()
    run_all(base, Silent(), ["raw_docs"])
    opened = open_run(base)
    return hex_ids(opened.records.ids(opened.view.fragments))


def write_scores(path: Path, key: str, keys: list[Any], scores: Any, name: str = "mine") -> Path:
    pq.write_table(pa.table({key: keys, name: scores}), path)
    return path


@pytest.mark.usefixtures("corpus")
@pytest.mark.parametrize("key", ["id", "record_id"])
def test_a_file_in_any_order_gives_each_record_its_score(
    key: str, make_settings: Make, tmp_path: Path
) -> None:
    path = tmp_path / "scores.parquet"
    keys = [record["id"] for record in RECORDS] if key == "id" else record_ids(make_settings)
    wanted = np.array([len(record["text"]) + at / 1000 for at, record in enumerate(RECORDS)])
    mixed = np.random.default_rng(0).permutation(len(keys))
    write_scores(path, key, [keys[at] for at in mixed], wanted[mixed])
    settings = make_settings(input={"id_field": "id"}, curriculum={"score": "mine", "path": path})
    figures = run(settings).figures
    np.testing.assert_array_equal(scores_of(settings), wanted)
    assert (figures["missing"], figures["score"]) == (0, "mine")


@pytest.mark.usefixtures("corpus")
def test_a_changed_file_is_seen_and_records_without_a_row_have_no_score(
    make_settings: Make, tmp_path: Path
) -> None:
    path, rows = tmp_path / "scores.parquet", list(range(3, len(RECORDS)))
    ids = record_ids(make_settings)[3:]
    write_scores(path, "record_id", ids, [float(row) for row in rows])
    settings = make_settings(curriculum={"score": "mine", "path": path})
    notes: list[str] = []
    first = run(settings, notes)
    assert first.figures["missing"] == 3
    assert np.isnan(scores_of(settings)).nonzero()[0].tolist() == [0, 1, 2]
    assert any("the 3 others are spread evenly" in note for note in notes)

    def planned() -> str:
        return next(plan.scope for plan in make_plan(GRAPH, settings).stages if plan.stage == "scores")

    assert planned() == "nothing"
    os.utime(path, ns=(1, 1))
    assert planned() == "nothing"
    write_scores(path, "record_id", ids, [float(-row) for row in rows])
    assert planned() == "all"
    assert run(settings).version != first.version
    assert scores_of(settings)[5] == -5


@pytest.mark.usefixtures("corpus")
@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"record_id": [0, 1]}, r"has no column 'mine'; its columns are record_id: int64"),
        ({"mine": [0.5, 1.0]}, r"expected a key column for each row's score: record_id"),
        ({"mine": ["0.5", "1"]}, r"column 'mine' of .* is of type string; expected a number"),
        ({"mine": [True, False]}, r"column 'mine' of .* is of type bool"),
        (
            {"record_id": [0.0, 1.0], "mine": [0.5, 1.0]},
            r"'record_id' has type double; expected strings of 32",
        ),
    ],
)
def test_files_that_cannot_be_scores_are_refused_before_the_first_stage(
    table: dict[str, Any], said: str, make_settings: Make, tmp_path: Path
) -> None:
    pq.write_table(pa.table(table), tmp_path / "scores.parquet")
    settings = make_settings(curriculum={"score": "mine", "path": tmp_path / "scores.parquet"})
    with pytest.raises(InputError, match=said):
        make_plan(GRAPH, settings)
    assert not list(settings.store.path.glob("*/*"))


@pytest.mark.usefixtures("corpus")
@pytest.mark.parametrize(
    ("key", "keys", "scores", "said"),
    [
        (
            "record_id",
            ["0" * 32],
            [1.0],
            r"121 of 121 records have no 'mine'.*rows of .* that belong to no record and are not used: 1$",
        ),
        (
            "id",
            ["record 1", "record 2", "record 1"],
            [1.0, 2.0, 3.0],
            r"record 1 of the input has the scores 1 and 3, in rows of the same id",
        ),
    ],
)
def test_rows_that_cannot_be_placed(
    key: str, keys: list[Any], scores: list[float], said: str, make_settings: Make, tmp_path: Path
) -> None:
    path = write_scores(tmp_path / "scores.parquet", key, keys, scores)
    with pytest.raises(InputError, match=said):
        run(make_settings(input={"id_field": "id"}, curriculum={"score": "mine", "path": path}))


def test_no_file_of_scores(corpus: Path, make_settings: Make) -> None:
    for path, said in ((corpus.with_name("gone.parquet"), "does not exist"), (corpus, "is no .parquet file")):
        with pytest.raises(
            InputError, match=rf"curriculum\.path: .*{said}; expected a Parquet file with the column"
        ):
            make_plan(GRAPH, make_settings(curriculum={"score": "mine", "path": path}))


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
