"""What README shows is true: its Python runs, its settings load, its files and strategies are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dagster_divorder.core.order import STRATEGIES
from dagster_divorder.settings import load_settings
from dagster_divorder.stages import GRAPH

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


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


def test_the_training_script_is_the_one_that_is_tested() -> None:
    assert (ROOT / "docs/train.py").read_text() in blocks("python")


def test_the_settings_examples_load(tmp_path: Path) -> None:
    loaded = []
    for toml in blocks("toml"):
        (tmp_path / "divorder.toml").write_text(toml)
        loaded.append(load_settings(tmp_path / "divorder.toml", environ={}))
    own, evidence, many_machines = loaded
    assert evidence.evidence.tokens and evidence.holds_out
    assert own.order.traits == {"cluster": 1.0, "length": 1.0, "source": 1.0}
    assert (many_machines.store.path, many_machines.engine.address) == (
        "s3://training/store",
        "10.0.0.1:6379",
    )


def test_every_strategy_has_a_row_and_every_row_a_strategy() -> None:
    table = README.split("## Strategies")[1].split("\n## ")[0]
    named = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", table, re.M)
    assert set(re.findall(r"\w+", " ".join(named))) == set(STRATEGIES)


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\((?!http)([^)#]+)\)", README))))
def test_links_lead_somewhere(target: str) -> None:
    assert (ROOT / target).exists()


def test_the_picture_the_table_and_the_graph_of_the_demo_are_of_this_state() -> None:
    from PIL import Image

    said = Image.open(ROOT / "docs/ordering_comparison.png").text["Description"].splitlines()
    (demo,) = [block for block in blocks("console") if block.startswith("$ make demo")]
    # Folders are called otherwise there.
    shown = [line for line in demo.splitlines() if "data/exports" not in line]
    lines = [line for line in shown if line and line != "..." and not line.startswith("$")]
    assert len(lines) > 12 and not [line for line in lines if line not in said]
    numbers = dict(re.findall(r"(batch TV, mean, %|worst batch anywhere, points off) +([\d.]+)", demo))
    assert f"in the plan\n{float(numbers['batch TV, mean, %']):.1f} %" in README

    (graph,) = blocks("mermaid")
    arrows = {
        (before, after)
        for before, listed in re.findall(r"^  (\w+) --> (.*)$", graph, re.M)
        for after in listed.split(" & ")
    }
    upstream = GRAPH.asset_upstream(load_settings(ROOT / "data/demo.toml", environ={}))
    assert arrows == {(before, after) for after, reads in upstream.items() for before in reads}
    assert set(re.findall(r"^    (\w+)$", graph, re.M)) == set(upstream)
