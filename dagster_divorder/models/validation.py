"""The loss of a causal model on held-out documents, for each source and in all.

Letters: n documents, W windows, B windows of a batch, L tokens of the longest.
Guarantee: every token of a document is predicted once, from the tokens before it in its window. A document begins after
the special token that the tokenizer puts before a text; if there is none, its first token is not predicted and does not
count. A window repeats the last token of the previous window. In conversations only the
trained tokens count; their text already includes special tokens.
Cost: the forward pass; memory of the logits, batch_tokens x vocabulary.
Source: TokenShard (On Shuffling Tokens), which tracks the validation loss of each source.
Known weakness: the first tokens of a later window see less of their document than a longer context would show.
Conversations are written with the chat template of `model.base`, not the model's own.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dagster_divorder.errors import InputError
from dagster_divorder.models.chat_tokens import encode_trained
from dagster_divorder.models.checkpoint import check_vocabulary
from dagster_divorder.models.embed import batch_end
from dagster_divorder.models.pretrained import quiet, save_tokenizer
from dagster_divorder.models.spec import special_tokens_around
from dagster_divorder.models.tokenize import load_encoder, load_reference

if TYPE_CHECKING:
    import pandas as pd
    import torch

HELDOUT = "heldout.parquet"
COLUMNS = ["source", "text"]
TRAINED = "trained"
"""The column of trained spans in a file of conversations: characters {first, last} of each span."""
SPANS = pa.list_(pa.struct({"first": pa.int64(), "last": pa.int64()}))
ALL, EQUAL = "all", "all, equal shares"
DOCUMENTS = 1024
"""Documents that are read at a time; their windows are sorted by length together."""
IGNORED = -100
"""The target of tokens without a loss."""


def loss_by_source(
    model: Any,
    heldout: str | Path,
    *,
    tokenizer: str | Path | None = None,
    context: int | None = None,
    batch_tokens: int = 8192,
) -> pd.DataFrame:
    """A row for each source and two rows for all sources: `source`, `documents`, `tokens` (predicted), `bytes` of
    UTF-8, `loss` in nats a token, `bits_per_byte`. In conversations only trained tokens and bytes count.

    The last row, `all`, weighs sources by their tokens. The row before it is the mean over sources: the loss of the
    same model with equal shares.

    model: a causal model of transformers, on its device. heldout: a Parquet file with the columns `source` and `text`,
    or the folder of an output that has one; for conversations also `trained`, the trained characters {first, last}.
    tokenizer: directory of a tokenizer.json, by default the folder that the model comes from. context: most tokens of a
    window, by default the model's context. batch_tokens: most tokens of a batch, including padding, and of a window.

    Raises:
        InputError: the file is missing or lacks a column; the tokenizer cannot be used, or is not the model's; or a
            window has fewer than 2 tokens.
    """
    import pandas as pd
    import pyarrow.parquet as pq

    file = Path(heldout) / HELDOUT if Path(heldout).is_dir() else Path(heldout)
    config = model.config.get_text_config()
    longest = getattr(config, "max_position_embeddings", None) or batch_tokens
    window = min(context or longest, longest, batch_tokens)
    if window < 2:
        raise InputError(
            f"a window of {window} tokens predicts none; give a context and batch_tokens of 2 or more"
        )
    folder = Path(tokenizer or model.name_or_path)
    if not (folder / "tokenizer.json").is_file():
        raise InputError(f"{folder} holds no tokenizer.json; give the directory of the model's as tokenizer")
    with TemporaryDirectory() as saved:
        save_tokenizer(folder, Path(saved))
        encoder, reference = load_encoder(saved), load_reference(Path(saved))
    before = special_tokens_around(folder)[0][-1:]
    check_vocabulary(folder, len(model.get_input_embeddings().weight), encoder.vocab_size)
    try:
        parquet = pq.ParquetFile(file)
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(
            f"{file} cannot be read as Parquet ({error}); expected the folder of an output that has {HELDOUT} "
            "(heldout.documents), or a Parquet file of held-out documents"
        ) from error
    schema = parquet.schema_arrow
    if missing := set(COLUMNS) - set(schema.names):
        raise InputError(f"{file} has no column {min(missing)!r}; expected {' and '.join(COLUMNS)}")
    # A user's own file may have an unrelated column of this name.
    marked = TRAINED in schema.names and schema.field(TRAINED).type.equals(SPANS)
    columns = [*COLUMNS, *([TRAINED] if marked else [])]
    sums: dict[str, NDArray[np.float64]] = {}
    training = model.training
    model.eval()
    try:
        for batch in parquet.iter_batches(DOCUMENTS, columns=columns):
            texts = [text or "" for text in batch["text"].to_pylist()]
            if marked:
                rows = batch[TRAINED].to_pylist()
                spans = [[(span["first"], span["last"]) for span in row or []] for row in rows]
                read = encode_trained(texts, spans, reference)
            else:
                spans = [[(0, len(text))] for text in texts]
                ids, lengths = encoder.encode(texts)
                begins = np.repeat(np.cumsum(lengths) - lengths, len(before))
                ids, lengths = np.insert(ids, begins, before * len(texts)), lengths + len(before)
                read = ids, lengths, np.ones(len(ids), bool)
            with quiet():
                tokens, losses = text_losses(model, *read, window=window, batch_tokens=batch_tokens)
            for source, text, counted, *numbers in zip(
                batch["source"].to_pylist(), texts, spans, tokens, losses, strict=True
            ):
                size = sum(len(text[first:last].encode()) for first, last in counted)
                sums.setdefault(source or "", np.zeros(4))
                sums[source or ""] += [1, *numbers, size]
    finally:
        model.train(training)
    if not sums:
        raise InputError(f"{file} holds no document; expected held-out documents")
    sources = pd.DataFrame.from_dict(sums, "index", columns=["documents", "tokens", "nats", "bytes"])
    table = pd.concat([sources.sort_index(), pd.DataFrame([sources.sum()] * 2, [EQUAL, ALL])])
    table["bits"] = table["nats"] / np.log(2)
    for column, part, of in (("loss", "nats", "tokens"), ("bits_per_byte", "bits", "bytes")):
        values = table[part] / table[of]  # NaN for a source without a token
        values.iloc[-2] = values.iloc[:-2].mean()
        table[column] = values
    counts = ["documents", "tokens", "bytes"]
    table = table.astype(dict.fromkeys(counts, np.int64)).rename_axis("source").reset_index()
    return table[["source", *counts, "loss", "bits_per_byte"]]


def text_losses(
    module: Any,
    ids: NDArray[np.integer],
    lengths: NDArray[np.int64],
    counts: NDArray[np.bool_],
    *,
    window: int,
    batch_tokens: int,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(predicted tokens of each text that count, int64 (n,); the sum of their losses in nats, float64 (n,)).

    module: a causal model of transformers. ids: of the texts, end to end, (T,). lengths: number of ids of each text,
    int64 (n,). counts: which ids count, bool (T,). window: most tokens of a window. batch_tokens: of a batch.
    """
    import torch

    begins = np.cumsum(lengths) - lengths
    # The first token of a text has nothing to be predicted from.
    counts = counts.copy()
    counts[begins[lengths > 0]] = False
    # A window holds the tokens that it predicts and one token before them.
    room, predictable = window - 1, np.maximum(lengths - 1, 0)
    windows = -(-predictable // room)
    text = np.arange(len(lengths)).repeat(windows)
    start = room * (np.arange(len(text)) - (np.cumsum(windows) - windows)[text])
    sizes = np.minimum(predictable[text] - start, room) + 1
    order = np.argsort(-sizes, kind="stable")
    first, sizes = (begins[text] + start)[order], sizes[order]
    losses = np.zeros(len(text))
    at = 0
    while at < len(order):
        end = batch_end(sizes, at, batch_tokens)
        inside = np.arange(sizes[at])
        # No token of a causal model sees the padding after it.
        real = inside < sizes[at:end, None]
        places = np.where(real, first[at:end, None] + inside, 0)
        tokens, counted = ids[places].astype(np.int64), counts[places] & real
        targets = np.where(counted, tokens, IGNORED)[:, 1:]
        with torch.inference_mode():
            sums = summed_losses(
                module,
                torch.from_numpy(tokens[:, :-1]).to(module.device),
                torch.from_numpy(targets).to(module.device),
            )
        losses[order[at:end]] = sums.cpu().numpy()
        at = end
    predicted = np.bincount(np.arange(len(lengths)).repeat(lengths), counts, len(lengths)).astype(np.int64)
    return predicted, np.bincount(text, losses, len(lengths)).astype(np.float64)


def summed_losses(module: Any, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The sum of the losses of each row, in nats, float32 (B,). ids, targets: int64 (B, L), the tokens and the token
    after each, IGNORED where none counts."""
    import torch

    logits = module(input_ids=ids, use_cache=False).logits
    # A row at a time, as the logits of a batch in float32 would double its memory.
    return torch.stack(
        [
            torch.nn.functional.cross_entropy(row.float(), target, ignore_index=IGNORED, reduction="sum")
            for row, target in zip(logits, targets, strict=True)
        ]
    )
