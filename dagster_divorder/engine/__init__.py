"""Runs one function over many items, and reports progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dagster_divorder.engine.base import Engine
    from dagster_divorder.settings.sections import Engine as EngineSettings


def open_engine(settings: EngineSettings, unseen: Callable[[], str]) -> Engine:
    """The engine at `engine.address`; the caller closes it. unseen: picklable; names what its machine lacks, "" for
    nothing. Raises SettingsError: the engine is missing or cannot be used."""
    if settings.address == "local":
        from dagster_divorder.engine.local import LocalEngine, count_workers

        return LocalEngine(count_workers(settings.workers))
    from dagster_divorder.engine.ray import RayEngine

    return RayEngine(None if settings.address == "ray" else settings.address, settings.workers, unseen)
