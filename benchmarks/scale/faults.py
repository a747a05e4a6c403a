"""Ray workers, nodes and drivers killed at random moments of runs: every run ends with the bytes of an undisturbed one,
and nothing that was finished is computed twice.

    python benchmarks/scale/faults.py --kills 30 --seed 0

A cluster of two nodes on this machine; each trial is a run in a process of its own on an empty store, of which a random
one of {worker, node, driver} is killed after a random number of calls. A driver that died is started again until it
ends. A line a trial; the exit status is 1 where one failed.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.cluster import letters  # noqa: E402
from tests.cluster.ray_cluster import Nodes  # noqa: E402

RUN = """
from pathlib import Path
from dagster_divorder.engine.progress import Silent
from tests.cluster import letters  # noqa: E402
folder = Path({folder!r})
letters.SECONDS = {seconds!r}
letters.corpus(folder)
letters.run_letters(letters.settings(folder, {store!r}, address={address!r}), Silent(), {stages!r})
"""
SECONDS = 0.5
"""That a call takes: a run is mostly calls."""


def start(folder: Path, store: str, address: str, stages: list[str]) -> subprocess.Popen[bytes]:
    code = RUN.format(folder=str(folder), seconds=SECONDS, store=store, address=address, stages=stages)
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)


def trial(nodes: Nodes, folder: Path, what: str, after: int) -> tuple[bool, str]:
    """Whether a run that something is killed in ends as it should, and what was seen."""
    settings = letters.settings(folder, "ray")
    for path in (settings.store.path, Path(f"{settings.store.path}.log")):
        if Path(path).is_dir():
            shutil.rmtree(path)
        else:
            Path(path).unlink(missing_ok=True)
    assert start(folder, "ray", "local", ["raw_docs"]).wait() == 0
    process = start(folder, "ray", nodes.address, ["letters"])
    began = time.monotonic()
    while len(letters.calls(settings)) < after and process.poll() is None:
        time.sleep(0.01)
    time.sleep(random.uniform(0, SECONDS))
    finished = letters.stored(settings)
    if what == "driver":
        process.kill()
    elif what == "node":
        nodes.kill(nodes.second)
    else:
        for worker in nodes.workers():
            try:
                os.kill(worker, signal.SIGKILL)
            except ProcessLookupError:
                continue
    code = process.wait()
    if what == "node":
        nodes.second = nodes.add()
    again = 0
    while code and again < 3:
        code = start(folder, "ray", nodes.address, ["letters"]).wait()
        again += 1
    calls = letters.calls(settings)
    twice = [fragment for fragment in finished if calls.count(fragment) != 1]
    same = letters.stored(settings) == letters.stored(letters.settings(folder, "local"))
    # A worker or a node costs its own tasks, so that the driver is not started again.
    good = not code and same and not twice and (what == "driver" or not again)
    seen = (
        f"{what:7} after {after:2} calls: {len(finished):2} finished, {len(calls)} calls, {again} restarts, "
        f"{time.monotonic() - began:5.1f} s"
    )
    return (
        good,
        f"{seen}{'' if good else f'  FAILED: status {code}, same bytes {same}, computed twice {twice}'}",
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    draw, failed = random.Random(given.seed), 0
    nodes = Nodes()
    with tempfile.TemporaryDirectory(prefix="divorder-faults-") as temporary:
        folder = Path(temporary)
        assert start(folder, "local", "local", ["raw_docs", "letters"]).wait() == 0
        fragments = len(letters.stored(letters.settings(folder, "local")))
        for _ in range(given.kills):
            good, seen = trial(
                nodes, folder, draw.choice(["worker", "node", "driver"]), draw.randrange(fragments)
            )
            failed += not good
            print(seen, flush=True)
    nodes.cluster.shutdown()
    print(f"{given.kills - failed} of {given.kills} ended with the bytes of an undisturbed run")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
