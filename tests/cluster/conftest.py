"""What the tests of object storage and of Ray share."""

from tests.cluster.ray_cluster import ray_address, ray_nodes
from tests.cluster.weed import new_place, proxy, weed

__all__ = ["new_place", "proxy", "ray_address", "ray_nodes", "weed"]
