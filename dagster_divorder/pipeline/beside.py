"""Runs small stages in another thread, beside the stages that do not read them.

Guarantee: results equal a sequential run's. A stage starts once all stages that it reads are done, and stages that read
it wait for it.
Cost: the memory of one more stage. Only stages whose memory is bounded say `Stage.beside`.
Known weakness: an interrupted stage ends at its next report of progress, and the run waits until then.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from dagster_divorder.engine.progress import Advance, Progress
from dagster_divorder.store.state import Receipt

if TYPE_CHECKING:
    from dagster_divorder.pipeline.run import Run


class _StoppedError(Exception):
    """The run failed or was interrupted; stages beside it end."""


class _Quiet:
    """Shows notes alone, since a terminal has one line of progress; ends the work once the run has ended."""

    def __init__(self, progress: Progress, stopped: threading.Event) -> None:
        self._progress, self._stopped = progress, stopped

    @contextlib.contextmanager
    def __call__(self, what: str, total: int | None = None, unit: str = "") -> Iterator[Advance]:
        self._go_on()
        yield lambda items: self._go_on()

    def note(self, message: str) -> None:
        self._go_on()
        self._progress.note(message)

    def _go_on(self) -> None:
        if self._stopped.is_set():
            raise _StoppedError


class Beside:
    """Stages that run beside a run, one at a time, in the order of their start."""

    def __init__(self, run: Run, run_stage: Callable[[Run, str], Receipt]) -> None:
        self._run, self._run_stage = run, run_stage
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="divorder-beside")
        self._stopped = threading.Event()
        self._ended = contextlib.ExitStack()
        """Closes the engines that these stages have opened, once no stage uses one."""
        self.started: dict[str, Future[Receipt]] = {}
        """The stages that were started here, in that order."""

    def start(self, stage: str) -> None:
        """Run a stage in the other thread, on the current results."""
        run = replace(
            self._run,
            progress=_Quiet(self._run.progress, self._stopped),
            observed={},
            memo={},
            _current={},
            _engine=None,
        )
        self._ended.callback(run.close)
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
        # The store is given up only once nothing writes to it, whatever interrupts the wait.
        self._stopped.set()
        while True:
            with contextlib.suppress(BaseException):
                self._thread.shutdown(cancel_futures=True)
                break
        self._ended.close()
