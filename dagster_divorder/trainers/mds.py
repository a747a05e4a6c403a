"""MosaicML StreamingDataset over MDS shards, shuffle=False.

The rows are split into canonical nodes, by default one a machine, and a step takes the same number of rows from each. A
single canonical node is the whole export, so its steps are consecutive. Rows are repeated until all ranks have the same
number. The batch size is a rank's; the number of workers changes nothing.
"""

from __future__ import annotations

import numpy as np

from dagster_divorder.trainers.trainer import Reading, Rows, Trainer, consecutive


def _batches(reading: Reading, canonical: int) -> Rows:
    """canonical: 1 or the number of machines. An incomplete last batch is read."""
    nodes, node_ranks = reading.nodes, reading.world_size // reading.nodes
    edges = np.arange(canonical + 1) * reading.length // canonical
    longest = -(-reading.length // canonical)
    # A canonical node that is one row short reads its last row twice.
    rows = edges[:-1, None] + np.minimum(np.arange(longest), np.diff(edges)[:, None] - 1)
    ratio = nodes // canonical
    if missing := -longest % ratio:
        end = longest - ratio + 1
        rows = np.concatenate([rows, rows[:, end - missing : end]], axis=1)
    rows = rows.T.reshape(-1, nodes)  # (a step of one rank on each machine, machine)
    if missing := -len(rows) % node_ranks:
        end = len(rows) - node_ranks + 1
        rows = np.concatenate([rows, rows[end - missing : end]])
    return consecutive(rows.reshape(-1), reading.batch, drop_last=False)


TRAINER = Trainer(
    name="mds",
    title="MosaicML Streaming (MDS)",
    formats=("mds",),
    default=lambda reading: _batches(reading, reading.nodes),
    best=lambda reading: _batches(reading, 1),
    lines="""\
StreamingDataset(
    local="{path}",
    shuffle=False,
    num_canonical_nodes=1,
    batch_size={rank_batch},
)
""",
    resumes="resumes exactly if num_canonical_nodes and the global batch are unchanged",
)
