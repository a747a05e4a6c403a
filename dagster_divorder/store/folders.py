"""Folders, with one interface: of this machine, of an object store or web server, or in a dataset of the Hub.

Input is found and read through it, and outputs are written through it.
Files are written under temporary names and then published together, one of them, the manifest, last. Names that begin
with `_/` are of files in the folder's neighbour (store/manifests.py), under temporary names too.

    folder of this machine   renamed one by one
    object store             copied by the server (objects have no rename), then the temporary ones deleted. A file is
                             uploaded in parts while it is written: PARTS of PART_BYTES in memory, 10,000 parts a file.
    dataset of the Hub       one commit upon the one that was there at the beginning. A file is written to the temporary
                             folder of this machine, since the Hub is sent whole files, then sent, and removed.

Publishing is atomic in a dataset of the Hub alone. Elsewhere whoever replaces files first withdraws the manifest that
names them (`OutputFolder.commit`), so that no manifest ever stands beside files of another output. Amazon copies
objects of up to 5 GB: larger ones pass through this machine. Uploads of a killed process are no objects, cost what they
hold, and are removed by the bucket's own lifecycle rule.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import stat
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Literal

from dagster_divorder.errors import InputError, StoreError
from dagster_divorder.extras import load_extra
from dagster_divorder.settings.places import Place, Url
from dagster_divorder.store import hub
from dagster_divorder.store.base import TEMPORARY
from dagster_divorder.store.local import explain_os_error, sync_folder
from dagster_divorder.store.manifests import NEIGHBOUR, file_at, neighbour
from dagster_divorder.store.remote import explained
from dagster_divorder.store.sources import (
    PIECE_BYTES,
    WEB,
    RemoteFile,
    Source,
    bucket,
    identity,
    open_source,
    tag_of_object,
)

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd
    from huggingface_hub.hf_api import RepoFile, RepoFolder

PART_BYTES, PARTS = 32 << 20, 4
COPY_BYTES = 5 << 30
_COPIES = 16

Check = Callable[[], object]
"""Raises where what comes next must not be done."""


Entry = Source | Literal["folder", "neither"]
"""What a name in a folder stands for; a link to nothing, for example, is neither file nor folder."""


class Folder(ABC):
    """A folder at a place. What is written in another process, into the same place, may be published in this one; but
    not into a dataset of the Hub."""

    atomic = False
    """Whether `publish` changes all files at once."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def where(self, name: str) -> str:
        return str(file_at(self.place, name))

    @abstractmethod
    def file(self, path: str) -> Source | None:
        """The file at a path or URL in this folder, None if there is none.

        Raises:
            InputError: what is at the URL cannot be reached.
            OSError: what is at the path cannot be looked at.
        """

    @abstractmethod
    def entries(self, path: str) -> dict[str, Entry]:
        """What the folder at a path or URL in this folder, or beside it, directly holds, by name; empty where there is
        no such folder.

        Raises:
            InputError, OSError: as `file` does.
        """

    def _entries_in_both(self) -> dict[str, Entry]:
        """What is directly in it or in its neighbour, by name."""
        beside = self.entries(str(neighbour(self.place)))
        return {
            **self.entries(str(self.place)),
            **{NEIGHBOUR + name: entry for name, entry in beside.items()},
        }

    def sizes(self) -> dict[str, int]:
        """Bytes of each file that is directly in it or in its neighbour, by name; empty where there is no folder."""
        sizes = {}
        for name, entry in self._entries_in_both().items():
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                if not isinstance(entry, str):
                    sizes[name] = int(identity(entry)[0])
        return sizes

    def names(self) -> Collection[str]:
        """Names of whatever is directly in it or in its neighbour."""
        return self._entries_in_both().keys()

    def source(self, name: str) -> Source:
        """
        Raises:
            FileNotFoundError: there is no such file at a URL.
        """
        file = self.file(self.where(name))
        if file is None:
            raise FileNotFoundError(f"there is no {self.where(name)}")
        return file

    def open(self, name: str) -> IO[bytes]:
        """
        Raises:
            OSError: the file cannot be opened.
        """
        return open_source(self.source(name))

    def read(self, name: str) -> bytes:
        with self.open(name) as file:
            return file.read()

    def temporary(self) -> list[str]:
        """Names of what is half-written in it, by this process or by any other."""
        return [name for name in self.names() if name.removeprefix(NEIGHBOUR).startswith(TEMPORARY)]

    @abstractmethod
    def prepare(self) -> None:
        """Make the folder."""

    @abstractmethod
    def create(
        self, name: str, temporary: str, *, lasting: bool = True
    ) -> contextlib.AbstractContextManager[IO[bytes]]:
        """A file to write from its beginning to its end, under a temporary name; one that is to last is safe at the
        end."""

    @abstractmethod
    def publish(self, staged: Mapping[str, str], last: str, stale: Collection[str], check: Check) -> None:
        """Give files, by their temporary names, the names that they are `staged` for, `last` at the end; then remove
        the stale ones. `check` is called before each step, and stops it by raising."""

    @abstractmethod
    def delete(self, names: Collection[str]) -> None:
        """Remove files, those that are there; from a dataset that is prepared, when it is published."""

    def release(self) -> None:  # noqa: B027
        """Give back what this process holds for it, once nothing more is written."""

    @abstractmethod
    def explaining(
        self, name: str = "", size: int = 0, what: str = "it"
    ) -> contextlib.AbstractContextManager[None]:
        """Turns what goes wrong with a file into a StoreError; `what` takes about `size` bytes."""


