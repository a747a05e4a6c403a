"""`divorder grid-shuffle`: shuffles the sequences of exports on disk, one column or row of a grid of files at a time.

It is for exports that exceed memory and have no planned order. Several exports are concatenated. The grid comes from
`core.order.grid_shuffle`, so the order equals that strategy's order in memory.

    OUT/grid.json                       the plan: exports, grid and seed; written first, removed at the end
    OUT/column-00002-of-00016.parquet   a mixed column, its parts from the top row down; removed at the end
    OUT/train-00002-of-00016.parquet    a mixed row: a file of the result
    _OUT/manifest.json                  written last, beside OUT; then OUT is a `parquet` export

A file gets its final name when it is whole. After a kill, the next run continues with the first missing file and gives
the same bytes. The metadata of each file name its plan.
Cost: the ids are read twice and written twice; the disk holds the exports, the columns and the rows.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import IO, Any

import numpy as np
import orjson

from dagster_divorder.core.order.grid_shuffle import Grid
from dagster_divorder.core.rows import row_entries
from dagster_divorder.engine.progress import Progress, Silent
from dagster_divorder.errors import InputError, StoreBusyError, StoreError
from dagster_divorder.models.export_tokenizer import TOKENIZER_FILES
from dagster_divorder.readers.export import Export, open_exports
from dagster_divorder.readers.parquet import ParquetRows
from dagster_divorder.store.base import TEMPORARY, temporary_name
from dagster_divorder.store.local import LocalFolder, write_atomically
from dagster_divorder.store.manifests import (
    EXPORT_MANIFEST,
    EXPORT_VERSION,
    NEIGHBOUR,
    export_manifest_file,
    file_at,
    manifest_check,
    read_whole,
)
from dagster_divorder.store.output_manifests import entry_of, manifest_bytes
from dagster_divorder.write.curated import write_hashed
from dagster_divorder.write.exports.parquet import SCHEMA, group_rows, open_writer, table

PLAN = "grid.json"
MEMORY = 2 << 30
"""Default for the bytes that the ids of a column or a row may take."""
VERSION = 1
"""Version of the column and row files."""

Read = Callable[[int, int], tuple[np.ndarray, np.ndarray, np.ndarray]]
"""Rows [first, end): ids (n, L), tokens of each document (Q,), documents of each row (n,)."""


def grid_shuffle(
    exports: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    memory: int = MEMORY,
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Shuffle the sequences of exports of one epoch into one `parquet` export; returns its manifest.

    memory: bytes that a column or a row may take, beside some 300 MB. If the folder holds an unfinished run of the same
    shuffle, the call continues it. Other files in the folder are neither overwritten nor removed.

    Raises:
        InputError: as `open_exports`; an export has several epochs or a loss mask; a column does not fit `memory`; the
            seed is not in [0, 2**63); the folder holds other files, or a shuffle begun with other exports, memory or
            seed.
        StoreBusyError: another process writes into the folder.
        StoreError: as `open_exports`; a file of the folder is damaged, or the disk is full.
    """
    if memory < 1 or not 0 <= seed < 1 << 63:
        raise InputError(
            f"memory is {memory:,} bytes and seed is {seed:,}; expected a memory of 1 or more, and a seed in [0, 2**63)"
        )
    paths = [exports] if isinstance(exports, str | Path) else exports
    sources, out = open_exports(paths), Path(out).absolute()
    for source in sources:
        if source.manifest["epochs"] > 1:
            raise InputError(
                f"{source.path} holds {source.manifest['epochs']} epochs; a shuffle would mix them: export it again "
                "with sequence.epochs = 1"
            )
        if source.trained:
            raise InputError(
                f"{source.path} has a loss mask, which a grid shuffle does not carry; train on it in its planned "
                'order, or export it with chats.train_on = "all"'
            )
    sequences, length = sum(map(len, sources)), sources[0].length
    size = 4 * sequences * length
    columns = -(-size // memory)
    if columns**2 > sequences:
        raise InputError(
            f"memory is {memory:,} bytes, too little for a column of a grid of {sequences:,} sequences of "
            f"{length:,} ids; give {-(-size // math.isqrt(sequences)):,} or more"
        )
    files = _Files(sources, out, Grid(sequences, columns**2, seed))
    with _locked(out), LocalFolder(out).explaining(size=2 * size, what="the columns and the rows"):
        return files.write(progress or Silent())


@contextlib.contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Holds the folder's lock; the lock ends with the process at the latest."""
    with LocalFolder(out).explaining():
        out.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(out, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise StoreBusyError(f"another process writes into {out}; wait for it to end, or stop it") from None
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class _Files:
    """The files of a grid: column files are intermediate, row files are the result."""

    sources: Sequence[Export]
    out: Path
    grid: Grid

    @property
    def plan(self) -> dict[str, Any]:
        """Everything that decides the bytes of the files."""
        return {
            "version": VERSION,
            "exports": [manifest_check(source.manifest) for source in self.sources],
            "shards": self.grid.shards,
            "seed": self.grid.seed,
        }

    @property
    def columns(self) -> list[str]:
        return self._names("column", self.grid.columns)

    @property
    def rows(self) -> list[str]:
        return self._names("train", self.grid.rows)

    @staticmethod
    def _names(kind: str, number: int) -> list[str]:
        return [f"{kind}-{at:05d}-of-{number:05d}.parquet" for at in range(number)]

    def write(self, progress: Progress) -> dict[str, Any]:
        """Write the missing files; returns the export's manifest."""
        manifest = self._manifest()
        if manifest is None or manifest.get("grid_shuffle") != self.plan:
            self._begin()
            with progress("mixing", self.grid.columns + self.grid.rows, "columns and rows") as advance:
                for number, name in enumerate(self.columns):
                    if not self._is_written(name):
                        parts, order = self.grid.column(number), self.grid.mixed_column(number)
                        self._write(name, self._read, parts, order, [len(part) for part in parts])
                    advance(1)
                entries = {}
                for number, name in enumerate(self.rows):
                    entries[name] = self._row(number, name)
                    advance(1)
            manifest = self._finish(entries)
        for name in (*self.columns, PLAN):
            (self.out / name).unlink(missing_ok=True)
        return manifest

    def _manifest(self) -> dict[str, Any] | None:
        """The manifest of the export in the folder; None without one."""
        file = export_manifest_file(self.out)
        return read_whole(file) if file.is_file() else None

    def _begin(self) -> None:
        """Check that the folder is empty or holds this plan's files, and write the plan."""
        names = {name for name in os.listdir(self.out) if not name.startswith(TEMPORARY)}
        if names and PLAN not in names:
            raise InputError(
                f"{self.out} holds {min(names)}, which this shuffle did not write; name an empty folder"
            )
        if names:
            begun = orjson.loads((self.out / PLAN).read_bytes())
            if begun != self.plan:
                other = [key for key in self.plan if begun.get(key) != self.plan[key]]
                raise InputError(
                    f"{self.out} holds an unfinished shuffle with another {', '.join(other)}: {begun}; this one "
                    f"is {self.plan}; continue with the same exports, memory and seed, or name an empty folder"
                )
            if strangers := names - {PLAN, *self.columns, *self.rows}:
                raise InputError(
                    f"{self.out} holds {min(strangers)}, which is not a file of this shuffle; move it away"
                )
        else:
            beside = export_manifest_file(self.out).parent
            if beside.exists() and self._manifest() is None and os.listdir(beside):
                raise InputError(
                    f"{beside} holds {min(os.listdir(beside))}, where the manifest of the shuffle belongs; name "
                    f"another folder than {self.out}, or move it away"
                )
            beside.mkdir(exist_ok=True)
            write_atomically(self.out / PLAN, orjson.dumps(self.plan))
        LocalFolder(self.out).delete(LocalFolder(self.out).temporary())

    def _read(self, first: int, end: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A `Read` of the concatenated exports."""
        begins = [0, *accumulate(map(len, self.sources))]
        blocks = [
            source.block(range(max(first - begin, 0), min(end - begin, len(source))))
            for source, begin in zip(self.sources, begins, strict=False)
            if begin < end and first < begin + len(source)
        ]
        parts = [(block.ids, *block.documents) for block in blocks]
        ids, lengths, counts = (
            column[0] if len(parts) == 1 else np.concatenate(column) for column in zip(*parts, strict=True)
        )
        return ids, lengths, counts

    def _row(self, number: int, name: str) -> dict[str, Any]:
        """Write the file of a row if it is missing; returns the file's manifest entry."""
        if self._is_written(name):
            with open(self.out / name, "rb") as file:
                return entry_of(file)
        sizes = [[len(part) for part in self.grid.column(at)] for at in range(self.grid.columns)]
        begins = [0, *accumulate(map(sum, sizes))]
        manifest = {
            "rows_of_files": [sum(parts) for parts in sizes],
            "sequence_length": self.sources[0].length,
            "tokenizer": self.sources[0].manifest["tokenizer"],
        }
        columns = ParquetRows(lambda name: np.memmap(self.out / name, np.uint8, "r"), self.columns, manifest)
        firsts = [
            (begin + sum(parts[:number]), parts[number]) for begin, parts in zip(begins, sizes, strict=False)
        ]
        return self._write(
            name,
            lambda first, end: (columns.ids(first, end), *columns.documents(first, end)),
            [range(first, first + size) for first, size in firsts],
            self.grid.mixed_row(number),
            [len(self.grid.row(number))],
        )

    def _is_written(self, name: str) -> bool:
        """Whether a file of this plan is written; a file gets its final name when it is whole.

        Raises:
            StoreError: the file is damaged or belongs to another plan.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not (self.out / name).exists():
            return False
        with contextlib.suppress(pa.ArrowInvalid):
            if self._about(name).items() <= (pq.read_schema(self.out / name).metadata or {}).items():
                return True
        raise StoreError(
            f"{self.out / name} is damaged, or belongs to another shuffle; remove it and run again to make it again"
        )

    def _about(self, name: str) -> dict[bytes, bytes]:
        """The metadata of a file."""
        return {b"divorder.grid": manifest_check(self.plan).encode(), b"divorder.file": name.encode()}

    def _write(
        self, name: str, read: Read, stretches: Sequence[range], order: np.ndarray, parts: Sequence[int]
    ) -> dict[str, Any]:
        """Write the rows of `stretches`, permuted by `order`, int64 (n,); returns the file's manifest entry.

        parts: number of rows of each part of the file. No row group holds rows of two parts, so a reader of one part
        decodes no other part."""
        length = self.sources[0].length
        step = group_rows(length)
        ids = np.empty((len(order), length), np.int32)
        documents: list[tuple[np.ndarray, np.ndarray]] = []
        at = 0
        for stretch in stretches:
            for first in range(stretch.start, stretch.stop, step):
                end = min(first + step, stretch.stop)
                ids[at : at + end - first], lengths, counts = read(first, end)
                documents.append((lengths.astype(np.int32), counts))
                at += end - first
        lengths, counts = (np.concatenate(column) for column in zip(*documents, strict=True))
        indptr = np.concatenate([[0], np.cumsum(counts)])

        def write(file: IO[bytes]) -> None:
            with open_writer(file, SCHEMA.with_metadata(self._about(name))) as writer:
                for part in np.split(order, np.cumsum(parts)[:-1]):
                    for first in range(0, len(part), step):
                        rows = part[first : first + step]
                        entries, begins = row_entries(indptr, rows)
                        tokens = np.add.reduceat(lengths[entries], begins[:-1])
                        unpadded = ids[rows][np.arange(length) < tokens[:, None]]
                        writer.write_table(
                            table(unpadded, tokens, lengths[entries], np.diff(begins)), row_group_size=step
                        )

        folder, temporary = LocalFolder(self.out), temporary_name()
        entry = write_hashed(folder, name, temporary, write)
        folder.publish(folder.sources({name: temporary}), name, (), lambda: None)
        return entry

    def _finish(self, entries: dict[str, Any]) -> dict[str, Any]:
        """Write the tokenizer and the manifest."""
        first = self.sources[0]
        for name, entry in first.manifest["files"].items():
            if (file := name.removeprefix(NEIGHBOUR)) in TOKENIZER_FILES:
                beside = NEIGHBOUR + file
                write_atomically(file_at(self.out, beside), file_at(first.path, name).read_bytes())
                entries[beside] = entry
        summed = ("tokens", "padded_rows", "rows_left_out")
        sums = {name: sum(source.manifest.get(name, 0) for source in self.sources) for name in summed}
        manifest = first.manifest | {
            **sums,
            "key": manifest_check(self.plan),
            "format": "parquet",
            "plan": manifest_check(self.plan),
            "epochs_stored": "copies",
            "sequences": self.grid.items,
            "rows": self.grid.items,
            "rows_of_files": [len(self.grid.row(number)) for number in range(self.grid.rows)],
            "dtype": "int32",
            "layout": {},
            "format_version": EXPORT_VERSION,
            "prefix": "train",
            "sequence": {**first.manifest["sequence"], "strategy": "grid_shuffle"},
            "seed": self.grid.seed,
            "sources": [
                {name: source.manifest.get(name) for name in ("plan", "packing", "sequence", "order", "seed")}
                for source in self.sources
            ],
            "grid_shuffle": self.plan,
            "files": entries,
        }
        write_atomically(file_at(self.out, EXPORT_MANIFEST), manifest_bytes(manifest))
        return manifest
