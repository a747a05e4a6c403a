"""Readers for PyTorch training in a balanced order: of an export, or of your own data set.

from dagster_divorder.torch import SequenceStream

stream = SequenceStream("data/exports/parquet")    # rank and world size come from torchrun
for batch in stream:                               # {"input_ids", "labels"} int64 (rows of this rank, tokens)
    ...
torch.save(stream.state_dict(), ...)               # resumes on any number of ranks

sampler = BalancedSampler(table, by="source")      # row numbers of your data set, a new order each epoch
"""

from dagster_divorder.readers.export import Export, open_export
from dagster_divorder.readers.loading import GlobalBatchSampler, SequenceDataset, SequenceStream
from dagster_divorder.readers.mix_log import MixLog
from dagster_divorder.readers.sampling import BalancedSampler

__all__ = [
    "BalancedSampler",
    "Export",
    "GlobalBatchSampler",
    "MixLog",
    "SequenceDataset",
    "SequenceStream",
    "open_export",
]
