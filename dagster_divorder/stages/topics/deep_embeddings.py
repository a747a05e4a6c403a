"""deep_embeddings: the pooled last hidden states of a causal or encoder model for each document, L2-normalised.

Per document fragment: `vectors` float32 (rows, D), zero for a document without tokens or without a finite
vector; `tokens` int64 (rows,), its whole length in the model's own tokens; `flagged` uint8 (rows,), see `models.embed`.

The stage key holds the device and the dtype that the settings resolve to on this machine, so that vectors of a CPU and
of a GPU never mix. It does not hold the number of GPUs, or how many share a model. If nothing is new, no model is
loaded, and stored vectors stay, whichever machine computed them.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np

from dagster_divorder.corpus.stored import Records
from dagster_divorder.engine.base import Needs
from dagster_divorder.engine.local import count_workers, worker_number
from dagster_divorder.engine.progress import Advance
from dagster_divorder.errors import InputError, SettingsError
from dagster_divorder.models.embed import NOT_FINITE, Embedder, release
from dagster_divorder.models.spec import EmbeddingSpec, declared_lengths, read_spec
from dagster_divorder.models.tensor_parallel import Group, processes_here
from dagster_divorder.pipeline.per_fragment import Work
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import PerDocument, content_hash
from dagster_divorder.stages.corpus.ids import record_names
from dagster_divorder.stages.text.token_counts import tokenize
from dagster_divorder.stages.topics.deep_model import DeepModel, load_deep_model
from dagster_divorder.store.base import Store
from dagster_divorder.store.stages import StageFiles, model_path
from dagster_divorder.store.state import load_receipt
from dagster_divorder.store.view import Fragment

Device: TypeAlias = Literal["auto", "cpu", "cuda", "mps"]
Result = TypeVar("Result")

NARROW_BYTES = 1 << 24
"""Bytes of text in which the bootstrap's decoder takes longer than torch to load."""


def _embed_of(run: Run) -> Embed:
    deep = run.settings.deep
    read = functools.partial(_read_spec, max_tokens=deep.max_tokens)
    return Embed(**embed_fields(run, read), processes=deep.tensor_parallel)


def embed_fields(run: Run, read: Callable[[Store, str | Path, Device], EmbeddingSpec]) -> dict[str, Any]:
    """The fields of an `Embed` that vectors and gradients share. read: how the model reads documents, on a machine that
    computes."""
    local, model = run.settings.engine.address == "local", load_deep_model(run)
    return {
        "records": run.records,
        "tokens": run.files("token_counts").listed(),
        "model": model,
        "spec": call_on_a_worker(run, functools.partial(read, run.store, model.place)),
        # Products of the bootstrap's narrow decoder are too small to be shared by threads.
        "threads": 1 if model.narrow else count_workers(run.settings.engine.workers if local else 0),
    }


def call_on_a_worker(run: Run, read: Callable[[Device], Result]) -> Result:
    """The result of `read`, a function of `engine.device`, on a machine that computes."""
    local, device = run.settings.engine.address == "local", run.settings.engine.device
    gpus = int(not local and device in ("auto", "cuda") and run.engine.gpus > 0)
    (result,) = run.engine.each(read, [device], workers=1, gpus=gpus)
    return result


def _read_spec(store: Store, model: str | Path, device: Device, *, max_tokens: int) -> EmbeddingSpec:
    return read_spec(model_path(store, model), max_tokens=max_tokens, device=device)


@dataclass(frozen=True, kw_only=True, eq=False)
class VectorsOfAModel(PerDocument):
    """Vectors that a model computes. Progress counts tokens. `compute` returns an `Embed`."""

    def compute_missing(
        self, run: Run, key: str, works: Sequence[Work], advance: Advance | None = None
    ) -> Iterator[int]:
        embed = self.compute(run)
        assert isinstance(embed, Embed)
        total = None  # the tokens of another tokenizer are not counted yet
        if embed.model.engine is None:
            lengths = embed.tokens.column([work.new for work in works], "lengths")
            total = int(np.minimum(lengths, embed.spec.room).sum())
        with run.progress("embedding", total, "tokens") as tokens:
            try:
                yield from super().compute_missing(run, key, works, tokens)
            finally:
                _free(embed.spec.device)


