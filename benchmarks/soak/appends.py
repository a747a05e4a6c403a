"""Many small appends with Dagster's sensor on: does the store stay level, and the time of an append?

Lines are appended to one file; the sensor is asked, as its daemon does, and the run that it wants is run, with its
asset checks, on an instance of its own. The corpus grows by what is appended, and so do what is stored of it and the
time of whatever looks at all of it; the table gives the store beside the input, so that what is left over shows.

With `--kills` so many runs, spread evenly, are first begun in a process that is killed at a random moment. With
`--objects` the store lies on an S3 server of this machine. At the end a fresh store, with a copy of the fits, has to
come to the same output.

    python benchmarks/soak/appends.py --appends 500 --lines 20 [--kills 50] [--objects]
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

CONFIG = """
[input]
paths = ["docs.jsonl"]
[store]
path = "store"
[output]
path = "curated"
[advanced]
vocab_size = 512
token_dims = 16
[clusters]
k = 8
[sequence]
length = 512
batch = 8
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
    parser.add_argument("--kills", type=int, default=0, help="runs that are killed")
    parser.add_argument("--objects", action="store_true", help="the store on an S3 server")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "divorder.toml").write_text(CONFIG)
        os.environ["DIVORDER_CONFIG"] = str(folder / "divorder.toml")
        random_ = random.Random(0)
        corpus = folder / "docs.jsonl"
        corpus.write_text(lines(random_, options.first))
        with server(folder) if options.objects else nullcontext():
            soak(folder, corpus, random_, options)
            compare_with_a_fresh_store(folder)


@contextmanager
def server(folder: Path) -> Iterator[None]:
    """An S3 server that holds the store, as the environment then has it."""
    from tests.cluster.weed import BUCKET, KEY, SECRET, Weed

    (folder / "weed").mkdir()
    running = Weed(folder / "weed").start()
    os.environ |= {
        "AWS_ENDPOINT_URL": running.url,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "DIVORDER_STORE__PATH": f"s3://{BUCKET}/store",
    }
    try:
        yield
    finally:
        running.kill()


KILLED = """
from dagster_divorder import load_settings, run_all
from dagster_divorder.engine.progress import Silent
print("begun", flush=True)
run_all(load_settings(), Silent())
"""


def kill_a_run(random_: random.Random, seconds: float) -> None:
    """Begin a run in a process, and kill it within about as long as a run takes."""
    process = subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        process.wait(random_.uniform(0.0, 2.0 * seconds))
    except subprocess.TimeoutExpired:
        process.kill()
    process.communicate()


def soak(folder: Path, corpus: Path, random_: random.Random, options: argparse.Namespace) -> None:
    """Append, ask the sensor, run what it wants; a row of the table every tenth of the way."""
    import dagster as dg

    from dagster_divorder.settings import load_settings
    from dagster_divorder.store.objects import store_at

    appends, count = options.appends, options.lines
    kill_after = appends // options.kills if options.kills else appends + 1
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
                if number % kill_after == 0:
                    kill_a_run(random_, seconds[-1] if seconds else 2.0)
            started = time.perf_counter()
            tick = sensor.evaluate_tick(dg.build_sensor_context(instance=instance, cursor=cursor))
            cursor = tick.cursor
            if number % kill_after:
                assert bool(tick.run_requests) == bool(number), tick.skip_message
            for request in tick.run_requests:
                run = job.execute_in_process(instance=instance, tags=dict(request.tags))
                assert run.success
                checks = run.get_asset_check_evaluations()
                assert all(check.passed for check in checks if check.severity == dg.AssetCheckSeverity.ERROR)
                seconds.append(time.perf_counter() - started)
            if number % max(1, appends // 10) == 0:
                files = store_at(load_settings().store.path).files()
                folders = len({name.rpartition("/")[0] for name in files})
                recent = sorted(seconds[-max(1, appends // 10) :] or [0.0])
                print(
                    f"| {number} | {corpus.stat().st_size / 1e6:.2f} | {sum(files.values()) / 1e6:.2f} | "
                    f"{len(files)} | {folders} | {recent[len(recent) // 2]:.2f} |",
                    flush=True,
                )


def compare_with_a_fresh_store(folder: Path) -> None:
    """A fresh store with the same fits comes to the same output."""
    from dagster_divorder import load_settings, run_all
    from dagster_divorder.engine.progress import Silent
    from dagster_divorder.store.local import LocalStore
    from dagster_divorder.store.objects import store_at
    from dagster_divorder.store.state import State, changing, load_state

    settings = load_settings()
    grown = store_at(settings.store.path)
    fresh = LocalStore(folder / "fresh").open()
    for name in grown.files():
        if name.startswith("fits/"):
            fresh.put(name, grown.read(name))
    results = load_state(grown).results
    fits = {stage: [one for one in known if "fit" in one.files] for stage, known in results.items()}
    changing(fresh, lambda state: State(results=fits))
    alone = {"store": {"path": fresh.root}, "output": {"path": folder / "fresh_out"}}
    other = settings.model_copy(
        update={name: getattr(settings, name).model_copy(update=value) for name, value in alone.items()}
    )
    run_all(settings, Silent())
    run_all(other, Silent())
    for path in sorted((folder / "fresh_out").iterdir()):
        if path.name not in ("curated_meta.json", "ordering_comparison.png"):
            assert path.read_bytes() == (folder / "curated" / path.name).read_bytes(), path.name
    print("a fresh store with the same fits comes to the same output")


if __name__ == "__main__":
    main()
