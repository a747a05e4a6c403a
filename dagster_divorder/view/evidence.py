"""The tables of training_evidence for people, from its summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dagster_divorder.core.evidence.training_evidence import (
    HELD_OUT,
    Estimate,
    by_source,
    is_beyond_noise,
    with_interval,
)
from dagster_divorder.view.words import fixed

Rows = list[dict[str, str]]


def evidence_tables(summary: Mapping[str, Any]) -> dict[str, Rows]:
    """By name: `held-out`, the loss of each order as mean ± standard error, and its difference from shuffled with an
    interval; `figures` of each order, likewise; `sources`, their losses under each order, * where one differs from
    shuffled beyond noise; `rates`, the losses at each learning rate if there are several."""
    heldout, figures, sources = Rows(), dict[str, dict[str, str]](), dict[str, dict[str, str]]()
    of_source = {by_source(source): source for source in summary["sources"]}
    for order in summary["orders"]:
        for figure, pair in order["figures"].items():
            value, less = pair["value"], pair["less shuffled"]
            if figure in of_source:
                source = of_source[figure]
                row = sources.setdefault(source, {"source": source})
                row[order["order"]] = fixed(value["mean"], 4) + (" *" if is_beyond_noise(less) else "")
            elif figure == HELD_OUT:
                row = {"order": order["order"], HELD_OUT: _with_error(value)}
                heldout.append(row | {"less shuffled": with_interval(less)})
            else:
                row = figures.setdefault(figure, {"figure; less shuffled": figure})
                row[order["order"]] = f"{_with_error(value)}; {with_interval(less)}"
    rates = [
        {
            "order": pair["order"],
            "learning rate": f"{pair['learning rate']:g}",
            HELD_OUT: _with_error(pair),
        }
        for pair in summary["rates"]
    ]
    tables = {"held-out": heldout, "figures": [*figures.values()], "sources": [*sources.values()]}
    return tables | ({"rates": rates} if len(rates) > len(heldout) else {})


def _with_error(figure: Estimate) -> str:
    return fixed(figure["mean"], 4) + ("" if figure["error"] is None else f" ± {figure['error']:.4f}")
