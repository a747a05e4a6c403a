"""The sections of the settings, each a frozen model. The text below a field states its trade-off."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    WrapValidator,
    field_validator,
    model_validator,
)

from dagster_divorder.chats.forms import Form
from dagster_divorder.core.order import STRATEGIES
from dagster_divorder.core.order.schedule import SHAPES, Pieces
from dagster_divorder.core.order.strategy import Checked
from dagster_divorder.errors import InputError
from dagster_divorder.settings.places import WrittenPlace, check_source, no_empty_path
from dagster_divorder.trainers import TRAINERS, layout_for, trainer_named

MAX_CLUSTERS = 1_000_000
TRIED = (5, 10, 15, 20, 25, 30, 40, 50, 75, 100)
"""Numbers of clusters that k_calibration tries, those of Diversity-Ordered Training."""

MAX_RECORD_BYTES = 64 << 20
"""A larger record is refused and never held whole in memory."""

MAX_COUNT = 1 << 53
"""Default upper bound of numbers: JSON and float64 are exact up to it."""


def _one_or_more(value: Any) -> Any:
    return [value] if isinstance(value, str) and value else value or []


def _sources(paths: tuple[str, ...]) -> tuple[str, ...]:
    if not paths:
        raise ValueError("at least one file, folder or glob is needed")
    for path in paths:
        check_source(path)
    return paths


SourcePaths = Annotated[
    tuple[str, ...], AfterValidator(_sources), AfterValidator(no_empty_path), BeforeValidator(_one_or_more)
]
FolderPath = Annotated[Path, BeforeValidator(no_empty_path)]


def _or_refused(expected: str) -> WrapValidator:
    """One sentence for a value of none of several types, where pydantic has one for each of them."""

    def check(value: Any, validate: Callable[[Any], Any]) -> Any:
        try:
            return validate(value)
        except ValidationError:
            raise ValueError(expected) from None

    return WrapValidator(check)


class _Section(Checked):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Input(_Section):
    """The input. Write inputs of different shapes as [[input]] blocks instead of [input], each with its paths and
    fields. One order holds all of them."""

    paths: SourcePaths = ("data/sample/docs.jsonl",)
    """Files, folders or globs, also at s3://, gs://, az:// and hf://datasets/ URLs, or single files at https:// URLs:
    JSONL (plain, .gz, .zst), or Parquet and Arrow, all of one kind and shape. Other shapes need [[input]] blocks."""
    text_field: str = Field("text", min_length=1)
    """Field (column) that holds a document's text. A path names a field inside objects (structs): `meta.pile_set_name`;
    a field with exactly that name takes precedence."""
    format: Literal["auto", "text", Form] = "auto"
    """What a record holds. text: one text, in text_field. messages, conversations (ShareGPT), prompt_completion,
    alpaca: a conversation, rendered by the model's chat template. pairs: chosen and rejected. auto: text if text_field
    is set; otherwise the first record that has that field or one of these forms decides."""
    source_field: str | None = Field(None, examples=["source"], min_length=1)
    """Field that results show as `source`; also a trait, by its own name."""
    source: str | None = Field(None, examples=["books"], min_length=1)
    """Source of all records of an input; replaces source_field."""
    id_field: str | None = Field(None, examples=["id"], min_length=1)
    """Field of your own ids (strings or whole numbers), shown as `id`."""
    max_reject_share: float = Field(0.01, ge=0, le=1)
    """Largest share of refused records. A run with more fails before it stores anything."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.source is not None and self.source_field is not None:
            raise ValueError(
                f"source is {self.source!r}, and source_field {self.source_field!r}; remove one of them"
            )
        return self

    @property
    def each(self) -> tuple[Input, ...]:
        """The [[input]] blocks, or this input alone."""
        return (self,)

    @property
    def form(self) -> str:
        """What a record holds: `format`; "text" where `corpus.peek.recognised` has not looked."""
        return "text" if self.format == "auto" else self.format

    def with_paths(self, change: Callable[[tuple[str, ...]], tuple[str, ...]]) -> Self:
        """The same input with other paths."""
        return self.model_copy(update={"paths": change(self.paths)})


