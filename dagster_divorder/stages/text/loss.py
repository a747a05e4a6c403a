"""loss: the mean loss of each document under a causal language model, in nats a token (`curriculum.score = "loss"`).

Per document fragment: `loss` float32 (rows,), NaN if no token has a loss, or the loss is not finite; `tokens` int64
(rows,), length of a document in the model's own tokens; `flagged` uint8 (rows,), see `models.embed`.

The model is the same as for deep_embeddings: `deep.model`, else `model.base`. In a document longer than the model's
window only the first tokens count. With `deep.long_documents = "chunk"` all tokens count, and every later window begins
with the end of the one before. In conversations only the trained tokens count (`chats.train_on`) if the model has the
tokenizer of token_counts. A model with another tokenizer reads the words of conversations, and all tokens count. As in
deep_embeddings, the key holds device and dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dagster_divorder.engine.progress import Advance
from dagster_divorder.models.embed import NOT_FINITE, Work
from dagster_divorder.models.spec import EmbeddingSpec, read_spec
from dagster_divorder.pipeline.run import Run
from dagster_divorder.settings import Settings
from dagster_divorder.settings.sections import Deep
from dagster_divorder.stages.corpus.fields import computed_score
from dagster_divorder.stages.text.loss_mask import has_loss_mask, mask_of
from dagster_divorder.stages.topics.deep_embeddings import (
    Device,
    Embed,
    VectorsOfAModel,
    call_on_a_worker,
    embed_fields,
    embed_needs,
    vector_facts,
    vector_figures,
)
from dagster_divorder.stages.topics.deep_model import load_deep_model, locate_model
from dagster_divorder.store.base import Store
from dagster_divorder.store.fits import model_path
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.state import load_receipt
from dagster_divorder.store.view import Fragment

if TYPE_CHECKING:
    from dagster_divorder.models.deep import Model

STAGE = "loss"


def _setting(settings: Settings) -> str:
    """The setting that names the model."""
    return "deep.model" if settings.deep.model else "model.base"


def _losses_of(run: Run) -> Losses:
    """The function that the engine's machines run under these settings."""
    if "embed" not in run.memo:
        model, settings = load_deep_model(run), run.settings
        masked = has_loss_mask(settings) and model.engine is None
        run.memo["embed"] = Losses(
            **embed_fields(run, model),
            spec=call_on_a_worker(run, partial(_read_spec, run.store, model.place, settings.deep)),
            half=False,
            chunk=settings.deep.long_documents == "chunk",
            setting=_setting(settings),
            train_on=settings.chats.train_on if masked else None,
        )
    return run.memo["embed"]


def _read_spec(store: Store, model: str | Path, deep: Deep, device: Device) -> EmbeddingSpec:
    directory = model_path(store, model)
    spec = read_spec(directory, pooling="last", max_tokens=deep.max_tokens, device=device, dtype=deep.dtype)
    # No suffix, because a truncated text does not end there.
    return replace(spec, suffix=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses(Embed):
    """Computes the losses of a fragment's documents. setting: the setting that names the model. train_on: as
    `chats.train_on`; None if all tokens count."""

    setting: str
    train_on: str | None

    def recipe(self) -> dict[str, Any]:
        return {**Embed.recipe(self), "train_on": self.train_on}

    def load(self) -> Model:
        from dagster_divorder.models.loss import load

        directory = model_path(self.store, self.model)
        return load(directory, self.spec, setting=self.setting, vocabulary=self.vocabulary)

    def counted(self, fragment: Fragment, ids: np.ndarray) -> np.ndarray | None:
        if self.train_on is None:
            return None
        trained = mask_of(self.tokens, (fragment,), self.train_on).trained
        return trained.marked(np.zeros(1, np.int64), np.array([len(ids)]))

    def compute(
        self, fragment: Fragment, advance: Advance = lambda tokens: None
    ) -> tuple[dict[str, np.ndarray], Work]:
        arrays, work = Embed.compute(self, fragment, advance)
        # The vector (nats, tokens) was scaled to length 1; their quotient is unchanged.
        nats, number = arrays.pop("vectors").T
        has_loss = (number > 0) & ((arrays["flagged"] & NOT_FINITE) == 0)
        loss = np.divide(nats, number, out=np.full(len(nats), np.nan, np.float32), where=has_loss)
        return {"loss": loss, **arrays}, work


def _loss_facts(run: Run) -> dict[str, Any]:
    return vector_facts(run, STAGE, load_deep_model(run), _loss_settings(run.settings), _losses_of)


def _loss_settings(settings: Settings) -> Mapping[str, Any]:
    return {
        **settings.deep.model_dump(mode="json", include={"max_tokens", "long_documents", "dtype"}),
        "device": settings.engine.device,
        **({"train_on": settings.chats.train_on} if settings.masked else {}),
    }


def _loss_figures(run: Run, files: StageFiles) -> dict[str, Any]:
    spec = EmbeddingSpec(**_loss_facts(run)["made"]["spec"])
    losses = files.column(run.view.documents, "loss")[run.view.used_documents()]
    return {
        **vector_figures(run, files, spec, run.settings.deep_model, "have none", noun="loss"),
        "documents_without_loss": int(np.isnan(losses).sum()),
        "mean_loss": None if np.isnan(losses).all() else round(float(np.nanmean(losses)), 4),
    }


def _check_settings(run: Run) -> None:
    """
    Raises:
        InputError: the model is not a causal language model. The model of the last run is not checked again.
    """
    from dagster_divorder.models.loss import check_causal

    directory = locate_model(run.settings, "deep_model")
    if directory is not None and load_receipt(run.store, STAGE) is None:
        check_causal(directory, _setting(run.settings))


LOSS = VectorsOfAModel(
    name=STAGE,
    version=1,
    group="embedding",
    kinds={"huggingface", "pytorch"},
    description="How hard each document is: its mean loss under a causal language model, in nats a token.",
    reads=lambda settings: (
        *("raw_docs", "token_counts", "base_model", "deep_model"),
        *(["ids"] if settings.input.id_field else []),
    ),
    settings=_loss_settings,
    when=lambda settings: computed_score(settings) == STAGE,
    inputs=lambda run: {"model": load_deep_model(run).fingerprint, "made": _loss_facts(run)["made"]},
    key_from_inputs=True,
    facts=_loss_facts,
    doing="storing losses",
    check_settings=_check_settings,
    compute=_losses_of,
    needs=lambda run, missing: embed_needs(run, _losses_of(run)),
    figures=_loss_figures,
)
