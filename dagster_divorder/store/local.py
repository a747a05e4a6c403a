"""Local folders, and a store in a local folder.

`put` writes under a temporary name, flushes to disk and renames. The lease is a kernel lock on a file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import orjson

from dagster_divorder.errors import StoreBusyError, StoreError
from dagster_divorder.store.base import (
    FORMAT,
    FORMAT_FILE,
    LEASE_FILE,
    OURS,
    TEMPORARY,
    Bytes,
    Data,
    Entry,
    Guard,
    Store,
    WritableFolder,
    json_object,
    new_about,
    temporary_name,
)
from dagster_divorder.store.disk import DISK_FULL, explain_os_error
from dagster_divorder.store.manifests import NEIGHBOUR, file_at

SCRATCH = "scratch"


class LocalFolder(WritableFolder):
    """A local folder."""

    place: Path

    def entry(self, path: str) -> Entry:
        with _nothing_there():
            mode = os.stat(path).st_mode
            return "file" if stat.S_ISREG(mode) else "folder" if stat.S_ISDIR(mode) else "neither"
        return "neither"

    def entries(self, path: str) -> dict[str, Entry]:
        missing = contextlib.suppress(FileNotFoundError, NotADirectoryError)
        with missing, os.scandir(path or os.curdir) as entries:
            return {entry.name: _entry(entry) for entry in entries}
        return {}

    def source(self, name: str) -> Path:
        return file_at(self.place, name)

    def prepare(self) -> None:
        """Make the folder."""
        self.place.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def create(self, name: str, temporary: str, *, lasting: bool = True) -> Iterator[IO[bytes]]:
        """A file to write from beginning to end, under a temporary name. lasting: it is on disk at the end."""
        path = self.source(temporary)
        if name.startswith(NEIGHBOUR):
            path.parent.mkdir(exist_ok=True)
        with open(path, "wb") as file:
            yield file
            file.flush()
            if lasting:
                os.fsync(file.fileno())

    def link(self, name: str, temporary: str) -> bool:
        """Give a published file a temporary name too, without writing it again; False where this is not possible."""
        try:
            os.link(self.source(name), self.source(temporary))
        except OSError:  # for example, a file system without links
            return False
        return True

    def publish(self, staged: Mapping[str, Path], last: str, stale: Collection[str], check: Guard) -> None:
        folders = {self.source(name).parent for name in staged}
        for name, temporary in sorted(staged.items(), key=lambda item: item[0] == last):
            if name == last and len(staged) > 1:
                # The other files are on disk before the last file names them.
                for folder in folders:
                    sync_folder(folder)
            check()
            os.replace(temporary, self.source(name))
        sync_folder(self.source(last).parent)
        check()
        self.delete(stale)

    def delete(self, names: Collection[str]) -> None:
        for name in names:
            path = self.source(name)
            if name.startswith(TEMPORARY) and path.is_dir():
                # The folder's own thread may be removing files too.
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def write(self, files: Mapping[str, Data], check: Guard = lambda: None) -> None:
        """Write files, all or none, and publish them, the last one last."""
        staged, last = {name: temporary_name() for name in files}, [*files][-1]
        size = sum(memoryview(data).nbytes for data in files.values() if isinstance(data, Bytes))
        with self.explaining(last, size):
            try:
                self.prepare()
                for name, data in files.items():
                    with self.create(name, staged[name]) as file:
                        if callable(data):
                            data(file)
                        else:
                            file.writelines([data] if isinstance(data, Bytes) else data)
                self.publish(self.sources(staged), last, (), check)
            except BaseException:
                # Before `explaining`, so that the message counts their space as free.
                with contextlib.suppress(OSError):
                    self.delete(staged.values())
                raise

    def sources(self, temporary: Mapping[str, str]) -> dict[str, Path]:
        """The paths of temporary names, by name."""
        return {name: self.source(each) for name, each in temporary.items()}

    @contextlib.contextmanager
    def explaining(self, name: str = "", size: int = 0, what: str = "it") -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise explain_os_error(error, self.source(name), size, what) from error


@contextlib.contextmanager
def _nothing_there() -> Iterator[None]:
    """Suppresses the errors of a path where nothing exists."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
            raise