class Inputs(Input):
    """Several `[[input]]` blocks as one input: all paths, and one `max_reject_share`. Ids and sources have the
    fields `id` and `source`, whatever the blocks call them."""

    several: tuple[Input, ...]

    @classmethod
    def of(cls, several: tuple[Input, ...]) -> Inputs:
        """
        Raises:
            ValueError: there is no block, or two blocks differ in `max_reject_share`.
        """
        if not several:
            raise ValueError("at least one input is needed: paths, under [input]")
        given = {block.max_reject_share for block in several if "max_reject_share" in block.model_fields_set}
        if len(given) > 1:
            raise ValueError(
                f"max_reject_share is {' and '.join(map(str, sorted(given)))} in two [[input]] blocks, but applies to "
                f"all inputs together; give it once"
            )
        return cls(
            paths=tuple(path for block in several for path in block.paths),
            text_field=several[0].text_field,
            id_field="id" if any(block.id_field for block in several) else None,
            source_field="source" if any(block.source or block.source_field for block in several) else None,
            several=several,
            **({"max_reject_share": given.pop()} if given else {}),
        )

    @property
    def each(self) -> tuple[Input, ...]:
        return self.several

    def with_paths(self, change: Callable[[tuple[str, ...]], tuple[str, ...]]) -> Self:
        several = tuple(block.with_paths(change) for block in self.several)
        return self.model_copy(update={"paths": change(self.paths), "several": several})


_BLOCKS = TypeAdapter(tuple[Input, ...])


def one_or_several(value: Any, validate: Callable[[Any], Input]) -> Input:
    """An input from a table, or from a list of them."""
    if isinstance(value, list | tuple):
        several = _BLOCKS.validate_python(value)
        if len(several) == 1 and several[0].source is None:
            return several[0]
        return Inputs.of(several)
    single = validate(value)
    return single if single.source is None or isinstance(single, Inputs) else Inputs.of((single,))


class Chats(_Section):
    """Conversations, prompts with completions, and pairs: their tokens, and which of the tokens are trained on."""

    template: FolderPath | None = Field(None, examples=["chat.jinja"])
    """File of a chat template that replaces the model's own. A model without a template, and the bootstrap model, use
    the one of docs/chats.md."""
    train_on: Literal["assistant", "last", "completion", "all"] = "assistant"
    """Tokens with a loss. assistant: the assistant's turns; last: its last turn; completion: the completion of a
    prompt, or the last answer; all: every token. Shares count these tokens."""


class Store(_Section):
    """The store of fragments, results and fits: one for each corpus."""

    path: WrittenPlace = Path("data/store")
    """Folder, or s3://, gs:// or az:// prefix, of the store. If you delete it, everything is computed again."""


class Output(_Section):
    """The curated corpus: the records in their new order."""

    path: WrittenPlace = Path("data/curated")
    """Folder, or s3://, gs:// or az:// URL, of the curated corpus. It belongs to this store alone."""
    format: Literal["auto", "jsonl", "parquet"] = "auto"
    """auto: the input's own kind, byte for byte; jsonl, parquet: this kind."""
    sidecars: tuple[Literal["plot"], ...] = ("plot",)
    """Files written beside the output. plot: ordering_comparison.png; []: none."""


class Model(_Section):
    """The model to train on the corpus, or a small one trained here."""

    base: str = Field("bootstrap", min_length=1)
    """Hugging Face id or directory of the model that you train, or `bootstrap` (trained here, no download). An id may
    end in a branch, tag or commit: `org/name@revision`; a commit pins what the Hub serves."""


Kind = Literal["shallow", "deep", "external"]
"""Kinds of vectors; the stage `<kind>_embeddings` makes each."""
KINDS: tuple[str, ...] = get_args(Kind)


