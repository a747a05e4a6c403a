"""Answers: for people at any width and in colours on a terminal; for programs by the keys of docs/json.md; and those of
`divorder run STAGE...`, which makes stages by what they need alone."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from dagster_divorder.cli import GROUPS, main
from dagster_divorder.pipeline.stage import Table
from dagster_divorder.settings import load_settings
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.store.objects import store_at
from dagster_divorder.store.state import load_receipt
from dagster_divorder.view.answer import UNLIMITED, TextTable, as_text
from tests.conftest import small_toml, topic_records, write_jsonl

PAGE = (Path(__file__).parent.parent / "docs/json.md").read_text()


def documented(command: str) -> set[str]:
    """The keys that a command's table, or its row of the last one, names in its first column."""
    for title, text in re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.S | re.M):
        if command in title.split(", "):
            heads = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
            return {key for head in heads for key in re.findall(r"`([^`]+)`", head)}
    (row,) = re.findall(rf"^\| `{command}` \| (.*) \|$", PAGE, re.M)
    return set(re.findall(r"`([^`]+)`", row))


CELLS = (
    "a",
    "日本語",
    "12.5",
    "-",
    "e\u0301",
    "1,234",
    "🙂",
    "two\tparts",
    "two\nlines",
    "  ends  ",
    "",
    "[red]a[/]",
)


