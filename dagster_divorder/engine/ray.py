"""Calls as tasks of a Ray cluster, on all its cores.

Guarantee: a killed worker or node costs only its own calls. Every worker is checked before its first call, one of them
before any. Ray's memory does not fill: functions enter it once, items and receipts are a few words. Cost: 6 to 9 s and
450 MB for a Ray of its own, 2 to 5 s to join one; then 1 ms a call (docs/decisions/engine.md). Known weakness: a run
ends with the cluster's head, and resumes when started again. A dead node is noticed after some 15 s. Where another
program listens at the address, Ray ends this process after two minutes.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import platform
import socket
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from dagster_divorder import __version__
from dagster_divorder.engine.base import Engine, Needs, Submit
from dagster_divorder.engine.local import picklable, worker_variables
from dagster_divorder.engine.progress import Advance
from dagster_divorder.errors import SettingsError, WorkerError
from dagster_divorder.extras import load_extra

RETRIES = 2
"""Repeats of a call after its worker or node died. Errors are not retried."""
IN_FLIGHT = 4
"""Calls submitted for each core: enough that no worker waits, few enough that few results wait."""
ANSWER_SECONDS, START_SECONDS = 10.0, 120.0
"""Seconds within which a head must accept a connection, and its cluster have a core and start a worker."""
_INSTALL = (
    f"install this dagster-divorder ({__version__}) in the nodes' image, or send it along: ray job submit "
    f'--runtime-env-json \'{{"pip": ["dagster-divorder[ray]=={__version__}"]}}\' -- divorder run'
)


class RayEngine(Engine):
    """A Ray cluster.

    address: where to join it; None: RAY_ADDRESS, else this machine's cluster, else a new one of this process. A Ray
        that this process has already joined is used, and not left.
    asked: most calls at once, 0 for one a core. unseen: called by workers; names what they lack, "" for nothing.

    Raises SettingsError: Ray cannot be joined, or a worker lacks something; InputError: Ray is not
    installed."""

    is_remote = True

    def __init__(self, address: str | None, asked: int, unseen: Callable[[], str]) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        self._ray, self._asked = load_extra("ray"), asked
        self._check = pickle.dumps((__version__, unseen))
        self._joined = not self._ray.is_initialized()
        try:
            if self._joined:
                self._join(address or os.environ.get("RAY_ADDRESS"))
            # A call of nothing: a new cluster may have no core yet, and its workers may lack something.
            first = self._task({}, may_wait=True).remote(bool, None, False, self._check)
            self._get(first, START_SECONDS)
        except BaseException:
            self.close()
            raise

    def _join(self, address: str | None) -> None:
        host, _, port = (address or "").rpartition(":")
        try:
            if port.isdigit():
                # Where nothing listens, Ray waits for two minutes and then ends the process.
                socket.create_connection((host, int(port)), ANSWER_SECONDS).close()
            self._ray.init(address, log_to_driver=False, logging_level="error")
        except (RuntimeError, OSError, SystemExit) as error:
            raise SettingsError(
                f"the Ray cluster at {address or 'this machine'} cannot be joined: {_line(error)}; expected in "
                "engine.address or RAY_ADDRESS the HOST:PORT of a head (ray start --head) with this machine's versions "
                "of ray and Python, and this machine as a node of it (ray start --address=HOST:PORT --num-cpus=0); or "
                "run there: ray job submit -- divorder run"
            ) from error

    def close(self) -> None:
        """Leaves the cluster if this engine has joined it; its workers end."""
        if self._joined:
            self._ray.shutdown()

    @property
    def workers(self) -> int:  # type: ignore[override]
        return self._asked or max(1, int(self._ray.cluster_resources().get("CPU", 0)))

    @property
    def gpus(self) -> int:  # type: ignore[override]
        return int(self._ray.cluster_resources().get("GPU", 0))

    def _room(self, needs: Needs) -> int:
        return self._asked or IN_FLIGHT * self.workers

    @contextlib.contextmanager
    def _workers(
        self, function: Callable[..., Any], most: int, needs: Needs, advance: Advance | None
    ) -> Iterator[Submit]:
        task, put = self._task(needs), self._ray.put(function)
        started: deque[Any] = deque()

        def first_result() -> Any:
            result, progress = self._get(started.popleft())
            if advance and progress:
                advance(progress)
            return result

        def submit(item: Any) -> Callable[[], Any]:
            started.append(task.remote(put, item, advance is not None, self._check))
            return first_result

        try:
            yield submit
        finally:
            for reference in started:
                with contextlib.suppress(self._ray.exceptions.RayError):
                    self._ray.cancel(reference, force=True)

    def _task(self, needs: Needs, *, may_wait: bool = False) -> Any:
        """The remote `_attempt`. A call has `threads` cores of a node, at most all of them.

        Raises SettingsError if no node has the resources of a call, unless it may wait for one: Ray waits for ever.
        """
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        cores = min(needs.get("threads") or 1, max([1, *(int(node.get("CPU", 0)) for node in nodes)]))
        wanted = {"CPU": cores, "GPU": needs.get("gpus", 0), "memory": needs.get("memory", 0)}
        fits = any(all(node.get(each, 0) >= size for each, size in wanted.items()) for node in nodes)
        if not (fits or may_wait):
            listed = ", ".join(f"{each} {size:,}" for each, size in wanted.items() if size)
            raise SettingsError(
                f"no node of the Ray cluster has the resources of one call ({listed}); start a node that has them"
            )
        return self._ray.remote(_attempt).options(
            num_cpus=cores,
            num_gpus=wanted["GPU"],
            memory=wanted["memory"] or None,
            max_retries=RETRIES,
            runtime_env={"env_vars": worker_variables(cores, needs)},
        )

    def _get(self, reference: Any, seconds: float | None = None) -> tuple[Any, int]:
        """The result of a call, and the sum of its progress."""
        exceptions = self._ray.exceptions
        try:
            failure, result, progress = self._ray.get(reference, timeout=seconds)
        except exceptions.RayTaskError as error:
            # Errors of the function are results, so this error has another cause: the last line of a traceback.
            cause = str(error).strip().splitlines()[-1]
            raise SettingsError(
                f"a worker of the Ray cluster cannot run dagster-divorder {__version__} ({cause}); {_INSTALL}"
            ) from error
        except exceptions.GetTimeoutError as error:
            raise SettingsError(
                f"the Ray cluster started no worker within {seconds:.0f} s; expected a node with a core (ray start "
                "--address ..., minReplicas of a KubeRay group; logs there in /tmp/ray/session_latest/logs)"
            ) from error
        except exceptions.RayError as error:
            raise WorkerError(
                f"a call was lost {RETRIES + 1} times, the last time by {type(error).__name__}: {_line(error)[:500]}; "
                "run again: finished fragments are kept; if memory ran out, use nodes with more memory or a lower "
                "engine.workers"
            ) from error
        if failure:
            raise failure
        return result, progress


def _attempt(
    function: Callable[..., Any], item: Any, tells: bool, check: bytes
) -> tuple[Exception | None, Any, int]:
    """In a worker: the error of a call, its result, and the sum of its progress."""
    progress: list[int] = []
    where = f"node {platform.node()} of the Ray cluster"
    try:
        if lack := _lack(check):
            raise SettingsError(f"{where} {lack}")
        return None, function(item, advance=progress.append) if tells else function(item), sum(progress)
    except Exception as error:
        return picklable(error, f"a worker process on {where}"), None, sum(progress)


@functools.cache
def _lack(check: bytes) -> str:
    """In a worker: what it lacks, "" for nothing. check: the version of this package and `unseen`, pickled."""
    version, unseen = pickle.loads(check)
    if version != __version__:
        return f"has dagster-divorder {__version__}, and this process {version}; {_INSTALL}"
    return str(unseen())


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())
