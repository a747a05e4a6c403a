"""Compiles what numba keeps on disk for later processes, so that a first run does not wait for it: the cluster map, and
an order of a few documents with its sequences and its measures. `make install` does so beside its last downloads.

What is compiled is what default settings call; everything else is compiled when it is first called.
"""

from __future__ import annotations

import numpy as np

from dagster_divorder.core import cluster_map
from dagster_divorder.core.items import document_items
from dagster_divorder.core.metrics import measure, measure_packed
from dagster_divorder.core.order import order
from dagster_divorder.core.packing import Pieces, pack, packing_report, sequence_counts
from dagster_divorder.core.packing.coordinates import add_directions, with_coordinates

DOCUMENTS, SEQUENCE, BATCH, DIMS = 4_000, 256, 4, 8


def warm() -> None:
    """Compile it all."""
    cluster_map.warm()
    random = np.random.default_rng(0)
    tokens = random.integers(1, 400, DOCUMENTS)
    traits = {name: random.integers(0, 9, DOCUMENTS, np.int32) for name in ("cluster", "length")}
    sizes = dict.fromkeys(traits, 9)
    items = document_items(tokens, traits)
    in_order = order(items.counts, items.groups, weights=items.weights)
    packed = pack(Pieces(in_order, np.zeros_like(in_order), tokens[in_order]), sequence_length=SEQUENCE)
    packing_report(packed, traits["cluster"])
    counts, groups = sequence_counts(packed, traits, sizes)
    sums = np.zeros((len(packed), DIMS), np.int64)
    sequence = np.repeat(np.arange(len(packed), dtype=np.int32), np.diff(packed.indptr))
    directions = random.normal(size=(DOCUMENTS, DIMS)).astype(np.float32)
    add_directions(sums, sequence, packed.length, packed.document.astype(np.uint32), directions)
    sequences = with_coordinates(type(items)(counts, groups, np.ones(len(traits))), packed, sums)
    epoch = order(sequences.counts, groups, coordinates=sequences.coordinates)
    measure(in_order, tokens, traits, sizes, sequence_length=SEQUENCE, batch=BATCH)
    measure_packed(packed, [epoch], traits, sizes, batch=BATCH)


if __name__ == "__main__":
    warm()
