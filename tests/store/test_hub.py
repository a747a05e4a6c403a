"""Datasets of the Hub as input: read at one commit."""

from __future__ import annotations

import gzip
from collections.abc import Callable

import orjson
import pytest

from dagster_divorder import run_stage
from dagster_divorder.corpus.find import find_files
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import InputError
from dagster_divorder.settings import Settings
from tests.store.fake_hub import Hub

Make = Callable[..., Settings]
LINES = [orjson.dumps({"text": f"document {number}"}) + b"\n" for number in range(40)]


def test_input_is_read_at_one_commit(hub: Hub, make_settings: Make) -> None:
    hub.commits.append(
        {
            "README.md": b"?",
            "data/a.jsonl": b"".join(LINES[:10]),
            "data/more/b.jsonl.gz": gzip.compress(b"".join(LINES[10:20])),
        }
    )
    first = hub.name(1)
    settings = make_settings(input={"paths": [f"{hub.url}/data"]})
    assert run_stage("raw_docs", settings, Silent()).facts["records"] == 20
    hub.commits.append({**hub.files, "README.md": b"other"})
    again = run_stage("raw_docs", settings, Silent())
    # Another commit, and the same files.
    assert again.figures["trusted_bytes"] == again.figures["file_bytes"]
    hub.commits.append({**hub.files, "data/a.jsonl": b"".join(LINES[20:])})
    assert run_stage("raw_docs", settings, Silent()).facts["records"] == 30
    pinned = make_settings(input={"paths": [f"{hub.url}@{first}/data/a.jsonl"]})
    assert run_stage("raw_docs", pinned, Silent()).facts["records"] == 10


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("hf://datasets/org/nothing/a.jsonl", "no dataset org/nothing on the Hub"),
        ("hf://datasets/org/corpus@v9/a.jsonl", "has no revision 'v9'"),
        ("hf://datasets/org/corpus/a.jsonl", "no file matches"),
        ("hf://org/corpus/a.jsonl", "names no dataset of the Hub"),
    ],
)
def test_what_the_hub_has_not(hub: Hub, path: str, wrong: str) -> None:
    with pytest.raises(InputError, match=wrong):
        find_files([path])
