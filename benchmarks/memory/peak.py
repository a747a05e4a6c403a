"""Peak memory of a whole run against its input: is it a fixed part and a small part a document, whatever its size?

    .venv/bin/python benchmarks/memory/peak.py INPUT... [--texts FILE.jsonl...] [--gzip] [--scratch FOLDER]

An input is `1GB`: so much of the lines of --texts, again and again, each copy's texts beginning with the copy's number,
so that no text comes twice; `2000x1000000`: so many synthetic records of so many bytes, and a small one after them; or
`10000000`: so many small records, some 90 bytes each. All are different. With --gzip records of a size are compressed,
so that a line far beyond the largest record takes little disk: of 1x1000000000 one line is refused. Seconds and
peak so far are shown stage by stage; memory is resident memory of the run and its workers together.
"""

from __future__ import annotations

import argparse
import gzip
import random
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "speed"))

from measured import run_pipeline
from shared import TEXT, environment, marked, parser

FIXED, PER_DOCUMENT = 1.5e9, 160
SYLLABLES = [
    f"{sound}{end}" for sound in "bdfgklmnprstvz" for end in ("ar", "en", "il", "ost", "um", "ade", "ing")
]
WORDS = [f"word{number}" for number in range(36)]


def main() -> None:
    made = parser(__doc__)
    made.add_argument("inputs", nargs="+", metavar="INPUT")
    made.add_argument("--texts", type=Path, nargs="+", help="JSONL files of inputs in GB")
    made.add_argument("--gzip", action="store_true")
    options = made.parse_args()
    if not options.texts and any(named.endswith("GB") for named in options.inputs):
        made.error("an input in GB needs --texts")
    points = []
    print(f"{'input':>16}{'MB':>9}{'documents':>12}{'compute, s':>12}{'peak, MB':>10}{'allowed, MB':>13}")
    for named in options.inputs:
        with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
            corpus = write_input(named, options, Path(folder))
            size = corpus.stat().st_size
            environ = environment(corpus, folder, options.model) | {"DIVORDER_INPUT__MAX_REJECT_SHARE": "1"}
            result = run_pipeline(environ)
        documents, peak = result["records"], result["peak"]
        points.append((documents, peak))
        shown = (
            f"{result['compute']:12.1f}{peak / 1e6:10,.0f}{(FIXED + PER_DOCUMENT * documents) / 1e6:13,.0f}"
        )
        print(f"{named:>16}{size / 1e6:9,.0f}{documents:12,}{shown}", flush=True)
    if len(points) > 1:
        slope, fixed = np.polyfit(*np.array(points, dtype=float).T, 1)
        print(f"line: {fixed / 1e6:.0f} MB + {slope:.0f} bytes a document")


def write_input(named: str, options: argparse.Namespace, folder: Path) -> Path:
    corpus = folder / f"corpus.jsonl{'.gz' if options.gzip and 'x' in named else ''}"
    if named.endswith("GB"):
        write_copies(options.texts, corpus, int(float(named[:-2]) * 1e9))
    elif "x" in named:
        write_sized(corpus, *map(int, named.split("x")))
    else:
        write_small(corpus, int(named))
    return corpus


def write_copies(files: list[Path], target: Path, size: int) -> None:
    """Write about `size` bytes of the files' lines, copy after copy, each text marked with its copy's number."""
    lines = [line for file in files for line in file.read_bytes().splitlines(keepends=True) if TEXT in line]
    written = copy = 0
    with target.open("wb", buffering=1 << 22) as out:
        while written < size:
            for line in lines:
                written += out.write(marked(line, copy))
                if written >= size:
                    break
            copy += 1


def write_sized(target: Path, records: int, size: int) -> None:
    """Write so many different records of about `size` bytes each with its line feed, and a small one after them."""
    rng = random.Random(0)
    book = " ".join(rng.choices(SYLLABLES, k=max(100_000, size // 2)))
    with gzip.open(target, "wb", 1) if target.suffix == ".gz" else target.open("wb", 1 << 22) as file:
        for number in range(records):
            begin = f'{{"text":"{number:x} '
            left = max(1, size - len(begin) - 3)
            at = rng.randrange(max(1, len(book) - left))
            file.write(f'{begin}{book[at : at + left]}"}}\n'.encode())
        file.write(b'{"text":"the last one"}\n')


def write_small(target: Path, records: int) -> None:
    """Write records of 4 to 17 words from one of four vocabularies, each with its number."""
    rng = random.Random(0)
    tails = [
        " ".join(rng.choices(WORDS[9 * (at % 4) : 9 * (at % 4) + 9], k=rng.randint(3, 16)))
        for at in range(1000)
    ]
    with target.open("w", buffering=1 << 22) as file:
        for first in range(0, records, 10_000):
            file.writelines(
                f'{{"id":{number},"text":"{number} {tails[number * 7919 % 1000]}"}}\n'
                for number in range(first, min(records, first + 10_000))
            )


if __name__ == "__main__":
    main()
