"""An output that a trainer may have read keeps its order while `order.frozen_tokens` is unset: what is refused, what is
not, and that the rows on disk are those from before."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dagster_divorder import run_all
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.plan import make_plan
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH
from dagster_divorder.stages.output import exports
from tests.conftest import topic_records, write_jsonl

Make = Callable[..., Settings]
LENGTH = 64
AHEAD = "order.frozen_tokens is unset, so a run that changes the order of "
SET = "set order.frozen_tokens = 0; if one has, `divorder freeze --step N`"


@pytest.fixture
def make(tmp_path: Path, make_settings: Make) -> Make:
    """Settings with a Parquet export that do not say what stays, and a corpus for them."""
    append(tmp_path, 20)

    def exporting(**sections: Any) -> Settings:
        base: dict[str, Any] = {
            "order": {"frozen_tokens": None},
            "sequence": {"length": LENGTH, "batch": 4},
            "exports": {"formats": ("parquet",), "path": tmp_path / "exports"},
            "engine": {"workers": 1},
        }
        for name, section in sections.items():
            base[name] = {**base.get(name, {}), **section} if isinstance(section, dict) else section
        return make_settings(**base)

    return exporting


def append(folder: Path, per_topic: int) -> None:
    """The corpus has so many records of each topic: the first ones as before, in other places."""
    write_jsonl(folder / "docs.jsonl", topic_records(per_topic))


def refusal(settings: Settings) -> str:
    """Why a run is refused; "" if it ends well. A refused run changes no row and no manifest."""
    folders = [settings.exports.path, settings.output.path]
    files = [file for folder in folders for file in sorted(Path(str(folder)).rglob("*")) if file.is_file()]
    before = {file: file.read_bytes() for file in files}
    try:
        run_all(settings, Silent())
    except InputError as error:
        assert SET in str(error)
        assert before == {file: file.read_bytes() for file in files if file.exists()}
        return str(error)
    return ""


def rows(settings: Settings, column: str = "input_ids") -> list[Any]:
    files = sorted((settings.exports.path / "parquet").glob("*.parquet"))  # type: ignore[union-attr]
    return [row for file in files for row in pq.read_table(file)[column].to_pylist()]


def first_difference(before: list[Any], after: list[Any]) -> int:
    return next((at for at, row in enumerate(before) if after[at : at + 1] != [row]), len(before))


VARIANTS: dict[str, dict[str, Any]] = {
    "concat": {},
    "none": {"packing": {"method": "none"}},
    "epochs": {"sequence": {"epochs": 2}},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_append_is_refused_from_the_row_on_that_would_change(
    variant: str, tmp_path: Path, make: Make
) -> None:
    settings = make(**VARIANTS[variant])
    assert refusal(settings) == "", "a first run changes nothing"
    assert refusal(settings) == "", "nothing is new"
    before = rows(settings)
    before = before[: len(before) // settings.sequence.epochs]
    # Appended behind all others.
    records = topic_records(20)
    write_jsonl(tmp_path / "docs.jsonl", [*records, *topic_records(3, start=50)])
    said = refusal(settings)
    assert refusal(settings) == said, "until something is set"
    variant_of = {**VARIANTS[variant]}
    variant_of["order"] = {**variant_of.get("order", {}), "frozen_tokens": 0}
    assert refusal(make(**variant_of)) == ""
    first = first_difference(before, rows(settings))
    assert first < len(before)
    assert (
        f"{settings.exports.path / 'parquet'} would change from row {first:,} of {len(before):,} on" in said
    )


@pytest.mark.parametrize(
    "sections",
    [{"seed": 1}, {"sequence": {"length": 32}}, {"order": {"traits": {"length": 1.0}}}],
)
def test_settings_that_move_rows_are_refused(sections: dict[str, Any], make: Make, tmp_path: Path) -> None:
    run_all(make(), Silent())
    assert "would change from row" in refusal(make(**sections))
    assert refusal(make(**sections, exports={"path": tmp_path / "other"})) == ""


def test_an_order_that_stays_is_not_refused(tmp_path: Path, make: Make) -> None:
    as_read = {"order": {"strategy": "original"}, "sequence": {"strategy": "original"}}
    settings = make(**as_read, packing={"method": "none"})
    run_all(settings, Silent())
    write_jsonl(tmp_path / "docs.jsonl", [*topic_records(20), *topic_records(3, start=50)])
    assert make_plan(GRAPH, settings).refusal.startswith(AHEAD), "a plan computes no order"
    assert refusal(settings) == ""


def test_only_the_formats_that_are_there_are_named(tmp_path: Path, make: Make) -> None:
    both = {"exports": {"formats": ("parquet", "megatron")}}
    anew = {"order": {"frozen_tokens": 0}}
    run_all(make(**both), Silent())
    # A format that is left alone for a while holds an older order than the store knows.
    for per_topic in (22, 24):
        append(tmp_path, per_topic)
        run_all(make(**anew), Silent())
    append(tmp_path, 26)
    said = refusal(make(exports={"formats": ("parquet", "olmo")}))
    assert "parquet would change from row" in said and "olmo" not in said
    said = refusal(make(**both))
    assert "parquet and " in said and "megatron would change perhaps from the first row on" in said
    shutil.rmtree(tmp_path / "exports")
    assert make_plan(GRAPH, make(**both)).refusal == "" and refusal(make(**both)) == ""


def test_a_first_run_that_was_killed_is_protected_once_its_export_is_whole(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(exports, "Made", lambda *parts: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run_all(make(), Silent())
    assert rows(make()), "killed between the files and the receipt"
    append(tmp_path, 23)
    assert "would change" in refusal(make())
    append(tmp_path, 20)
    assert refusal(make()) == ""


def test_records_in_training_order_are_protected_without_an_export(tmp_path: Path, make: Make) -> None:
    settings = make(packing={"method": "none"}, exports={"formats": ()})
    curated = tmp_path / "curated"
    run_all(settings, Silent())
    append(tmp_path, 22)
    assert f"{AHEAD}{curated} is refused" in make_plan(GRAPH, settings).refusal
    assert re.match(
        rf"order.frozen_tokens is unset, and {curated} would change from row \d+ of \d+ on", refusal(settings)
    )
    packed = make(exports={"formats": ()}, output={"path": tmp_path / "packed"})
    run_all(packed, Silent())
    append(tmp_path, 24)
    assert make_plan(GRAPH, packed).refusal == "" and refusal(packed) == ""
