"""The pictures of the UI that the README shows, with settings of your choice; store and output go to a folder that is
removed again.

.venv/bin/python -m tests.ui.screenshots docs --config data/demo.toml
"""

from __future__ import annotations

import argparse
import io
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.ui.browser import open_browser
from tests.ui.dagster_dev import DagsterDev
from tests.ui.pages import materialise_all, on_graph, open_graph, open_metrics, show_picture

if TYPE_CHECKING:
    from playwright.sync_api import Page

LIMIT = 200_000
COLOURS = 64
WIDTH = 2200
MARGIN = 70.0
CONTROLS = 48.0
"""Pixels at the right of the graph that hold buttons."""
SETTLE_MS = 3000


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
    boxes = [box for asset in dev.assets() if (box := on_graph(page, asset).bounding_box())]
    left, top = min(box["x"] for box in boxes) - MARGIN, min(box["y"] for box in boxes) - MARGIN
    right = min(max(box["x"] + box["width"] for box in boxes) + MARGIN, WIDTH - CONTROLS)
    bottom = max(box["y"] + box["height"] for box in boxes) + MARGIN
    clip = {"x": left, "y": top, "width": right - left, "height": bottom - top}
    return page.screenshot(clip=clip)  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("--config", type=Path, default=Path("data/demo.toml"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        dev = DagsterDev(scratch, options.config.resolve())
        dev.environment |= {
            "DIVORDER_STORE__PATH": str(scratch / "store"),
            "DIVORDER_OUTPUT__PATH": str(scratch / "curated"),
        }
        with dev, open_browser(scratch / "profile", width=WIDTH, height=1100) as page:
            open_graph(page, dev)
            materialise_all(page)
            page.wait_for_timeout(SETTLE_MS)
            save(page.screenshot(), options.folder / "ui_run.png")
            open_graph(page, dev)
            page.wait_for_timeout(SETTLE_MS)
            save(graph(page, dev), options.folder / "asset_graph.png")
            save(page.screenshot(), options.folder / "ui_graph.png")
            page.set_viewport_size({"width": 1600, "height": 1150})
            open_metrics(page, dev)
            page.wait_for_timeout(SETTLE_MS)
            save(page.screenshot(), options.folder / "ui_metrics.png")
            show_picture(page)
            page.wait_for_timeout(SETTLE_MS)
            save(page.screenshot(), options.folder / "ui_metrics_picture.png")


if __name__ == "__main__":
    main()
