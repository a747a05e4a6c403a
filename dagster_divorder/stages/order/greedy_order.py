"""greedy_order: the order of the documents, by the strategy of `order.strategy`.

`order`, int64 (M,): output position -> item of the stream (`stages.mix.repeats`); without a mix, items are records.
The order is computed as a whole, because one appended document can move every other. The same input, settings and seed
give the same bytes.
More than `order.shards_of` records are dealt to shards (`core.order.deal`), and each shard is ordered separately. Then
`shards` int64 has the first position of each shard except the first.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dagster_divorder.core.order import order
from dagster_divorder.core.order.deal import shard_of_each
from dagster_divorder.core.order.items import document_items
from dagster_divorder.core.order.spread import spacing, spread_order
from dagster_divorder.core.order.strategies import STRATEGIES
from dagster_divorder.core.order.trait_targets import document_targets
from dagster_divorder.core.order.traits import Traits
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Check, Finding, Made, WholeCorpus, versions
from dagster_divorder.settings import Settings
from dagster_divorder.stages.mix.repeats import (
    load_stream,
    refuse_left_out,
    stream_reads,
    stream_size,
)
from dagster_divorder.stages.order.frozen import beginning_version, load_frozen, record_ids
from dagster_divorder.stages.order.scores import score_reads, stream_scores
from dagster_divorder.stages.output.shards import Parts, each_shard, shard_number


def load_order(run: Run) -> np.ndarray:
    """The current order, int64 (M,)."""
    return run.arrays("greedy_order", "order")["order"]


def load_shards(run: Run) -> np.ndarray:
    """The first positions of all shards of the current order except the first, int64 (P - 1,)."""
    return run.arrays("greedy_order", "order").get("shards", np.zeros(0, np.int64))


def _order_documents(run: Run) -> Made:
    settings, stream, frozen = run.settings, load_stream(run), load_frozen(run)
    traits, apart = stream.traits, stream.view.copies if settings.copies_apart else None
    for trait, table in settings.order.targets.items():
        sizes = np.bincount(traits.codes[trait], traits.counted, len(traits.names[trait]))
        refuse_left_out(run, f"order.targets.{trait}", trait, table.keys() - {"progress"}, sizes)
    run.progress.note(f"ordering {len(traits.tokens):,} documents ({settings.order.strategy})")
    scores = stream_scores(run, stream)
    orders = _orders(run, Documents(traits, apart, frozen.documents if frozen else None, scores))
    ordered, bounds = np.concatenate(orders), np.cumsum([len(part) for part in orders[:-1]], dtype=np.int64)
    tokens = int(traits.tokens.sum())
    figures = {
        "strategy": settings.order.strategy,
        "traits": {trait: traits.sizes()[trait] for trait in settings.order.traits},
        "tokens": tokens,
        "frozen_documents": len(frozen.documents) if frozen else 0,
        "copies": asdict(spacing(ordered, stream.view.copies, traits.tokens)),
    }
    files = {
        "order": {"order": ordered} | ({"shards": bounds} if len(bounds) else {}),
        "records": {"id": record_ids(run, stream.view)},
    }
    return Made(files, {"tokens": tokens}, figures)


class Documents(NamedTuple):
    """Documents, or pieces of documents, to order. copies: int64 (N,), equal for documents that must stand far apart,
    or None. frozen: int64 (F,), the documents that come first, or None. scores: float64 (N,), for a curriculum, or
    None."""

    traits: Traits
    copies: np.ndarray | None
    frozen: np.ndarray | None
    scores: np.ndarray | None = None


def _orders(run: Run, all_: Documents) -> list[np.ndarray]:
    """The order of each shard, int64, as positions among the documents."""
    order_shard, shards = partial(order_documents, settings=run.settings), shard_number(run)
    if shards == 1:
        return [order_shard(all_)]
    weights, frozen = run.settings.order.traits, np.zeros(0, np.int64) if all_.frozen is None else all_.frozen
    shard = shard_of_each(
        all_.traits, weights, shards, seed=run.settings.seed, copies=all_.copies, frozen=frozen
    )
    bounds = np.cumsum(np.bincount(shard, minlength=shards))
    members = np.split(np.argsort(shard, kind="stable"), bounds[:-1])
    members[0] = np.concatenate([frozen, members[0][~np.isin(members[0], frozen)]])

    def documents(shard: int) -> Documents:
        items = members[shard]
        return Documents(
            all_.traits.take(items),
            None if all_.copies is None else all_.copies[items],
            None if shard else np.arange(len(frozen)),
        )

    orders = each_shard(run, order_shard, Parts(shards, documents))
    return [items[order] for items, order in zip(members, orders, strict=True)]


def order_documents(documents: Documents, settings: Settings) -> np.ndarray:
    """Order of documents by their traits, int64 (N,); each trait is balanced in tokens and in documents. Strategies
    that use one label take the first trait, the cluster. Strategies that fill sequences count all tokens; the others
    count the tokens that shares are of."""
    traits, chosen = documents.traits, settings.order
    first = sorted(chosen.traits, key=lambda trait: trait != "cluster")
    codes = {trait: traits.codes[trait] for trait in first}
    fills = "sequence_length" in settings.strategy(chosen.strategy).reads
    tokens = traits.tokens if fills else traits.counted
    items = document_items(tokens, codes, chosen.traits, within=chosen.within, lengths=traits.tokens)
    arguments = {
        **settings.plan_arguments(chosen.strategy, int(traits.tokens.sum())),
        "scores": documents.scores,
        "weights": items.weights,
        "frozen": documents.frozen,
        "targets": document_targets(chosen.targets, traits, first, items),
    }
    if documents.copies is not None:
        return spread_order(items.counts, items.groups, documents.copies, **arguments)
    return order(items.counts, items.groups, **arguments)


def check_permutation(orders: np.ndarray, items: int, nouns: str, remedy: str, expected: int = 1) -> Finding:
    """Whether each of the orders, int64 (E, M), has every number below `items` as often as expected. nouns: what the
    items are."""
    times = np.zeros((len(orders), items), np.int64)
    inside = (orders >= 0) & (orders < items)
    for row, (numbers, known) in enumerate(zip(orders, inside, strict=True)):
        times[row] = np.bincount(numbers[known], minlength=items)
    missing, doubled, unknown = (int(bad.sum()) for bad in (times < expected, times > expected, ~inside))
    often = "once" if expected == 1 else f"{expected} times"
    left_out = "left out" if expected == 1 else f"named less than {often}"
    faults = f"{missing:,} {left_out}, {doubled:,} named more than {often}, {unknown:,} that do not exist"
    passed = not (missing or doubled or unknown)
    return Finding(
        passed=passed,
        text=f"{items:,} {nouns}, each exactly {often}." if passed else f"Of {items:,} {nouns}: {faults}.",
        remedy=f"{remedy}; do not train on an output of this order",
        figures={
            "items": items,
            "orders": len(orders),
            "missing": missing,
            "doubled": doubled,
            "unknown": unknown,
        },
    )


def remade(run: Run, stage: str, file: str) -> str:
    """How to make a whole-corpus result again, in words."""
    folder = run.store.where(run.receipt(stage).files[file]).rpartition("/")[0]
    return f"delete the folder {folder} and materialise {stage} again"


def _is_a_permutation(run: Run) -> Finding:
    orders = load_order(run)[np.newaxis]
    items = "records, each as often as it is trained on" if run.settings.repeats else "accepted records"
    return check_permutation(orders, stream_size(run), items, remade(run, "greedy_order", "order"))


def document_order_settings(settings: Settings) -> dict[str, Any]:
    """The settings that decide how documents, or pieces of documents, are ordered."""
    order, strategy = settings.order, settings.strategy(settings.order.strategy)
    reads_batch = "batch" in strategy.reads or settings.copies_apart
    return {
        "strategy": order.strategy,
        "options": settings.strategy_key(order.strategy),
        "traits": order.traits,
        **settings.within_key,
        "targets": order.targets,
        "separate_copies": settings.copies_apart,
        "sequence_length": settings.sequence.length if "sequence_length" in strategy.reads else None,
        "batch": settings.sequence.batch if reads_batch else None,
        "seed": settings.seed,
        **settings.curriculum_key,
    }


def order_description(settings: Settings, items: str, strategy: str) -> str:
    """The description of an order of items under these settings."""
    curriculum, known = settings.curriculum, STRATEGIES[strategy]
    if curriculum.on:
        return (
            f"The order of the {items} along a curriculum: `{curriculum.score}` by the schedule `{curriculum.form}`, "
            f"and {strategy} inside its windows."
        )
    if not (known.follows_targets or known.takes_coordinates):
        return f"The order of the {items} by the strategy `{strategy}`."
    traits = ", ".join(settings.order.traits)
    return f"The order of the {items}, {strategy}: every window of training keeps the corpus's own mix ({traits})."


def order_kinds(settings: Settings, strategy: str) -> set[str]:
    """The kinds of an order under these settings."""
    schedule = {"curriculum", settings.curriculum.form} if settings.curriculum.on else set()
    return {strategy, "numba", *schedule}


def _greedy_order_reads(settings: Settings) -> tuple[str, ...]:
    return (
        "raw_docs",
        "traits",
        *stream_reads(settings),
        *score_reads(settings),
        *(["frozen"] if settings.order.keeps else []),
    )


def _inputs(run: Run) -> dict[str, Any]:
    # Only the number of shards matters, not `order.shards_of`, and only if there are several.
    shards, reads = (
        shard_number(run),
        [name for name in _greedy_order_reads(run.settings) if name != "frozen"],
    )
    return {**versions(run, *reads), **beginning_version(run), **({"shards": shards} if shards > 1 else {})}


GREEDY_ORDER = WholeCorpus(
    name="greedy_order",
    version=5,
    group="ordering",
    kinds=lambda settings: order_kinds(settings, settings.order.strategy),
    description=lambda settings: order_description(settings, "documents", settings.order.strategy),
    reads=_greedy_order_reads,
    settings=document_order_settings,
    inputs=_inputs,
    content=("order",),
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
