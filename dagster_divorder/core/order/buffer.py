"""buffer: a buffer of `buffer` items; a random one of them leaves as the next one enters.

What streaming data loaders do: a baseline, not advice.
Guarantee: no item moves forward by `buffer` places or more; it may fall back by any number.
Cost: O(M) time, `buffer` items in memory. Source: tf.data, webdataset, Hugging Face streaming; the third seed's
"rolling buffer that fits in RAM".
Known weakness: the mix moves as it does in the input, smoothed over some `buffer` items: blocks that are longer
than that stay blocks.
"""

import numpy as np

from dagster_divorder.core.order.problem import Order, Problem


def place(problem: Problem) -> Order:
    from dagster_divorder.core.kernels.order_buffer import through_buffer

    draws = np.random.default_rng(problem.seed).random(problem.items)
    return through_buffer(draws, min(problem.buffer, problem.items))
