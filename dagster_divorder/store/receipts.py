"""Receipts: what each stage last made, from what, and where it lies. One JSON file a stage, replaced at its end."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.pointers import read_pointer, write_pointer

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
        write_pointer(store, f"{FOLDER}/{self.stage}.json", asdict(self))


def load_receipt(store: LocalStore, stage: str) -> Receipt | None:
    """The receipt of a stage, None if it never ran on this store.

    Raises:
        DamagedFileError: it is not what was written.
    """
    values = read_pointer(store, f"{FOLDER}/{stage}.json")
    return Receipt(**values) if values else None
