"""The tables of training_evidence as people read them: `summary` is its summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dagster_divorder.core.evidence import is_beyond_noise
from dagster_divorder.view.words import fixed

Figures = Mapping[str, Any]
RANK = "stable rank"


def order_rows(summary: Figures) -> list[dict[str, str]]:
    """A line an order: figures as mean ± standard error, differences with their interval."""
    rows = []
    for of in summary["orders"]:
        row = {
            "order": of["order"],
            "held-out loss": _with_error(of["held-out"]),
            "less shuffled": _with_interval(of["less shuffled"]),
        }
        if "spike" in of:
            row |= {
                "jump at the seam, less shuffled": _with_interval(of["jump, less shuffled"]),
                "gradient at the seam, of its median": _with_error(of["spike"], 2),
            }
        row |= {
            name: _with_error(of[name], 3)
            for name in of
            if name.startswith(RANK) and not name.endswith("less shuffled")
        }
        row |= {
            "Vendi of batches": fixed(of["vendi"]),
            "variance of batch gradients": _with_error(of["noise"]),
            "first tenth, forgotten": _with_error(of["forgotten"]),
            "largest bump of the loss": "–"
            if of["bump"] is None
            else f"{of['bump']:+.3f} at {of['bump at']:.0%}",
        }
        rows.append(row)
    return rows


def source_rows(summary: Figures) -> list[dict[str, str]]:
    """A line a source: the held-out loss under each order; * where it differs from shuffling beyond noise."""
    rows: dict[str, dict[str, str]] = {}
    for of in summary["sources"]:
        star = " *" if is_beyond_noise(of["less shuffled"]) else ""
        row = rows.setdefault(of["source"], {"source": of["source"]})
        row[of["order"]] = fixed(of["loss"]["mean"], 4) + star
    return list(rows.values())


def rate_rows(summary: Figures) -> list[dict[str, str]]:
    """A line an order and learning rate, where there are several rates."""
    several = len(summary["rates"]) > len(summary["orders"])
    return [
        {
            "order": of["order"],
            "learning rate": f"{of['learning rate']:g}",
            "held-out loss": _with_error(of),
        }
        for of in summary["rates"]
        if several
    ]


def _with_error(of: Figures, digits: int = 4) -> str:
    error = "" if of["error"] is None else f" ± {of['error']:.{digits}f}"
    return fixed(of["mean"], digits) + error


def _with_interval(of: Figures) -> str:
    if of["mean"] is None or of["low"] is None:
        return fixed(of["mean"], 4)
    return f"{of['mean']:+.4f} ({of['low']:+.4f} to {of['high']:+.4f})"
