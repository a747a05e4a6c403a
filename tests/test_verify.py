"""`divorder verify` over conversations: who reads the export, who the records, and what each is told."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dagster_divorder import run_all
from dagster_divorder.cli.runs import summary
from dagster_divorder.core.spans import Spans
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import InputError
from dagster_divorder.labels import check_labels
from dagster_divorder.settings import Settings
from dagster_divorder.settings.sections import Exports
from dagster_divorder.stages import open_run
from dagster_divorder.stages.text.loss_mask import load_loss_mask
from dagster_divorder.verify import load_export, verify
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


@pytest.mark.parametrize("columns", [("labels",), ("assistant_masks",), ("completion_mask", "position_ids")])
def test_labels_are_the_plans_or_the_first_other_one_is_named(
    settings: Settings, columns: tuple[str, ...]
) -> None:
    pytest.importorskip("trl")
    exports = settings.exports.model_copy(update={"columns": columns})
    settings = settings.model_copy(update={"exports": exports})
    run_all(settings, Silent())
    answer = verify(settings, exports.path / "parquet", "trl")
    padding_free, padded, plain, flattened = answer.data["labels"]
    tokens = padding_free["tokens"]
    assert tokens == plain["equal"] == flattened["equal"] > 1000
    assert padding_free["apart"] and flattened["apart"] and not padded["apart"]
    # TRL reads completion_mask only where completion_only_loss is set.
    read = columns != ("completion_mask", "position_ids")
    assert answer.passed == read
    assert (padding_free["equal"] == tokens) == read == (padded["first"] is None)
    said = str(answer)
    assert (
        "the plan's: " + f"{tokens:,} of {tokens:,} tokens" in said
    ) and "across documents: an attention mask makes tokens attend" in said
    assert ("instead of -100, at token" in said) == (not read)
    assert ('Set exports.columns = ["labels"]' in said) == (not read)


def test_collators_of_transformers_keep_labels_make_their_own_or_refuse(settings: Settings) -> None:
    for columns, kept in [(("labels",), True), (("completion_mask",), False)]:
        exports = settings.exports.model_copy(update={"columns": columns})
        chosen = settings.model_copy(update={"exports": exports})
        run_all(chosen, Silent())
        answer = verify(chosen, exports.path / "parquet", "hf-trainer")
        labels = {row["name"]: row for row in answer.data["labels"]}
        padded = labels["DataCollatorForSeq2Seq"]
        own = labels["DataCollatorForLanguageModeling(mlm=False)"]
        assert answer.passed == kept
        assert "expected sequence of length" in labels["default_data_collator"]["error"]
        if kept:
            assert padded["equal"] == padded["tokens"] > 1000 and "Unable to create tensor" in own["error"]
        else:
            # Without labels the first gives none, and the second makes them of the ids.
            assert padded["error"] and own["equal"] < own["tokens"]


@pytest.mark.parametrize(
    "sections",
    [
        {"packing": {"end_of_text": True}},
        {"packing": {"method": "none"}},
        {"packing": {"method": "concat", "too_long": "cut"}, "sequence": {"length": 40, "batch": 4}},
        {"packing": {"too_long": "truncate"}, "sequence": {"length": 40, "batch": 4}},
        {"exports": {"world_size": 2, "micro_batch": 2}, "sequence": {"epochs": 2}},
        {"exports": {"shard_bytes": 2000}, "chats": {"train_on": "last"}},
        {"chats": {"train_on": "completion"}},
    ],
    ids=["end of text", "none", "concat", "truncated", "ranks and epochs", "shards, last", "completion"],
)
def test_readers_give_the_plans_labels_under_every_setting(
    sections: dict[str, Any], tmp_path: Path, make_settings: Make
) -> None:
    write_jsonl(tmp_path / "chats.jsonl", chats(48))
    exports = {"formats": ("parquet",), "path": tmp_path / "exports", **sections.pop("exports", {})}
    source = {"paths": (str(tmp_path / "chats.jsonl"),), "format": "messages"}
    settings = make_settings(input=source, exports=exports, **sections)
    run_all(settings, Silent())
    folder = settings.exports.path / "parquet"
    manifest = load_export(folder)
    labels = check_labels(open_run(settings), folder, manifest, "dataloader")
    assert [row.passed for row in labels] == [True, True], labels
    # Every token of a small export is looked at, in all of its epochs.
    assert labels[0].tokens == manifest["tokens"] > 1000
    assert labels[0].apart is None or settings.packing.method != "none"


def test_labels_of_an_export_that_is_not_the_plans_are_told_from_them(settings: Settings) -> None:
    """The mask of the store with one span moved: every collator then gives other labels than the plan's."""
    run_all(settings, Silent())
    run, folder = open_run(settings), settings.exports.path / "parquet"
    moved = load_loss_mask(run)
    assert moved is not None
    first = moved.trained.first.copy()
    first[0] -= 1
    run.memo["loss_mask"] = replace(moved, trained=Spans(first, moved.trained.last))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("dagster_divorder.labels.load_loss_mask", lambda run: run.memo["loss_mask"])
        (plain, flattened) = check_labels(run, folder, load_export(folder), "dataloader")
    assert plain.equal == plain.tokens - 1 and plain.first and plain.first[3] == -100 and not plain.passed
    assert flattened.first == plain.first and flattened.equal == flattened.tokens - 1


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
    said = str(summary(settings))
    before, _, lines = said.partition("  trl, 2 ranks:\n")
    assert f"Give your trainer {settings.exports.path / 'parquet'}" in before and lines.startswith(
        "    SFTConfig("
    )
    assert f"torchtune): divorder verify {settings.output.path} --trainer NAME" in lines


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
    assert re.findall(r"^  (\S+), (\d+) ranks:$", str(summary(settings)), re.M) == (
        [(named, str(ranks))] if named else []
    )
