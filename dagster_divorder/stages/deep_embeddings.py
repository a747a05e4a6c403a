"""deep_embeddings: per document the pooled last hidden states of a causal or encoder model, L2-normalised.

Per document fragment: `vectors` float32 or float16 (rows, D), zero where a document has no tokens; `tokens` int64
(rows,), its length in the model's own tokens, seen or not; `flagged` uint8 (rows,), see `models.embed`.

The stage key holds the device and the dtype that settings come to on this machine, so that vectors of a CPU and of a
GPU never mix, but neither the number of GPUs nor how many share a model. Where nothing is new nothing is loaded, and
vectors stay what they are wherever they were made.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dagster_divorder.engine.base import Needs
from dagster_divorder.engine.local import count_workers, worker_number
from dagster_divorder.engine.progress import Advance
from dagster_divorder.errors import InputError, SettingsError
from dagster_divorder.models.batches import release
from dagster_divorder.models.embed import CUT, NOT_FINITE, Embedder, Work, make_embedder
from dagster_divorder.models.spec import EmbeddingSpec, declared_lengths, modules_after_pooling, read_spec
from dagster_divorder.models.tensor_parallel import Group, processes_here
from dagster_divorder.pipeline.fill import Filled
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import PerDocument, content_hash
from dagster_divorder.settings import Settings
from dagster_divorder.stages.deep_model import load_deep_model
from dagster_divorder.stages.ids import own_ids
from dagster_divorder.stages.token_counts import Tokenize
from dagster_divorder.store.base import Store
from dagster_divorder.store.fits import Fit, model_path
from dagster_divorder.store.ids import to_bytes
from dagster_divorder.store.receipts import load_receipt
from dagster_divorder.store.sample import document_index
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.view import Fragment

if TYPE_CHECKING:
    from dagster_divorder.models.tokenize import Engine

STAGE = "deep_embeddings"
IDS_SHOWN = 20
"""Of flagged documents."""


def _facts(run: Run) -> dict[str, Any]:
    """What names the vectors. Where those of the last run are all there, and were made from the same, they are what
    they are wherever they were made: no model is looked at."""
    if "made" not in run.memo:
        model, tokens = load_deep_model(run), run.receipt("token_counts").key
        source = content_hash(
            model.fingerprint, declared_lengths(model.directory), tokens, _settings(run.settings)
        )
        last = load_receipt(run.store, STAGE)
        known = last and last.facts["source"] == source and not DEEP_EMBEDDINGS.missing(run, last.key)
        made = last.facts["made"] if last and known else _embed_of(run).made()
        run.memo |= {"made": {"source": source, "made": made}}
    found: dict[str, Any] = run.memo["made"]
    return found


def _embed_of(run: Run) -> _Embed:
    """How the engine's machines compute vectors under these settings."""
    if "embed" not in run.memo:
        run.memo["embed"] = _make_embed(run)
    embed: _Embed = run.memo["embed"]
    return embed


def _make_embed(run: Run) -> _Embed:
    deep, model, local = run.settings.deep, load_deep_model(run), run.settings.engine.kind == "local"
    read = _ReadSpec(run.store, model.place, deep.pooling, deep.max_tokens, deep.dtype)
    gpus = int(not local and deep.device in ("auto", "cuda") and run.engine.gpus > 0)
    (spec,) = run.engine.each(read, [deep.device], workers=1, gpus=gpus)
    return _Embed(
        store=run.store,
        model=model.place,
        spec=spec,
        chunk=deep.long_documents == "chunk",
        half=deep.stored == "float16",
        tokens=run.files("token_counts").listed(),
        tokenizer=model.tokenizer,
        engine=model.engine,
        vocabulary=model.vocabulary,
        processes=deep.tensor_parallel,
        threads=count_workers(run.settings.engine.workers if local else 0),
    )


