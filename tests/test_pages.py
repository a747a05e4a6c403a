"""docs/tables.md and docs/streams.md: their code runs as it stands, from top to bottom, and does what they say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

DOCS = Path(__file__).parent.parent / "docs"
PAGE, STREAMS = ((DOCS / name).read_text() for name in ("tables.md", "streams.md"))


def run(page: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.S):
        exec(block, names)
    return names


@pytest.mark.slow
def test_the_code_about_tables_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = run(PAGE)
    table, ordered = names["table"], names["ordered"]
    assert len(table) > 1000 and sorted(ordered.index) == list(range(len(table)))
    assert next(iter(names["reader"])) == ordered["text"].tolist()[:32]
    assert sorted(names["ranks"]) == list(range(2 * len(table)))
    assert names["ranks"][:320].tolist() == names["consumed"].tolist()
    assert (tmp_path / "mix.png").is_file()

    found = names["found"]
    assert not found.drifting
    for measure in ("mean window", "worst window"):
        (line,) = [of for of in found.lines if (of.column, of.measure) == ("module", measure)]
        assert line.value < 0.6 * line.shuffled
    (shown,) = re.findall(r"```\n([\d,]+) rows(.*)\n", PAGE)
    title = capsys.readouterr().out.splitlines()[0]
    assert re.sub(r"^[\d,]+ rows", "", title) == shown[1]

    assert pd.Series(table["difficulty"].to_numpy()[names["along"]]).corr(pd.Series(range(len(table)))) > 0.85


@pytest.mark.slow
def test_the_code_about_streams_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run(STREAMS)
    rows = [json.loads(line) for line in (tmp_path / "docstrings.jsonl").read_text().splitlines()]
    assert sorted(names["modules_in_order"]) == sorted(row["module"] for row in rows)
    assert names["read"] + names["rest"] == list(names["balanced"])
    whole = list(names["balanced"])
    reading = iter(names["dataset"])
    assert [next(reading) for _ in range(100)] == whole[:100]
    names["dataset"].load_state_dict(names["dataset"].state_dict())
    assert list(names["dataset"]) == whole[100:]
    loaders = [StatefulDataLoader(names["Stream"](), batch_size=None) for _ in range(2)]
    reading = iter(loaders[0])
    assert [next(reading) for _ in range(100)] == whole[:100]
    loaders[1].load_state_dict(loaders[0].state_dict())
    assert [list(loaders[1]), list(loaders[1])] == [whole[100:], whole]
