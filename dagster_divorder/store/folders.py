"""Folders that outputs and exports are written into: of this machine, of an object store, or in a dataset of the Hub.

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
import io
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from dagster_divorder.errors import StoreError
from dagster_divorder.extras import load_extra
from dagster_divorder.settings.places import Place, Url
from dagster_divorder.store import hub
from dagster_divorder.store.base import TEMPORARY
from dagster_divorder.store.local import explain_os_error, sync_folder
from dagster_divorder.store.manifests import NEIGHBOUR, file_at, neighbour
from dagster_divorder.store.remote import explained
from dagster_divorder.store.sources import PIECE_BYTES, Source, bucket, open_source, tree_of

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd

PART_BYTES, PARTS = 32 << 20, 4
COPY_BYTES = 5 << 30
_COPIES = 16

Check = Callable[[], object]
"""Raises where what comes next must not be done."""


class Folder(ABC):
    """A folder at a place. What is written in another process, into the same place, may be published in this one; but
    not into a dataset of the Hub."""

    atomic = False
    """Whether `publish` changes all files at once."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def where(self, name: str) -> str:
        return str(file_at(self.place, name))

    def sizes(self) -> dict[str, int]:
        """Bytes of each file that is directly in it or in its neighbour, by name; empty where there is no folder."""
        return self._in_both(self._sizes)

    def names(self) -> Collection[str]:
        """Names of whatever is directly in it or in its neighbour."""
        return self.sizes().keys()

    def _in_both(self, look: Callable[[Any], Mapping[str, Any]]) -> dict[str, Any]:
        beside = look(neighbour(self.place))
        return {**look(self.place), **{NEIGHBOUR + name: found for name, found in beside.items()}}

    @staticmethod
    @abstractmethod
    def _sizes(place: Any) -> dict[str, int]:
        """Bytes of each file that is directly in a folder, by name; empty where there is no folder."""

    @abstractmethod
    def source(self, name: str) -> Source:
        """
        Raises:
            FileNotFoundError: there is no such file at a URL.
        """

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

    @staticmethod
    def _sizes(place: Path) -> dict[str, int]:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(place) as entries:
            return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
        return {}

    def names(self) -> Collection[str]:
        def listed(place: Path) -> dict[str, None]:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                return dict.fromkeys(os.listdir(place))
            return {}

        return self._in_both(listed).keys()

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


class _RemoteFolder(Folder):
    place: Url

    @staticmethod
    def _sizes(place: Url) -> dict[str, int]:
        found = tree_of(place).listed(place)
        return {name: file.size for name, file in found.items() if file}

    def source(self, name: str) -> Source:
        file = tree_of(self.place).file(self.where(name))
        if file is None:
            raise FileNotFoundError(f"there is no {self.where(name)}")
        return file


class _Copying(io.RawIOBase):
    """A file to write, of a library that goes on reading the memory it is given after `write` has returned."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return self._file.write(bytes(data))


class _ObjectFolder(_RemoteFolder):
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


class _HubFolder(_RemoteFolder):
    """Its files are written, and published, by the process that prepared it."""

    atomic = True

    def __init__(self, place: Url) -> None:
        super().__init__(place)
        self._parent = ""
        self._additions: dict[str, CommitOperationAdd] = {}
        self._deleted: list[str] = []
        self._written: tempfile.TemporaryDirectory[str] | None = None

    @property
    def _repository(self) -> dict[str, Any]:
        at = hub.place(self.place)
        return {"repo_id": at.repository, "repo_type": "dataset", "revision": at.revision}

    def _path(self, name: str) -> str:
        return hub.place(Url(self.where(name))).path

    def prepare(self) -> None:
        self.release()
        self._parent = hub.commit_of(self.place)
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
        self._commit(additions, [*self._deleted, *stale])

    def delete(self, names: Collection[str]) -> None:
        if self._written:
            self._deleted += names
        elif names:
            self._parent = hub.commit_of(self.place)
            self._commit([], names)

    def _commit(self, additions: list[CommitOperationAdd], deleted: Collection[str]) -> None:
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
                parent_commit=self._parent,
                **self._repository,
            )
        except HfHubHTTPError as error:
            if error.response.status_code != 412:
                raise
            raise StoreError(
                f"{self.place}: somebody else has committed to the dataset since this run began (it was at "
                f"{self._parent}), so nothing was published; run again, which writes upon what is there now"
            ) from None

    def release(self) -> None:
        if self._written:
            self._written.cleanup()
            self._written = None

    @contextlib.contextmanager
    def explaining(self, name: str = "", size: int = 0, what: str = "it") -> Iterator[None]:
        with hub.explained(self.place, StoreError):
            yield
