"""Receipts: what each stage last made, from what, and where it lies. One JSON file a stage, replaced at its end."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from dagster_divorder.store.local import LocalStore

FOLDER = "receipts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """A stage's current result.

    `recipe` is the settings' share and code version it was made with, `key` the stage key its per-fragment files lie
    under, `version` the hash of its content, `uses` the versions of the stages it read, `files` its named files in the
    store, `report` the figures shown to people.
    """

    stage: str
    recipe: str
    key: str
    version: str
    uses: dict[str, str]
    files: dict[str, str] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)

    def save(self, store: LocalStore) -> None:
        data = orjson.dumps(asdict(self), option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_INDENT_2)
        store.put(f"{FOLDER}/{self.stage}.json", data, replace=True)


def load_receipt(store: LocalStore, stage: str) -> Receipt | None:
    """The receipt of a stage, None if it never ran on this store."""
    name = f"{FOLDER}/{stage}.json"
    return Receipt(**orjson.loads(store.read(name))) if store.exists(name) else None
