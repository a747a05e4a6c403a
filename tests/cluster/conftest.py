"""What the tests of object storage share."""

from tests.cluster.weed import new_place, proxy, weed

__all__ = ["new_place", "proxy", "weed"]
