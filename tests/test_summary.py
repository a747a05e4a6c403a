"""The answers of `run`, `summary` and `verify`: records add up whatever the settings, answers fit a terminal, and say
who reads the export, and who the records."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from dagster_divorder import load_results, run_all
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import DivOrderError, InputError
from dagster_divorder.forensics import plan_freeze
from dagster_divorder.settings import Settings
from dagster_divorder.settings.sections import Exports
from dagster_divorder.stages import open_run
from dagster_divorder.stages.mix.repeats import load_plan
from dagster_divorder.summary import summarise
from dagster_divorder.verify import verify
from dagster_divorder.view.answer import as_text
from tests.conftest import topic_chats, topic_records, write_jsonl

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


@pytest.fixture
def settings(tmp_path: Path, make_settings: Make) -> Settings:
    write_jsonl(tmp_path / "chats.jsonl", topic_chats())
    return make_settings(
        input={"paths": (str(tmp_path / "chats.jsonl"),), "format": "messages"},
        exports={"formats": ("parquet",), "path": tmp_path / "exports"},
        sequence={"length": 128, "batch": 4},
    )


def test_records_and_sequences_are_read_by_trainers_of_their_own(settings: Settings) -> None:
    run_all(settings, Silent())
    export, output = settings.exports.path / "parquet", settings.output.path
    readers = {row["trainer"]: row for row in verify(settings, output, None).data["trainers"]}
    assert readers.keys() == {"axolotl", "llama-factory", "ms-swift"}
    assert {row["at_best"] for row in readers.values()} == {"12 of 12 batches"}
    everyone = {row["trainer"] for row in verify(settings, None, None).data["trainers"]}
    of_export = {row["trainer"] for row in verify(settings, export, None).data["trainers"]}
    assert everyone > readers.keys() | of_export and "trl" in of_export and "trl-dpo" not in everyone
    full = str(verify(settings, output, "axolotl"))
    assert f"data_files: {output}/curated.jsonl" in full
    for folder, trainer, message in [
        (output, "trl", "trl does not read the records of .*: it reads an export in parquet"),
        (output, "trl-dpo", "it reads the curated output of records of pairs"),
        (export, "axolotl", "axolotl does not read parquet, .* records of messages or conversations or"),
        (
            None,
            "trl-dpo",
            "it reads records of pairs, and the inputs hold messages; expected one of olmo-core, hf",
        ),
        (None, "megatron", "megatron cannot say that chats.train_on = 'assistant' leaves tokens untrained"),
    ]:
        with pytest.raises(InputError, match=message):
            verify(settings, folder, trainer)


def test_an_altered_output_and_one_of_another_store_are_refused(settings: Settings, tmp_path: Path) -> None:
    run_all(settings, Silent())
    moved = {"store": settings.store.model_copy(update={"path": tmp_path / "other store"})}
    moved["output"] = settings.output.model_copy(update={"path": tmp_path / "other"})
    run_all(settings.model_copy(update={**moved, "exports": Exports(), "seed": 1}), Silent())
    with pytest.raises(InputError, match="other does not hold the last output of these settings"):
        verify(settings, tmp_path / "other", None)
    path = settings.output.path / "curated.jsonl"
    path.write_bytes(b" " + path.read_bytes()[1:])
    with pytest.raises(InputError, match=r"curated\.jsonl was altered: .*run again to write this output"):
        verify(settings, settings.output.path, None)


def test_the_answer_of_a_run_has_the_lines_of_the_trainer_of_the_settings(settings: Settings) -> None:
    run_all(settings, Silent())
    few = str(summarise(with_exports(settings, trainer="trl", world_size=2)))
    assert "Too few batches" in few and "SFTConfig(" not in few and "max_steps" not in few
    settings = settings.model_copy(update={"sequence": settings.sequence.model_copy(update={"batch": 2})})
    run_all(settings, Silent())
    said = str(summarise(settings))
    export = settings.exports.path / "parquet"
    assert "SFTConfig(" not in said and " ranks:" not in said
    assert f"For its lines set exports.trainer, or:\n  divorder verify {export} --trainer NAME\n" in said
    for ranks, head, steps in [
        ({}, "trl, your number of ranks:", "gradient_accumulation_steps=2 / ranks,"),
        ({"world_size": 2, "micro_batch": 1}, "trl, 2 ranks:", "gradient_accumulation_steps=1,"),
    ]:
        named = with_exports(settings, trainer="trl", **ranks)
        # The trainer decides no bytes: nothing is out of date.
        before, _, lines = str(summarise(named)).partition(f"  {head}\n")
        assert f"Give your trainer {export}" in before and lines.startswith("    SFTConfig(")
        assert steps in lines
        for folder in (None, export):
            answer = verify(named, folder, None)
            assert [row["trainer"] for row in answer.data["trainers"]] == ["trl"]
            assert steps in str(answer)
        everyone = verify(named, settings.output.path, None).data["trainers"]
        assert len(everyone) > 1, "trl reads no records"


def with_exports(settings: Settings, **keys: Any) -> Settings:
    return settings.model_copy(update={"exports": settings.exports.model_copy(update=keys)})


@pytest.mark.parametrize(
    ("exports", "said"),
    [
        ({"trainer": "HF_Trainer"}, "did you mean 'hf-trainer'?"),
        ({"trainer": "megatron"}, "which reads megatron; name that in exports.formats"),
        ({"trainer": "torchtitan"}, "set exports.world_size to its number of ranks"),
        ({"trainer": "trl", "world_size": 3}, "sequence.batch = 4 is no whole number of steps of trl with"),
        ({"trainer": "trl", "world_size": 2, "micro_batch": 4}, "choose numbers with a product that divides"),
    ],
)
def test_a_trainer_that_cannot_read_the_plan_is_refused_with_the_settings(
    exports: dict[str, Any], said: str, make_settings: Make
) -> None:
    with pytest.raises((ValidationError, DivOrderError), match=re.escape(said)):
        make_settings(exports={"formats": ("parquet",), **exports}, sequence={"length": 32, "batch": 4})


def test_a_trainer_that_loses_the_loss_mask_is_refused_before_any_work(settings: Settings) -> None:
    named = with_exports(settings, trainer="torchtitan", world_size=2)
    with pytest.raises(InputError, match="'torchtitan', and it makes labels from the ids"):
        run_all(named, Silent())
