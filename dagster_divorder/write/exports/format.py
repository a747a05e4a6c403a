"""The definition of an export format: one `Format` value per file of `exports/`.

An export is a folder of files. The tokenizer's files and `manifest.json`, written last, lie in a folder beside it
(docs/exports.md). Most formats name their files `train...`, so `datasets.load_dataset` finds them. Names of row files
carry the export's `tag`, so a new export does not change row files that a trainer reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dagster_divorder.write.curated import OutputFolder
from dagster_divorder.write.exports.rows import Rows


@dataclass(frozen=True, kw_only=True)
class Options:
    """How an export's files are written. tag: 8 hex digits of the export's key, in file names. shard_bytes: approximate
    file size. batch: sequences in a global batch. labels: whether `parquet` has labels."""

    tag: str
    shard_bytes: int
    batch: int = 1
    labels: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Format:
    """One format.

    write: stages the row files in a folder; returns the format's manifest entries, such as the ids' `dtype`.
    epochs: `copies` stores later epochs as further rows; `index` stores them as row numbers, in `Rows.epochs`.
    contiguous_ranks: trainers give each rank a contiguous part of the export. `exports.world_size` then lays out the
        rows by `trainers.rows_for_contiguous_ranks`.
    masks: the files mark trained tokens.
    """

    name: str
    write: Callable[[Rows, OutputFolder, Options], Mapping[str, Any]]
    names: str = r"train.*"
    """A regular expression that matches the format's file names."""
    epochs: Literal["copies", "index"] = "copies"
    contiguous_ranks: bool = False
    masks: bool = False
    check: Callable[[Rows], object] = lambda rows: None
    """Raises InputError for rows that the format cannot hold; called before any writing."""


def fits_uint16(rows: Rows) -> bool:
    """Whether all ids, including padding, fit two bytes."""
    return max(rows.stored.vocabulary, rows.stored.padding + 1) <= 1 << 16
