"""bin_packing: items into bins of `sequence_length` tokens, largest first, each bin preferring labels it lacks.

An empty bin takes the largest remaining item; an open one the largest that fits among the labels it lacks, else the
largest that fits at all, else it is closed. An item longer than a bin gets one of its own. Of equal lengths a random
item goes. Bins are concatenated as they close.
Guarantee: no item up to a bin long crosses a bin's edge, if bins are padded; first-fit-decreasing-like fill.
Cost: O(M (K + log M)) time, O(M) memory. Source: the first seed's baseline.
Known weakness: length falls along the order, the longest items come first: the mix of lengths drifts from one end of
training to the other. Read without padding, later sequences do not start where bins do.
"""

from dagster_divorder.core.order.problem import Order, Problem
from dagster_divorder.core.order.runs import runs
from dagster_divorder.errors import InputError


def place(problem: Problem) -> Order:
    from dagster_divorder.core.kernels.order_packing import largest_that_fits

    if problem.sequence_length is None:
        raise InputError("strategy 'bin_packing' got no sequence_length; expected the tokens a bin holds")
    sorted_items, shuffle = runs(problem)
    return shuffle[largest_that_fits(*sorted_items, problem.sequence_length)]
