"""Where rows have to lie for trainers whose ranks and workers each read a contiguous slice of the export."""

from __future__ import annotations

import numpy as np

from dagster_divorder.trainers.trainer import Rows


def transposed(rows: int, *, world_size: int, micro_batch: int, workers: int = 0) -> Rows:
    """int64 (n,): position in the file -> row of the order, so that step i of all ranks reads the order's own rows
    i * W * b up to (i + 1) * W * b.

    The file is W slices of `workers` slices (0 counts as 1), and a rank takes a micro-batch from each of its workers
    in turn. n is the largest multiple of W * b * workers up to `rows`: the last `rows` - n rows are left out, since
    slices of unequal length would shift all others.
    """
    turn = max(workers, 1)
    whole = rows // (world_size * micro_batch * turn)
    order = np.arange(whole * turn * world_size * micro_batch).reshape(whole, turn, world_size, micro_batch)
    return order.transpose(2, 1, 0, 3).reshape(-1)
