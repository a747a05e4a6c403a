"""Debian's Chromium without a window, driven by Playwright."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

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
