"""The tables of training_evidence for people, from its summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dagster_divorder.core.evidence.training_evidence import is_beyond_noise, with_interval
from dagster_divorder.view.answer import Line, Part, TextTable
from dagster_divorder.view.words import fixed

Figures = Mapping[str, Any]


def evidence_parts(summary: Figures, *, details: bool) -> list[Part]:
    """The verdict and a table of the orders. details: also every figure and source."""
    rows = order_rows(summary)
    first, *verdict = summary["verdict"]
    columns = ("order", "held-out loss", "less shuffled")
    in_short = TextTable([{name: row[name] for name in columns} for row in rows])
    parts: list[Part] = [Line(first, "strong"), *verdict, *summary["notes"], "", in_short, ""]
    if not details:
        return [*parts, "more about the trainings, and every source: --details"]
    # Orders are columns here, because the figures do not fit into a line.
    figures = [name for name in rows[0] if name not in columns]
    by_figure = [{"figure": name, **{row["order"]: row[name] for row in rows}} for name in figures]
    parts += [TextTable(by_figure), "", TextTable(source_rows(summary))]
    parts += ["", "*: differs from the same sequences shuffled beyond noise"]
    rates = rate_rows(summary)
    return [*parts, "", TextTable(rates)] if rates else parts


def order_rows(summary: Figures) -> list[dict[str, str]]:
    """A row an order: figures as mean ± standard error, and their differences from shuffled with intervals."""
    rows = []
    for order in summary["orders"]:
        row = {
            "order": order["order"],
            "held-out loss": _with_error(order["held-out"]),
            "less shuffled": with_interval(order["less shuffled"]),
        }
        if "spike" in order:
            row |= {
                "jump at the seam, less shuffled": with_interval(order["jump, less shuffled"]),
                "gradient at the seam, of its median": _beside(order, "spike", 2),
            }
        ranks = [name for name in order if name.startswith("stable rank") and "less" not in name]
        rows.append(row | {name: _beside(order, name, 3) for name in ranks})
    return rows


def source_rows(summary: Figures) -> list[dict[str, str]]:
    """A row a source: the held-out loss under each order; * where it differs from shuffling beyond noise."""
    rows: dict[str, dict[str, str]] = {}
    for pair in summary["sources"]:
        star = " *" if is_beyond_noise(pair["less shuffled"]) else ""
        row = rows.setdefault(pair["source"], {"source": pair["source"]})
        row[pair["order"]] = fixed(pair["loss"]["mean"], 4) + star
    return list(rows.values())


def rate_rows(summary: Figures) -> list[dict[str, str]]:
    """A row an order and learning rate; none where there is one rate."""
    if len({pair["learning rate"] for pair in summary["rates"]}) == 1:
        return []
    return [
        {
            "order": pair["order"],
            "learning rate": f"{pair['learning rate']:g}",
            "held-out loss": _with_error(pair),
        }
        for pair in summary["rates"]
    ]


def _with_error(figure: Figures, digits: int = 4) -> str:
    error = "" if figure["error"] is None else f" ± {figure['error']:.{digits}f}"
    return fixed(figure["mean"], digits) + error


def _beside(order: Figures, name: str, digits: int) -> str:
    """A figure of an order, and its difference from shuffled."""
    return f"{_with_error(order[name], digits)}; {with_interval(order[f'{name}, less shuffled'], digits)}"
