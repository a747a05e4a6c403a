"""Many small records through every stage: records a second and peak memory.

    .venv/bin/python benchmarks/memory/ten_million.py [RECORDS] [--model DIRECTORY] [--scratch FOLDER]

The records are synthetic, 10,000,000 by default, all different, some 90 bytes each.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "speed"))

from measured import run_pipeline
from shared import environment, parser

WORDS = [f"word{number}" for number in range(36)]
FIXED = 1.5e9
PER_DOCUMENT = 160


def main() -> None:
    made = parser(__doc__)
    made.add_argument("records", type=int, nargs="?", default=10_000_000)
    options = made.parse_args()
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        corpus = Path(folder) / "corpus.jsonl"
        write_records(options.records, corpus)
        size = corpus.stat().st_size
        result = run_pipeline(environment(corpus, folder, options.model))
    print(f"{options.records:,} records, {size / 1e6:,.0f} MB")
    print(f"{'stage':20}{'s':>8}{'records/s':>12}{'peak so far, MB':>17}")
    for stage, seconds in result["stages"].items():
        peak = result["peaks"][stage] / 1e6
        print(f"{stage:20}{seconds:8.1f}{options.records / seconds:12,.0f}{peak:17,.0f}")
    allowed = FIXED + PER_DOCUMENT * options.records
    print(
        f"compute {result['compute']:.1f} s, peak {result['peak'] / 1e6:,.0f} MB, allowed {allowed / 1e6:,.0f} MB"
    )


def write_records(records: int, target: Path) -> None:
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
