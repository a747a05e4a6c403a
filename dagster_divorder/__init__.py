"""DivOrder: order training data so that every window of training carries the corpus's own mix.

Public names load on first use; importing this package loads nothing heavy.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dagster_divorder.defs.component import DivOrderComponent
    from dagster_divorder.defs.factory import build_definitions
    from dagster_divorder.forensics import where
    from dagster_divorder.models.validation import loss_by_source
    from dagster_divorder.results import load_results
    from dagster_divorder.settings import Settings, load_settings
    from dagster_divorder.stages import run_all, run_stage
    from dagster_divorder.streams import balance
    from dagster_divorder.summary import summarise
    from dagster_divorder.tables.comparison import compare, plot
    from dagster_divorder.tables.ordering import order, reorder

__version__ = "0.2.0"

_WHERE = {
    "DivOrderComponent": "dagster_divorder.defs.component",
    "balance": "dagster_divorder.streams",
    "build_definitions": "dagster_divorder.defs.factory",
    "compare": "dagster_divorder.tables.comparison",
    "load_results": "dagster_divorder.results",
    "load_settings": "dagster_divorder.settings",
    "loss_by_source": "dagster_divorder.models.validation",
    "order": "dagster_divorder.tables.ordering",
    "plot": "dagster_divorder.tables.comparison",
    "reorder": "dagster_divorder.tables.ordering",
    "run_all": "dagster_divorder.stages",
    "run_stage": "dagster_divorder.stages",
    "Settings": "dagster_divorder.settings",
    "summarise": "dagster_divorder.summary",
    "where": "dagster_divorder.forensics",
}

__all__ = [
    "DivOrderComponent",
    "Settings",
    "balance",
    "build_definitions",
    "compare",
    "load_results",
    "load_settings",
    "loss_by_source",
    "order",
    "plot",
    "reorder",
    "run_all",
    "run_stage",
    "summarise",
    "where",
]


if not TYPE_CHECKING:  # type checkers know the names above alone, and report any other

    def __getattr__(name: str) -> Any:
        if name not in _WHERE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return ["DivOrderComponent"] if "dagster_dg_cli" in sys.modules else __all__
