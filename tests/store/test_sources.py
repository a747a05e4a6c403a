"""Files at URLs: found, read and known again as those of this machine are."""

from __future__ import annotations

import gzip
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from dagster_divorder import run_stage
from dagster_divorder.corpus.find import find_files
from dagster_divorder.corpus.inputs import LineBlock, read_lines, read_rows
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import InputError, SettingsError
from dagster_divorder.pipeline.watch import Cursor, check_input
from dagster_divorder.propose import Proposal, look, write_settings
from dagster_divorder.settings import Settings, load_settings
from dagster_divorder.settings.places import Url
from dagster_divorder.stages.corpus import raw_docs
from dagster_divorder.store import sources
from dagster_divorder.store.sources import RemoteFile, open_source, tree_of
from tests.conftest import examples
from tests.store.remote import memory, put, served

__all__ = ["memory"]

Make = Callable[..., Settings]
LINES = [orjson.dumps({"text": f"document {number} " + "x" * (number % 50)}) + b"\n" for number in range(300)]
URL = "s3://bucket/in"


def remote(url: str) -> RemoteFile:
    found = tree_of(url).file(url)
    assert found
    return found


@given(
    size=st.integers(0, 100),
    reads=st.lists(st.tuples(st.integers(0, 110), st.integers(0, 60)), max_size=8),
    kept=st.integers(1, 4),
)
@hypothesis_settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=examples(25)
)
def test_a_remote_file_reads_as_bytes_in_memory_do(
    memory: Any, size: int, reads: list[tuple[int, int]], kept: int
) -> None:
    data = bytes(range(size))
    put("s3://bucket/file", data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "PIECE_BYTES", 7)
        patch.setattr(sources, "AHEAD", 2)
        patch.setattr(sources, "KEPT", kept)
        twin = io.BytesIO(data)
        with open_source(remote("s3://bucket/file")) as file:
            for at, count in reads:
                assert file.seek(at) == twin.seek(at)
                assert file.read(count) == twin.read(count)
                assert file.tell() == (twin.tell() if at <= size else at)
            assert file.seek(-min(3, size), io.SEEK_END) == twin.seek(-min(3, size), io.SEEK_END)
            assert file.read() == twin.read()


FILES = {
    "b/two.jsonl": b"".join(LINES[:100]),
    "b-one.jsonl": b"".join(LINES[100:]),
    "b/three.jsonl.gz": gzip.compress(b"".join(LINES[:5])),
    "_hidden.jsonl": b"?",
    "notes.txt": b"?",
    "b/.secret/x.jsonl": b"?",
}


@pytest.mark.parametrize(
    "pattern", ["", "*.jsonl", "**/*.jsonl", "b", "b/t*", "?/[t]*.jsonl*", "b/two.jsonl"]
)
def test_urls_find_what_paths_find(memory: Any, tmp_path: Path, pattern: str) -> None:
    for name, data in FILES.items():
        put(f"{URL}/{name}", data)
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(data)
    here, there = (find_files([f"{base}/{pattern}".rstrip("/")]) for base in (tmp_path / "in", URL))
    assert [str(file).removeprefix(f"{URL}/") for file in there.files] == [
        str(Path(file).relative_to(tmp_path / "in"))
        for file in here.files  # type: ignore[arg-type]
    ]
    assert there.others == here.others


def test_nothing_that_divorder_wrote_is_found(memory: Any) -> None:
    put(f"{URL}/a.jsonl", LINES[0])
    put(f"{URL}/store/format.json", b'{"format":"divorder store","version":3}')
    put(f"{URL}/store/rejects/a.jsonl", b"?")
    put(f"{URL}/out/curated_meta.json", b"{}")
    put(f"{URL}/out/curated.jsonl", LINES[1])
    put(f"{URL}/out/rejects.jsonl", b"?")
    put(f"{URL}/exports/train.jsonl", LINES[2])
    found = find_files([URL], [Url(f"{URL}/exports")])
    assert [str(file) for file in found.files] == [f"{URL}/a.jsonl"]
    assert found.skipped == [f"{URL}/exports", f"{URL}/out", f"{URL}/store"]
    # An output that is named is read: what is chained.
    assert [str(file) for file in find_files([f"{URL}/out"]).files] == [f"{URL}/out/curated.jsonl"]
    with pytest.raises(
        InputError, match=r"no file matches.*left out is what DivOrder wrote: s3://bucket/in/exports"
    ):
        find_files([f"{URL}/exports"], [Url(f"{URL}/exports")])