def folder_at(place: Place) -> Folder:
    """The folder at a place, not yet looked at."""
    if isinstance(place, Path):
        return _LocalFolder(place)
    return _HubFolder(place) if place.scheme == "hf" else _ObjectFolder(place)


class _LocalFolder(Folder):
    place: Path

    def file(self, path: str) -> Path | None:
        with _nothing_there():
            return Path(path) if stat.S_ISREG(os.stat(path).st_mode) else None
        return None

    def entries(self, path: str) -> dict[str, Entry]:
        with _nothing_there(), os.scandir(path or os.curdir) as entries:
            return {entry.name: _entry(entry) for entry in entries}
        return {}

    def source(self, name: str) -> Path:
        return file_at(self.place, name)

    def prepare(self) -> None:
        self.place.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def create(self, name: str, temporary: str, *, lasting: bool = True) -> Iterator[IO[bytes]]:
        path = self.source(temporary)
        if name.startswith(NEIGHBOUR):
            path.parent.mkdir(exist_ok=True)
        with open(path, "wb") as file:
            yield file
            file.flush()
            if lasting:
                os.fsync(file.fileno())

    def publish(self, staged: Mapping[str, str], last: str, stale: Collection[str], check: Check) -> None:
        folders = {self.source(name).parent for name in staged}
        for name, temporary in sorted(staged.items(), key=lambda item: item[0] == last):
            if name == last:
                # Its files are safe on disk before it says so.
                for folder in folders:
                    sync_folder(folder)
            check()
            os.replace(self.source(temporary), self.source(name))
        sync_folder(self.source(last).parent)
        check()
        self.delete(stale)

    def delete(self, names: Collection[str]) -> None:
        for name in names:
            path = self.source(name)
            if name.startswith(TEMPORARY) and path.is_dir():
                # Of a gather, whose thread may be removing files itself.
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def explaining(self, name: str = "", size: int = 0, what: str = "it") -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise explain_os_error(error, self.source(name), size, what) from error


@contextlib.contextmanager
def _nothing_there() -> Iterator[None]:
    """Leaves its block where nothing is at a path, whatever the reason."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
            raise


def _entry(entry: os.DirEntry[str]) -> Entry:
    with _nothing_there():
        if entry.is_file():
            return Path(entry.path)
        if entry.is_dir():
            return "folder"
    return "neither"


class _Copying(io.RawIOBase):
    """A file to write, of a library that goes on reading the memory it is given after `write` has returned."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return self._file.write(bytes(data))


