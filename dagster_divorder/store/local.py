"""A folder as a store of immutable files: `list`, `read`, `put`, `lease` (and `delete`, for what nothing refers to).

Guarantee: a name is either absent or complete. `put` writes under a temporary name, flushes to disk and renames, so
neither a killed process nor a full disk leaves a half-written file under its name.

A *hashed* name carries the xxh3-128 of its folder, key, extension and bytes, `<key>.<32 hex digits>.<ext>`: a damaged
file, or one that lies under another's name, is found when it is read, and whether a result is present is one listing of
its folder. A damaged or missing file raises DamagedFileError, which `pipeline.repair` answers where the file can be
made again.
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

FORMAT_VERSION = 3
FORMAT = "divorder store"
FORMAT_FILE = "format.json"
LEASE_FILE = "lease"
TEMPORARY = ".divorder-tmp-"
"""How names of half-written files begin; no other program's do."""
SCRATCH = "scratch"

Bytes = bytes | bytearray | memoryview
Names = list[str]

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk or quota."""


_HASH = "[0-9a-f]{32}"
_FOLDERS = "|".join(
    [
        "(views|readings|rejects|schemas)",
        rf"(documents|records/{_HASH})(/index)?",
        r"stages/[a-z_]+(/[\w-]+)?",
    ]
)
_OURS = re.compile(
    "|".join(
        [
            FORMAT_FILE.replace(".", r"\."),
            LEASE_FILE,
            rf"({_FOLDERS})/[\w-]+\.{_HASH}\.[a-z0-9]+",
            rf"fits/[a-z_]+/{_HASH}/[\w.-]+",
            r"(receipts|history|outputs)/\w+\.json|(history/)?pins/[a-z_]+/[\w-]+\.json",
            rf"results/embeddings-{_HASH}\.npy",
            rf"([\w/-]+/)?{re.escape(TEMPORARY)}[0-9a-f]{{16}}",
        ]
    )
)
"""Names that this package writes into a store. What has none of them is somebody else's, and never touched."""


