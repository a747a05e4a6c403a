"""`divorder run` in child processes that are killed at chosen points. Started as a script; speaks JSON lines.

The script imports everything once, starts no thread, and forks a child a run, so that a run costs a fork instead of two
seconds of imports. A child is an ordinary process in all that matters here: its own memory, its own locks, and SIGKILL
ends it without any clean-up. Points are counted in the calls that reach the disk (fsync of a file, rename, unlink), by
wrapping `os`, so that the package itself has no hook for it.
"""

from __future__ import annotations

import functools
import gc
import importlib
import importlib.metadata
import json
import os
import pkgutil
import re
import select
import signal
import stat
import subprocess
import sys
import threading
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache
from numba.core.dispatcher import Dispatcher

import dagster_divorder
from dagster_divorder.core.blas import one_blas_thread
from dagster_divorder.core.kernels import order_greedy
from dagster_divorder.pipeline import run
from dagster_divorder.stages.output.curated_output import PACKAGES

IMPORTED_IN_FUNCTIONS = (
    *(
        "awkward",
        "faiss",
        "gigatoken",
        "joblib",
        "pandas",
        "pyarrow.pandas_compat",
        "pyarrow.parquet",
        "rich.console",
        "rich.pager",
        "rich.table",
        "scipy.sparse.linalg",
        "sklearn.utils.extmath",
    ),
    *("tokenizers", "tqdm", "importlib_metadata._adapters", "email.contentmanager"),
)
REPORTING = (
    "umap",
    "matplotlib.pyplot",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
)
"""What `divorder report` imports besides."""
EVENTS = ("fsync", "replace", "unlink")
"""How the lines of a log begin that tell of events; the others tell what is put into the store, and of stages.

An event's line is its name in every run of its kind: what it is, the stage, how many such events the stage had before,
and the path in the corpus's folder without hashes.
"""
HASH = re.compile("[0-9a-f]{8,}")
CONSTANTS = {
    "MEAN_LINES": 20,
    "HARD_LINES": 60,
    "EXPORT_SHARD_BYTES": 20_000,
    "DIMS": 64,
}
"""Small enough that a corpus of some hundred documents has several fragments and files of exports, and that its
gradients take a moment."""


class Runner:
    """A runner process, and what it is told. `run` may be called from one thread at a time."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.faults.runner"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def run(self, config: Path, log: Path, **job: Any) -> int:
        """Run to the end, or to the kill that `job` orders; the exit status, -9 if killed.

        `stop` (line of an event, "half" | "before" | "after"), or `after` (seconds): where to kill; `constants`:
        more of them to set; `command`: what `divorder` is to do, by default `run`; `imports`: large modules that it
        will import, here once for all later runs. `plain`: words of a command line that is run beside `config` as a
        person does it, with the variables of `environment` and nothing else set, counted or killed. The events and the
        names put into the store go to `log`, a line each, what the run prints to `log`.out.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"config": str(config), "log": str(log), **job}) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()


def serve() -> None:
    for module in pkgutil.walk_packages(dagster_divorder.__path__, "dagster_divorder."):
        if not module.name.startswith("dagster_divorder.def"):  # which import dagster
            importlib.import_module(module.name)
    for name in IMPORTED_IN_FUNCTIONS:
        importlib.import_module(name)
    numba.core.entrypoints.init_all()
    # Looked up once for all children, which find the same.
    importlib.metadata.version = functools.cache(importlib.metadata.version)
    for name in PACKAGES:
        importlib.metadata.version(name)
    # The libraries of BLAS are found once for all children, too.
    with one_blas_thread():
        pass
    # As in tests/conftest.py.
    run.give_back_memory = lambda: None

    assert threading.active_count() == 1, "a process with threads must not fork"
    # The collector touches every object, and each touched page is copied in the child.
    gc.freeze()
    compiled, loaded = Path(order_greedy.totals_of.stats.cache_path), 0
    for line in sys.stdin:
        job = json.loads(line)
        for name in job.get("imports", []):
            importlib.import_module(name)
        if (changed := compiled.stat().st_mtime_ns) != loaded:
            _load_kernels()
            loaded = changed
        child = os.fork()
        if not child:
            _child(job)
        print(_wait(child, job.get("after")), flush=True)


