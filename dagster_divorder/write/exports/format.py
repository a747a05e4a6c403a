"""What an export format is: one value, in one file of `exports/`.

Every export is a folder of files named `train...`, where `datasets.load_dataset` finds them; the tokenizer's files and
`manifest.json`, written last, lie in the folder beside it (docs/exports.md). Names of files of rows carry the export's
`tag`: a new export is written beside one that is being read, and no file of rows ever changes its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from dagster_divorder.write.curated import OutputFolder
from dagster_divorder.write.exports.rows import Rows


@dataclass(frozen=True, kw_only=True)
class Options:
    """How the files of an export are written. tag: 8 hex digits of its key, in their names. shard_bytes: about the
    size of a file. batch: sequences of a global batch. columns: further columns of a format of tables.
    whole_records: `text` writes records as they came; schema: theirs, of Parquet input."""

    tag: str
    shard_bytes: int
    batch: int = 1
    columns: tuple[str, ...] = ()
    whole_records: bool = False
    schema: pa.Schema | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Format:
    """One format.

    write: stages the files of rows in a folder; returns the manifest's entries of this format, such as the `dtype` of
        the ids.
    epochs: later epochs are rows of their own (`copies`), or an `index` over the rows of the first, in `Rows.epochs`.
    contiguous_ranks: trainers that read the format give each rank a contiguous part of it, and `exports.world_size`
        lays out the rows by `trainers.rows_for_contiguous_ranks`.
    masks: its files say which tokens are trained on, or hold records from which a trainer finds it.
    """

    name: str
    write: Callable[[Rows, OutputFolder, Options], Mapping[str, Any]]
    names: str = r"train.*"
    """A regular expression of the names of its files."""
    epochs: Literal["copies", "index"] = "copies"
    contiguous_ranks: bool = False
    masks: bool = False
    check: Callable[[Rows], object] = lambda rows: None
    """Raises InputError for rows that the format cannot hold; called before any file is written."""


def fits_uint16(rows: Rows) -> bool:
    """Whether all ids, padding included, fit two bytes."""
    return max(rows.stored.vocabulary, rows.stored.padding + 1) <= 1 << 16
