"""Places of every kind, and what lies there; object stores in memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import obstore
import pytest
from obstore.store import MemoryStore

from dagster_divorder.settings.places import Place, Url, as_place
from dagster_divorder.store import sources
from dagster_divorder.store.manifests import NEIGHBOUR, neighbour
from dagster_divorder.store.sources import bucket, dataset
from tests.store.servers import commits


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, MemoryStore]:
    """Every bucket is in memory, made when it is first named."""
    stores: dict[str, MemoryStore] = {}
    sources._copy.cache_clear()  # each store in memory counts its tags from 0
    monkeypatch.setattr(sources, "_connected", lambda origin, *_: stores.setdefault(origin, MemoryStore()))
    return stores


SERVER = pytest.param("server", marks=[pytest.mark.cluster, pytest.mark.slow])
OBJECTS = ["memory", SERVER]
"""Object stores: in this process, and an S3 server."""


@pytest.fixture(params=["folder", *OBJECTS])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A place of each kind where nothing lies yet."""
    if request.param == "folder":
        return tmp_path / "place"
    if request.param == "server":
        return Url(request.getfixturevalue("new_place")())
    request.getfixturevalue(request.param)
    return Url("s3://bucket/place" if request.param == "memory" else "hf://datasets/org/corpus/place")


def put(at: str | Path, data: bytes) -> None:
    """Write a file, of whatever place."""
    target = as_place(str(at))
    if isinstance(target, Path):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    elif target.scheme == "hf":
        commits.append({**commits[-1], dataset(target)[2]: data})
    else:
        store, key = bucket(target)
        obstore.put(store, key, data)


def objects(place: str | Path) -> dict[str, bytes]:
    """Content of all files below a place, by the rest of their names, and below its neighbour, as `_/...`."""
    target = as_place(str(place))
    return _below(target, "") | _below(neighbour(target), NEIGHBOUR)


def _below(place: Place, prefix: str) -> dict[str, bytes]:
    if isinstance(place, Path):
        files = [path for path in place.rglob("*") if path.is_file()]
        return {prefix + path.relative_to(place).as_posix(): path.read_bytes() for path in files}
    store, key = bucket(place)
    paths = [meta["path"] for chunk in obstore.list(store, key) for meta in chunk]
    return {prefix + path.removeprefix(f"{key}/"): bytes(obstore.get(store, path).bytes()) for path in paths}
