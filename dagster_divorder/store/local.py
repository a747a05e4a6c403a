"""A store in a local folder.

`put` writes under a temporary name, flushes to disk and renames. The lock is the kernel's, on a file: it ends with the
process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dagster_divorder.errors import StoreBusyError
from dagster_divorder.store.base import LOCK_FILE, STATE, Store
from dagster_divorder.store.folder import Data, LocalFolder


class LocalStore(Store):
    """A store in a local folder."""

    shared = False

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self.folder: LocalFolder = LocalFolder(self.root)
        self.place, self.real_place = str(self.root), os.path.realpath(self.root)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the absolute path, for processes with another working directory."""
        return LocalStore, (os.path.abspath(self.root),)

    def local(self, name: str) -> Path:
        return Path(self.where(name))

    def put(self, name: str, data: Data) -> str:
        if not (target := self.local(name)).exists():
            LocalFolder(target.parent).write({target.name: data})
        return name

    def delete(self, *names: str) -> None:
        """Remove files, then folders that are now empty."""
        for name in names:
            path = self.local(name)
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # a folder that is not empty
                while (path := path.parent) != self.root:
                    path.rmdir()

    def _all_files(self) -> Iterator[tuple[str, int, float]]:
        for folder, _, names in os.walk(self.root):
            for name in names:
                path = os.path.join(folder, name)
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    status = os.stat(path, follow_symlinks=False)
                    yield os.path.relpath(path, self.root), status.st_size, status.st_mtime

    def document(self) -> bytes | None:
        return self.read(STATE) if self.exists(STATE) else None

    def swap(self, document: bytes) -> bool:
        self.folder.write({STATE: document})
        return True

    @contextlib.contextmanager
    def lock(self, *, wait: bool = True, on_wait: Callable[[str], Any] | None = None) -> Iterator[None]:
        self.open(create=False)
        with self.folder.explaining():
            self.folder.prepare()
            descriptor = os.open(self.root / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
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
