"""How well an order keeps every window of training at the corpus's own mix. Exact, and streaming.

Letters: N documents, K clusters, J trait values, G trait groups, L tokens a sequence, S sequences, W windows.
An order is an int array (N,) of document indices; its documents are laid end to end in it, and a document
that straddles a window's edge counts on each side with the tokens it has there. `tokens` is (N,) by document,
and so are `labels` and `codes`, the trait value of each document in [0, J). An order may leave documents out;
the corpus is then what it names.

Guarantee: exact token counts in int64, to 9.2e18 tokens; shares and deviations in float64. The same input
gives the same bytes, whatever the number of threads.
Cost: O(N + W) for each measure, O(N log J) for windows at every position, O(N + S x J) for the prefix deviation;
O(N + W) memory.
`ShareDeviation` is of aligned windows (they start at multiples of their length), `WindowDeviation` of windows at every
position. Packed sequences are measured as documents are, a run of tokens in a document's place.
What is said of the corpus's mix is, for a trait with targets that move, what can be had of them (`moving`).
Sources: the objective is that of Don't Shuffle, Optimize; distinct clusters are those of Diversity-Ordered Training.
"""

from dagster_divorder.core.measure.distinct import Distinct, distinct_clusters
from dagster_divorder.core.measure.diversity import WINDOWS, Diversity, average, measure, worse_batches
from dagster_divorder.core.measure.packed import measure_packed
from dagster_divorder.core.measure.seam import Seam
from dagster_divorder.core.measure.shares import cluster_mix
from dagster_divorder.core.measure.shuffling_check import ShufflingCheck, beats_shuffling
from dagster_divorder.core.measure.stationarity import Feature, Stationarity, stationarity
from dagster_divorder.core.measure.tracking import track
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
    "track",
    "windows_in_stream",
    "worse_batches",
]
