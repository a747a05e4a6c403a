"""Which files a corpus has: nothing that DivOrder wrote, nothing left out without a word."""

from __future__ import annotations

import errno
import glob
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from dagster_divorder.corpus.find import find_files
from dagster_divorder.corpus.inputs import read_rows
from dagster_divorder.errors import InputError
from dagster_divorder.settings.loading import fixed_beginning
from dagster_divorder.store.base import TEMPORARY
from tests.conftest import examples


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"text": "a"}\n')


def names(folder: Path, *patterns: str, own: tuple[Path, ...] = ()) -> list[str]:
    found = find_files([str(folder / pattern) for pattern in patterns], own)
    return [str(file.relative_to(folder)) for file in found.files]


def test_what_is_left_out_of_a_folder_is_counted_by_the_end_of_its_name(tmp_path: Path) -> None:
    touch(tmp_path, "in/a.jsonl", "in/b.csv", "in/sub/c.CSV", "in/d.jsonl.zip", "in/e.csv.gz", "in/README")
    touch(tmp_path, "in/_SUCCESS", "in/.git/config.json", "in/v1.2.notes.txt")
    (tmp_path / "in/gone.jsonl").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "in/pipe.jsonl")
    found = find_files([str(tmp_path / "in"), str(tmp_path / "in/sub/../a.jsonl")])
    assert [file.name for file in found.files] == ["a.jsonl"]
    touch(tmp_path, "in/sub/b.jsonl.bz2")
    with pytest.raises(InputError, match=r"b\.jsonl\.bz2 is compressed by bz2.*; decompress it \(`bunzip2"):
        find_files([str(tmp_path / "in")])
    assert Counter(found.left_out.values()) == {
        ".csv": 2,
        ".csv.gz": 1,
        ".jsonl.zip": 1,
        ".txt": 1,
        "hidden (. or _)": 2,
        "no regular file": 2,
        "without suffix": 1,
    }


def test_links_to_folders_are_followed_each_folder_once(tmp_path: Path) -> None:
    touch(tmp_path, "in/1.jsonl", "elsewhere/2.jsonl", "elsewhere/deep/3.jsonl")
    (tmp_path / "in/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in/again").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/deep/round").symlink_to(tmp_path / "in")
    (tmp_path / "in/itself").symlink_to("itself")
    for pattern in ("in", "in/**/*.jsonl", "in/**"):
        assert sorted(os.path.basename(name) for name in names(tmp_path, pattern)) == [
            "1.jsonl",
            "2.jsonl",
            "3.jsonl",
        ]
    # Under the first by name of the shortest ways to a file.
    assert names(tmp_path, "in") == ["in/1.jsonl", "in/again/2.jsonl", "in/again/deep/3.jsonl"]


def make_output(folder: Path) -> None:
    touch(folder, "curated.jsonl", "rejects.jsonl")
    (folder / "curated_meta.json").write_text('{"files": {}}')


def make_store(folder: Path) -> None:
    touch(folder, "rejects/rejects.0.jsonl", "receipts/raw_docs.json")
    (folder / "format.json").write_text('{"format":"divorder store","version":4}')


@pytest.mark.parametrize("pattern", ["**/*.jsonl", "*/c*.jsonl", "*/curated.jsonl"])
def test_what_divorder_wrote_is_no_input(tmp_path: Path, pattern: str) -> None:
    touch(tmp_path, "in/curated.jsonl")
    (tmp_path / "in/format.json").write_text('{"version": "2.0"}')  # of another program
    make_output(tmp_path / "out")
    make_store(tmp_path / "store")
    touch(tmp_path, "out_killed/curated.jsonl", "own_store/rejects/x.jsonl", "own_out/curated.jsonl")
    (tmp_path / f"out_killed/{TEMPORARY}0").write_text("{")
    own = (tmp_path / "own_store", tmp_path / "own_out")
    assert names(tmp_path, pattern, own=own) == ["in/curated.jsonl"]
    found = find_files([str(tmp_path / pattern)], own)
    assert {
        str(tmp_path / name) for name in ("out", "store", "out_killed", "own_out")
    } <= found.left_out.keys()


def test_links_into_what_this_run_writes_are_no_input(tmp_path: Path) -> None:
    touch(tmp_path, "in/a.jsonl", "own/curated.jsonl", "own/sub/curated.jsonl")
    (tmp_path / "in/file.jsonl").symlink_to(tmp_path / "own/curated.jsonl")
    (tmp_path / "in/folder").symlink_to(tmp_path / "own/sub")
    for pattern in ("in", "in/**/*.jsonl", "in/*.jsonl"):
        assert names(tmp_path, pattern, own=(tmp_path / "own",)) == ["in/a.jsonl"]
    with pytest.raises(
        InputError, match=r"no file matches .*; left out: 1 written by DivOrder \(first: .*/own\)"
    ):
        names(tmp_path, "own/*.jsonl", own=(tmp_path / "own",))


