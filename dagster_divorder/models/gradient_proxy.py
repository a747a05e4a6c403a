"""Cosines of documents' gradients: of all parameters, of the last n blocks, and of these projected to k dims.

Letters: N documents, P parameters, K dims.

Cost: a forward and backward pass a document through the whole model, 4 N P bytes, and 2 K P of the projection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.models.gradients import GradientModel, autograd, blocks_of, last_blocks, project

if TYPE_CHECKING:
    import torch

COLUMNS = 1 << 20
"""Most parameters whose products are summed at a time."""


@dataclass(frozen=True, eq=False)
class ProxyCosines:
    """Cosines, float64 (n, n), of the gradients of the n documents whose gradient is finite and not zero.

    whole: of all parameters. blocks: by number of last blocks. dims: of the model's own last blocks, by number of dims
    to which they are projected. parameters: their number, by number of last blocks; 0: in the whole model.
    """

    whole: NDArray[np.float64]
    blocks: Mapping[int, NDArray[np.float64]]
    dims: Mapping[int, NDArray[np.float64]]
    parameters: Mapping[int, int]


def parameters_of(model: GradientModel) -> int:
    """Parameters of the whole model."""
    return sum(each.numel() for each in model.module.parameters())


def block_counts(model: GradientModel, own: int) -> list[int]:
    """Numbers of last blocks to compare: powers of 2, all blocks, and the model's `own` number."""
    count = len(blocks_of(model.module))
    return sorted({own, count, *(2**power for power in range(count.bit_length()))})


def proxy_cosines(
    model: GradientModel,
    windows: Sequence[NDArray[np.int64]],
    blocks: Sequence[int],
    dims: Sequence[int],
    advance: Callable[[int], object] = lambda documents: None,
) -> ProxyCosines:
    """Cosines of the gradients of documents' losses. windows: tokens of each document, int64 (L,), at least two."""
    import torch

    names = [name for name, _ in model.module.named_parameters()]
    gradients: dict[str, torch.Tensor] = {}
    for row, window in enumerate(windows):
        of_window = autograd(model.module, torch.from_numpy(window[np.newaxis]).to(model.device), names)
        for name, gradient in of_window.items():
            if not row:
                gradients[name] = torch.empty(len(windows), gradient.numel())
            gradients[name][row] = gradient.cpu()
        advance(1)
    grams = {name: _gram(each) for name, each in gradients.items()}
    whole = _sum(grams, grams)
    used = np.flatnonzero(np.isfinite(np.diagonal(whole)) & (np.diagonal(whole) > 0))
    inside = np.ix_(used, used)
    included = {count: last_blocks(model.module, count).included for count in blocks}
    projected = torch.zeros(len(used), max(dims))
    for name in model.proxy.included:
        project(gradients[name][torch.from_numpy(used)], projected, seed=model.seed, name=name)
    return ProxyCosines(
        _cosines(whole[inside]),
        {count: _cosines(_sum(grams, sizes)[inside]) for count, sizes in included.items()},
        {count: _cosines(_gram(projected[:, :count])) for count in dims},
        {0: parameters_of(model), **{count: sum(sizes.values()) for count, sizes in included.items()}},
    )


def _gram(vectors: torch.Tensor) -> NDArray[np.float64]:
    """Inner products of all pairs of rows (n, size), float64 (n, n)."""
    total = np.zeros((len(vectors), len(vectors)))
    for first in range(0, vectors.shape[1], COLUMNS):
        part = vectors[:, first : first + COLUMNS]
        total += (part @ part.T).double().numpy()
    return total


def _sum(grams: Mapping[str, NDArray[np.float64]], names: Iterable[str]) -> NDArray[np.float64]:
    return np.sum([grams[name] for name in names], axis=0)


def _cosines(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cosines from inner products (n, n); 0 with vectors of zeros."""
    sizes = np.sqrt(np.diagonal(gram))
    sizes = np.where(sizes > 0, sizes, 1.0)
    return gram / sizes / sizes[:, np.newaxis]
