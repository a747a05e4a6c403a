"""gradient_embeddings: the gradient of each document's mean next-token loss with respect to the parameters of the last
blocks of a causal language model, projected at random, L2-normalised.

Per document fragment: `vectors` float32 or float16 (rows, K), zero for a document without a gradient (it has no next
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
from dagster_divorder.settings import Settings
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
from dagster_divorder.stages.topics.deep_model import DeepModel, load_deep_model
from dagster_divorder.store.base import Store
from dagster_divorder.store.fits import model_path
from dagster_divorder.store.stages import StageFiles

if TYPE_CHECKING:
    from dagster_divorder.models.deep import Model

STAGE = "gradient_embeddings"
MAX_TOKENS = 768
"""First tokens of a document that count, so that fewer documents differ by length alone."""


def model_stage(settings: Settings) -> str:
    return "gradient_model" if settings.gradients.model else "deep_model"


def load_model(run: Run) -> DeepModel:
    return load_deep_model(run, model_stage(run.settings))


def _gradient_embeddings_facts(run: Run) -> dict[str, Any]:
    return vector_facts(run, STAGE, load_model(run), gradients_of)


def gradients_of(run: Run) -> Gradients:
    """The function that the engine's machines run under these settings."""
    if "embed" not in run.memo:
        asked, model, settings = run.settings.gradients, load_model(run), run.settings
        setting = "gradients.model" if asked.model else "deep.model" if settings.deep.model else "model.base"
        read = partial(_read, run.store, model.place, settings, setting)
        spec, parameters = call_on_a_worker(run, read)
        run.memo["embed"] = Gradients(
            **embed_fields(run, model),
            spec=spec,
            half=settings.advanced.stored == "float16",
            layers=asked.layers,
            dims=asked.dims,
            seed=settings.seed,
            parameters=tuple(parameters.items()),
            setting=setting,
        )
    return run.memo["embed"]


def _read(
    store: Store, model: str | Path, settings: Settings, setting: str, device: Device
) -> tuple[EmbeddingSpec, dict[str, int]]:
    """What the settings resolve to on a machine that computes: (how the model reads documents, name -> size of
    parameters whose gradients are taken)."""
    from dagster_divorder.models.gradients import describe

    directory, asked = model_path(store, model), settings.gradients
    spec = read_spec(directory, pooling="last", device=device, dtype=settings.deep.dtype)
    parameters = describe(directory, layers=asked.layers, dims=asked.dims, setting=setting)
    # No suffix, because a truncated text does not end there.
    window = min(spec.window, len(spec.prefix) + MAX_TOKENS)
    return replace(spec, suffix=(), window=window), parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients(Embed):
    """Computes the gradients of a fragment's documents with respect to `parameters` (names and sizes) in the last
    `layers` blocks. setting: names the model."""

    layers: int
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
            layers=self.layers,
            dims=self.dims,
            seed=self.seed,
            setting=self.setting,
            vocabulary=self.vocabulary,
        )


def _gradient_embeddings_figures(run: Run, files: StageFiles) -> dict[str, Any]:
    recipe = _gradient_embeddings_facts(run)["made"]
    model = run.settings.gradients.model or run.settings.deep_model
    spec, instead = EmbeddingSpec(**recipe["spec"]), "are kept out of every choice"
    return {
        **vector_figures(run, files, spec, model, instead, noun="gradient"),
        "blocks": run.settings.gradients.layers,
        "parameters": sum(recipe["parameters"].values()),
        "parameters_of": sorted(recipe["parameters"]),
    }


GRADIENT_EMBEDDINGS = VectorsOfAModel(
    name=STAGE,
    version=1,
    description="One vector a document: the gradient of its loss in the last blocks of a language model, projected at "
    "random, L2-normalised. It shows what training on the document would change.",
    reads=lambda settings: (
        *("raw_docs", "token_counts", "base_model", model_stage(settings)),
        *(["ids"] if settings.input.id_field else []),
    ),
    settings=("gradients", "deep.dtype", "advanced.stored", "engine.device", "seed"),
    # Refits cost as much as training on the corpus, so they need a request.
    when=lambda settings: settings.takes_gradients,
    decided_by=lambda run: {
        "model": load_model(run).fingerprint,
        "made": _gradient_embeddings_facts(run)["made"],
    },
    facts=_gradient_embeddings_facts,
    doing="taking gradients",
    by_text=True,
    compute=gradients_of,
    needs=lambda run, missing: embed_needs(run, gradients_of(run)),
    figures=_gradient_embeddings_figures,
)