def parquet(rows: int) -> bytes:
    buffer = pa.BufferOutputStream()
    table = pa.table({"text": [f"text {n}" * 40 for n in range(rows)], "n": range(rows)})
    pq.write_table(table, buffer, use_dictionary=False, compression="none")
    return buffer.getvalue().to_pybytes()


def test_a_file_that_was_changed_is_an_error_and_never_a_mixture(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "PIECE_BYTES", 1 << 16)
    monkeypatch.setattr(sources, "AHEAD", 1)
    put(f"{URL}/a.parquet", parquet(20_000))
    found = remote(f"{URL}/a.parquet")
    rows = read_rows(found, None)
    next(rows)
    put(f"{URL}/a.parquet", parquet(20_000)[:-8] + b"x" * 8)
    with pytest.raises(InputError, match=r"a\.parquet was changed while it was read; run again"):
        list(rows)
    with pytest.raises(InputError, match=r"a\.parquet was changed while it was read; run again"):
        list(read_rows(found, None))


def test_a_file_that_is_gone_is_an_error(memory: Any) -> None:
    file = RemoteFile(f"{URL}/gone.jsonl", 100, "tag")
    with pytest.raises(InputError, match=r"gone\.jsonl vanished while it was read; run again"):
        list(read_lines(file))


def test_it_is_read_in_another_process_by_what_its_environment_knows(memory: Any) -> None:
    put(f"{URL}/a.jsonl", b"".join(LINES))
    sent = pickle.dumps(remote(f"{URL}/a.jsonl"))
    blocks = [block for block in read_lines(pickle.loads(sent)) if isinstance(block, LineBlock)]
    assert [line + b"\n" for block in blocks for line in block.lines] == LINES


def ingest(settings: Settings) -> dict[str, Any]:
    receipt = run_stage("raw_docs", settings, Silent())
    return {**receipt.figures, **receipt.facts, "version": receipt.version}


@pytest.mark.parametrize("parts", [False, True])
def test_a_last_line_cut_short_at_a_url_is_a_broken_line(
    memory: Any, make_settings: Make, monkeypatch: pytest.MonkeyPatch, parts: bool
) -> None:
    if parts:
        monkeypatch.setattr(raw_docs, "PARTS_FROM_BYTES", 0)
    settings = make_settings(input={"paths": [URL]}, engine={"workers": 2 if parts else 1})
    put(f"{URL}/a.jsonl", b"".join(LINES)[:-10])
    found = ingest(settings)
    assert (found["records"], found["rejected_records"], found["partial_lines"]) == (299, 1, 0)
    # The whole object is another one, read on from the last whole line.
    put(f"{URL}/a.jsonl", b"".join(LINES))
    found = ingest(settings)
    assert (found["records"], found["rejected_records"], found["new_records"]) == (300, 0, 1)


