"""An open export: its rows of tokens in the order of the plan, whatever the layout of its files.

Opening maps files into memory, at a cost that does not depend on their size. An open export can be read to its end even
if another plan is exported into its folder meanwhile (readers/files.py). Letters: R rows in the files, T rows of all
epochs, n rows of a block, L tokens a row, Q documents (runs of one document's tokens) in a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dagster_divorder.core.spans import Spans
from dagster_divorder.errors import InputError, StoreError
from dagster_divorder.readers.arrow_files import ParquetRows, RowTable
from dagster_divorder.readers.files import Files
from dagster_divorder.store.manifests import (
    EXPORT_MANIFEST,
    EXPORT_VERSION,
    MASKED_VERSION,
    REPLACED_BY,
    ROWS,
    TRAINED,
    file_at,
    whole_manifest,
)

READABLE = (EXPORT_VERSION, MASKED_VERSION)
"""Versions of exports that this module reads."""


class Block:
    """n rows of an export, of which each part is read on first use."""

    def __init__(self, export: Export, parts: Sequence[tuple[int, int]], width: int) -> None:
        """parts: stretches (first, end) of the files. width: L, or a smaller number that cuts off padding."""
        self._export, self._parts, self._width = export, parts, width
        self.padded = export.padded

    @cached_property
    def ids(self) -> np.ndarray:
        """Ids int32 (n, width), short rows padded; read-only."""
        ids = [self._export.source.ids(first, end)[:, : self._width] for first, end in self._parts]
        return ids[0] if len(ids) == 1 else np.concatenate(ids)

    @cached_property
    def documents(self) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of each document, int64 (Q,), row after row, and documents of each row, int64 (n,)."""
        read = (self._export.source.documents(first, end) for first, end in self._parts)
        lengths, counts = zip(*read, strict=True)
        return np.concatenate(lengths), np.concatenate(counts)

    @cached_property
    def filled(self) -> np.ndarray | None:
        """bool (n, width): True for a token, False for padding; None for an export without padding."""
        if not self.padded:
            return None
        lengths, counts = self.documents
        tokens = np.add.reduceat(lengths, np.cumsum(counts) - counts)
        return np.arange(self._width) < tokens[:, None]

    @cached_property
    def trained(self) -> np.ndarray | None:
        """bool (n, width): True for a token that is trained on, False for others and padding; None for an export
        without a loss mask."""
        if (spans := self._export.trained) is None:
            return None
        first, end = np.array(self._parts).T * self._export.length
        return spans.marked(first, end - first).reshape(-1, self._export.length)[:, : self._width]

    def trimmed(self) -> Block:
        """The same rows up to the end of the longest."""
        if self.filled is None:
            return self
        return Block(self._export, self._parts, int(self.filled.sum(1).max()))

    @property
    def counted(self) -> np.ndarray | None:
        """bool (n, width): True for a token that counts in the loss; None if all of the block do."""
        return self.filled if self.trained is None else self.trained


