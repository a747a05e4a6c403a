"""Debian's Chromium without a window, driven by Playwright, and what a person does on Dagster's pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.ui.dagster_dev import DagsterDev

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page
if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page


CHROMIUM = "/usr/bin/chromium"
# For actions and for expectations, which have a limit of their own (five seconds unless told):
# too few for Dagster's page on a machine that runs other tests too.
WAIT_MS = 120_000
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def open_browser() -> Iterator[Browser]:
    from playwright.sync_api import expect, sync_playwright

    with sync_playwright() as playwright:
        expect.set_options(timeout=WAIT_MS)
        with playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS) as browser:
            yield browser


@contextmanager
def new_page(browser: Browser, width: int = 1600, height: int = 1000) -> Iterator[Page]:
    """A page that knows nothing of the others."""
    # Without a locale Dagster's page stays blank in a headless Chromium.
    with browser.new_context(locale="en-US", viewport={"width": width, "height": height}) as context:
        context.set_default_timeout(WAIT_MS)
        yield context.new_page()


def open_graph(page: Page, dev: DagsterDev) -> None:
    """The lineage of all assets, its groups expanded."""
    page.goto(f"{dev.url}/asset-groups")
    page.get_by_role("button", name="Materialize all").wait_for()
    size = page.viewport_size or {"width": 0, "height": 0}
    # Where neither open nor folded groups lie.
    page.mouse.click(size["width"] * 0.4, size["height"] * 0.97, button="right")
    expand = page.get_by_role("menuitem", name="Expand all groups")
    # A browser that has expanded them before still has them so.
    expand.or_(page.get_by_role("menuitem", name="Collapse all groups")).wait_for()
    if expand.is_visible():
        expand.click()
    else:
        page.keyboard.press("Escape")


def on_graph(page: Page, asset: str) -> Locator:
    """An asset's name on the graph, where long ones are shortened in their middle."""
    return page.get_by_text(re.compile(f"^{asset[:4]}.*{asset[-3:]}$")).first


def materialise_all(page: Page, dev: DagsterDev) -> None:
    """Click, follow the link to the run, and see there that it succeeded."""
    page.get_by_role("button", name="Materialize all").click()
    page.locator('a[href*="/runs/"]').first.click()
    page.wait_for_url(re.compile("/runs/.+"))
    # The page of a run under way is drawn again and again, by a processor as busy as the run's.
    run = page.url
    page.goto("about:blank")
    dev.end_of(run.rsplit("/", 1)[1])
    page.goto(run)
    page.get_by_text("Success", exact=True).first.wait_for()


def open_metrics(page: Page, dev: DagsterDev) -> None:
    """The page of diversity_metrics."""
    page.goto(f"{dev.url}/assets/diversity_metrics")
    page.get_by_role("button", name="Plots").wait_for()


def show_orders(page: Page) -> Locator:
    """The table of orders, in a dialog on the page of diversity_metrics."""
    _in_row(page, "orders").get_by_text("[Show Markdown]").click()
    return page.get_by_role("dialog").locator("table")


def show_picture(page: Page) -> Locator:
    """The orders as bars of clusters, likewise."""
    _in_row(page, "bars").get_by_text("[Show Markdown]").click()
    return page.get_by_role("img", name="The dataset as bars of its clusters")


def close_dialog(page: Page) -> None:
    page.get_by_role("dialog").get_by_role("button", name="Close").click()
    page.get_by_role("dialog").wait_for(state="detached")


def _in_row(page: Page, key: str) -> Locator:
    """The row of an asset's metadata."""
    return page.locator("tr", has=page.get_by_role("cell", name=key, exact=True)).last
