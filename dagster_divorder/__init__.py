"""DivOrder: order training data so that every window of training carries the corpus's own mix.

Public names load on first use; importing this package loads nothing heavy.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.3.0"

if TYPE_CHECKING:  # type checkers know these names alone, and report any other
    from dagster_divorder.defs.component import DivOrderComponent as DivOrderComponent
    from dagster_divorder.defs.factory import build_definitions as build_definitions
    from dagster_divorder.forensics import where as where
    from dagster_divorder.models.validation import loss_by_source as loss_by_source
    from dagster_divorder.results import load_results as load_results
    from dagster_divorder.settings import Settings as Settings
    from dagster_divorder.settings import load_settings as load_settings
    from dagster_divorder.stages import run_all as run_all
    from dagster_divorder.stages import run_stage as run_stage
    from dagster_divorder.streams import balance as balance
    from dagster_divorder.summary import summarise as summarise
    from dagster_divorder.tables.comparison import compare as compare
    from dagster_divorder.tables.comparison import plot as plot
    from dagster_divorder.tables.ordering import order as order
    from dagster_divorder.tables.ordering import reorder as reorder
else:
    _NAMES = {
        "defs.component": ["DivOrderComponent"],
        "defs.factory": ["build_definitions"],
        "forensics": ["where"],
        "models.validation": ["loss_by_source"],
        "results": ["load_results"],
        "settings": ["Settings", "load_settings"],
        "stages": ["run_all", "run_stage"],
        "streams": ["balance"],
        "summary": ["summarise"],
        "tables.comparison": ["compare", "plot"],
        "tables.ordering": ["order", "reorder"],
    }
    __all__ = sorted(name for names in _NAMES.values() for name in names)

    def __getattr__(name: str) -> Any:
        for module, names in _NAMES.items():
            if name in names:
                return getattr(importlib.import_module(f"{__name__}.{module}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return ["DivOrderComponent"] if "dagster_dg_cli" in sys.modules else __all__
