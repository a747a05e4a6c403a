"""The settings that decide results, and why a stage has no result under its key: the settings that have changed since
it last ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import BaseModel, ValidationError

from dagster_divorder.settings import Settings
from dagster_divorder.settings.sections import Input, Inputs
from dagster_divorder.store.state import Receipt, load_receipt

if TYPE_CHECKING:
    from dagster_divorder.pipeline.run import Run
    from dagster_divorder.pipeline.stage import Stage

SHOWN_CHARACTERS = 60
DECIDES_NOTHING = {"store", "refit"}
"""Sections that decide no result: the place of the store, and when fits are made again."""
NOT_IN_KEYS = {"input": {"paths", "id_field", "max_reject_share"}, "order": {"frozen_tokens", "append"}}
"""Settings of a section that its value leaves out: a new file must not change every key, no order depends on ids, a
limit decides no result, and the stage `frozen` holds what stays of a plan. A stage that depends on one names it."""


def given_settings(settings: Settings) -> dict[str, Any]:
    """The settings that a receipt keeps: all that may decide a result and differ from their defaults."""
    return settings.model_dump(mode="json", exclude_defaults=True, exclude=DECIDES_NOTHING)


def value_of(settings: Settings, name: str) -> Any:
    """A section of the settings (`order`) without NOT_IN_KEYS, or a single setting (`order.traits`), as JSON values. Of
    several inputs a list."""
    section, _, field = name.partition(".")
    value = getattr(settings, section)
    if not isinstance(value, BaseModel):
        return value
    blocks = value.each if isinstance(value, Input) else (value,)
    if field:
        dumps = [block.model_dump(mode="json", include={field})[field] for block in blocks]
    else:
        dumps = [block.model_dump(mode="json", exclude=NOT_IN_KEYS.get(section)) for block in blocks]
    return dumps if isinstance(value, Inputs) else dumps[0]


def what_changed(stage: Stage, run: Run, otherwise: str = "what it reads has changed") -> str:
    """Why a stage has to compute its result: it has never run, its settings or its code changed, or `otherwise`."""
    last = load_receipt(run.store, stage.name)
    if last is None:
        return "first run on this store"
    if changed := changed_settings(stage, last, run.settings):
        return ", ".join(changed)
    return "its code changed" if last.fingerprint.partition("-")[0] != str(stage.version) else otherwise


def changed_settings(stage: Stage, last: Receipt, settings: Settings) -> list[str]:
    """Changes since a stage's last result of the settings that decide it, such as `clusters.k 30 -> 15`."""
    try:
        before = stage.given(Settings(**last.settings))
    except ValidationError:  # another version of the package wrote them
        return []
    return [*_differences("", before, stage.given(settings))]


def _differences(key: str, old: Any, new: Any) -> Iterator[str]:
    """Differences between two values of a setting, each as `key old -> new`; tables are compared entry by entry."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in sorted({*old, *new}):
            if old.get(name) != new.get(name):
                yield from _differences(f"{key}.{name}".removeprefix("."), old.get(name), new.get(name))
    else:
        yield f"{key} {_shown(old)} -> {_shown(new)}"


def _shown(value: Any) -> str:
    text = "unset" if value is None else value if isinstance(value, str) else orjson.dumps(value).decode()
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."
