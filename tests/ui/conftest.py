"""One `dagster dev` for all tests of a module, on a small corpus, and a browser to look at it with."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.defs.conftest import make_corpus
from tests.ui.browser import CHROMIUM, new_page, open_browser
from tests.ui.dagster_dev import DagsterDev

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

AUTOMATION = "[advanced]\n"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = make_corpus(tmp_path_factory.mktemp("dev"))
    file.write_text(file.read_text().replace("[advanced]\n", AUTOMATION))
    return file


@pytest.fixture(scope="module")
def dev(config: Path) -> Iterator[DagsterDev]:
    with DagsterDev(config.parent) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not shutil.which(CHROMIUM):
        pytest.skip(f"there is no {CHROMIUM}; `apt-get install chromium` brings it, as .ci/run does")
    with open_browser() as opened:
        yield opened


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with new_page(browser) as opened:
        yield opened
