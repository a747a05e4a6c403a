"""Measures of how well an order keeps every window of training at the corpus's mix; exact and streaming.

Letters: N documents, K clusters, J trait values, G trait groups, L tokens a sequence, S sequences, W windows. An order
is an int array (N,) of document indices, whose documents are laid end to end. A document that crosses a window's edge
counts on each side with its tokens there. `tokens`, `labels` and `codes` (trait values in [0, J)) are (N,), by
document. If an order leaves documents out, the corpus is the documents that it names.

Guarantee: exact token counts in int64, to 9.2e18 tokens; shares and deviations in float64; the same bytes for any
number of threads.
Cost: O(N + W) for each measure, O(N log J) for windows at every position, O(N + S x J) for the prefix deviation;
O(N + W) memory.
`ShareDeviation` covers aligned windows, which start at multiples of their length; `WindowDeviation` covers every
position. Packed sequences are measured like documents, with runs of tokens as documents. In an order of several
stretches (`stretches`), the mix of each stretch takes the place of the corpus's.
Sources: Don't Shuffle, Optimize (the objective); Diversity-Ordered Training (distinct clusters).
"""

from dagster_divorder.core.measure.distinct import Distinct, distinct_clusters
from dagster_divorder.core.measure.diversity import WINDOWS, Diversity, average, measure, worse_batches
from dagster_divorder.core.measure.packed import measure_packed
from dagster_divorder.core.measure.seam import Seam
from dagster_divorder.core.measure.shares import cluster_mix
from dagster_divorder.core.measure.shuffling_check import ShufflingCheck, beats_shuffling
from dagster_divorder.core.measure.stationarity import Feature, Stationarity, stationarity
from dagster_divorder.core.measure.trait_errors import compare_errors, error_curves
from dagster_divorder.core.measure.window_deviation import WindowDeviation, shuffled_tokens, windows_in_stream

__all__ = [
    "WINDOWS",
    "Distinct",
    "Diversity",
    "Feature",
    "Seam",
    "ShufflingCheck",
    "Stationarity",
    "WindowDeviation",
    "average",
    "beats_shuffling",
    "cluster_mix",
    "compare_errors",
    "distinct_clusters",
    "error_curves",
    "measure",
    "measure_packed",
    "shuffled_tokens",
    "stationarity",
    "windows_in_stream",
    "worse_batches",
]