def _load_kernels() -> None:
    """Load what Numba has compiled and cached so far, once for all children."""
    for name, module in list(sys.modules.items()):
        if name.startswith("dagster_divorder.core.kernels."):
            for kernel in vars(module).values():
                if isinstance(kernel, Dispatcher) and isinstance(kernel._cache, FunctionCache):
                    for signature, *_ in kernel._cache._cache_file._load_index():
                        if signature not in kernel.overloads:
                            kernel.compile(signature)


def _wait(child: int, seconds: float | None) -> int:
    """Exit status of a child, which is killed after some seconds if it still runs."""
    if seconds is not None:
        descriptor = os.pidfd_open(child)
        ended = select.select([descriptor], [], [], seconds)[0]
        os.close(descriptor)
        if not ended:
            os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _child(job: dict[str, Any]) -> None:
    try:
        log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        os.dup2(os.open(f"{job['log']}.out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.dup2(1, 2)
        from dagster_divorder.cli import main

        words = job.get("plain")
        if words:
            os.chdir(os.path.dirname(job["config"]))
            os.environ.update(job["environment"])
        else:
            words = ["--config", job["config"], *job.get("command", "run").split()]
            _set_constants(CONSTANTS | job.get("constants", {}))
            _watch(log, os.path.dirname(job["config"]), job.get("stop"))
        status = main(words)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        status = 70
    os._exit(status)


def _set_constants(values: dict[str, Any]) -> None:
    # Not all modules are touched: each touched page is copied.
    for module_name in [name for name in sys.modules if name.startswith("dagster_divorder")]:
        module = sys.modules[module_name]
        for name, value in values.items():
            if hasattr(module, name):
                setattr(module, name, value)


def _watch(log: int, folder: str, stop: tuple[str, str] | None) -> None:
    """Wrap the calls that reach files in a folder: an event each in the log, and death at the one to stop at."""
    stage, before = "start", Counter[str]()
    lock = threading.Lock()
    replace, unlink = os.replace, os.unlink

    def event(kind: str, path: str) -> str:
        """Where to die at this event, or nothing."""
        if not path.startswith(folder):
            return ""
        name = HASH.sub("HASH", path.removeprefix(folder))
        with lock:
            line = f"{kind} {stage} {before[f'{kind} {stage} {name}']} {name}"
            before[f"{kind} {stage} {name}"] += 1
        os.write(log, f"{line}\n".encode())
        return stop[1] if stop and stop[0] == line else ""

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def watched_fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and event("fsync", os.readlink(f"/proc/self/fd/{descriptor}")):
            os.ftruncate(descriptor, status.st_size // 2)
            die()
        # Nothing here cuts the power: what a killed process has written is there.

    def watched_replace(source: Any, target: Any) -> None:
        when = event("replace", os.fspath(target))
        if when == "before":
            die()
        replace(source, target)
        if when:
            die()

    def watched_unlink(path: Any, **options: Any) -> None:
        when = event("unlink", os.fspath(path))
        try:
            unlink(path, **options)
        finally:
            if when:
                die()

    os.fsync, os.replace, os.unlink = watched_fsync, watched_replace, watched_unlink  # type: ignore[assignment]

    from dagster_divorder.store.local import LocalStore

    put = LocalStore.put

    def watched_put(self: LocalStore, name: str, *arguments: Any, **options: Any) -> str:
        os.write(log, f"put {name}\n".encode())
        return put(self, name, *arguments, **options)

    LocalStore.put = watched_put  # type: ignore[method-assign]

    run_one = run._run_one

    def watched_run_one(of: Any, name: str) -> Any:
        nonlocal stage
        stage = name
        os.write(log, f"stage {name}\n".encode())
        return run_one(of, name)

    run._run_one = watched_run_one


if __name__ == "__main__":
    serve()
