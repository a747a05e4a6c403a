"""Readers of an export, or of a data set of yours, for PyTorch training in a balanced order.

from dagster_divorder.torch import SequenceStream

stream = SequenceStream("data/exports/parquet")    # rank and world size are torchrun's
for batch in stream:                               # {"input_ids", "labels"} int64 (rows of this rank, tokens)
    ...
torch.save(stream.state_dict(), ...)               # goes on with any other number of ranks

sampler = BalancedSampler(table, by="topic")       # row numbers of a data set of yours, another order each epoch
"""

from dagster_divorder.readers.export import Export, open_export
from dagster_divorder.readers.loading import GlobalBatchSampler, SequenceDataset, SequenceStream
from dagster_divorder.readers.mixture import Mixture
from dagster_divorder.readers.sampling import BalancedSampler
from dagster_divorder.readers.shards import Rotated, ShardStream, rotate_shards

__all__ = [
    "BalancedSampler",
    "Export",
    "GlobalBatchSampler",
    "Mixture",
    "Rotated",
    "SequenceDataset",
    "SequenceStream",
    "ShardStream",
    "open_export",
    "rotate_shards",
]
