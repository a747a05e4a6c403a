"""`where` and `freeze`: which documents steps read, what a trainer has read, and the rest without some."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from dagster_divorder import run_all, where
from dagster_divorder.cli import main
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import InputError
from dagster_divorder.forensics import plan_freeze
from dagster_divorder.pipeline.run import run_checks
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.order.sequence_order import load_sequence_order
from tests.conftest import changed, small_settings, topic_records, write_jsonl
from tests.pipeline.runs import ran, sequences_of

BATCH, LENGTH = 4, 64


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Of a run with own ids, two epochs, two records that are equal, and one without a source."""
    folder = tmp_path_factory.mktemp("forensics")
    records = [{**record, "id": f"doc-{at}"} for at, record in enumerate(topic_records(15))]
    del records[7]["source"]
    write_jsonl(folder / "docs.jsonl", [*records, records[3]])
    made = small_settings(
        folder,
        input={"id_field": "id", "source_field": "source"},
        sequence={"length": LENGTH, "batch": BATCH, "epochs": 2},
        packing={"end_of_text": True},
    )
    run_all(made, Silent())
    return made


def read_slowly(settings: Settings) -> list[tuple[int, int, int, int, int]]:
    """(step, sequence, offset, record, first token of it) of every run of tokens, in the order of training."""
    found = []
    for position, runs in enumerate(sequences_of(open_run(settings))):
        offset = 0
        for record, start, length in runs:
            found.append((position // BATCH, position, offset, record, start))
            offset += length
    return found


def test_steps_sequences_and_documents_are_found(settings: Settings) -> None:
    every = read_slowly(settings)
    last = every[-1][0]
    assert last > 20
    table = where(settings, steps=range(last + 1))
    assert len(table) == len(every)
    rows = table[["step", "sequence", "offset", "start"]].to_numpy().tolist()
    assert rows == [[step, position, offset, start] for step, position, offset, _, start in every]
    names = [f"doc-{record if record < 60 else 3}" for *_, record, _ in every]
    assert table["id"].tolist() == names
    sources = {"sea.example", "kitchen.example", "garden.example", "rail.example"}
    assert set(table["source"].dropna()) == sources and table["source"].isna().any()
    assert (table["start"] + table["tokens"] <= table["document_tokens"]).all()
    assert table["first_words"][0].startswith(("sea", "kitchen", "garden", "rail"))
    # One step, one sequence, one document are parts of it.
    assert where(settings, steps=[3]).equals(table[table.step == 3].reset_index(drop=True))
    assert where(settings, sequences=[9]).equals(table[table.sequence == 9].reset_index(drop=True))
    of_three = where(settings, steps=[1, 2, 3])
    for numbers in (range(3, 0, -1), (3, 2, 1, 3), np.array([1, 2, 3], np.int32), iter([2, 3, 1])):
        assert where(settings, steps=numbers).equals(of_three)
    of_one = where(settings, ids=["doc-3"])
    assert of_one.equals(table[table.id == "doc-3"].reset_index(drop=True))
    # Both of the equal records, in both epochs.
    tokens = of_one["document_tokens"].iloc[0]
    assert of_one["tokens"].sum() == 4 * tokens
    assert len(table) == sum(len(where(settings, ids=[f"doc-{at}"])) for at in range(60))


def test_what_is_not_there_is_named(settings: Settings) -> None:
    no_id = "no record of the input has the id"
    for asked, said in (
        ({"steps": [5000]}, r"step is 5,000; over all epochs the plan has steps 0 to \d+"),
        ({"sequences": [-1]}, "sequence is -1; over all epochs the plan has sequences 0 to"),
        ({"ids": ["doc-1", "doc-99"]}, f"{no_id} 'doc-99'; expected one of the field 'id'"),
        ({"ids": ["\udcff"]}, rf"{no_id} '\\udcff'"),
        ({}, "nothing to look up"),
    ):
        with pytest.raises(InputError, match=said):
            where(settings, **asked)


def test_the_rest_of_a_training_is_planned_without_what_is_cut(settings: Settings) -> None:
    """Of a document that was partly read, too."""
    before = read_slowly(settings)
    frozen = plan_freeze(settings, step=3).settings
    read = where(settings, steps=[4, 5])["id"]
    planned = changed(frozen, order={"cut": (*read, "doc-1")})
    gone = {record for step, *_, record, _ in before if step in (4, 5)} | {1}
    run_all(planned, Silent())
    after = read_slowly(planned)
    beginning = [row for row in before if row[0] < 3]
    assert after[: len(beginning)] == beginning
    epoch = load_sequence_order(open_run(planned)).shape[1]
    gone |= {3, 60} if gone & {3, 60} else set()
    later = {record for _, position, _, record, _ in after[len(beginning) :] if position < epoch}
    assert not later & gone
    assert later | gone | {record for *_, record, _ in beginning} == set(range(61))
    found = run_checks(GRAPH, planned, stage="packed_sequences")["no_token_lost"]
    assert found.passed and "that are left out on purpose" in found.text
    # And back.
    run_all(settings, Silent())
    assert read_slowly(settings) == before


def test_steps_and_sequences_freeze_the_tokens_of_the_published_plan(settings: Settings) -> None:
    planned = plan_freeze(settings, step=3)
    assert planned == plan_freeze(settings, sequences=3 * BATCH)
    assert (planned.tokens, planned.step, planned.sequences) == (3 * BATCH * LENGTH, 3, 3 * BATCH)
    epoch = load_sequence_order(open_run(settings)).shape[1]
    assert planned.rest == epoch - planned.sequences > 0 < planned.records
    # Another one before the run.
    assert plan_freeze(planned.settings, step=2).step == 2


@pytest.mark.parametrize(
    "changed",
    [
        {"packing": {"method": "best_fit"}},
        {"packing": {"method": "none"}},
        {"heldout": {"documents": 0.1}},
    ],
    ids=["padded", "not packed", "held out"],
)
def test_all_of_an_epoch_can_stay(changed: dict[str, Any], settings: Settings, tmp_path: Path) -> None:
    """Its last batch, which is not full, and padding, too, whatever is appended; settings under which other stages are
    read then."""
    shutil.copy(settings.input.paths[0], tmp_path)
    sequence = {"length": LENGTH, "batch": BATCH, "epochs": 2}
    other = small_settings(tmp_path, input={"source_field": "source"}, sequence=sequence, **changed)
    run_all(other, Silent())
    order = load_sequence_order(open_run(other))
    steps = -(-order.shape[1] // BATCH)
    planned = plan_freeze(other, step=steps)
    assert (planned.step, planned.sequences, planned.rest) == (steps, order.shape[1], 0)
    with pytest.raises(
        InputError, match=rf"step is {steps + 1}; .* in an epoch of 2, and only the first epoch can be frozen"
    ):
        plan_freeze(other, step=steps + 1)
    before = [row for row in read_slowly(other) if row[1] < order.shape[1]]
    with open(other.input.paths[0], "ab") as file:
        file.writelines(orjson.dumps(record) + b"\n" for record in topic_records(5, start=50))
    # No token is lost.
    assert run_checks(GRAPH, ran(planned.settings).settings, stage="packed_sequences")["no_token_lost"].passed
    after = read_slowly(planned.settings)
    assert after[: len(before)] == before and len(after) > 2 * len(before)
    again = plan_freeze(planned.settings, sequences=planned.sequences)
    assert again.tokens == planned.tokens and again.plan != planned.plan and again.rest > 0


def test_what_cannot_stay_is_refused(settings: Settings, tmp_path: Path) -> None:
    epoch = load_sequence_order(open_run(settings)).shape[1]
    assert plan_freeze(settings, sequences=epoch).rest == 0
    for wrong in (-1, epoch + 1):
        with pytest.raises(InputError, match=rf"sequences is {wrong:,}; plan \w+ has {epoch} sequences"):
            plan_freeze(settings, sequences=wrong)
    other_batch = changed(settings, sequence={"batch": 8})
    with pytest.raises(InputError, match=r"sequence.batch is 8 but was 4 when the order was made"):
        plan_freeze(other_batch, step=2)
    assert plan_freeze(other_batch, sequences=8).tokens == 8 * LENGTH
    with pytest.raises(InputError, match=r"sequence.batch is 8"):
        where(other_batch, steps=[1])
    with pytest.raises(InputError, match=r"sequence\.length was 64, is 32"):
        plan_freeze(changed(settings, sequence={"length": 32}), step=2)
    with pytest.raises(InputError, match=r"no plan was published in .*; expected a finished run"):
        plan_freeze(changed(settings, store={"path": tmp_path / "none"}), step=2)
    with pytest.raises(InputError, match="the part that a trainer has read is unknown"):
        plan_freeze(settings)


def test_freeze_writes_its_setting_and_leaves_the_rest_of_the_file(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, tokens = tmp_path / "divorder.toml", 3 * BATCH * LENGTH
    file.write_text(mine := "# mine\n[sequence]\nlength = 64 # short\n")

    def load(config: str | None) -> Settings:
        order = tomllib.loads(file.read_text()).get("order", {}) if file.exists() else {}
        return changed(settings, order=order)

    monkeypatch.setattr("dagster_divorder.settings.load_settings", load)
    monkeypatch.chdir(tmp_path)
    assert main(["freeze", "--step", "3"]) == 0
    said = capsys.readouterr().out
    held = plan_freeze(settings, step=3).plan
    assert f"the first {tokens} tokens of plan {held} stay: 12 sequences of 64, 3 steps of 4" in said
    assert "the next run may move the" in said and f"written into {file}" in said
    assert file.read_text() == f"{mine}\n[order]\nfrozen_tokens = {tokens}\n"
    written = file.read_bytes()
    assert main(["freeze", "--step", "9999"]) == 1 and "step is 9,999" in capsys.readouterr().err
    assert file.read_bytes() == written
    assert main(["freeze", "--step", "0"]) == 0
    assert "the next run reorders everything" in capsys.readouterr().out
    assert tomllib.loads(file.read_text())["order"] == {"frozen_tokens": 0}
    file.unlink()
    assert main(["freeze", "--sequences", "1_000"]) == 1
    assert "there is no divorder.toml to write to" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["freeze"])
    for text in ("-1", "1.5", "1e3", "", "x"):
        with pytest.raises(SystemExit, match="2"):
            main(["freeze", "--step", text])
        assert f"{text!r} is not a whole number from 0" in capsys.readouterr().err


def test_the_commands_show_it(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_divorder.settings.load_settings", lambda config: settings)
    assert main(["where", "--step", "2..3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    table = where(settings, steps=[2, 3])
    assert lines[:2] == [f"plan {table.attrs['plan']}, steps of 4 sequences", ""]
    assert len(lines) == 3 + len(table)
    assert "doc-" in lines[3] and ".example, " in lines[3]
    (step, *_) = where(settings, ids=["doc-7"]).step
    assert main(["where", "--step", str(step)]) == 0, "one of its documents has no source"
    capsys.readouterr()
    assert main(["where", "--step", "2..3", "--json"]) == 0
    answer = orjson.loads(capsys.readouterr().out)
    assert answer["ids"] == list(dict.fromkeys(table.id)) and len(answer["runs"]) == len(table)
    assert main(["where"]) == 1
    assert "--sequence 7" in (errors := capsys.readouterr().err) and "--step 1200..1210" in errors
    assert main(["where", "--step", "9999"]) == 1
    assert "divorder: step is 9,999" in capsys.readouterr().err
    assert main(["where", "--step", "0..1000000000"]) == 1
    assert "divorder: step is 1,000,000,000" in capsys.readouterr().err
