"""Datasets of the Hub as input and as output: one commit upon the one that was there."""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from dagster_divorder import run_stage
from dagster_divorder.corpus.find import find_files
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import InputError, StoreError
from dagster_divorder.settings import Settings
from dagster_divorder.settings.places import Url
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.manifests import EXPORT_MANIFEST
from dagster_divorder.write.curated import BESIDE, OutputFolder, remove_beside, write_beside
from tests.store.fake_hub import Hub

# Of huggingface_hub's own upload.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

Make = Callable[..., Settings]
LINES = [orjson.dumps({"text": f"document {number}"}) + b"\n" for number in range(40)]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store").open()


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
    assert again.figures["recognised_by"] == "tags"
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


def publish(output: OutputFolder, files: dict[str, bytes]) -> dict[str, Any]:
    with output:
        for name, data in files.items():
            output.stage(name, lambda file, data=data: file.write(data))
        return output.commit({"key": "0" * 32})


def test_an_output_is_one_commit(hub: Hub, store: LocalStore) -> None:
    place = Url(f"{hub.url}/exports/parquet")
    output = OutputFolder(store, place, manifest=EXPORT_MANIFEST)
    publish(output, {"train-0.parquet": b"one" * 100, "train-1.parquet": b"two", "_/tokenizer.json": b"{}"})
    (received,) = hub.received
    assert sorted(received) == [
        ("file", "exports/_parquet/manifest.json"),
        ("file", "exports/_parquet/tokenizer.json"),
        ("lfsFile", "exports/parquet/train-0.parquet"),
        ("lfsFile", "exports/parquet/train-1.parquet"),
    ]
    # What only the old output had goes in the commit of the new one.
    publish(OutputFolder(store, place, manifest=EXPORT_MANIFEST), {"train-0.parquet": b"three"})
    assert len(hub.received) == 2
    assert sorted(hub.files) == ["exports/_parquet/manifest.json", "exports/parquet/train-0.parquet"]


def test_folders_of_a_dataset_can_be_written_at_the_same_time(hub: Hub, store: LocalStore) -> None:
    names = ["out", "exports/ds", "exports/text"]
    folders = [OutputFolder(store, Url(f"{hub.url}/{name}"), manifest=EXPORT_MANIFEST) for name in names]
    with contextlib.ExitStack() as writing:
        for folder in folders:
            writing.enter_context(folder)
            folder.stage("train-0.bin", lambda file: file.write(b"mine"))
        for folder in reversed(folders):
            folder.commit({"key": "0" * 32})
    assert sorted(hub.files) == [
        "_out/manifest.json",
        "exports/_ds/manifest.json",
        "exports/_text/manifest.json",
        "exports/ds/train-0.bin",
        "exports/text/train-0.bin",
        "out/train-0.bin",
    ]
    # Another writer of the same folder is still told, in this process too.
    one, other = (OutputFolder(store, Url(f"{hub.url}/out"), manifest=EXPORT_MANIFEST) for _ in range(2))
    with pytest.raises(StoreError, match="another commit was made"), one, other:
        for number, folder in enumerate((one, other)):
            folder.stage("train-0.bin", lambda file, number=number: file.write(b"%d" % number))
            folder.commit({"key": "1" * 32})
    assert hub.files["out/train-0.bin"] == b"0"


def test_a_commit_of_somebody_else_in_between_is_an_error_and_the_next_run_goes_on(
    hub: Hub, store: LocalStore
) -> None:
    output = OutputFolder(store, Url(f"{hub.url}/parquet"), manifest=EXPORT_MANIFEST)
    with pytest.raises(StoreError, match=r"another commit was made to the dataset.*run again"), output:
        output.stage("train-0.bin", lambda file: file.write(b"mine"))
        hub.commits.append({"theirs.txt": b"theirs"})
        output.commit({"key": "0" * 32})
    assert hub.files == {"theirs.txt": b"theirs"}
    publish(
        OutputFolder(store, Url(f"{hub.url}/parquet"), manifest=EXPORT_MANIFEST), {"train-0.bin": b"mine"}
    )
    assert sorted(hub.files) == ["_parquet/manifest.json", "parquet/train-0.bin", "theirs.txt"]


def test_what_lies_beside_an_output_comes_and_goes_with_commits_of_its_own(
    hub: Hub, store: LocalStore
) -> None:
    place = Url(hub.url)
    write_beside(store, place, {BESIDE[0]: b"page"})
    write_beside(store, place, {BESIDE[0]: b"page"})
    assert hub.received == [[("lfsFile", BESIDE[0])]]
    output = OutputFolder(store, place, manifest=EXPORT_MANIFEST)
    with output:
        output.stage("train-0.bin", lambda file: file.write(b"x"))
        earlier = "ordering_report-2026-11-26.html"
        assert output.keep_beside("2026-11-26") == ([earlier], [])
        assert BESIDE[0] in hub.files and earlier not in hub.files
        output.commit({"key": "0" * 32})
    assert len(hub.received) == 2 and sorted(hub.files) == ["_/manifest.json", earlier, "train-0.bin"]
    assert hub.files[earlier] == b"page"
    write_beside(store, place, {BESIDE[0]: b"page"})
    assert remove_beside(store) == [earlier, BESIDE[0]]
    assert sorted(hub.files) == ["_/manifest.json", "train-0.bin"]