class Embedding(_Section):
    """The vectors that are clustered."""

    kind: Literal[Kind, "auto"] = "shallow"
    """shallow: pooled rows of the base model's token table; deep: hidden states of `deep.model`; external: your own
    vectors, from `path`. auto: deep vectors, or your own if `path` is set, if ari_comparison finds an adjusted Rand
    index below 0.3 (other clusters than those of shallow vectors); otherwise shallow ones."""
    pooling: Literal["mean", "idf"] = "idf"
    """How token vectors become a shallow vector. mean: the plain average; idf: rare tokens weigh more, and clustering
    centres the vectors (better as measured)."""
    path: FolderPath | None = Field(None, examples=["vectors.npy"])
    """File of external vectors: .npy, a row for each accepted record in input order. ari_comparison compares them with
    deep vectors if kind = "deep", else with shallow ones."""

    @model_validator(mode="after")
    def _external_has_a_path(self) -> Self:
        if self.kind == "external" and self.path is None:
            raise ValueError('kind = "external" needs path, the .npy file that holds the vectors')
        return self

    @property
    def compared(self) -> tuple[str, str]:
        """The kinds of vectors that ari_comparison compares; `auto` uses one of them."""
        if self.path is None:
            return "shallow", "deep"
        return "deep" if self.kind == "deep" else "shallow", "external"


class Deep(_Section):
    """The model of deep_embeddings, hidden states as vectors, and of gradient_embeddings, gradients of the loss."""

    model: str | None = Field(None, examples=["Qwen/Qwen3-Embedding-0.6B"], min_length=1)
    """Hugging Face id (or id@revision) or directory of a causal or encoder model; unset: `model.base`. Gradients
    need a causal one."""
    max_tokens: int = Field(0, ge=0, le=MAX_COUNT)
    """First tokens of a document that the model reads, at most its context; 0: its context."""
    tensor_parallel: int = Field(1, ge=1, le=64)
    """Processes (GPUs) that share one model, for models larger than one GPU."""


K = Annotated[
    int | tuple[int, ...] | Literal["auto"],
    _or_refused(f'expected a number from 1 to {MAX_CLUSTERS:,}, a list of rising numbers, or "auto"'),
]


class Clusters(_Section):
    """The clusters."""

    k: K = 30
    """Number of clusters. auto: the one that k_calibration recommends of 5, 10, 15, 20, 25, 30, 40, 50, 75 and 100. A
    list: the one that it recommends of these numbers, up to 10,000 each."""

    @field_validator("k")
    @classmethod
    def _some_clusters(cls, k: int | tuple[int, ...] | str) -> int | tuple[int, ...] | str:
        if isinstance(k, int) and not 1 <= k <= MAX_CLUSTERS:
            raise ValueError(f'expected a number from 1 to {MAX_CLUSTERS:,}, rising numbers, or "auto"')
        rising = isinstance(k, tuple) and all(a < b for a, b in pairwise((1, *k, 10_001)))
        if isinstance(k, tuple) and not (k and rising):
            raise ValueError("expected rising numbers from 2 to 10,000")
        return k

    @property
    def number(self) -> int | None:
        """Number of clusters; None if k_calibration decides it."""
        return self.k if isinstance(self.k, int) else None

    @property
    def tried(self) -> tuple[int, ...]:
        """Numbers of clusters that k_calibration tries."""
        return self.k if isinstance(self.k, tuple) else TRIED


def _with_a_share(weights: Any) -> Any:
    if isinstance(weights, dict) and not any(weights.values()):
        raise ValueError(
            "no value has a share; give values of mixing.trait shares above 0, such as { web = 0.7, books = 0.3 }, "
            "or remove the weights"
        )
    return weights


Weights = Annotated[
    Annotated[float, Field(gt=0, le=1)]
    | Literal["natural", "uniform", "sqrt", "unimax"]
    | dict[str, Annotated[float, Field(ge=0)]],
    _or_refused(
        "expected a number above 0, up to 1, natural, uniform, sqrt, unimax, or a table of shares from 0"
    ),
]


