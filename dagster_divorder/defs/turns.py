"""Makes the steps of one run, which may be in several processes, take turns at a store.

The store's lease alone is not enough: with `store.wait = false` a step would fail instead of waiting for another step
of its own run. Known weakness: steps on several machines have only the lease.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import xxhash


@contextlib.contextmanager
def turn(run: str, store: str, step: str, on_wait: Callable[[str], Any]) -> Iterator[None]:
    """Wait until no other step of a run works on a store. on_wait: gets a message with the other step. The turn of a
    process ends when it dies."""
    file = Path(tempfile.gettempdir(), f"divorder-{run}-{xxhash.xxh3_64_hexdigest(store.encode())}")
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                other = os.pread(descriptor, 256, 0).decode() or "another step"
                on_wait(
                    f"{step} waits for {other} of this run to end: one step at a time works on store {store}"
                )
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            # The step before removes its file, so the lock may be on a removed file.
            if os.fstat(descriptor).st_nlink:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, step.encode(), 0)
                try:
                    yield
                finally:
                    file.unlink(missing_ok=True)
                return
        finally:
            os.close(descriptor)
