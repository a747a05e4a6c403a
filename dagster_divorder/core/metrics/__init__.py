"""How well an order keeps every window of training at the corpus's own mix. Exact, and streaming.

Letters: N documents, K clusters, J trait values, G trait groups, L tokens a sequence, S sequences, W windows.
An order is an int array (N,) of document indices; its documents are laid end to end in it, and a document
that straddles a window's edge counts on each side with the tokens it has there. `tokens` is (N,) by document,
and so are `labels` and `codes`, the trait value of each document in [0, J). An order may leave documents out;
the corpus is then what it names.

Guarantee: exact token counts in int64, to 9.2e18 tokens; shares and deviations in float64. The same input
gives the same bytes, whatever the number of threads.
Cost: O(N + W) for each measure, O(N + S x J) for the prefix deviation; O(N + W) memory.
Known weakness: windows are aligned (they start at multiples of their length).
Source: the objective is the second seed's ("Don't Shuffle, Optimize"), distinct clusters the first's.
"""

from dagster_divorder.core.metrics.distinct import Distinct, distinct_clusters
from dagster_divorder.core.metrics.diversity import Diversity, average, measure
from dagster_divorder.core.metrics.prefix import PrefixDeviation, coverage, prefix_deviation
from dagster_divorder.core.metrics.shares import ShareDeviation, cluster_mix, share_deviation

__all__ = [
    "Distinct",
    "Diversity",
    "PrefixDeviation",
    "ShareDeviation",
    "average",
    "cluster_mix",
    "coverage",
    "distinct_clusters",
    "measure",
    "prefix_deviation",
    "share_deviation",
]