@dataclass(frozen=True, slots=True)
class _ReadSpec:
    """What settings come to on a machine that computes, for a `deep.device`."""

    store: Store
    model: Fit | Path
    pooling: Literal["auto", "mean", "last", "cls"]
    max_tokens: int
    dtype: Literal["auto", "float32", "bfloat16", "float16"]

    def __call__(self, device: Literal["auto", "cpu", "cuda", "mps"]) -> EmbeddingSpec:
        return read_spec(
            model_path(self.store, self.model),
            pooling=self.pooling,
            max_tokens=self.max_tokens,
            device=device,
            dtype=self.dtype,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class _DeepEmbeddings(PerDocument):
    """Progress is in tokens too, and people want to know how fast they were computed."""

    def fill(self, run: Run, key: str, missing: Sequence[Fragment]) -> Iterator[Filled]:
        embed = _embed_of(run)
        if layers := modules_after_pooling(model_path(run.store, embed.model)):
            run.progress.note(
                f"{model_path(run.store, embed.model)} has layers after pooling ({', '.join(layers)}), which are not "
                "applied: vectors are its pooled hidden states"
            )
        needs = self.needs(run, missing)
        workers = needs["workers"] or 1
        # Where calls run in this process they tell of their tokens as they go.
        elsewhere = run.settings.engine.kind != "local" and needs.get("gpus")
        here = workers == 1 and embed.processes == 1 and not elsewhere
        total = Work()
        with run.progress("embedding", embed.tokens_to_do(missing), "tokens") as advance:
            try:
                compute = functools.partial(embed.compute, advance=advance) if here else embed
                for filled in self.fill_by(compute, run, key, missing):
                    total += filled.told
                    if not here:
                        advance(filled.told["tokens"])
                    yield filled
            finally:
                _free(embed.spec.device)
        if total["out_of_memory"]:
            run.progress.note(f"memory ran out {total['out_of_memory']} times; batches were made smaller")
        seconds = total["nanoseconds"] / 1e9 / min(workers, len(missing))
        run.observed |= {
            "tokens_per_second": round(total["tokens"] / seconds, 1) if total["tokens"] else None,
            "padding": round(1 - total["tokens"] / total["positions"], 4) if total["tokens"] else None,
            "batches": total["batches"],
            "out_of_memory": total["out_of_memory"],
        }


def _needs(run: Run, missing: Sequence[Fragment]) -> Needs:
    """One process a GPU, or one a group of GPUs that share a model; on a CPU one a machine, which runs all its
    cores."""
    embed = _embed_of(run)
    if embed.spec.device != "cuda":
        most = run.engine.workers // embed.threads
        return {"workers": max(1, most), "threads": embed.threads}
    gpus, here = embed.processes, run.engine.gpus
    if here < gpus:
        raise SettingsError(
            f"deep.tensor_parallel is {gpus} and there are {here} GPUs; expected {here} at most"
        )
    workers = here // gpus
    return {"workers": workers, "threads": max(1, embed.threads // workers), "gpus": gpus}


@dataclass(frozen=True, slots=True)
class _Embed:
    """Embeds a fragment; picklable, for workers and for the processes that share a model.

    `engine` None: the stored `tokens` of token_counts are the model's own; else that of its own tokenizer. `limit` as
    in `make_embedder`.
    """

    store: Store = field(compare=False)
    tokens: StageFiles = field(compare=False)
    model: Fit | Path
    spec: EmbeddingSpec
    chunk: bool
    half: bool
    tokenizer: str
    engine: Engine | None
    vocabulary: int
    processes: int
    threads: int
    limit: int | None = None

    def made(self) -> dict[str, Any]:
        """What names how vectors are made, beside the model and its input."""
        tokens = [self.tokens.key] if self.engine is None else [self.tokenizer, self.engine]
        return {"tokens": tokens, "spec": asdict(self.spec), "chunk": self.chunk, "half": self.half}

    def __call__(self, fragment: Fragment) -> tuple[dict[str, np.ndarray], Work]:
        if self.processes == processes_here():
            return self.compute(fragment)
        group = _group(self.processes, self.spec.device)
        before = group.restarts
        arrays, work = group(lambda limit: replace(self, limit=limit), fragment)
        work["out_of_memory"] += group.restarts - before
        return arrays, work

    def compute(
        self, fragment: Fragment, advance: Advance = lambda tokens: None
    ) -> tuple[dict[str, np.ndarray], Work]:
        """Arrays and what they took, in this process; `advance` hears of tokens."""
        embedder = _embedder(self)
        start = time.perf_counter_ns()
        ids, lengths = self._tokens(fragment)
        found = embedder.embed(ids, lengths, advance)
        vectors = found.vectors.astype(np.float16) if self.half else found.vectors
        arrays = {"vectors": vectors, "tokens": lengths, "flagged": found.flagged}
        return arrays, found.work + Work(nanoseconds=time.perf_counter_ns() - start)

    def tokens_to_do(self, fragments: Sequence[Fragment]) -> int | None:
        """Tokens of the documents of some fragments; None where they are not counted yet."""
        if self.engine is not None:
            return None
        lengths = self.tokens.column(fragments, "lengths")
        return int((lengths if self.chunk else np.minimum(lengths, self.spec.room)).sum())

    def _tokens(self, fragment: Fragment) -> tuple[np.ndarray, np.ndarray]:
        """Ids of a fragment's documents in the model's own tokens, end to end, and their lengths, int64 (rows,)."""
        if self.engine is None:
            arrays = self.tokens.read(fragment)
        else:
            arrays = Tokenize(self.store, self.model, self.tokenizer, self.engine)(fragment)
        return arrays["ids"], arrays["lengths"]


@functools.lru_cache(maxsize=1)
def _embedder(of: _Embed) -> Embedder:
    """The model, loaded once a process."""
    from dagster_divorder.models.deep import load

    if of.spec.device == "cuda" and of.processes == 1:
        import torch

        torch.cuda.set_device(worker_number())
    model = load(model_path(of.store, of.model), of.spec, vocabulary=of.vocabulary, processes=of.processes)
    return make_embedder(model, chunk=of.chunk, threads=max(1, of.threads // of.processes), limit=of.limit)


_groups: dict[tuple[int, str], Group] = {}


def _group(processes: int, device: str) -> Group:
    """The processes that share a model, started once by each worker, each group on GPUs of its own."""
    if (processes, device) not in _groups:
        gpus: list[str] = []
        if device == "cuda":
            import torch

            seen = os.environ.get("CUDA_VISIBLE_DEVICES")
            gpus = seen.split(",") if seen else [str(gpu) for gpu in range(torch.cuda.device_count())]
            first = processes * worker_number()
            gpus = gpus[first : first + processes]
        _groups[processes, device] = Group(processes, device, gpus)
    return _groups[processes, device]


def _free(device: str) -> None:
    """End the processes that share a model, forget the model, and give its memory back."""
    while _groups:
        _groups.popitem()[1].close()
    _embedder.cache_clear()
    release(device)


def _figures(run: Run, files: StageFiles) -> dict[str, Any]:
    """Of all documents: how vectors are made, their tokens, those that were not seen, and flags."""
    view, settings, model = run.view, run.settings, load_deep_model(run)
    ((_, first),) = files.each(view.documents[:1])
    spec = EmbeddingSpec(**_facts(run)["made"]["spec"])
    lengths, flagged = files.columns(view.documents, "tokens", "flagged")
    used = view.used_documents()
    tokens = lengths[used]
    unseen = (
        np.maximum(tokens - spec.room, 0)
        if settings.deep.long_documents == "truncate"
        else np.zeros(1, np.int64)
    )
    figures: dict[str, Any] = {
        "model": settings.deep_model,
        "dim": int(first["vectors"].shape[1]),
        "pooling": spec.pooling,
        "max_tokens": spec.window,
        "own_tokens": spec.window - spec.room,
        "device": spec.device,
        "dtype": spec.dtype,
        "tokens": int(tokens.sum()),
        "truncated_documents": int((unseen > 0).sum()),
        "unseen_tokens": round(float(unseen.sum() / max(1, tokens.sum())), 4),
        "documents_read_in_parts": int(((flagged & CUT) > 0)[used].sum()),
        **model.trained,
    }
    flags = np.flatnonzero(((flagged & NOT_FINITE) > 0) & used)
    if len(flags) == len(tokens):
        raise InputError(
            f"the model of deep_embeddings ({settings.deep_model}) gives no finite vector for any of "
            f"{len(flags):,} documents; expected finite numbers: its weights are damaged, so fetch or save it again, "
            "or set deep.model to another one"
        )
    if len(flags):
        ids, _ = document_index(run.store, view)
        rows = flags[:IDS_SHOWN]
        own = own_ids(run, np.array([(view.document_row == row).argmax() for row in rows]))
        shown = [own or to_bytes(of).hex() for own, of in zip(own, ids[rows], strict=True)]
        run.progress.note(
            f"{len(flags):,} documents have no finite vector and were given the mean of their fragment: "
            f"{', '.join(shown[:3])}{', ...' if len(flags) > 3 else ''}"
        )
        figures["flagged_ids"] = shown
    return {**figures, "flagged_documents": len(flags)}


def _settings(settings: Settings) -> dict[str, Any]:
    return settings.deep.model_dump(
        mode="json", include={"pooling", "max_tokens", "long_documents", "stored", "device", "dtype"}
    )


DEEP_EMBEDDINGS = _DeepEmbeddings(
    name=STAGE,
    version=2,
    group="embedding",
    kinds=lambda settings: {"huggingface", "pytorch"},
    description="One vector per document: the pooled last hidden states of a causal or encoder model, L2-normalised.",
    reads=lambda settings: (
        *("raw_docs", "token_counts", "base_model", "deep_model"),
        *(["ids"] if settings.input.id_field else []),
    ),
    settings=_settings,
    inputs=lambda run: {"model": load_deep_model(run).fingerprint, "made": _facts(run)["made"]},
    resolved=True,
    facts=_facts,
    doing="storing vectors",
    compute=_embed_of,
    needs=_needs,
    figures=_figures,
)
