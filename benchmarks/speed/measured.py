"""One run of the pipeline in a fresh process, measured: seconds a stage, wall time with process start, peak memory.

Settings come from the environment (DIVORDER_*). Peak memory is the largest sum of resident memory over this process and
its workers, sampled ten times a second from /proc, or this process's own maximum if that is larger. Python keeps the
bytecode of what it imports, as it does for users: of two runs the second one tells.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def run_pipeline(environ: Mapping[str, str], stages: str = "") -> dict[str, Any]:
    """Run all stages, or those named (comma between), in a fresh process.

    Returns `stages` (seconds each), `cpu` (processor seconds each), `workers` (those of them that are of workers, which
    have ended), `new` (documents computed in each), `compute` (sum of the seconds), `wall`, `peak` bytes, `peaks`
    (bytes after each stage), `records`.
    """
    start = time.perf_counter()
    process = subprocess.run(
        [sys.executable, __file__, stages],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "", **environ},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    wall = time.perf_counter() - start
    return {**json.loads(process.stdout.splitlines()[-1]), "wall": wall}


def _main() -> None:
    watched = _Watch()
    from dagster_divorder.engine.progress import Silent
    from dagster_divorder.settings import load_settings
    from dagster_divorder.stages import GRAPH, run_all

    settings = load_settings()
    seconds: dict[str, float] = {}
    cpu: dict[str, float] = {}
    workers: dict[str, float] = {}
    new: dict[str, int] = {}
    peaks: dict[str, int] = {}
    records = 0
    for stage in sys.argv[1].split(",") if sys.argv[1] else GRAPH.needed(settings):
        start, before = time.perf_counter(), os.times()
        receipt = run_all(settings, Silent(), [stage])[stage]
        seconds[stage] = time.perf_counter() - start
        used = [now - then for now, then in zip(os.times()[:4], before, strict=False)]
        cpu[stage], workers[stage] = sum(used), sum(used[2:])
        new[stage] = receipt.figures["new_documents"]
        records = receipt.figures.get("records", records)
        peaks[stage] = watched.peak()
        print(
            f"  {stage:20}{seconds[stage]:9.2f} s{cpu[stage]:9.2f} s CPU{peaks[stage] / 1e6:9.0f} MB",
            file=sys.stderr,
        )
    answer = {
        "stages": seconds,
        "cpu": cpu,
        "workers": workers,
        "new": new,
        "compute": sum(seconds.values()),
        "records": records,
        "peaks": peaks,
        "peak": watched.peak(),
    }
    print(json.dumps(answer))


class _Watch:
    """Samples resident memory of this process and its children."""

    def __init__(self) -> None:
        self._seen = 0
        threading.Thread(target=self._sample, daemon=True).start()

    def peak(self) -> int:
        # Not ru_maxrss, which begins with that of the process that started this one.
        status = Path("/proc/self/status").read_text().split()
        return max(self._seen, int(status[status.index("VmHWM:") + 1]) * 1024)

    def _sample(self) -> None:
        page = os.sysconf("SC_PAGE_SIZE")
        children = Path(f"/proc/self/task/{os.getpid()}/children")
        while True:
            total = 0
            for process in ["self", *children.read_text().split()]:
                try:
                    total += int(Path(f"/proc/{process}/statm").read_text().split()[1]) * page
                except (OSError, IndexError):  # it has ended
                    continue
            self._seen = max(self._seen, total)
            time.sleep(0.1)


if __name__ == "__main__":
    _main()
