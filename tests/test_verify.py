"""`divorder verify` over conversations: who reads the export, who the records, and what each is told."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dagster_divorder import run_all
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import InputError
from dagster_divorder.settings import Settings
from dagster_divorder.settings.sections import Exports
from dagster_divorder.summary import summarise
from dagster_divorder.verify import verify
from tests.conftest import topic_records, write_jsonl

pytestmark = pytest.mark.slow

Make = Callable[..., Settings]
TOPICS = ("bread dough oven flour yeast", "star orbit moon planet comet", "sail rope wind wave harbour")


def chats(count: int) -> list[dict[str, Any]]:
    """Conversations of one to three questions, each with its answer, on three topics."""
    draw = random.Random(0)
    records = []
    for number in range(count):
        words = TOPICS[number % 3].split()
        messages: list[dict[str, str]] = []
        for _ in range(draw.randint(1, 3)):
            question, answer = (" ".join(draw.choices(words, k=draw.randint(2, 12))) for _ in "qa")
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        records.append({"messages": messages, "source": TOPICS[number % 3][:4]})
    return records


@pytest.fixture
def settings(tmp_path: Path, make_settings: Make) -> Settings:
    write_jsonl(tmp_path / "chats.jsonl", chats(48))
    return make_settings(
        input={"paths": (str(tmp_path / "chats.jsonl"),), "format": "messages"},
        exports={"formats": ("parquet",), "path": tmp_path / "exports"},
        sequence={"length": 128, "batch": 4},
    )


def test_records_and_sequences_are_read_by_trainers_of_their_own(settings: Settings) -> None:
    run_all(settings, Silent())
    export, output = settings.exports.path / "parquet", settings.output.path
    readers = {row["trainer"]: row for row in verify(settings, output, None).data["trainers"]}
    assert readers.keys() == {"axolotl", "llama-factory", "ms-swift", "torchtune"}
    assert {row["at_best"] for row in readers.values()} == {"12 of 12 batches"}
    everyone = {row["trainer"] for row in verify(settings, None, None).data["trainers"]}
    of_export = {row["trainer"] for row in verify(settings, export, None).data["trainers"]}
    assert everyone > readers.keys() | of_export and "trl" in of_export and "trl-dpo" not in everyone
    full = str(verify(settings, output, "axolotl"))
    assert "expected records 0, 1, 2, ..." in full and f"data_files: {output}/curated.jsonl" in full
    for folder, trainer, message in [
        (output, "trl", "trl does not read the records of .*; expected an export in parquet"),
        (output, "trl-dpo", "expected the curated output of records of pairs"),
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


def test_the_answer_of_a_run_proposes_trl_first(settings: Settings) -> None:
    run_all(settings, Silent())
    said = str(summarise(settings))
    before, _, lines = said.partition("  trl, 2 ranks:\n")
    assert f"Give your trainer {settings.exports.path / 'parquet'}" in before and lines.startswith(
        "    SFTConfig("
    )
    assert f"  divorder verify {settings.output.path} --trainer NAME\n" in lines


@pytest.mark.parametrize(
    ("layout", "named"),
    [({}, "hf-trainer"), ({"world_size": 4}, "torchtitan"), ({"world_size": 4, "workers": 2}, None)],
    ids=["in order", "ranks", "ranks and workers"],
)
def test_the_answer_of_a_run_has_the_lines_of_a_trainer_that_keeps_its_rows_in_order(
    layout: dict[str, int], named: str | None, tmp_path: Path, make_settings: Make
) -> None:
    write_jsonl(tmp_path / "docs.jsonl", topic_records(40))
    exports = {"formats": ("parquet",), "path": tmp_path / "exports", **layout}
    settings = make_settings(exports=exports, sequence={"length": 32, "batch": 4})
    run_all(settings, Silent())
    ranks = layout.get("world_size", 2)
    assert re.findall(r"^  (\S+), (\d+) ranks:$", str(summarise(settings)), re.M) == (
        [(named, str(ranks))] if named else []
    )
