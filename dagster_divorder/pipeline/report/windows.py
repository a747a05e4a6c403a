"""The worst windows of an order, with the documents that are in them.

Of batches at every position the worst one of each trait, as diversity_metrics found it; of the sequences those whose
clusters differ most from the corpus's. The texts of a few documents of each are read from the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dagster_divorder.core.metrics.packed import runs_in_order
from dagster_divorder.core.metrics.worst_windows import sequence_variation, window_contents
from dagster_divorder.core.packing import sequence_counts
from dagster_divorder.pipeline.report.order import Ordered
from dagster_divorder.pipeline.sample import beginnings

if TYPE_CHECKING:
    from dagster_divorder.view.report.section import Section
    from dagster_divorder.view.report.worst_windows import OneSided, Shown, Window

TRAITS, DOCUMENTS, SEQUENCES = 4, 3, 5
"""Traits whose worst batch is shown, documents of each, and sequences that are shown, each with another document."""
LOOKED_AT = 1000
"""Sequences among which those are looked for: a book alone fills hundreds."""


def worst_windows(of: Ordered, batches: dict[str, dict[str, Any]]) -> Section | None:
    """The section; None where there is no token.

    batches: by trait, the deviation of batches of the sequences at every position (`WindowDeviation`).
    """
    from dagster_divorder.view.report.worst_windows import section

    if not len(of.packed):
        return None
    order = of.run.settings.order
    still = [trait for trait in order.traits if trait not in order.targets][:TRAITS]
    windows = [_worst_batch(of, trait, batches[trait]) for trait in still if not batches[trait]["partial"]]
    runs = np.diff(of.packed.indptr)
    alone = int((runs == 1).sum())
    return section(windows, _worst_sequences(of), alone, len(of.packed), list(order.targets))


def _worst_batch(of: Ordered, trait: str, batch: dict[str, Any]) -> Window:
    from dagster_divorder.view.report.words import count, percent
    from dagster_divorder.view.report.worst_windows import Window

    total = int(of.packed.length.sum())
    epoch, start = divmod(batch["worst_start"], total)
    # It may run on into the next epoch.
    runs = np.concatenate(
        [runs_in_order(of.packed.indptr, order)[0] for order in of.epochs[epoch : epoch + 2]]
    )
    found, inside = window_contents(runs, of.packed.length, start, batch["window_tokens"])
    documents, held = _by_document(of.packed.document[found], inside)
    codes, values = of.traits.codes[trait], of.traits.sizes()[trait]
    there = np.bincount(codes[documents], held, values) / held.sum()
    corpus = np.bincount(codes, of.traits.tokens, values) / of.traits.tokens.sum()
    value = int(np.abs(there - corpus).argmax())
    over = there[value] > corpus[value]
    chosen = codes[documents] == value if over else np.ones(len(documents), bool)
    where = f" of epoch {epoch + 1}" if len(of.epochs) > 1 else ""
    says = (
        f"It starts at {percent(start / total)} of the tokens{where} and holds "
        f"{count(len(documents), 'document')}. {_named(of, trait, value)} makes up "
        f"{percent(float(there[value]))} of its tokens, but {percent(float(corpus[value]))} of the corpus’s. "
        + ("The largest documents of that kind:" if over else "The largest documents in it:")
    )
    return Window(f"The worst batch for {trait}", says, _largest(of, documents[chosen], held[chosen]))


def _worst_sequences(of: Ordered) -> list[OneSided]:
    from dagster_divorder.view.report.worst_windows import OneSided

    labels, clusters = of.traits.codes["cluster"], of.traits.sizes()["cluster"]
    counts, _ = sequence_counts(of.packed, {"cluster": labels}, {"cluster": clusters})
    variation = sequence_variation(counts)
    place = np.empty(len(of.packed), np.int64)
    place[of.epochs[0]] = np.arange(len(place))
    found: dict[int, OneSided] = {}
    # As a trainer meets them, where they are equally far off.
    for sequence in np.lexsort((place, -variation))[:LOOKED_AT].tolist():
        runs = slice(of.packed.indptr[sequence], of.packed.indptr[sequence + 1])
        documents, held = _by_document(of.packed.document[runs], of.packed.length[runs])
        largest = int(of.view.document_row[documents[held.argmax()]])
        if largest in found:
            continue
        found[largest] = OneSided(
            place=int(place[sequence]),
            variation=float(variation[sequence]),
            clusters=int(counts.indptr[sequence + 1] - counts.indptr[sequence]),
            documents=len(documents),
            largest=_largest(of, documents, held)[0],
        )
        if len(found) == SEQUENCES:
            break
    return list(found.values())


def _by_document(documents: np.ndarray, inside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(documents int64 (n,), tokens of each): runs of the same document are one, in the order of their first."""
    unique, first, which = np.unique(documents, return_index=True, return_inverse=True)
    held = np.zeros(len(unique), np.int64)
    np.add.at(held, which, inside)
    order = np.argsort(first)
    return unique[order], held[order]


def _largest(of: Ordered, documents: np.ndarray, held: np.ndarray) -> list[Shown]:
    """The documents that have the most tokens there, of equal ones the first."""
    from dagster_divorder.view.report.words import READ, clip, count, number
    from dagster_divorder.view.report.worst_windows import Shown

    chosen = np.argsort(-held, kind="stable")[:DOCUMENTS]
    documents, held = documents[chosen], held[chosen]
    texts = beginnings(of.run.store, of.view, of.view.document_row[documents], READ).to_pylist()
    source = of.run.settings.input.source_field
    shown = []
    for document, text, tokens in zip(documents.tolist(), texts, held.tolist(), strict=True):
        whole = int(of.traits.tokens[document])
        facts = [count(tokens, "token") if tokens == whole else f"{number(tokens)} of {number(whole)} tokens"]
        facts.append(of.names[of.traits.codes["cluster"][document]])
        if source in of.categories:
            codes, names = of.categories[source]
            facts.append(clip(names[codes[document]], 60))
        shown.append(Shown(" · ".join(facts), text))
    return shown


def _named(of: Ordered, trait: str, value: int) -> str:
    """A trait's value in words, to begin a sentence."""
    from dagster_divorder.view.report.words import clip, number

    if trait == "cluster":
        return f"The cluster “{of.names[value]}”"
    if trait == "length":
        edges = [number(edge) for edge in of.edges["length"].tolist()]
        if not edges:
            return "Every length"
        if value == 0:
            return f"The length below {edges[0]} tokens"
        if value == len(edges):
            return f"The length of {edges[-1]} tokens and more"
        return f"The length from {edges[value - 1]} to below {edges[value]} tokens"
    return f"The {trait} “{clip(of.traits.names[trait][value], 60)}”"
