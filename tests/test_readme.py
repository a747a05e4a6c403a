"""README and the pages that it leads to are true: Python runs, settings load, files and strategies are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dagster_divorder.core.order import STRATEGIES
from dagster_divorder.settings import load_settings
from dagster_divorder.stages import GRAPH, asset_upstream
from tests.conftest import write_jsonl

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def page(name: str) -> str:
    return (ROOT / f"docs/{name}.md").read_text()


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def test_it_is_read_on_one_screen() -> None:
    assert len(README.splitlines()) <= 120


def test_the_in_memory_example_orders_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = [block for block in blocks("python") if "divorder.order" in block]
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(code, names)
    table, curated = names["table"], names["curated"]
    assert sorted(names["ranks"]) == sorted(curated.index) == list(range(len(table)))
    assert set(curated["topic"].head(4)) == {"sea", "rail"}
    assert "nothing drifts" in capsys.readouterr().out
    assert (tmp_path / "mix.png").is_file()
    assert len([line for line in code.splitlines() if line.strip()]) <= 12


@pytest.mark.slow
def test_the_example_for_a_dagster_project_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import dagster as dg

    (code,) = [block for block in blocks("python") if "build_definitions" in block]
    write_jsonl(tmp_path / "docs.jsonl", [{"text": "a"}])
    (tmp_path / "divorder.toml").write_text('[input]\npaths = ["docs.jsonl"]\n')
    monkeypatch.chdir(tmp_path)
    names: dict = {"my_defs": dg.Definitions()}
    exec(code, names)
    dg.Definitions.validate_loadable(names["defs"])
    assert names["defs"].resolve_job_def("news_curate")


def test_the_training_script_is_the_one_that_is_tested() -> None:
    assert (ROOT / "docs/train.py").read_text() in blocks("python", page("trainers"))


def test_every_strategy_has_a_row_and_every_row_a_strategy() -> None:
    table = page("sections").split("## Strategies")[1].split("\n## ")[0]
    named = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", table, re.M)
    assert sorted(re.findall(r"\w+", " ".join(named))) == sorted(STRATEGIES)


def test_the_picture_the_table_and_the_graph_of_the_demo_are_of_this_state() -> None:
    from PIL import Image

    said = Image.open(ROOT / "docs/ordering_comparison.png").text["Description"].splitlines()
    (demo,) = [block for block in blocks("console") if block.startswith("$ make demo")]
    # Folders are called otherwise there.
    shown = [line for line in demo.splitlines() if "data/exports" not in line]
    lines = [line for line in shown if line and line != "..." and not line.startswith("$")]
    assert len(lines) > 6 and not [line for line in lines if line not in said]
    (off,) = re.findall(r"^batch TV of cluster, mean, % +([\d.]+)", demo, re.M)
    assert f"in the plan it is {float(off):.1f} % off" in page("trainers")

    (graph,) = blocks("mermaid", page("dagster"))
    arrows = {
        (before, after)
        for before, listed in re.findall(r"^  (\w+) --> (.*)$", graph, re.M)
        for after in listed.split(" & ")
    }
    upstream = asset_upstream(GRAPH, load_settings(ROOT / "data/demo.toml", environ={}))
    assert arrows == {(before, after) for after, reads in upstream.items() for before in reads}
    assert set(re.findall(r"^    (\w+)$", graph, re.M)) == set(upstream)
