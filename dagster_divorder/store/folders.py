"""Folders of object stores and web servers, and in datasets of the Hub; the folder at any place.

Files are written under temporary names and then published together, the manifest last. Names that begin with `_/` are
files in the folder's neighbour (store/manifests.py), under temporary names too.

    folder of this machine   renamed one by one
    object store             copied by the server (objects have no rename), then the temporary ones deleted. A file is
                             uploaded in parts while it is written: PARTS of PART_BYTES in memory, 10,000 parts a file.
    dataset of the Hub       one commit upon the one at the beginning. The Hub takes whole files: each is written to the
                             temporary folder of this machine, sent, and removed.

Only a dataset of the Hub publishes atomically. Elsewhere `OutputFolder.commit` first withdraws the manifest of files
that it replaces, so that no manifest ever stands beside files of another output. Amazon copies objects of up to 5 GB;
larger objects pass through this machine. A killed process leaves unfinished uploads, not objects; the bucket bills them
until its own lifecycle rule removes them.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, ClassVar

from dagster_divorder.errors import DivOrderError, InputError, StoreError
from dagster_divorder.extras import load_extra
from dagster_divorder.settings.places import Place, Url
from dagster_divorder.store import hub
from dagster_divorder.store.base import TEMPORARY, Entry, Folder, Guard
from dagster_divorder.store.local import LocalFolder
from dagster_divorder.store.remote import explained
from dagster_divorder.store.sources import PIECE_BYTES, WEB, RemoteFile, bucket, described

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd
    from huggingface_hub.hf_api import RepoFile, RepoFolder

PART_BYTES, PARTS = 32 << 20, 4
COPY_BYTES = 5 << 30
_COPIES = 16

__all__ = ["Folder", "ObjectFolder", "folder_at"]


def folder_at(place: Place) -> Folder:
    """The folder at a place; nothing is read yet."""
    if isinstance(place, Path):
        return LocalFolder(place)
    return _HubFolder(place) if place.scheme == "hf" else ObjectFolder(place)


class _Copying(io.RawIOBase):
    """A file to write that copies its data, because obstore still reads the memory after `write` has returned."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return self._file.write(bytes(data))


class ObjectFolder(Folder):
    """A folder of an object store, or of a web server, which has no lists. error: the class of errors of `entry` and
    `entries`."""

    place: Url

    def __init__(self, place: Url, error: type[DivOrderError] = InputError) -> None:
        super().__init__(place)
        self._error = error

    def entry(self, path: str) -> Entry:
        obstore = load_extra("obstore")

        store, key = bucket(path)
        try:
            with explained(path, self._error):
                return described(path, obstore.head(store, key))
        except FileNotFoundError:
            return "neither"

    def entries(self, path: str) -> dict[str, Entry]:
        obstore = load_extra("obstore")

        if self.place.scheme in WEB:
            raise InputError(
                f"input.paths: {path} cannot be listed, because web servers list no files; name each file by its URL"
            )
        store, key = bucket(path)
        with explained(path, self._error):
            listed = obstore.list_with_delimiter(store, key or None)
        files = {PurePosixPath(meta["path"]).name: meta for meta in listed["objects"] if meta["path"] != key}
        return {
            **{name: described(f"{path}/{name}", meta) for name, meta in files.items()},
            # Some tools also write an empty object for a folder.
            **{PurePosixPath(folder).name: "folder" for folder in listed["common_prefixes"]},
        }

    def prepare(self) -> None:
        """Nothing to make: objects have no folder."""

    @contextlib.contextmanager
    def create(self, name: str, temporary: str, *, lasting: bool = True) -> Iterator[IO[bytes]]:
        obstore = load_extra("obstore")

        store, key = bucket(self.where(temporary))
        try:
            # An upload that an error ends makes no object.
            with obstore.open_writer(store, key, buffer_size=PART_BYTES, max_concurrency=PARTS) as file:
                yield _Copying(file)  # type: ignore[misc]
        except OSError as error:
            if error.errno is not None:
                raise
            # Writers raise OSError, unlike the rest of obstore.
            raise obstore.exceptions.GenericError(str(error)) from None

    def link(self, name: str, temporary: str) -> bool:
        size = self.sizes()[name]
        if self.place.scheme == "s3" and size > COPY_BYTES:
            return False
        self._copy(name, temporary, size)
        return True

    def publish(self, staged: Mapping[str, str], last: str, stale: Collection[str], check: Guard) -> None:
        sizes = self.sizes()
        if gone := [name for name, temporary in staged.items() if temporary not in sizes]:
            raise StoreError(
                f"{self.where(gone[0])} was removed by another process before it had its final name; make sure that "
                f"only one run writes there, and run again"
            )

        def copy(name: str) -> None:
            check()
            self._copy(staged[name], name, sizes[staged[name]])

        with ThreadPoolExecutor(_COPIES, "divorder-copy") as threads:
            for copied in [threads.submit(copy, name) for name in staged if name != last]:
                copied.result()
        copy(last)
        check()
        self.delete([*staged.values(), *stale])

    def _copy(self, source: str, target: str, size: int) -> None:
        obstore = load_extra("obstore")

        store, key = bucket(self.where(source))
        if self.place.scheme != "s3" or size <= COPY_BYTES:
            obstore.copy(store, key, bucket(self.where(target))[1])
            return
        with self.open(source) as read, self.create(target, target) as written:
            shutil.copyfileobj(read, written, PIECE_BYTES)

    def delete(self, names: Collection[str]) -> None:
        obstore = load_extra("obstore")

        store, _ = bucket(self.place)
        keys = [bucket(self.where(name))[1] for name in names]
        try:
            if keys:
                obstore.delete(store, keys)
        except FileNotFoundError:  # some providers fail where an object is missing
            for key in keys:
                with contextlib.suppress(FileNotFoundError):
                    obstore.delete(store, key)

    @contextlib.contextmanager
    def explaining(self, name: str = "", size: int = 0, what: str = "it") -> Iterator[None]:
        with explained(self.where(name) if name else str(self.place)):
            yield


