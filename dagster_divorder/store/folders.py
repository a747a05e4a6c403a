"""Folders of object stores and web servers, and of datasets of the Hub; the folder at any place.

Files of an output are written whole on this machine. Then a folder of this machine renames them; an object store
receives them under their names, the manifest last. `OutputFolder.commit` first withdraws the manifest of files that it
replaces, so that no manifest ever stands beside files of another output. A killed process leaves unfinished uploads,
not objects; the bucket bills them until its own lifecycle rule removes them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from dagster_divorder.errors import DivOrderError, InputError
from dagster_divorder.extras import load_extra
from dagster_divorder.settings.places import WEB, Place, Url
from dagster_divorder.store.folder import Bytes, Entry, Folder, LocalFolder
from dagster_divorder.store.remote import explained
from dagster_divorder.store.sources import RemoteFile, at_commit, bucket, dataset, described, explained_hub

PARTS_FROM = 64 << 20
"""Files of this many bytes or more are uploaded in parts."""
_PART_BYTES, _PARTS = 16 << 20, 10_000
"""Bytes of a part; a larger file has larger parts, since object stores take at most so many."""
_PARTS_AT_ONCE, _FILES_AT_ONCE = 4, 4


def folder_at(place: Place) -> WritableFolder:
    """The folder at a place; nothing is read yet."""
    if isinstance(place, Path):
        return LocalFolder(place)
    return _HubFolder(place) if place.scheme == "hf" else ObjectFolder(place)


def send(url: str, data: Bytes | Path, *, create: bool = False) -> bool:
    """Upload an object, whole or not at all. create: only if there is none; returns False otherwise."""
    obstore, (store, key) = load_extra("obstore"), bucket(url)
    size = data.stat().st_size if isinstance(data, Path) else memoryview(data).nbytes
    in_parts = size >= PARTS_FROM
    if create and in_parts:
        # Servers take no conditions with parts.
        with contextlib.suppress(FileNotFoundError):
            obstore.head(store, key)
            return False
    mode: Any = "create" if create and not in_parts else None
    try:
        obstore.put(
            store,
            key,
            data,
            mode=mode,
            use_multipart=in_parts,
            chunk_size=max(_PART_BYTES, -(-size // _PARTS)),
            max_concurrency=_PARTS_AT_ONCE,
        )
    except obstore.exceptions.AlreadyExistsError:
        return False
    return True


class ObjectFolder(Folder):
    """A folder of an object store, or of a web server, which has no lists. error: the class of errors of `entry` and
    `entries`. The methods of writing do what those of LocalFolder do."""

    place: Url

    def __init__(self, place: Url, error: type[DivOrderError] = InputError) -> None:
        super().__init__(place)
        self._error = error

    def entry(self, path: str) -> Entry:
        try:
            with explained(path, self._error):
                return described(path, load_extra("obstore").head(*bucket(path)))
        except FileNotFoundError:
            return "neither"

    def entries(self, path: str) -> dict[str, Entry]:
        if self.place.scheme in WEB:
            raise InputError(
                f"input.paths: {path} cannot be listed, because web servers list no files; name each file by its URL"
            )
        store, key = bucket(path)
        with explained(path, self._error):
            listed = load_extra("obstore").list_with_delimiter(store, key or None)
        files = {PurePosixPath(meta["path"]).name: meta for meta in listed["objects"] if meta["path"] != key}
        return {
            **{name: described(f"{path}/{name}", meta) for name, meta in files.items()},
            # Some tools also write an empty object for a folder.
            **{PurePosixPath(folder).name: "folder" for folder in listed["common_prefixes"]},
        }

    def publish(self, staged: Mapping[str, Path], last: str, stale: Collection[str]) -> None:
        files = {self.where(name): file for name, file in staged.items() if name != last}
        with ThreadPoolExecutor(_FILES_AT_ONCE, "divorder-push") as threads:
            list(threads.map(send, files, files.values()))
        send(self.where(last), staged[last])
        self.delete(stale)

    def write(self, files: Mapping[str, Bytes]) -> None:
        for name, data in files.items():
            with self.explaining(name):
                send(self.where(name), data)

    def delete(self, names: Collection[str]) -> None:
        obstore, (store, _) = load_extra("obstore"), bucket(self.place)
        keys = [bucket(self.where(name))[1] for name in names]
        try:
            if keys:
                obstore.delete(store, keys)
        except FileNotFoundError:  # some providers fail where an object is missing
            for key in keys:
                with contextlib.suppress(FileNotFoundError):
                    obstore.delete(store, key)

    @contextlib.contextmanager
    def explaining(self, name: str = "") -> Iterator[None]:
        with explained(self.where(name) if name else str(self.place)):
            yield


class _HubFolder(ObjectFolder):
    """A folder in a dataset, read at the commit of the first access; settings name none for writing."""

    @cached_property
    def _at(self) -> dict[str, str]:
        """The current commit of the place's revision."""
        name, revision, _ = dataset(self.place)
        with explained_hub(self.place) as hub:
            return at_commit(hub.repo_info(name, **at_commit(revision)).sha)

    def entry(self, path: str) -> Entry:
        folder, _, name = path.rpartition("/")
        return self.entries(folder).get(name, "neither") if dataset(path)[2] else "folder"

    def entries(self, path: str) -> dict[str, Entry]:
        name, _, below = dataset(path)
        found: dict[str, Entry] = {}
        at = self._at
        with contextlib.suppress(FileNotFoundError), explained_hub(path) as hub:
            for each in hub.list_repo_tree(name, below or None, **at):
                file = PurePosixPath(each.path).name
                found[file] = "folder"
                if hasattr(each, "blob_id"):
                    found[file] = RemoteFile(f"{path}/{file}", each.size, each.blob_id, commit=at["revision"])
        return found


WritableFolder = LocalFolder | ObjectFolder
