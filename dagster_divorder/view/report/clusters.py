"""The clusters: names, sizes, and where each lies before and after."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.view.report.html import Markup, fill
from dagster_divorder.view.report.section import Section
from dagster_divorder.view.report.strips import NAME, STRIP_COLUMNS, Strips, strips_of
from dagster_divorder.view.report.table import Column, table
from dagster_divorder.view.report.words import clip, number, percent_fixed

_NAME = '<span class="named"><span class="swatch" style="background:{{ colour }}"></span><span>{{ name }}</span></span>'


def section(
    of: Strips, documents: Sequence[int], colours: NDArray[np.floating], clusters: int, cloud: Markup | None
) -> Section:
    """of: the clusters along the dataset, the largest first. documents: in each of them. colours: RGB in [0, 1], those
    of the bars. cloud: the map of the documents, if there is one."""
    rows = [
        (
            fill(_NAME, colour=_hex(colours[value]), name=clip(name, NAME)),
            number(documents[value]),
            percent_fixed(float(of.share[value])),
            *strips_of(of, value),
        )
        for value, name in enumerate(of.names)
    ]
    columns = [
        Column("cluster", text=True),
        Column("documents", desk=True),
        Column("of all tokens"),
        *STRIP_COLUMNS,
    ]
    return Section(
        "clusters",
        "The clusters",
        f"{clusters:,} topics, found by k-means on the documents’ vectors, by falling tokens.",
        table("Clusters by their tokens, and where they lie", columns, rows) + (cloud or Markup("")),
    )


def _hex(colour: NDArray[np.floating]) -> str:
    return "#" + "".join(f"{round(255 * float(channel)):02x}" for channel in colour)
