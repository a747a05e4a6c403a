"""Small exports in any format, written by the formats themselves, and the stream of rows that a trainer has to read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import orjson

from dagster_divorder.core.order.traits import Traits
from dagster_divorder.store.manifests import (
    EXPORT_MANIFEST,
    EXPORT_VERSION,
    MASKED_VERSION,
    NEIGHBOUR,
    ROWS,
    file_at,
    manifest_check,
)
from dagster_divorder.trainers import rows_for_contiguous_ranks
from dagster_divorder.write.exports import FORMATS
from dagster_divorder.write.exports.row_table import stage_row_table
from dagster_divorder.write.exports.rows import Options
from tests.write.exports.made import TAG, Folder, rows_of, runs_of

Stream = list[list[list[int]]]
"""Of each row, each document's ids."""


def write_export(
    path: Path,
    name: str,
    corpus: dict[str, Any],
    *,
    shard_bytes: int = 1 << 20,
    batch: int = 1,
    tag: str = TAG,
    labels: bool = False,
    files_without: Sequence[str] = (),
    **manifest: Any,
) -> Stream:
    """Export a corpus (tests/write/exports/made.py) into a folder in a format; all rows in the order of the plan."""
    index = FORMATS[name].epochs == "index"
    rows = rows_of(**corpus, index=index)
    runs = [[ids for _, _, ids in row] for row in runs_of(rows)]
    stream = [runs[row] for row in rows.epochs.reshape(-1)]
    if layout := manifest.get("layout"):
        place = rows_for_contiguous_ranks(len(rows), **layout)
        stream = stream[: len(place)]
        rows = type(rows)(rows.plan, rows.sequence[place], np.arange(len(place))[None], rows.stored)
    path.mkdir(exist_ok=True)
    folder = Folder(path)
    about = FORMATS[name].write(rows, folder, Options(tag=tag, shard_bytes=shard_bytes, labels=labels))  # type: ignore[arg-type]
    items = int(rows.plan.document.max()) + 1
    names = {"source": ("web", "books", "code"), "length": ("short",)}
    # The source of document i is i mod 3.
    codes = {trait: np.arange(items, dtype=np.int32) % len(values) for trait, values in names.items()}
    none = np.zeros(items, np.int64)
    traits = Traits(none, none, codes, names)
    stage_row_table(folder, f"{NEIGHBOUR}train.{tag}.{ROWS}", rows, traits, lambda runs: runs.length)  # type: ignore[arg-type]
    whole = {
        "format": name,
        "format_version": MASKED_VERSION if rows.trained else EXPORT_VERSION,
        **({"loss_mask": {}} if rows.trained else {}),
        "key": tag * 4,
        "prefix": f"train-{tag}",
        "plan": "0123",
        "epochs": corpus.get("epochs", 1),
        "rows": len(rows),
        "padded_rows": int((rows.tokens < rows.length).sum()),
        "sequence_length": rows.length,
        "batch": batch,
        "layout": {},
        "packing": {"method": corpus.get("method", "concat")},
        "sequence": {"length": rows.length, "batch": batch, "strategy": "balanced"},
        "order": {"strategy": "balanced"},
        "seed": 0,
        "tokenizer": {"vocabulary": rows.stored.vocabulary, "padding": rows.stored.padding},
        "files": {
            name: entry for name, entry in folder.entries.items() if not name.endswith(tuple(files_without))
        },
        **about,
        **manifest,
    }
    write_manifest(path, whole)
    return stream


def write_manifest(path: Path, manifest: dict[str, Any]) -> None:
    file = file_at(path, EXPORT_MANIFEST)
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(orjson.dumps(manifest | {"check": manifest_check(manifest)}))


@contextmanager
def exported(name: str, corpus: dict[str, Any], **about: Any) -> Iterator[tuple[Path, Stream]]:
    """The same in a folder of its own, for as long as the context lasts."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        yield path, write_export(path, name, corpus, **about)
