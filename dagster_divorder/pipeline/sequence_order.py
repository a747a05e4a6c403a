"""sequence_order: the order of the packed sequences, by the strategy of `sequence.strategy`, one for each epoch.

`order` int64 (E, S): place in an epoch -> sequence of `packed_sequences`. A last sequence that `concat` and `related`
could not fill stays last, as trainers drop or pad it there. Sequences that a trainer has consumed stay first.
With `order.separate_copies` those that share a text stand far apart, in and across epochs; `figures` says how far.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import orjson

from dagster_divorder.core.order.epochs import epoch_orders
from dagster_divorder.core.packing import PackedSequences
from dagster_divorder.core.packing.copies import sequence_spacing, sequence_times
from dagster_divorder.pipeline.packed_sequences import load_packed, load_sequence_items, sequence_traits
from dagster_divorder.pipeline.raw_docs import load_view
from dagster_divorder.pipeline.run import Run, content_hash
from dagster_divorder.pipeline.sequence_coordinates import are_balanced, balance_vectors
from dagster_divorder.pipeline.space import chosen_space
from dagster_divorder.pipeline.targets import sequence_targets
from dagster_divorder.pipeline.traits import Traits, load_traits
from dagster_divorder.store.arrays import pack, unpack
from dagster_divorder.store.receipts import Receipt

FILES = ("order", "figures")


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
    found = run.store.sealed(folder)
    sequences = packed.report["sequences"]
    reused = all(name in found for name in FILES)
    if not reused:
        run.progress.note(f"ordering {sequences:,} sequences ({settings.sequence.strategy})")
        plan, texts = load_packed(run), load_view(run).document_row
        made = order_sequences(run, traits, plan, texts, packed.report["frozen_sequences"])
        step = min(settings.packing.piece_tokens or settings.sequence.length, settings.sequence.length)
        figures = {"copies": asdict(sequence_spacing(plan, made, texts, step=step))}
        found = {
            "order": run.store.seal(folder, "order", pack({"order": made}), "safetensors"),
            "figures": run.store.seal(folder, "figures", orjson.dumps(figures), "json"),
        }
    documents = len(traits.tokens)
    return Receipt(
        stage="sequence_order",
        recipe=settings.recipe("sequence_order"),
        key=key,
        # The same numbers over another plan are another order of tokens.
        version=content_hash(packed.version, found["order"].rsplit(".", 2)[1]),
        uses={
            "packed_sequences": packed.version,
            **({vectors.stage: vectors.version} if vectors else {}),
        },
        files={name: found[name] for name in FILES},
        report={
            "documents": documents,
            "new_documents": 0 if reused else documents,
            "reused_documents": documents if reused else 0,
            "strategy": settings.sequence.strategy,
            "sequences": sequences,
            "epochs": settings.sequence.epochs,
            **orjson.loads(run.store.unseal(found["figures"])),
        },
    )


def order_sequences(
    run: Run, traits: Traits, packed: PackedSequences, texts: np.ndarray, frozen: int
) -> np.ndarray:
    """Orders of the packed sequences, int64 (E, S); the first `frozen` of the plan come first in the first epoch.

    texts: int64 (N,), equal for records of equal text.
    """
    settings = run.settings
    items = balance_vectors(run, load_sequence_items(run, traits), packed)
    partial = settings.packing.method != "best_fit" and len(packed) > frozen and packed.padding[-1] > 0
    whole = len(packed) - bool(partial)
    arguments: dict[str, Any] = {
        "strategy": settings.sequence.strategy,
        "weights": items.weights,
        "seed": settings.seed,
        "sequence_length": settings.sequence.length,
        "batch": settings.sequence.batch,
        **settings.strategy_options(settings.sequence.strategy),
        "frozen": np.arange(frozen),
        "targets": sequence_targets(
            settings.order.targets, traits, sequence_traits(settings.order.traits), items
        ),
    }
    some = items.first(whole)
    arguments["coordinates"] = some.coordinates
    copies = None
    if settings.order.separate_copies:
        as_packed = settings.sequence.strategy == "original"
        times = sequence_times(packed, texts, frozen=frozen, as_packed=as_packed)
        copies = replace(times, times=times.times[:whole], copies=times.copies[:whole])
    orders = epoch_orders(some.counts, some.groups, settings.sequence.epochs, copies=copies, **arguments)
    return np.pad(orders, ((0, 0), (0, int(partial))), constant_values=whole)


def load_sequence_order(run: Run) -> np.ndarray:
    """The current orders, int64 (E, S), an epoch a row."""
    return unpack(run.store.unseal(run.receipt("sequence_order").files["order"]))["order"]