class Phase(_Section):
    """A phase of training with a mix of its own."""

    until: float | None = Field(None, gt=0, lt=1)
    """Where it ends, as a share of all tokens; unset in the last phase."""
    weights: Weights
    """Shares of its tokens, as in mixing.weights."""

    _some_share = field_validator("weights")(_with_a_share)

    @model_validator(mode="after")
    def _no_limit_of_its_own(self) -> Self:
        if self.weights == "unimax":
            raise ValueError('a phase has no weights "unimax"; expected "uniform", and mixing.max_repeats')
        return self


class Mixing(_Section):
    """How often each record is trained on (docs/sections.md)."""

    trait: str = Field("source", min_length=1)
    """Trait whose values each get a share of the trained tokens: `cluster`, or a field of the input. It is balanced
    like `order.traits`, so that every batch has these shares; each value has its own held-out documents."""
    weights: Weights | None = Field(None, examples=[0.3])
    """Shares of the tokens. A table: these shares. natural: as in the corpus. uniform: equal. A number from 0 to 1: in
    proportion to the corpus's share to this power; as it falls, more equal; sqrt: 0.5. unimax: equal shares, but no
    value more than `max_repeats` times. Values with too few tokens are read again, values with too many only in part.
    Unset: every record once."""
    phase: tuple[Phase, ...] = Field((), examples=[[{"until": 0.8, "weights": {"web": 0.7, "code": 0.3}}]])
    """Phases of training with shares of their own, instead of `weights`; in a file, [[mixing.phase]] blocks. Records of
    a value are read in passes that go on from phase to phase."""
    total_tokens: int | None = Field(None, examples=[1_000_000_000], ge=1, le=MAX_COUNT)
    """Tokens of an epoch, counted like the shares; unset: all tokens of the values with a share."""
    max_repeats: int | None = Field(None, examples=[4], ge=1, le=10_000)
    """Most repeats of a record in an epoch; unset: as many as the shares need."""

    @property
    def on(self) -> bool:
        """Whether values get shares."""
        return self.weights is not None or bool(self.phase)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases; `weights` are one."""
        return self.phase or (
            Phase.model_construct(weights="natural" if self.weights is None else self.weights),
        )

    _some_share = field_validator("weights")(_with_a_share)

    @model_validator(mode="after")
    def _of_a_mix(self) -> Self:
        for name in ("total_tokens", "max_repeats"):
            if getattr(self, name) is not None and not self.on:
                raise ValueError(
                    f"{name} is {getattr(self, name)}, and weights is unset; set mixing.weights, such as "
                    f'"natural", or remove mixing.{name}'
                )
        if self.phase and self.weights is not None:
            raise ValueError(
                "weights and phases are given; expected one of them: weights are the mix of one phase"
            )
        if self.weights == "unimax" and self.max_repeats is None:
            raise ValueError(
                'weights is "unimax", and max_repeats is unset; set mixing.max_repeats, such as 4'
            )
        *before, last = self.phases
        for number, phase in enumerate(before, 1):
            if phase.until is None:
                raise ValueError(f"phase {number} has no end; expected until in every phase but the last")
        if last.until is not None:
            raise ValueError("the last phase ends with training; remove its until")
        for earlier, later in pairwise(phase.until or 0.0 for phase in before):
            if later <= earlier:
                raise ValueError(f"phases end at until = {earlier} and then {later}; expected ends that rise")
        return self


class Heldout(_Section):
    """Documents for validation, kept out of training with all records that differ from them
    in nothing but case and white space."""

    documents: float | None = Field(None, examples=[0.01], gt=0, le=0.5)
    """Share of the documents of every value of `mixing.trait` (of all documents, if that is no field of the input),
    which appended data leaves unchanged. Unset: none."""


class Selection(_Section):
    """Which documents are trained on (docs/decisions/selection.md)."""

    method: Literal["none", "spokes", "random", "semdedup"] = "none"
    """none: all documents; spokes: the most diverse set; semdedup: the least similar to others; random. At most one
    record of equal texts is chosen."""
    tokens: int | None = Field(None, examples=[100_000_000], ge=1, le=MAX_COUNT)
    """Number of tokens to choose, counted like shares; a rest too small for any whole document stays empty."""

    @model_validator(mode="after")
    def _one_budget(self) -> Self:
        if self.method == "none" and self.tokens is not None:
            raise ValueError(
                f'tokens is {self.tokens}, and method is "none"; set selection.method, such as "spokes", or remove '
                "selection.tokens"
            )
        if self.method != "none" and self.tokens is None:
            raise ValueError(f'method is "{self.method}", and tokens is unset; set selection.tokens')
        return self


def _known_strategy(name: str) -> str:
    if name in SHAPES:
        raise ValueError(
            f"{name!r} is a schedule of a score; name the score in curriculum.score, the schedule in curriculum.shape"
        )
    if name not in STRATEGIES:
        raise ValueError(f"Input should be one of {', '.join(sorted(STRATEGIES))}")
    return name


Strategy = Annotated[str, AfterValidator(_known_strategy)]


class Order(_Section):
    """The order of the documents."""

    strategy: Strategy = "balanced"
    """Order of the documents: one of the strategies in docs/sections.md."""
    options: dict[str, Any] = Field(default_factory=dict, examples=[{"f2_lambda": 1.0}])
    """Options of strategies, such as f2_lambda; each strategy takes the options that it declares."""
    traits: dict[str, Annotated[float, Field(ge=1e-6, le=1e6)]] = Field(
        default_factory=lambda: {"cluster": 1.0, "length": 1.0}
    )
    """Traits to balance and their weights, from 1e-6 to 1e6: `cluster`, `length`, any field of the
    input, or for conversations `turns`."""
    frozen_tokens: int | None = Field(None, ge=0, le=MAX_COUNT, examples=[0])
    """Tokens, with padding, that a trainer has consumed of the published plan. This beginning stays unchanged;
    everything unread follows at its own mix. 0: nothing is frozen; every run reorders everything. Unset: as 0, but a
    run refuses to change the order of an export. `divorder freeze` sets it from a trainer's step."""
    append: Literal["whole", "extend"] = "whole"
    """Where new documents go. whole: every run orders all documents again. extend: behind the published plan, which
    keeps its places, and exports gain files. An append costs less; text of a new kind stands together at the end."""
    cut: tuple[str, ...] = Field((), examples=[["doc-17"]])
    """Documents, by your own ids or record ids, to keep out after the frozen beginning: of sequences and of the curated
    output. Later epochs read the frozen sequences unchanged. `divorder where --json` lists the ids that some steps
    have read."""
    separate_copies: bool = False
    """Deal records of equal text to different parts of training, as far apart as possible."""

    @property
    def written(self) -> dict[str, Any]:
        """The section as manifests hold it: whether `frozen_tokens` is 0 or unset makes no difference, and `append` is
        named if it is "extend"."""
        shown = self.model_dump(mode="json", exclude=None if self.extends else {"append"})
        return {**shown, "frozen_tokens": self.frozen_tokens or 0}

    @property
    def extends(self) -> bool:
        """Whether new documents come behind the published plan."""
        return self.append == "extend"

    @property
    def keeps(self) -> bool:
        """Whether some of the published plan may have to stay as it is."""
        return bool(self.frozen_tokens) or self.extends

    @property
    def says_what_stays(self) -> bool:
        """Whether the settings say what a new order may move of an output that a trainer may have read."""
        return self.frozen_tokens is not None or self.extends

    @field_validator("traits")
    @classmethod
    def _some_trait(cls, traits: dict[str, float]) -> dict[str, float]:
        if not traits:
            raise ValueError("at least one trait is needed, such as { cluster = 1.0 }")
        return traits


