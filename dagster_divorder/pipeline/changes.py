"""Explains why a stage has no result under its key: names the settings that have changed since it last ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import ValidationError

from dagster_divorder.errors import InputError
from dagster_divorder.settings import Settings
from dagster_divorder.store.state import Receipt, load_receipt

if TYPE_CHECKING:
    from dagster_divorder.pipeline.run import Run
    from dagster_divorder.pipeline.stage import Stage

SHOWN_CHARACTERS = 60

DECIDES_NOTHING = {"store", "refit"}
"""Sections that decide no result: the place of the store, and when fits are made again."""


def given_settings(settings: Settings) -> dict[str, Any]:
    """The settings that a receipt keeps: all that may decide a result and differ from their defaults."""
    return settings.model_dump(mode="json", exclude_defaults=True, exclude=DECIDES_NOTHING)


def what_changed(stage: Stage, run: Run, otherwise: str = "what it reads has changed") -> str:
    """Why a stage has to compute its result: it has never run, its settings or its code changed, or `otherwise`."""
    last = load_receipt(run.store, stage.name)
    if last is None:
        return "first run on this store"
    if changed := changed_settings(stage, last, run.settings):
        return ", ".join(changed)
    return "its code changed" if last.fingerprint.partition("-")[0] != str(stage.version) else otherwise


def changed_settings(stage: Stage, last: Receipt, settings: Settings) -> list[str]:
    """Changes of settings since a stage's last result that alone would change the result, such as `clusters.k 30 ->
    15`. Empty if no change does so alone."""
    try:
        before = Settings(**last.settings)
    except ValidationError:  # another version of the package wrote them
        return []
    dumps = [each.model_dump(mode="json", exclude=DECIDES_NOTHING) for each in (before, settings)]
    changed: list[str] = []
    for section in dumps[1]:
        old, new = (dump[section] for dump in dumps)
        if not (isinstance(old, dict) and isinstance(new, dict)):
            old, new = {None: old}, {None: new}
        for field in new:
            if new[field] != old[field] and _decides(stage, settings, before, section, field):
                changed += differences(f"{section}.{field}" if field else section, old[field], new[field])
    return changed


def _decides(stage: Stage, settings: Settings, before: Settings, section: str, field: str | None) -> bool:
    """Whether a stage would have another result, or none, if only this setting had its earlier value."""
    value = getattr(before, section)
    if field is not None:
        value = getattr(settings, section).model_copy(update={field: getattr(value, field)})
    other = settings.model_copy(update={section: value})
    try:
        return stage.fingerprint(other) != stage.fingerprint(settings)
    except InputError:  # the earlier value does not fit the present ones, as options of another shape
        return True


def differences(key: str, old: Any, new: Any) -> Iterator[str]:
    """Differences between two values of a setting, each as `key old -> new`; tables are compared entry by entry."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in sorted({*old, *new}):
            if old.get(name) != new.get(name):
                yield from differences(f"{key}.{name}", old.get(name), new.get(name))
    else:
        yield f"{key} {_shown(old)} -> {_shown(new)}"


def _shown(value: Any) -> str:
    text = "unset" if value is None else value if isinstance(value, str) else orjson.dumps(value).decode()
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."
