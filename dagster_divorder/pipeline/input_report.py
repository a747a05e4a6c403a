"""The input files and the refused records of the last run, for people to look at."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

import orjson

from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.readings import load_readings
from dagster_divorder.store.receipts import Receipt

SHOWN = 10
FILES_SHOWN = 50
FOLDERS_SHOWN = 3
_SHOWN_CHARACTERS = 120
_CONTENT = ("raw", "raw_base64", "begins")


def first_rejects(store: LocalStore, raw_docs: Receipt) -> list[dict[str, Any]]:
    """The first SHOWN rejects of a receipt of raw_docs: `file`, `line` (or row), `reason`, and how it `begins`."""
    with open(store.path(raw_docs.files["rejects"]), "rb") as file:
        rejects = [orjson.loads(line) for line in islice(file, SHOWN)]
    return [
        {
            "file": reject["path"],
            "line": reject.get("line", reject.get("row")),
            "reason": reject["reason"],
            "begins": next(reject[key] for key in _CONTENT if key in reject)[:_SHOWN_CHARACTERS],
        }
        for reject in rejects
    ]


def input_files(store: LocalStore, raw_docs: Receipt) -> list[dict[str, Any]]:
    """The first FILES_SHOWN files of a receipt of raw_docs: `file`, `bytes` that whole records take, accepted
    `records`, `rejected` ones. Numbers are None where nothing could be kept of a file, such as an empty one."""
    readings = {reading.path: reading for reading in load_readings(store, raw_docs.files["readings"])}
    rows = []
    for path in raw_docs.report["files"][:FILES_SHOWN]:
        read = readings.get(path)
        rows.append(
            {
                "file": path,
                "bytes": read.size if read else None,
                "records": read.last - read.first if read else None,
                "rejected": read.refused if read else None,
            }
        )
    return rows


def left_out(report: Mapping[str, Any]) -> str:
    """What lies among the input files and was not read, by a report of raw_docs, in sentences; "" if nothing does."""
    others, skipped = report.get("other_files", {}), report.get("skipped_folders", [])
    said = []
    if others:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in others.items())
        said.append(f"Not read, as they are neither JSONL nor Parquet by their names: {kinds}.")
    if skipped:
        more = f" and {len(skipped) - FOLDERS_SHOWN:,} more" if len(skipped) > FOLDERS_SHOWN else ""
        said.append(f"Not read, as DivOrder wrote them: {', '.join(skipped[:FOLDERS_SHOWN])}{more}.")
    return " ".join(said)
