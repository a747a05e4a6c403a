"""Forms of a batch: each function turns a block of rows into tensors under the names of one trainer.

Letters: n rows, L tokens a row, T tokens without padding, Q documents. Ids are int64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dagster_divorder.readers.export import Block

IGNORED = -100
"""The label of tokens without a loss."""


def plain(block: Block) -> dict[str, Any]:
    """{"input_ids", "labels"} (n, L), as transformers' models take them: the model shifts the labels.

    Labels of padding, and of tokens that are not trained on, are IGNORED; without either, the labels are the same
    tensor as the ids. With padding, "attention_mask", int64, is 1 for tokens.
    """
    ids = _ids(block.ids)
    batch = {"input_ids": ids, "labels": ids}
    if block.padded:
        batch["attention_mask"] = torch.from_numpy(block.filled).to(torch.int64)
    if block.counted is not None:
        batch["labels"] = torch.from_numpy(np.where(block.counted, ids.numpy(), IGNORED))
    return batch


def flattened(block: Block) -> dict[str, Any]:
    """The names of transformers' and TRL's flattened (padding-free) batches: (1, T), documents laid end to end.

    input_ids; labels int64, IGNORED for a document's first token and for tokens that are not trained on; position_ids
    int64 from 0 in each document; seq_idx int32, the document's number; cu_seq_lens_q and _k int32 (Q + 1,),
    max_length_q and _k int.
    """
    lengths, _ = block.documents
    kept = block.ids.reshape(-1) if block.filled is None else block.ids[block.filled]
    begins = np.concatenate([[0], np.cumsum(lengths)])
    labels = kept.astype(np.int64)
    labels[begins[:-1]] = IGNORED
    if block.trained is not None:
        trained = block.trained.reshape(-1) if block.filled is None else block.trained[block.filled]
        labels[~trained] = IGNORED
    ends = torch.from_numpy(begins.astype(np.int32))
    longest = int(lengths.max())
    return {
        "input_ids": _ids(kept[None]),
        "labels": torch.from_numpy(labels[None]),
        "position_ids": torch.from_numpy(_positions(lengths)[None]),
        "seq_idx": torch.from_numpy(np.arange(len(lengths), dtype=np.int32).repeat(lengths)[None]),
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": longest,
        "max_length_k": longest,
    }


def torchtitan(block: Block) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The form of torchtitan's data loaders: ({"input", "positions"}, labels), each (n, L - 1). Labels are the next
    ids, IGNORED for padding and untrained tokens; positions, int64, begin at 0 in each document."""
    lengths, counts = block.documents
    if block.filled is not None:
        # A row's padding counts to its last document.
        lengths = lengths.copy()
        lengths[np.cumsum(counts) - 1] += block.ids.shape[1] - block.filled.sum(1)
    positions = _positions(lengths).reshape(block.ids.shape)
    batch = {"input": _ids(block.ids[:, :-1]), "positions": torch.from_numpy(positions[:, :-1].copy())}
    labels = block.ids[:, 1:].astype(np.int64, order="C")
    if block.counted is not None:
        labels[~block.counted[:, 1:]] = IGNORED
    return batch, torch.from_numpy(labels)


FORMS: dict[str, Callable[[Block], Any]] = {form.__name__: form for form in (plain, flattened, torchtitan)}


def _ids(ids: np.ndarray) -> torch.Tensor:
    """A copy as a tensor: the ids may be a view of a file."""
    return torch.from_numpy(ids.astype(np.int64, order="C"))


def _positions(lengths: np.ndarray) -> np.ndarray:
    """0, 1, ... in each stretch of these lengths, int64."""
    return np.arange(lengths.sum()) - (np.cumsum(lengths) - lengths).repeat(lengths)
