"""Warns when a new order changes outputs that a trainer may have read (`order.frozen_tokens`).

Nothing tells whether a trainer has read an output. If the setting is unset, one sentence says which output changes,
from where, and what to set: `choice` before the run (plan, sensor), `Reordered` after it (stages).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from dagster_divorder.settings import Settings
from dagster_divorder.settings.places import Place
from dagster_divorder.store.manifests import EXPORT_MANIFEST
from dagster_divorder.store.output_manifests import MANIFEST, read_manifest
from dagster_divorder.write.exports import FORMATS

Unit = Literal["row", "record"]
NONE_READ = "if none has, set order.frozen_tokens = 0"


def in_training_order(settings: Settings) -> list[tuple[Place, str]]:
    """(folder, name of its manifest) of every output whose rows lie in the order of training: the exports; without
    exports, the curated output if its records are not packed."""
    if settings.exports.formats:
        return [(settings.exports.path / name, EXPORT_MANIFEST) for name in settings.exports.formats]
    return [] if settings.packing.packs else [(settings.output.path, MANIFEST)]


def choice(settings: Settings) -> str:
    """Which outputs a new order changes, and what to set before the run; "" if the settings say what stays
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
        f"order.frozen_tokens is unset, so a new order changes {_listed(places)} from the beginning: if a trainer has "
        f"read it, `divorder freeze --step N` before the run keeps the rows of N steps; {NONE_READ}"
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


@dataclass(frozen=True, slots=True)
class Reordered:
    """Outputs with a new order. first: the first row (or record) that differs, in the order of training. of: the number
    of rows an epoch before. Both are None if the store no longer has the order before."""

    places: Sequence[str]
    unit: Unit = "row"
    first: int | None = None
    of: int | None = None

    @property
    def figures(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def change(self) -> str:
        """What changed."""
        if self.first is None:
            change = f"may have changed from the first {self.unit} on"
        else:
            change = f"changed from {self.unit} {self.first:,} of {self.of:,} on"
        return f"{_listed(self.places)} {change}, and order.frozen_tokens is unset"

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return (
            f"if a trainer has read the earlier {self.unit}s, restore the earlier input and settings, run, run "
            f"`divorder freeze --step N`, then run with the new input and settings; {NONE_READ}"
        )

    @property
    def sentence(self) -> str:
        return f"{self.change}: {self.remedy}"


def _listed(places: Sequence[str]) -> str:
    return " and ".join(places)
