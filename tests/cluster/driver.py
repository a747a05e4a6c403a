"""A run in a process of its own, as a script: `python -m tests.cluster.driver SETTINGS`, as JSON.

It prints what came of it: "done", or an error of ours and what it says. Fragments are small, as in the tests that start
it."""

from __future__ import annotations

import sys

import orjson

from dagster_divorder import run_all
from dagster_divorder.corpus import cut, inputs
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import DivOrderError
from dagster_divorder.settings import Settings

SMALL = ((cut, "MEAN_LINES", 10), (cut, "HARD_LINES", 20), (inputs, "BLOCK_BYTES", 4096))

if __name__ == "__main__":
    for module, name, value in SMALL:
        setattr(module, name, value)
    try:
        run_all(Settings(**orjson.loads(sys.argv[1])), Silent())
        print("done")
    except DivOrderError as error:
        print(type(error).__name__, error)
