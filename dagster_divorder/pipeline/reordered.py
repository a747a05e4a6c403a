"""Outputs that a trainer may have read, and what is said before their order changes.

Nothing tells whether a trainer has read an output. While `order.frozen_tokens` is unset, a run refuses to write one in
another order (`refuse_to_reorder` in stages/mix/consumed.py, once the new order is known), and a plan says so.
"""

from __future__ import annotations

from collections.abc import Iterable

from dagster_divorder.settings import Settings
from dagster_divorder.settings.places import Place
from dagster_divorder.store.manifests import EXPORT_MANIFEST
from dagster_divorder.store.output_manifests import MANIFEST, read_manifest
from dagster_divorder.write.exports import FORMATS

SAY_WHAT_WAS_READ = (
    "if no trainer has read it, set order.frozen_tokens = 0; if one has, `divorder freeze --step N` keeps the rows of "
    "N steps"
)


def in_training_order(settings: Settings) -> list[tuple[Place, str]]:
    """(folder, name of its manifest) of every output whose rows lie in the order of training: the exports; without
    exports, the curated output if its records are not packed."""
    if settings.exports.formats:
        return [(settings.exports.path / name, EXPORT_MANIFEST) for name in settings.exports.formats]
    return [] if settings.packing.packs else [(settings.output.path, MANIFEST)]


def refusal_ahead(settings: Settings) -> str:
    """Which outputs a run would refuse to write in another order, and what to set; "" if the settings say what stays
    (`order.frozen_tokens`, `order.append`) or there is no output.

    Raises:
        StoreError: a manifest cannot be read.
    """
    if settings.order.says_what_stays:
        return ""
    places = [
        str(place)
        for place, manifest in in_training_order(settings)
        if read_manifest(place, manifest, replaced=True)
    ]
    if not places:
        return ""
    return (
        f"order.frozen_tokens is unset, so a run that changes the order of {' and '.join(places)} is refused: "
        f"{SAY_WHAT_WAS_READ}"
    )


def moved_by_appends(settings: Settings, formats: Iterable[str]) -> str:
    """Which exports an append writes again although `order.append` is "extend"; "" if none. formats: those that are
    written."""
    if not (settings.order.extends and settings.exports.layout):
        return ""
    names = [name for name in formats if FORMATS[name].contiguous_ranks]
    return (
        f"{', '.join(names)}: rows are laid out for ranks and workers, so an append moves all of them, and all files "
        "are written again"
        if names
        else ""
    )
