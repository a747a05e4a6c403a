"""Ray: the results of a loop, in order; what is killed costs its own tasks; a cluster that cannot do it is refused."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dagster_divorder.corpus import cut, inputs
from dagster_divorder.engine import ray as ray_engine
from dagster_divorder.engine.progress import Silent
from dagster_divorder.engine.ray import RayEngine
from dagster_divorder.errors import InputError, SettingsError, WorkerError
from dagster_divorder.pipeline import per_fragment
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, run_all
from dagster_divorder.stages.output import curated_output, exports
from dagster_divorder.write import permute
from dagster_divorder.write.exports import rows
from tests.conftest import ROOT, topic_records, write_jsonl
from tests.engine.work import (
    die_at_three,
    die_once,
    leave_a_byte,
    meet,
    process_after,
    refuse_three,
    square,
)

NODE = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
SOON = {"health_check_period_ms": 500}
"""A dead node, which refuses to be asked, is noticed in three seconds, not in sixteen; one that is slow is not dead."""


class Nodes:
    """A cluster, and the nodes of it beside its head."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        # Workers find the package where this process has it.
        os.environ["PYTHONPATH"] = str(ROOT)
        self.cluster = Cluster(initialize_head=True, head_node_args={**NODE, "_system_config": SOON})
        self.second = self.add()

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self, **options: Any) -> Any:
        return self.cluster.add_node(**NODE, **options)

    def kill(self, node: Any) -> None:
        """As a power cut does."""
        self.cluster.remove_node(node, allow_graceful=False)


@pytest.fixture(scope="session")
def ray_nodes() -> Iterator[Nodes]:
    pytest.importorskip("ray", reason="pip install 'dagster-divorder[ray]'")
    nodes = Nodes()
    yield nodes
    nodes.cluster.shutdown()


@pytest.fixture
def ray_address(ray_nodes: Nodes) -> Iterator[str]:
    """Of a cluster that this process has not joined, before nor after."""
    import ray

    yield ray_nodes.address
    assert not ray.is_initialized()


pytestmark = [pytest.mark.cluster, pytest.mark.slow]

nothing = partial(str, "")
"""What workers lack."""


@pytest.fixture
def engine(ray_address: str) -> Iterator[RayEngine]:
    with closing(RayEngine(ray_address, 0, nothing)) as engine:
        yield engine


def test_results_come_in_order_from_all_nodes(engine: RayEngine, tmp_path: Path) -> None:
    assert (engine.workers, engine.gpus) == (2, 0)
    assert list(engine.each(square, range(40))) == [number * number for number in range(40)]
    assert list(engine.each(square, [])) == []
    # Nodes of one core each have no more to give.
    for threads in (1, 8):
        one, other = str(tmp_path / f"one {threads}"), str(tmp_path / f"other {threads}")
        found = list(engine.each(meet, [(one, other), (other, one)], threads=threads))
        assert len({node for node, _ in found}) == 2
        assert {threads for _, threads in found} == {"1"}


def test_an_error_comes_back_as_itself_and_ends_the_other_calls(engine: RayEngine) -> None:
    with pytest.raises(InputError, match="three is refused") as caught:
        list(engine.each(refuse_three, range(10)))
    assert "in a worker process on node " in caught.value.__notes__[0]
    results = engine.each(process_after, [0.0, *[600.0] * 5])
    next(results)
    results.close()
    assert list(engine.each(square, range(4))) == [0, 1, 4, 9]


def test_a_call_whose_worker_dies_is_made_again_a_few_times(engine: RayEngine, tmp_path: Path) -> None:
    items = [str(tmp_path / name) for name in "abc"]
    assert list(engine.each(die_once, items)) == items
    with pytest.raises(WorkerError, match="lost 3 times, the last time by WorkerCrashedError"):
        list(engine.each(die_at_three, range(5)))


