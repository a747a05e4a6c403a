"""Input, output and exports on a real object store: what the same files here give, kills, changes and strangers."""

from __future__ import annotations

import gzip
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import obstore
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_divorder import run_all, run_stage
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import DiskFullError, InputError, StoreError
from dagster_divorder.pipeline.checks import run_checks
from dagster_divorder.settings import Settings, load_settings
from dagster_divorder.settings.places import Url
from dagster_divorder.stages import GRAPH
from dagster_divorder.stages.corpus import raw_docs
from dagster_divorder.stages.output import curated_output
from dagster_divorder.store import sources
from dagster_divorder.store.base import TEMPORARY
from dagster_divorder.store.folders import folder_at
from dagster_divorder.store.sources import bucket
from tests.cluster.proxy import Fault, Proxy
from tests.conftest import topic_records
from tests.store.fake_hub import Hub, hub
from tests.store.remote import objects, put

__all__ = ["hub"]

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

LINES = [orjson.dumps(record) + b"\n" for record in topic_records(40)]


@pytest.fixture
def s3(new_place: Callable[[], str]) -> str:
    """A URL of nothing yet."""
    return new_place()


def settings_of(folder: Path, **sections: Any) -> Settings:
    base: dict[str, Any] = {
        "store": sections.pop("store", {"path": folder / "store"}),
        "advanced": {"vocab_size": 512, "token_dims": 16},
        "clusters": {"k": 4},
        "order": {"length_bins": 5},
        "sequence": {"length": 128, "batch": 4},
    }
    output = {"plot": False, **sections.pop("output", {"path": folder / "curated"})}
    return Settings(**base, output=output, **sections)


def parquet(lines: list[bytes]) -> bytes:
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([orjson.loads(line) for line in lines]), buffer, row_group_size=7)
    return buffer.getvalue().to_pybytes()


