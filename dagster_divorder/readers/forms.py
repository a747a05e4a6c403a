"""Forms of a batch: each function turns a block of rows into tensors under the names of one trainer.

Letters: n rows, L tokens a row, T tokens without padding, Q documents. Ids are int64; with `native` they have the
stored dtype (uint16, uint32 or int32), for trainers that convert ids on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dagster_divorder.readers.export import Block

IGNORED = -100
"""The label of tokens without a loss."""


def plain(block: Block, native: bool) -> dict[str, Any]:
    """{"input_ids", "labels"} (n, L), as transformers' models take them: the model shifts the labels.

    Labels of padding, and of tokens that are not trained on, are IGNORED; without either, the labels are the same
    tensor as the ids. With padding, "attention_mask", int64, is 1 for tokens. With `native` there are no labels,
    because labels are int64; an export with a loss mask has "loss_mask", bool (n, L), instead.
    """
    ids = _ids(block.ids, native)
    batch = {"input_ids": ids} if native else {"input_ids": ids, "labels": ids}
    if block.padded:
        batch["attention_mask"] = torch.from_numpy(block.filled).to(torch.int64)
    if not native and block.counted is not None:
        batch["labels"] = torch.from_numpy(np.where(block.counted, ids.numpy(), IGNORED))
    if native and block.trained is not None:
        batch["loss_mask"] = torch.from_numpy(block.trained)
    return batch


def flattened(block: Block, native: bool) -> dict[str, Any]:
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
        "input_ids": _ids(kept[None], native),
        "labels": torch.from_numpy(labels[None]),
        "position_ids": torch.from_numpy(_positions(lengths)[None]),
        "seq_idx": torch.from_numpy(np.arange(len(lengths), dtype=np.int32).repeat(lengths)[None]),
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": longest,
        "max_length_k": longest,
    }


def torchtitan(block: Block, native: bool) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The form of torchtitan's data loaders: ({"input", "positions"}, labels), each (n, L - 1). Labels are the next
    ids, IGNORED for padding and untrained tokens; positions, int64, begin at 0 in each document."""
    positions = _positions(_filled_up(block)).reshape(block.ids.shape)
    batch = {
        "input": _ids(block.ids[:, :-1], native),
        "positions": torch.from_numpy(positions[:, :-1].copy()),
    }
    return batch, _next(block)


def megatron(block: Block, native: bool) -> dict[str, torch.Tensor]:
    """The form of Megatron's datasets of packed sequences: tokens, labels, loss_mask float32, position_ids, all (n, L).

    Labels are the next tokens. loss_mask is 0 at a row's last token, which has no label, and before padding and
    untrained tokens. cu_seqlens: int32 (n, L + 1), starts of each row's documents, filled up with L; max_seqlen: int32
    (n,). Padding counts as part of the last document of its row.
    """
    (rows, length), lengths, counts = block.ids.shape, _filled_up(block), block.documents[1]
    begins = np.cumsum(lengths) - lengths
    row = np.arange(rows).repeat(counts)
    first = np.cumsum(counts) - counts
    bounds = np.full((rows, length + 1), length, np.int32)
    bounds[row, np.arange(len(row)) - first[row]] = begins - row * length
    labels = torch.full((rows, length), IGNORED)
    labels[:, :-1] = _next(block)
    return {
        "tokens": _ids(block.ids, native),
        "labels": labels.clamp(min=0),
        "loss_mask": (labels != IGNORED).float(),
        "position_ids": torch.from_numpy(_positions(lengths).reshape(rows, length)),
        "cu_seqlens": torch.from_numpy(bounds),
        "max_seqlen": torch.from_numpy(np.maximum.reduceat(lengths, first).astype(np.int32)),
    }


FORMS: dict[str, Callable[[Block, bool], Any]] = {
    form.__name__: form for form in (plain, flattened, torchtitan, megatron)
}


def _ids(ids: np.ndarray, native: bool) -> torch.Tensor:
    """A copy as a tensor: the ids may be a view of a file."""
    return torch.from_numpy(ids.astype(ids.dtype if native else np.int64, order="C"))


def _next(block: Block) -> torch.Tensor:
    """The ids after the first of each row, int64 (n, L - 1); IGNORED for padding and untrained tokens."""
    labels = block.ids[:, 1:].astype(np.int64, order="C")
    if block.counted is not None:
        labels[~block.counted[:, 1:]] = IGNORED
    return torch.from_numpy(labels)


def _positions(lengths: np.ndarray) -> np.ndarray:
    """0, 1, ... in each stretch of these lengths, int64."""
    return np.arange(lengths.sum()) - (np.cumsum(lengths) - lengths).repeat(lengths)


def _filled_up(block: Block) -> np.ndarray:
    """Tokens of each document, int64 (Q,); a row's padding counts to its last document."""
    lengths, counts = block.documents
    if block.filled is None:
        return lengths
    lengths = lengths.copy()
    lengths[np.cumsum(counts) - 1] += block.ids.shape[1] - block.filled.sum(1)
    return lengths