Shape = Literal["rise", "fall", "fold", "zigzag"]
"""Shapes of schedules with names, as `core.order.schedule.SHAPES` has them."""


class Curriculum(_Section):
    """An order that follows a score of the documents, and keeps everything else at its mix (docs/sections.md)."""

    score: str | None = Field(None, examples=["quality"], min_length=1)
    """The score to follow: length, or another numeric field of the input. Unset: no curriculum."""
    shape: Shape = "rise"
    """rise: from the lowest score to the highest. fall: from the highest to the lowest. fold: several passes, each
    through every n-th document. zigzag: the same, up and down in turn."""

    @property
    def on(self) -> bool:
        """Whether orders follow a score."""
        return self.score is not None

    @property
    def pieces(self) -> Pieces:
        """The schedule (`core.order.schedule`)."""
        return SHAPES[self.shape]

    @model_validator(mode="after")
    def _of_a_score(self) -> Self:
        if self.score is None and (given := sorted(self.model_dump(exclude_defaults=True))):
            raise ValueError(f"{given[0]} is set, and score is not; name the score in curriculum.score")
        return self


class Packing(_Section):
    """How documents are packed into sequences."""

    method: Literal["concat", "best_fit", "cluster_packed", "none"] = "concat"
    """concat cuts documents at sequence ends; best_fit cuts only documents longer than a sequence, and pads;
    cluster_packed puts similar documents of a cluster into one sequence; none: a sequence holds one record. Unset:
    best_fit for conversations, none for pairs, else concat."""
    too_long: Literal["cut", "truncate", "drop"] = "cut"
    """What happens to a document longer than a sequence. cut: it continues in other sequences; truncate: its end is
    left out; drop: all of it is left out. Unset: truncate for conversations, else cut."""
    end_of_text: bool = False
    """Whether one end-of-text token follows every document."""

    @property
    def packs(self) -> bool:
        """Whether a sequence may hold several records."""
        return self.method != "none"

    @property
    def pads(self) -> bool:
        """Whether other sequences than the last of an epoch may hold fewer tokens than `sequence.length`."""
        return self.method != "concat"

    def fault(self, forms: Collection[str]) -> str:
        """Why records of these forms cannot be packed this way; "" if they can."""
        if "pairs" not in forms:
            return ""
        wrong = {"method": self.packs, "too_long": self.too_long == "cut"}
        if named := [f"packing.{name} is {getattr(self, name)!r}" for name, cuts in wrong.items() if cuts]:
            return (
                f"{' and '.join(named)}, but pairs of an input are neither cut nor packed; set packing.method to "
                '"none", and packing.too_long to "truncate" or "drop"'
            )
        return ""

    def fitting(self, forms: Collection[str]) -> Self:
        """Values for unset settings that suit records of these forms."""
        if "text" in forms:
            return self
        suits = {"method": "none" if "pairs" in forms else "best_fit", "too_long": "truncate"}
        return self.model_copy(
            update={name: value for name, value in suits.items() if name not in self.model_fields_set}
        )


