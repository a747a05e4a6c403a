"""The tables of training_evidence for people, from its summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dagster_divorder.core.evidence.training_evidence import is_beyond_noise, with_interval
from dagster_divorder.view.words import fixed

Figures = Mapping[str, Any]


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


def _with_error(figure: Figures, digits: int = 4) -> str:
    error = "" if figure["error"] is None else f" ± {figure['error']:.{digits}f}"
    return fixed(figure["mean"], digits) + error


def _beside(order: Figures, name: str, digits: int) -> str:
    """A figure of an order, and its difference from shuffled."""
    return f"{_with_error(order[name], digits)}; {with_interval(order[f'{name}, less shuffled'], digits)}"
