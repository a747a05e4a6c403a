"""What appending one percent costs, and what running again with nothing new costs, beside the first run.

    .venv/bin/python benchmarks/speed/append.py FILE.jsonl [--model DIRECTORY] [--scratch FOLDER]

The last hundredth of the lines is held back, the rest is run, then it is appended and the run repeated, each in a fresh
process on the same store.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from measured import run_pipeline

PER_DOCUMENT = ("token_counts", "shallow_embeddings", "clusters")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("input", type=Path)
    parser.add_argument("--model", default="bootstrap")
    parser.add_argument("--scratch", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        corpus = Path(folder) / "corpus.jsonl"
        lines = options.input.read_bytes().splitlines(keepends=True)
        held_back = max(1, len(lines) // 100)
        corpus.write_bytes(b"".join(lines[:-held_back]))
        environ = {
            "DIVORDER_INPUT__PATHS": str(corpus),
            "DIVORDER_STORE__PATH": f"{folder}/store",
            "DIVORDER_OUTPUT__PATH": f"{folder}/out",
            "DIVORDER_OUTPUT__PLOT": "false",
            "DIVORDER_MODEL__BASE": options.model,
        }
        first = run_pipeline(environ)
        with corpus.open("ab") as file:
            file.writelines(lines[-held_back:])
        appended = run_pipeline(environ)
        again = run_pipeline(environ)
    print(f"{len(lines):,} records, {held_back:,} of them appended")
    print(f"{'stage':20}{'first, s':>10}{'append, s':>10}{'share':>8}{'new':>8}{'nothing new, s':>16}")
    runs = (first, appended, again)
    rows = [(stage, *(run["stages"][stage] for run in runs)) for stage in first["stages"]]
    rows += [(name, *(run[name] for run in runs)) for name in ("compute", "wall")]
    for name, one, two, three in rows:
        new = appended["new"].get(name, "")
        mark = "*" if name in PER_DOCUMENT else ""
        print(f"{name + mark:20}{one:10.2f}{two:10.2f}{two / one:8.1%}{new:>8}{three:16.3f}")


if __name__ == "__main__":
    main()