@pytest.mark.parametrize("first", range(len(CELLS)))
@pytest.mark.parametrize("width", [10, 20, UNLIMITED])
def test_tables_are_aligned_and_fold_at_any_width(first: int, width: int) -> None:
    """Also of letters that take two columns, tabs, line feeds and markup."""
    from rich.cells import cell_len

    cells = CELLS[first:] + CELLS[:first]
    rows = [dict(zip("日b3", cells[at:], strict=False)) for at in range(0, 9, 3)]
    title, *lines = as_text([TextTable(rows, "title"), TextTable([], "no rows")], width=width).split("\n")
    assert (title, lines[-1]) == ("title", "no rows")
    assert all(cell_len(line) <= width for line in lines)
    words = sorted("".join([*"日b3", *(cell for row in rows for cell in row.values())]).replace("\t", ""))
    shown = sorted("".join(lines[:-1]))
    assert [letter for letter in shown if letter.strip()] == [letter for letter in words if letter.strip()]
    coloured = ESCAPES.sub("", as_text([TextTable(rows, "title")], width=width, colour=True)).split("\n")
    assert coloured == [title, *lines[:-1]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a corpus of 80 texts, one of them twice, its settings and one run."""
    folder = tmp_path_factory.mktemp("answers")
    records = topic_records(20)
    write_jsonl(folder / "docs.jsonl", [*records, records[0]])
    exports = {"formats": ["parquet"], "trainer": "hf-trainer"}
    (folder / "divorder.toml").write_text(
        small_toml(store={"path": "data/store"}, sequence={"length": 64}, exports=exports)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["run"]) == 0
    return folder


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Mapping[str, Any]:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    found: Mapping[str, Any] = orjson.loads(capsys.readouterr().out)
    return found


COMMANDS = {
    "run": [],
    "summary": [],
    "plan": [],
    "verify": ["data/exports/parquet"],
    "compare": [],
    "where": ["--step", "0..1"],
    "freeze": ["--step", "1"],
    "init": ["docs.jsonl", "--config", "other.toml", "--yes"],
    "report": [],
    "prune": ["--dry-run"],
}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_the_keys_of_an_answer_are_documented(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    settings = (folder / "divorder.toml").read_bytes()
    try:
        found = answer(capsys, command, *COMMANDS[command])
    finally:
        (folder / "divorder.toml").write_bytes(settings)
    if command in ("report", "prune"):
        assert set(found) <= documented(command)
    else:
        assert set(found) == documented(command)


def test_every_command_is_documented() -> None:
    for verbs in GROUPS.values():
        for verb in verbs:
            assert documented(verb.name), verb.name


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


ESCAPES = re.compile(r"\x1b\[[\d;]*m")


def on_terminal(monkeypatch: pytest.MonkeyPatch, columns: int, *command: str, **variables: str) -> str:
    for name, value in {"TERM": "xterm", "COLUMNS": str(columns), **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", screen := Terminal())
    assert main([*command]) == 0
    return screen.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize("command", ["summary", "plan", "where --step 0", "verify"])
def test_nothing_but_code_and_long_words_is_wider_than_the_terminal(
    command: str, columns: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    shown = on_terminal(monkeypatch, columns, *command.split())
    assert "\x1b[1m" in shown
    for line in ESCAPES.sub("", shown).splitlines():
        assert len(line) <= columns or line.startswith(" ") or " " not in line.strip(), line


@pytest.mark.slow
def test_the_same_words_everywhere_and_colours_on_a_terminal_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    capsys.readouterr()
    assert main(["summary"]) == 0
    piped = capsys.readouterr().out
    assert "\x1b" not in piped
    words = piped.split()
    coloured = on_terminal(monkeypatch, 400, "summary")
    assert "\x1b" in coloured and ESCAPES.sub("", coloured).replace("─", "").split() == words
    for plain in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        shown = on_terminal(monkeypatch, 60, "summary", **plain)
        assert "\x1b" not in shown and sorted(shown.split()) == sorted(words)
        monkeypatch.delenv("NO_COLOR", raising=False)
    (export,) = re.findall(r"^Give your trainer (\S+) \(", piped, re.M)
    assert list(Path(export).glob("*.parquet")) and "TrainingArguments(" in piped


@pytest.mark.slow
def test_an_export_that_is_gone_is_said_to_be(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    export = folder / "data/exports/parquet"
    export.rename(aside := folder / "aside")
    try:
        assert main(["summary"]) == 0
    finally:
        aside.rename(export)
    said = capsys.readouterr().out
    assert "it is no longer there: run again" in said and "TrainingArguments(" not in said


STAGES: dict[str, dict[str, Any]] = {
    "k_calibration": {"clusters": {"k": [2, 4]}},
    "cluster_map": {},
    "diversity_metrics": {},
    "subset_selection": {"selection": {"method": "random", "tokens": 600}},
}
"""Stage -> the settings that it is for."""


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_is_made_by_what_it_needs_and_no_more_and_shown(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a folder with a space in its name."""
    write_jsonl(tmp_path / "my corpus/docs.jsonl", topic_records(15))
    monkeypatch.chdir(tmp_path / "my corpus")
    Path("divorder.toml").write_text(small_toml(**STAGES[stage]))
    found = answer(capsys, "run", stage)
    settings = load_settings("divorder.toml")
    made = {name for name in GRAPH if load_receipt(store_at(settings.store.path), name)}
    assert made == {*GRAPH.needed(settings, stage)} and not Path("curated").exists()
    shown = GRAPH[stage].show(run := open_run(settings), run.receipt(stage))
    tables = {title: table.rows for title, table in shown.items() if isinstance(table, Table)}
    assert shown and all(len(found[stage][title]) == len(rows) for title, rows in tables.items())

    assert main(["summary", stage]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{stage}: {GRAPH[stage].description}".partition(".")[0])
    assert all(title.replace("_", " ") in said for title in tables)


def test_a_stage_that_is_not_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "docs.jsonl", topic_records(1))
    (tmp_path / "divorder.toml").write_text(small_toml())
    for command, said in (
        (("run", "k_calibratoin"), "stage is 'k_calibratoin'; expected one of .*k_calibration"),
        (("run", "subset_selection"), "these settings have no stage subset_selection; .*selection.method"),
        (("summary", "clusters"), "clusters has no result in .*store"),
    ):
        assert main([*command]) == 1
        assert re.search(said, capsys.readouterr().err)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("columns", ["60", "80", "200"])
def test_help_lists_verbs_with_their_cost_in_the_width_of_the_terminal(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    names = [verb.name for verbs in GROUPS.values() for verb in verbs]
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    starts = {line.split()[0]: at for at, line in enumerate(lines) if line[:2] == "  " and line[2] != " "}
    for name in names:
        rest = lines[starts[name] : starts[name] + 8]
        assert any(line.startswith(f"{'':<16}cost: ") for line in rest), name
    examples = [line for line in lines if line.startswith(f"{'':<16}$ ")]
    assert max(len(line) for line in lines if line not in examples) <= int(columns)
    assert len(examples) == len(names)


def test_the_page_of_verbs_has_every_verb() -> None:
    page = (Path(__file__).parents[1] / "docs" / "verbs.md").read_text(encoding="utf-8")
    verbs = {row.split()[1] for row in re.findall(r"^\| `(.*?)`", page, re.M) if row.startswith("divorder ")}
    assert verbs == {verb.name for verbs in GROUPS.values() for verb in verbs}
