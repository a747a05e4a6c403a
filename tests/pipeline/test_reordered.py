"""Appends that change what a trainer may have read, with `order.frozen_tokens` unset: who says it, when, and that it is
true of the rows themselves."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dagster_divorder import run_all
from dagster_divorder.cli.runs import plan, run
from dagster_divorder.engine.progress import Log, Silent
from dagster_divorder.pipeline.checks import run_checks
from dagster_divorder.pipeline.plan import make_plan
from dagster_divorder.pipeline.run import Receipts
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH
from dagster_divorder.stages.output import exports
from tests.conftest import topic_records, write_jsonl

Make = Callable[..., Settings]
LENGTH = 64
BEFORE = "order.frozen_tokens is unset, so a new order changes "
AFTER = "and order.frozen_tokens is unset"
CHOOSE = "set order.frozen_tokens = 0"


@pytest.fixture
def make(tmp_path: Path, make_settings: Make) -> Make:
    """Settings with a Parquet export, and a corpus for them."""
    append(tmp_path, 20)

    def exporting(**sections: Any) -> Settings:
        base: dict[str, Any] = {
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


def made(settings: Settings) -> tuple[Receipts, list[str]]:
    """The receipts of a run, and what it says of a change."""
    lines: list[str] = []
    return run_all(settings, Log(lines.append)), [line for line in lines if AFTER in line]


def rows(settings: Settings, column: str = "input_ids") -> list[Any]:
    files = sorted((settings.exports.path / "parquet").glob("*.parquet"))  # type: ignore[union-attr]
    return [row for file in files for row in pq.read_table(file)[column].to_pylist()]


def first_difference(before: list[Any], after: list[Any]) -> int:
    return next((at for at, row in enumerate(before) if after[at : at + 1] != [row]), len(before))


VARIANTS: dict[str, dict[str, Any]] = {
    "concat": {},
    "none": {"packing": {"method": "none"}},
    "as read": {"order": {"strategy": "original"}, "sequence": {"strategy": "original"}},
    "epochs": {"sequence": {"epochs": 2}},
    "mixed": {"mixing": {"trait": "checked", "weights": {"true": 0.6, "false": 0.4}}},
    "one schedule over epochs": {
        "curriculum": {"score": "length", "epochs": "together"},
        "sequence": {"epochs": 2},
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_append_says_from_which_row_on_the_export_is_another(
    variant: str, tmp_path: Path, make: Make
) -> None:
    settings = make(**VARIANTS[variant])
    assert made(settings)[1] == [], "a first run changes nothing"
    before = rows(settings)
    before = before[: len(before) // settings.sequence.epochs]
    # Appended behind all others.
    records = topic_records(20)
    write_jsonl(tmp_path / "docs.jsonl", [*records, *topic_records(3, start=50)])
    receipts, said = made(settings)
    first = first_difference(before, rows(settings))
    assert receipts["exports"].figures["reordered"]["first"] == first < len(before)
    (sentence,) = said
    assert f"{settings.exports.path / 'parquet'} changed from row {first:,} of {len(before):,} on" in sentence
    assert CHOOSE in sentence and "divorder freeze --step N" in sentence
    assert made(settings)[1] == [], "nothing is new"


def test_who_has_made_the_choice_hears_nothing(tmp_path: Path, make: Make) -> None:
    made(make())
    for per_topic, frozen in ((23, 0), (26, 3 * LENGTH)):
        append(tmp_path, per_topic)
        settings = make(order={"frozen_tokens": frozen})
        assert make_plan(GRAPH, settings).choice == ""
        receipts, said = made(settings)
        assert said == [] and "reordered" not in receipts["exports"].figures
        assert run_checks(GRAPH, settings, "exports")["trainers_keep_the_order"].passed


def test_an_order_that_stays_says_nothing(tmp_path: Path, make: Make) -> None:
    as_read = {"order": {"strategy": "original"}, "sequence": {"strategy": "original"}}
    settings = make(**as_read, packing={"method": "none"})
    made(settings)
    write_jsonl(tmp_path / "docs.jsonl", [*topic_records(20), *topic_records(3, start=50)])
    assert make_plan(GRAPH, settings).choice.startswith(BEFORE), "a plan computes no order"
    assert made(settings)[1] == []
    assert run_checks(GRAPH, settings, "exports")["trainers_keep_the_order"].passed


def test_other_settings_change_an_export_too(make: Make) -> None:
    made(make())
    for sections, first in (
        ({"sequence": {"length": 32}}, "0"),
        ({"sequence": {"length": LENGTH, "strategy": "random"}}, r"\d+"),
        ({"seed": 5}, r"\d+"),
        ({"mixing": {"trait": "checked", "weights": {"true": 0.5, "false": 0.5}}}, r"\d+"),
    ):
        said = made(make(**sections))[1]
        assert len(said) == 1 and re.search(rf"parquet changed from row {first} of \d+ on", said[0])


def test_a_layout_that_changes_no_order_says_nothing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = make()
    made(settings)
    monkeypatch.setattr(exports, "SHARD_BYTES", 3000)
    receipts, said = made(settings)
    assert receipts["exports"].facts["computed"] and said == []


def test_only_the_formats_that_were_there_are_named(tmp_path: Path, make: Make) -> None:
    both = {"exports": {"formats": ("parquet", "megatron")}}
    made(make(**both))
    # A format that is left alone for a while holds an older order than the store knows.
    append(tmp_path, 22)
    made(make())
    append(tmp_path, 24)
    (said,) = made(make(exports={"formats": ("parquet", "olmo")}))[1]
    assert "parquet changed from row" in said and "olmo" not in said
    append(tmp_path, 26)
    (said,) = made(make(**both))[1]
    assert "parquet and " in said and "megatron may have changed from the first row on" in said
    shutil.rmtree(tmp_path / "exports")
    append(tmp_path, 28)
    assert make_plan(GRAPH, make(**both)).choice == ""
    assert made(make(**both))[1] == []


def test_an_order_that_trainers_hold_is_not_dropped(tmp_path: Path, make: Make) -> None:
    made(make())
    before = rows(make())
    for seed in range(1, 6):
        run_all(make(seed=seed), Silent(), GRAPH.needed(make(seed=seed), "sequence_order"))
    append(tmp_path, 22)
    (said,) = made(make())[1]
    first = first_difference(before, rows(make()))
    assert f"parquet changed from row {first:,} of {len(before):,} on" in said


def test_a_run_that_was_killed_before_its_export_says_it_later(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make()
    made(settings)
    before = rows(settings)
    append(tmp_path, 23)
    run_all(settings, Silent(), [stage for stage in GRAPH.needed(settings) if stage != "exports"])
    append(tmp_path, 26)
    with monkeypatch.context() as patch:
        patch.setattr(exports, "Made", lambda *parts: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            made(settings)
    assert rows(settings) != before, "killed between the files and the receipt"
    (said,) = made(settings)[1]
    assert f"changed from row {first_difference(before, rows(settings))} of {len(before)} on" in said


def test_records_in_training_order_are_watched_without_an_export(tmp_path: Path, make: Make) -> None:
    settings = make(packing={"method": "none"}, exports={"formats": ()})
    curated = tmp_path / "curated/curated.jsonl"
    made(settings)
    before = curated.read_bytes().splitlines()
    append(tmp_path, 22)
    assert f"{BEFORE}{tmp_path / 'curated'} from" in make_plan(GRAPH, settings).choice
    (said,) = made(settings)[1]
    first = first_difference(before, curated.read_bytes().splitlines())
    assert said.startswith(f"{tmp_path / 'curated'} changed from record {first} of 80 on, {AFTER}")
    packed = make(exports={"formats": ()})
    made(packed)
    append(tmp_path, 24)
    assert make_plan(GRAPH, packed).choice == "" and made(packed)[1] == []


def test_the_commands_and_the_check_say_it(tmp_path: Path, make: Make) -> None:
    settings = make()
    assert run(settings, details=False).data["reordered"] is None
    assert plan(settings, disk=False).data["choice"] == "", "nothing is to be done"
    append(tmp_path, 22)
    planned = plan(settings, disk=False)
    assert planned.data["choice"].startswith(
        f"{BEFORE}{settings.exports.path / 'parquet'} from the beginning"
    )
    assert planned.data["choice"] in str(planned)
    ran = run(settings, details=False)
    assert AFTER in ran.data["reordered"] and ran.data["reordered"] in str(ran)
    finding = run_checks(GRAPH, settings, "exports")["trainers_keep_the_order"]
    assert not finding.passed
    assert finding.text.startswith(f"{settings.exports.path / 'parquet'} changed from row ")
    assert "Every export can be read in the order of the plan" in finding.text and CHOOSE in finding.remedy
    again = run(settings, details=False)
    assert again.data["reordered"] is None and AFTER not in str(again)
    chosen = make(order={"frozen_tokens": 0})
    assert run_checks(GRAPH, chosen, "exports")["trainers_keep_the_order"].passed
