"""Balanced streams as torch IterableDatasets, the class by which a DataLoader recognises a stream.

Imported only if a stream already is one, so that nothing else loads torch.
"""

from torch.utils.data import IterableDataset

from dagster_divorder.streams.balancing import Balanced, Example
from dagster_divorder.streams.several import Mixed


class BalancedDataset(Balanced[Example], IterableDataset[Example]):
    pass


class MixedDataset(Mixed[Example], IterableDataset[Example]):
    pass