KINDS = {
    "jsonl": {"b/one.jsonl": b"".join(LINES[:90]), "a.jsonl": b"".join(LINES[90:])},
    "compressed": {"one.jsonl.gz": gzip.compress(b"".join(LINES[:90])), "two.jsonl": b"".join(LINES[90:])},
    "parquet": {"one.parquet": parquet(LINES[:100]), "two.parquet": parquet(LINES[100:])},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pattern", ["", "/**/*[lzt]"])
def test_input_on_objects_is_the_same_as_on_disk(s3: str, tmp_path: Path, kind: str, pattern: str) -> None:
    for name, data in KINDS[kind].items():
        put(f"{s3}/in/{name}", data)
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    here = settings_of(tmp_path / "here", input={"paths": [f"{tmp_path}/in{pattern}"]})
    there = settings_of(tmp_path / "there", input={"paths": [f"{s3}/in{pattern}"]})
    versions = [run_stage("raw_docs", of, Silent()).version for of in (here, there)]
    assert versions[0] == versions[1]
    files = [
        {
            path.relative_to(of.store.path / "records").as_posix()
            for path in of.store.path.glob("records/**/*.*")
        }
        for of in (here, there)
    ]
    assert files[0] == files[1]
    again = run_stage("raw_docs", there, Silent())
    assert again.figures["recognised_by"] == "tags" and again.figures["new_records"] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_workers_read_objects_in_parts(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(raw_docs, "PARTS_FROM_BYTES", 1)
    for name, data in KINDS[kind].items():
        put(f"{s3}/in/{name}", data)
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    here = settings_of(tmp_path / "here", input={"paths": [f"{tmp_path}/in"]}, engine={"workers": 1})
    there = settings_of(tmp_path / "there", input={"paths": [f"{s3}/in"]}, engine={"workers": 2})
    first, second = (run_stage("raw_docs", of, Silent()) for of in (here, there))
    assert first.version == second.version
    again = run_stage("raw_docs", there, Silent())
    assert again.figures["recognised_by"] == "tags" and again.version == first.version


def test_only_what_was_added_to_an_object_is_computed(s3: str, tmp_path: Path) -> None:
    put(f"{s3}/in.jsonl", b"".join(LINES[:100]))
    settings = settings_of(tmp_path, input={"paths": [f"{s3}/in.jsonl"]})
    run_stage("raw_docs", settings, Silent())
    put(f"{s3}/in.jsonl", b"".join(LINES))
    figures = run_stage("raw_docs", settings, Silent()).figures
    assert figures["new_records"] == len(LINES) - 100
    assert (figures["recognised_by"], figures["recognised_bytes"]) == ("whole", sum(map(len, LINES[:100])))


def test_an_object_that_changes_while_it_is_read_is_an_error(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "PIECE_BYTES", 4096)
    monkeypatch.setattr(sources, "AHEAD", 1)
    put(f"{s3}/in.jsonl", b"".join(LINES))
    (file,) = sources.tree_of(s3).listed(s3).values()
    assert file
    with sources.open_source(file) as opened:
        assert opened.read(100) == b"".join(LINES)[:100]
        put(f"{s3}/in.jsonl", b"".join(LINES[::-1]))
        with pytest.raises(InputError, match="was changed while it was read; run again"):
            opened.read()


def whole(folder: Path) -> dict[str, bytes]:
    """Files below a folder; of manifests what they say of the content."""
    return told({path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.*")})


def told(files: dict[str, bytes]) -> dict[str, bytes]:
    manifests = [name for name in files if name.endswith(("manifest.json", "curated_meta.json"))]
    entries = {name: orjson.dumps(orjson.loads(files[name])["files"]) for name in manifests}
    return files | entries


FORMATS = ["parquet", "megatron", "mds", "litdata", "olmo", "ds", "text"]


def test_output_and_exports_on_objects_are_the_same_bytes(s3: str, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"".join(LINES))
    given = {"input": {"paths": [str(tmp_path / "in.jsonl")]}}
    # Several files of each, and of the Parquet ones more than one row group.
    small = {"shard_bytes": 9_000}
    exports = {"formats": FORMATS, "shard_bytes": 9_000}
    here = settings_of(
        tmp_path / "here",
        **given,
        output={"path": tmp_path / "here/out", **small},
        exports={"path": tmp_path / "here/exports", **exports},
    )
    there = settings_of(
        tmp_path / "there",
        **given,
        store={"path": f"{s3}/store", "cache": tmp_path / "cache"},
        output={"path": f"{s3}/out", **small},
        exports={"path": f"{s3}/exports", **exports},
    )
    run_all(here, Silent())
    run_all(there, Silent())
    assert told(objects(f"{s3}/out")) == whole(tmp_path / "here/out")
    assert told(objects(f"{s3}/exports")) == whole(tmp_path / "here/exports")
    before = objects(f"{s3}/out") | objects(f"{s3}/exports")
    figures = run_all(there, Silent())["curated_output"].figures
    assert not figures["written"] and objects(f"{s3}/out") | objects(f"{s3}/exports") == before
    findings = run_checks(there)
    for check in ("every_record_in_output", "exports_are_whole", "trainers_keep_the_order"):
        assert findings[check].passed
    # What has another size is written anew.
    put(f"{s3}/out/curated-00000.jsonl", b"altered")
    run_all(there, Silent())
    assert objects(f"{s3}/out")["curated-00000.jsonl"] == before["curated-00000.jsonl"]


def test_workers_write_objects(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"".join(LINES))
    given = {"input": {"paths": [str(tmp_path / "in.jsonl")]}}
    here = settings_of(tmp_path / "here", **given, output={"path": tmp_path / "out", "shard_bytes": 9_000})
    run_all(here, Silent())
    monkeypatch.setattr(curated_output, "WORKERS_FROM_BYTES", 1)
    there = settings_of(
        tmp_path / "there",
        **given,
        output={"path": f"{s3}/out", "shard_bytes": 9_000},
        engine={"workers": 2},
    )
    run_all(there, Silent())
    assert told(objects(f"{s3}/out")) == whole(tmp_path / "out")


def test_output_and_exports_in_a_dataset_of_the_hub_are_the_same_bytes(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"".join(LINES))
    here, there = (
        settings_of(
            tmp_path / str(number),
            input={"paths": [str(tmp_path / "in.jsonl")]},
            output={"path": f"{place}/out", "shard_bytes": 9_000},
            exports={"path": f"{place}/exports", "formats": ["parquet", "mds"]},
        )
        for number, place in enumerate([str(tmp_path / "here"), hub.url])
    )
    stages = ("curated_output", "exports")
    for settings in (here, there):
        run_all(settings, Silent(), GRAPH.needed(settings, *stages))
    assert told(hub.files) == whole(tmp_path / "here")
    # One commit for the output, one for each export, and none where nothing is new.
    assert len(hub.received) == 3
    figures = run_all(there, Silent(), GRAPH.needed(there, *stages))["curated_output"].figures
    assert not figures["written"] and len(hub.received) == 3
    findings = run_checks(there)
    assert findings["every_record_in_output"].passed and findings["exports_are_whole"].passed


def remote_settings(s3: str, folder: Path) -> Settings:
    return settings_of(
        folder,
        input={"paths": [f"{s3}/in"]},
        output={"path": f"{s3}/out", "shard_bytes": 9_000},
        exports={"path": f"{s3}/exports", "formats": ["parquet"]},
    )


@pytest.mark.parametrize(
    "fault",
    [Fault(500, "InternalError"), Fault(503, "SlowDown"), Fault(lost=True)],
    ids=["500", "503", "lost"],
)
def test_a_server_that_fails_now_and_then_changes_no_byte(
    s3: str, proxy: Proxy, tmp_path: Path, fault: Fault
) -> None:
    for name, data in KINDS["compressed"].items():
        put(f"{s3}/in/{name}", data)
    run_all(remote_settings(s3, tmp_path / "sound"), Silent())
    expected = told(objects(f"{s3}/out")), told(objects(f"{s3}/exports"))
    store, key = bucket(s3)
    obstore.delete(store, [f"{key}/{name}" for name in objects(s3) if not name.startswith("in/")])
    chances = random.Random(0)
    proxy.fault = lambda request: fault if chances.random() < 0.25 else None
    run_all(remote_settings(s3, tmp_path / "again"), Silent())
    proxy.fault = lambda request: None
    assert proxy.faults > 5
    assert (told(objects(f"{s3}/out")), told(objects(f"{s3}/exports"))) == expected


def test_a_full_bucket_leaves_the_output_that_was_there(s3: str, proxy: Proxy, tmp_path: Path) -> None:
    settings = remote_settings(s3, tmp_path)
    put(f"{s3}/in/a.jsonl", b"".join(LINES[:100]))
    run_all(settings, Silent())
    before = objects(f"{s3}/out")
    put(f"{s3}/in/a.jsonl", b"".join(LINES))
    proxy.fault = lambda request: Fault(403, "QuotaExceeded") if request.method == "PUT" else None
    with pytest.raises(DiskFullError, match="raise the quota or free some, then run again"):
        run_all(settings, Silent())
    proxy.fault = lambda request: None
    assert objects(f"{s3}/out") == before
    assert run_all(settings, Silent())["curated_output"].figures["records"] == len(LINES)


def test_a_run_with_nothing_new_asks_little(s3: str, proxy: Proxy, tmp_path: Path) -> None:
    for name, data in KINDS["jsonl"].items():
        put(f"{s3}/in/{name}", data)
    settings = remote_settings(s3, tmp_path)
    run_all(settings, Silent())
    proxy.requests.clear()
    run_all(settings, Silent())
    counts = proxy.counts()
    assert counts.keys() <= {"GET", "HEAD", "LIST"}, counts
    # An export lies in two folders, that of the rows and that of what describes them, and each is listed.
    assert sum(counts.values()) <= 46, counts


def test_a_strangers_object_is_not_overwritten(s3: str, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"".join(LINES))
    put(f"{s3}/out/order.npy", b"mine")
    settings = settings_of(
        tmp_path, input={"paths": [str(tmp_path / "in.jsonl")]}, output={"path": f"{s3}/out"}
    )
    with pytest.raises(InputError, match=r"order\.npy is there and was not written by this store"):
        run_all(settings, Silent())
    assert objects(s3) == {"out/order.npy": b"mine"}


def test_a_commit_that_was_killed_is_finished_by_the_next_run(s3: str, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"".join(LINES))
    (tmp_path / "divorder.toml").write_text(
        f"""
        input.paths = ["in.jsonl"]
        output = {{ path = "{s3}/out", shard_bytes = 9000, plot = false }}
        advanced = {{ vocab_size = 512, token_dims = 16 }}
        clusters.k = 4
        order.length_bins = 5
        sequence = {{ length = 128, batch = 4 }}
        """
    )
    dying = f"""
import os, signal, sys
from pathlib import Path
import obstore
from dagster_divorder import run_all
from dagster_divorder.settings import load_settings
done = []
copy = obstore.copy
def dies(*given, **more):
    copy(*given, **more)
    done.append(given)
    if len(done) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
obstore.copy = dies
run_all(load_settings({str(tmp_path / "divorder.toml")!r}))
"""
    killed = subprocess.run([sys.executable, "-c", dying], env={**os.environ}, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    left = objects(f"{s3}/out")
    assert [name for name in left if name.startswith(TEMPORARY)] and "curated_meta.json" not in left
    settings = load_settings(tmp_path / "divorder.toml", {})
    run_all(settings, Silent())
    made = objects(f"{s3}/out")
    assert not [name for name in made if name.startswith(TEMPORARY)]
    assert sorted(
        b"".join(made[name] for name in sorted(made) if name.startswith("curated-")).splitlines()
    ) == (sorted(b"".join(LINES).splitlines()))
    # Read as input, it is what is chained; beside input it is left out.
    put(f"{s3}/more.jsonl", b"".join(LINES[:7]))
    chained = settings_of(tmp_path / "chained", input={"paths": [f"{s3}/out"]})
    assert run_stage("raw_docs", chained, Silent()).facts["records"] == len(LINES)
    beside = settings_of(tmp_path / "beside", input={"paths": [s3]})
    facts = run_stage("raw_docs", beside, Silent()).facts
    assert (facts["records"], facts["skipped_folders"]) == (7, [f"{s3}/out"])


def test_what_cannot_be_read_or_written_says_why(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told_of(path: str) -> str:
        with pytest.raises(InputError) as caught:
            run_stage("raw_docs", settings_of(tmp_path, input={"paths": [path]}), Silent())
        return str(caught.value)

    assert "no file matches" in told_of(f"{s3}/nothing.jsonl")
    assert "no file matches" in told_of(f"{s3}/nothing-*.jsonl")
    assert "there is no bucket 'nowhere'" in told_of("s3://nowhere/in.jsonl")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "Sesame99")
    wrong = told_of(f"{s3}/in.jsonl")
    folder = folder_at(Url(s3))
    with (
        pytest.raises(StoreError, match="the credentials are wrong") as caught,
        folder.explaining(),
        folder.create("a", "b") as file,
    ):
        file.write(b"x")
    assert "the credentials are wrong" in wrong and "Sesame99" not in wrong + str(caught.value)
