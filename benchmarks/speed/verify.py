"""What the checks of a run cost, beside the stages whose results they check.

python benchmarks/speed/verify.py ../shared/data/mixture.jsonl.gz --scratch /tmp/verify
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from shared import environment, parser

from dagster_divorder.pipeline import run_all, run_stage
from dagster_divorder.pipeline.checks import all_checks
from dagster_divorder.pipeline.graph import OUTPUT
from dagster_divorder.pipeline.run import Run
from dagster_divorder.settings import load_settings
from dagster_divorder.store.connect import store_of


def main() -> None:
    options = parser(__doc__)
    options.add_argument("corpus", type=Path)
    options.add_argument("--times", type=int, default=3)
    given = options.parse_args()
    with tempfile.TemporaryDirectory(dir=given.scratch) as folder:
        settings = load_settings(environ=environment(given.corpus, folder, given.model))
        receipts = run_all(settings)
        for _ in range(given.times - 1):
            # An output is written again where there is none.
            shutil.rmtree(settings.output.path)
            again = run_stage(OUTPUT, settings)
            seconds = min(again.figures["seconds"], receipts[OUTPUT].figures["seconds"])
            receipts[OUTPUT].figures["seconds"] = seconds
        print(f"{'check':<36}{'seconds':>10}{'its stage':>12}")
        for stage, check in all_checks():
            taken = []
            for _ in range(given.times):
                start = time.perf_counter()
                finding = check.check(Run(settings, store_of(settings.store)))
                taken.append(time.perf_counter() - start)
            if not finding.passed and check.blocking:
                sys.exit(finding.text)
            print(f"{check.name:<36}{min(taken):>10.3f}{receipts[stage.name].figures['seconds']:>12.3f}")
        print("load", os.getloadavg())


if __name__ == "__main__":
    main()
