"""What a person does on Dagster's pages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.ui.dagster_dev import RUN_SECONDS, DagsterDev

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page


def open_graph(page: Page, dev: DagsterDev) -> None:
    """The lineage of all assets, its groups expanded."""
    page.goto(f"{dev.url}/asset-groups")
    page.get_by_role("button", name="Materialize all").wait_for()
    size = page.viewport_size or {"width": 0, "height": 0}
    page.mouse.click(size["width"] * 0.6, size["height"] * 0.9, button="right")
    expand = page.get_by_role("menuitem", name="Expand all groups")
    # A browser that has expanded them before still has them so.
    expand.or_(page.get_by_role("menuitem", name="Collapse all groups")).wait_for()
    if expand.is_visible():
        expand.click()
    else:
        page.keyboard.press("Escape")


def on_graph(page: Page, asset: str) -> Locator:
    """An asset's name on the graph, where long ones are shortened in their middle."""
    return page.get_by_text(re.compile(f"^{asset[:4]}.*{asset[-4:]}$")).first


def materialise_all(page: Page) -> None:
    """Click, follow the link to the run, and watch it succeed."""
    page.get_by_role("button", name="Materialize all").click()
    page.locator('a[href*="/runs/"]').first.click()
    page.wait_for_url(re.compile("/runs/.+"))
    page.get_by_text("Success", exact=True).first.wait_for(timeout=RUN_SECONDS * 1000)


def open_metrics(page: Page, dev: DagsterDev) -> Locator:
    """The page of diversity_metrics; its table of orders."""
    page.goto(f"{dev.url}/assets/diversity_metrics")
    table = page.locator("table", has=page.get_by_role("cell", name="batch TV, clusters", exact=True)).last
    table.wait_for()
    return table


def show_picture(page: Page) -> Locator:
    """The picture of the orders, on the page of diversity_metrics."""
    page.get_by_text("[Show Markdown]").first.click()
    return page.get_by_role("img", name="orders compared")
