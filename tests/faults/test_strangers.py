"""Whatever lies where, and whichever command runs: what this program has not written stays as it is, byte for byte."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dagster_divorder.cli import main
from dagster_divorder.settings import load_settings
from tests.conftest import examples, small_toml, topic_records, write_jsonl

PLACES = {
    "apart": ("in", "store", "out"),
    "all below the input": ("data", "data/store", "data/out"),
    "a glob over everything": ("**/*.jsonl", "store", "out"),
    "output is the input": ("in", "store", "in"),
    "output is the input's file's folder": ("in/docs.jsonl", "store", "in"),
    "store is the input": ("in", "in", "out"),
    "store holds the input": ("in/docs.jsonl", "in", "out"),
    "store is the output": ("in", "both", "both"),
    "output in the store": ("in", "store", "store/out"),
    "store in the output": ("in", "out/store", "out"),
    "the working directory is the store": ("in", ".", "out"),
    "the working directory is the output": ("in", "store", "."),
    "an empty store": ("in", "", "out"),
    "an empty output": ("in", "store", ""),
}
NAMES = [
    "curated.jsonl", "curated-00003.jsonl", "curated_meta.json", "order.npy", "rejects.jsonl", "notes.txt",
    ".bashrc", ".tmp-0123456789abcdef", ".tmp-journal.json", "ordering_report.html", "embeddings.npy",
    "format.json", "lease", "documents/mine.arrow", "stages/clusters/mine.txt", "fits/mine", "pins/mine.json",
    "receipts/mine.txt", "results/mine.npy", "scratch/mine", "outputs/mine", "views/a.b.c", "deep/er/file",
]  # fmt: skip
COMMANDS = ["run", "plan", "prune", "prune --dry-run", "summary", "report"]


def write_config(folder: Path, given: str, store: str, output: str) -> Path:
    config = folder / "divorder.toml"
    config.write_text(
        small_toml(input={"paths": [given]}, store={"path": store}, output={"path": output}), encoding="utf-8"
    )
    return config


def divorder(config: Path, command: str) -> tuple[int, str]:
    """Exit status and what it says."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = main(["--config", str(config), *command.split()])
    return status, said.getvalue()


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a run has ended: a store and an output to start from, which saves a second an example."""
    top = tmp_path_factory.mktemp("done")
    write_jsonl(top / "in/docs.jsonl", topic_records(10))
    assert divorder(write_config(top, "in", "store", "out"), "run")[0] == 0
    return top


@settings(
    max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    places=st.sampled_from(sorted(PLACES)),
    strangers=st.lists(
        st.tuples(
            st.sampled_from(["", "in", "store", "out", "data", "data/store", "both"]), st.sampled_from(NAMES)
        ),
        max_size=6,
    ),
    commands=st.lists(st.sampled_from(COMMANDS), min_size=1, max_size=3),
    start=st.booleans(),
)
@example(places="apart", strangers=[("store", "lease")], commands=["run"], start=False)
def test_no_command_touches_what_is_not_its_own(
    places: str,
    strangers: list[tuple[str, str]],
    commands: list[str],
    start: bool,
    done: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    top = tmp_path_factory.mktemp("strangers")
    if start:
        for folder in ("store", "out"):
            shutil.copytree(done / folder, top / folder)
    own = {path for path in top.rglob("*") if path.is_file()}
    for folder in ("in", "data"):
        write_jsonl(top / folder / "docs.jsonl", topic_records(10))
    for folder, name in strangers:
        path = top / folder / name
        if path not in own and not any(parent in own for parent in path.parents) and not path.is_dir():
            with contextlib.suppress(FileExistsError, NotADirectoryError):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f"mine: {folder}/{name}")
    config = write_config(top, *PLACES[places])
    mine = {path: path.read_bytes() for path in top.rglob("*") if path.is_file() and path not in own}
    before = os.getcwd()
    os.chdir(top)
    try:
        for command in commands:
            status, said = divorder(config, command)
            assert status == 0 or said.count("divorder: ") == 1, said
            changed = {path for path, data in mine.items() if not path.is_file() or path.read_bytes() != data}
            assert not changed, (command, said)
    finally:
        os.chdir(before)
        shutil.rmtree(top)


@pytest.mark.parametrize(
    "places", sorted(set(PLACES) - {"apart", "all below the input", "a glob over everything"})
)
def test_places_that_overlap_are_refused_before_anything_is_written(places: str, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in/docs.jsonl", topic_records(10))
    config = write_config(tmp_path, *PLACES[places])
    there = sorted(tmp_path.rglob("*"))
    for command in COMMANDS:
        status, said = divorder(config, command)
        assert status == 1, (command, said)
        assert said.count("\n") == 1 and "Traceback" not in said
    assert sorted(tmp_path.rglob("*")) == there


def test_all_that_a_run_stores_is_known_as_its_own(done: Path) -> None:
    """What `prune` may remove is told by its name: a new kind of file has to be among the names."""
    from dagster_divorder.store.local import LocalStore

    store = LocalStore(load_settings(done / "divorder.toml", {}).store.path)
    there = {path.relative_to(store.root).as_posix() for path in store.root.rglob("*") if path.is_file()}
    assert there == set(store.files())