class Sequence(_Section):
    """The training sequences and their order."""

    length: int = Field(8192, ge=8, le=1 << 27)
    """Tokens of a training sequence: the context of the model that you train."""
    batch: int = Field(256, ge=1, le=1 << 20)
    """Sequences of a batch."""
    strategy: Strategy = "balanced"
    """Order of the packed sequences; `original`: as packed."""
    epochs: int = Field(1, ge=1, le=100)
    """Number of epochs, each with its own order of the sequences."""


Format = Literal["parquet", "megatron", "olmo", "ds", "mds", "litdata"]
"""Names of the export formats, as in `write.exports.FORMATS`."""


def _each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{repeated[0]!r} is named twice; name each once")
    return names


def _known_trainer(name: str) -> str:
    try:
        return trainer_named(name).name
    except InputError as error:
        raise ValueError(str(error).replace("trainer is", "there is no trainer", 1)) from None


class Exports(_Section):
    """The training sequences with their tokens, for trainers (docs/exports.md)."""

    formats: Annotated[tuple[Format, ...], AfterValidator(_each_once)] = Field((), examples=[["parquet"]])
    """Formats of the training sequences with their tokens, each in a folder below `path`: parquet, megatron, olmo, ds,
    mds, litdata."""
    path: WrittenPlace = Path("data/exports")
    """Folder, or s3://, gs:// or az:// URL, of the exports."""
    trainer: Annotated[str, AfterValidator(_known_trainer)] | None = Field(None, examples=["hf-trainer"])
    """The trainer that reads them, such as hf-trainer, trl, megatron or torchtitan (docs/trainers.md): `divorder run`,
    `summary` and `verify` show the lines of its configuration."""
    world_size: int | None = Field(None, ge=1, le=1 << 20, examples=[1])
    """Data-parallel ranks of the trainer. Unset: unknown; its lines then hold a formula. If the trainer gives each rank
    a contiguous part of the files (torchtitan's map-style datasets, litdata), or none is named, rows are laid out for
    these ranks, so that every global batch is the plan's."""
    micro_batch: int | None = Field(None, ge=1, le=1 << 20, examples=[1])
    """Sequences that a rank reads at a time; unset: 1."""
    workers: int | None = Field(None, ge=1, le=1024, examples=[1])
    """Processes that read for a rank; unset: 1 where rows are laid out for them."""
    equal_ranks: bool = False
    """Rows of each global batch are dealt so that at every micro-step all ranks have about the same attention cost;
    batches keep their rows. It needs `world_size` and `micro_batch`. `SequenceStream(equal_ranks=True)` does it at
    reading, for any number of ranks."""

    @property
    def layout(self) -> dict[str, int]:
        """The numbers of ranks, sequences and workers that rows are laid out for, in formats whose trainers give each
        rank a contiguous part; empty if rows are in the order of training."""
        parts = TRAINERS[self.trainer].parts if self.trainer else "workers"
        return layout_for(parts, self.world_size or 1, self.micro_batch or 1, self.workers or 1)

    @property
    def dealt_to(self) -> dict[str, Any]:
        """The ranks and sequences that rows of each batch are dealt to; empty if they are not."""
        if not self.equal_ranks:
            return {}
        shares = TRAINERS[self.trainer].shares if self.trainer else "micro-batches"
        return {"world_size": self.world_size, "micro_batch": self.micro_batch, "shares": shares}

    @property
    def ranks(self) -> dict[str, int]:
        """The known numbers of ranks, sequences and workers."""
        return self.model_dump(include={"world_size", "micro_batch", "workers"}, exclude_none=True)

    def fault(self, batch: int) -> str:
        """Why ranks cannot read batches of so many sequences as planned; "" if they can."""
        trainer, name = TRAINERS.get(self.trainer or ""), f'exports.trainer is "{self.trainer}"'
        if self.equal_ranks and None in (self.world_size, self.micro_batch):
            return "exports.equal_ranks is true; set exports.world_size and exports.micro_batch: rows are dealt to them"
        if self.equal_ranks and trainer and not trainer.shares:
            able = ", ".join(name for name, trainer in TRAINERS.items() if trainer.shares)
            return (
                f'exports.equal_ranks is true, and how ranks of "{self.trainer}" share a batch is not modelled; '
                f"expected one of {able}, or SequenceStream(equal_ranks=True)"
            )
        if trainer and trainer.formats and self.formats and not {*trainer.formats} & {*self.formats}:
            return f"{name}, which reads {' or '.join(trainer.formats)}; name that in exports.formats"
        if trainer and trainer.parts and self.world_size is None:
            return f"{name}, which gives every rank a part of the export; set exports.world_size to its number of ranks"
        counts = trainer and trainer.parts == "workers"
        steps = {key: n for key, n in self.ranks.items() if key != "workers" or counts}
        if (trainer or self.equal_ranks) and batch % math.prod(steps.values()):
            numbers = ", ".join(f"exports.{key} = {n}" for key, n in steps.items())
            return (
                f"sequence.batch = {batch} is no whole number of steps{f' of {self.trainer}' if trainer else ''} with "
                f"{numbers}; choose numbers with a product that divides the batch"
            )
        return ""


