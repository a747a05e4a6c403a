"""How much longer does a run take through Dagster? The first run of a corpus, and runs with nothing new, in turn.

    .venv/bin/python benchmarks/speed/through_dagster.py FILE.jsonl --model DIRECTORY
        [--pairs 5] [--first 1] [--beside TREE] [--scratch FOLDER]

`divorder run` beside `dagster asset materialize --select '*curated_output'`, with the repository's
dagster.yaml. Seconds of wall, and of the processor with all children; the median of all pairs. --beside: another
tree of this repository, such as a worktree of an earlier commit, measured in turn with this one.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from shared import environment, parser

ROOT = Path(__file__).parents[2]
RUN = {
    "divorder run": ["dagster_divorder.cli", "run"],
    "dagster": [
        "dagster",
        "asset",
        "materialize",
        "--select",
        "*curated_output",
        "-m",
        "dagster_divorder.definitions",
    ],
}


def main() -> None:
    made = parser(__doc__, bootstrap=False)
    made.add_argument("input", type=Path)
    made.add_argument("--pairs", type=int, default=5, help="runs with nothing new of each")
    made.add_argument("--first", type=int, default=1, help="first runs of each")
    made.add_argument("--beside", type=Path, help="another tree of this repository")
    options = made.parse_args()
    trees = {"this tree": ROOT, **({"beside": options.beside.resolve()} if options.beside else {})}
    ways = [(tree, command) for tree in trees for command in RUN]
    with tempfile.TemporaryDirectory(dir=options.scratch) as name:
        folders = {way: Path(name, "-".join(way).replace(" ", "-")) for way in ways}
        for times, what in ((options.first, "first run"), (options.pairs, "nothing new")):
            walls: dict[tuple[str, str], list[float]] = {way: [] for way in ways}
            processor: dict[tuple[str, str], list[float]] = {way: [] for way in ways}
            for _ in range(times):
                for tree, command in ways:
                    folder = folders[tree, command]
                    if what == "first run":
                        shutil.rmtree(folder, ignore_errors=True)
                        folder.mkdir()
                        shutil.copy(trees[tree] / "dagster.yaml", folder)
                    environ = environment(options.input.resolve(), folder, str(Path(options.model).resolve()))
                    wall, used = _run(RUN[command], folder, trees[tree], environ)
                    walls[tree, command].append(wall)
                    processor[tree, command].append(used)
            for way in ways:
                print(
                    f"{what:12}{way[0]:10}{way[1]:14}"
                    f"{_of(walls[way])} s, {_of(processor[way])} of the processor",
                    flush=True,
                )
            for tree in trees:
                dagster, bare = (
                    [statistics.median(each[tree, command]) for each in (walls, processor)]
                    for command in ("dagster", "divorder run")
                )
                print(f"{what:12}{tree:10}{'ratio':14}{dagster[0] / bare[0]:.2f}, {dagster[1] / bare[1]:.2f}")
    print("load", os.getloadavg())


def _run(module: list[str], folder: Path, tree: Path, environ: Mapping[str, str]) -> tuple[float, float]:
    """(wall seconds, processor seconds) of a Python process and its children."""
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONWARNINGS": "ignore", **environ}
    environ = {
        **environ,
        "PYTHONPATH": str(tree),
        "DIVORDER_CLUSTERS__K": "30",
        "DIVORDER_SEQUENCE__LENGTH": "8192",
    }
    with (folder / "log").open("ab") as log:
        start = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", *module], env=environ, cwd=folder, stdout=log, stderr=log
        )
        _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit((folder / "log").read_text())
    return time.perf_counter() - start, used.ru_utime + used.ru_stime


def _of(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):6.2f} ({min(seconds):.2f} to {max(seconds):.2f})"


if __name__ == "__main__":
    main()
