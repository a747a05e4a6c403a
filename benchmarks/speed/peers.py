"""What one would use instead: the same corpus to the same tokens on disk, in turn on this machine.

    .venv/bin/python benchmarks/speed/peers.py FILE.jsonl[.gz] --model DIRECTORY [--script curate_dataset.py]
        [--trainers .venv/trainers] [--megabytes N] [--only NAME ...] [--repeat 1] [--scratch FOLDER]

Ours: `divorder run`, the order alone and with an export of `ds` and of `parquet`. Peers: peer_programs.py, each with
two processes over the corpus in two halves; litdata comes from `make trainers`. script: Diversity-Ordered Training's,
which orders and tokenises but writes no tokens. Processor seconds are of all descendants, also orphans
(shared.run_command). Every result with tokens is read back: their number and the sum of their ids are equal, or this
fails. Packages are compiled to bytecode by the first run: --megabytes 3 beforehand.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from diversity_ordered_training import BIN, script_command
from peer_programs import LENGTH, READ, WRITE
from shared import Usage, environment, parser, run_command

HERE = Path(__file__).parent
EXPORTS = {"order": [], "ds": ["ds"], "parquet": ["parquet"]}
ALL = (*EXPORTS, *WRITE, "script")


def main() -> None:
    made = parser(__doc__, bootstrap=False)
    made.add_argument("input", type=Path)
    made.add_argument("--script", type=Path, help="left out without it")
    made.add_argument("--trainers", type=Path, default=HERE.parents[1] / ".venv/trainers")
    made.add_argument("--megabytes", type=float, help="as many, of lines from all over the file")
    made.add_argument("--only", nargs="+", choices=ALL, default=ALL)
    made.add_argument("--repeat", type=int, default=1)
    options = made.parse_args()
    best, tokens = dict[str, tuple[float, ...]](), dict[str, dict[str, int]]()
    names = [name for name in options.only if name != "script" or options.script]
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        folder = Path(scratch)
        write_corpus(options.input, folder, options.megabytes)
        (folder / "model").symlink_to(Path(options.model).resolve())
        for name in names * options.repeat:
            (folder / name).mkdir()
            usage = run(name, folder, options.script, options.trainers)
            if name in READ:
                tokens[name] = json.loads(program("read", name, folder, options.trainers).stdout)
                if tokens[name] != (expected := next(iter(tokens.values()))):
                    raise SystemExit(f"{name}: {tokens[name]}; expected, as of those before, {expected}")
            shutil.rmtree(folder / name)
            figures = (usage.wall, usage.processor, usage.peak / 1e6)
            best[name] = tuple(map(min, best.get(name, figures), figures))
            print(f"{name:20}{shown(figures, tokens.get(name))}  load {os.getloadavg()[0]:.1f}", flush=True)
    print(f"\n{'':20}{'wall, s':>9}{'CPU, s':>9}{'MB':>9}{'tokens':>12}{'times ds':>10}{'times order':>13}")
    for name, figures in best.items():
        ratios = [figures[1] / best[ours][1] if ours in best else float("nan") for ours in ("ds", "order")]
        print(f"{name:20}{shown(figures, tokens.get(name))}{ratios[0]:10.1f}{ratios[1]:13.1f}")


def shown(figures: tuple[float, ...], counted: dict[str, int] | None) -> str:
    wall, processor, megabytes = figures
    return f"{wall:9.1f}{processor:9.1f}{megabytes:9.0f}{counted['tokens'] if counted else 0:12,}"


def write_corpus(path: Path, folder: Path, megabytes: float | None) -> None:
    """corpus.jsonl, and its halves in parts/: datatrove, `datasets` and litdata share work out by files."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rb") as file:
        lines = file.readlines()
    if megabytes:
        lines = lines[:: max(1, round(sum(map(len, lines)) / megabytes / 1e6))]
    (folder / "corpus.jsonl").write_bytes(b"".join(lines))
    (folder / "parts").mkdir()
    ends = np.cumsum([len(line) for line in lines])
    middle = int(np.searchsorted(ends, ends[-1] / 2))
    for number, part in enumerate((lines[:middle], lines[middle:])):
        (folder / "parts" / f"{number}.jsonl").write_bytes(b"".join(part))


def run(name: str, folder: Path, script: Path, trainers: Path) -> Usage:
    if name == "script":
        command = script_command(
            script, folder / "corpus.jsonl", folder / name / "out.jsonl", folder / "model"
        )
        return run_command(command, {}, folder)
    if name not in EXPORTS:
        return program("write", name, folder, trainers)
    environ = {
        **environment(folder / "corpus.jsonl", folder / name, str(folder / "model")),
        "DIVORDER_SEQUENCE__LENGTH": str(LENGTH),
        "DIVORDER_PACKING__END_OF_TEXT": "true",
        "DIVORDER_EXPORTS__FORMATS": json.dumps(EXPORTS[name]),
        "DIVORDER_EXPORTS__PATH": str(folder / name / "exports"),
    }
    return run_command([str(BIN / "divorder"), "run"], environ, folder)


def program(verb: str, name: str, folder: Path, trainers: Path) -> Usage:
    environ = {
        "HF_HOME": str(folder / name / "cache"),
        "HF_HUB_OFFLINE": "1",
        # Processes share the work out; threads in each would only wait for a core.
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": os.pathsep.join([str(trainers.resolve() / name), os.environ.get("PYTHONPATH", "")]),
    }
    return run_command(
        [sys.executable, str(HERE / "peer_programs.py"), verb, name, str(folder)], environ, folder
    )


if __name__ == "__main__":
    main()
