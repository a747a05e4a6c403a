"""What an export format is: a value that a file of `exports/` holds whole.

Every export is a folder of files named `train...` (under which name `datasets.load_dataset` finds them); the
tokenizer's own files and `manifest.json`, written last, lie in the folder beside it (docs/exports.md). Names of files
that hold rows carry the export's `tag`: a new export is written beside the one that is being read, and no file of rows
ever changes its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dagster_divorder.write.curated import OutputFolder
from dagster_divorder.write.exports.rows import Rows


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is asked of the files of an export: `tag`, 8 hex digits of its key, in their names; `shard_bytes`, about how
    many a file holds; `batch`, sequences of a global batch."""

    tag: str
    shard_bytes: int
    batch: int = 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Format:
    """One format.

    `write` stages the files of rows in a folder, and gives what the manifest says of them beside what every one does,
    the `dtype` of the ids among it. `epochs` says where later epochs are: in rows of their own (`copies`), or in an
    `index` over the rows of the first, which `write` is then given in `Rows.epochs`. With `contiguous_ranks` the
    trainers that read the format give each rank a contiguous part of it, and `exports.world_size` lays the rows as
    `trainers.rows_for_contiguous_ranks` says.
    """

    name: str
    write: Callable[[Rows, OutputFolder, Options], Mapping[str, Any]]
    names: str = r"train.*"
    """A regular expression of the names of its files."""
    epochs: Literal["copies", "index"] = "copies"
    contiguous_ranks: bool = False
    check: Callable[[Rows], object] = lambda rows: None
    """Raises what cannot be written in this format, before any file is."""


def fits_uint16(rows: Rows) -> bool:
    """Whether all ids, the padding among them, fit two bytes."""
    return max(rows.stored.vocabulary, rows.stored.padding + 1) <= 1 << 16
