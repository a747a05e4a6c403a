"""The store at a place."""

from __future__ import annotations

import os

from dagster_divorder.errors import InputError
from dagster_divorder.settings.places import checked_url, is_url
from dagster_divorder.settings.sections import Store as StoreSettings
from dagster_divorder.store.base import Store
from dagster_divorder.store.local import LocalStore


def store_at(place: str | os.PathLike[str]) -> Store:
    """The store at a folder or a URL, not yet opened."""
    if not is_url(os.fspath(place)):
        return LocalStore(place)
    from dagster_divorder.store.objects import ObjectStore

    try:
        url = checked_url(os.fspath(place))
    except ValueError as error:
        raise InputError(f"this URL cannot hold a store: {error}") from None
    return ObjectStore(url)


def store_of(settings: StoreSettings) -> Store:
    """The store of these settings, not yet opened."""
    return store_at(settings.path)
