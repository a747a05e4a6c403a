"""`divorder run STAGE...` makes stages by what they need alone, and shows them as `divorder summary STAGE...` does."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
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
from tests.conftest import small_toml, topic_records, write_jsonl

TOML = partial(
    small_toml,
    input={"paths": ["docs \u6d77.jsonl"], "source_field": "source"},
    store={"path": "a store"},
)

Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sixty-one documents of four sources, one of them twice, in a folder with a space in its name."""
    folder = tmp_path / "my corpus"
    folder.mkdir()
    monkeypatch.chdir(folder)
    records = topic_records(15)
    near = {**records[5], "text": f"{records[5]['text']} ebb"}
    write_jsonl(folder / "docs \u6d77.jsonl", [*records, near, records[3]])
    return folder


@pytest.fixture
def ask(folder: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Answers a command in JSON, under these settings."""

    def ask(*command: str, **sections: Any) -> dict[str, Any]:
        (folder / "divorder.toml").write_text(TOML(**sections), encoding="utf-8")
        assert main([*command, "--json"]) == 0, capsys.readouterr().err
        return orjson.loads(capsys.readouterr().out)

    return ask


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
    stage: str, ask: Ask, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = ask("run", stage, **STAGES[stage])
    settings = load_settings("divorder.toml")
    made = {name for name in GRAPH if load_receipt(store_at(settings.store.path), name)}
    assert made == {*GRAPH.needed(settings, stage)} and not (folder / "curated").exists()
    shown = GRAPH[stage].show(run := open_run(settings), run.receipt(stage))
    tables = {title: table.rows for title, table in shown.items() if isinstance(table, Table)}
    assert shown and all(len(found[stage][title]) == len(rows) for title, rows in tables.items())

    assert main(["summary", stage]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{stage}: {GRAPH[stage].description}".partition(".")[0])
    assert all(title.replace("_", " ") in said for title in tables)


def test_a_stage_that_is_not_there_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "divorder.toml").write_text(TOML(), encoding="utf-8")
    for command, said in (
        (("run", "k_calibratoin"), "stage is 'k_calibratoin'; expected one of .*k_calibration"),
        (("run", "subset_selection"), "these settings have no stage subset_selection; .*selection.method"),
        (("summary", "clusters"), "clusters has no result in .*a store"),
    ):
        assert main([*command]) == 1
        assert re.search(said, capsys.readouterr().err)
    assert not (folder / "a store").exists()


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
