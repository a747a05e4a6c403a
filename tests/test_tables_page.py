"""docs/tables.md: its code runs as it stands, from top to bottom, and does what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PAGE = (Path(__file__).parent.parent / "docs/tables.md").read_text()


@pytest.mark.slow
def test_the_code_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        exec(block, names)
    table, ordered = names["table"], names["ordered"]
    assert len(table) > 1000 and sorted(ordered.index) == list(range(len(table)))
    assert next(iter(names["loader"])) == ordered["text"].tolist()[:32]
    assert sorted(names["ranks"]) == list(range(len(table)))
    assert (tmp_path / "mix.png").is_file()

    found = names["found"]
    assert not found.drifting
    for measure in ("mean window", "worst window"):
        (line,) = [of for of in found.lines if (of.column, of.measure) == ("module", measure)]
        assert line.value < 0.6 * line.shuffled
    (shown,) = re.findall(r"```\n([\d,]+) rows(.*)\n", PAGE)
    title = capsys.readouterr().out.splitlines()[0]
    assert re.sub(r"^[\d,]+ rows", "", title) == shown[1]

    asyncio = (table["module"] == "asyncio").to_numpy()[names["ranks"]]
    share = np.add.reduceat(asyncio * table["words"].to_numpy()[names["ranks"]], [0, len(table) // 2])
    assert share[0] < share[1]


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\((?!http)([^)#]+)\)", PAGE))))
def test_links_lead_somewhere(target: str) -> None:
    assert (Path(__file__).parent.parent / "docs" / target).exists()
