"""The settings: one frozen object shared by the UI, the command line, schedules and Python.

Sources, the later one wins: built-in defaults (they run the sample corpus), a TOML file, environment variables
`DIVORDER_<SECTION>__<KEY>`. The file is the one named by `DIVORDER_CONFIG`, else `divorder.toml` in the working
directory if there is one. Relative paths are relative to the file (to the working directory where there is no file).

Settings decide results, so each stage's share of them, `settings.recipe(stage)`, is its Dagster code version: an
edited settings file shows its stages as stale.
"""

from __future__ import annotations

import difflib
import glob
import os
import tomllib
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import orjson
import xxhash
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)
from pydantic_settings import SettingsError as PydanticSettingsError

from dagster_divorder.errors import SettingsError

ENV_PREFIX = "DIVORDER_"
CONFIG_VARIABLE = "DIVORDER_CONFIG"
DEFAULT_FILE = "divorder.toml"
MAX_CLUSTERS = 1_000_000
MAX_RECORD_BYTES = 64 << 20

MAX_COUNT = 1 << 53
"""The largest of numbers that nothing else bounds: beyond it neither JSON nor float64 is exact."""

YEAR_SECONDS = 365 * 24 * 3600

MIN_STEP = 1e-9
"""Progress between two points of `order.targets`, of which slopes are made: a thousand tokens of a trillion."""

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
    "cluster_map": 3,
    "greedy_order": 3,
    "packed_sequences": 2,
    "sequence_order": 2,
    "diversity_metrics": 3,
    "strategy_comparison": 2,
    "ordering_report": 2,
    "ordering_animation": 1,
    "curated_output": 3,
}


def _split_paths(value: Any) -> Any:
    """One path, or several separated by the platform's path separator, is what a shell variable can hold."""
    if isinstance(value, str):
        return [part for part in value.split(os.pathsep) if part]
    return value


def _no_empty_path(value: Any) -> Any:
    """An empty path would stand for the working directory."""
    for path in [value] if isinstance(value, (str, Path)) else value or ():
        if not str(path).strip() or path == Path() or "\0" in str(path):
            raise ValueError(
                "an empty path, or one with a NUL in it, is no path; give the path of a file or folder"
            )
    return value


