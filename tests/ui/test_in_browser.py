"""The report and the built site in a real browser: nothing in them runs or is fetched, they fit every screen, and the
search of the site finds its pages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_divorder.stages.output.ordering_report import PAGE
from tests.conftest import ROOT, write_jsonl
from tests.pipeline.test_ordering_report import hostile_records, report, settings_of

if TYPE_CHECKING:
    from playwright.sync_api import Page


pytest.importorskip("playwright", reason="playwright is not installed; `make install` brings it")

SCREENS = {"desk": (1280, 900), "phone": (390, 844)}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a corpus whose texts and sources would run a script if they could."""
    folder = tmp_path_factory.mktemp("report")
    write_jsonl(folder / "docs.jsonl", hostile_records(30))
    settings = settings_of(folder)
    report(settings, "strategy_comparison")
    return settings.output.path / PAGE


@pytest.mark.parametrize("screen", SCREENS)
def test_the_report_opens_without_a_word_to_console_or_network(page: Page, file: Path, screen: str) -> None:
    width, height = SCREENS[screen]
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(dialog.message))
    page.on("request", lambda request: asked.append(request.url))
    page.set_viewport_size({"width": width, "height": height})
    grounds = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.goto(file.as_uri())
        grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        # Nothing reaches beyond the screen; what is wider scrolls in a frame of its own.
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator(".panels svg >> visible=true").count() >= 3
        # Charts are as wide as there is room for, and their text is legible.
        text = page.evaluate(
            "[...document.querySelectorAll('.panels text')].map(of => of.getBoundingClientRect().height)"
        )
        # Chromium lays text out in fractions of a pixel.
        assert round(min(text), 2) >= 10 and max(text) <= 32
    assert re.match(
        r"How the 120 documents of \S+/docs were ordered · \S+ · \d{4}-\d\d-\d\d · output", page.title()
    )
    assert page.evaluate("document.scripts.length") == 0
    assert page.evaluate("[...document.images].every(image => image.naturalWidth > 0 && image.alt)")
    assert len(set(grounds)) == 2
    assert said == []
    # Pictures are in the file: a data URI is no request to anybody.
    assert {url for url in asked if not url.startswith("data:")} == {file.as_uri()}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_strips_and_folded_tables_that_can_be_read(page: Page, file: Path, scheme: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(file.as_uri())
    tables, strips = page.locator("details.table:not(.strips)"), page.locator("details.strips")
    assert tables.count() >= 5 and strips.count() == 2
    assert tables.locator("table >> visible=true").count() == 0
    assert strips.locator("table >> visible=true").count() == 2
    # A strip of each order stands in every row, inside the screen, without a frame that scrolls.
    rows = strips.first.locator("tbody tr")
    assert rows.first.locator(".strip").count() == 3
    assert page.evaluate(
        "[...document.querySelectorAll('.strips .scroll')].every(of => of.scrollWidth <= of.clientWidth)"
    )
    for summary in page.locator("summary").all():
        if not summary.evaluate("of => of.parentElement.open"):
            summary.click()
    assert tables.locator("table >> visible=true").count() == tables.count()
    # Unfolded too, what is wider than the screen scrolls in a frame of its own.
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_no_script_of_the_corpus_runs_even_if_it_were_let_in(page: Page, file: Path, tmp_path: Path) -> None:
    """The second lock: with a script put into it, the page's own policy keeps it from running."""
    altered = tmp_path / "altered.html"
    altered.write_bytes(
        file.read_bytes().replace(b"<main>", b"<main><script>document.title = 'taken'</script>")
    )
    refused: list[str] = []
    page.on("console", lambda message: refused.append(message.text))
    page.goto(altered.as_uri())
    assert page.title() != "taken"
    assert any("Content Security Policy" in message for message in refused)


def test_the_report_prints(page: Page, file: Path) -> None:
    page.emulate_media(color_scheme="dark", media="print")
    page.goto(file.as_uri())
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("nav >> visible=true").count() == 0
    # On paper nothing can be unfolded, so tables are.
    folded = page.locator("details.table:not([open]) table").first
    assert folded.evaluate("of => of.getBoundingClientRect().height") > 0
    assert page.pdf(format="A4").startswith(b"%PDF")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it."""
    pytest.importorskip("furo", reason="the site's packages are not installed; `make docs` brings them")
    folder = tmp_path_factory.mktemp("site")
    command = ["-q", "-W", "-c", "docs/site", "-d", str(folder / "doctrees"), ".", str(folder / "html")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", *command], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    return folder / "html"


QUERIES = {
    "resume": r"docs/(trainers/\w+|questions)\.html",
    "torchtitan": r"docs/trainers/torchtitan\.html",
    "held-out": r"docs/sections\.html",
    "frozen": r"docs/(recipes|reruns)\.html",
    "label mask": r"docs/(exports|chats)\.html",
}
"""What a user types -> the pages that answer it."""


@pytest.mark.parametrize("query", QUERIES)
def test_the_search_finds_the_page_among_the_first_three(query: str, site: Path, page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((site / "docs/index.html").as_uri())
    page.get_by_role("textbox", name="Search").fill(query)
    page.keyboard.press("Enter")
    page.wait_for_selector("#search-results .search-summary:not(:empty)")
    first = page.locator("#search-results ul.search li > a").evaluate_all(
        "links => links.slice(0, 3).map(of => of.href)"
    )
    assert any(re.search(rf"/{QUERIES[query]}(#|$)", url.split("?")[0]) for url in first), first
    assert not [url for url in asked if not url.startswith(("file:", "data:"))]


def test_a_link_to_a_page_beside_a_folder_of_its_name_is_one(site: Path, page: Page) -> None:
    page.goto((site / "README.html").as_uri())
    for name in ("concepts", "trainers"):
        assert page.locator(f'article a[href^="docs/{name}.html"]').count()


@pytest.mark.parametrize("width", [1400, 400])
@pytest.mark.parametrize("name", ["index", "trainers/torchtitan", "reference/settings"])
def test_nothing_reaches_beyond_the_screen(name: str, width: int, site: Path, page: Page) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto((site / f"docs/{name}.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
