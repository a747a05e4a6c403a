"""The tables of training_evidence for people, from its summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dagster_divorder.core.evidence.training_evidence import is_beyond_noise, with_interval
from dagster_divorder.view.words import fixed

Figures = Mapping[str, Any]
RANK = "stable rank"


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
        row |= {
            name: _beside(order, name, 3)
            for name in order
            if name.startswith(RANK) and not name.endswith("less shuffled")
        }
        row |= {
            "Vendi of batches": fixed(order["vendi"]),
            "variance of batch gradients": _beside(order, "noise"),
            "first tenth, forgotten": _beside(order, "forgotten"),
            "largest bump of the loss, less shuffled": "–"
            if order["bump"]["mean"] is None
            else f"{with_interval(order['bump'], 3)} at {order['bump at']:.0%}",
        }
        rows.append(row)
    return rows


def source_rows(summary: Figures) -> list[dict[str, str]]:
    """A row a source: the held-out loss under each order; * where it differs from shuffling beyond noise."""
    rows: dict[str, dict[str, str]] = {}
    for pair in summary["sources"]:
        star = " *" if is_beyond_noise(pair["less shuffled"]) else ""
        row = rows.setdefault(pair["source"], {"source": pair["source"]})
        row[pair["order"]] = fixed(pair["loss"]["mean"], 4) + star
    return list(rows.values())


def schedule_rows(summary: Figures) -> list[dict[str, str]]:
    """A row an order and schedule of the learning rate: the held-out loss of the last weights and of their averages,
    each less that of shuffled sequences, and the difference that balanced windows make."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    windows = any("less windows shuffled" in figures for figures in summary["schedules"])
    for figures in summary["schedules"]:
        key = {"order": figures["order"], "learning rate": figures["schedule"]}
        row = rows.setdefault((figures["order"], figures["schedule"]), key)
        row[figures["weights"]] = _beside(figures, "held-out", of="less shuffled")
        if windows and figures["weights"] == "last weights":
            less = figures.get("less windows shuffled")
            row["last weights, less windows shuffled"] = with_interval(less) if less else ""
    return list(rows.values())


def rate_rows(summary: Figures) -> list[dict[str, str]]:
    """A row an order, schedule and learning rate; none where there is one rate."""
    if len({pair["learning rate"] for pair in summary["rates"]}) == 1:
        return []
    return [
        {
            "order": pair["order"],
            "schedule": pair["schedule"],
            "learning rate": f"{pair['learning rate']:g}",
            "held-out loss": _with_error(pair),
        }
        for pair in summary["rates"]
    ]


def _with_error(figure: Figures, digits: int = 4) -> str:
    error = "" if figure["error"] is None else f" ± {figure['error']:.{digits}f}"
    return fixed(figure["mean"], digits) + error


def _beside(order: Figures, name: str, digits: int = 4, *, of: str = "") -> str:
    """A figure of an order, and its difference from shuffled. of: the key of that."""
    less = order[of or f"{name}, less shuffled"]
    return f"{_with_error(order[name], digits)}; {with_interval(less, digits)}"