FolderPath = Annotated[Path, BeforeValidator(_no_empty_path)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Input(_Section):
    paths: Annotated[
        tuple[str, ...], NoDecode, AfterValidator(_no_empty_path), BeforeValidator(_split_paths)
    ] = ("data/sample/docs.jsonl",)
    """Files, folders or globs; JSONL (plain, .gz, .zst, .bz2, .xz, .lz4) or Parquet, one kind per corpus."""
    text_field: str = Field("text", min_length=1)
    """Field (column) that holds a document's text."""
    source_field: str | None = Field(None, min_length=1)
    """Field shown as `source` in results; also usable as a trait by its own name."""
    max_reject_share: float = Field(0.01, ge=0, le=1)
    """A run fails before it stores anything when a larger share of the records is refused."""
    max_record_bytes: int = Field(MAX_RECORD_BYTES, ge=1, le=1 << 30)
    """A larger record is refused, and a larger line never held whole; more memory, up to ten times as much, as it
    rises."""

    @field_validator("paths")
    @classmethod
    def _not_empty(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        if not paths:
            raise ValueError("at least one file, folder or glob is needed")
        return paths


class Store(_Section):
    path: FolderPath = Path("data/store")
    """Folder of fragments, stage results and fits; can be deleted at the price of computing everything again."""
    wait: bool = True
    """A second run on the same store waits for the first one to end; false: it fails at once."""


class Output(_Section):
    path: FolderPath = Path("data/curated")
    """Folder of the curated corpus: this store's own, in which no other files of the same names lie."""
    format: Literal["auto", "jsonl", "parquet"] = "auto"
    """auto writes the input's own kind, byte for byte."""
    shard_bytes: int = Field(2 << 30, ge=1, le=MAX_COUNT)
    """A larger output is cut into numbered files of about this many bytes; fewer, larger files as it rises."""
    sidecars: bool = False
    """Also write token_counts.npy and embeddings.npy, one row per accepted record in input order."""
    plot: bool = True
    """Also draw ordering_comparison.png."""


class Model(_Section):
    base: str = Field("bootstrap", min_length=1)
    """Hugging Face id or directory of the model to be trained, or `bootstrap` (trained here, no download)."""
    revision: str | None = Field(None, min_length=1)
    """Of a Hugging Face id: the branch, tag or commit to use; a commit pins what the Hub serves. Unset: its main
    branch, whatever that is on the day."""
    vocab_size: int = Field(32_768, ge=512, le=1 << 20)
    """Tokens of the bootstrap tokenizer; finer statistics and a larger table as it rises."""
    dim: int = Field(128, ge=2, le=8192)
    """Width of the bootstrap table."""
    refit: Literal["never", "now"] = "never"
    """now trains the bootstrap (and the pooling weights) again; everything after it is then computed again."""

    @model_validator(mode="after")
    def _revision_of_an_id(self) -> Self:
        if self.revision and self.base == "bootstrap":
            raise ValueError(
                'revision names a state of a Hugging Face id, and base is "bootstrap"; remove it'
            )
        return self


class Embedding(_Section):
    kind: Literal["shallow", "deep", "external", "auto"] = "shallow"
    """shallow: pooled rows of the base model's token table; deep: hidden states of `deep.model`; external: vectors of
    your own, from `path`; auto: deep where ari_comparison finds other structure there that tells as much of the
    texts, else shallow (the second of ari_comparison.spaces, else the first)."""
    pooling: Literal["mean", "idf"] = "idf"
    """Of the shallow ones. mean is the plain average; idf weighs rare tokens up and is centred when clustering (better
    by measurement)."""
    path: FolderPath | None = None
    """For external: .npy (a row per accepted record in input order) or Parquet (record_id, doc_id or row, and a
    vector)."""
    nan_as_zero: bool = False
    """Of external ones: a row that holds NaN counts as a vector of zeros, a document without direction; false: it is an
    error."""
    pca: int = Field(0, ge=0, le=MAX_COUNT)
    """Principal components that vectors are reduced to before they are clustered, as many as there are of them; 0: all
    dimensions are kept."""

    @model_validator(mode="after")
    def _external_has_a_path(self) -> Self:
        if self.kind == "external" and self.path is None:
            raise ValueError('kind = "external" needs path, the .npy or Parquet file that holds the vectors')
        return self


class Deep(_Section):
    model: str | None = Field(None, min_length=1)
    """Hugging Face id or directory of a causal or encoder model; unset: `model.base`."""
    revision: str | None = Field(None, min_length=1)
    """As model.revision, of deep.model."""
    pooling: Literal["auto", "mean", "last", "cls"] = "auto"
    """What of the last hidden states makes a vector; auto is what the checkpoint says (1_Pooling/config.json of
    sentence-transformers), else mean."""
    max_tokens: int = Field(0, ge=0, le=MAX_COUNT)
    """Tokens of a document that the model sees at once, at most its context; 0: its context."""
    long_documents: Literal["truncate", "chunk"] = "truncate"
    """truncate: the first max_tokens tell; chunk: the token-weighted mean over consecutive windows, so that a whole
    book counts, at its price."""
    pca: int | None = Field(None, ge=0, le=MAX_COUNT)
    """Principal components of the deep vectors alone; unset: as embedding.pca."""
    stored: Literal["float32", "float16"] = "float32"
    """float16 halves the disk at some 3 digits."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """auto takes a GPU where there is one."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of the forward pass; auto: the checkpoint's own on a GPU; on a CPU bfloat16 where that is fast (AMX), else
    float32."""
    tensor_parallel: int = Field(1, ge=1, le=64)
    """Processes (GPUs) that share one model, for models larger than one GPU."""
    train_tokens: int = Field(2_000_000, ge=0, le=MAX_COUNT)
    """Tokens that the bootstrap base model's decoder is trained on, about a minute on 2 cores; better vectors as it
    rises."""

    @model_validator(mode="after")
    def _revision_of_an_id(self) -> Self:
        if self.revision and self.model in (None, "bootstrap"):
            raise ValueError(
                f"revision names a state of a Hugging Face id, and model is {self.model or 'unset'}; remove it "
                "(model.revision is that of model.base)"
            )
        return self


class Clusters(_Section):
    k: int | Literal["auto"] = Field(30)
    """Number of clusters; finer topics, and fewer documents in each, as it rises. auto: what k_calibration
    recommends."""
    algorithm: Literal["faiss", "minibatch"] = "faiss"
    """faiss: k-means on a sample, 256 documents a cluster; minibatch: scikit-learn's MiniBatchKMeans over all of them
    (up to 1 GB of vectors), in batches of 4,096 from the best of 3 starts."""
    metric: Literal["cosine", "euclidean"] = "cosine"
    """cosine: vectors count by their direction from the mean (or from zero, where embedding.pooling = "mean");
    euclidean: as they are, the papers' way."""
    refit: Literal["auto", "now", "never"] = "auto"
    """auto refits when the corpus has doubled or new documents lie too far out; never keeps the first fit."""

    @field_validator("k")
    @classmethod
    def _some_clusters(cls, k: int | str) -> int | str:
        if isinstance(k, int) and not 1 <= k <= MAX_CLUSTERS:
            raise ValueError(f'expected a number from 1 to {MAX_CLUSTERS:,}, or "auto"')
        return k


class KCalibration(_Section):
    values: tuple[int, ...] = (5, 10, 15, 20, 25, 30, 40, 50, 75, 100)
    """Numbers of clusters to try, up to 10,000 each."""
    sample: int = Field(0, ge=0, le=MAX_COUNT)
    """Documents that the silhouette is computed on; 0: all of them."""
    refresh: float = Field(0.2, ge=0, le=1)
    """Calibrates again once more than this share of the documents has changed; 0: on every change."""

    @field_validator("values")
    @classmethod
    def _rising(cls, values: tuple[int, ...]) -> tuple[int, ...]:
        if (
            not values
            or any(b <= a for a, b in pairwise(values))
            or not 2 <= values[0] <= values[-1] <= 10_000
        ):
            raise ValueError("expected rising numbers from 2 to 10,000")
        return values


class AriComparison(_Section):
    spaces: tuple[Literal["shallow", "deep", "external"], Literal["shallow", "deep", "external"]] = (
        "shallow",
        "deep",
    )
    """Two kinds of vectors, as in embedding.kind: whether the second holds other structure than the first, and is worth
    using."""
    sample: int = Field(0, ge=0, le=MAX_COUNT)
    """Documents that the silhouettes are computed on; 0: all of them."""
    refresh: float = Field(0.2, ge=0, le=1)
    """Compares again once more than this share of the documents has changed; 0: on every change."""

    @field_validator("spaces")
    @classmethod
    def _two_kinds(cls, spaces: tuple[str, str]) -> tuple[str, str]:
        if spaces[0] == spaces[1]:
            raise ValueError('expected two kinds of vectors, such as ["shallow", "external"]')
        return spaces


class ClusterMap(_Section):
    sample: int = Field(20_000, ge=1, le=MAX_COUNT)
    """Documents on the map at most, drawn at random; a fuller map at more time as it rises."""
    refit: Literal["never", "now"] = "never"
    """now fits the map again; else documents that came later are placed on the first one, and the others stay."""


def _known_strategy(name: str) -> str:
    from dagster_divorder.core.order import STRATEGIES

    if name not in STRATEGIES:
        raise ValueError(f"Input should be one of {', '.join(sorted(STRATEGIES))}")
    return name


def _no_blocks_of_blocks(name: str) -> str:
    if name == "block_shuffle":
        raise ValueError("block_shuffle shuffles the batches of another strategy; name that one")
    return name


Strategy = Annotated[str, AfterValidator(_known_strategy)]


class Order(_Section):
    strategy: Strategy = "balanced"
    """Order of the documents: one of the strategies in the README's table."""
    within_cluster: Literal["random", "original", "length-asc", "length-desc", "length-riffle"] = "random"
    """Order of the documents inside a cluster, for the strategies that pick a cluster first."""
    traits: dict[str, Annotated[float, Field(ge=1e-6, le=1e6)]] = Field(
        default_factory=lambda: {"cluster": 1.0, "length": 1.0}
    )
    """What to balance and how strongly, from 1e-6 to 1e6: `cluster`, `length`, `difficulty` (how hard its tokens are to
    predict), or any field of the input."""
    length_bins: int = Field(100, ge=1, le=10_000)
    """Quantile bins of document length (and of numeric columns)."""
    frozen_tokens: int = Field(0, ge=0, le=MAX_COUNT)
    """Tokens that a trainer has consumed of the last output: its beginning is kept as it is, and everything after it
    is ordered so that the whole history nears the mix."""
    separate_copies: bool = False
    """Records of equal text stand as far apart as possible, among the documents and in the sequences of every epoch."""
    targets: dict[str, dict[str, tuple[float, ...]]] = Field(default_factory=dict)
    """A mix that moves: trait -> a table of `progress` (rising from 0 to 1) and the share of some of its values."""
    shards: int = Field(64, ge=1, le=MAX_COUNT)
    """Contiguous parts that `within_shard` and `grid_shuffle` shuffle."""
    buffer: int = Field(10_000, ge=1, le=MAX_COUNT)
    """Items that `buffer` holds."""
    f2_lambda: float = Field(1.0, ge=0, le=1e6)
    """Weight of the norms' term of `f2`; concentrated items wait less as it rises."""
    block_strategy: Annotated[Strategy, AfterValidator(_no_blocks_of_blocks)] = "balanced"
    """The strategy whose batches `block_shuffle` shuffles."""

    @field_validator("traits")
    @classmethod
    def _some_trait(cls, traits: dict[str, float]) -> dict[str, float]:
        if not traits:
            raise ValueError("at least one trait is needed, such as { cluster = 1.0 }")
        return traits

    @model_validator(mode="after")
    def _targets_of_traits(self) -> Self:
        for trait, table in self.targets.items():
            if trait not in self.traits:
                raise ValueError(
                    f"targets names {trait!r}, which is not one of traits: {sorted(self.traits)}"
                )
            if "progress" not in table or len(table) < 2:
                raise ValueError(f"targets.{trait} needs `progress` and the shares of at least one value")
            for name, column in table.items():
                if len(column) != len(table["progress"]):
                    raise ValueError(
                        f"targets.{trait}.{name} has {len(column)} numbers; progress has {len(table['progress'])}"
                    )
                if not all(0.0 <= number <= 1.0 for number in column):
                    raise ValueError(
                        f"targets.{trait}.{name} is {list(column)}; expected numbers from 0 to 1"
                    )
            points = table["progress"]
            rises = all(b - a >= MIN_STEP for a, b in pairwise(points))
            if not points or points[0] != 0 or points[-1] != 1 or not rises:
                raise ValueError(
                    f"targets.{trait}.progress is {list(points)}; expected numbers that rise from 0 to 1, each by "
                    f"{MIN_STEP:g} or more"
                )
        return self


class Packing(_Section):
    method: Literal["concat", "best_fit", "related"] = "concat"
    """concat cuts documents at sequence ends; best_fit cuts only those longer than a sequence, and pads; related puts
    similar documents into one sequence."""
    piece_tokens: int = Field(0, ge=0, le=MAX_COUNT)
    """Cut longer documents into pieces of this many tokens before they are ordered for packing; 0: never. Sequences
    hold more topics as it falls, and less long context."""
    end_of_text: bool = False
    """Count one end-of-text token after every document."""


class Sequence(_Section):
    length: int = Field(8192, ge=1, le=1 << 31)
    """Tokens of a training sequence."""
    batch: int = Field(256, ge=1, le=1 << 20)
    """Sequences of a batch."""
    strategy: Strategy = "balanced"
    """Order of the packed sequences; `original` leaves them as packed."""
    vectors: int = Field(64, ge=0, le=1024)
    """Dims of a sequence's mean vector, along random axes, that `balanced` and `f3` balance beside the traits: what is
    alike in every trait still differs in them; 0: none."""
    epochs: int = Field(1, ge=1, le=100)
    """Orders of the sequences, one an epoch, each another."""


class Comparison(_Section):
    documents: tuple[Strategy, ...] = (
        "original",
        "random",
        "round_robin",
        "stratified",
        "bin_packing",
        "balanced",
    )
    """Document orders that strategy_comparison runs."""
    sequences: tuple[Strategy, ...] = ("original", "random", "balanced")
    """Sequence orders that it runs on each of them."""


class Animation(_Section):
    frames: int = Field(600, ge=2, le=10_000)
    """Pictures of each film; smoother, and longer to draw, as it rises."""
    fps: int = Field(30, ge=1, le=120)
    """Pictures a second."""


class Engine(_Section):
    workers: int = Field(0, ge=0, le=1024)
    """Processes that tokenise, 0 for one a core; faster as it rises up to the cores, at some 400 MB each. No result
    depends on it."""


class Automation(_Section):
    interval_seconds: int = Field(10, ge=1, le=YEAR_SECONDS)
    """How often Dagster's sensor looks at the input files; fewer looks, and later runs, as it rises."""
    settle_seconds: float = Field(10.0, ge=0, le=YEAR_SECONDS)
    """A changed file has to be still for this long before a run starts; fewer runs on half-written files as it
    rises."""


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
                "sequence_length": self.sequence.length
                if "bin_packing" in self._strategies(self.order.strategy)
                else None,
                "batch": self.sequence.batch
                if self.order.strategy == "block_shuffle" or self.order.separate_copies
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

    def _strategies(self, *named: str) -> set[str]:
        """Strategies that run where those named do."""
        return {*named, *([self.order.block_strategy] if "block_shuffle" in named else [])}

    def _order_by(self, *strategies: str) -> dict[str, Any]:
        """The section `order`, without what one strategy alone reads that is none of these."""
        run = self._strategies(*strategies)
        read_by = {"f2_lambda": "f2", "block_strategy": "block_shuffle"}
        unread = {field for field, strategy in read_by.items() if strategy not in run}
        return self.order.model_dump(mode="json", exclude=unread)

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


def load_settings(
    config: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None
) -> Settings:
    """Settings from file and environment.

    Args:
        config: TOML file; default: what `DIVORDER_CONFIG` names, else `divorder.toml` if it is there, else none.
        environ: environment to read; default `os.environ`.

    Raises:
        SettingsError: file missing or not TOML, unknown key, wrong type or impossible value. The message names the
            key, the value, what was expected and the nearest valid key.
    """
    environ = os.environ if environ is None else environ
    path = _config_path(config, environ)
    data = _read_toml(path) if path else {}
    _check_environment(environ)
    try:
        settings = Settings(**_merge(data, _read_environment(environ)))
    except ValidationError as error:
        raise SettingsError(_explain(error, path)) from None
    settings = _anchor(settings, path.parent if path else Path.cwd())
    refuse_overlap(settings)
    return settings


def refuse_overlap(settings: Settings) -> None:
    """Make sure that nothing is written where something is read. (A store or an output *below* an input folder is no
    fault: it is passed over when the folder is read.)

    Raises:
        SettingsError: store and output overlap, or an input lies in one of them.
    """
    written = {"store.path": settings.store.path, "output.path": settings.output.path}
    real = {key: os.path.realpath(path) for key, path in written.items()}
    if _is_in(real["store.path"], real["output.path"]) or _is_in(real["output.path"], real["store.path"]):
        raise SettingsError(
            f"store.path {written['store.path']} and output.path {written['output.path']} overlap; expected two "
            "folders, neither in the other"
        )
    read = [("input.paths", path) for path in settings.input.paths]
    read += [("embedding.path", str(settings.embedding.path))] if settings.embedding.path else []
    for key, pattern in read:
        for place, folder in real.items():
            if _is_in(os.path.realpath(_fixed_beginning(pattern)), folder):
                raise SettingsError(
                    f"{key} {pattern!r} lies in {place} {written[place]}, where files are overwritten and removed; "
                    f"set {place} to a folder in which no input lies"
                )


def _is_in(path: str, folder: str) -> bool:
    """Whether a real path is a folder or something in it."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _fixed_beginning(pattern: str) -> str:
    """The path of a file or folder itself; of a glob the folders before the first one with a wildcard."""
    if os.path.exists(pattern):
        return pattern
    while glob.has_magic(pattern):
        pattern = os.path.dirname(pattern)
    return pattern


def _config_path(config: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> Path | None:
    named = config or environ.get(CONFIG_VARIABLE)
    path = Path(named) if named else Path(DEFAULT_FILE)
    if path.is_file():
        return path.resolve()
    if named:
        where = "the config argument" if config else CONFIG_VARIABLE
        raise SettingsError(f"{where} names {str(path)!r}, which is not a file; give the path of a TOML file")
    return None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from None


def _read_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    source = EnvSettingsSource(Settings)
    source.env_vars = {name.lower(): value for name, value in environ.items()}
    try:
        return source()
    except PydanticSettingsError as error:
        raise SettingsError(
            f"environment: {error}; a whole section is JSON, a single key is {ENV_PREFIX}<SECTION>__<KEY>"
        ) from None


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        inner = merged.get(key)
        merged[key] = _merge(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged


def _check_environment(environ: Mapping[str, str]) -> None:
    for name in environ:
        upper = name.upper()
        if not upper.startswith(ENV_PREFIX) or upper == CONFIG_VARIABLE:
            continue
        section = upper.removeprefix(ENV_PREFIX).split("__")[0].lower()
        if section not in Settings.model_fields:
            raise SettingsError(
                f"environment variable {name} is no setting: unknown section {section!r}"
                f"{_nearest(section, Settings.model_fields)}"
            )


def _anchor(settings: Settings, base: Path) -> Settings:
    """Make paths absolute: seen from the folder of the file that holds them."""

    # Of `os.path`, which takes any text for a path, where `Path` raises for users that are not there and long names.
    def absolute(path: str | Path) -> str:
        return os.path.normpath(base / os.path.expanduser(path))

    def absolute_model(model: str) -> str:
        local = model.startswith((".", "~")) or os.path.isdir(base / model)
        return absolute(model) if local and model != "bootstrap" else model

    deep, path = settings.deep, settings.embedding.path
    return settings.model_copy(
        update={
            "input": settings.input.model_copy(
                update={"paths": tuple(absolute(path) for path in settings.input.paths)}
            ),
            "store": settings.store.model_copy(update={"path": Path(absolute(settings.store.path))}),
            "output": settings.output.model_copy(update={"path": Path(absolute(settings.output.path))}),
            "model": settings.model.model_copy(update={"base": absolute_model(settings.model.base)}),
            "deep": deep.model_copy(update={"model": deep.model and absolute_model(deep.model)}),
            "embedding": settings.embedding.model_copy(update={"path": path and Path(absolute(path))}),
        }
    )


def _explain(error: ValidationError, path: Path | None) -> str:
    lines = []
    for problem in error.errors():
        place = problem["loc"]
        if not place:  # of several sections together, which the message names
            lines.append(problem["msg"].removeprefix("Value error, "))
            continue
        if place[-1] == "literal['auto']":
            continue  # of a number or "auto": what is wrong with the number is said by its own problem
        key = ".".join(str(part) for part in (place[:-1] if place[-1] == "int" else place))
        if problem["type"] == "extra_forbidden":
            lines.append(f"unknown key {key!r}{_nearest(key, valid_keys())}")
        else:
            lines.append(f"{key} = {problem['input']!r}: {problem['msg'].removeprefix('Value error, ')}")
    where = f"{path} or the environment" if path else "settings"
    return f"{where}: " + "; ".join(lines)


def valid_keys() -> list[str]:
    """Every key, as `section.key` (and `seed`)."""
    keys = []
    for name, field in Settings.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            keys += [f"{name}.{key}" for key in section.model_fields]
        else:
            keys.append(name)
    return keys


def _nearest(key: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(key, list(known), n=1, cutoff=0.4)
    return (
        f"; the nearest valid key is {close[0]!r}" if close else f"; valid keys: {', '.join(sorted(known))}"
    )