def test_a_node_that_is_killed_costs_its_own_calls(
    engine: RayEngine, ray_nodes: Nodes, tmp_path: Path
) -> None:
    # Both nodes have a worker from here on.
    assert list(engine.each(meet, [(str(tmp_path / "a"), str(tmp_path / "b"))[::way] for way in (1, -1)]))
    items = [str(tmp_path / f"{number}") for number in range(40)]
    results = engine.each(leave_a_byte, items)
    finished = [next(results) for _ in range(4)]
    ray_nodes.kill(ray_nodes.second)
    try:
        assert [*finished, *results] == items
    finally:
        ray_nodes.second = ray_nodes.add()
    assert {Path(item).stat().st_size for item in finished} == {1}


def test_what_no_node_has_is_not_waited_for(engine: RayEngine) -> None:
    with pytest.raises(SettingsError, match=r"no node .* \(CPU 1, GPU 1\)"):
        next(engine.each(square, [1], gpus=1))


# Runs -----------------------------------------------------------------------------------------------------------


TIMED = ("state.json", "states", "format.json", "curated_meta.json", "manifest.json")
"""What tells when and how fast a run was, or the store's id; hashes of all else are in it."""


def tree(folder: Path) -> dict[str, bytes]:
    """Files that a run makes, but TIMED."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and {path.name, path.relative_to(folder).parts[0]}.isdisjoint(TIMED)
    }


def test_a_run_gives_the_bytes_of_a_local_one(
    ray_address: str,
    tmp_path: Path,
    make_settings: Callable[..., Settings],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_jsonl(tmp_path / "docs.jsonl", topic_records())
    monkeypatch.setattr(inputs, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(cut, "MEAN_LINES", 20)
    monkeypatch.setattr(cut, "HARD_LINES", 50)
    monkeypatch.setattr(per_fragment, "WORKER_BYTES", 1)
    for module, name, value in (
        (rows, "MAPPED_BYTES", 0),
        (rows, "WORKERS_FROM_BYTES", 0),
        (curated_output, "MEMORY_BYTES", 0),
        (permute, "BUCKET_BYTES", 1000),
        (permute, "PIECE_BYTES", 0),
        (exports, "EXPORT_SHARD_BYTES", 20_000),
    ):
        monkeypatch.setattr(module, name, value)
    found: list[dict[str, bytes]] = []
    for address in ("local", ray_address):
        settings = make_settings(
            engine={"address": address},
            order={"traits": {"cluster": 1.0, "source": 1.0}},
            input={"id_field": "source"},
            exports={"formats": ["olmo", "mds"], "path": tmp_path / "exports"},
        )
        run_all(settings, Silent())
        found.append({})
        for folder in ("store", "curated", "exports"):
            found[-1] |= tree(tmp_path / folder)
            shutil.rmtree(tmp_path / folder)
    local, ray = found
    assert len(local) > 40
    assert sum(name.endswith(".mds") for name in local) > 2
    assert [name for name in local | ray if local.get(name) != ray.get(name)] == []


# Clusters that cannot do it -------------------------------------------------------------------------------------


def test_an_address_without_ray_is_told_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(
        SettingsError, match=f"cluster at {here} cannot be joined: .*refused; .*ray start --head"
    ):
        RayEngine(here, 0, nothing)
    monkeypatch.setenv("RAY_ADDRESS", here)
    with pytest.raises(SettingsError, match=f"cluster at {here} cannot be joined"):
        RayEngine(None, 0, nothing)


def test_workers_with_another_version_are_named(ray_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "__version__", "0.0.1")
    with pytest.raises(
        SettingsError, match=r"node \S+ of the Ray cluster has dagster-divorder .* 0.0.1; install"
    ):
        RayEngine(ray_address, 0, nothing)


def test_workers_that_see_another_store_are_named(
    ray_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dagster_divorder.pipeline.run import Run
    from dagster_divorder.store.local import LocalStore

    class Elsewhere(LocalStore):
        """A folder of this machine alone: other machines find another at the same place."""

        def __reduce__(self) -> tuple[Any, ...]:
            return LocalStore, (str(tmp_path / "other"),)

    LocalStore(tmp_path / "other").open()
    settings = Settings.model_validate({"engine": {"address": ray_address}})
    with pytest.raises(SettingsError, match=r"node \S+ of the Ray cluster finds another store at .* mount"):
        _ = Run(settings, Elsewhere(tmp_path / "here").open(), GRAPH, Silent()).engine
