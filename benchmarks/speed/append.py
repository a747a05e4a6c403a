"""What appending one percent costs, and what running again with nothing new costs, beside the first run.

    .venv/bin/python benchmarks/speed/append.py FILE.jsonl [--copies 1] [--model DIRECTORY] [--scratch FOLDER]
        [--stages raw_docs,base_model,...]

Every hundredth line is held back, the rest is run, then it is appended and the run repeated, each in a fresh process on
the same store. A percent of the lines is then a percent of the bytes too, which the last lines of a corpus in blocks
are not. Without --stages those that an output needs. With --copies the file is taken several times, each copy's texts
beginning with its number.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from measured import run_pipeline
from shared import environment, marked, parser

PER_DOCUMENT = ("token_counts", "shallow_embeddings", "deep_embeddings", "clusters")
PERCENT = 100


def main() -> None:
    made = parser(__doc__)
    made.add_argument("input", type=Path)
    made.add_argument("--copies", type=int, default=1)
    made.add_argument(
        "--stages", default="", help="names with commas between, in the order in which they run"
    )
    options = made.parse_args()
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        corpus, held_back = Path(folder) / "corpus.jsonl", Path(folder) / "held_back"
        count = 0
        with corpus.open("wb") as out, held_back.open("wb") as rest:
            for count, line in enumerate(lines(options.input, options.copies), 1):
                (out if count % PERCENT else rest).write(line)
        size, appended_size = corpus.stat().st_size, held_back.stat().st_size
        environ = environment(corpus, folder, options.model)
        first = run_pipeline(environ, options.stages)
        with corpus.open("ab") as file:
            file.write(held_back.read_bytes())
        appended = run_pipeline(environ, options.stages)
        again = run_pipeline(environ, options.stages)
    print(
        f"{count:,} records, {size / 1e6:,.0f} MB; appended {count // PERCENT:,}, {appended_size / 1e6:,.1f} MB"
    )
    print(f"{'':20}{'seconds':>28}{'processor seconds':>28}{'documents':>11}{'nothing new':>13}")
    print(
        f"{'stage':20}{'first':>10}{'append':>10}{'share':>8}{'first':>10}{'append':>10}{'share':>8}{'new':>11}{'s':>13}"
    )
    for stage in first["stages"]:
        mark = "*" if stage in PER_DOCUMENT else ""
        seconds, processor = ([run[of][stage] for run in (first, appended)] for of in ("stages", "cpu"))
        shown = f"{shares(*seconds)}{shares(*processor)}{appended['new'][stage]:11,}"
        print(f"{stage + mark:20}{shown}{again['stages'][stage]:13.3f}")
    processor = [sum(run["cpu"].values()) for run in (first, appended)]
    shown = f"{shares(first['compute'], appended['compute'])}{shares(*processor)}"
    print(f"{'compute':20}{shown}{'':11}{again['compute']:13.3f}")
    print(f"{'wall':20}{shares(first['wall'], appended['wall'])}{'':39}{again['wall']:13.3f}")


def shares(first: float, appended: float) -> str:
    return f"{first:10.2f}{appended:10.2f}{appended / first:8.1%}"


def lines(path: Path, copies: int) -> Iterator[bytes]:
    for copy in range(copies):
        with path.open("rb") as file:
            yield from (marked(line, copy) for line in file) if copies > 1 else file


if __name__ == "__main__":
    main()
