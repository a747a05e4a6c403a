"""An object store and a Ray cluster for the tests of this folder, and a place in the store for each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from tests.cluster.proxy import Proxy
from tests.cluster.ray_cluster import ray_address, ray_nodes
from tests.cluster.weed import BUCKET, KEY, SECRET, Weed

__all__ = ["new_place", "proxy", "ray_address", "ray_nodes", "weed"]

_numbers = itertools.count()


@pytest.fixture(scope="session")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weed]:
    """An S3 server."""
    folder = tmp_path_factory.mktemp("weed") / "data"
    folder.mkdir()
    server = Weed(folder).start()
    yield server
    server.kill()


@pytest.fixture
def proxy(
    weed: Weed, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Proxy]:
    """A proxy before it, to which the environment leads with sound credentials."""
    proxy = Proxy(weed.url).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    yield proxy
    proxy.stop()


@pytest.fixture
def new_place(proxy: Proxy) -> Callable[[], str]:
    """A URL below which nothing lies, another one a call."""
    return lambda: f"s3://{BUCKET}/{next(_numbers)}/store"
