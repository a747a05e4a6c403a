"""The curated output: files written whole, named by a manifest that is renamed last.

`curated_meta.json` is the manifest: it lists every file with its size and sha256. All files, the manifest too, are
first written under temporary names, so that a full disk leaves the old output as it was; then they are renamed, the
manifest last, and files that only the old manifest named are removed. A reader that checks the manifest's hashes never
takes a mixture for an output. A commit that is broken off leaves its journal, so that the next run knows which files
are left over from it, and touches none that is not ours.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import orjson
import pyarrow as pa

from dagster_divorder.errors import StoreError
from dagster_divorder.store.arrays import row_array
from dagster_divorder.store.local import TEMPORARY, explain_os_error, sync_folder, write_atomically
from dagster_divorder.store.rows import json_lines

MANIFEST = "curated_meta.json"
JOURNAL = f"{TEMPORARY}journal.json"
"""Names of the files that a commit adds or removes; there only while it runs, or when it was broken off."""
REHASH_BYTES = 10 << 30
"""An output up to this size is read again to see that it is still whole; of a larger one sizes are compared."""

ROW_GROUP = 1 << 20
"""Rows that a reader of a Parquet file of numbers takes at once."""


@dataclass(slots=True)
class OutputFolder:
    """Files of one output, staged under temporary names until `commit`.

    Use as a context manager: what was staged and not committed is removed at its end. `expected_bytes` is what the
    output takes about, for the message when the disk is full.
    """

    path: Path
    expected_bytes: int = 0
    staged: dict[str, Path] = field(default_factory=dict)
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __enter__(self) -> OutputFolder:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            _remove_temporary(self.path)
        except OSError as error:
            raise explain_os_error(error, self.path) from error
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            _remove_temporary(self.path)

    def stage(self, name: str, write: Callable[[IO[bytes]], Any]) -> None:
        """Write one file through `write(file)`; its bytes are hashed on the way.

        Raises:
            StoreError: the disk is full or the folder not writable; the old output is still whole.
        """
        self.entries[name] = self._write(name, write)

    def _write(self, name: str, write: Callable[[IO[bytes]], Any]) -> dict[str, Any]:
        temporary = self.path / f"{TEMPORARY}{secrets.token_hex(8)}"
        self.staged[name] = temporary
        try:
            with open(temporary, "wb") as file:
                hashed = _HashedFile(file)
                write(hashed)  # type: ignore[arg-type]
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            # First, so that the message counts their space as free.
            _remove_temporary(self.path)
            what = "the whole output, beside the one that is there,"
            raise explain_os_error(error, self.path / name, self.expected_bytes, what) from error
        return {"bytes": hashed.size, "sha256": hashed.digest.hexdigest()}

    def commit(self, manifest: dict[str, Any]) -> None:
        """Rename every staged file into place, then the manifest; then remove what only the old one named.

        Raises:
            StoreError: the disk is full or the folder not writable; the old output is still whole.
        """
        data = orjson.dumps(manifest, option=orjson.OPT_INDENT_2)
        self._write(MANIFEST, lambda file: file.write(data))
        before = read_manifest(self.path)
        touched = _read_journal(self.path) | set((before or {}).get("files", {})) | set(self.entries)
        write_atomically(self.path / JOURNAL, orjson.dumps(sorted(touched)))
        try:
            for name, temporary in self.staged.items():
                if name == MANIFEST:
                    # Its files are safe on disk before it says so.
                    sync_folder(self.path)
                os.replace(temporary, self.path / name)
            sync_folder(self.path)
        except OSError as error:
            raise explain_os_error(error, self.path / name) from error
        tidy(self.path, self.entries)


def tidy(path: Path, files: dict[str, Any]) -> None:
    """Remove what a broken-off write or commit left in an output folder; `files` are the ones its manifest lists."""
    try:
        for name in _read_journal(path) - set(files):
            (path / name).unlink(missing_ok=True)
        _remove_temporary(path)
        # Nothing is done where nothing is left, so that an output that is up to date may be read-only.
        if (path / JOURNAL).exists():
            (path / JOURNAL).unlink()
    except OSError as error:
        raise explain_os_error(error, path) from error


def _read_journal(path: Path) -> set[str]:
    try:
        return set(orjson.loads((path / JOURNAL).read_bytes()))
    except FileNotFoundError:
        return set()
    except orjson.JSONDecodeError:
        raise StoreError(f"{path / JOURNAL} is damaged; delete it and run again") from None


def _remove_temporary(path: Path) -> None:
    for leftover in path.glob(f"{TEMPORARY}*"):
        if leftover.is_dir():
            # Of a gather, whose thread may be removing files itself.
            shutil.rmtree(leftover, ignore_errors=True)
        elif leftover.name != JOURNAL:
            leftover.unlink(missing_ok=True)


class _HashedFile:
    """A file open for writing that hashes and counts what passes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.size = 0
        self.closed = False

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.digest.update(view)
        self.size += len(view)
        return self._file.write(view)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        self._file.flush()

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True


