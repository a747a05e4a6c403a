"""Receipts: what each stage last made, from what, and where it lies. One JSON file a stage, replaced at its end.

Beside them a history of the last `HISTORY` different results of each stage: what of them is a whole-corpus result stays
in the store, so that switching settings back is free; what is older is retired, so that appends do not fill the disk.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from dagster_divorder.errors import DamagedFileError
from dagster_divorder.store.base import Store
from dagster_divorder.store.pointers import read_pointer, write_pointer
from dagster_divorder.view.answer import AsTable, TextTable

FOLDER = "receipts"
HISTORY_FOLDER = "history"
HISTORY = 4


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Receipt(AsTable):
    """A stage's current result.

    `fingerprint` is the code version and the hash of the settings it was made with, `key` what it is filed under,
    `version` the hash of its content, `upstream` the versions of the stages it read, `files` its named files in the
    store, `facts` what later stages and runs read of it, `figures` what people see, `settings` those that were not at
    their defaults.
    """

    stage: str
    fingerprint: str
    key: str
    version: str
    upstream: dict[str, str]
    files: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def _as_table(self) -> TextTable:
        """The figures that are no tables of their own."""
        simple = {name: of for name, of in self.figures.items() if not isinstance(of, (list, dict))}
        rows = [
            {"figure": name, "value": str(of)} for name, of in {**simple, "version": self.version}.items()
        ]
        return TextTable(rows, self.stage)

    def save(self, store: Store) -> None:
        write_pointer(store, f"{FOLDER}/{self.stage}.json", self)
        made = Made(self.fingerprint, self.version, self.upstream, self.files)
        known = load_history(store, self.stage)
        if known[-1:] != [made]:
            # The same result in other files, as after merging, takes the place of what it was in.
            others = [entry for entry in known if replace(entry, files=self.files) != made]
            write_pointer(store, history_file(self.stage), History([*others, made][-HISTORY:]))


@dataclass(frozen=True, slots=True)
class Made:
    """What of a receipt says which result it was, and where that lies."""

    fingerprint: str
    version: str
    upstream: dict[str, str]
    files: dict[str, str]


@dataclass(frozen=True, slots=True)
class History:
    """What a stage made, oldest first."""

    made: list[Made]


def history_file(stage: str) -> str:
    """Name in the store of a stage's history."""
    return f"{HISTORY_FOLDER}/{stage}.json"


def load_history(store: Store, stage: str) -> list[Made]:
    """The last results of a stage, oldest first; none where the file is damaged, since no result depends on it."""
    try:
        history = read_pointer(store, history_file(stage), History)
    except DamagedFileError:
        return []
    return history.made if history else []


def load_receipt(store: Store, stage: str) -> Receipt | None:
    """The receipt of a stage, None if it never ran on this store.

    Raises:
        DamagedFileError: it is not what was written.
    """
    name = f"{FOLDER}/{stage}.json"
    receipt = read_pointer(store, name, Receipt)
    if receipt is None:
        return None
    return replace(receipt, files=_Recorded(receipt.files, name), facts=_Recorded(receipt.facts, name))


class _Recorded(dict[str, Any]):
    """What a receipt holds; to look for what it does not hold is to find that it is damaged."""

    def __init__(self, values: Any, pointer: str = "") -> None:
        super().__init__(values)
        self.pointer = pointer

    def __missing__(self, key: str) -> Any:
        raise DamagedFileError(
            f"{self.pointer} has no {key!r}: it is damaged; delete the file and run again", self.pointer
        )
