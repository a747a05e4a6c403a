"""A plan says what the next run computes, and why; the run then does just that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dagster_divorder.cli import plan as plan_page
from dagster_divorder.cli import prune as prune_page
from dagster_divorder.pipeline.plan import Plan, make_plan
from dagster_divorder.settings import Settings
from dagster_divorder.store.local import LocalStore
from tests.conftest import topic_records, write_jsonl
from tests.pipeline.test_pipeline import PER_DOCUMENT, run

Make = Callable[..., Settings]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "docs.jsonl", topic_records(20))


def files_of(store: Path) -> set[Path]:
    return {path for path in store.rglob("*") if path.is_file()}


def planned(made: Plan) -> dict[str, tuple[str, int]]:
    return {stage.stage: (stage.scope, stage.documents) for stage in made.stages}


def checked_against_the_run(settings: Settings) -> Plan:
    """The plan, after the run has shown that it was true for the per-document stages."""
    made = make_plan(settings)
    reports = run(settings)
    for stage in ("raw_docs", *PER_DOCUMENT):
        assert planned(made)[stage][1] == reports[stage]["new_documents"], stage
    return made


def test_a_new_store_computes_everything_and_no_time_is_known(corpus: Path, make_settings: Make) -> None:
    settings = make_settings()
    made = checked_against_the_run(settings)
    assert {stage.why for stage in made.stages} == {"never ran on this store"}
    assert {stage.seconds for stage in made.stages} == {None}


def test_nothing_new_and_planning_stores_nothing(corpus: Path, make_settings: Make) -> None:
    settings = make_settings()
    run(settings)
    before = {path: path.stat() for path in files_of(settings.store.path)}
    made = make_plan(settings)
    assert {stage.scope for stage in made.stages} == {"nothing"}
    assert (made.records, made.new_records) == (80, 0)
    assert sum(made.disk.values()) == sum(stat.st_size for stat in before.values())
    after = {path: path.stat() for path in files_of(settings.store.path)}
    assert {path: stat.st_mtime_ns for path, stat in after.items()} == {
        path: stat.st_mtime_ns for path, stat in before.items()
    }
    checked_against_the_run(settings)


def test_an_append_computes_the_new_documents_with_a_time_from_the_last_run(
    corpus: Path, make_settings: Make
) -> None:
    settings = make_settings()
    run(settings)
    write_jsonl(corpus, [*topic_records(20), *topic_records(2, start=90)])
    made = checked_against_the_run(settings)
    assert planned(made)["token_counts"] == ("new", 8)
    assert planned(made)["base_model"] == ("nothing", 0)
    assert planned(made)["greedy_order"] == ("all", 88)
    assert all(stage.seconds is not None and stage.seconds > 0 for stage in made.stages if stage.documents)


def test_moved_and_deleted_records_compute_no_document(corpus: Path, make_settings: Make) -> None:
    settings = make_settings()
    run(settings)
    write_jsonl(corpus, topic_records(20)[::-1][3:])
    made = checked_against_the_run(settings)
    assert planned(made)["token_counts"] == ("nothing", 0)
    assert planned(made)["curated_output"] == ("all", 77)


def test_a_changed_setting_names_its_stage_and_what_follows(corpus: Path, make_settings: Make) -> None:
    run(make_settings())
    changed = make_settings(embedding={"pooling": "mean"})
    made = checked_against_the_run(changed)
    why = {stage.stage: stage.why for stage in made.stages}
    assert why["shallow_embeddings"] == "its settings or its code changed"
    assert why["greedy_order"] == "clusters is made again"
    assert planned(made)["token_counts"] == ("nothing", 0)
    assert planned(make_plan(make_settings(model={"refit": "now"})))["token_counts"] == ("all", 80)


def test_the_pages_people_read(corpus: Path, make_settings: Make) -> None:
    settings = make_settings()
    run(settings)
    write_jsonl(corpus, topic_records(20)[:-5])
    run(settings)
    page = plan_page(settings)
    assert "75 records in the input, 0 of them never seen" in page
    assert "up to date" in page
    assert "stages/token_counts" in page
    assert "would be freed" in prune_page(settings, dry_run=True)
    assert "deleted documents: 5" in prune_page(settings, dry_run=False)
    assert "deleted documents: 0" in prune_page(settings, dry_run=True)
    assert not [name for name in LocalStore(settings.store.path).list("") if "tmp" in name]
