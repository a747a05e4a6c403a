"""What unlike inputs cost to read and to store: seconds, processor seconds, peak memory, fragments and bytes.

    .venv/bin/python benchmarks/scale/fragments.py [--only NAME] [--scratch FOLDER]

Each input is read three times, each time in a fresh process: first, with nothing new, and with a line put into its
middle. `appends` is 300 appends of 10 records with a whole run after each, in one process, beside a fresh store.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from dagster_divorder import run_all, run_stage
from dagster_divorder.engine.progress import Silent
from dagster_divorder.settings import Settings


def record(text: str) -> bytes:
    return json.dumps({"text": text}).encode() + b"\n"


def words(draw: random.Random, count: int) -> str:
    return " ".join(f"w{draw.randrange(50_000)}" for _ in range(count))


def small_files(folder: Path, draw: random.Random) -> None:
    for number in range(20_000):
        (folder / f"{number:05d}.jsonl").write_bytes(record(words(draw, 20)))


def in_one_file(lines: Callable[[random.Random], Iterator[bytes]]) -> Callable[[Path, random.Random], None]:
    def write(folder: Path, draw: random.Random) -> None:
        with (folder / "a.jsonl").open("wb") as file:
            file.writelines(lines(draw))

    return write


def equal_texts(draw: random.Random) -> Iterator[bytes]:
    known = [record(words(draw, 100)) for _ in range(20_000)]
    for _ in range(100_000):
        yield draw.choice(known) if draw.random() < 0.3 else record(words(draw, 100))


INPUTS: dict[str, Callable[[Path, random.Random], None]] = {
    "20,000 files of one record": small_files,
    "one record of 25 MB": in_one_file(lambda draw: iter([record("x" * 25_000_000), record("y")])),
    "a million records of 60 bytes": in_one_file(
        lambda draw: (record(words(draw, 8)) for _ in range(1_000_000))
    ),
    "30 % equal texts": in_one_file(equal_texts),
    "1 % of a million lines are one line": in_one_file(
        lambda draw: (record("same" if draw.random() < 0.01 else words(draw, 5)) for _ in range(1_000_000))
    ),
}


def settings_of(folder: Path, store: str = "store") -> Settings:
    return Settings.model_validate(
        {
            "input": {"paths": (str(folder / "in"),)},
            "store": {"path": folder / store},
            "output": {"path": folder / f"out of {store}"},
            "exports": {"formats": []},
            "engine": {"workers": 1},
            "order": {"frozen_tokens": 0},
        }
    )


def read(folder: Path, answers: multiprocessing.Queue[tuple[float, ...]]) -> None:
    begun, before = time.perf_counter(), time.process_time()
    run_stage("raw_docs", settings_of(folder), Silent())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    answers.put((time.perf_counter() - begun, time.process_time() - before, peak))


def stored(folder: Path, store: str = "store") -> tuple[int, float]:
    """(Fragments, megabytes) of a store."""
    files = [path for path in (folder / store).rglob("*") if path.is_file()]
    return sum(path.suffix == ".frames" for path in files), sum(path.stat().st_size for path in files) / 1e6


def measure(name: str, folder: Path) -> None:
    (folder / "in").mkdir()
    INPUTS[name](folder / "in", random.Random(0))
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    time.sleep(2.5)  # so that files are old enough to be trusted
    for what in ("first", "again", "one line more"):
        if what == "one line more":
            path = sorted((folder / "in").iterdir())[len(list((folder / "in").iterdir())) // 2]
            lines = path.read_bytes().splitlines(keepends=True)
            lines.insert(len(lines) // 2, record("new"))
            path.write_bytes(b"".join(lines))
        process = context.Process(target=read, args=(folder, answers))
        process.start()
        seconds, processor, peak = answers.get()
        process.join()
        fragments, size = stored(folder)
        print(
            f"{name:38}{what:>14}{seconds:9.2f} s{processor:8.2f} s{peak:7.0f} MB{fragments:6} fragments{size:8.1f} MB",
            flush=True,
        )


def appends(folder: Path) -> None:
    (folder / "in").mkdir()
    draw, before = random.Random(0), time.process_time()
    with (folder / "in" / "a.jsonl").open("ab", buffering=0) as file:
        file.write(b"".join(record(words(draw, 100)) for _ in range(20_000)))
        for _ in range(300):
            file.write(b"".join(record(words(draw, 100)) for _ in range(10)))
            run_all(settings_of(folder), Silent())
    spent = time.process_time() - before
    run_all(settings_of(folder, "fresh"), Silent())
    (fragments, size), (fresh, fresh_size) = stored(folder), stored(folder, "fresh")
    print(f"300 appends of 10 records: {spent:.1f} processor seconds, {fragments} fragments, {size:.1f} MB")
    print(f"a fresh store: {fresh} fragments, {fresh_size:.1f} MB; {size / fresh_size:.2f} times")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="")
    parser.add_argument("--scratch")
    options = parser.parse_args()
    for name in [*INPUTS, "appends"]:
        if options.only in name:
            with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
                appends(Path(folder)) if name == "appends" else measure(name, Path(folder))


if __name__ == "__main__":
    main()
