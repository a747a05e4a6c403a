"""Files at places of every kind: found, read and known again as those of this machine are. Object stores by URL: what
their errors mean, and that no secret is repeated."""

from __future__ import annotations

import errno
import gzip
import hashlib
import pickle
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import obstore
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.exceptions import AlreadyExistsError, GenericError, PermissionDeniedError, PreconditionError

from dagster_divorder import run_stage
from dagster_divorder.corpus import ingest as corpus_ingest
from dagster_divorder.corpus.find import find_files
from dagster_divorder.corpus.inputs import read_lines, read_rows
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import (
    DamagedFileError,
    DiskFullError,
    DivOrderError,
    InputError,
    StoreError,
)
from dagster_divorder.settings import Settings
from dagster_divorder.settings.places import Place, Url, real_place
from dagster_divorder.store import sources
from dagster_divorder.store.folders import folder_at
from dagster_divorder.store.remote import connect, explain, explained
from dagster_divorder.store.sources import RemoteFile, identity, open_source
from tests.store.remote import OBJECTS, put
from tests.store.servers import commit_name, serving

Make = Callable[..., Settings]
LINES = [orjson.dumps({"text": f"document {number} " + "x" * (number % 50)}) + b"\n" for number in range(300)]

on_objects = pytest.mark.parametrize("place", OBJECTS, indirect=True)
at_urls = pytest.mark.parametrize("place", [*OBJECTS, "hub"], indirect=True)


