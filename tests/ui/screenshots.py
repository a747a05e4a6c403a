"""The pictures that README and docs show, of one run with settings of your choice; store and output go to a folder that
is removed again, unless it is named. What `divorder summary` says of that run is in the description of the pictures of
its output: the table in README is a part of it.

.venv/bin/python -m tests.ui.screenshots docs --config data/demo.toml
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import tempfile
from pathlib import Path

from dagster_divorder import load_settings
from dagster_divorder.settings import Settings
from dagster_divorder.summary import summarise
from dagster_divorder.view.answer import as_text
from tests.ui.dagster_dev import DagsterDev
from tests.ui.pages import (
    materialise_all,
    new_page,
    open_browser,
    open_graph,
    open_metrics,
    show_orders,
)

LIMIT = 200_000
COLOURS = 256
SETTLE_MS = 3000


def save(png: bytes, file: Path, says: str = "") -> None:
    """A picture with few colours, made smaller until it takes no more than LIMIT bytes. says: its description."""
    from PIL import Image, PngImagePlugin

    picture = Image.open(io.BytesIO(png)).convert("RGB")
    share, data = 1.0, png
    while len(data) > LIMIT or data is png:
        size = (round(picture.width * share), round(picture.height * share))
        out, about = io.BytesIO(), PngImagePlugin.PngInfo()
        about.add_text("Description", says)
        small = picture.resize(size, Image.Resampling.LANCZOS).quantize(COLOURS)
        small.save(out, "PNG", optimize=True, pnginfo=about)
        data, share = out.getvalue(), share * 0.9
    file.write_bytes(data)
    print(f"{file}: {size[0]} x {size[1]}, {len(data):,} bytes")


def save_pictures(settings: Settings, folder: Path) -> None:
    """The pictures of an output that README shows."""
    says = as_text(summarise(settings).parts, width=80, colour=False)
    for made, shown in (("ordering_comparison", "ordering_comparison"), ("cluster_cloud", "cluster_map")):
        save((settings.output.path / f"{made}.png").read_bytes(), folder / f"{shown}.png", says)


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
        save_pictures(load_settings(options.config, {**os.environ, **dev.environment}), options.folder)
        page.set_viewport_size({"width": 1280, "height": 900})
        open_metrics(page, dev)
        show_orders(page)
        page.wait_for_timeout(SETTLE_MS)
        save(page.screenshot(), options.folder / "ui_metrics.png")


if __name__ == "__main__":
    main()
