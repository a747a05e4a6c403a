"""Whatever JSON the state or the format file holds, with a hash that is right: a run ends well or in a sentence, and
touches nothing outside the store and the output."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_divorder import run_all
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import DivOrderError
from dagster_divorder.settings import load_settings
from dagster_divorder.store.state import signed
from tests.conftest import examples, topic_records, write_jsonl
from tests.faults.conftest import CONFIG

HOSTILE = [
    "../../victim",
    "/etc/hostname",
    "..",
    "",
    "stages",
    "fits/../../victim",
    "lease",
    "a\0b",
    "0" * 32,
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 2**70) | st.floats() | st.sampled_from(HOSTILE),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "view"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forged")
    write_jsonl(folder / "in/0.jsonl", topic_records(10))
    (folder / "divorder.toml").write_text(CONFIG)
    (folder / "victim").write_text("mine")
    run_all(load_settings(folder / "divorder.toml", {}), Silent())
    return folder


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where in a JSON value something stands: the ways to it."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(way for key, of in inner for way in places(of, (*path, key)))]


def changed(value: Any, way: tuple[Any, ...], new: Any, remove: bool) -> Any:
    if not way:
        return new
    made = value.copy()
    if remove and len(way) == 1:
        del made[way[0]]
    else:
        made[way[0]] = changed(value[way[0]], way[1:], new, remove)
    return made


@settings(max_examples=examples(20), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), new=VALUES, remove=st.booleans(), append=st.booleans())
def test_a_state_of_any_shape_ends_well_or_in_a_sentence(
    data: st.DataObject,
    new: Any,
    remove: bool,
    append: bool,
    done: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    top = tmp_path_factory.mktemp("run")
    shutil.copytree(done, top, dirs_exist_ok=True)
    try:
        store = top / "store"
        name = data.draw(st.sampled_from(["format.json", "state.json", "state.json", "state.json"]))
        plain = orjson.loads((store / name).read_bytes())
        plain.pop("check", None)
        forged = changed(plain, data.draw(st.sampled_from(places(plain))), new, remove)
        try:
            content = orjson.dumps(forged)
        except (orjson.JSONEncodeError, UnicodeEncodeError):
            return  # no JSON
        (store / name).write_bytes(signed(content) if name == "state.json" else content)
        if append:
            write_jsonl(top / "in/1.jsonl", topic_records(2, start=100))
        try:
            run_all(load_settings(top / "divorder.toml", {}), Silent())
        except DivOrderError as error:
            assert str(error)
        assert (top / "victim").read_text() == "mine"
        assert sorted(os.listdir(top)) == ["curated", "divorder.toml", "exports", "in", "store", "victim"]
    finally:
        shutil.rmtree(top)


def test_a_receipt_that_names_no_file_is_as_none(done: Path, tmp_path: Path) -> None:
    shutil.copytree(done, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "store/state.json"
    forged = orjson.loads(path.read_bytes())
    del forged["check"]
    forged["receipts"]["cluster_table"]["files"] = {}
    path.write_bytes(signed(orjson.dumps(forged)))
    write_jsonl(tmp_path / "in/1.jsonl", topic_records(2, start=100))
    made = run_all(load_settings(tmp_path / "divorder.toml", {}), Silent())
    assert "table" in made["cluster_table"].files