def test_another_runs_output_that_is_named_is_read_and_of_it_the_records(tmp_path: Path) -> None:
    make_output(tmp_path / "out")
    make_output(tmp_path / "out/kept")
    touch(tmp_path, "out/curated-00001.jsonl")
    assert names(tmp_path, "out") == ["out/curated-00001.jsonl", "out/curated.jsonl"]
    assert names(tmp_path, "out/*.jsonl") == [
        "out/curated-00001.jsonl",
        "out/curated.jsonl",
        "out/rejects.jsonl",
    ]
    make_store(tmp_path / "store")
    with pytest.raises(InputError, match=r"left out: .*written by DivOrder \(first: .*/store\)"):
        names(tmp_path, "store")


PARTS = st.sampled_from(
    ["a", "b", ".h", "_u", "*", "?", "**", "[ab]", ".*", "*.jsonl", "a.jsonl", "**.jsonl"]
)


@hypothesis_settings(deadline=None, max_examples=examples(60))
@given(
    files=st.sets(
        st.lists(st.sampled_from(["a", "b", ".h", "_u"]), max_size=3).map(tuple), min_size=1, max_size=6
    ),
    pattern=st.lists(PARTS, min_size=1, max_size=4),
)
def test_globs_match_as_python_does(
    tmp_path_factory: pytest.TempPathFactory, files: set[tuple[str, ...]], pattern: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("glob")
    touch(folder, *("/".join((*parts, "a.jsonl")) for parts in files))
    whole = "/".join([str(folder), *pattern])
    expected = sorted({Path(name) for name in glob.glob(whole, recursive=True) if os.path.isfile(name)})
    if os.path.isdir(whole):
        return
    try:
        found = find_files([whole]).files
    except InputError as error:
        assert "no file matches" in str(error)
        found = []
    assert found == expected


@pytest.mark.parametrize("name", ["run [12]", "a*b", "what?"])
def test_the_name_of_an_existing_folder_is_no_pattern(tmp_path: Path, name: str) -> None:
    touch(tmp_path, "run 1/in/n.jsonl", "axb/in/n.jsonl", "what1/in/n.jsonl", f"{name}/in/a.jsonl")
    folder = tmp_path / name
    assert names(folder, "in/*.jsonl", "**/a.jsonl", "in") == ["in/a.jsonl"]
    assert fixed_beginning(f"{folder}/in/*.jsonl") == f"{folder}/in"
    with pytest.raises(InputError, match="no file matches"):
        find_files([f"{folder}/in/n.jsonl"])


def test_a_dataset_saved_to_disk_is_read_as_its_rows(tmp_path: Path) -> None:
    import datasets

    rows = datasets.Dataset.from_dict(
        {"text": [f"document {number}" for number in range(10)], "n": range(10)}
    )
    split = tmp_path / "in/train"
    datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk(
        str(tmp_path / "in"), num_shards={"train": 2}
    )
    touch(split, "cache-1.arrow", "data-00000-of-00009.arrow")
    with pytest.raises(
        InputError, match=r"holds the splits of .*; name the one to read, such as .*/in/train"
    ):
        find_files([str(tmp_path / "in")])
    found = find_files([str(split)])
    assert Counter(found.left_out.values()) == {".arrow": 2, ".json": 2}
    rows.to_parquet(str(tmp_path / "rows.parquet"))
    ids = [
        [id.tolist() for file in files for block in read_rows(file, None) for id in block.ids]
        for files in (found.files, [tmp_path / "rows.parquet"])
    ]
    assert ids[0] == ids[1] and len(ids[0]) == 10
    (split / "data-00001-of-00002.arrow").unlink()
    with pytest.raises(InputError, match=r"lacks data-00001-of-00002\.arrow, which its state\.json names"):
        find_files([str(split)])


@pytest.mark.parametrize("pattern", ["in", "in/**/*.jsonl", "in/*/b.jsonl"])
def test_a_folder_that_cannot_be_listed_is_an_error_that_names_it(
    tmp_path: Path, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, "in/a.jsonl", "in/sub/b.jsonl")
    denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(tmp_path / "in/sub"))
    for name in ("scandir", "stat"):
        original = getattr(os, name)

        def refuse(path: object, original: Callable[..., Any] = original, **options: Any) -> Any:
            if str(path).startswith(str(tmp_path / "in/sub")):
                raise denied
            return original(path, **options)

        monkeypatch.setattr(os, name, refuse)
    with pytest.raises(InputError, match=r"in/sub cannot be listed: Permission denied; make it readable"):
        find_files([str(tmp_path / pattern)])
