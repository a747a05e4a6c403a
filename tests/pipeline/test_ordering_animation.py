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
from dagster_divorder.store.output_manifests import read_manifest
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


def test_another_output_has_films_of_its_own_and_keeps_the_earlier_ones(
    make_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    settings = settings_for(make_settings, tmp_path)
    first = animate(settings)
    before = (settings.output.path / BAR).read_bytes()
    manifest = read_manifest(settings.output.path)
    assert manifest is not None
    written = f"{manifest['date']}T{manifest['time'].replace(':', '')}"
    other = settings_for(make_settings, tmp_path, order={"strategy": "random"})
    run_all(other, Silent())
    earlier = [f"{Path(name).stem}-{written}.mp4" for name in (BAR, MAP)]
    assert sorted(film.name for film in other.output.path.glob("*.mp4")) == sorted(earlier)
    assert (other.output.path / earlier[0]).read_bytes() == before
    second = animate(other)
    assert second.version != first.version
    assert (other.output.path / earlier[0]).read_bytes() == before
    assert (settings.output.path / BAR).read_bytes() != before
