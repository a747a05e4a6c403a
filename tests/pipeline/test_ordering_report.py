"""The report of real files, and the films beside it: what is in it, what is left out, and when it is made again."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from dagster_divorder import run_all, run_stage
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import DamagedFileError, MissingStageError
from dagster_divorder.pipeline.prune import prune
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH
from dagster_divorder.stages.output import ordering_animation
from dagster_divorder.stages.output.ordering_animation import BAR, MAP
from dagster_divorder.stages.output.ordering_report import PAGE
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.state import Receipt
from tests.conftest import over, small_settings, topic_records, write_jsonl
from tests.view.html_page import Page, check

HOSTILE = "<script>document.title='taken'</script><img src=x onerror=alert(1)>\"'>"


def hostile_records(per_topic: int = 40, start: int = 0) -> list[dict[str, Any]]:
    records = topic_records(per_topic, start)
    for number, record in enumerate(records):
        record["text"] = f"{HOSTILE} {record['text']}"
        record["source"] = f"</style>{HOSTILE}{number % 30}"
    return records


def settings_of(folder: Path, **sections: Any) -> Settings:
    base = {"input": {"source_field": "source"}, "order": {"traits": {"cluster": 1.0, "source": 1.0}}}
    return small_settings(folder, **over(base, sections))


def report(settings: Settings, *others: str) -> Receipt:
    return run_all(settings, Silent(), GRAPH.needed(settings, *others, "ordering_report"))["ordering_report"]


def page_of(settings: Settings) -> Page:
    return check((settings.output.path / PAGE).read_bytes())


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus that holds markup, whose store every test here shares."""
    folder = tmp_path_factory.mktemp("report")
    write_jsonl(folder / "docs.jsonl", hostile_records())
    return folder


def test_it_shows_what_an_output_is_made_of(corpus: Path) -> None:
    settings = settings_of(corpus)
    found = report(settings)
    page, shown = page_of(settings), found.figures
    assert shown["path"] == str(settings.output.path / PAGE)
    assert shown["bytes"] == (settings.output.path / PAGE).stat().st_size < 1_000_000
    assert shown["check"] in " ".join(page.text.split())
    topics = {"k_calibration", "ari_comparison", "cluster_map"}
    assert set(shown["missing"]) == {*topics, "strategy_comparison"}
    headings = [section["aria-labelledby"].removesuffix("-title") for section in page.all("section")]
    assert headings == [
        *("before-and-after", "along", "windows", "drift", "clusters", "run"),
    ]
    assert page.text.count("divorder report --all") == len(shown["missing"])
    # Sources: the twenty largest, and one row for the others.
    assert "10 other values" in page.text
    assert "160 documents" in page.text and str(corpus / "docs.jsonl") in page.text


@pytest.mark.usefixtures("undrawn")
def test_a_page_that_was_altered_or_removed_is_put_back(corpus: Path) -> None:
    settings = settings_of(corpus)
    first = report(settings)
    path = settings.output.path / PAGE
    before = path.read_bytes()
    path.write_bytes(b"altered")
    report(settings)
    assert path.read_bytes() == before
    path.unlink()
    report(settings)
    assert path.read_bytes() == before
    # The store's own copy: a damaged one is named, and made again once it is deleted.
    stored = settings.store.path / first.files["page"]
    stored.write_bytes(b"damaged")
    with pytest.raises(DamagedFileError, match="delete this file and run again"):
        report(settings)
    stored.unlink()
    assert report(settings).figures["new_documents"] > 0
    check(path.read_bytes())