def read_manifest(path: Path) -> dict[str, Any] | None:
    """The manifest of an output folder, None if there is none.

    Raises:
        StoreError: it is no JSON object.
    """
    file = path / MANIFEST
    if not file.exists():
        return None
    try:
        manifest = orjson.loads(file.read_bytes())
        assert isinstance(manifest, dict)
    except (orjson.JSONDecodeError, AssertionError):
        raise StoreError(f"{file} is not a manifest; move it away and run again") from None
    return manifest


def has_files(path: Path, files: dict[str, dict[str, Any]]) -> bool:
    """Whether every file of a manifest is there with its size."""
    return all(
        (path / name).is_file() and (path / name).stat().st_size == entry["bytes"]
        for name, entry in files.items()
    )


def is_whole(path: Path, files: dict[str, dict[str, Any]]) -> bool:
    """Whether every file of a manifest is there with its size and (up to REHASH_BYTES in all) its hash."""
    if not has_files(path, files):
        return False
    if sum(entry["bytes"] for entry in files.values()) > REHASH_BYTES:
        return True
    for name, entry in files.items():
        with open(path / name, "rb") as opened:
            if hashlib.file_digest(opened, "sha256").hexdigest() != entry["sha256"]:
                return False
    return True


def write_jsonl(parts: Iterator[pa.Array], limits: list[int]) -> Iterator[Callable[[IO[bytes]], None]]:
    """One writer a shard, to be called in turn; shard i ends before output position limits[i]."""
    cut = _Cutter(parts)
    for limit in limits:

        def write(file: IO[bytes], limit: int = limit) -> None:
            for lines in cut.until(limit):
                file.write(_joined(lines))
                file.write(b"\n")

        yield write


def _joined(lines: pa.Array) -> pa.Buffer:
    """Lines with line feeds between them, joined by Arrow: no Python object a line."""
    import pyarrow.compute as pc

    one_list = pa.LargeListArray.from_arrays(row_array(np.array([0, len(lines)])), lines)
    return pc.binary_join(one_list, pa.scalar(b"\n", pa.large_binary()))[0].as_buffer()


def write_json_rows(parts: Iterator[pa.Array], limits: list[int]) -> Iterator[Callable[[IO[bytes]], None]]:
    """The same for Parquet rows written as JSON lines."""
    cut = _Cutter(parts)
    for limit in limits:

        def write(file: IO[bytes], limit: int = limit) -> None:
            for rows in cut.until(limit):
                file.write(b"".join([line + b"\n" for line in json_lines(rows)]))

        yield write


def write_parquet(
    parts: Iterator[pa.Array], limits: list[int], schema: pa.Schema
) -> Iterator[Callable[[IO[bytes]], None]]:
    """The same for Parquet rows written as Parquet, with the input's schema and metadata."""
    import pyarrow.parquet as pq

    cut = _Cutter(parts)
    for limit in limits:

        def write(file: IO[bytes], limit: int = limit) -> None:
            with pq.ParquetWriter(pa.PythonFile(file, "w"), schema) as writer:
                for rows in cut.until(limit):
                    table = pa.Table.from_struct_array(rows)
                    writer.write_table(
                        table.cast(schema.remove_metadata()).replace_schema_metadata(schema.metadata)
                    )

        yield write


def write_columns(file: IO[bytes], columns: Mapping[str, np.ndarray]) -> None:
    """int64 (n,) columns as one Parquet file, in row groups of ROW_GROUP rows."""
    import pyarrow.parquet as pq

    table = pa.table({name: row_array(column) for name, column in columns.items()})
    pq.write_table(table, pa.PythonFile(file, "w"), row_group_size=ROW_GROUP)


class _Cutter:
    """Consecutive arrays, cut at given positions."""

    def __init__(self, parts: Iterator[pa.Array]) -> None:
        self._parts = parts
        self._rest: pa.Array | None = None
        self._position = 0

    def until(self, limit: int) -> Iterator[pa.Array]:
        while self._position < limit:
            part = self._rest if self._rest is not None else next(self._parts)
            taken = part.slice(0, limit - self._position)
            self._rest = part.slice(len(taken)) if len(taken) < len(part) else None
            self._position += len(taken)
            yield taken
