"""All settings as one frozen object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import orjson
import xxhash
from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from dagster_divorder.errors import InputError
from dagster_divorder.settings.sections import (
    Animation,
    AriComparison,
    Automation,
    ClusterMap,
    Clusters,
    Comparison,
    Deep,
    Embedding,
    Engine,
    Input,
    KCalibration,
    Model,
    Order,
    Output,
    Packing,
    Sequence,
    Store,
    declaring,
)

if TYPE_CHECKING:
    from dagster_divorder.core.order import Strategy

ENV_PREFIX = "DIVORDER_"

# An integer per stage, raised when the stage's output bytes change for the same input. Part of recipe() and of every
# stage key, so that results of older code are recomputed and never mixed with new ones.
CODE_VERSIONS = {
    "raw_docs": 3,
    "base_model": 1,
    "token_counts": 1,
    "shallow_embeddings": 1,
    "deep_embeddings": 2,
    "external_embeddings": 1,
    "ari_comparison": 2,
    "k_calibration": 3,
    "clusters": 4,
    "cluster_map": 2,
    "greedy_order": 3,
    "packed_sequences": 2,
    "sequence_order": 2,
    "diversity_metrics": 3,
    "strategy_comparison": 2,
    "ordering_report": 2,
    "ordering_animation": 1,
    "curated_output": 3,
}


class Settings(BaseSettings):
    """All settings. Build it with `load_settings`, or in Python with keyword arguments (then nothing else is read)."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
    )

    input: Input = Input()
    store: Store = Store()
    model: Model = Model()
    embedding: Embedding = Embedding()
    deep: Deep = Deep()
    ari_comparison: AriComparison = AriComparison()
    k_calibration: KCalibration = KCalibration()
    clusters: Clusters = Clusters()
    cluster_map: ClusterMap = ClusterMap()
    order: Order = Order()
    packing: Packing = Packing()
    sequence: Sequence = Sequence()
    comparison: Comparison = Comparison()
    output: Output = Output()
    animation: Animation = Animation()
    engine: Engine = Engine()
    automation: Automation = Automation()
    seed: int = Field(0, ge=0, lt=1 << 63)

    @model_validator(mode="after")
    def _compared_vectors_are_there(self) -> Self:
        if "external" in self.ari_comparison.spaces and self.embedding.path is None:
            raise ValueError(
                f"ari_comparison.spaces is {list(self.ari_comparison.spaces)}, and embedding.path is unset; give there "
                "the .npy or Parquet file that holds the vectors"
            )
        return self

    @model_validator(mode="after")
    def _options_of_strategies_in_use(self) -> Self:
        if not self.order.options:
            return self
        used = [
            self.order.strategy,
            self.sequence.strategy,
            *self.comparison.documents,
            *self.comparison.sequences,
        ]
        from dagster_divorder.core.order.strategy import nearest

        try:
            declared = {option for name in used for option in self.strategy(name).options}
        except InputError as error:
            raise ValueError(f"order.options: {error}") from None
        for option in sorted(self.order.options.keys() - declared):
            having = declaring(option)
            raise ValueError(
                f"order.options.{option} is an option of {', '.join(having)}, which neither order.strategy, "
                "sequence.strategy nor comparison names; remove it"
                if having
                else f"order.options.{option} is an option of no strategy; those in use have "
                f"{', '.join(sorted(declared)) or 'none'}{nearest(option, declared)}"
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Keyword arguments alone decide when Python builds the object; load_settings hands in file and environment."""
        return (init_settings,)

    def share(self, stage: str) -> dict[str, Any]:
        """What of the settings decides a stage's own result (its upstream's share not included)."""
        bootstrap = self.model.base == "bootstrap"
        order_reads = self.strategy(self.order.strategy).reads
        shares: dict[str, dict[str, Any]] = {
            "raw_docs": {
                "paths": self.input.paths,
                "text_field": self.input.text_field,
                "max_record_bytes": self.input.max_record_bytes,
            },
            "base_model": {
                "base": self.model.base,
                "vocab_size": self.model.vocab_size if bootstrap else None,
                "dim": self.model.dim if bootstrap else None,
                "seed": self.seed if bootstrap else None,
                **({"revision": self.model.revision} if self.model.revision else {}),
            },
            "token_counts": {},
            "shallow_embeddings": {"pooling": self.embedding.pooling},
            "deep_embeddings": {
                **self.deep.model_dump(
                    mode="json", exclude={"model", "revision", "pca", "tensor_parallel", "train_tokens"}
                ),
                **({"revision": self.deep_revision} if self.deep_revision else {}),
                "model": self.deep_model,
                "train_tokens": self.deep.train_tokens if self.deep_model == "bootstrap" else None,
                "seed": self.seed if self.deep_model == "bootstrap" else None,
            },
            "external_embeddings": {
                "path": str(self.embedding.path),
                **({"nan_as_zero": True} if self.embedding.nan_as_zero else {}),
            },
            "ari_comparison": {
                "comparison": self.ari_comparison.model_dump(mode="json"),
                "k": self.clusters.k,
                **self._clustering,
                "pca": [self.components[kind] for kind in self.ari_comparison.spaces],
                "seed": self.seed,
            },
            "k_calibration": {
                "values": self.k_calibration.values,
                "sample": self.k_calibration.sample,
                "space": self._space,
                **self._clustering,
                "sequence_length": self.sequence.length,
                "batch": self.sequence.batch,
                "vectors": self.sequence.vectors,
                "length_bins": self.order.length_bins,
                "seed": self.seed,
            },
            "clusters": {
                "k": self.clusters.k,
                **self._clustering,
                "space": self._space,
                "seed": self.seed,
            },
            "cluster_map": {
                "sample": self.cluster_map.sample,
                "space": self._space,
                "seed": self.seed,
            },
            "greedy_order": {
                "order": self._order_by(self.order.strategy),
                "sequence_length": self.sequence.length if "sequence_length" in order_reads else None,
                "batch": self.sequence.batch
                if "batch" in order_reads or self.order.separate_copies
                else None,
                "source_field": self.input.source_field,
                "seed": self.seed,
            },
            "packed_sequences": {
                "packing": self.packing.model_dump(mode="json"),
                "length": self.sequence.length,
                # Pieces are ordered here.
                "order": self._order_by(self.order.strategy) if self.packing.piece_tokens else None,
                "batch": self.sequence.batch if self.packing.piece_tokens else None,
                "separate_copies": self.order.separate_copies,
                "seed": self.seed,
            },
            "sequence_order": {
                "strategy": self.sequence.strategy,
                "batch": self.sequence.batch,
                "vectors": self.sequence.vectors,
                "epochs": self.sequence.epochs,
                "order": self._order_by(self.sequence.strategy),
                "seed": self.seed,
            },
            "diversity_metrics": {
                "traits": sorted(self.order.traits),
                "length_bins": self.order.length_bins,
                "sequence": self.sequence.model_dump(mode="json"),
                "seed": self.seed,
                **({"targets": self.order.targets} if self.order.targets else {}),
            },
            "strategy_comparison": {
                "comparison": self.comparison.model_dump(mode="json"),
                "order": self._order_by(*self.comparison.documents, *self.comparison.sequences),
                "sequence": {
                    "length": self.sequence.length,
                    "batch": self.sequence.batch,
                    "vectors": self.sequence.vectors,
                },
                "seed": self.seed,
            },
            "ordering_report": {
                # What it says was asked; what came of that it reads from the stages before it.
                "order": self._order_by(self.order.strategy, self.sequence.strategy),
                "packing": self.packing.model_dump(mode="json"),
                "sequence": self.sequence.model_dump(mode="json"),
                "model": [self.model.base, self.model.vocab_size, self.model.dim],
                "vectors": [
                    self._space,
                    None if self.embedding.kind == "shallow" else self.deep_model,
                    str(self.embedding.path),
                ],
                "k": self.clusters.k,
                "source_field": self.input.source_field,
                "seed": self.seed,
            },
            "ordering_animation": {
                "animation": self.animation.model_dump(mode="json"),
                "sequence_length": self.sequence.length,
                "seed": self.seed,
            },
            "curated_output": {
                "output": self.output.model_dump(mode="json"),
                "source_field": self.input.source_field,
            },
        }
        return shares[stage]

    def _order_by(self, *strategies: str) -> dict[str, Any]:
        """The section `order`, with the options of these strategies alone."""
        return {
            **self.order.model_dump(mode="json", exclude={"options"}),
            "options": {name: self.strategy_options(name) for name in strategies},
        }

    def strategy(self, name: str) -> Strategy:
        """A strategy with those of `order.options` that it declares."""
        from dagster_divorder.core.order import STRATEGIES

        given = self.order.options
        own = STRATEGIES[name].option_names(given)
        return STRATEGIES[name].with_options(**{key: given[key] for key in own if key in given})

    def strategy_options(self, name: str) -> dict[str, Any]:
        """The options of a strategy as it runs here, defaults among them."""
        return dict(self.strategy(name).options)

    @property
    def deep_model(self) -> str:
        """Id or directory of the model of deep_embeddings, or `bootstrap`."""
        return self.deep.model or self.model.base

    @property
    def deep_revision(self) -> str | None:
        """Revision of `deep_model`."""
        return self.deep.revision if self.deep.model else self.model.revision

    @property
    def components(self) -> dict[str, int]:
        """Principal components by kind of vectors, 0 for all dimensions."""
        pca = self.embedding.pca
        return {"shallow": pca, "deep": pca if self.deep.pca is None else self.deep.pca, "external": pca}

    @property
    def _space(self) -> dict[str, Any]:
        """What of the settings says which vectors are clustered, and how they are seen."""
        kind, pca = self.embedding.kind, self.components
        return {
            "kind": kind,
            "pooling": self.embedding.pooling if kind in ("shallow", "auto") else None,
            "pca": [pca[kind] for kind in self.ari_comparison.spaces] if kind == "auto" else pca[kind],
        }

    @property
    def _clustering(self) -> dict[str, Any]:
        """What of the settings says how vectors are clustered. Clusters by the defaults are those of stores that
        know no metric yet."""
        chosen = self.clusters.model_dump(mode="json", include={"algorithm", "metric"})
        defaults = Clusters().model_dump(mode="json", include={"algorithm", "metric"})
        return {"algorithm": self.clusters.algorithm} if chosen == defaults else chosen

    def recipe(self, stage: str) -> str:
        """Code version of a stage: its code's integer and a hash of its share of the settings, such as `1-9f3a0c5e`."""
        share = orjson.dumps(self.share(stage), option=orjson.OPT_SORT_KEYS, default=str)
        return f"{CODE_VERSIONS[stage]}-{xxhash.xxh3_64_hexdigest(share)}"
