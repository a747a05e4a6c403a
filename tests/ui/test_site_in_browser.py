"""The built site in a real browser, from its files: the search without a network, links, and small screens."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytest.importorskip("playwright", reason="playwright is not installed; `make install` brings it")
pytest.importorskip("furo", reason="the site's packages are not installed; `make docs` brings them")

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it."""
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
