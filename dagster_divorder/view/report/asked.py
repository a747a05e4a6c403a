"""What was asked: the settings that decide the order, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dagster_divorder.settings import Settings
from dagster_divorder.view.report.html import fill
from dagster_divorder.view.report.section import Section
from dagster_divorder.view.report.words import clip, listed, number, percent

FILES = 5
"""Input files that are named."""

NAME = 40
"""Characters of a value's name."""

_ASKED = """\
<dl class="asked">
{% for term, words in items %}
<div><dt>{{ term }}</dt><dd>{{ words }}</dd></div>
{% endfor %}
</dl>
"""

_VECTORS = {
    "shallow": "the base model’s token vectors, pooled over each document",
    "deep": "hidden states of",
    "external": "vectors of your own, from",
}
_PACKED = {
    "concat": "documents are laid end to end and cut where a sequence ends",
    "best_fit": "only documents longer than a sequence are cut; what does not fill up is padded",
    "related": "similar documents share a sequence",
}


def section(settings: Settings, space: str, k: int, files: list[str]) -> Section:
    """space: the kind of vectors that were clustered. k: number of clusters. files: of the input."""
    return Section(
        "asked",
        "What was asked",
        "The settings that decide the order, in words.",
        fill(_ASKED, items=_items(settings, space, k, files)),
    )


def _items(settings: Settings, space: str, k: int, files: list[str]) -> list[tuple[str, str]]:
    return [
        ("Input", _input(files)),
        ("Base model", _model(settings)),
        ("Topics", _topics(settings, space, k)),
        ("Mix to keep", _mix(settings)),
        ("Documents", _documents(settings)),
        ("Sequences", _sequences(settings)),
        ("Seed", str(settings.seed)),
    ]


def _input(files: list[str]) -> str:
    named = ", ".join(files[:FILES])
    return named if len(files) <= FILES else f"{named} and {number(len(files) - FILES)} more files"


def _model(settings: Settings) -> str:
    model = settings.model
    if model.base == "bootstrap":
        size = f"{number(model.vocab_size)} tokens, {number(model.dim)} dimensions"
        return f"bootstrap, trained on this corpus: up to {size}"
    return model.base


def _topics(settings: Settings, space: str, k: int) -> str:
    words = _VECTORS[space]
    if space == "deep":
        words += f" {settings.deep_model}"
    elif space == "external":
        words += f" {settings.embedding.path}"
    elif settings.embedding.pooling == "idf":
        words += ", rare tokens weighing more"
    chosen = " (chosen by calibration)" if settings.clusters.k == "auto" else ""
    return f"{number(k)} clusters{chosen} of {words}"


def _mix(settings: Settings) -> str:
    order = settings.order
    still = [
        f"{trait} (weight {weight:g})" for trait, weight in order.traits.items() if trait not in order.targets
    ]
    words = [f"every window shall carry the corpus’s own mix of {listed(still)}"] if still else []
    words += [
        f"the mix of {trait} (weight {order.traits[trait]:g}) moves with progress: {_moves(table)}, as far as the "
        "corpus has the tokens"
        for trait, table in order.targets.items()
    ]
    if "length" in order.traits:
        words.append(f"lengths in up to {number(order.length_bins)} bins")
    return "; ".join(words)


def _moves(table: Mapping[str, Sequence[float]]) -> str:
    """The shares that are asked for: `web 80 %, 40 % at 0 %, 100 % of the tokens`."""
    at = ", ".join(percent(progress) for progress in table["progress"])
    shares = [
        f"{clip(value, NAME)} {', '.join(percent(share) for share in column)}"
        for value, column in table.items()
        if value != "progress"
    ]
    return f"{'; '.join(shares)} at {at} of the tokens"


def _documents(settings: Settings) -> str:
    order = settings.order
    words: list[Any] = [f"ordered by the strategy “{order.strategy}”"]
    if order.frozen_tokens:
        words.append(f"the first {number(order.frozen_tokens)} tokens kept as a trainer has consumed them")
    if order.separate_copies:
        words.append("copies of a text as far apart as possible")
    return "; ".join(words)


def _sequences(settings: Settings) -> str:
    sequence, packing = settings.sequence, settings.packing
    words = [
        f"of {number(sequence.length)} tokens, packed by “{packing.method}”: {_PACKED[packing.method]}",
        f"ordered by “{sequence.strategy}” in batches of {number(sequence.batch)}",
    ]
    if packing.piece_tokens:
        words.append(f"documents cut into pieces of {number(packing.piece_tokens)} tokens first")
    if packing.end_of_text:
        words.append("an end-of-text token after every document")
    if sequence.epochs > 1:
        words.append(f"{number(sequence.epochs)} epochs, each in an order of its own")
    return "; ".join(words)
