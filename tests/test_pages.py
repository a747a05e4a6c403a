"""Pages can be pasted: code and commands need what `make install` installs, and what a pip line above them names.

docs/tables.md and docs/streams.md: their code runs as it stands, from top to bottom, and does what they say.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.page_needs import ROOT, distributions, hidden_commands, hidden_modules

DOCS = ROOT / "docs"
PAGE, STREAMS = ((DOCS / name).read_text() for name in ("tables.md", "streams.md"))
PAGES = [ROOT / "README.md", *(page for page in sorted(DOCS.rglob("*.md")) if "decisions" not in page.parts)]
COMMAND = re.compile(r"(?:^\$ (?:\w+=\S+ )*|^    |`|# or )([a-z][\w-]*)(?= )", re.M)


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """The page's Python: (what stands above a block, the block)."""
    for block in re.finditer(r"```python\n(.*?)```", page, re.S):
        yield page[: block.start()], block[1]


def imported(code: str) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    return names


def unsaid(page: str) -> list[str]:
    """What a page uses, and no pip line above it names."""
    modules = [
        name for above, code in blocks(page) for name in sorted(imported(code) & hidden_modules(above))
    ]
    named = [(page[: found.start()], found[1]) for found in COMMAND.finditer(page)]
    return modules + [name for above, name in named if name in hidden_commands(above)]


def test_every_page_names_what_it_needs_first() -> None:
    assert {str(page.relative_to(ROOT)): found for page in PAGES if (found := unsaid(page.read_text()))} == {}


def test_what_a_page_does_not_name_is_found() -> None:
    block = "```python\nimport torch\nfrom datasets import Dataset\n```\n$ dg launch\n"
    assert unsaid(block) == ["datasets", "dg"]
    assert unsaid(f"`pip install trl` brings it.\n{block}") == ["dg"]
    assert unsaid(f"    pip install -c constraints.txt trl dagster-dg-cli\n{block}") == []
    assert {"ray", "obstore"} <= distributions(["dagster-divorder[ray,objects]"])
    assert {"pytest", "ipykernel"} <= hidden_modules("") and "pytest" in hidden_commands("")


def run(page: str) -> dict[str, Any]:
    """The names that the blocks of a page leave."""
    names: dict[str, Any] = {}
    for _, block in blocks(page):
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
    assert names["ranks"][:320].tolist() == names["read"].tolist()
    assert (tmp_path / "mix.png").is_file()

    found = names["found"]
    assert not found.drifting
    for measure in ("TV of windows, mean", "share error of any window, worst"):
        (line,) = [of for of in found.lines if (of.column, of.measure) == ("module", measure)]
        assert line.value < 0.6 * line.shuffled
    (shown,) = re.findall(r"```\n([\d,]+) rows(.*)\n", PAGE)
    title = capsys.readouterr().out.splitlines()[0]
    assert re.sub(r"^[\d,]+ rows", "", title) == shown[1]


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
