"""greedy_order: the order of the documents, by the strategy of `order.strategy`.

`order`, int64 (M,): output position -> item of the stream (`stages.mix.repeats`); without a mix, items are records.
What stays of the last plan comes first, then what its sequences have read; then everything unread, section by section
(`stages.order.sections`). `stretches` int64 (T + 1,): where stretches of one asked mix begin and end. `items` int64
(R,): the items that are left to pack, in order, those that are partly read included; not stored if they are the order.
`sections` int64 (K + 1,), `stretch` int64 (K,): where sections of these begin and end, and the stretch of each. The
same input, settings and seed give the same bytes.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from dagster_divorder.core.order import order
from dagster_divorder.core.order.items import document_items
from dagster_divorder.core.order.sections import section_seed
from dagster_divorder.core.order.traits import Traits
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Check, Finding, Made, WholeCorpus
from dagster_divorder.settings import Settings
from dagster_divorder.stages.mix.repeats import load_stream, stream_size
from dagster_divorder.stages.order.frozen import behind_beginning, load_frozen
from dagster_divorder.stages.order.sections import each_section, make_sections


class DocumentOrder(NamedTuple):
    """The arrays that the module describes; `items` are the order if it is not stored."""

    order: np.ndarray
    stretches: np.ndarray
    items: np.ndarray
    sections: np.ndarray
    stretch: np.ndarray


def load_order(run: Run) -> DocumentOrder:
    """The current order."""
    arrays = run.arrays("greedy_order", "order")
    return DocumentOrder(**{"items": arrays["order"], **arrays})


def _order_documents(run: Run) -> Made:
    settings, stream, frozen = run.settings, load_stream(run), load_frozen(run)
    traits = stream.traits
    run.progress.note(f"ordering {len(traits.tokens):,} documents ({settings.order.strategy})")
    made = make_sections(run, stream, frozen)
    order_section = partial(order_documents, settings=settings, strategy=settings.order.strategy)

    def part(number: int) -> tuple[Traits, int]:
        inside = np.arange(*made.bounds[number : number + 2])
        whole = len(inside) == len(made.items)
        return made.traits if whole else made.traits.take(inside), section_seed(settings.seed, number)

    orders = each_section(run, order_section, len(made.bounds) - 1, part)
    items = np.concatenate(
        [made.items[:0], *(made.items[begin:][of] for begin, of in zip(made.bounds, orders, strict=False))]
    )
    ends = made.bounds[1:][np.diff(made.stretch, append=-1) != 0]
    arrays = {
        "order": items,
        "sections": made.bounds,
        "stretch": made.stretch,
        "stretches": np.append(0, ends),
    }
    if frozen:
        given = np.zeros(len(traits.tokens), bool)
        given[frozen.documents] = True
        behind = items[~given[items]]
        given[behind] = True
        read = np.flatnonzero(~given)
        read = read[order_section((traits.take(read), settings.seed))]
        first = len(frozen.documents) + len(read)
        arrays["items"], arrays["order"] = items, np.concatenate([frozen.documents, read, behind])
        unpinned = np.append(0, np.cumsum(~np.isin(items, frozen.documents)))
        stretches = [frozen.document_stretches, [first], first + unpinned[ends]]
        arrays["stretches"] = np.unique(np.concatenate(stretches))
    if made.left_out:
        run.progress.note(
            f"{made.left_out:,} records were read in part, and their rests stay unread: {settings.mixed_trait} has no "
            "more share for them"
        )
    tokens = int(traits.tokens.sum())
    figures = {
        "strategy": settings.order.strategy,
        "traits": {trait: traits.sizes()[trait] for trait in settings.order.traits},
        "tokens": tokens,
        "frozen_documents": len(frozen.documents) if frozen else 0,
        "sections": len(made.bounds) - 1,
        "left_out_rests": made.left_out,
    }
    # Later runs find the items of an order by their records' ids.
    files = {"order": arrays, "records": {"id": run.index("id")[stream.record_of]}}
    return Made(files, {"tokens": tokens}, figures)


def order_documents(section: tuple[Traits, int], settings: Settings, strategy: str) -> np.ndarray:
    """Order of documents by the traits of `order.traits`, int64 (N,), from their seed; each trait is balanced in tokens
    and in documents. Strategies that use one label take the first trait, the cluster."""
    (traits, seed), weights = section, settings.order.traits
    codes = {trait: traits.codes[trait] for trait in sorted(weights, key=lambda trait: trait != "cluster")}
    items = document_items(traits.counted, codes, weights, lengths=traits.tokens)
    return order(items, **settings.order_arguments(strategy, seed))


def check_permutation(orders: np.ndarray, items: int, nouns: str, remedy: str) -> Finding:
    """Whether each of the orders, int64 (E, M), has every number below `items` once. nouns: what the items are."""
    times = np.zeros((len(orders), items), np.int64)
    inside = (orders >= 0) & (orders < items)
    for row, (numbers, known) in enumerate(zip(orders, inside, strict=True)):
        times[row] = np.bincount(numbers[known], minlength=items)
    missing, doubled, unknown = (int(bad.sum()) for bad in (times < 1, times > 1, ~inside))
    faults = f"{missing:,} left out, {doubled:,} named more than once, {unknown:,} that do not exist"
    passed = not (missing or doubled or unknown)
    return Finding(
        passed=passed,
        text=f"{items:,} {nouns}, each exactly once." if passed else f"Of {items:,} {nouns}: {faults}.",
        remedy=f"{remedy}; do not train on an output of this order",
    )


def remade(run: Run, stage: str, file: str) -> str:
    """How to make a whole-corpus result again, in words."""
    folder = run.store.where(run.receipt(stage).files[file]).rpartition("/")[0]
    return f"delete the folder {folder} and materialise {stage} again"


def _is_a_permutation(run: Run) -> Finding:
    orders = load_order(run).order[np.newaxis]
    items = "records, each as often as it is trained on" if run.settings.repeats else "accepted records"
    return check_permutation(orders, stream_size(run), items, remade(run, "greedy_order", "order"))


GREEDY_ORDER = WholeCorpus(
    name="greedy_order",
    version=8,
    description="The order of the documents (`order.strategy`). A balanced one keeps the corpus's own mix "
    "of `order.traits` in every window of training; with a curriculum it also follows a score.",
    reads=lambda settings: (
        *("raw_docs", "traits", "repeats", "scores", "frozen"),
        *(["ids"] if settings.order.cut else []),
    ),
    settings=("order", "mixing", "curriculum", "sequence", "seed"),
    decided_by=lambda run: behind_beginning(run, "greedy_order"),
    compute=_order_documents,
    checks=(
        Check(
            name="order_is_a_permutation",
            description="The order has every accepted record exactly once: no record is lost, none occurs twice.",
            check=_is_a_permutation,
            blocking=True,
        ),
    ),
)
