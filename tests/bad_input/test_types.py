"""Parquet of any type, and fields of any value as traits, through all stages: it runs, or ends in a sentence."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_divorder import run_all
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import DivOrderError
from dagster_divorder.pipeline.run import run_checks
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH
from tests.arrow_types import Kind, kinds, parquet
from tests.bad_input.conftest import Outcome
from tests.conftest import examples, small_settings, topic_records

Divorder = Callable[..., Outcome]
TEXTS = [record["text"] for record in topic_records(5)]


def settings_of(folder: Path, format: str, trait: str | None) -> Settings:
    return small_settings(
        folder,
        input={"paths": [str(folder / "in")], "source_field": trait, "max_reject_share": 1.0},
        output={"format": format},
        order={"traits": {"cluster": 1.0} | ({trait: 1.0} if trait else {})},
        sequence={"length": 64, "batch": 2},
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("types") / "one"


def run(folder: Path, format: str, trait: str | None, files: dict[str, bytes]) -> str | None:
    """What a first run says if it ends in an error of ours, and None if it ends well; then all records are there."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "in").mkdir(parents=True)
    for name, content in files.items():
        (folder / "in" / name).write_bytes(content)
    chosen = settings_of(folder, format, trait)
    try:
        run_all(chosen, Silent())
    except DivOrderError as error:
        return str(error)
    finding = run_checks(GRAPH, chosen, stage="curated_output")["every_record_in_output"]
    assert finding.passed, finding.text
    return None


def table_of(chosen: list[Kind], names: list[str], rows: list[tuple[Any, ...]]) -> pa.Table:
    columns = [
        kind.build([rows[at % len(rows)][i] for at in range(len(TEXTS))]) for i, kind in enumerate(chosen)
    ]
    return pa.Table.from_arrays([pa.array(TEXTS), *columns], ["text", *names])


# Ends in an error of ours, or well: which is not said, as every type is allowed in one place and not in another.
@settings(deadline=None, max_examples=examples(12), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_table_runs_or_ends_in_a_sentence(folder: Path, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(kinds, min_size=1, max_size=4))
    rows = data.draw(st.lists(st.tuples(*(kind.values for kind in chosen)), min_size=1, max_size=5))
    names = data.draw(st.lists(st.sampled_from(["a", "b", "c d", "é.\n"]), min_size=4, max_size=4))[
        : len(chosen)
    ]
    trait = data.draw(st.sampled_from([None, names[0]]))
    format = data.draw(st.sampled_from(["parquet", "jsonl"]))
    said = run(folder, format, trait, {"docs.parquet": parquet(table_of(chosen, names, rows), 7)})
    if said is not None:
        assert trait or len(set(names)) < len(names) or "Arrow cannot read" in said, said


def test_what_has_no_json_is_refused_before_anything_runs(tmp_path: Path, divorder: Divorder) -> None:
    numbers = pa.array(np.arange(20))
    table = pa.table({"text": TEXTS, "y": pa.StructArray.from_arrays([numbers, numbers], ["x", "x"])})
    pq.write_table(table, tmp_path / "in/docs.parquet")
    assert divorder().status == 0
    shutil.rmtree(tmp_path / "store")
    outcome = divorder('output.format = "jsonl"')
    assert outcome.status == 1
    assert "output.format = 'jsonl'" in outcome.error
    assert "called 'x'" in outcome.error
    assert not list((tmp_path / "store").glob("*/*"))
