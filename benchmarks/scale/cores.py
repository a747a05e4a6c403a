"""Tokenising and output on many cores: what the driver does itself, and what a second worker saves.

    .venv/bin/python benchmarks/scale/cores.py --texts FILE.jsonl... [--gigabytes 4] [--workers 2] [--scratch FOLDER]

The input repeats the lines of the files; each copy's texts begin with the copy's number, so that no text comes twice.
One worker runs all stages; then so many workers tokenise into another store, and write the output of the first one into
another folder. Both stores have to hold the same files, and both outputs. Processor seconds are those of
the driver, which is all there is with one worker, and of its workers. `bound` is how long that takes on as many cores
as there are workers if nothing but the processor limits it: the driver's seconds and a share of the workers'.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "speed"))
sys.path.insert(0, str(Path(__file__).parents[1] / "memory"))

from measured import run_pipeline
from peak import write_copies
from shared import environment, parser

STAGES = ("token_counts", "curated_output")
COMPARED = ("documents", "records", "views", "readings", "stages/token_counts")


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--texts", type=Path, nargs="+", required=True)
    made.add_argument("--gigabytes", type=float, default=4.0)
    made.add_argument("--workers", type=int, default=2)
    options = made.parse_args()
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        corpus = Path(folder) / "corpus.jsonl"
        write_copies(options.texts, corpus, int(options.gigabytes * 1e9))
        one = environment(corpus, f"{folder}/one", options.model)
        many = environment(corpus, f"{folder}/many", options.model)
        output = one | {"DIVORDER_OUTPUT__PATH": many["DIVORDER_OUTPUT__PATH"]}
        single = run(one, 1, "")
        several = run(many, options.workers, "raw_docs,base_model,token_counts")
        several |= run(output, options.workers, "curated_output")
        for name in COMPARED:
            assert files(Path(folder) / "one" / "store" / name) == files(
                Path(folder) / "many" / "store" / name
            ), name
        outputs = [
            json.loads((Path(folder) / name / "out" / "curated_meta.json").read_bytes())["files"]
            for name in ("one", "many")
        ]
        assert outputs[0] == outputs[1]
    print(f"{options.gigabytes:g} GB, {options.workers} workers; processor seconds, and wall ones beside")
    print(f"{'stage':16}{'one':>9}{'wall':>8}{'driver':>9}{'workers':>9}{'wall':>8}{'bound':>8}{'times':>7}")
    total = dict.fromkeys(("one", "one wall", "driver", "workers", "wall"), 0.0)
    for stage in STAGES:
        row = {
            "one": single[stage]["driver"] + single[stage]["workers"],
            "one wall": single[stage]["wall"],
            **several[stage],
        }
        show(stage, row, options.workers)
        total = {name: total[name] + row[name] for name in total}
    show("all", total, options.workers)
    share = total["driver"] / (total["driver"] + total["workers"])
    print(
        f"the driver's share is {share:.1%}: {options.gigabytes * 1e3 / total['driver']:,.0f} MB/s of its own, enough "
        f"for {total['workers'] / total['driver']:.0f} workers"
    )


def show(name: str, row: dict[str, float], workers: int) -> None:
    bound = row["driver"] + row["workers"] / workers
    print(
        f"{name:16}{row['one']:9.1f}{row['one wall']:8.1f}{row['driver']:9.1f}{row['workers']:9.1f}{row['wall']:8.1f}"
        f"{bound:8.1f}{row['one'] / bound:7.2f}",
        flush=True,
    )


def files(folder: Path) -> list[str]:
    """Names of files, which carry hashes of what they hold."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*") if path.is_file())


def run(environ: dict[str, str], workers: int, stages: str) -> dict[str, Any]:
    """Seconds of each stage, in a fresh process: `wall`, and processor seconds of `driver` and `workers`."""
    found = run_pipeline(environ | {"DIVORDER_ENGINE__WORKERS": str(workers)}, stages)
    return {
        stage: {
            "wall": wall,
            "driver": found["cpu"][stage] - found["workers"][stage],
            "workers": found["workers"][stage],
        }
        for stage, wall in found["stages"].items()
    }


if __name__ == "__main__":
    main()