class Export:
    """An open export; `len` is T. Made by `open_export`. Another process that it is sent to opens it again and refuses
    another plan.

    manifest: content of its manifest.json. plan: fingerprint of the tokens and their order. length: L. batch: sequences
    of a global batch of the plan. padded: whether any row is shorter than L. trained: spans of trained places in the
    files, counted as row x L + place in the row; None if every token is trained on. Blocks are of `parquet` exports.
    """

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        files = Files(path, manifest)
        files.check_sizes()
        self.path, self.manifest = path, manifest
        names = [*manifest["files"]]
        # Stays mapped, whatever is exported over it.
        self._table = next((files.map(name) for name in names if name.endswith(ROWS)), None)
        self._rows = ParquetRows(files, manifest) if manifest["format"] == "parquet" else None
        # Each epoch's rows, int64 (E, R); None for all in order.
        stored = any(name.endswith("epochs.npy") for name in names)
        self._epochs = files.array("epochs.npy") if stored else None
        self.trained = Spans(*files.array(TRAINED)) if self._rows and "loss_mask" in manifest else None
        self.plan: str = manifest["plan"]
        self.length: int = manifest["sequence_length"]
        self.batch: int = manifest["batch"]
        self.padded = manifest["padded_rows"] > 0
        layout = manifest["layout"]
        self._slices = layout and (layout["world_size"], max(layout["workers"], 1), layout["micro_batch"])

    def __len__(self) -> int:
        """T."""
        return self.manifest["rows"] if self._epochs is None else self._epochs.size

    def __reduce__(self) -> tuple[Any, ...]:
        return open_export, (self.path, self.plan)

    def block(self, rows: Sequence[int]) -> Block:
        """Rows by their numbers in the plan's order, 0 <= row < T; consecutive rows are read at once.

        Raises:
            IndexError: there is no such row.
        """
        return Block(self, self._stretches(rows), self.length)

    @property
    def source(self) -> ParquetRows:
        """The rows of a `parquet` export."""
        assert self._rows
        return self._rows

    @cached_property
    def table(self) -> RowTable:
        """What each row of the files holds. Raises InputError for an export of an earlier version."""
        if self._table is None:
            raise InputError(
                f"{self.path} has no table of its rows; expected one as exports have since version 0.3: export again"
            )
        return RowTable.read(self._table)

    def costs(self, rows: ArrayLike, *, padded: bool) -> np.ndarray:
        """The cost of rows of the plan's order, float64 (n,): their tokens if they are padded to the longest, else the
        squared lengths of their documents. Raises InputError: see `table`."""
        table = self.table
        return (table.tokens if padded else table.attention)[self.in_file(rows)].astype(np.float64)

    @property
    def dealt(self) -> str:
        """How the rows of each batch are dealt to ranks (`exports.equal_ranks`), as text; "" if they are not."""
        dealt = self.manifest.get("equal_ranks")
        return "{world_size} x {micro_batch} {shares}".format(**dealt) if dealt else ""

    @property
    def packed(self) -> bool:
        """Whether a row may hold several records."""
        return bool(self.manifest["packing"]["method"] != "none")

    def _stretches(self, rows: Sequence[int]) -> list[tuple[int, int]]:
        """Rows of the plan's order as stretches (first, end) of the files."""
        wanted = np.asarray(rows, np.int64)
        if not len(wanted) or wanted.min() < 0 or wanted.max() >= len(self):
            raise IndexError(f"{self.path} has rows 0 to {len(self) - 1}, not {list(rows)[:8]}")
        file_rows = self.in_file(wanted)
        cuts = [0, *(np.flatnonzero(np.diff(file_rows) != 1) + 1).tolist(), len(file_rows)]
        return [(int(file_rows[begin]), int(file_rows[begin]) + end - begin) for begin, end in pairwise(cuts)]

    def in_file(self, rows: ArrayLike) -> np.ndarray:
        """Rows of the plan's order, int (n,) -> rows of the files, int64."""
        rows = np.asarray(rows, np.int64)
        if self._epochs is not None:
            epoch, at = np.divmod(rows, self._epochs.shape[1])
            return self._epochs[epoch, at].astype(np.int64)
        if not self._slices:
            return rows
        ranks, workers, micro_batch = self._slices
        # The file is ranks x workers contiguous slices; a step takes a micro-batch from one worker of each rank.
        steps = self.manifest["rows"] // (ranks * workers * micro_batch)
        step, worker, rank, at = np.unravel_index(rows, (steps, workers, ranks, micro_batch))
        return np.ravel_multi_index((rank, worker, step, at), (ranks, workers, steps, micro_batch))


def open_export(path: str | Path, plan: str | None = None, *, rows: bool = True) -> Export:
    """Opens the folder of one format of an export, such as data/exports/parquet. plan: the expected fingerprint of its
    plan; None accepts any. rows: whether its rows of tokens are read, for which it has to be `parquet`.

    Raises:
        InputError: the folder holds no export, one whose rows are not read here, or one of another version.
        StoreError: the manifest is damaged, the folder holds another plan or is being written, or a file is missing or
            altered.
    """
    if "://" in str(path):
        raise InputError(
            f"{path} is a URL, and a trainer maps the files of an export into memory; copy the folder, and its "
            f"neighbour whose name begins with an underscore, to this machine (aws s3 sync, gcloud storage rsync, "
            "azcopy, hf download) and give its path"
        )
    path = Path(path).absolute()
    manifest = read_export_manifest(path)
    if rows and (name := manifest["format"]) != "parquet":
        raise InputError(
            f"{path} is an export in the format {name}, which its own trainer reads; this reader reads parquet: add it "
            "to exports.formats"
        )
    if not manifest["rows"]:
        raise InputError(f"{path} holds no sequence: the exported corpus has no token")
    if plan not in (None, manifest["plan"]):
        raise StoreError(
            f"{path} holds the plan {manifest['plan']}; expected {plan}, which it held before; export that plan "
            f"again into its own folder, or start over with the present plan"
        )
    return Export(path, manifest)


def read_export_manifest(path: Path) -> dict[str, Any]:
    """The manifest of the folder of one format of an export. Raises: see `open_export`."""
    file = file_at(path, EXPORT_MANIFEST)
    if not file.is_file():
        raise InputError(
            f"{path} is not an export: there is no {file}; give the folder of a format, such as "
            f"data/exports/parquet; if you copied it, copy its neighbour too, data/exports/_parquet"
        )
    manifest = whole_manifest(file.read_bytes())
    if manifest is None:
        raise StoreError(f"{file} has been altered: export again, or copy it again")
    if manifest.get("format_version") not in READABLE:
        raise InputError(
            f"{file} has version {manifest.get('format_version')!r} of the exports; this reader reads "
            f"{READABLE[0]} and {READABLE[1]}: export again with this version of DivOrder"
        )
    if REPLACED_BY in manifest:
        raise StoreError(
            f"{path} is being rewritten, or a run was interrupted while writing it: its files belong to two exports; "
            f"wait for the run to end, or run again"
        )
    return manifest
