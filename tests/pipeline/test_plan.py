"""A plan says what the next run computes, and why; the run then does just that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dagster_divorder.cli.runs import plan as plan_page
from dagster_divorder.cli.runs import prune as prune_page
from dagster_divorder.pipeline.plan import Plan, make_plan
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH
from dagster_divorder.store.local import LocalStore
from tests.conftest import topic_records, write_jsonl
from tests.pipeline.test_pipeline import PER_DOCUMENT, run

STAGES = GRAPH.needed(Settings())

Make = Callable[..., Settings]
WHOLE = tuple(
    stage for stage in STAGES if stage not in ("raw_docs", "base_model", *PER_DOCUMENT, "curated_output")
)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "docs.jsonl", topic_records(20))


def files_of(store: Path) -> set[Path]:
    return {path for path in store.rglob("*") if path.is_file()}


def planned(made: Plan) -> dict[str, tuple[str, int]]:
    return {stage.stage: (stage.scope, stage.documents) for stage in made.stages}


def checked_against_the_run(settings: Settings) -> Plan:
    """The plan, after the run has shown that it was true."""
    made = make_plan(GRAPH, settings)
    reports = run(settings)
    for stage in ("raw_docs", *PER_DOCUMENT):
        assert planned(made)[stage][1] == reports[stage]["new_documents"], stage
    for stage in ("base_model", *WHOLE):
        assert (planned(made)[stage][0] == "all") == bool(reports[stage]["new_documents"]), stage
    # An order made again may be the same one.
    assert not reports["curated_output"]["written"] or planned(made)["curated_output"][0] == "all"
    return made


def whys(made: Plan) -> dict[str, str]:
    return {stage.stage: stage.why for stage in made.stages}


def test_nothing_new_and_planning_stores_nothing(corpus: Path, make_settings: Make) -> None:
    settings = make_settings()
    run(settings)
    before = {path: path.stat() for path in files_of(settings.store.path)}
    made = make_plan(GRAPH, settings)
    assert {stage.scope for stage in made.stages} == {"nothing"}
    assert (made.records, made.new_records) == (80, 0)
    after = {path: path.stat() for path in files_of(settings.store.path)}
    assert {path: stat.st_mtime_ns for path, stat in after.items()} == {
        path: stat.st_mtime_ns for path, stat in before.items()
    }
    checked_against_the_run(settings)


def test_a_changed_setting_names_its_stage_and_what_follows(corpus: Path, make_settings: Make) -> None:
    run(make_settings())
    changed = make_settings(embedding={"pooling": "mean"})
    made = checked_against_the_run(changed)
    assert whys(made)["shallow_embeddings"] == "embedding.pooling idf -> mean"
    assert whys(made)["greedy_order"] == "traits is made again"
    assert planned(made)["token_counts"] == ("nothing", 0)
    assert planned(make_plan(GRAPH, make_settings().refitting("model")))["token_counts"] == ("all", 80)


def test_switching_back_is_free_but_for_the_output(corpus: Path, make_settings: Make) -> None:
    first, other = make_settings(), make_settings(embedding={"pooling": "mean"}, clusters={"k": 3})
    run(first)
    run(other)
    made = checked_against_the_run(first)
    assert {stage for stage, (scope, _) in planned(made).items() if scope != "nothing"} == {"curated_output"}
    why = whys(made)
    assert (why["token_counts"], why["clusters"]) == ("up to date", "kept from other settings")
    assert why["greedy_order"] == why["diversity_metrics"] == "kept from other settings"
    assert why["curated_output"] == "output.path holds the output of other settings or files"
    # What was appended meanwhile is new to them.
    write_jsonl(corpus, [*topic_records(20), *topic_records(1, start=90)])
    run(first)
    made = checked_against_the_run(other)
    assert planned(made)["clusters"] == ("new", 4)
    assert planned(made)["token_counts"] == ("nothing", 0)
    assert planned(made)["greedy_order"] == ("all", 84)


def test_the_pages_people_read(corpus: Path, make_settings: Make) -> None:
    settings = make_settings()
    run(settings)
    write_jsonl(corpus, topic_records(20)[:-5])
    run(settings)
    page = str(plan_page(settings))
    assert "75 records in the input, 0 of them new" in page
    assert "up to date" in page
    assert "would be freed: " in str(prune_page(settings, dry_run=True))
    assert "deleted documents among it: yes" in str(prune_page(settings, dry_run=False))
    assert "deleted documents among it: no" in str(prune_page(settings, dry_run=True))
    assert not [name for name in LocalStore(settings.store.path).files() if "tmp" in name]


def test_a_fit_that_no_output_needs_is_made_where_it_is_asked_for(corpus: Path, make_settings: Make) -> None:
    settings = make_settings()
    run(settings)
    assert "map_fit" not in planned(make_plan(GRAPH, settings))
    asked = make_plan(GRAPH, settings.refitting("cluster_map"))
    assert planned(asked)["map_fit"] == ("all", 80)
    assert whys(asked)["map_fit"] == "asked for by --refit cluster_map"
    assert planned(asked).keys() == {*planned(make_plan(GRAPH, settings)), "map_fit"}