class TrainedOrder(NamedTuple):
    """An entry of `evidence.orders`. documents, sequences: names of strategies, or `curated` for the plan's order.
    Sequences also `random`: shuffled anew each epoch."""

    documents: str
    sequences: str


TRAINED_ORDERS = {
    "original": TrainedOrder("original", "original"),
    "random_documents": TrainedOrder("random", "original"),
    "random_sequences": TrainedOrder("curated", "random"),
    "curated": TrainedOrder("curated", "curated"),
}
SHUFFLED = "random_sequences"
"""The order that others are compared with: the plan's sequences, shuffled."""


def trained_order(text: str) -> TrainedOrder:
    """An entry of `evidence.orders`. Raises ValueError if it names no order."""
    if text in TRAINED_ORDERS:
        return TRAINED_ORDERS[text]
    documents, slash, sequences = text.partition("/")
    if not slash:
        raise ValueError(
            f"{text!r} is not an order; expected {', '.join(TRAINED_ORDERS)}, or a strategy of documents and one of "
            'sequences, such as "stratified/original"'
        )
    if documents != "curated":
        _known_strategy(documents)
    return TrainedOrder(documents, _known_strategy(sequences))


def _trained_orders(orders: tuple[str, ...]) -> tuple[str, ...]:
    for order in orders:
        trained_order(order)
    if {*orders} <= {SHUFFLED}:
        raise ValueError(f"expected an order besides {SHUFFLED}, which the others are compared with")
    return _each_once(orders)


