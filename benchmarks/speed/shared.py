"""Settings of a measured run, inputs made of others, and a measured command: what the benchmarks of speed and memory
share."""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TEXT = b'"text": "'
SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of Linux's prctl."""
SAMPLE_SECONDS = 0.5


@dataclass(frozen=True)
class Usage:
    """What a command and all of its descendants took: seconds, and bytes of memory at their highest."""

    wall: float
    processor: float
    peak: int
    stdout: str
    stderr: str


def parser(description: str | None, *, bootstrap: bool = True) -> argparse.ArgumentParser:
    """A parser with what every one of them takes; without `bootstrap` a model directory has to be named."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--model", default="bootstrap", required=not bootstrap, help="model directory")
    made.add_argument("--scratch", type=Path, help="folder for input, store and output while it runs")
    return made


def environment(corpus: Path, folder: Path | str, model: str) -> dict[str, str]:
    """Settings as environment variables: store and output in `folder`, nothing drawn, all else as it comes."""
    return {
        "DIVORDER_INPUT__PATHS": str(corpus),
        "DIVORDER_STORE__PATH": f"{folder}/store",
        "DIVORDER_OUTPUT__PATH": f"{folder}/out",
        "DIVORDER_EXPORTS__PATH": f"{folder}/exports",
        "DIVORDER_OUTPUT__SIDECARS": "[]",
        "DIVORDER_MODEL__BASE": model,
    }


def marked(line: bytes, copy: int) -> bytes:
    """A JSONL line whose text begins with a number, so that no copy has the text of another."""
    before, mark, after = line.partition(TEXT)
    return b"%b%b%d %b" % (before, mark, copy, after)


def run_command(command: list[str], environ: Mapping[str, str], folder: Path) -> Usage:
    """Runs a command in a folder until it and all of its descendants have ended.

    This process adopts orphans, so that it waits for every descendant and the kernel adds up their processor time.
    Peak memory is the largest sum of proportional set sizes (a page of n processes counts 1/n in each), sampled.
    Python keeps the bytecode of what it imports, as it does for users: of two runs the second one tells.

    Raises:
        SystemExit: the command failed, or a sample saw more processor time than the kernel added up.
    """
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start, peak, ticks = time.perf_counter(), 0, dict[int, int]()
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", **environ}
        process = subprocess.Popen(command, env=environ, cwd=folder, stdout=stdout, stderr=stderr)
        while process.poll() is None:
            peak = max(peak, _sampled(ticks))
            time.sleep(SAMPLE_SECONDS)
        wall = time.perf_counter() - start
        while True:
            try:
                os.wait()
            except ChildProcessError:
                break
        stdout.seek(0)
        stderr.seek(0)
        usage = Usage(wall, 0.0, peak, stdout.read(), stderr.read())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{usage.stderr}")
    if (seen := sum(ticks.values()) / os.sysconf("SC_CLK_TCK")) > processor * 1.02 + 0.1:
        raise SystemExit(
            f"{' '.join(command)}: {seen:.1f} processor seconds were seen, {processor:.1f} added up"
        )
    return Usage(wall, processor, peak, usage.stdout, usage.stderr)


def _sampled(ticks: dict[int, int]) -> int:
    """Bytes of all descendants together; `ticks` takes the processor time of each, by process id."""
    total, left = 0, _children(os.getpid())
    while left:
        process = left.pop()
        left += _children(process)
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks[process] = int(fields[11]) + int(fields[12])
            rollup = Path(f"/proc/{process}/smaps_rollup").read_text().split()
            total += int(rollup[rollup.index("Pss:") + 1]) * 1024
        except (OSError, ValueError):  # it has ended
            continue
    return total


def _children(process: int) -> list[int]:
    found = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            found += [int(child) for child in path.read_text().split()]
        except OSError:  # the thread has ended
            continue
    return found
