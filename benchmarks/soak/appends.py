"""Many small appends with Dagster's sensor on: does the store stay level, and the time of an append?

Lines are appended to one file; the sensor is asked, as its daemon does, and the run that it wants is run, with its
asset checks, on an instance of its own. The corpus grows by what is appended, and so do what is stored of it and the
time of whatever looks at all of it; the table gives the store beside the input, so that what is left over shows.

python benchmarks/soak/appends.py --appends 500 --lines 20
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import tempfile
import time
import warnings
from pathlib import Path

CONFIG = """
[input]
paths = ["docs.jsonl"]
[store]
path = "store"
[output]
path = "curated"
[model]
vocab_size = 512
dim = 16
[clusters]
k = 8
[sequence]
length = 512
batch = 8
[automation]
settle_seconds = 0
"""


def lines(random_: random.Random, count: int) -> str:
    """Records of forty words out of one of eight vocabularies."""

    def record() -> str:
        topic = random_.randrange(8)
        words = (f"w{topic * 400 + random_.randrange(500)}" for _ in range(40))
        return json.dumps({"text": " ".join(words), "source": f"s{topic}"})

    return "".join(record() + "\n" for _ in range(count))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--appends", type=int, default=500)
    parser.add_argument("--lines", type=int, default=20, help="records of an append")
    parser.add_argument("--first", type=int, default=10_000, help="records of the first run")
    options = parser.parse_args()
    random_ = random.Random(0)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "divorder.toml").write_text(CONFIG)
        os.environ["DIVORDER_CONFIG"] = str(folder / "divorder.toml")
        corpus = folder / "docs.jsonl"
        corpus.write_text(lines(random_, options.first))
        soak(folder, corpus, random_, options.appends, options.lines)


def soak(folder: Path, corpus: Path, random_: random.Random, appends: int, count: int) -> None:
    """Append, ask the sensor, run what it wants; a row of the table every tenth of the way."""
    import dagster as dg

    from dagster_divorder.store.local import LocalStore

    warnings.filterwarnings("ignore")
    defs = importlib.import_module("dagster_divorder.definitions").defs
    repository = defs.get_repository_def()
    (sensor,) = repository.sensor_defs
    job = repository.get_job("curate")
    (folder / "home").mkdir()
    quiet = {"python_logs": {"python_log_level": "ERROR"}}
    with dg.DagsterInstance.local_temp(str(folder / "home"), overrides=quiet) as instance:
        assert job.execute_in_process(instance=instance).success
        cursor, seconds = None, []
        print(
            "| appends | input, MB | store, MB | files | folders | seconds an append (median of the last) |"
        )
        print("|--:|--:|--:|--:|--:|--:|")
        for number in range(appends + 1):
            if number:
                with open(corpus, "a") as file:
                    file.write(lines(random_, count))
            started = time.perf_counter()
            tick = sensor.evaluate_tick(dg.build_sensor_context(instance=instance, cursor=cursor))
            cursor = tick.cursor
            assert bool(tick.run_requests) == bool(number), tick.skip_message
            for request in tick.run_requests:
                run = job.execute_in_process(instance=instance, tags=dict(request.tags))
                assert run.success
                checks = run.get_asset_check_evaluations()
                assert all(check.passed for check in checks if check.severity == dg.AssetCheckSeverity.ERROR)
                seconds.append(time.perf_counter() - started)
            if number % max(1, appends // 10) == 0:
                store = LocalStore(folder / "store")
                files = store.files()
                folders = sum(path.is_dir() for path in store.root.rglob("*"))
                recent = sorted(seconds[-max(1, appends // 10) :] or [0.0])
                print(
                    f"| {number} | {corpus.stat().st_size / 1e6:.2f} | {sum(files.values()) / 1e6:.2f} | "
                    f"{len(files)} | {folders} | {recent[len(recent) // 2]:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