class Evidence(_Section):
    """training_evidence (divorder prove): small models trained in several orders (docs/decisions/evidence.md). It
    needs [heldout]."""

    tokens: int | None = Field(None, examples=[4_000_000], ge=1, le=MAX_COUNT)
    """Tokens of an epoch for the small models, from the plan's beginning; unset: nothing is trained. As it rises:
    clearer differences, in more time."""
    orders: Annotated[tuple[str, ...], AfterValidator(_trained_orders)] = (
        "original",
        "random_documents",
        "random_sequences",
        "curated",
    )
    """Orders to compare. The baseline, random_sequences, is always added. `stratified/original`: a strategy of
    documents and one of sequences."""
    learning_rates: tuple[Annotated[float, Field(gt=0, le=10)], ...] = Field((0.003,), min_length=1)
    """Learning rates to train each order with, after a rise over the first twentieth. Figures are at the one that suits
    the shuffled sequences best."""


FitName = Literal["model", "bins", "clusters", "cluster_map", "ari_comparison", "k_calibration"]
"""Fits, by the names in `[refit]` and `divorder run --refit NAME`."""
RULES: dict[FitName, Literal["auto", "never"]] = {
    "model": "never",
    "bins": "auto",
    "clusters": "auto",
    "cluster_map": "auto",
    "ari_comparison": "auto",
    "k_calibration": "auto",
}


def _rules(given: dict[FitName, Any]) -> dict[FitName, Any]:
    return RULES | given


Rules = Annotated[dict[FitName, Literal["auto", "never"]], AfterValidator(_rules)]


def _machine(address: str) -> str:
    if address not in ("local", "ray") and ":" not in address:
        raise ValueError('expected "local", "ray", or the host:port of the head of a Ray cluster')
    return address


class Engine(_Section):
    """Where work runs (docs/cluster.md)."""

    address: Annotated[str, AfterValidator(_machine)] = "local"
    """local: processes of this machine. host:port: tasks of the Ray cluster with this head, whose workers see the same
    store. ray: the cluster that RAY_ADDRESS names, else the one on this machine, else one started for the run."""
    workers: int = Field(0, ge=0, le=1024)
    """Parallel processes; 0: one a core (of the Ray cluster). As it rises to the number of cores: faster, at some 400
    MB each."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Device of models: cpu, cuda or mps; auto takes a GPU if there is one."""


class Advanced(_Section):
    """Settings that few corpora need."""

    vocab_size: int = Field(32_768, ge=512, le=1 << 20)
    """Tokens of the bootstrap tokenizer. As it rises: finer statistics and a larger table."""
    token_dims: int = Field(128, ge=2, le=8192)
    """Width of the bootstrap table."""
