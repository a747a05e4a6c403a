"""packed_sequences: which tokens make which training sequence. A plan; only exports gather tokens.

The documents, in the order of `greedy_order`, packed into sequences of `sequence.length` tokens by `packing.method`.
`plan`: runs of tokens, document int64 (Q,) as a position among the accepted records, start and length int64 (Q,), and
indptr int64 (S+1,): sequence s holds the runs indptr[s]:indptr[s+1], one after another. `rows`: the tokens of each
trait value in each sequence, CSR (indptr, indices, data) and groups, a group a trait, the traits by name.
`related` never puts records of equal text into one sequence, and with `order.separate_copies` no method does; the plan
then names the parts that keep them apart, for `sequence_order`.
With `packing.end_of_text` a document has one token more, its last, which is the end-of-text token.
Sequences that a trainer has consumed (`order.frozen_tokens`) come first, as they were; the others hold what is left.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from dagster_divorder.core.items import Items
from dagster_divorder.core.packing import (
    PackedSequences,
    Pieces,
    cut,
    join,
    packing_report,
    remaining,
    sequence_counts,
)
from dagster_divorder.core.packing import pack as pack_pieces
from dagster_divorder.pipeline.frozen import Frozen, load_frozen
from dagster_divorder.pipeline.greedy_order import load_order, order_documents
from dagster_divorder.pipeline.raw_docs import load_view
from dagster_divorder.pipeline.run import Run, content_hash
from dagster_divorder.pipeline.space import chosen_vectors, map_vectors
from dagster_divorder.pipeline.traits import Traits, load_traits
from dagster_divorder.store.arrays import pack, unpack
from dagster_divorder.store.receipts import Receipt

if TYPE_CHECKING:
    from dagster_divorder.core.packing.related import Vectors

FILES = ("plan", "rows", "figures")


def run(run: Run) -> Receipt:
    settings = run.settings
    traits = load_traits(run)
    greedy_order = run.receipt("greedy_order")
    frozen = load_frozen(run, load_view(run), traits.tokens)
    vectors = chosen_vectors(run)
    key = content_hash(
        settings.recipe("packed_sequences"),
        traits.version,
        greedy_order.version,
        frozen.fit.hash if frozen else None,
        vectors.version if settings.packing.method == "related" else None,
    )
    folder = f"stages/packed_sequences/{key}"
    found = run.store.sealed(folder)
    reused = all(name in found for name in FILES)
    if not reused:
        packed = _pack(run, traits, frozen)
        figures = {
            "last_sequence_tokens": int(packed.tokens[-1]) if len(packed) else 0,
            **packing_report(packed, traits.codes["cluster"]).to_dict(),
        }
        found = {
            "plan": run.store.seal(folder, "plan", pack(_plan_arrays(packed)), "safetensors"),
            "rows": run.store.seal(folder, "rows", pack(_row_arrays(packed, traits)), "safetensors"),
            "figures": run.store.seal(folder, "figures", orjson.dumps(figures), "json"),
        }
    documents = len(traits.tokens)
    return Receipt(
        stage="packed_sequences",
        recipe=settings.recipe("packed_sequences"),
        key=key,
        version=found["plan"].rsplit(".", 2)[1],
        uses={"greedy_order": greedy_order.version, vectors.stage: vectors.version},
        files={name: found[name] for name in FILES},
        report={
            "documents": documents,
            "new_documents": 0 if reused else documents,
            "reused_documents": documents if reused else 0,
            "method": settings.packing.method,
            "sequence_length": settings.sequence.length,
            "tokenized_as": run.receipt("token_counts").key,
            "frozen_sequences": len(frozen.sequences) if frozen else 0,
            **orjson.loads(run.store.unseal(found["figures"])),
        },
    )


def _pack(run: Run, traits: Traits, frozen: Frozen | None) -> PackedSequences:
    settings = run.settings
    order = load_order(run)
    lengths = traits.tokens + settings.packing.end_of_text
    pieces = Pieces(order, np.zeros_like(order), lengths[order])
    if frozen:
        pieces = remaining(pieces, frozen.sequences)
    if settings.packing.piece_tokens:
        pieces = _order_pieces(run, traits, cut(pieces, settings.packing.piece_tokens))
    related = settings.packing.method == "related"
    # `concat` keeps the order of the documents, in which copies stand apart unless some of them are consumed.
    apart = settings.order.separate_copies and (settings.packing.method == "best_fit" or frozen is not None)
    packed = pack_pieces(
        pieces,
        method=settings.packing.method,
        sequence_length=settings.sequence.length,
        seed=settings.seed,
        labels=traits.codes["cluster"][pieces.document],
        vectors=_vectors(run, pieces) if related else None,
        copies=_copies(run, pieces.document, pieces.start) if related or apart else None,
        consumed=_copies(run, frozen.sequences.document, frozen.sequences.start) if frozen else (),
    )
    return join(frozen.sequences, packed) if frozen else packed


def _copies(run: Run, document: np.ndarray, start: np.ndarray) -> np.ndarray:
    """A number for each run of tokens, equal where two records have the same: their text, or that piece of it."""
    text = load_view(run).document_row[document]
    if not run.settings.packing.piece_tokens:
        return text
    return text << 31 | start // run.settings.packing.piece_tokens


def _order_pieces(run: Run, traits: Traits, pieces: Pieces) -> Pieces:
    """The pieces in the order that `order.strategy` gives them: a document's own traits, a piece's own length."""
    of_pieces = replace(
        traits,
        tokens=pieces.length,
        codes={trait: codes[pieces.document] for trait, codes in traits.codes.items()},
    )
    separate = run.settings.order.separate_copies
    return pieces.take(
        order_documents(
            of_pieces,
            run.settings.order,
            run.settings.strategy_options(run.settings.order.strategy),
            seed=run.settings.seed,
            sequence_length=run.settings.sequence.length,
            batch=run.settings.sequence.batch,
            copies=_copies(run, pieces.document, pieces.start) if separate else None,
        )
    )


def _vectors(run: Run, pieces: Pieces) -> Vectors:
    vectors = map_vectors(run.store, load_view(run), chosen_vectors(run))
    return lambda some: vectors[pieces.document[some]].astype(np.float32, copy=False)


def _plan_arrays(packed: PackedSequences) -> dict[str, np.ndarray]:
    return {
        "document": packed.document,
        "start": packed.start,
        "length": packed.length,
        "indptr": packed.indptr,
        "sequence_length": np.array([packed.sequence_length]),
        "without_tokens": np.array([packed.without_tokens]),
        "parts": packed.parts,
    }


def _unpack_plan(arrays: dict[str, np.ndarray]) -> PackedSequences:
    return PackedSequences(
        document=arrays["document"],
        start=arrays["start"],
        length=arrays["length"],
        indptr=arrays["indptr"],
        sequence_length=int(arrays["sequence_length"][0]),
        without_tokens=int(arrays["without_tokens"][0]),
        parts=arrays["parts"],
    )


def _row_arrays(packed: PackedSequences, traits: Traits) -> dict[str, np.ndarray]:
    counts, groups = sequence_counts(
        packed, {name: traits.codes[name] for name in sorted(traits.codes)}, traits.sizes()
    )
    return {
        "indptr": counts.indptr.astype(np.int64),
        "indices": counts.indices,
        "data": counts.data,
        "groups": groups,
        "sequences": np.array(counts.shape),
    }


def load_packed(run: Run) -> PackedSequences:
    """The current plan."""
    return _unpack_plan(unpack(run.store.unseal(run.receipt("packed_sequences").files["plan"])))


def runs_of(packed: PackedSequences) -> dict[str, np.ndarray]:
    """The plan as a table, int64 (Q,): sequence, document (position among the accepted records), start, length."""
    sequence = np.repeat(np.arange(len(packed)), np.diff(packed.indptr))
    return {
        "sequence": sequence,
        "document": packed.document,
        "start": packed.start,
        "length": packed.length,
    }


def load_sequence_items(run: Run, traits: Traits) -> Items:
    """The sequences as items to order: the traits of `order.traits` in tokens, by name, with their weights."""
    from scipy.sparse import csr_matrix

    arrays: dict[str, Any] = unpack(run.store.unseal(run.receipt("packed_sequences").files["rows"]))
    counts = csr_matrix(
        (arrays["data"], arrays["indices"], arrays["indptr"]), shape=tuple(arrays["sequences"])
    )
    names = sorted(traits.codes)
    wanted = sequence_traits(run.settings.order.traits)
    columns = np.concatenate([np.flatnonzero(arrays["groups"] == names.index(name)) for name in wanted])
    sizes = [traits.sizes()[name] for name in wanted]
    return Items(
        counts=counts
        if len(columns) == counts.shape[1] and (np.diff(columns) == 1).all()
        else counts[:, columns],
        groups=np.repeat(np.arange(len(wanted), dtype=np.int32), sizes),
        weights=np.array([run.settings.order.traits[name] for name in wanted], np.float64),
    )


def sequence_traits(weights: dict[str, float]) -> list[str]:
    """Trait names in the order of the sequences' groups: the cluster first, as for documents."""
    return sorted(weights, key=lambda trait: (trait != "cluster", trait))