@pytest.mark.usefixtures("undrawn")
def test_pruning_leaves_it_and_another_output_removes_it(corpus: Path) -> None:
    settings = settings_of(corpus)
    report(settings)
    path = settings.output.path / PAGE
    before = path.read_bytes()
    prune(GRAPH, LocalStore(settings.store.path))
    assert report(settings).figures["new_documents"] == 0
    # A file of the output that is gone is written anew, beside the page that shows it.
    (settings.output.path / "order.npy").unlink()
    run_all(settings, Silent())
    assert path.read_bytes() == before
    beside = settings.output.path / "ordering_report.txt"
    beside.write_text("the user's own")
    run_all(settings_of(corpus, output={"sidecars": ("plot",)}), Silent())
    assert not path.exists() and beside.exists()
    run_all(settings, Silent())
    assert not path.exists()
    report(settings)
    assert path.read_bytes() == before
    assert not [name for name in settings.output.path.iterdir() if name.name.startswith(".tmp")]


@pytest.mark.usefixtures("undrawn")
def test_evidence_is_in_it_while_it_fits(corpus: Path) -> None:
    settings = settings_of(corpus)
    report(settings, "strategy_comparison")
    page = page_of(settings)
    assert "round_robin" in page.text
    other = settings_of(corpus, order={"strategy": "random"})
    found = report(other)
    assert "strategy_comparison" in found.figures["missing"]
    assert "strategy_comparison was last made with other settings" in page_of(other).text
    assert found.version != report(settings).version


def test_only_times_differ_from_run_to_run(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "docs.jsonl", topic_records(15))
    settings = settings_of(tmp_path)
    made = []
    for _ in range(2):
        version = report(settings, "strategy_comparison").version
        text = (settings.output.path / PAGE).read_text()
        shutil.rmtree(settings.store.path)
        shutil.rmtree(settings.output.path)
        # Times and megabytes stand in cells of their own.
        made.append((re.sub(r'<td class="n">([\d.]+(e-\d+| s)?|[\d: -]+)</td>', "", text), version))
    assert made[0] == made[1]


CORPORA: dict[str, tuple[int, dict[str, Any]]] = {
    "one document a topic, one cluster": (1, {"clusters": {"k": 1}, "order": {"traits": {"length": 1.0}}}),
    "epochs, smaller than a batch": (5, {"sequence": {"length": 128, "batch": 256, "epochs": 3}}),
    "no source, a number, a flag": (
        20,
        {"input": {"source_field": None}, "order": {"traits": {"length": 1.0, "score": 1.0, "checked": 1.0}}},
    ),
    "phases": (
        20,
        {
            "mixing": {
                "trait": "checked",
                "phase": [{"until": 0.5, "weights": {"true": 0.8, "false": 0.2}}, {"weights": "natural"}],
            }
        },
    ),
    "more clusters than colours": (40, {"clusters": {"k": 80}}),
}


@pytest.mark.parametrize(("per_topic", "sections"), CORPORA.values(), ids=CORPORA)
@pytest.mark.filterwarnings("error")
def test_every_corpus_has_a_report(tmp_path: Path, per_topic: int, sections: dict[str, Any]) -> None:
    write_jsonl(tmp_path / "docs.jsonl", topic_records(per_topic))
    settings = settings_of(tmp_path, **sections)
    report(settings)
    page = page_of(settings)
    assert "nan" not in page.text.lower().split()
    assert ("Then where the tokens of each value lie" in page.text) == (
        settings.input.source_field is not None or "checked" in settings.order.traits
    )


def test_it_needs_an_output(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "docs.jsonl", topic_records(5))
    settings = settings_of(tmp_path)
    run_all(settings, Silent())
    (settings.output.path / "curated_meta.json").unlink()
    with pytest.raises(MissingStageError, match="does not hold the output that curated_output made last"):
        run_stage("ordering_report", settings, Silent())


def test_films_are_made_once_and_put_back_where_they_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordering_animation, "FRAMES", 3)

    def animate(settings: Settings) -> Receipt:
        stages = GRAPH.needed(settings, "curated_output", "ordering_animation")
        return run_all(settings, Silent(), stages)["ordering_animation"]

    write_jsonl(tmp_path / "docs.jsonl", topic_records(30) + topic_records(5))
    settings = settings_of(tmp_path)
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
