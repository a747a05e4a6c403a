"""Pages can be pasted: code and commands need what `make install` installs, and what a pip line above them names. The
code of README, docs/tables.md and docs/streams.md runs as it stands, and does what they say."""

from __future__ import annotations

import ast
import functools
import json
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, entry_points, packages_distributions, requires
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from torchdata.stateful_dataloader import StatefulDataLoader

from dagster_divorder.core.order import STRATEGIES
from dagster_divorder.settings import load_settings
from dagster_divorder.stages import GRAPH, asset_upstream
from tests.conftest import ROOT, write_jsonl
from tests.test_layers import modules_of

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
INSTALLED = "dagster-divorder[films]"
"""What `make install` installs."""
BRINGS = {"notebook": ["ipykernel"]}
"""Distributions that pages name and that are not installed here -> what they bring."""


@functools.cache
def _needs_of(name: str) -> list[str]:
    if name == PROJECT["name"]:
        extras = PROJECT["optional-dependencies"].items()
        return PROJECT["dependencies"] + [
            f'{need}; extra == "{extra}"' for extra, needs in extras for need in needs if ";" not in need
        ]
    try:
        return requires(name) or []
    except PackageNotFoundError:
        return BRINGS.get(name, [])


def distributions(requirements: Iterable[str]) -> set[str]:
    """The distributions that pip installs for some requirements, those that they need among them."""
    todo, seen = [*map(Requirement, requirements)], set[tuple[str, str]]()
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras} - {known for of, known in seen if of == name}:
            seen.add((name, extra))
            needs = map(Requirement, _needs_of(name))
            todo += [need for need in needs if not need.marker or need.marker.evaluate({"extra": extra})]
    return {name for name, _ in seen}


_closure = functools.cache(distributions)


@functools.cache
def _owners() -> dict[str, set[str]]:
    """Module -> its distributions."""
    return {module: {*map(canonicalize_name, of)} for module, of in packages_distributions().items()}


@functools.cache
def _scripts() -> dict[str, str]:
    """Command -> its distribution."""
    found = entry_points(group="console_scripts")
    return {script.name: canonicalize_name(script.dist.name) for script in found if script.dist}


def allowed(above: str) -> set[str]:
    """The distributions that code may use, below some text of a page."""
    lines = re.findall(r"pip install ([^`\n#]+)", above)
    named = {word for line in lines for word in shlex.split(line) if not re.match(r"-|\.|constraints", word)}
    return _closure(frozenset(named | {INSTALLED, "pip"}))


def hidden_modules(above: str) -> set[str]:
    """The modules, installed here, that code below some text of a page may not import."""
    known = allowed(above)
    return {module for module, of in _owners().items() if known.isdisjoint(of)}


def hidden_commands(above: str) -> set[str]:
    """The commands, installed here, that a page may not use below some text."""
    known = allowed(above)
    return {name for name, of in _scripts().items() if of not in known}


README = (ROOT / "README.md").read_text()


def page(name: str) -> str:
    return (ROOT / f"docs/{name}.md").read_text()


def fenced(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def test_readme_is_read_on_one_screen() -> None:
    assert len(README.splitlines()) <= 120


def test_the_in_memory_example_orders_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = [block for block in fenced("python") if "divorder.order" in block]
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(code, names)
    table, curated = names["table"], names["curated"]
    assert sorted(names["ranks"]) == sorted(curated.index) == list(range(len(table)))
    assert set(curated["topic"].head(4)) == {"sea", "rail"}
    assert "nothing drifts" in capsys.readouterr().out
    assert (tmp_path / "mix.png").is_file()
    assert len([line for line in code.splitlines() if line.strip()]) <= 12
    # The site's start page has lines of it.
    (start,) = fenced("python", page("index"))
    assert {*start.splitlines()} <= {*code.splitlines()}


@pytest.mark.slow
def test_the_example_for_a_dagster_project_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import dagster as dg

    (code,) = [block for block in fenced("python") if "build_definitions" in block]
    write_jsonl(tmp_path / "docs.jsonl", [{"text": "a"}])
    (tmp_path / "divorder.toml").write_text('[input]\npaths = ["docs.jsonl"]\n')
    monkeypatch.chdir(tmp_path)
    names: dict = {"my_defs": dg.Definitions()}
    exec(code, names)
    dg.Definitions.validate_loadable(names["defs"])
    assert names["defs"].resolve_job_def("news_curate")


def test_the_training_script_is_the_one_that_is_tested() -> None:
    assert (ROOT / "docs/train.py").read_text() in fenced("python", page("trainers"))


def test_every_strategy_has_a_row_and_every_row_a_strategy() -> None:
    table = page("sections").split("## Strategies")[1].split("\n## ")[0]
    named = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", table, re.M)
    assert sorted(re.findall(r"\w+", " ".join(named))) == sorted(STRATEGIES)


def test_the_picture_the_table_and_the_graph_of_the_demo_are_of_this_state() -> None:
    from PIL import Image

    said = Image.open(ROOT / "docs/ordering_comparison.png").text["Description"].splitlines()
    (demo,) = [block for block in fenced("console") if block.startswith("$ make demo")]
    # Folders are called otherwise there.
    shown = [line for line in demo.splitlines() if "data/exports" not in line]
    lines = [line for line in shown if line and line != "..." and not line.startswith("$")]
    assert len(lines) > 6 and not [line for line in lines if line not in said]
    (off,) = re.findall(r"^batch TV of cluster, mean, % +([\d.]+)", demo, re.M)
    assert f"in the plan it is {float(off):.1f} % off" in page("trainers")

    (graph,) = fenced("mermaid", page("dagster"))
    arrows = {
        (before, after)
        for before, listed in re.findall(r"^  (\w+) --> (.*)$", graph, re.M)
        for after in listed.split(" & ")
    }
    upstream = asset_upstream(GRAPH, load_settings(ROOT / "data/demo.toml", environ={}))
    assert arrows == {(before, after) for after, reads in upstream.items() for before in reads}
    assert set(re.findall(r"^    (\w+)$", graph, re.M)) == set(upstream)


DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *(page for page in sorted(DOCS.rglob("*.md")) if "decisions" not in page.parts)]
COMMAND = re.compile(r"(?:^\$ (?:\w+=\S+ )*|^    |`|# or )([a-z][\w-]*)(?= )", re.M)


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """The page's Python: (what stands above a block, the block)."""
    for block in re.finditer(r"```python\n(.*?)```", page, re.S):
        yield page[: block.start()], block[1]


def imported(code: str) -> set[str]:
    return {module.partition(".")[0] for node in ast.walk(ast.parse(code)) for module in modules_of(node)}


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
    names = run(page("tables"))
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
    (shown,) = re.findall(r"```\n([\d,]+) rows(.*)\n", page("tables"))
    title = capsys.readouterr().out.splitlines()[0]
    assert re.sub(r"^[\d,]+ rows", "", title) == shown[1]


@pytest.mark.slow
def test_the_code_about_streams_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run(page("streams"))
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
