"""Where each value of a trait lies along the dataset: a strip a value, before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.view.report.html import Markup, fill
from dagster_divorder.view.report.picture import CURATED, ORIGINAL, strip
from dagster_divorder.view.report.section import Section
from dagster_divorder.view.report.table import Column, table
from dagster_divorder.view.report.words import clip, listed, percent, percent_fixed

NAME = 60
"""Characters of a value's name."""

_STRIP = '<img class="strip" src="{{ picture }}" alt="{{ alt }}">'


@dataclass(frozen=True, eq=False)
class Strips:
    """A trait along the dataset. names: of the values shown, J. share: float (J,), of the corpus's tokens.

    original, curated: float (C, J), shares in C slices of the dataset in each order (`cluster_mix`).
    """

    trait: str
    names: Sequence[str]
    share: NDArray[np.float64]
    original: NDArray[np.float32]
    curated: NDArray[np.float32]


def section(traits: Sequence[Strips], moving: Sequence[str] = ()) -> Section:
    """A table a trait. moving: those whose mix is to move."""
    tables = [
        table(
            f"{of.trait}: share of the tokens at each position, from the first token (left) to the last (right)",
            [Column(of.trait, text=True), Column("of all tokens"), *STRIP_COLUMNS],
            [
                (clip(name, NAME) or "(empty)", percent_fixed(float(of.share[value])), *strips_of(of, value))
                for value, name in enumerate(of.names)
            ],
        )
        for of in traits
    ]
    return Section(
        "sources",
        "Where every source lies" if len(traits) == 1 else "Where every value lies",
        "The darker, the more of the tokens there: before, a source is often one block; after, one that is balanced is "
        f"everywhere in the same strength{_but(moving)}.",
        Markup("").join(tables),
    )


def _but(moving: Sequence[str]) -> str:
    return f", but for {listed(list(moving))}, whose mix is to move" if moving else ""


STRIP_COLUMNS = [Column("original order", text=True), Column("curated order", text=True)]


def strips_of(of: Strips, value: int) -> tuple[Markup, Markup]:
    """The two strips of a value, with what they show in words."""
    return (
        _strip("original", of.original[:, value], ORIGINAL),
        _strip("curated", of.curated[:, value], CURATED),
    )


def _strip(name: str, shares: NDArray[np.floating], colour: tuple[int, int, int]) -> Markup:
    alt = (
        f"{name} order: from {percent(float(shares.min()))} to {percent(float(shares.max()))} of a slice, in "
        f"{int((shares > 0).sum())} of {len(shares)} slices"
    )
    return fill(_STRIP, picture=strip(shares, colour), alt=alt)
