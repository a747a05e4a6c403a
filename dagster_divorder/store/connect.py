"""The store at a place."""

from __future__ import annotations

import os

from dagster_divorder.store.base import Store
from dagster_divorder.store.local import LocalStore


def store_at(place: str | os.PathLike[str]) -> Store:
    """The store at a folder, not yet looked at."""
    return LocalStore(place)
