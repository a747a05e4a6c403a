"""Calls as tasks of a Ray cluster, on all its cores; repeats calls whose worker or machine died.

Guarantee: see `engine.base`. A killed worker or node costs only its own calls; errors of a call are raised here and
name the node; Ray's memory does not fill, because functions enter its object store once and items and receipts are a
few words. A cluster that cannot do the work is refused before the first call: none at the address, another version of
Ray, Python or this package, a store that its workers do not see. Cost: 6 to 9 s and some 450 MB for a Ray of its own, 2
to 5 s to join a running one and probe its nodes; then about 1 ms a call, plus the start of workers (benchmarks/scale,
docs/decisions/engine.md). Known weakness: a run ends with the cluster's head, and resumes when started again. A dead
node is noticed after some 15 s. Nodes that join later are not probed; their faults become errors of calls.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import platform
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dagster_divorder import __version__
from dagster_divorder.engine.base import Item, Result
from dagster_divorder.engine.local import picklable, worker_variables
from dagster_divorder.errors import SettingsError, WorkerError
from dagster_divorder.extras import load_extra

IN_FLIGHT = 4
"""Calls submitted for each core: enough that no worker waits, few enough that few results wait."""
ANSWER_SECONDS = 10.0
"""Seconds within which a Ray must answer at an address."""
PROBE_SECONDS = 120.0
"""Seconds within which a node must start a worker."""
CORE_SECONDS = 60.0
"""Seconds within which a cluster must have a core. A new cluster may have none, or one that is replacing its only
worker."""
LOOK_SECONDS = 0.5

_INSTALL = (
    f"install this dagster-divorder ({__version__}) in the nodes' image, or send it along: ray job submit "
    f'--runtime-env-json \'{{"pip": ["dagster-divorder[ray]=={__version__}"]}}\' -- divorder run'
)


class RayEngine:
    """A Ray cluster.

    address: where to join it; None: RAY_ADDRESS, else this machine's cluster, else a new one of this process. A Ray
        that this process has already joined is used, and not left.
    asked: most calls at once, 0 for one a core. unseen: called on every node; names what its workers lack, "" for
    nothing.

    Raises:
        SettingsError: Ray does not answer or has another version, or its nodes lack something.
        MissingPackageError: Ray is not installed.
    """

    def __init__(self, address: str | None, asked: int, unseen: Callable[[], str]) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray = load_extra("ray")
        self._ray, self._asked = ray, asked
        self._joined = not ray.is_initialized()
        if self._joined:
            self._join(address or os.environ.get("RAY_ADDRESS"))
        try:
            self._probe(unseen)
        except BaseException:
            self.close()
            raise

    def _join(self, address: str | None) -> None:
        if address:
            _need_ray_at(address)
        try:
            self._ray.init(address, log_to_driver=False, logging_level="error")
        except (RuntimeError, ConnectionError, SystemExit) as error:
            # If its head does not answer, Ray ends the process and stays half joined.
            self._ray.shutdown()
            message, place = " ".join(str(error).split()), address or "this machine"
            if "ersion mismatch" in message:
                raise SettingsError(
                    f"the Ray cluster at {place} has another version: {message}; install the cluster's versions of "
                    f"ray and Python here, or this machine's versions there"
                ) from error
            raise SettingsError(
                f"the Ray cluster at {place} cannot be joined: {message}; expected this machine to be a node of it: "
                "ray start --address=HOST:PORT --num-cpus=0 here, or run there: ray job submit -- divorder run"
            ) from error

    def close(self) -> None:
        """Leaves the cluster if this engine has joined it; its workers end."""
        if self._joined:
            self._ray.shutdown()

    @property
    def workers(self) -> int:
        return self._asked or max(1, int(self._ray.cluster_resources().get("CPU", 0)))

    @property
    def gpus(self) -> int:
        return int(self._ray.cluster_resources().get("GPU", 0))

    def each(
        self,
        function: Callable[..., Result],
        items: Sequence[Item],
        *,
        workers: int | None = None,
        threads: int = 1,
        gpus: int = 0,
        memory: int = 0,
        environment: Mapping[str, str] | None = None,
        retries: int = 2,
        advance: Callable[[int], object] | None = None,
    ) -> Iterator[Result]:
        """See `Engine.each`. A call has `threads` cores of a node, at most all of them.

        Raises:
            SettingsError: no node has the GPUs or the memory of one call.
            WorkerError: the worker of a call died more than `retries` times, or cannot run this package.
        """
        ray = self._ray
        most = len(items) if workers is None else min(workers, len(items))
        if most <= 1 and not gpus:
            yield from map(partial(function, advance=advance) if advance else function, items)
            return
        cores = min(threads or 1, max(int(node.get("CPU", 0)) for node in self._nodes().values()))
        self._need_room(cores, gpus, memory)
        task = ray.remote(_attempt).options(
            num_cpus=cores,
            num_gpus=gpus,
            memory=memory or None,
            max_retries=retries,
            runtime_env={"env_vars": worker_variables(cores, environment)},
        )
        put = ray.put(function)
        in_flight = min(most, self._asked or IN_FLIGHT * self.workers)
        waiting: deque[Any] = deque()
        try:
            for item in items:
                waiting.append(task.remote(put, item, advance is not None))
                if len(waiting) >= in_flight:
                    yield self._result(waiting.popleft(), retries, advance)
            while waiting:
                yield self._result(waiting.popleft(), retries, advance)
        finally:
            for reference in waiting:
                with contextlib.suppress(ray.exceptions.RayError):
                    ray.cancel(reference, force=True)

    def _result(self, reference: Any, retries: int, advance: Callable[[int], object] | None) -> Any:
        try:
            failed, result, progress = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            # Errors of the function are results, so this error has another cause.
            raise WorkerError(
                f"a worker of the Ray cluster cannot run dagster-divorder {__version__}: {error.cause!r}; {_INSTALL}"
            ) from error
        except self._ray.exceptions.RayError as error:
            message = " ".join(str(error).split())
            raise WorkerError(
                f"a task of the Ray cluster was lost {retries + 1} times, the last time by {type(error).__name__}: "
                f"{message[:500]}; run again: finished fragments are kept; if memory ran out, use nodes with more "
                f"memory or a lower engine.workers"
            ) from error
        if advance and progress:
            advance(progress)
        if failed:
            raise result
        return result

    def _nodes(self) -> dict[str, dict[str, float]]:
        """Resources of the nodes with a core, by their id; waits for the first."""
        until = time.monotonic() + CORE_SECONDS
        while True:
            nodes = {node["NodeID"]: node["Resources"] for node in self._ray.nodes() if node["Alive"]}
            if with_core := {node: has for node, has in nodes.items() if has.get("CPU", 0) >= 1}:
                return with_core
            if time.monotonic() >= until:
                raise SettingsError(
                    f"the Ray cluster has {len(nodes)} nodes and, for {CORE_SECONDS:.0f} s, no core to run tasks on; "
                    "expected one: start a worker (ray start --address ...; minReplicas of a KubeRay group)"
                )
            time.sleep(LOOK_SECONDS)

    def _need_room(self, cores: int, gpus: int, memory: int) -> None:
        """Raises SettingsError if no node has the resources of one call: Ray would wait for one for ever."""
        needs = {"CPU": cores, "GPU": gpus, "memory": memory}
        for has in self._nodes().values():
            if all(has.get(resource, 0) >= amount for resource, amount in needs.items()):
                return
        listed = ", ".join(f"{resource} {amount:,}" for resource, amount in needs.items() if amount)
        raise SettingsError(
            f"no node of the Ray cluster has the resources of one task ({listed}); start a node that has them"
        )

    def _probe(self, unseen: Callable[[], str]) -> None:
        """Raises SettingsError if a node lacks something."""
        ray, strategies = self._ray, load_extra("ray.util.scheduling_strategies")
        probe = ray.remote(_make_probe())
        answers = {
            probe.options(
                num_cpus=0,
                max_retries=0,
                # The same options as for calls, so that calls get the same workers.
                runtime_env={"env_vars": worker_variables(1, None)},
                scheduling_strategy=strategies.NodeAffinitySchedulingStrategy(node, soft=False),
            ).remote(code_hash(), pickle.dumps(unseen)): node
            for node in self._nodes()
        }
        done, late = ray.wait(list(answers), num_returns=len(answers), timeout=PROBE_SECONDS)
        for answer in late:
            raise SettingsError(
                f"node {answers[answer][:8]} of the Ray cluster started no worker within {PROBE_SECONDS:.0f} s; "
                f"check its logs (/tmp/ray/session_latest/logs there), or remove it from the cluster"
            )
        for answer in done:
            try:
                where, missing, lack = ray.get(answer)
            except (ray.exceptions.TaskUnschedulableError, ray.exceptions.NodeDiedError):
                continue  # the node is gone and gets no calls
            except ray.exceptions.RayError as error:
                raise SettingsError(
                    f"node {answers[answer][:8]} of the Ray cluster cannot start a worker: "
                    f"{' '.join(str(error).split())[:500]}"
                ) from error
            if missing or lack:
                remedy = f"; {_INSTALL}" if missing else ""
                raise SettingsError(f"node {where} of the Ray cluster {missing or lack}{remedy}")


def _attempt(function: Callable[..., Any], item: Any, tells: bool) -> tuple[bool, Any, int]:
    """In a worker: whether the function failed, its result or error, and the sum of its progress."""
    progress: list[int] = []
    try:
        return False, function(item, advance=progress.append) if tells else function(item), sum(progress)
    except Exception as error:
        return True, picklable(error, f"a worker process on node {platform.node()}"), sum(progress)


def _make_probe() -> Callable[[str, bytes], tuple[str, str, str]]:
    """A function that Ray pickles by value because it is a closure: its node may lack this package."""
    ours = __version__

    def probe(code: str, unseen: bytes) -> tuple[str, str, str]:
        """The name of this node, its fault with the package, and what else it lacks; "" for none."""
        import pickle
        import platform

        where = platform.node()
        try:
            from dagster_divorder import __version__
            from dagster_divorder.engine.ray import code_hash
        except ImportError as error:
            return where, f"cannot import dagster-divorder: {error}", ""
        if __version__ != ours:
            return where, f"has dagster-divorder {__version__}, and this process {ours}", ""
        if code_hash() != code:
            return where, f"has other code of dagster-divorder {ours} than this process", ""
        return where, "", pickle.loads(unseen)()

    return probe


def code_hash() -> str:
    """xxh3-128, in hex, of this package's Python files."""
    from xxhash import xxh3_128

    digest, package = xxh3_128(), Path(__file__).parent.parent
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package).as_posix()}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _need_ray_at(address: str) -> None:
    """Raises SettingsError if no Ray answers at an address within ANSWER_SECONDS: `ray.init` would wait for two minutes
    and then end the process."""
    if address in ("auto", "local") or os.environ.get("RAY_USE_TLS", "0") != "0":
        return
    grpc = load_extra("grpc")
    options = [("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(address, options=options) as channel:
        alive = channel.unary_unary("/ray.rpc.NodeInfoGcsService/CheckAlive")
        try:
            alive(b"", timeout=ANSWER_SECONDS)
        except grpc.RpcError as error:
            silent = (
                grpc.StatusCode.UNAVAILABLE,
                grpc.StatusCode.DEADLINE_EXCEEDED,
                grpc.StatusCode.UNIMPLEMENTED,
            )
            if error.code() in silent:
                raise SettingsError(
                    f"no Ray answers at {address} ({error.details()}); expected the host:port of a running head in "
                    "engine.address or RAY_ADDRESS (ray start --head prints it, port 6379 if no other was given), or "
                    'engine.address = "ray" without RAY_ADDRESS, for a Ray of this machine\'s own'
                ) from None
