"""The strategies by name. Each is one file with one function `place(problem)`."""

from __future__ import annotations

from collections.abc import Callable

from dagster_divorder.core.order import (
    balanced,
    bin_packing,
    block_shuffle,
    buffer,
    f1,
    f2,
    f3,
    grid_shuffle,
    jittered,
    original,
    random,
    round_robin,
    stratified,
    token_deficit,
    token_share_greedy,
    within_shard,
)
from dagster_divorder.core.order.problem import Order, Problem

TAKING_COORDINATES = frozenset({"balanced", "f3"})
"""Strategies that look at dense coordinates, as `block_shuffle` does where it shuffles the blocks of one."""

STRATEGIES: dict[str, Callable[[Problem], Order]] = {
    "original": original.place,
    "random": random.place,
    "round_robin": round_robin.place,
    "stratified": stratified.place,
    "token_deficit": token_deficit.place,
    "token_share_greedy": token_share_greedy.place,
    "bin_packing": bin_packing.place,
    "jittered": jittered.place,
    "balanced": balanced.place,
    "f1": f1.place,
    "f2": f2.place,
    "f3": f3.place,
    "block_shuffle": block_shuffle.place,
    "grid_shuffle": grid_shuffle.place,
    "within_shard": within_shard.place,
    "buffer": buffer.place,
}
