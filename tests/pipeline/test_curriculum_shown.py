"""A curriculum as people see it: after a run, in the report, in Dagster's metadata, and every shape side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dagster_divorder import run_all
from dagster_divorder.cli.evidence import compare_curricula
from dagster_divorder.cli.runs import summary
from dagster_divorder.core.order.curricula import SHAPES
from dagster_divorder.errors import SettingsError
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.output.ordering_report import PAGE
from tests.conftest import topic_records, write_jsonl
from tests.test_answers import PAGE as JSON_PAGE
from tests.view.html_page import check

BALANCED = {"cluster": 1.0, "length": 1.0, "source": 1.0}


def settings_of(folder: Path, **sections: Any) -> Settings:
    given: dict[str, Any] = {
        "input": {"paths": [str(folder / "docs.jsonl")], "source_field": "source"},
        "store": {"path": folder / "store"},
        "output": {"path": folder / "curated", "sidecars": ("plot",)},
        "advanced": {"vocab_size": 512, "token_dims": 8},
        "clusters": {"k": 4},
        "order": {"length_bins": 5, "traits": BALANCED},
        "curriculum": {"score": "score", "shape": "zigzag"},
        "sequence": {"length": 64, "batch": 4},
    }
    return Settings(**given | sections)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a corpus of which some records have no score, and a run with a report."""
    folder = tmp_path_factory.mktemp("curriculum")
    records = topic_records(100)
    for record in records[::9]:
        del record["score"]
    write_jsonl(folder / "docs.jsonl", records)
    settings = settings_of(folder)
    compare_curricula(settings, details=False, plot=None)
    run_all(settings, stages=GRAPH.needed(settings, "ordering_report"))
    return folder


def test_a_run_says_what_is_followed_and_what_else_is_kept(folder: Path) -> None:
    answer = summary(settings_of(folder))
    text = str(answer)
    assert answer.data["verdict"][0].startswith("This order follows score along zigzag (folds 5), and keeps ")
    assert "45 others are spread evenly" in text
    assert "sequences along zigzag (folds 5) of score; shuffled: in windows of the same schedule" in text
    assert "TV there of source, %" in text and "worst TV there" not in text
    assert "off the mix at their point of the schedule" in text
    in_full = str(summary(settings_of(folder), details=True))
    assert "worst TV there of source, %" in in_full and "documents along zigzag" in in_full
    row = next(line for line in JSON_PAGE.splitlines() if line.startswith("| `schedule`"))
    assert all(f"`{key}`" in row for key in answer.data["schedule"])
    assert all(f"`{key}`" in row for key in answer.data["schedule"]["scales"]["sequences"])


def test_the_report_and_dagster_show_the_schedule(folder: Path) -> None:
    text = (folder / "curated" / PAGE).read_text()
    assert {'id="schedule"', 'id="curricula"'} <= set(text.replace(">", " ").split())
    assert "score along zigzag" in check(text.encode()).text
    run = open_run(settings_of(folder))
    shown = GRAPH["diversity_metrics"].show(run, run.receipt("diversity_metrics"))
    assert "TV there of cluster" in shown["along_the_schedule"].markdown  # type: ignore[union-attr]


def test_every_shape_is_compared_also_at_strength_0_and_points_where_they_are_set(folder: Path) -> None:
    answer = compare_curricula(settings_of(folder), details=True, plot=folder / "shapes.png")
    rows = answer.data["comparison"]
    assert [(row["shape"], row["windows"]) for row in rows] == [
        (shape, windows) for shape in SHAPES if shape != "points" for windows in ("shuffled", "balanced")
    ]
    assert all(0 < row[name] < 1 for row in rows for name in row if name.startswith(("TV", "batch")))
    assert "TV there of source, %" in str(answer) and "45 of 400 records have no score" in str(answer)
    assert (folder / "shapes.png").read_bytes().startswith(b"\x89PNG")
    points = {"score": "score", "points": [(0, 1), (1, 0)], "strength": 0.0}
    none = compare_curricula(
        settings_of(folder, curriculum=points, sequence={"length": 64, "batch": 4, "strategy": "random"}),
        details=False,
        plot=None,
    )
    table = none.data["comparison"]
    assert [row["shape"] for row in table[-2:]] == ["points", "points"] and table[-1]["windows"] == "random"
    plain = compare_curricula(settings_of(folder, curriculum=points), details=False, plot=None)
    assert "curriculum.strength = 0" in str(plain)
    # Sequences of documents of all scores cannot follow a schedule.
    assert plain.data["comparison"][1]["off the schedule"] > 2 * rows[1]["off the schedule"]


def test_a_comparison_of_curricula_needs_a_score_and_pairs_name_no_schedule(folder: Path) -> None:
    with pytest.raises(SettingsError, match=r'needs a score.*\n\n\[curriculum\]\nscore = "quality"'):
        compare_curricula(settings_of(folder, curriculum={}), details=False, plot=None)
    with pytest.raises(ValueError, match=r"'saw' is a schedule of a score.*compare --curricula"):
        settings_of(folder, comparison={"sequences": ["saw"]})


def test_the_same_shape_is_the_same_order_as_the_plan(folder: Path) -> None:
    own = next(
        row
        for row in compare_curricula(settings_of(folder), details=False, plot=None).data["comparison"]
        if row["shape"] == "zigzag" and row["windows"] == "balanced"
    )
    scale = summary(settings_of(folder)).data["schedule"]["scales"]["sequences"]
    assert own["off the schedule"] == pytest.approx(scale["off"]["achieved"], abs=1e-12)
    for trait, figures in scale["traits"].items():
        assert own[f"TV there of {trait}"] == pytest.approx(figures["batch"], abs=1e-12)