def _entry(entry: os.DirEntry[str]) -> Entry:
    with _nothing_there():
        if entry.is_file():
            return "file"
        if entry.is_dir():
            return "folder"
    return "neither"


class LocalStore(Store):
    """A store in a local folder."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self.folder = LocalFolder(self.root)
        self.place, self.real_place = str(self.root), os.path.realpath(self.root)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the absolute path, for processes with another working directory."""
        return LocalStore, (os.path.abspath(self.root),)

    def open(self, *, create: bool = True) -> LocalStore:
        try:
            names = set(os.listdir(self.root))
        except (FileNotFoundError, NotADirectoryError):
            names = set()
        except OSError as error:
            raise explain_os_error(error, self.root) from error
        if FORMAT_FILE in names:
            self._about()
        elif others := sorted(
            name
            for name in names
            if not name.startswith(TEMPORARY) and (name != LEASE_FILE or not self._has_lease())
        ):
            raise StoreError(
                f"store.path {self.root} is a folder with other files ({others[0]}), not a store; expected a "
                "new or empty folder, or a store: set store.path to one"
            )
        elif create:
            self.put(FORMAT_FILE, orjson.dumps(new_about()))
        return self

    def _has_lease(self) -> bool:
        """Whether the file LEASE_FILE is a lease, not a user's file. A lease is empty or holds a process number.
        Another process that creates the store takes the lease before it writes the format."""
        try:
            with open(self.local(LEASE_FILE), "rb") as file:
                content = file.read(64)
        except OSError:
            return False
        return not content or content.isdigit()

    def local(self, name: str) -> Path:
        return Path(self.where(name))

    def put(self, name: str, data: Data, *, replace: bool = False) -> str:
        target = self.local(name)
        if not replace and target.exists():
            return name
        write_atomically(target, data)
        return name

    def delete(self, *names: str) -> None:
        """Remove files, then folders that are now empty."""
        for name in names:
            path = self.local(name)
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # a folder that is not empty
                while (path := path.parent) != self.root:
                    path.rmdir()

    def files(self) -> dict[str, int]:
        sizes: dict[str, int] = {}
        pending = [""]
        while pending:
            folder = pending.pop()
            with (
                contextlib.suppress(FileNotFoundError, NotADirectoryError),
                os.scandir(self.root / folder) as entries,
            ):
                for entry in entries:
                    name = f"{folder}{entry.name}"
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(f"{name}/")
                    elif OURS.fullmatch(name):
                        sizes[name] = entry.stat().st_size
        return dict(sorted(sizes.items()))

    # The lease ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def lease(self, *, wait: bool = True, on_wait: Callable[[str], Any] | None = None) -> Iterator[None]:
        """Hold the store alone. The lock ends with the process, and no child inherits it."""
        self.open(create=False)
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.root / LEASE_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise explain_os_error(error, self.root) from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(descriptor, 64, 0).decode(errors="replace").strip() or "unknown"
                message = f"store {self.root} is in use by another run (process {holder})"
                if not wait:
                    raise StoreBusyError(f"{message}; wait for it to end, or stop it") from None
                if on_wait:
                    on_wait(f"{message}; waiting for it to end")
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Only messages use the number; if the disk is full, the run itself explains that.
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            yield
        finally:
            os.close(descriptor)

    # Temporary files -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def scratch(self, size: int = 0, what: str = "it") -> Iterator[Path]:
        folder = self.root / SCRATCH / temporary_name()
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise explain_os_error(error, folder, size, what) from error
        try:
            yield folder
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            raise explain_os_error(error, folder, size, what) from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def clear_scratch(self) -> None:
        for name in self.folders(SCRATCH):
            if name.startswith(f"{SCRATCH}/{TEMPORARY}"):
                shutil.rmtree(self.local(name), ignore_errors=True)


def tells_of_store(data: bytes) -> bool:
    """Whether a FORMAT_FILE with this content marks a store of any version."""
    return json_object(data).get("format") == FORMAT


def write_atomically(target: Path, data: Data) -> None:
    """Write a local file whole or not at all.

    Raises:
        StoreError: as `Folder.write`.
    """
    LocalFolder(target.parent).write({target.name: data})


def sync_folder(folder: Path) -> None:
    """Flush a folder's renames to disk, so that they survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
