"""Outputs that go on where the published one ends: unchanged files are taken over, and a file whose beginning stays
begins with a copy of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import IO, Any

import numpy as np

from dagster_divorder.errors import StoreError
from dagster_divorder.settings.places import Place
from dagster_divorder.store.folders import folder_at
from dagster_divorder.write.curated import HashedFile, OutputFolder
from dagster_divorder.write.permute import Shard

COPIED_BYTES = 4 << 20
"""Bytes per read when a published file is copied."""


class AlteredFileError(StoreError):
    """A published file is missing, or is not as it was written."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """The first `size` bytes of a published file, with which a new file begins. entry: of the published file in its
    manifest."""

    place: Place
    name: str
    size: int
    entry: Mapping[str, Any]

    def copy(self, file: HashedFile) -> None:
        """Copy the bytes to the start of a file. One pass copies them, hashes the new file and verifies the published
        one.

        Raises:
            AlteredFileError: the published file cannot be read, or has not its size and sha256.
        """
        buffer, digest, size = memoryview(bytearray(COPIED_BYTES)), None, 0
        try:
            published = folder_at(self.place).open(self.name)
        except FileNotFoundError as error:
            raise AlteredFileError(f"{self.place} lacks {self.name}") from error
        with published:
            while count := _read(published, buffer):
                size += count
                copied = min(count, self.size - file.size)
                if copied:
                    file.write(buffer[:copied])
                if file.size == self.size:
                    digest = digest or file.digest.copy()
                    digest.update(buffer[copied:count])
        digest = digest or file.digest
        if (size, digest.hexdigest()) != (self.entry["bytes"], self.entry["sha256"]):
            raise AlteredFileError(f"{self.name} in {self.place} was altered since it was written")


def _read(published: IO[bytes], buffer: memoryview) -> int:
    """
    Raises:
        AlteredFileError: the file cannot be read.
    """
    try:
        return published.readinto(buffer)  # type: ignore[attr-defined]
    except OSError as error:
        raise AlteredFileError(f"a published file cannot be read ({error.strerror or error})") from error


def _write_behind(beginning: Beginning, write: Callable[..., object], *arguments: Any) -> None:
    """Write a file that begins as a published one does. arguments: of `write`, the file last."""
    beginning.copy(arguments[-1])
    write(*arguments)


def stage_extended(
    folder: OutputFolder,
    files: Mapping[str, Shard],
    stage: Callable[[Mapping[str, Shard], Mapping[str, Shard]], None],
    *,
    note: Callable[[str], object],
    content: Callable[[Shard, bool], str],
    sizes: np.ndarray | None = None,
    last_stays: Callable[[int], bool] = lambda end: True,
    beside: Mapping[str, Shard] | None = None,
) -> None:
    """Stage consecutive files. If the folder extends a published output, only what that output lacks is written.

    Args:
        stage: stages files and files beside them.
        content: returns a hash of all that decides a file's bytes; called with True for files beside.
        sizes: bytes at each position, int (M,), if the files are their positions end to end.
        last_stays: whether a file's last position, which ends at `end`, stays if positions are added.

    Raises:
        StoreError: see `OutputFolder.stage`.
    """
    beside = beside or {}
    if not folder.extends:
        stage(files, beside)
        return
    contents: dict[str, dict[str, Any]] = {}
    for each, is_beside in ((files, False), (beside, True)):
        contents |= {name: {"content": content(file, is_beside)} for name, file in each.items()}
    # New positions come last, so all files before the first new file are unchanged.
    kept = {*takewhile(lambda name: folder.take_over(name, contents[name]["content"]), files)}
    kept |= {name for name in beside if folder.take_over(name, contents[name]["content"])}
    if kept:
        note(f"{len(kept):,} of {len(contents):,} files are unchanged")
    if sizes is not None:
        for name, file in files.items():
            # More tokens may be packed into a last row that is not full.
            stays = (
                file if file.end == file.first or last_stays(file.end) else file._replace(end=file.end - 1)
            )
            contents[name]["begins"] = {
                "rows": stays.end - stays.first,
                "bytes": int(sizes[stays.first : stays.end].sum()),
                "content": content(stays, False),
            }
    files, beside = (
        {name: file for name, file in each.items() if name not in kept} for each in (files, beside)
    )
    try:
        stage({**files, **_behind_published(folder, files, content)}, beside)
    except AlteredFileError as error:
        note(f"{error}: all of it is written again")
        stage(files, beside)
    for name, entry in contents.items():
        folder.entries[name] = {**folder.entries[name], **entry}


def _behind_published(
    folder: OutputFolder, files: Mapping[str, Shard], content: Callable[[Shard, bool], str]
) -> dict[str, Shard]:
    """The first file, if a published file begins as it does: what comes behind the copy; else empty."""
    for name, file in [*files.items()][:1]:
        for published, entry in folder.published.items():
            begins = entry.get("begins")
            if not begins or not 0 < begins["rows"] <= file.end - file.first:
                continue
            middle = file.first + begins["rows"]
            if begins["content"] == content(file._replace(end=middle), False):
                beginning = Beginning(folder.path, published, begins["bytes"], entry)
                return {name: Shard(middle, file.end, partial(_write_behind, beginning, file.write))}
    return {}
