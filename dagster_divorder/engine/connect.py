"""The engine that settings name."""

from __future__ import annotations

from dagster_divorder.engine.base import Engine
from dagster_divorder.engine.local import LocalEngine, count_workers
from dagster_divorder.errors import SettingsError
from dagster_divorder.settings.sections import Engine as EngineSettings


def open_engine(settings: EngineSettings) -> Engine:
    """The engine of `engine.kind`, ready for calls; who opens it closes it."""
    if settings.kind == "ray":
        raise SettingsError('engine.kind is "ray", which this version does not run; set it to "local"')
    return LocalEngine(count_workers(settings.workers))
