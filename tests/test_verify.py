"""`divorder verify` over conversations: who reads the export, who the records, and what each is told."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dagster_divorder import run_all
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import DivOrderError, InputError
from dagster_divorder.settings import Settings
from dagster_divorder.settings.sections import Exports
from dagster_divorder.summary import summarise
from dagster_divorder.verify import verify
from tests.conftest import topic_chats, write_jsonl

pytestmark = pytest.mark.slow

Make = Callable[..., Settings]


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
