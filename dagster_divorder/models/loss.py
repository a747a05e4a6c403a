"""The mean loss of each document under a causal language model, in nats a token.

Letters: B windows of a batch, L tokens of the longest, V vocabulary.

    loss = mean over counted tokens of -log p(x_t | x_1 ... x_t-1)

A token counts if a token precedes it in its window; the tokenizer's own first token (BOS) is enough. So the first token
of a document has a loss only with a BOS token. Later windows of a long document begin with the end of the window
before, as context that does not count again.

The body of the model runs once a batch. The model's own code makes logits for a few positions at a time, so that scaled
and capped logits are right, and a large vocabulary takes little memory.

Guarantee: for each document the same loss as transformers' for this document alone, within rounding; checked on two
windows whenever a model is loaded. The softmax is computed in float32.
Cost: a forward pass with all logits: 2 V multiplications a token and width besides the body's.
Source: Shannon 1948 (cross-entropy); Marion et al. 2023 (perplexity of a model as a score of data).
Known weakness: one device holds the model (`deep.tensor_parallel` is not used).
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.errors import InputError
from dagster_divorder.models.checkpoint import (
    SENTENCE_TRANSFORMERS,
    check_vocabulary,
    first_line,
    read_object,
)
from dagster_divorder.models.deep import Model, load_module, sees_ahead
from dagster_divorder.models.gradients import LOGITS
from dagster_divorder.models.spec import EmbeddingSpec, quiet

if TYPE_CHECKING:
    import torch

OVERLAP = 1 / 4
"""Share of a later window that is only context."""

TOLERANCE = {"float32": 1e-4, "bfloat16": 0.05, "float16": 0.02}
"""Largest relative difference of a window's loss from transformers', checked when a model is loaded."""


def check_causal(directory: Path, setting: str) -> None:
    """
    Raises:
        InputError: by its files the checkpoint is not a causal language model. setting: names the checkpoint.
    """
    architectures = read_object(directory / "config.json").get("architectures") or []
    if any((directory / name).is_file() for name in SENTENCE_TRANSFORMERS):
        raise no_causal(directory, setting, "a model of sentence-transformers")
    if any(name.endswith(("ForMaskedLM", "ForPreTraining")) for name in architectures):
        raise no_causal(directory, setting, architectures[0])


def no_causal(directory: Path, setting: str, kind: str) -> InputError:
    return InputError(
        f"curriculum.score is 'loss', but {setting} is {directory} ({kind}), which is not a causal language model: it "
        "gives no probability of the next token; set deep.model to a causal language model, or follow another score, "
        "such as 'difficulty', which needs no model"
    )


def load(directory: Path | str, spec: EmbeddingSpec, *, setting: str, vocabulary: int = 0) -> LossModel:
    """The model of a checkpoint, ready to give losses. vocabulary: one more than the largest token id. setting: names
    the model.

    Raises:
        InputError: as `deep.load_module`; it is not a causal language model; or its losses differ from transformers'.
    """
    directory = Path(directory)
    check_causal(directory, setting)
    try:
        module = load_module(directory, spec, "AutoModelForCausalLM")
    except InputError as error:
        raise InputError(
            f"{error}, or set deep.model to a causal language model with its output layer"
        ) from error
    check_vocabulary(directory, len(module.get_input_embeddings().weight), vocabulary)
    model = LossModel(module, spec)
    with quiet():
        if sees_ahead(model, model.body):
            raise no_causal(directory, setting, type(module).__name__)
        _check(directory, model)
    return model


class LossModel(Model):
    """A loaded model; a call gives (nats, number) of the counted tokens of each window, both over the window's
    tokens."""

    relief = "lower deep.max_tokens"
    overlap = OVERLAP
    counts_tokens = True

    def __init__(self, module: Any, spec: EmbeddingSpec) -> None:
        super().__init__(module.requires_grad_(False), spec)
        self.dims, self.masked = 2, False
        self.body = module.base_model
        self._given = threading.local()
        """Holds `output`, which the body returns in this thread instead of computing; absent while it computes."""
        compute = self.body.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            output = getattr(self._given, "output", None)
            return compute(*args, **kwargs) if output is None else output

        self.body.forward = forward

    def __call__(
        self, ids: NDArray[np.int64], lengths: NDArray[np.int64], counted: NDArray[np.bool_] | None = None
    ) -> torch.Tensor:
        """float32 (B, 2), on the model's device: nats of each window's counted tokens, and their number, both divided
        by the window's tokens of the document. ids: int64 (B, L), padded on the right; lengths: int64 (B,), number of
        ids in each row without padding; counted: bool (B, L), None for all. The first id never counts."""
        import torch
        from torch.nn.functional import cross_entropy

        if counted is None:
            counted = np.arange(ids.shape[1]) < lengths[:, None]
        with torch.inference_mode():
            tokens = torch.from_numpy(ids).to(self.device)
            output = self.body(input_ids=tokens)
            hidden = output.last_hidden_state
            marks = torch.from_numpy(counted[:, 1:]).to(self.device)
            window, at = marks.nonzero(as_tuple=True)
            losses = torch.zeros(marks.shape, device=self.device)
            step = max(1, LOGITS[self.spec.device] // self.module.config.get_text_config().vocab_size)
            for first in range(0, len(at), step):
                rows = slice(first, first + step)
                logits = self._logits(type(output), hidden[window[rows], at[rows]])
                targets = tokens[window[rows], at[rows] + 1]
                losses[window[rows], at[rows]] = cross_entropy(logits.float(), targets, reduction="none")
            real = torch.from_numpy(lengths - len(self.spec.prefix) - len(self.spec.suffix))
            sums = torch.stack([losses.sum(1), marks.sum(1).float()], 1)
            return sums / real.clamp(min=1).to(self.device)[:, None]

    def _logits(self, kind: type, hidden: torch.Tensor) -> torch.Tensor:
        """Logits (n, V) of hidden states (n, D), by the model's own code. kind: what the body returns."""
        import torch

        self._given.output = kind(last_hidden_state=hidden[None])
        try:
            some_ids = torch.zeros((1, len(hidden)), dtype=torch.int64, device=self.device)
            return self.module(input_ids=some_ids).logits[0]
        finally:
            del self._given.output


def _check(directory: Path, model: LossModel) -> None:
    """Raises InputError if the losses of two short windows differ from transformers' for each window alone."""
    import torch

    length = min(model.spec.window, 8)
    ids = np.arange(2 * length).reshape(2, length) % 3 + 1
    lengths = np.array([length, max(1, length - 2)])
    try:
        nats, number = model(ids, lengths).double().T
        losses = (nats / number).tolist()
        with torch.inference_mode():
            tokens = [
                torch.from_numpy(ids[row : row + 1, :real]).to(model.device)
                for row, real in enumerate(lengths)
            ]
            expected = [float(model.module(input_ids=each, labels=each).loss) for each in tokens]
    except Exception as error:
        raise InputError(
            f"{directory} ({type(model.module).__name__}) gives no losses of documents ({type(error).__name__}: "
            f"{first_line(error)}); set deep.model to another causal language model"
        ) from error
    if not np.allclose(losses, expected, rtol=TOLERANCE[model.spec.dtype], equal_nan=True):
        raise InputError(
            f"the losses of two windows of {directory} ({type(model.module).__name__}) are {losses[0]:.4g} and "
            f"{losses[1]:.4g}, and transformers' own {expected[0]:.4g} and {expected[1]:.4g}; set deep.model to "
            "another causal language model"
        )
