"""Settings of a measured run, and inputs made of others: what the benchmarks of speed and memory share."""

from __future__ import annotations

import argparse
from pathlib import Path

TEXT = b'"text": "'


def parser(description: str | None, *, bootstrap: bool = True) -> argparse.ArgumentParser:
    """A parser with what every one of them takes; without `bootstrap` a model directory has to be named."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--model", default="bootstrap", required=not bootstrap, help="model directory")
    made.add_argument("--scratch", type=Path, help="folder for input, store and output while it runs")
    return made


def environment(corpus: Path, folder: Path | str, model: str) -> dict[str, str]:
    """Settings as environment variables: store and output in `folder`, nothing drawn, all else as it comes."""
    return {
        "DIVORDER_INPUT__PATHS": str(corpus),
        "DIVORDER_STORE__PATH": f"{folder}/store",
        "DIVORDER_OUTPUT__PATH": f"{folder}/out",
        "DIVORDER_EXPORTS__PATH": f"{folder}/exports",
        "DIVORDER_OUTPUT__SIDECARS": "[]",
        "DIVORDER_MODEL__BASE": model,
    }


def marked(line: bytes, copy: int) -> bytes:
    """A JSONL line whose text begins with a number, so that no copy has the text of another."""
    before, mark, after = line.partition(TEXT)
    return b"%b%b%d %b" % (before, mark, copy, after)