@at_urls
def test_one_file_at_a_time_is_kept_on_this_machine(
    place: Url, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    put(f"{place}/a", b"one")
    put(f"{place}/b", b"two" * 1000)
    one, two = (folder_at(place).source(name) for name in "ab")
    for _ in range(2):
        with open_source(one) as first, open_source(two) as second:
            assert (second.read(), second.seek(1), second.read(3)) == (b"two" * 1000, 1, b"wot")
            # The first file's copy is gone, and can still be read.
            assert first.read() == b"one"
            assert len(list(tmp_path.iterdir())) == 1


def test_a_full_temporary_folder_is_told(memory: object, monkeypatch: pytest.MonkeyPatch) -> None:
    put("s3://bucket/a", b"one")
    source = folder_at(Url("s3://bucket")).source("a")

    def full(*_: Any, **more: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(obstore, "get", full)
    with pytest.raises(DiskFullError, match="no space left for "):
        open_source(source)


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
@at_urls
def test_urls_find_what_paths_find(place: Url, tmp_path: Path, pattern: str) -> None:
    for name, data in FILES.items():
        put(f"{place}/{name}", data)
        put(tmp_path / "in" / name, data)
    here, remote = (find_files([f"{base}/{pattern}".rstrip("/")]) for base in (tmp_path / "in", place))
    assert [str(file).removeprefix(f"{place}/") for file in remote.files] == [
        str(file).removeprefix(f"{tmp_path}/in/") for file in here.files
    ]
    assert [*remote.left_out.values()] == [*here.left_out.values()]


@pytest.mark.parametrize("place", ["folder", *OBJECTS, "hub"], indirect=True)
def test_nothing_that_divorder_wrote_is_found(place: Place) -> None:
    put(f"{place}/a.jsonl", LINES[0])
    put(f"{place}/store/format.json", b'{"format":"divorder store","version":3}')
    put(f"{place}/store/rejects/a.jsonl", b"?")
    put(f"{place}/out/curated_meta.json", b"{}")
    put(f"{place}/out/curated.jsonl", LINES[1])
    put(f"{place}/out/rejects.jsonl", b"?")
    put(f"{place}/exports/train.jsonl", LINES[2])
    listing = find_files([str(place)], [place / "exports"])
    assert [str(file) for file in listing.files] == [f"{place}/a.jsonl"]
    assert sorted(listing.left_out) == [real_place(place / name) for name in ("exports", "out", "store")]
    # An output that is named is read: what is chained.
    assert [str(file) for file in find_files([f"{place}/out"]).files] == [f"{place}/out/curated.jsonl"]
    with pytest.raises(
        InputError, match=r"no file matches.*left out: 1 written by DivOrder \(first: .*/exports"
    ):
        find_files([f"{place}/exports"], [place / "exports"])


def parquet(rows: int) -> bytes:
    buffer = pa.BufferOutputStream()
    table = pa.table({"text": [f"text {n}" * 40 for n in range(rows)], "n": range(rows)})
    pq.write_table(table, buffer, use_dictionary=False, compression="none")
    return buffer.getvalue().to_pybytes()


@on_objects
def test_a_file_that_was_changed_is_an_error_and_never_a_mixture(place: Url) -> None:
    put(f"{place}/a.parquet", parquet(20_000))
    changed, read = (folder_at(place).source("a.parquet") for _ in range(2))
    rows = read_rows(read, None)
    next(rows)
    put(f"{place}/a.parquet", parquet(20_000)[:-8] + b"x" * 8)
    assert sum(map(len, rows)) < 20_000
    sources._copy.cache_clear()
    with pytest.raises(InputError, match=r"a\.parquet was changed since it was listed; run again"):
        list(read_rows(changed, None))


@on_objects
def test_a_file_that_is_gone_is_an_error(place: Url) -> None:
    file = RemoteFile(f"{place}/gone.jsonl", 100, "tag")
    with pytest.raises(InputError, match=r"gone\.jsonl vanished during reading; run again"):
        list(read_lines(file))


@pytest.mark.parametrize("place", ["folder", *OBJECTS, "hub"], indirect=True)
def test_it_is_read_in_another_process_by_what_its_environment_knows(place: Place) -> None:
    put(f"{place}/a.jsonl", b"".join(LINES))
    sent = pickle.dumps(folder_at(place).source("a.jsonl"))
    assert [line + b"\n" for block in read_lines(pickle.loads(sent)) for line in block.content] == LINES


def ingest(settings: Settings) -> dict[str, Any]:
    receipt = run_stage("raw_docs", settings, Silent())
    return {**receipt.figures, **receipt.facts, "version": receipt.version}


INPUTS = {
    "jsonl": {"b/one.jsonl": b"".join(LINES[:90]), "a.jsonl": b"".join(LINES[90:])},
    "compressed": {"one.jsonl.gz": gzip.compress(b"".join(LINES[:90])), "two.jsonl": b"".join(LINES[90:])},
    "parquet": {"one.parquet": parquet(100), "two.parquet": parquet(50)},
}


@at_urls
@pytest.mark.parametrize("kind", INPUTS)
def test_input_is_the_same_wherever_it_lies(
    place: Url, kind: str, make_settings: Make, tmp_path: Path
) -> None:
    for name, data in INPUTS[kind].items():
        put(f"{place}/{name}", data)
        put(tmp_path / "in" / name, data)
    here = make_settings(input={"paths": [str(tmp_path / "in")]}, store={"path": tmp_path / "here"})
    remote = make_settings(input={"paths": [str(place)]}, store={"path": tmp_path / "there"})
    assert ingest(remote)["version"] == ingest(here)["version"]
    names = [
        {path.relative_to(store).as_posix() for path in store.glob("records/**/*.*")}
        for store in (tmp_path / "here", tmp_path / "there")
    ]
    assert names[0] == names[1]


@on_objects
def test_a_last_line_cut_short_at_a_url_is_a_broken_line(place: Url, make_settings: Make) -> None:
    settings = make_settings(input={"paths": [str(place)]})
    put(f"{place}/a.jsonl", b"".join(LINES)[:-10])
    ingested = ingest(settings)
    assert (ingested["records"], ingested["rejected_records"], ingested["partial_lines"]) == (299, 1, 0)
    # The whole object is another one.
    put(f"{place}/a.jsonl", b"".join(LINES))
    ingested = ingest(settings)
    assert (ingested["records"], ingested["rejected_records"], ingested["new_records"]) == (300, 0, 1)


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are fetched; each is of a size to be read alone."""
    names, fetch = list[str](), RemoteFile.fetch
    monkeypatch.setattr(
        RemoteFile, "fetch", lambda self, folder: names.append(self.name) or fetch(self, folder)
    )
    monkeypatch.setattr(corpus_ingest, "FILE_BYTES", 1)
    return names


@on_objects
def test_a_known_tag_is_not_fetched_again(place: Url, make_settings: Make, fetched: list[str]) -> None:
    settings = make_settings(input={"paths": [str(place)]})
    put(f"{place}/a.jsonl", b"".join(LINES[:100]))
    put(f"{place}/b.jsonl", b"".join(LINES[100:150]) + LINES[150].rstrip())
    put(f"{place}/c.jsonl.gz", gzip.compress(b"".join(LINES[200:])))
    first = ingest(settings)
    assert (first["records"], first["trusted_bytes"]) == (251, 0)
    assert fetched == ["a.jsonl", "b.jsonl", "c.jsonl.gz"]
    fetched.clear()
    sources._copy.cache_clear()
    again = ingest(settings)
    assert (again["version"], again["trusted_bytes"]) == (first["version"], first["file_bytes"])
    assert not fetched
    # An object that has grown is another one, and its known records are not stored again.
    put(f"{place}/b.jsonl", b"".join(LINES[100:200]))
    grown = ingest(settings)
    assert fetched == ["b.jsonl"]
    assert (grown["records"], grown["new_records"]) == (300, 49)
    fetched.clear()
    assert ingest(settings)["trusted_bytes"] == grown["file_bytes"] and not fetched
    # Written again with the same bytes: nothing new, be it under a new tag or, as S3's tags are hashes, under the same.
    before = identity(folder_at(place).source("a.jsonl"))
    put(f"{place}/a.jsonl", b"".join(LINES[:100]))
    same = ingest(settings)
    assert (same["version"], same["new_records"]) == (grown["version"], 0)
    has_new_tag = identity(folder_at(place).source("a.jsonl")) != before
    assert fetched == (["a.jsonl"] if has_new_tag else [])


@at_urls
@pytest.mark.parametrize("several", [False, True])
def test_parquet_of_known_tags_is_not_fetched_for_its_columns(
    place: Url, several: bool, make_settings: Make, fetched: list[str]
) -> None:
    """Not even where the columns of several inputs, or those of a new file, are compared with it."""
    put(f"{place}/a/one.parquet", parquet(100))
    put(f"{place}/b/two.parquet", parquet(50))
    paths = [f"{place}/a", f"{place}/b"]
    settings = make_settings(
        input=[{"paths": [path], "source": path[-1]} for path in paths] if several else {"paths": paths}
    )
    assert ingest(settings)["records"] == 150
    assert set(fetched) == {"one.parquet", "two.parquet"}
    # Which fields there are is asked of the input until they are stored.
    run_stage("fields", settings, Silent())
    fetched.clear()
    sources._copy.cache_clear()
    assert ingest(settings)["trusted_bytes"] > 0 and not fetched
    put(f"{place}/b/ultimate.parquet", parquet(20))
    assert ingest(settings)["records"] == 170 and fetched == ["ultimate.parquet"]
    other = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": ["x"], "other": [1]}), other)
    put(f"{place}/b/ultimate.parquet", other.getvalue().to_pybytes())
    with pytest.raises(InputError, match=r"ultimate\.parquet has other columns than earlier files"):
        ingest(settings)


@pytest.mark.parametrize("tags", [True, False])
def test_files_of_web_servers(tags: bool, make_settings: Make) -> None:
    files = {"/my%20docs/a.jsonl": b"".join(LINES[:200]), "/b.jsonl.gz": gzip.compress(b"".join(LINES[200:]))}

    def answer(path: str) -> tuple[bytes | None, dict[str, str]]:
        tag = f'W/"{hashlib.md5(files[path]).hexdigest()}"'
        headers = {"Last-Modified": "Mon, 23 Nov 2026 06:40:00 GMT", **({"ETag": tag} if tags else {})}
        return files[path], headers

    with serving(answer) as (url, requests):
        settings = make_settings(input={"paths": [f"{url}{path}" for path in files]})
        assert ingest(settings)["records"] == 300
        requests.clear()
        again = ingest(settings)
        assert again["trusted_bytes"] == again["file_bytes"] and {*requests} == {"HEAD"}
        listed = folder_at(Url(url)).source("b.jsonl.gz")
        files["/b.jsonl.gz"] = gzip.compress(b"".join(LINES[200:250]))
        sources._copy.cache_clear()
        with pytest.raises(InputError, match=r"b\.jsonl\.gz was changed since it was listed"):
            list(read_lines(listed))
        assert ingest(settings)["records"] == 250


def test_a_dataset_of_the_hub_is_read_at_one_commit(hub: str, make_settings: Make) -> None:
    put(f"{hub}/data/a.jsonl", b"".join(LINES[:10]))
    put(f"{hub}/data/more/b.jsonl.gz", gzip.compress(b"".join(LINES[10:20])))
    first = commit_name(2)
    settings = make_settings(input={"paths": [f"{hub}/data", f"{hub}@main/data/a.jsonl"]})
    assert ingest(settings)["records"] == 20
    put(f"{hub}/README.md", b"?")
    again = ingest(settings)
    # Another commit, and the same files.
    assert again["trusted_bytes"] == again["file_bytes"]
    put(f"{hub}/data/a.jsonl", b"".join(LINES[20:]))
    assert ingest(settings)["records"] == 290
    assert ingest(make_settings(input={"paths": [f"{hub}@{first}/data/a.jsonl"]}))["records"] == 10


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("hf://datasets/org/nothing/a.jsonl", "cannot be read from the Hub .RepositoryNotFoundError"),
        ("hf://datasets/org/corpus@v9/a.jsonl", "cannot be read from the Hub .RevisionNotFoundError"),
        ("hf://datasets/org/corpus/a.jsonl", "no file matches"),
        ("hf://org/corpus/a.jsonl", "names no dataset of the Hub"),
        ("/nothing.jsonl", "no file matches"),
        ("/*.jsonl", "cannot be listed, because web servers list no files; name each file by its URL"),
    ],
)
def test_what_the_hub_or_a_web_server_has_not(hub: str, path: str, wrong: str) -> None:
    with serving(lambda _: (None, {})) as (url, _), pytest.raises(InputError, match=wrong):
        find_files([path if path.startswith("hf:") else url + path])


URL = "s3://bucket/prefix"


def answered(status: int, code: str = "", query: str = "") -> str:
    """A message as obstore's are."""
    body = (
        f'<?xml version="1.0"?>\n<Error><Code>{code}</Code><Message>Sesame99</Message></Error>'
        if code
        else ""
    )
    return (
        f"Generic S3 error: Error performing GET http://host:1/bucket/a{query} in 5.3ms - Server returned non-2xx "
        f"status code: {status} Something: {body}\n\nDebug source:\nGeneric {{ signature: Sesame99 }}"
    )


@pytest.mark.parametrize(
    ("message", "parts"),
    [
        (answered(403, "InvalidAccessKeyId"), ["InvalidAccessKeyId", "check AWS_ACCESS_KEY_ID"]),
        (
            answered(404, "NoSuchBucket"),
            ["NoSuchBucket", "no bucket 'bucket' is", "make it", "AWS_ENDPOINT_URL"],
        ),
        (answered(403, "QuotaExceeded"), ["no space left", "QuotaExceeded"]),
        (answered(418, query="?X-Amz-Signature=Sesame99"), ["418", "check AWS_ACCESS_KEY_ID"]),
        (
            "Generic S3 error: Error performing GET http://127.0.0.1:1/b?sig=Sesame99 in 1s, after 3 retries - HTTP "
            "error: error sending request\n\nDebug source:\nSesame99",
            ["cannot be reached", "AWS_ENDPOINT_URL", "error sending request"],
        ),
        (
            "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 3s - HTTP error",
            ["no credentials were found", "AWS_ACCESS_KEY_ID"],
        ),
    ],
)
def test_errors_say_what_to_do_and_no_secret(message: str, parts: list[str]) -> None:
    explanation = explain(GenericError(message), URL)
    assert URL in explanation and "Sesame99" not in explanation
    assert all(part in explanation for part in parts), explanation


def test_errors_become_ours_and_conditions_stay_what_they_are() -> None:
    with pytest.raises(InputError, match="AccessDenied") as caught, explained(URL, InputError):
        raise PermissionDeniedError(answered(403, "AccessDenied"))
    assert caught.value.__suppress_context__
    with pytest.raises(DiskFullError), explained(URL):
        raise GenericError(answered(507))
    with pytest.raises(StoreError, match="no bucket"), explained(URL):
        raise FileNotFoundError(answered(404, "NoSuchBucket"))
    for condition in (AlreadyExistsError, PreconditionError, FileNotFoundError):
        with pytest.raises(condition), explained(URL):
            raise condition(answered(412, "PreconditionFailed"))


def test_connecting_asks_for_nothing_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "Sesame99")
    with pytest.raises(
        InputError, match="Missing AccessKeyId; check its variables, such as AWS_ACCESS_KEY_ID"
    ):
        connect(URL)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    assert "Sesame99" not in repr(connect(URL))
    with pytest.raises(InputError, match="AZURE_STORAGE_ACCOUNT_NAME"):
        connect("az://container/prefix")
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(InputError, match=r"pip install 'dagster-divorder\[objects\]'"):
        connect(URL)


@pytest.mark.parametrize("endpoint", ["", "Sesame99", "://x", "http://", "ftp://host", " http://host"])
def test_an_endpoint_that_is_none_is_refused_and_not_repeated(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(InputError, match=r"AWS_ENDPOINT_URL is not a server.s URL") as caught:
        connect(URL)
    assert "Sesame99" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("GET http://who:Sesame99@host:1/b in 1 s", "GET http://...@host:1/b in 1 s"),
        ("('s3://who:Sesame99@b/x', 'gs://b/y')", "('s3://...@b/x', 'gs://b/y')"),
        ("https://host/a?X-Amz-Signature=Sesame99&b=1, again", "https://host/a?... again"),
        ("az://c/x?sv=1&sig=Sesame99", "az://c/x?..."),
        ("hf://datasets/org/name@main/a", "hf://datasets/org/name@main/a"),
        ("s3://b/part-?.jsonl is missing", "s3://b/part-?.jsonl is missing"),
        ("is it full? key=value", "is it full? key=value"),
        ("write to me@example.org", "write to me@example.org"),
    ],
)
def test_no_error_holds_what_is_secret_in_a_url(text: str, shown: str) -> None:
    for kind in (DivOrderError, InputError, DamagedFileError):
        error = kind(text)
        assert str(error) == str(kind(str(error))) == str(pickle.loads(pickle.dumps(error))) == shown
