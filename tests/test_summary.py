"""The summary of a run: its records add up whatever the settings, and it fits a terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow.parquet as pq
import pytest

from dagster_divorder import load_results, run_all, summarise
from dagster_divorder.engine.progress import Silent
from dagster_divorder.forensics import plan_freeze
from dagster_divorder.settings import Settings
from dagster_divorder.stages import open_run
from dagster_divorder.stages.mix.repeats import load_plan
from dagster_divorder.view.answer import as_text
from tests.conftest import topic_records

Make = Callable[..., Settings]
pytestmark = pytest.mark.slow

RECORDS, REJECTED, TEXTS = 243, 3, 242
MIX = {"sea.example": 0.5, "kitchen.example": 0.3, "rail.example": 0.2}
"""Some more than once, gardens not at all."""
HOLDS_OUT = {"heldout": {"documents": 0.1}}
SELECTS = {"selection": {"method": "random", "tokens": 14_000}}
CUTS = {"order": {"cut": ("doc-1", "doc-5", "doc-90")}}
DROPS = {"packing": {"method": "best_fit", "too_long": "drop"}}
REPEATS = {"mixing": {"weights": MIX, "total_tokens": 30_000}}
CASES: dict[str, Mapping[str, Any]] = {
    "every record": {},
    "selected, held out, cut, dropped": {**SELECTS, **HOLDS_OUT, **CUTS, **DROPS},
    "repeated, held out, selected, dropped": {**REPEATS, **HOLDS_OUT, **SELECTS, **DROPS},
    "not packed, dropped": {"packing": {"method": "none", "too_long": "drop"}},
}


@pytest.fixture
def make(make_settings: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Settings of a corpus with two equal texts, a text without a word, and three lines that are refused."""
    monkeypatch.chdir(tmp_path)
    records = [{**record, "id": f"doc-{at}"} for at, record in enumerate(topic_records(60))]
    records += [
        {**records[5], "id": "again"},
        {**records[0], "text": " ", "id": "blank"},
        {**records[0], "text": ".", "id": "point"},
    ]
    lines = [orjson.dumps(record) for record in records]
    lines[7:7] = [b"{", b'{"text": 1}', b'{"none": ""}']
    (tmp_path / "docs.jsonl").write_bytes(b"\n".join(lines) + b"\n")

    def make(**sections: Any) -> Settings:
        sequence = {"length": 64, "batch": 8, **sections.pop("sequence", {})}
        return make_settings(
            input={
                "paths": [str(tmp_path / "docs.jsonl")],
                "id_field": "id",
                "source_field": "source",
                "max_reject_share": 0.1,
            },
            sequence=sequence,
            exports={
                "formats": ("parquet", "megatron", "olmo"),
                "path": tmp_path / "exports",
                "trainer": "hf-trainer",
                "world_size": 4,
                "micro_batch": 2,
            },
            **sections,
        )

    return make


def counted(settings: Settings) -> dict[str, int]:
    """How many records each term of the arithmetic has, by what the run wrote."""
    results, rest = load_results(settings), set(range(RECORDS))
    documents = results.documents
    trained = set(results.sequences.document)

    def take(records: set[int]) -> int:
        nonlocal rest
        taken, rest = rest & records, rest - records
        return len(taken)

    number = {"trained": take(trained)}
    held_out = set[int]()
    if settings.holds_out:
        ids = set(pq.read_table(settings.output.path / "heldout.parquet")["id"].to_pylist())
        copies = (settings.output.path / "heldout_removed.jsonl").read_bytes().splitlines()
        held_out = {at for at, name in enumerate(documents.doc_id) if name in ids}
        held_out |= {orjson.loads(line)["record"] for line in copies}
    number["held out"] = take(held_out)
    selected = results.selection.selected if settings.selects else documents.id.notna()
    number["not selected"] = take({at for at in range(RECORDS) if not selected[at]})
    number["cut"] = take({at for at, name in enumerate(documents.id) if name in settings.order.cut})
    times = load_plan(open_run(settings))["times"] if settings.repeats else np.ones(RECORDS)
    number["left out of the mix"] = take(set(np.flatnonzero(times == 0).tolist()))
    return {**number, "in no sequence": len(rest), "rejected": REJECTED}


def check(settings: Settings) -> dict[str, Any]:
    answer = summarise(settings)
    (line,) = re.findall(r"^([\d,]+) read = (.*); ([\d,]+) different texts$", str(answer), re.M)
    terms = {
        name: int(number.replace(",", "")) for number, name in re.findall(r"([\d,]+) ([a-z ]+[a-z])", line[1])
    }
    assert terms == {name: number for name, number in counted(settings).items() if number}
    assert int(line[0]) == RECORDS + REJECTED == sum(terms.values())
    corpus = answer.data["corpus"]
    assert (corpus["records"], corpus["documents"], int(line[2])) == (RECORDS, TEXTS, TEXTS)
    left_out = sum(corpus["left_out"].values())
    assert corpus["read"] == corpus["trained_records"] + left_out + corpus["rejected_records"]

    for colour in (False, True):
        lines = re.sub(r"\x1b\[[\d;]*m", "", as_text(answer.parts, width=80, colour=colour)).splitlines()
        assert len(lines) <= 30
        assert max(map(len, lines)) <= 80
    return terms


@pytest.mark.parametrize("case", CASES)
def test_records_add_up_and_the_answer_fits_a_terminal(case: str, make: Make) -> None:
    settings = make(**CASES[case])
    run_all(settings, Silent())
    terms = check(settings)
    assert ("held out" in terms) == settings.holds_out
    assert ("not selected" in terms) == settings.selects
    assert ("cut" in terms) == bool(settings.order.cut)
    read = load_results(settings).documents.repeats
    assert ("an epoch reads them" in str(summarise(settings))) == (read.max() > 1)


def test_what_was_read_counts_as_trained_whatever_is_asked_since(make: Make) -> None:
    settings = make()
    run_all(settings, Silent())
    order = plan_freeze(settings, step=6).settings.order
    read = load_results(settings).sequences
    documents = load_results(settings).documents.id[read.document[read.position < 48].unique()]
    later = make(
        order={"frozen_tokens": order.frozen_tokens, "cut": (*documents[:4], "doc-90", "doc-200")},
        heldout={"documents": 0.1},
    )
    run_all(later, Silent())
    assert 0 < check(later)["cut"] <= 2
