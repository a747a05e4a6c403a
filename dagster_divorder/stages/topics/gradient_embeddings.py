"""gradient_embeddings: the gradient of each document's mean next-token loss with respect to the parameters of the last
blocks of a causal language model, projected at random, L2-normalised.

Per document fragment: `vectors` float32 (rows, K), zero for a document without a gradient (it has no next
token, or its loss or gradient is not finite); `tokens` int64 (rows,), its length in the model's own tokens; `flagged`
uint8 (rows,), see `models.embed`. Choices leave out documents that are NOT_FINITE.

The stage key holds device and dtype, as in deep_embeddings, and the names of the parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_divorder.models.spec import EmbeddingSpec, read_spec
from dagster_divorder.pipeline.run import Run
from dagster_divorder.stages.topics.deep_embeddings import (
    Device,
    Embed,
    call_on_a_worker,
    embed_fields,
    vector_figures,
    vectors_of_a_model,
)
from dagster_divorder.stages.topics.deep_model import load_deep_model
from dagster_divorder.store.base import Store
from dagster_divorder.store.fits import model_path
from dagster_divorder.store.stages import StageFiles

if TYPE_CHECKING:
    from dagster_divorder.models.deep import Model

LAYERS = 2
"""Last blocks whose gradients are taken: more are nearer to the whole model's gradients, in more time."""
DIMS = 1024
"""Most dims of a projected gradient: more keep cosines more closely, for more time and disk."""
MAX_TOKENS = 768
"""First tokens of a document that count, so that fewer documents differ by length alone."""


def gradients_of(run: Run) -> Gradients:
    """The function that the engine's machines run under these settings."""
    model, settings = load_deep_model(run), run.settings
    setting = "deep.model" if settings.deep.model else "model.base"
    spec, parameters = call_on_a_worker(run, partial(_read, run.store, model.place, setting))
    return Gradients(
        **embed_fields(run, model),
        spec=spec,
        dims=min(DIMS, sum(parameters.values())),
        seed=settings.seed,
        parameters=tuple(parameters.items()),
        setting=setting,
    )


def _read(
    store: Store, model: str | Path, setting: str, device: Device
) -> tuple[EmbeddingSpec, dict[str, int]]:
    """What the settings resolve to on a machine that computes: (how the model reads documents, name -> size of
    parameters whose gradients are taken)."""
    from dagster_divorder.models.gradients import describe

    directory = model_path(store, model)
    spec = read_spec(directory, pooling="last", device=device)
    # No suffix, because a truncated text does not end there.
    window = min(spec.window, len(spec.prefix) + MAX_TOKENS)
    return replace(spec, suffix=(), window=window), describe(directory, layers=LAYERS, setting=setting)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients(Embed):
    """Computes the gradients of a fragment's documents with respect to `parameters` (names and sizes). setting:
    names the model."""

    dims: int
    seed: int
    parameters: tuple[tuple[str, int], ...]
    setting: str

    def recipe(self) -> dict[str, Any]:
        projection = {"dims": self.dims, "seed": self.seed, "parameters": dict(self.parameters)}
        return {**Embed.recipe(self), **projection}

    def load(self) -> Model:
        from dagster_divorder.models.gradients import load

        return load(
            model_path(self.records.fragments.store, self.model),
            self.spec,
            layers=LAYERS,
            dims=self.dims,
            seed=self.seed,
            setting=self.setting,
            vocabulary=self.vocabulary,
        )


def _gradient_embeddings_figures(run: Run, files: StageFiles) -> dict[str, Any]:
    parameters = run.memo["made"]["made"]["parameters"]
    return {
        **vector_figures(run, files, "are kept out of every choice", noun="gradient"),
        "blocks": LAYERS,
        "parameters": sum(parameters.values()),
        "parameters_of": sorted(parameters),
    }


GRADIENT_EMBEDDINGS = vectors_of_a_model(
    "gradient_embeddings",
    gradients_of,
    version=1,
    description="One vector a document: the gradient of its loss in the last blocks of a language model, projected at "
    "random, L2-normalised. It shows what training on the document would change.",
    settings=("deep.model", "engine.device", "seed"),
    # Refits cost as much as training on the corpus, so they need a request.
    when=lambda settings: settings.selects,
    doing="taking gradients",
    figures=_gradient_embeddings_figures,
)