class _HubFolder(Folder):
    """A folder in a dataset. It is read at the commit of the first access, of `prepare`, or of its own last commit. The
    process that prepares it writes and publishes its files. Other folders of the dataset that this process has
    published meanwhile do not hinder it: a run writes its output and its exports at the same time."""

    place: Url
    atomic = True
    _followed_by: ClassVar[dict[tuple[str | None, str, str], tuple[Url, str]]] = {}
    """Endpoint, revision and commit -> the place of the folder that this process has published next, and its
    commit."""
    _publishing: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, place: Url) -> None:
        super().__init__(place)
        self._known_commit = ""
        self._additions: dict[str, CommitOperationAdd] = {}
        self._deleted: list[str] = []
        self._written: tempfile.TemporaryDirectory[str] | None = None

    @property
    def _commit(self) -> str:
        self._known_commit = self._known_commit or hub.commit_of(self.place)
        return self._known_commit

    def entry(self, path: str) -> Entry:
        parsed = hub.dataset(path)
        if not parsed.path:
            return "folder"
        with hub.explained(path):
            infos = hub.api().get_paths_info(
                parsed.name, [parsed.path], revision=self._commit, repo_type="dataset"
            )
        return self._entry(path, infos[0]) if infos else "neither"

    def entries(self, path: str) -> dict[str, Entry]:
        from huggingface_hub.errors import EntryNotFoundError

        parsed = hub.dataset(path)
        try:
            with hub.explained(path):
                infos = hub.api().list_repo_tree(
                    parsed.name, parsed.path or None, revision=self._commit, repo_type="dataset"
                )
                by_name = {info.path.rpartition("/")[2]: info for info in infos}
        except EntryNotFoundError:
            return {}
        return {name: self._entry(f"{path}/{name}", info) for name, info in by_name.items()}

    def _entry(self, url: str, info: RepoFile | RepoFolder) -> Entry:
        from huggingface_hub.hf_api import RepoFile

        if isinstance(info, RepoFile):
            return RemoteFile(url, info.size, info.blob_id, self._commit)
        return "folder"

    @property
    def _repository(self) -> dict[str, Any]:
        dataset = hub.dataset(self.place)
        return {"repo_id": dataset.name, "repo_type": "dataset", "revision": dataset.revision}

    def _path(self, name: str) -> str:
        return hub.dataset(self.where(name)).path

    def prepare(self) -> None:
        self.release()
        self._known_commit = hub.commit_of(self.place)
        self._written = tempfile.TemporaryDirectory(prefix=TEMPORARY)

    @contextlib.contextmanager
    def create(self, name: str, temporary: str, *, lasting: bool = True) -> Iterator[IO[bytes]]:
        from huggingface_hub import CommitOperationAdd

        assert self._written
        here = LocalFolder(Path(self._written.name))
        path = here.source(temporary)
        with here.explaining(temporary), here.create(name, temporary) as file:
            yield file
        addition = CommitOperationAdd(self._path(name), path)
        with hub.explained(self.place, StoreError):
            hub.api().preupload_lfs_files(additions=[addition], **self._repository)
        self._additions[temporary] = addition
        if not addition.path_or_fileobj:
            # The file was sent; small files go into the commit itself.
            path.unlink()

    def publish(self, staged: Mapping[str, str], last: str, stale: Collection[str], check: Guard) -> None:
        check()
        additions = [self._additions.pop(temporary) for temporary in staged.values()]
        self._change([*self._deleted, *stale], additions)

    def delete(self, names: Collection[str]) -> None:
        if self._written:
            self._deleted += names
        elif names:
            self._known_commit = ""
            self._change(names)

    def _change(self, deleted: Collection[str], additions: Collection[CommitOperationAdd] = ()) -> None:
        """Makes a commit on top of the known one, or on top of this process's later ones of other folders."""
        from huggingface_hub import CommitOperationDelete
        from huggingface_hub.errors import HfHubHTTPError

        present = self.sizes()
        deletions = [CommitOperationDelete(self._path(name)) for name in sorted(deleted) if name in present]
        if not additions and not deletions:
            return
        api, revision, parent = hub.api(), hub.dataset(self.place).revision, self._commit
        with self._publishing, hub.explained(self.place, StoreError):
            while (own := self._followed_by.get((api.endpoint, revision, parent))) and own[0] != self.place:
                parent = own[1]
            try:
                made = api.create_commit(
                    operations=[*additions, *deletions],
                    commit_message="DivOrder",
                    parent_commit=parent,
                    **self._repository,
                )
            except HfHubHTTPError as error:
                if error.response.status_code != 412:
                    raise
                raise StoreError(
                    f"{self.place}: another commit was made to the dataset since this run began (then at "
                    f"{self._commit}), so nothing was published; run again to write on the present commit"
                ) from None
            self._followed_by[api.endpoint, revision, parent] = self.place, made.oid
        self._known_commit = ""

    def release(self) -> None:
        if self._written:
            self._written.cleanup()
            self._written = None

    def explaining(
        self, name: str = "", size: int = 0, what: str = "it"
    ) -> contextlib.AbstractContextManager[None]:
        """Requests to the Hub explain their own errors."""
        return contextlib.nullcontext()
