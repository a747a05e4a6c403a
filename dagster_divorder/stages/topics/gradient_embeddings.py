"""gradient_embeddings: the gradient of each document's mean next-token loss with respect to the parameters of the last
blocks of a causal language model, projected at random, L2-normalised.

Per document fragment: `vectors` float32 (rows, K), zero for a document without a gradient (it has no next
token, or its loss or gradient is not finite); `tokens` int64 (rows,), its length in the model's own tokens; `flagged`
uint8 (rows,), see `models.embed`. Choices leave out documents that are NOT_FINITE.

The stage key holds device and dtype, as in deep_embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_divorder.models.spec import EmbeddingSpec, read_spec
from dagster_divorder.pipeline.run import Run
from dagster_divorder.stages.topics.deep_embeddings import (
    Device,
    Embed,
    embed_fields,
    vector_figures,
    vectors_of_a_model,
)
from dagster_divorder.store.base import Store
from dagster_divorder.store.stages import model_path

if TYPE_CHECKING:
    from dagster_divorder.models.embed import Embedder

LAYERS = 2
"""Last blocks whose gradients are taken: more are nearer to the whole model's gradients, in more time."""
DIMS = 1024
"""Most dims of a projected gradient: more keep cosines more closely, for more time and disk."""
MAX_TOKENS = 768
"""First tokens of a document that count, so that fewer documents differ by length alone."""


def gradients_of(run: Run) -> Gradients:
    """The function that the engine's machines run under these settings."""
    return Gradients(**embed_fields(run, _read), dims=DIMS, seed=run.settings.seed)


def _read(store: Store, model: str | Path, device: Device) -> EmbeddingSpec:
    """How the model reads documents on a machine that computes."""
    spec = read_spec(model_path(store, model), pooling="last", device=device)
    # No suffix, because a truncated text does not end there.
    return replace(spec, suffix=(), window=min(spec.window, len(spec.prefix) + MAX_TOKENS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients(Embed):
    """Computes the gradients of a fragment's documents."""

    dims: int
    seed: int

    def recipe(self) -> dict[str, Any]:
        return {**Embed.recipe(self), "projection": [self.dims, self.seed], "blocks": LAYERS}

    def load(self) -> Embedder:
        from dagster_divorder.models.gradients import load

        return load(
            model_path(self.records.fragments.store, self.model.place),
            self.spec,
            layers=LAYERS,
            dims=self.dims,
            seed=self.seed,
            vocabulary=self.model.vocabulary,
        )


GRADIENT_EMBEDDINGS = vectors_of_a_model(
    "gradient_embeddings",
    gradients_of,
    version=2,
    description="One vector a document: the gradient of its loss in the last blocks of a language model, projected at "
    "random, L2-normalised. It shows what training on the document would change.",
    settings=("deep.model", "engine.device", "seed"),
    # Refits cost as much as training on the corpus, so they need a request.
    when=lambda settings: settings.selects,
    doing="taking gradients",
    figures=lambda run, files: {**vector_figures(run, files), "blocks": LAYERS},
)
