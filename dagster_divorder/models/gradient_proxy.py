"""Cosines of N documents' gradients: of all P parameters, of the last n blocks, and of these projected to k dims.

Cost: N forward and backward passes for each GROUP_BYTES of the 4 N P bytes of gradients, and 2 k P of the projection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.models.gradients import GradientModel, autograd, last_blocks, project

GROUP_BYTES = 4 << 30
"""Bytes of gradients in memory at once; a larger parameter is alone."""


def proxy_cosines(
    model: GradientModel, windows: Sequence[NDArray[np.int64]], blocks: Sequence[int], dims: Sequence[int]
) -> dict[str | int | tuple[str, int], NDArray[np.float64]]:
    """Cosines float64 (n, n) of the n documents whose gradient is finite and not zero: `"whole"`, by number of last
    blocks, and for the model's own last blocks by ("dims", number). windows: tokens of each, int64 (L,), at least 2."""
    import torch

    sizes = {name: each.numel() for name, each in model.module.named_parameters()}
    projected, grams = torch.zeros(len(windows), max(dims)), {}
    for group in _groups(sizes, GROUP_BYTES // (4 * len(windows))):
        gradients = {name: torch.empty(len(windows), sizes[name]) for name in group}
        for row, window in enumerate(windows):
            tokens = torch.from_numpy(window[np.newaxis]).to(model.device)
            for name, gradient in autograd(model.module, tokens, group).items():
                gradients[name][row] = gradient.cpu()
        for name, gradient in gradients.items():
            grams[name] = (gradient @ gradient.T).double().numpy()
            if name in model.parameters:
                project(gradient, projected, seed=model.seed, name=name)
    found: dict[Any, NDArray[np.float64]] = {"whole": np.sum([*grams.values()], axis=0)}
    for count in blocks:
        found[count] = np.sum([grams[name] for name in last_blocks(model.module, count)], axis=0)
    for count in dims:
        found["dims", count] = (projected[:, :count] @ projected[:, :count].T).double().numpy()
    squares = np.diagonal(found["whole"])
    used = np.flatnonzero(np.isfinite(squares) & (squares > 0))
    return {key: _cosines(gram[np.ix_(used, used)]) for key, gram in found.items()}


def _groups(sizes: Mapping[str, int], most: int) -> list[list[str]]:
    """Names in order, in groups of `most` numbers at most, or of one name."""
    groups, room = list[list[str]](), 0
    for name, size in sizes.items():
        if size > room:
            groups.append([])
            room = most
        groups[-1].append(name)
        room -= size
    return groups


def _cosines(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cosines from inner products (n, n); 0 with vectors of zeros."""
    sizes = np.sqrt(np.maximum(np.diagonal(gram), np.finfo(float).tiny))
    return gram / sizes / sizes[:, np.newaxis]
