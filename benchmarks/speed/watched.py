"""How long after lines are appended does the output hold them, with `dagster dev` left running?

    .venv/bin/python benchmarks/speed/watched.py FILE.jsonl [--model DIRECTORY]
        [--appends 5] [--scratch FOLDER]

All but a percent of the lines are run first, with the job `curate`; then what is held back is appended in parts, at
moments that have nothing to do with the sensor's. Seconds from the end of an append until the run is asked for, until
its first stage begins, and until the output's manifest is another; and how long `dagster dev` took to answer.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

from shared import parser  # noqa: E402

from dagster_divorder.defs.sensor import SHORTEST_INTERVAL  # noqa: E402
from tests.ui.dagster_dev import DagsterDev, until  # noqa: E402

LIMIT_S = 600


def main() -> None:
    made = parser(__doc__)
    made.add_argument("input", type=Path)
    made.add_argument("--appends", type=int, default=5)
    options = made.parse_args()
    lines = options.input.read_bytes().splitlines(keepends=True)
    held_back, kept = lines[::100], [line for at, line in enumerate(lines) if at % 100]
    with tempfile.TemporaryDirectory(dir=options.scratch) as name:
        folder = Path(name)
        corpus, manifest = folder / "corpus.jsonl", folder / "out" / "curated_meta.json"
        corpus.write_bytes(b"".join(kept))
        (folder / "divorder.toml").write_text(
            f'[input]\npaths = ["{corpus}"]\n[store]\npath = "store"\n[output]\npath = "out"\n'
            f'[model]\nbase = "{options.model}"\n'
        )
        start = time.monotonic()
        with DagsterDev(folder) as dev:
            print(f"dagster dev answers after {time.monotonic() - start:.1f} s", flush=True)
            if (ended := dev.end_of(dev.launch("curate"), LIMIT_S)) != "SUCCESS":
                raise SystemExit(f"the first run: {ended}")
            print(f"{'appended':>10}{'run asked for':>16}{'first stage':>14}{'output':>10}")
            for number in range(options.appends):
                time.sleep(random.uniform(0, SHORTEST_INTERVAL))
                new = held_back[number :: options.appends]
                runs, before = set(dev.runs()), manifest.stat().st_ino
                with corpus.open("ab") as file:
                    file.writelines(new)
                appended = time.monotonic()
                (run,) = until(lambda runs=runs: set(dev.runs()) - runs, LIMIT_S, "run")
                asked = time.monotonic() - appended
                until(lambda run=run: begun(dev, run), LIMIT_S, "first stage")
                begins = time.monotonic() - appended
                until(lambda before=before: manifest.stat().st_ino != before, LIMIT_S, "output")
                written = time.monotonic() - appended
                print(f"{len(new):10,}{asked:16.1f}{begins:14.1f}{written:10.1f}", flush=True)
                dev.end_of(run, LIMIT_S)


def begun(dev: DagsterDev, run: str) -> bool:
    return any(event["__typename"] == "ExecutionStepStartEvent" for event in dev.said(run))


if __name__ == "__main__":
    main()
