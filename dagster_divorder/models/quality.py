"""Scores the quality of texts with a Hugging Face text-classification model; scores are 0 or more.

A model with one output gives the score itself, at least 0 (FineWeb-Edu's classifier: 0 to 5). With several classes the
score is the mean of their numbers 0, 1, 2, ..., weighted by probability; with two, the probability of the second.
Guarantee: a score depends on its text alone, within rounding. Cost: a forward pass of the first WINDOW tokens at most.
Known weakness: later tokens of a long text do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.errors import InputError
from dagster_divorder.models.pretrained import explaining, load_config, load_tokenizer, read_checkpoint
from dagster_divorder.models.spec import context, padding_id

WINDOW = 512
"""Most tokens of a text that count, including special tokens; such classifiers were trained on as many."""
BATCH = 1 << 14
"""Positions of a batch, padding included."""


class Classifier:
    """The model of a checkpoint, on a device ("cpu", "cuda" or "mps").

    Raises:
        InputError: it is not a text-classification model; or as `models.deep.explaining`.
    """

    def __init__(self, directory: Path, device: str) -> None:
        config = load_config(directory)
        if config.get_text_config().pad_token_id is None:
            config.pad_token_id = 0
        with explaining(directory, device, "give a smaller model as selection.quality"):
            model, report = read_checkpoint(directory, "AutoModelForSequenceClassification", config=config)
            model = model.eval().to(device)
        if lacking := sorted(map(str, report["missing_keys"])):
            raise InputError(
                f"selection.quality: {directory} has no weights {', '.join(lacking[:3])}; expected a model trained for "
                "text classification, such as HuggingFaceFW/fineweb-edu-classifier"
            )
        self._model, self._device = model, device
        self._tokenizer = load_tokenizer(directory).backend_tokenizer
        self._tokenizer.enable_truncation(min(WINDOW, context(directory, config)[1]))

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Scores float32 (n,)."""
        import torch

        tokens = [encoded.ids or [0] for encoded in self._tokenizer.encode_batch(list(texts))]
        lengths = np.array([len(ids) for ids in tokens])
        order, scores, first = np.argsort(-lengths, kind="stable"), np.empty(len(tokens), np.float32), 0
        while first < len(order):
            longest = int(lengths[order[first]])
            rows = order[first : first + max(1, BATCH // longest)]
            ids = torch.full((len(rows), longest), padding_id(self._model.config))
            for at, row in enumerate(rows.tolist()):
                ids[at, : lengths[row]] = torch.tensor(tokens[row])
            mask = torch.arange(longest) < torch.from_numpy(lengths[rows])[:, None]
            with torch.inference_mode():
                logits = self._model(
                    input_ids=ids.to(self._device), attention_mask=mask.long().to(self._device)
                ).logits.float()
                classes = torch.arange(logits.shape[1], device=logits.device).float()
                score = logits.softmax(1) @ classes if len(classes) > 1 else logits[:, 0].clamp(min=0)
            scores[rows] = score.cpu().numpy()
            first += len(rows)
        return scores
