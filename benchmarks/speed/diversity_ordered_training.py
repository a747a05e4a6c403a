"""The whole pipeline, by its own command and through Dagster, against the script of Diversity-Ordered Training, in turn
on this machine, on one model.

    .venv/bin/python benchmarks/speed/diversity_ordered_training.py FILE.jsonl --model DIRECTORY
        --script curate_dataset.py [--scratch FOLDER] [--repeat 3]

curate_dataset.py is the script of eous/diversity-ordered-training, with its device set to the CPU; it is not part of
this repository.
Both read FILE.jsonl, make 30 clusters, measure sequences of 8192 tokens, write the reordered file and draw nothing.
Wall time is with process start; compute is the script's from its first line of log to its last, and here the stages'
sum. Processor time is less disturbed by other work on the machine.
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
import tempfile
from pathlib import Path

import orjson
from shared import environment, parser, run_command

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
STAMP = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", re.MULTILINE)


def main() -> None:
    made = parser(__doc__, bootstrap=False)
    made.add_argument("input", type=Path)
    made.add_argument("--script", type=Path, required=True)
    made.add_argument("--repeat", type=int, default=1)
    options = made.parse_args()
    options.script, options.model = options.script.resolve(), str(Path(options.model).resolve())
    best: dict[str, tuple[float, ...]] = {}
    for _ in range(options.repeat):
        with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
            # The script leaves its token counts beside its input.
            corpus = Path(folder) / "corpus.jsonl"
            corpus.symlink_to(options.input.resolve())
            (Path(folder) / "dagster.yaml").symlink_to(ROOT / "dagster.yaml")
            for name, run in (("script", run_script), ("divorder", run_divorder), ("dagster", run_dagster)):
                found = run(options, corpus, Path(folder))
                best[name] = tuple(map(min, best.get(name, found), found))
    print(f"{'':10}{'wall, s':>10}{'compute, s':>12}{'processor, s':>14}")
    for name, figures in best.items():
        print(f"{name:10}{figures[0]:10.2f}{figures[1]:12.2f}{figures[2]:14.2f}")
        ratios = [slow / fast for slow, fast in zip(best["script"], figures, strict=True)]
        print(f"{'  times':10}{ratios[0]:10.1f}{ratios[1]:12.1f}{ratios[2]:14.1f}")


def run_script(options: argparse.Namespace, corpus: Path, folder: Path) -> tuple[float, float, float]:
    """Seconds: wall, compute, processor."""
    out = folder / "script" / "out.jsonl"
    out.parent.mkdir()
    usage = run_command(script_command(options.script, corpus, out, options.model), {}, folder)
    stamps = [
        datetime.datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S,%f") for stamp in STAMP.findall(usage.stderr)
    ]
    return usage.wall, (stamps[-1] - stamps[0]).total_seconds(), usage.processor


def script_command(script: Path, corpus: Path, out: Path, model: Path | str) -> list[str]:
    """30 clusters, sequences of 8192 tokens, no picture. The script leaves its token counts beside its input."""
    command = [sys.executable, script, "--input", corpus, "--output", out, "--model-dir", model, "--no-plot"]
    return [str(part) for part in (*command, "--n-clusters", 30, "--seq-len", 8192)]


def run_divorder(options: argparse.Namespace, corpus: Path, folder: Path) -> tuple[float, float, float]:
    """Seconds: wall, compute, processor."""
    return run_package([str(BIN / "divorder"), "run"], options, corpus, folder / "divorder")


def run_dagster(options: argparse.Namespace, corpus: Path, folder: Path) -> tuple[float, float, float]:
    """Seconds: wall, compute, processor."""
    select = ["asset", "materialize", "--select", "*curated_output", "-m", "dagster_divorder.definitions"]
    return run_package([str(BIN / "dagster"), *select], options, corpus, folder / "dagster")


def run_package(
    command: list[str], options: argparse.Namespace, corpus: Path, folder: Path
) -> tuple[float, float, float]:
    environ = {
        **environment(corpus, folder, options.model),
        "DIVORDER_CLUSTERS__K": "30",
        "DIVORDER_SEQUENCE__LENGTH": "8192",
    }
    usage = run_command(command, environ, corpus.parent)
    receipts = orjson.loads((folder / "store/state.json").read_bytes())["receipts"]
    seconds = sum(receipt["figures"]["seconds"] for receipt in receipts.values())
    return usage.wall, seconds, usage.processor


if __name__ == "__main__":
    main()
