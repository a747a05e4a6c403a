"""Peak memory of a whole run on records of one size: does the line of README hold from 20 bytes to 1 MB a record?

    .venv/bin/python benchmarks/memory/record_sizes.py [RECORDSxBYTES...] [--gzip] [--scratch FOLDER]

By default 2000000x22, 200000x1000 and 2000x1000000. The records are synthetic and all different. With `--gzip` the
input is compressed, so that a line far beyond `input.max_record_bytes` takes little disk: of 1x1000000000 one line is
refused, beside one small record. Memory is resident memory of the run and its workers together.
"""

from __future__ import annotations

import gzip
import random
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "speed"))

from measured import run_pipeline
from shared import environment, parser

FIXED = 1.2e9
PER_RECORD = 150
WORDS = [
    f"{sound}{end}" for sound in "bdfgklmnprstvz" for end in ("ar", "en", "il", "ost", "um", "ade", "ing")
]


def main() -> None:
    made = parser(__doc__)
    made.add_argument("sizes", nargs="*", default=["2000000x22", "200000x1000", "2000x1000000"])
    made.add_argument("--gzip", action="store_true")
    options = made.parse_args()
    print(
        f"{'records':>12}{'bytes each':>12}{'input, MB':>11}{'compute, s':>12}{'peak, MB':>10}{'allowed, MB':>13}"
    )
    for sizes in options.sizes:
        records, size = map(int, sizes.split("x"))
        with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
            corpus = Path(folder) / f"corpus.jsonl{'.gz' if options.gzip else ''}"
            write_records(corpus, records, size)
            result = run_pipeline(
                environment(corpus, folder, options.model) | {"DIVORDER_INPUT__MAX_REJECT_SHARE": "1"}
            )
        allowed = FIXED + PER_RECORD * records
        shown = f"{result['compute']:12.1f}{result['peak'] / 1e6:10,.0f}{allowed / 1e6:13,.0f}"
        print(f"{records:12,}{size:12,}{records * size / 1e6:11,.0f}{shown}", flush=True)


def write_records(target: Path, records: int, size: int) -> None:
    """Write so many different records of about `size` bytes each with its line feed, and a small one after them."""
    rng = random.Random(0)
    book = " ".join(rng.choices(WORDS, k=max(100_000, size // 2)))
    with gzip.open(target, "wb", 1) if target.suffix == ".gz" else target.open("wb", 1 << 22) as file:
        for number in range(records):
            begin = f'{{"text":"{number:x} '
            left = max(1, size - len(begin) - 3)
            at = rng.randrange(max(1, len(book) - left))
            file.write(f'{begin}{book[at : at + left]}"}}\n'.encode())
        file.write(b'{"text":"the last one"}\n')


if __name__ == "__main__":
    main()