def test_a_known_tag_is_not_read_again_and_a_grown_object_only_where_it_grew(
    memory: Any, make_settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[tuple[str, int, int]] = []
    fetch = RemoteFile.fetch

    def counted(self: RemoteFile, start: int, end: int) -> Any:
        fetched.append((self.name, start, end))
        return fetch(self, start, end)

    monkeypatch.setattr(RemoteFile, "fetch", counted)
    settings = make_settings(input={"paths": [URL]})
    put(f"{URL}/a.jsonl", b"".join(LINES[:100]))
    put(f"{URL}/b.jsonl", b"".join(LINES[100:150]) + LINES[150].rstrip())
    put(f"{URL}/c.jsonl.gz", gzip.compress(b"".join(LINES[200:])))
    first = ingest(settings)
    assert (first["records"], first["recognised_by"]) == (251, "rescan")
    fetched.clear()
    again = ingest(settings)
    # The line without an end is looked at again.
    assert {name for name, *_ in fetched} == {"b.jsonl"}
    assert (again["version"], again["recognised_by"]) == (first["version"], "whole")
    put(f"{URL}/b.jsonl", b"".join(LINES[100:200]))
    fetched.clear()
    grown = ingest(settings)
    assert {name for name, *_ in fetched} == {"b.jsonl"}
    assert (grown["records"], grown["new_records"]) == (300, 49)
    fetched.clear()
    assert ingest(settings)["recognised_by"] == "tags" and not fetched
    # Written again with the same bytes: a new tag, and nothing new.
    put(f"{URL}/a.jsonl", b"".join(LINES[:100]))
    same = ingest(settings)
    assert (same["version"], same["new_records"]) == (grown["version"], 0)
    assert {name for name, *_ in fetched} == {"a.jsonl"}


def test_the_watcher_sees_new_tags(memory: Any, make_settings: Make) -> None:
    settings = make_settings(input={"paths": [URL]}, advanced={"settle_seconds": 5})

    def look(cursor: Cursor, now: float) -> Any:
        return check_input(settings, cursor, now, lambda: None)

    put(f"{URL}/a.jsonl", b"".join(LINES[:100]))
    first = look(Cursor(), 0)
    assert not first.start and "nothing was ever made" in first.reason
    ingest(settings)
    assert "no change in 1 input file" in look(first.cursor, 1).reason
    put(f"{URL}/a.jsonl", b"".join(LINES[:101]))
    noticed = look(first.cursor, 2)
    assert not noticed.start and f"a.jsonl has {len(LINES[100])} bytes more" in noticed.reason
    assert look(noticed.cursor, 8).start


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("tags", [True, False])
def test_files_of_web_servers(ranges: bool, tags: bool, make_settings: Make) -> None:
    with served(ranges=ranges, tags=tags) as server:
        server.files["/my%20docs/a.jsonl"] = b"".join(LINES[:200])
        server.files["/b.jsonl.gz"] = gzip.compress(b"".join(LINES[200:]))
        paths = [f"{server.url}/my%20docs/a.jsonl", f"{server.url}/b.jsonl.gz"]
        settings = make_settings(input={"paths": paths})
        assert ingest(settings)["records"] == 300
        server.requests.clear()
        assert ingest(settings)["recognised_by"] == "tags"
        assert {command for command, *_ in server.requests} == {"HEAD"}
        server.files["/b.jsonl.gz"] = gzip.compress(b"".join(LINES[200:250]))
        assert ingest(settings)["records"] == 250


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("/nothing.jsonl", "no file matches"),
        ("/*.jsonl", "cannot be listed, as web servers have no lists; name each file by its URL"),
        ("/page", "is neither JSONL nor Parquet by its name"),
    ],
)
def test_what_a_web_server_has_not(path: str, wrong: str) -> None:
    with served() as server, pytest.raises(InputError, match=wrong):
        server.files["/page"] = b"<html>"
        find_files([server.url + path])


@pytest.mark.parametrize(
    ("url", "wrong"),
    [
        ("ftp://host/a.jsonl", "begins with s3://"),
        ("https://who:Sesame99@host/a.jsonl", "without user, password or query"),
        ("https://host/a.jsonl?sig=Sesame99", "without user, password or query"),
        ("s3:///a.jsonl", "expected s3://bucket/path"),
        ("s3://bucket//a.jsonl", "without empty parts"),
        ("s3://bucket/out/../a.jsonl", "without empty parts"),
    ],
)
def test_urls_that_are_no_input_are_refused_and_secrets_not_repeated(url: str, wrong: str) -> None:
    with pytest.raises(SettingsError, match=wrong) as caught:
        load_settings(environ={"DIVORDER_INPUT__PATHS": url})
    assert "input.paths" in str(caught.value) and "Sesame99" not in str(caught.value)


def test_variables_hold_several_urls() -> None:
    given = "s3://bucket/a:https://host:8080/b.jsonl:/data/c:hf://datasets/o/n/*.parquet"
    paths = load_settings(environ={"DIVORDER_INPUT__PATHS": given}).input.paths
    assert paths == ("s3://bucket/a", "https://host:8080/b.jsonl", "/data/c", "hf://datasets/o/n/*.parquet")


def test_settings_are_proposed_for_a_url(memory: Any, tmp_path: Path) -> None:
    put(f"{URL}/a.jsonl", b"".join(LINES))
    settings = write_settings(Proposal(blocks=look([URL])), tmp_path / "divorder.toml")
    assert settings.input.paths == (URL,) and settings.input.text_field == "text"