class LocalStore:
    """A store in a local folder: one that is new, empty, or a store already, never one with files of others in it.

    Raises:
        StoreError: the folder holds other files, cannot be made or written, or is a store of another version.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)

    def open(self, *, create: bool = True) -> LocalStore:
        """Check that the folder is a store of this version and return self; make it where it is none yet and `create`.

        Without `create` a folder that is not there is an empty store.
        """
        try:
            names = set(os.listdir(self.root))
        except (FileNotFoundError, NotADirectoryError):
            names = set()
        except OSError as error:
            raise explain_os_error(error, self.root) from error
        if FORMAT_FILE in names:
            self._about()
        # A store that another process is just making may have its lease before its format.
        elif others := sorted(n for n in names if n != LEASE_FILE and not n.startswith(TEMPORARY)):
            raise StoreError(
                f"store.path {self.root} is a folder with other files in it ({others[0]}), and no store; expected a "
                "new or empty folder, or a store: set store.path to one"
            )
        elif create:
            about = {"format": FORMAT, "version": FORMAT_VERSION, "id": secrets.token_hex(16)}
            self.put(FORMAT_FILE, orjson.dumps(about))
        return self

    @property
    def id(self) -> str:
        """32 hex digits, drawn when the store was made; empty where there is none yet."""
        found: str = self._about()["id"] if self.exists(FORMAT_FILE) else ""
        return found

    def _about(self) -> dict[str, Any]:
        """What the format file says.

        Raises:
            StoreError: it is not one of this version.
        """
        data = self.read(FORMAT_FILE)
        about = _json_object(data)
        version = about.get("version")
        if about.get("format", FORMAT) != FORMAT or not isinstance(version, int):
            raise StoreError(
                f"{self.root / FORMAT_FILE} is damaged or belongs to another program: it holds {data[:40]!r}, "
                f'expected {{"format":"{FORMAT}","version":{FORMAT_VERSION},...}}; restore it from a copy, or set '
                "store.path to a new folder"
            )
        if version != FORMAT_VERSION:
            raise StoreError(
                f"store {self.root} has format version {version}, this package reads version {FORMAT_VERSION}; "
                "install the version that wrote it, or set store.path to a new folder, where everything is computed "
                "again"
            )
        if not re.fullmatch("[0-9a-f]{32}", str(about.get("id"))):
            raise StoreError(
                f"{self.root / FORMAT_FILE} is damaged: its id is {about.get('id')!r}, expected 32 hex digits; restore "
                "it from a copy, or set store.path to a new folder"
            )
        return about

    def path(self, name: str) -> Path:
        """Where a name lies.

        Raises:
            StoreError: the name, which may come from a file that was tampered with, leads out of the store.
        """
        parts = name.split("/")
        if not all(parts) or not {".", ".."}.isdisjoint(parts) or "\0" in name:
            raise StoreError(
                f"a file of store {self.root} names {name!r}, which is no name inside it; restore the store from a "
                "copy, or delete it: a run then computes everything again"
            )
        return self.root / name

    def exists(self, name: str) -> bool:
        return self.path(name).exists()

    def list(self, folder: str) -> list[str]:
        """Names of the complete files directly in a folder, sorted; none if the folder is missing."""
        try:
            with os.scandir(self.path(folder)) as entries:
                return sorted(
                    f"{folder}/{entry.name}"
                    for entry in entries
                    if entry.is_file() and not entry.name.startswith(TEMPORARY)
                )
        except (FileNotFoundError, NotADirectoryError):
            return []

    def folders(self, folder: str) -> Names:
        """Names of the folders directly in a folder, sorted; none if it is missing."""
        try:
            with os.scandir(self.path(folder)) as entries:
                return sorted(f"{folder}/{entry.name}" for entry in entries if entry.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self, name: str) -> bytes:
        path = self.path(name)
        try:
            return path.read_bytes()
        except FileNotFoundError:
            raise DamagedFileError(f"{path} is missing; run the pipeline again to make it", name) from None
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror}") from error

    def put(
        self, name: str, data: Bytes | Iterable[Bytes] | Callable[[IO[bytes]], Any], *, replace: bool = False
    ) -> str:
        """Write a file whole or not at all. A name that exists already is left as it is unless `replace`."""
        target = self.path(name)
        if not replace and target.exists():
            return name
        write_atomically(target, data)
        return name

    def delete(self, name: str) -> None:
        """Remove a file, and the folders that it leaves empty."""
        path = self.path(name)
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # a folder that is not empty
            while (path := path.parent) != self.root:
                path.rmdir()

    def files(self) -> dict[str, int]:
        """Name -> bytes of every file that this package has written, half-written ones too.

        A folder may have come to hold other files, wherever they are from; they are nobody's business here.
        """
        found: dict[str, int] = {}
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
                    elif _OURS.fullmatch(name):
                        found[name] = entry.stat().st_size
        return dict(sorted(found.items()))

    # Hashed files -------------------------------------------------------------------------------------------------

    def put_hashed(self, folder: str, key: str, data: Bytes, extension: str) -> str:
        """Put bytes under a name that carries the hash of them and of itself."""
        prefix = f"{folder}/{key}"
        return self.put(f"{prefix}.{_hash_of(prefix, extension, data)}.{extension}", data)

    def hashed(self, folder: str) -> dict[str, str]:
        """Key -> name of the hashed files in a folder (the first by name if a key is there twice).

        Looking up a key that is not there raises DamagedFileError: who asks for a file without asking whether it is
        there was promised one.
        """
        found = _Hashed(self, folder)
        for name in self.list(folder):
            found.setdefault(name.rsplit("/", 1)[1].split(".", 1)[0], name)
        return found

    def read_verified(self, name: str) -> bytes:
        """Read a hashed file.

        Raises:
            DamagedFileError: the bytes are not the ones that were written under this name.
        """
        data = self.read(name)
        prefix, expected, extension = name.rsplit(".", 2)
        found = _hash_of(prefix, extension, data)
        if found != expected:
            raise DamagedFileError(
                f"{self.root / name} is damaged: its name and content hash to {found}, expected {expected}; "
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
            StoreError: the store's folder cannot be made or written, or `open` refuses it.
        """
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
        folder = self.root / SCRATCH / f"{TEMPORARY}{secrets.token_hex(8)}"
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
            if name.startswith(f"{SCRATCH}/{TEMPORARY}"):
                shutil.rmtree(self.path(name), ignore_errors=True)


def _hash_of(prefix: str, extension: str, data: Bytes) -> str:
    name = xxhash.xxh3_64_intdigest(f"{prefix}.{extension}".encode())
    return xxhash.xxh3_128_hexdigest(data, seed=name)


class _Hashed(dict[str, str]):
    """Key -> name of the hashed files in a folder."""

    def __init__(self, store: LocalStore, folder: str) -> None:
        super().__init__()
        self._store, self._folder = store, folder

    def __missing__(self, key: str) -> str:
        name = f"{self._folder}/{key}"
        raise DamagedFileError(
            f"{self._store.path(name)}.* is missing; run the pipeline again to make it", name
        )


def is_store(folder: str) -> bool:
    """Whether a folder is a store, of whatever version."""
    try:
        about = _json_object((Path(folder) / FORMAT_FILE).read_bytes())
    except OSError:
        return False
    # Version 1 did not name the format.
    return about.get("format") == FORMAT or (
        about.keys() == {"version"} and isinstance(about["version"], int)
    )


def _json_object(data: bytes) -> dict[str, Any]:
    """The JSON object that bytes hold, an empty one where they hold none."""
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


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
        missing, to_free = f"{megabytes(free)} are free there", "some disk"
        if size > free:
            missing = f"{what} takes about {megabytes(size)}, {missing}"
            to_free = f"at least {megabytes(size - free)}"
        elif size:
            # Too low a guess, or other files were written at the same time.
            missing = f"{what} and what is written beside it take more than the {megabytes(free)} that are free there"
        return DiskFullError(
            f"no space left for {target}: {missing}; free {to_free}, or move the folder to a larger disk, then run "
            "again: it goes on from here"
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
