"""What the tests of object storage and of Ray share."""

from tests.cluster.ray_cluster import ray_address, ray_nodes

__all__ = ["ray_address", "ray_nodes"]