def vectors_of_a_model(name: str, make_embed: Callable[[Run], Embed], **others: Any) -> VectorsOfAModel:
    """The stage `name`: `make_embed` gives the function that the engine's machines run under a run's settings."""

    def embed_of(run: Run) -> Embed:
        if "embed" not in run.memo:
            run.memo["embed"] = make_embed(run)
        return run.memo["embed"]

    def facts(run: Run) -> dict[str, Any]:
        """What names the vectors: the last run's facts, without reading a model, if the inputs are the same and no
        vectors are missing."""
        if "made" not in run.memo:
            model, last = load_deep_model(run), load_receipt(run.store, name)
            lengths, given = declared_lengths(model.directory), stage.given(run.settings)
            source = content_hash(model.fingerprint, lengths, run.receipt("token_counts").key, given)
            known = (
                last
                and last.facts["source"] == source
                and not any(work.new.rows for work in stage.work(run, last.key))
            )
            recipe = last.facts["made"] if last and known else embed_of(run).recipe()
            run.memo["made"] = {"source": source, "made": recipe}
        return run.memo["made"]

    stage = VectorsOfAModel(
        name=name,
        reads=lambda settings: (
            *("raw_docs", "token_counts", "base_model", "deep_model"),
            *(["ids"] if settings.input.id_field else []),
        ),
        decided_by=lambda run: {"model": load_deep_model(run).fingerprint, "made": facts(run)["made"]},
        facts=facts,
        by_text=True,
        compute=embed_of,
        needs=lambda run, missing: _needs(run, embed_of(run), sum(work.new.text_bytes for work in missing)),
        **others,
    )
    return stage


