"""subset_selection: which records are trained on, chosen together for diversity within a budget.

`selection.method` fills `selection.tokens`, counted like shares. Candidates are the first records of each text that
have a gradient (gradient_embeddings) and are not held out. What a trainer has consumed (`order.frozen_tokens`) stays
chosen and counts. Appended data compete with all other data, since the value of a record depends on the others.
The vectors are gathered into one file (`store.stages.map_vectors`), mapped, and read in blocks in input order, so the
choice depends on neither fragments nor workers.

`selection`, Parquet, a row per accepted record in input order: record_id, weight (by which it was chosen; 0 if it was
not weighed), selected, reason. `choices`, Parquet, a row per way to choose, with figures of its choice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from dagster_divorder.core.arrow import plain_array
from dagster_divorder.core.seeds import drawn
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import File, Made, Table, WholeCorpus
from dagster_divorder.stages.corpus.ids import record_names
from dagster_divorder.stages.mix.consumed import consumed_record_mask, consumed_version
from dagster_divorder.stages.mix.heldout_copies import load_heldout
from dagster_divorder.stages.text.loss_mask import counted_tokens
from dagster_divorder.store.arrays import pack_parquet, unpack_parquet
from dagster_divorder.store.ids import hex_ids
from dagster_divorder.store.stages import map_vectors

REASONS = (
    "selected",
    "consumed by a trainer",
    "lower weight",
    "copy of another record",
    "no vector",
    "held out, or near what is",
)
SELECTED, CONSUMED, LOWER, COPY, NO_VECTOR, HELD_OUT = range(len(REASONS))


def load_selected(run: Run) -> np.ndarray:
    """Which records are trained on, bool (N,)."""
    return unpack_parquet(run.read("subset_selection", "selection"), ["selected"])["selected"].to_numpy()


def left_out(run: Run) -> pa.Table:
    """The records that are not trained on, in input order: `record` (its position), `id`, `weight`, `reason`."""
    selection = unpack_parquet(run.read("subset_selection", "selection"), ["selected", "weight", "reason"])
    records = np.flatnonzero(~selection["selected"].to_numpy())
    rows = plain_array(records)
    names = pa.array(record_names(run, records), pa.large_string())
    columns = {name: selection[name].take(rows) for name in ("weight", "reason")}
    return pa.table({"record": rows, "id": names, **columns})


VECTORS = "gradient_embeddings"
"""The stage whose vectors a selection compares."""


def _reasons(run: Run, vectors: np.ndarray) -> np.ndarray:
    """Index in REASONS of each record, int8 (N,): LOWER for the candidates."""
    from dagster_divorder.core.measure.vendi import each_block

    every = np.arange(len(run.view))
    has_vector = each_block(vectors, every, lambda part, block: np.einsum("nd,nd->n", block, block) > 0.5)
    consumed = consumed_record_mask(run)
    copies = run.copies
    taken = np.zeros(len(every), bool)
    taken[copies[consumed]] = True
    reasons = np.full(len(every), LOWER, np.int8)
    reasons[~np.concatenate(list(has_vector))] = NO_VECTOR
    reasons[(copies != every) | taken[copies]] = COPY
    if run.settings.holds_out:
        reasons[load_heldout(run).removed] = HELD_OUT
    reasons[consumed] = CONSUMED
    return reasons


def _select_subset(run: Run) -> Made:
    from dagster_divorder.core.measure.vendi import gram, vendi
    from dagster_divorder.core.mix.selection import choose, semdedup, spokes

    settings, asked = run.settings.selection, run.settings.selection.tokens
    assert asked is not None
    vectors = map_vectors(run.store, run.view, run.receipt(VECTORS))
    tokens = counted_tokens(run).astype(np.int64)
    reasons = _reasons(run, vectors)
    rows = np.flatnonzero(reasons == LOWER)
    spent = int(tokens[reasons == CONSUMED].sum())
    available, fault = spent + int(tokens[rows].sum()), ""
    shortest = int(tokens[rows].min()) if len(rows) else 0
    if asked > available:
        fault = (
            f"there are {available:,} tokens to choose from, in records with a vector that are no copies and not held "
            "out; expected fewer: lower"
        )
    elif asked < spent:
        fault = f"a trainer has consumed {spent:,} tokens (order.frozen_tokens); expected more: raise"
    elif not spent and shortest > asked:
        fault = (
            f"the shortest record that can be chosen has {shortest:,}; expected room for one at least: raise"
        )
    if fault:
        raise InputError(f"selection.tokens is {asked:,}, and {fault} selection.tokens")
    if not len(rows):
        raise InputError(
            f"selection.method: none of {len(reasons):,} records has a gradient; expected at least one to choose "
            "from: set deep.model to a model that knows the words of the texts"
        )
    method = settings.method
    # From a text's id and the seed, so that appends change no record's number.
    ids = run.index("text")[rows, 0]
    scores: dict[str, np.ndarray] = {"random": drawn(ids, run.settings.seed, 3) / 2.0**64}
    figures: dict[str, Any] = {}
    if method == "semdedup":
        scores["semdedup"] = semdedup(vectors, rows, seed=run.settings.seed)
    elif method == "spokes":
        optimum = spokes(vectors, rows)
        scores["spokes"], figures["steps"] = optimum.weights, len(optimum.objective) - 1
    chosen = {name: choose(score, tokens[rows], asked - spent) for name, score in scores.items()}
    choices = {"all": np.ones(len(rows), bool), **chosen}
    table = [
        {
            "choice": name,
            "documents": len(taken),
            "tokens": int(tokens[taken].sum()),
            "mean tokens": float(tokens[taken].mean()) if len(taken) else None,
            "vendi": round(vendi(gram(vectors, taken)), 4),
            "used": name == method,
        }
        for name, mask in choices.items()
        for taken in [rows[mask]]
    ]
    reasons[rows[chosen[method]]] = SELECTED
    selected = reasons <= CONSUMED
    weight = np.zeros(len(selected))
    weight[rows] = scores[method]
    selection = {
        "record_id": pa.array(hex_ids(run.index("id")), pa.string()),
        "weight": weight,
        "selected": selected,
        "reason": pa.DictionaryArray.from_arrays(pa.array(reasons), REASONS),
    }
    scored = {row["choice"]: row["vendi"] for row in table}
    numbers = np.bincount(reasons, minlength=len(REASONS)).tolist()
    figures |= {
        "method": method,
        "selected_records": int(selected.sum()),
        "selected_tokens": int(tokens[selected].sum()),
        "vendi_all": scored["all"],
        "vendi_selected": scored[method],
        "vendi_random": scored["random"],
        "reasons": {reason: number for reason, number in zip(REASONS, numbers, strict=True) if number},
    }
    files: dict[str, Any] = {
        "selection": File(pack_parquet(pa.table(selection), "zstd"), "parquet"),
        "choices": table,
    }
    return Made(files, {}, figures)


SUBSET_SELECTION: WholeCorpus = WholeCorpus(
    name="subset_selection",
    version=6,
    description="Which records are trained on: chosen together for diversity within a budget, or in a "
    "simpler way. A table compares what each way would choose.",
    reads=("raw_docs", "token_counts", VECTORS, "ids", "heldout", "heldout_copies"),
    settings=("selection", "chats", "packing", "sequence.length", "seed"),
    decided_by=lambda run: {**SUBSET_SELECTION.usual(run), "consumed": consumed_version(run)},
    when=lambda settings: settings.selects,
    doing="choosing what is trained on",
    compute=_select_subset,
    show=lambda run, receipt: {"choices": Table(run.rows("subset_selection", "choices"))},
)
