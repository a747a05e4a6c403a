"""The tables of training_evidence as people read them: `summary` is its summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dagster_divorder.core.evidence.training_evidence import is_beyond_noise
from dagster_divorder.view.words import fixed

Figures = Mapping[str, Any]
RANK = "stable rank"


def order_rows(summary: Figures) -> list[dict[str, str]]:
    """A line an order: figures as mean ± standard error, and what each is less shuffled, with the interval of that."""
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
                "gradient at the seam, of its median": _beside(of, "spike", 2),
            }
        row |= {
            name: _beside(of, name, 3)
            for name in of
            if name.startswith(RANK) and not name.endswith("less shuffled")
        }
        row |= {
            "Vendi of batches": fixed(of["vendi"]),
            "variance of batch gradients": _beside(of, "noise"),
            "first tenth, forgotten": _beside(of, "forgotten"),
            "largest bump of the loss, less shuffled": "–"
            if of["bump"]["mean"] is None
            else f"{_with_interval(of['bump'], 3)} at {of['bump at']:.0%}",
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


def _with_interval(of: Figures, digits: int = 4) -> str:
    if of["mean"] is None:
        return fixed(None)
    mean, low, high = (
        "" if of[name] is None else f"{of[name]:+.{digits}f}" for name in ("mean", "low", "high")
    )
    return f"{mean} ({low} to {high})" if low else mean


def _beside(of: Figures, name: str, digits: int = 4) -> str:
    """A figure, and what it is less shuffled."""
    return f"{_with_error(of[name], digits)}; {_with_interval(of[f'{name}, less shuffled'], digits)}"
