"""A folder as a store of immutable files: `list`, `read`, `put`, `lease` (and `delete`, for what nothing refers to).

Guarantee: a name is either absent or complete. `put` writes under a temporary name, flushes to disk and renames, so
neither a killed process nor a full disk leaves a half-written file under its name.

A *sealed* name carries the xxh3-128 of its bytes, `<key>.<32 hex digits>.<ext>`: a damaged file is found when it is
read, and whether a result is present is one listing of its folder. A damaged or missing file raises DamagedFileError,
which `pipeline.repair` answers where the file can be made again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import orjson
import xxhash

from dagster_divorder.errors import DamagedFileError, DiskFullError, StoreBusyError, StoreError

FORMAT_VERSION = 1
FORMAT_FILE = "format.json"
LEASE_FILE = "lease"
TEMPORARY = ".tmp-"
SCRATCH = "scratch"

Bytes = bytes | bytearray | memoryview
Names = list[str]

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk or quota."""


class LocalStore:
    """A store in a local folder, made on first use.

    Raises:
        StoreError: the folder cannot be made or written, or was written by a newer version of this package.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)

    def open(self) -> LocalStore:
        """Make the folder if it is missing, check its format version, and return self."""
        marker = self.root / FORMAT_FILE
        if marker.exists():
            version = self._format_version()
            if version != FORMAT_VERSION:
                raise StoreError(
                    f"store {self.root} has format version {version}, this package reads version {FORMAT_VERSION}; "
                    "install the version that wrote it, or set store.path to a new folder"
                )
            return self
        self.put(FORMAT_FILE, orjson.dumps({"version": FORMAT_VERSION}))
        return self

    @property
    def id(self) -> str:
        """Tells this store from others: what its marker says, else its place."""
        try:
            return str(orjson.loads(self.read(FORMAT_FILE))["id"])
        except (StoreError, orjson.JSONDecodeError, KeyError, TypeError):
            return str(self.root.resolve())

    def _format_version(self) -> Any:
        data = self.read(FORMAT_FILE)
        try:
            return orjson.loads(data)["version"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            raise StoreError(
                f"{self.root / FORMAT_FILE} is damaged: it holds {data[:40]!r}, expected "
                f'{{"version":{FORMAT_VERSION}}}; delete it if this version of the package wrote the store, '
                "or set store.path to a new folder"
            ) from None

    def path(self, name: str) -> Path:
        return self.root / name

    def exists(self, name: str) -> bool:
        return (self.root / name).exists()

    def list(self, folder: str) -> list[str]:
        """Names of the complete files directly in a folder, sorted; none if the folder is missing."""
        try:
            with os.scandir(self.root / folder) as entries:
                return sorted(
                    f"{folder}/{entry.name}"
                    for entry in entries
                    if entry.is_file() and not entry.name.startswith(TEMPORARY)
                )
        except FileNotFoundError:
            return []

    def folders(self, folder: str) -> Names:
        """Names of the folders directly in a folder, sorted; none if it is missing."""
        try:
            with os.scandir(self.root / folder) as entries:
                return sorted(f"{folder}/{entry.name}" for entry in entries if entry.is_dir())
        except FileNotFoundError:
            return []

    def read(self, name: str) -> bytes:
        try:
            return (self.root / name).read_bytes()
        except FileNotFoundError:
            message = f"{self.root / name} is missing; run the pipeline again to make it"
            raise DamagedFileError(message, name) from None
        except OSError as error:
            raise StoreError(f"{self.root / name} cannot be read: {error.strerror}") from error

    def put(
        self, name: str, data: Bytes | Iterable[Bytes] | Callable[[IO[bytes]], Any], *, replace: bool = False
    ) -> str:
        """Write a file whole or not at all. A name that exists already is left as it is unless `replace`."""
        target = self.root / name
        if not replace and target.exists():
            return name
        write_atomically(target, data)
        return name

    def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self.root / name).unlink()

    # Sealed files -------------------------------------------------------------------------------------------------

    def seal(self, folder: str, key: str, data: Bytes, extension: str) -> str:
        """Put bytes under a name that carries their hash."""
        return self.put(f"{folder}/{key}.{xxhash.xxh3_128_hexdigest(data)}.{extension}", data)

    def sealed(self, folder: str) -> dict[str, str]:
        """Key -> name of the sealed files in a folder (the first by name if a key is there twice).

        Looking up a key that is not there raises DamagedFileError: who asks for a file without asking whether it is
        there was promised one.
        """
        found = _Sealed(self, folder)
        for name in self.list(folder):
            found.setdefault(name.rsplit("/", 1)[1].split(".", 1)[0], name)
        return found

    def unseal(self, name: str) -> bytes:
        """Read a sealed file.

        Raises:
            DamagedFileError: the bytes are not the ones that were written.
        """
        data = self.read(name)
        expected = name.rsplit(".", 2)[1]
        found = xxhash.xxh3_128_hexdigest(data)
        if found != expected:
            raise DamagedFileError(
                f"{self.root / name} is damaged: its content hashes to {found}, its name says {expected}; "
                "delete the file and run again, it is then made anew",
                name,
            )
        return data

    # The lease ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def lease(self, *, wait: bool = True, on_wait: Callable[[str], Any] | None = None) -> Iterator[None]:
        """Hold the store alone. The lock is the kernel's: it goes with the process, and no child inherits it.

        Raises:
            StoreBusyError: another run holds it and `wait` is False.
            StoreError: the store's folder cannot be made or written.
        """
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
            # Who holds it is only said to others; a full disk is for the run itself to explain.
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            yield
        finally:
            os.close(descriptor)

    # Files of a moment -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def scratch(self, size: int = 0, what: str = "it") -> Iterator[Path]:
        """An empty folder for files of a moment, for who holds the lease; removed at the end. What a killed process
        left is removed by `clear_scratch`. `size` is about how many bytes `what` takes, as in `explain_os_error`.

        Raises:
            StoreError: the folder cannot be made; DiskFullError also where the disk is full meanwhile.
        """
        folder = self.root / SCRATCH / secrets.token_hex(8)
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
        """Remove what killed processes left in `scratch`. For who holds the lease: nobody else uses it then."""
        for name in self.folders(SCRATCH):
            if re.fullmatch(r"[0-9a-f]{16}", name.rpartition("/")[2]):
                shutil.rmtree(self.root / name, ignore_errors=True)


class _Sealed(dict[str, str]):
    """Key -> name of the sealed files in a folder."""

    def __init__(self, store: LocalStore, folder: str) -> None:
        super().__init__()
        self._store, self._folder = store, folder

    def __missing__(self, key: str) -> str:
        name = f"{self._folder}/{key}"
        raise DamagedFileError(
            f"{self._store.path(name)}.* is missing; run the pipeline again to make it", name
        )


def write_where_changed(target: Path, data: bytes) -> None:
    """Write a file, as `write_atomically` does, unless it holds just that already."""
    if not target.is_file() or target.read_bytes() != data:
        write_atomically(target, data)


def write_atomically(target: Path, data: Bytes | Iterable[Bytes] | Callable[[IO[bytes]], Any]) -> None:
    """Write bytes, chunks, or what a function writes to the open file, under a temporary name; then rename.

    Raises:
        StoreError: the disk is full (DiskFullError) or the folder is not writable; the old file is still whole.
    """
    temporary = target.parent / f"{TEMPORARY}{secrets.token_hex(8)}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            if callable(data):
                data(file)
            elif isinstance(data, (bytes, bytearray, memoryview)):
                file.write(data)
            else:
                file.writelines(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
        sync_folder(target.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        size = len(data) if isinstance(data, (bytes, bytearray)) else getattr(data, "nbytes", 0)
        raise explain_os_error(error, target, size) from error
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def explain_os_error(error: OSError, target: Path, size: int = 0, what: str = "it") -> StoreError:
    """What an operating system error at a path means for the user, and what to do.

    `size` is about how many bytes `what` takes, 0 if that is unknown.
    """
    if error.errno in DISK_FULL:
        free = shutil.disk_usage(next(path for path in (target, *target.parents) if path.is_dir())).free
        takes = f"{what} takes about {megabytes(size)}, " if size else ""
        return DiskFullError(
            f"no space left for {target}: {takes}{megabytes(free)} are free there; free "
            f"{f'at least {megabytes(max(size - free, 1))}' if size else 'some disk'}, "
            "or move the folder to a larger disk, then run again: it goes on from here"
        )
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return StoreError(
            f"{target} cannot be written: {error.filename or target} is a file, expected a folder; "
            "move it away, or set another path"
        )
    if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return StoreError(f"{target} cannot be written ({error.strerror}); make its folder writable")
    return StoreError(f"{target} cannot be written: {error}")


def megabytes(size: int) -> str:
    """A number of bytes as people read it, rounded up."""
    return f"{-(-size // 10_000) / 100:,.2f} MB"
