"""The films as a stage: made once, again only for another order, written next to the output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dagster_divorder import run_all
from dagster_divorder.engine.progress import Silent
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH
from dagster_divorder.stages.output import ordering_animation
from dagster_divorder.stages.output.ordering_animation import BAR, MAP
from dagster_divorder.store.state import Receipt
from tests.conftest import topic_records, write_jsonl

STAGE = "ordering_animation"


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering_animation, "FRAMES", 3)


def animate(settings: Settings) -> Receipt:
    return run_all(settings, Silent(), GRAPH.needed(settings, "curated_output", STAGE))[STAGE]


def settings_for(make_settings: Callable[..., Settings], tmp_path: Path, **sections: object) -> Settings:
    write_jsonl(tmp_path / "docs.jsonl", topic_records(30) + topic_records(5))
    return make_settings(**sections)


def test_films_are_made_once_and_put_back_where_they_are_gone(
    make_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    settings = settings_for(make_settings, tmp_path)
    first = animate(settings)
    films = {name: (settings.output.path / name).read_bytes() for name in (BAR, MAP)}
    assert all(data[4:8] == b"ftyp" for data in films.values())
    assert first.figures["new_documents"] == 140
    (settings.output.path / MAP).unlink()
    (settings.output.path / BAR).write_bytes(b"half a fi")
    second = animate(settings)
    assert second.figures["new_documents"] == 0
    assert second.version == first.version
    assert {name: (settings.output.path / name).read_bytes() for name in films} == films
