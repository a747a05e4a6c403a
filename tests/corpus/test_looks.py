"""What content is called that holds no records of one text, and the jq programs that make records of it."""

from __future__ import annotations

from typing import Any

import pytest

from dagster_divorder.corpus.looks import looks_like, structure_of
from dagster_divorder.propose import characters
from dagster_divorder.stages.corpus.raw_docs import repeated_texts

TURNS = [{"role": "user", "content": "ask"}, {"role": "assistant", "content": "answer"}]


@pytest.mark.parametrize(
    ("begins", "said"),
    [
        (b"<!DOCTYPE html><html><head>Sign in", "an HTML page, such as a sign-in page"),
        (b"\xef\xbb\xbf\r\n <HTML lang=en>", "an HTML page"),
        (
            b'<?xml version="1.0"?><Error><Code>AccessDenied</Code>',
            "XML, such as the error of an object store",
        ),
        (b"version https://git-lfs.github.com/spec/v1", "a Git LFS pointer"),
        ('{"text": "a"}'.encode("utf-16"), "UTF-16 text; convert it with `iconv"),
        ('{"text": "a"}'.encode("utf-16-be"), "UTF-16 text"),
        (b'[{"text": "a"},', "a JSON array; if it holds the records, write one a line with `jq -c '.[]'"),
        (b"[", "a JSON array"),
        (b"{", "JSON over several lines; write a record a line with `jq -c . IN"),
        (b"\x1f\x8b\x08\x00", "gzip data; rename the file to .jsonl.gz"),
        (b"\x28\xb5\x2f\xfd", "zstd data; rename"),
        (bytes(64), "zero bytes"),
        (b'{"body": "a", "id": 1}', "a record with the fields body, id"),
        (b"PAR1\x15\x04", "Parquet; rename"),
        (b'{"text": "a', ""),
        (b"12", ""),
        (b"", ""),
    ],
)
def test_what_it_looks_like(begins: bytes, said: str) -> None:
    looks = looks_like(begins)
    assert looks.startswith(said) if said else not looks


@pytest.mark.parametrize(
    ("record", "form", "fields"),
    [
        ({"source": "a", "messages": TURNS}, "messages", ("messages",)),
        ({"my chat": TURNS}, None, ("my chat",)),
        ({"question": "Q", "context": "C", "answer": "a"}, "alpaca", ("question", "context", "answer")),
        ({"input": "Q", "output": "a"}, None, ("input", "output")),
        ({"prompt": "Q", "chosen": "a", "rejected": "b"}, "pairs", ("prompt", "chosen", "rejected")),
    ],
)
def test_fields_that_belong_together_are_named(
    record: dict[str, Any], form: str | None, fields: tuple[str, ...]
) -> None:
    structure = structure_of(record)
    assert structure
    assert (structure.form, structure.fields) == (form, fields)
    assert structure_of({"text": "a", "messages": [{"role": "user"}], "meta": [{"from": 1}]}) is None


def test_characters_are_counted_at_any_depth() -> None:
    deep: Any = "abc"
    for _ in range(3000):
        deep = [{"x": deep}]
    assert characters([deep, 1, "d", None]) == 4


@pytest.mark.parametrize(
    ("records", "texts", "size", "warned"),
    [
        (100, 51, 5000, False),
        (100, 50, 5000, True),
        (100, 100, 1500, True),
        (100, 100, 1600, False),
        (19, 1, 9, False),
    ],
)
def test_few_or_very_short_texts_are_warned_of(records: int, texts: int, size: int, warned: bool) -> None:
    assert bool(repeated_texts(records, texts, size)) == warned
