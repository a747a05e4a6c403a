"""What the tests of files, here and at URLs, share: places of every kind."""

from tests.cluster.weed import new_place, proxy, weed
from tests.store.remote import memory, place
from tests.store.servers import hub

__all__ = ["hub", "memory", "new_place", "place", "proxy", "weed"]
