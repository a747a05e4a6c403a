"""Evidence of other stages that the report shows where it is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from dagster_divorder.pipeline.cluster_names import load_names
from dagster_divorder.pipeline.report.order import Coloured, Ordered
from dagster_divorder.pipeline.run import Run
from dagster_divorder.store.receipts import Receipt

if TYPE_CHECKING:
    from dagster_divorder.view.report.html import Markup
    from dagster_divorder.view.report.section import Section

SHOWS = {
    "strategy_comparison": "strategies of both levels side by side on this corpus",
    "k_calibration": "how many clusters the corpus has",
    "ari_comparison": "whether two kinds of vectors see the same topics",
    "cluster_map": "the documents as a map, coloured by cluster",
}
"""Stage -> what the report shows of it."""


def cluster_names(run: Run) -> list[str]:
    """What each cluster is called."""
    return load_names(run)


def strategies(run: Run, receipt: Receipt) -> Section:
    """strategy_comparison."""
    from dagster_divorder.pipeline.strategy_comparison import load_comparison
    from dagster_divorder.view.report.strategies import section

    rows = load_comparison(run.store, receipt.files["table"])
    return section(rows, run.settings.order.strategy, run.settings.sequence.strategy)


def calibration(run: Run, receipt: Receipt) -> Section:
    """k_calibration."""
    from dagster_divorder.pipeline.k_calibration import load_table
    from dagster_divorder.view.report.calibration import section

    rows = load_table(run.store, receipt.files["fit"])
    return section(rows, receipt.report["notes"], run.receipt("clusters").report["k"])


def agreement(run: Run, receipt: Receipt) -> Section:
    """ari_comparison."""
    from dagster_divorder.pipeline.ari_comparison import (
        HEATMAP,
        MAPS,
        load_disagreements,
        load_pairs,
        load_picture,
    )
    from dagster_divorder.view.report.agreement import section

    store, fit = run.store, receipt.files["fit"]
    pictures = [load_picture(store, fit, name) for name in (HEATMAP, MAPS)]
    return section(receipt.report, load_pairs(store, fit), load_disagreements(store, fit), *pictures)


def cloud(of: Ordered, coloured: Coloured, receipt: Receipt | None) -> Markup | None:
    """The map as a figure, in the colours of the bars; None where there is none."""
    from dagster_divorder.pipeline.cluster_map import load_map
    from dagster_divorder.view.report.cloud import cloud as figure

    if receipt is None or "places" not in receipt.files:
        return None
    shown = load_map(of.run.store, receipt.files["places"])
    place = np.full(len(of.names), len(coloured.shown.values), np.int64)
    place[coloured.shown.values] = np.arange(len(coloured.shown.values))
    names = [of.names[value] for value in coloured.shown.values.tolist()]
    others = ["smaller clusters"] * bool(coloured.shown.others)
    # A cluster without tokens has no colour; its documents are few, and empty.
    there = place[shown.labels] < len(coloured.colours)
    return figure(
        shown.xy[there],
        place[shown.labels[there]],
        names + others,
        coloured.colours,
        receipt.report["of_documents"],
    )


SECTIONS: dict[str, Callable[[Run, Receipt], Section]] = {
    "strategy_comparison": strategies,
    "k_calibration": calibration,
    "ari_comparison": agreement,
}
"""Evidence with a section of its own, in the order in which it is read."""
