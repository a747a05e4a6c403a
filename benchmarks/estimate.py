"""Does `divorder estimate` tell what a run takes? Estimate and run in turn, on one corpus after the other.

    .venv/bin/python benchmarks/estimate.py [CORPUS ...] [--scratch FOLDER]

A corpus is a JSONL file (default: mixture and newsgroups of ../shared/data, and the sample of `make sample` under
data/demo.toml). Estimate and run are fresh processes. Seconds are wall time with process start, and processor time of
all processes, which other work on the machine changes less; memory is the largest sum of resident memory over the run
and its workers. Asked for: each within 1.5 times.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "speed"))

from measured import ROOT, run_pipeline
from shared import environment, parser

DATA = ROOT.parent / "shared" / "data"
SAMPLE = ROOT / "data" / "sample" / "docs.jsonl"
CORPORA = (DATA / "mixture.jsonl.gz", DATA / "newsgroups.jsonl.gz", SAMPLE)
ROWS = ("seconds", "processor_seconds", "memory", "store", "output", "exports")


def main() -> None:
    made = parser(__doc__)
    made.add_argument("corpora", type=Path, nargs="*", default=CORPORA)
    made.add_argument(
        "--config", type=Path, help="settings of all corpora; default: those of the demo for the sample"
    )
    options = made.parse_args()
    print(f"{'':44}{'estimated':>12}{'measured':>12}{'ratio':>8}")
    for corpus in options.corpora:
        with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
            environ = environment(corpus, folder, options.model) | {
                "DIVORDER_EXPORTS__PATH": f"{folder}/exports"
            }
            if config := options.config or (ROOT / "data/demo.toml" if corpus == SAMPLE else None):
                environ["DIVORDER_CONFIG"] = str(config)
                del environ["DIVORDER_MODEL__BASE"]
            estimated = estimate(environ)
            run = run_pipeline(environ)
            measured = {
                "seconds": run["wall"],
                "processor_seconds": sum(run["cpu"].values()),
                "memory": run["peak"],
                **{
                    name: size_of(Path(folder, of))
                    for name, of in (("store", "store"), ("output", "out"), ("exports", "exports"))
                },
            }
        print(f"{corpus.name}: calibrated in {estimated['calibration_seconds']:.0f} s", flush=True)
        for name in ROWS:
            if measured[name]:
                size = name in ROWS[2:]
                show(f"  {name}{', MB' * size}", estimated[name], measured[name], 1e6 if size else 1)
        for stage, seconds in run["cpu"].items():
            show(f"    {stage}, processor seconds", estimated["stages"][stage], seconds)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def show(label: str, estimated: float, measured: float, unit: float = 1.0) -> None:
    ratio = estimated / max(measured, 0.01)
    print(f"{label:44}{estimated / unit:12.2f}{measured / unit:12.2f}{ratio:8.2f}", flush=True)


def estimate(environ: dict[str, str]) -> dict[str, float]:
    """The figures of an estimate, made in a fresh process."""
    process = subprocess.run(
        [sys.executable, __file__, "--estimate"],
        env={**os.environ, **environ},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(process.stdout.splitlines()[-1])


def _estimate() -> None:
    from dagster_divorder.estimates.first_run import make_estimate
    from dagster_divorder.settings import load_settings

    found = make_estimate(load_settings())
    stages = {stage.stage: stage.processor_seconds for stage in found.stages}
    figures = {
        name: getattr(found, name) for name in ("seconds", "memory", "store", "output", "calibration_seconds")
    }
    of_all = {"processor_seconds": sum(stages.values()), "exports": sum(found.exports.values())}
    print(json.dumps(figures | of_all | {"stages": stages}))


if __name__ == "__main__":
    _estimate() if sys.argv[1:] == ["--estimate"] else main()
