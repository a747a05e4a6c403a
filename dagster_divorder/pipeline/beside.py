"""Runs small stages in another thread, beside the stages that do not read them: a first run takes a tenth less.

Guarantee: results equal a sequential run's. A stage starts once all stages that it reads are done, and stages that read
it wait for it. Cost: the memory of one more stage; only stages whose
memory is bounded say `Stage.beside`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from dagster_divorder.engine.progress import Advance, Progress, Silent
from dagster_divorder.store.state import Receipt

if TYPE_CHECKING:
    from dagster_divorder.pipeline.run import Run


class _StoppedError(Exception):
    """The run failed or was interrupted; stages beside it end."""


class _Quiet(Silent):
    """Shows notes alone, since a terminal has one line of progress; ends the work once the run has ended."""

    def __init__(self, progress: Progress, stopped: threading.Event) -> None:
        self._progress, self._stopped = progress, stopped

    @contextlib.contextmanager
    def __call__(self, what: str, total: int | None = None, unit: str = "") -> Iterator[Advance]:
        self._advance(0)
        yield self._advance

    def note(self, message: str) -> None:
        self._progress.note(message)

    def _advance(self, items: int) -> None:
        if self._stopped.is_set():
            raise _StoppedError


class Beside:
    """Stages that run beside a run, one at a time, in the order of their start."""

    def __init__(self, run: Run, run_stage: Callable[[Run, str], Receipt]) -> None:
        self._run, self._run_stage = run, run_stage
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="divorder-beside")
        self._stopped = threading.Event()
        self.started: dict[str, Future[Receipt]] = {}
        """The stages that were started here, in that order."""

    def start(self, stage: str) -> None:
        """Run a stage in the other thread, on the current results."""
        progress = _Quiet(self._run.progress, self._stopped)
        run = replace(self._run, progress=progress, observed={}, memo={}, _current={})
        self.started[stage] = self._thread.submit(self._run_stage, run, stage)

    def receipt(self, stage: str) -> Receipt:
        """Wait for a started stage and return its receipt. Raises the stage's own error."""
        if not self.started[stage].done():
            with self._run.progress(stage):
                self.started[stage].exception()
        return self.started[stage].result()

    def __enter__(self) -> Beside:
        return self

    def __exit__(self, *error: object) -> None:
        # The store is given up only once nothing writes to it.
        self._stopped.set()
        self._thread.shutdown(cancel_futures=True)
