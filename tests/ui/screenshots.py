"""The pictures of the UI that the README shows, with settings of your choice; store and output go to a folder that is
removed again, unless it is named.

.venv/bin/python -m tests.ui.screenshots docs --config data/demo.toml
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.ui.browser import new_page, open_browser
from tests.ui.dagster_dev import DagsterDev
from tests.ui.pages import (
    close_dialog,
    materialise_all,
    on_graph,
    open_graph,
    open_metrics,
    show_orders,
    show_picture,
)

if TYPE_CHECKING:
    from playwright.sync_api import Page

LIMIT = 200_000
COLOURS = 256
MARGIN = 70.0
SETTLE_MS = 3000
CONTROLS = ("zoom_in", "zoom_out", "settings", "config", "download_for_offline")
"""Buttons that lie on the graph."""


def save(png: bytes, file: Path) -> None:
    """A screenshot with few colours, made smaller until it takes no more than LIMIT bytes."""
    from PIL import Image

    picture = Image.open(io.BytesIO(png)).convert("RGB")
    share, data = 1.0, png
    while len(data) > LIMIT or data is png:
        size = (round(picture.width * share), round(picture.height * share))
        out = io.BytesIO()
        picture.resize(size, Image.Resampling.LANCZOS).quantize(COLOURS).save(out, "PNG", optimize=True)
        data, share = out.getvalue(), share * 0.9
    file.write_bytes(data)
    print(f"{file}: {size[0]} x {size[1]}, {len(data):,} bytes")


def graph(page: Page, dev: DagsterDev) -> bytes:
    """The graph alone, as wide as its assets lie."""
    for name in CONTROLS:
        page.get_by_role("button", name=name).last.evaluate("button => button.style.visibility = 'hidden'")
    page.get_by_role("slider").evaluate(
        "slider => slider.parentElement.parentElement.style.visibility = 'hidden'"
    )
    boxes = [box for asset in dev.assets() if (box := on_graph(page, asset).bounding_box())]
    left, top = min(box["x"] for box in boxes) - MARGIN, min(box["y"] for box in boxes) - MARGIN
    right = max(box["x"] + box["width"] for box in boxes) + MARGIN
    bottom = max(box["y"] + box["height"] for box in boxes) + MARGIN
    clip = {"x": left, "y": top, "width": right - left, "height": bottom - top}
    return page.screenshot(clip=clip)  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("--config", type=Path, default=Path("data/demo.toml"))
    parser.add_argument("--scratch", type=Path, help="folder to keep store and history in, for another time")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        scratch = options.scratch or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        dev = DagsterDev(scratch, options.config.resolve())
        dev.environment |= {
            "DIVORDER_STORE__PATH": str(scratch / "store"),
            "DIVORDER_OUTPUT__PATH": str(scratch / "curated"),
            "DIVORDER_EXPORTS__PATH": str(scratch / "exports"),
        }
        stack.enter_context(dev)
        page = stack.enter_context(new_page(stack.enter_context(open_browser()), width=2000, height=1500))
        open_graph(page, dev)
        materialise_all(page, dev)
        open_graph(page, dev)
        page.wait_for_timeout(SETTLE_MS)
        save(page.screenshot(), options.folder / "ui_graph.png")
        save(graph(page, dev), options.folder / "asset_graph.png")
        page.set_viewport_size({"width": 1280, "height": 900})
        open_metrics(page, dev)
        show_orders(page)
        page.wait_for_timeout(SETTLE_MS)
        save(page.screenshot(), options.folder / "ui_metrics.png")
        close_dialog(page)
        page.set_viewport_size({"width": 1600, "height": 1150})
        show_picture(page)
        page.wait_for_timeout(SETTLE_MS)
        save(page.screenshot(), options.folder / "ui_metrics_picture.png")


if __name__ == "__main__":
    main()