def _needs(run: Run, embed: Embed, text_bytes: int) -> Needs:
    """One process for each GPU, or for each group of GPUs that share a model. On CPUs, one process for each machine,
    with all its cores; of the bootstrap's decoder one for each NARROW_BYTES of text."""
    if embed.spec.device != "cuda":
        most = 1 + text_bytes // NARROW_BYTES if load_deep_model(run).narrow else run.engine.workers
        return {"workers": max(1, min(most, run.engine.workers // embed.threads)), "threads": embed.threads}
    gpus, here = embed.processes, max(1, run.engine.gpus)
    if here < gpus:
        raise SettingsError(
            f"deep.tensor_parallel is {gpus}, but the GPUs here are {here}; expected {here} at most"
        )
    workers = here // gpus
    return {"workers": workers, "threads": max(1, embed.threads // workers), "gpus": gpus}


@dataclass(frozen=True, slots=True, kw_only=True)
class Embed:
    """Embeds a fragment; picklable, for workers and for the processes that share a model.

    tokens: of token_counts. limit: most positions of a batch that fit, None if all did.
    """

    records: Records = field(compare=False)
    tokens: StageFiles = field(compare=False)
    model: DeepModel
    spec: EmbeddingSpec
    threads: int
    processes: int = 1
    limit: int | None = None

    def recipe(self) -> dict[str, Any]:
        """Everything but the model and its input that decides the vectors."""
        tokens = [self.tokens.key] if self.model.engine is None else [self.model.tokenizer, self.model.engine]
        return {"tokens": tokens, "spec": asdict(self.spec)}

    def load(self) -> Embedder:
        from dagster_divorder.models.embed import load

        return load(
            model_path(self.records.fragments.store, self.model.place),
            self.spec,
            vocabulary=self.model.vocabulary,
            processes=self.processes,
        )

    def __call__(self, fragment: Fragment, advance: Advance = lambda tokens: None) -> dict[str, np.ndarray]:
        """advance: counts tokens."""
        if self.processes != processes_here():
            group = _group(self.processes, self.spec.device)
            arrays: dict[str, np.ndarray] = group(lambda limit: replace(self, limit=limit), fragment)
            advance(int(np.minimum(arrays["tokens"], self.spec.room).sum()))
            return arrays
        embedder = _embedder(self)
        tokens = (
            self.tokens.read(fragment)
            if self.model.engine is None
            else tokenize(self.records, self.model.tokenizer, self.model.engine, fragment)
        )
        return {
            **embedder.embed(tokens["ids"], tokens["lengths"], advance),
            "tokens": tokens["lengths"],
        }


@functools.lru_cache(maxsize=1)
def _embedder(embed: Embed) -> Embedder:
    """The model; a process loads it once."""
    if embed.spec.device == "cuda" and embed.processes == 1:
        import torch

        torch.cuda.set_device(worker_number())
    embedder = embed.load()
    embedder.threads = max(1, embed.threads // embed.processes)
    embedder.budget = embed.limit or embedder.budget
    return embedder


_groups: dict[tuple[int, str], Group] = {}


def _group(processes: int, device: str) -> Group:
    """The processes that share a model. Each worker starts them once, on its own GPUs."""
    if (processes, device) not in _groups:
        gpus: list[str] = []
        if device == "cuda":
            import torch

            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            gpus = visible.split(",") if visible else [str(gpu) for gpu in range(torch.cuda.device_count())]
            first = processes * worker_number()
            gpus = gpus[first : first + processes]
        _groups[processes, device] = Group(processes, device, gpus)
    return _groups[processes, device]


def _free(device: str) -> None:
    """End the processes that share a model, and free the model's memory."""
    while _groups:
        _groups.popitem()[1].close()
    _embedder.cache_clear()
    release(device)


def vector_figures(run: Run, files: StageFiles) -> dict[str, Any]:
    """Figures of all documents' vectors: how they were computed, tokens, tokens not read, and flags."""
    spec, model = EmbeddingSpec(**run.memo["made"]["made"]["spec"]), run.settings.deep_model
    tokens, flagged = files.columns(run.view.fragments, "tokens", "flagged")
    unseen = np.maximum(tokens - spec.room, 0)
    figures: dict[str, Any] = {
        "model": model,
        "dim": files.read(run.view.fragments[0])["vectors"].shape[1],
        "max_tokens": spec.window,
        "device": spec.device,
        "dtype": spec.dtype,
        "tokens": int(tokens.sum()),
        "truncated_documents": int((unseen > 0).sum()),
        "unseen_tokens": round(float(unseen.sum() / max(1, tokens.sum())), 4),
    }
    flags = np.flatnonzero(flagged == NOT_FINITE)
    if len(flags) == len(tokens):
        raise InputError(
            f"the model of {files.stage} ({model}) gives no finite vector for any of {len(flags):,} "
            "documents; expected finite numbers: its weights are damaged, so download or save it again, or set "
            "deep.model to another model"
        )
    if len(flags):
        # Equal texts are named once.
        rows = flags[run.are_first[flags]][:3]
        shown = ", ".join(record_names(run, rows))
        run.progress.note(
            f"{len(flags):,} documents have no finite vector, and zero is stored: {shown}"
            f"{', ...' if len(flags) > 3 else ''}"
        )
    return {**figures, "flagged_documents": len(flags)}


DEEP_EMBEDDINGS = vectors_of_a_model(
    "deep_embeddings",
    _embed_of,
    version=2,
    description="One vector a document from the hidden states of a model (`deep.model`, else `model.base`), pooled and "
    "L2-normalised.",
    settings=("deep", "engine.device"),
    doing="storing vectors",
    figures=lambda run, files: {
        "pooling": run.memo["made"]["made"]["spec"]["pooling"],
        **vector_figures(run, files),
    },
)
