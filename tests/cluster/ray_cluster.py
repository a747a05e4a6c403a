"""A Ray of two nodes on this machine, one core each, that tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
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
