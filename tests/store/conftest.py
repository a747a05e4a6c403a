"""What the tests of files, here and at URLs, share: places of every kind."""

from tests.cluster.weed import new_place, proxy, weed
from tests.store.remote import memory, place

__all__ = ["memory", "new_place", "place", "proxy", "weed"]
