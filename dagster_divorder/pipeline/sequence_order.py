"""sequence_order: the order of the packed sequences, by the strategy of `sequence.strategy`, one for each epoch.

`order` int64 (E, S): place in an epoch -> sequence of `packed_sequences`. A last sequence that `concat` and `related`
could not fill stays last, as trainers drop or pad it there. Sequences that a trainer has consumed stay first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dagster_divorder.core.order import order
from dagster_divorder.core.order.epochs import epoch_orders
from dagster_divorder.pipeline.packed_sequences import load_packed, load_sequence_items, sequence_traits
from dagster_divorder.pipeline.run import Run, content_hash
from dagster_divorder.pipeline.sequence_coordinates import are_balanced, balance_vectors
from dagster_divorder.pipeline.space import chosen_space
from dagster_divorder.pipeline.targets import sequence_targets
from dagster_divorder.pipeline.traits import Traits, load_traits
from dagster_divorder.store.arrays import pack, unpack
from dagster_divorder.store.receipts import Receipt


def run(run: Run) -> Receipt:
    settings = run.settings
    packed = run.receipt("packed_sequences")
    traits = load_traits(run)
    vectors = chosen_space(run) if are_balanced(settings) else None
    key = content_hash(
        settings.recipe("sequence_order"),
        packed.version,
        traits.version,
        [vectors.key, vectors.version] if vectors else None,
    )
    folder = f"stages/sequence_order/{key}"
    found = run.store.sealed(folder).get("order")
    sequences = packed.report["sequences"]
    if found is None:
        run.progress.note(f"ordering {sequences:,} sequences ({settings.sequence.strategy})")
        made = order_sequences(run, traits, packed.report["frozen_sequences"])
        file = run.store.seal(folder, "order", pack({"order": made}), "safetensors")
    else:
        file = found
    documents = len(traits.tokens)
    return Receipt(
        stage="sequence_order",
        recipe=settings.recipe("sequence_order"),
        key=key,
        # The same numbers over another plan are another order of tokens.
        version=content_hash(packed.version, file.rsplit(".", 2)[1]),
        uses={
            "packed_sequences": packed.version,
            **({vectors.stage: vectors.version} if vectors else {}),
        },
        files={"order": file},
        report={
            "documents": documents,
            "new_documents": documents if found is None else 0,
            "reused_documents": 0 if found is None else documents,
            "strategy": settings.sequence.strategy,
            "sequences": sequences,
            "epochs": settings.sequence.epochs,
        },
    )


def order_sequences(run: Run, traits: Traits, frozen: int) -> np.ndarray:
    """Orders of the packed sequences, int64 (E, S); the first `frozen` of the plan come first in the first epoch."""
    settings = run.settings
    packed = load_packed(run)
    items = balance_vectors(run, load_sequence_items(run, traits), packed)
    partial = settings.packing.method != "best_fit" and len(packed) > frozen and packed.padding[-1] > 0
    whole = len(packed) - bool(partial)
    arguments: dict[str, Any] = {
        "strategy": settings.sequence.strategy,
        "weights": items.weights,
        "seed": settings.seed,
        "within_cluster": settings.order.within_cluster,
        "sequence_length": settings.sequence.length,
        "batch": settings.sequence.batch,
        "shards": settings.order.shards,
        "buffer": settings.order.buffer,
        "f2_lambda": settings.order.f2_lambda,
        "block_strategy": settings.order.block_strategy,
        "frozen": np.arange(frozen),
        "targets": sequence_targets(
            settings.order.targets, traits, sequence_traits(settings.order.traits), items
        ),
    }
    some = items.first(whole)
    arguments["coordinates"] = some.coordinates
    if settings.sequence.epochs == 1:
        orders = order(some.counts, some.groups, **arguments)[np.newaxis]
    else:
        orders = epoch_orders(some.counts, some.groups, settings.sequence.epochs, **arguments)
    return np.pad(orders, ((0, 0), (0, int(partial))), constant_values=whole)


def load_sequence_order(run: Run) -> np.ndarray:
    """The current orders, int64 (E, S), an epoch a row."""
    return unpack(run.store.unseal(run.receipt("sequence_order").files["order"]))["order"]