class _ObjectFolder(Folder):
    """Of an object store; of a web server, which has no lists, it gives files alone."""

    place: Url

    def file(self, path: str) -> RemoteFile | None:
        obstore = load_extra("obstore")

        store, key = bucket(path)
        try:
            with explained(path, InputError):
                meta = obstore.head(store, key)
        except FileNotFoundError:
            return None
        return RemoteFile(path, meta["size"], tag_of_object(meta))

    def entries(self, path: str) -> dict[str, Entry]:
        obstore = load_extra("obstore")

        if self.place.scheme in WEB:
            raise InputError(
                f"input.paths: {path} cannot be listed, as web servers have no lists; name each file by its URL"
            )
        store, key = bucket(path)
        with explained(path, InputError):
            listed = obstore.list_with_delimiter(store, key or None)
        files = {PurePosixPath(meta["path"]).name: meta for meta in listed["objects"] if meta["path"] != key}
        return {
            **{
                name: RemoteFile(f"{path}/{name}", meta["size"], tag_of_object(meta))
                for name, meta in files.items()
            },
            # Some tools put an empty object in the place of a folder.
            **{PurePosixPath(folder).name: "folder" for folder in listed["common_prefixes"]},
        }

    def prepare(self) -> None:
        """Nothing to make: objects have no folder."""

    @contextlib.contextmanager
    def create(self, name: str, temporary: str, *, lasting: bool = True) -> Iterator[IO[bytes]]:
        obstore = load_extra("obstore")

        store, key = bucket(self.where(temporary))
        try:
            # Left by an error the upload ends without an object.
            with obstore.open_writer(store, key, buffer_size=PART_BYTES, max_concurrency=PARTS) as file:
                yield _Copying(file)  # type: ignore[misc]
        except OSError as error:
            if error.errno is not None:
                raise
            # Of a writer errors are of the kind that files raise, unlike all others of obstore.
            raise obstore.exceptions.GenericError(str(error)) from None

    def publish(self, staged: Mapping[str, str], last: str, stale: Collection[str], check: Check) -> None:
        sizes = self.sizes()
        if gone := [name for name, temporary in staged.items() if temporary not in sizes]:
            raise StoreError(
                f"{self.where(gone[0])} was written, and somebody else has removed it before it had its name; see that "
                "one run alone writes there, and run again"
            )

        def copy(name: str) -> None:
            check()
            self._copy(staged[name], name, sizes[staged[name]])

        with ThreadPoolExecutor(_COPIES, "divorder-copy") as threads:
            for done in [threads.submit(copy, name) for name in staged if name != last]:
                done.result()
        copy(last)
        check()
        self.delete([*staged.values(), *stale])

    def _copy(self, source: str, target: str, size: int) -> None:
        obstore = load_extra("obstore")

        store, key = bucket(self.where(source))
        if self.place.scheme != "s3" or size <= COPY_BYTES:
            obstore.copy(store, key, bucket(self.where(target))[1])
            return
        with self.open(source) as found, self.create(target, target) as file:
            shutil.copyfileobj(found, file, PIECE_BYTES)

    def delete(self, names: Collection[str]) -> None:
        obstore = load_extra("obstore")

        there = self.sizes().keys() & set(names)
        store, _ = bucket(self.place)
        if there:
            obstore.delete(store, [bucket(self.where(name))[1] for name in sorted(there)])

    @contextlib.contextmanager
    def explaining(self, name: str = "", size: int = 0, what: str = "it") -> Iterator[None]:
        with explained(self.where(name) if name else str(self.place)):
            yield


class _HubFolder(Folder):
    """It is read as it was when it was first looked at, prepared, or committed to. Its files are written, and
    published, by the process that prepared it."""

    place: Url
    atomic = True

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

    def file(self, path: str) -> RemoteFile | None:
        asked = hub.dataset(path)
        if not asked.path:
            return None
        with hub.explained(path):
            infos = hub.api().get_paths_info(
                asked.name, [asked.path], revision=self._commit, repo_type="dataset"
            )
        entries = [self._entry(path, info) for info in infos]
        return next((file for file in entries if isinstance(file, RemoteFile)), None)

    def entries(self, path: str) -> dict[str, Entry]:
        from huggingface_hub.errors import EntryNotFoundError

        asked = hub.dataset(path)
        try:
            with hub.explained(path):
                infos = hub.api().list_repo_tree(
                    asked.name, asked.path or None, revision=self._commit, repo_type="dataset"
                )
                named = {info.path.rpartition("/")[2]: info for info in infos}
        except EntryNotFoundError:
            return {}
        return {name: self._entry(f"{path}/{name}", info) for name, info in named.items()}

    def _entry(self, url: str, info: RepoFile | RepoFolder) -> Entry:
        from huggingface_hub.hf_api import RepoFile

        is_file = isinstance(info, RepoFile)
        return RemoteFile(url, info.size, info.blob_id, self._commit) if is_file else "folder"

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
        here = _LocalFolder(Path(self._written.name))
        path = here.source(temporary)
        with here.explaining(temporary), here.create(name, temporary) as file:
            yield file
        addition = CommitOperationAdd(self._path(name), path)
        hub.api().preupload_lfs_files(additions=[addition], **self._repository)
        self._additions[temporary] = addition
        if not addition.path_or_fileobj:
            # It was sent. What is small the commit itself will hold.
            path.unlink()

    def publish(self, staged: Mapping[str, str], last: str, stale: Collection[str], check: Check) -> None:
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
        """Make a commit upon the one that is known."""
        from huggingface_hub import CommitOperationDelete
        from huggingface_hub.errors import HfHubHTTPError

        there = self.sizes()
        deletions = [CommitOperationDelete(self._path(name)) for name in sorted(deleted) if name in there]
        if not additions and not deletions:
            return
        try:
            hub.api().create_commit(
                operations=[*additions, *deletions],
                commit_message="DivOrder",
                parent_commit=self._commit,
                **self._repository,
            )
        except HfHubHTTPError as error:
            if error.response.status_code != 412:
                raise
            raise StoreError(
                f"{self.place}: somebody else has committed to the dataset since this run began (it was at "
                f"{self._commit}), so nothing was published; run again, which writes upon what is there now"
            ) from None
        self._known_commit = ""

    def release(self) -> None:
        if self._written:
            self._written.cleanup()
            self._written = None

    @contextlib.contextmanager
    def explaining(self, name: str = "", size: int = 0, what: str = "it") -> Iterator[None]:
        with hub.explained(self.place, StoreError):
            yield
