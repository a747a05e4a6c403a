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
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dagster_divorder.engine.local import count_workers, worker_number
from dagster_divorder.engine.progress import Advance
from dagster_divorder.errors import InputError, SettingsError
from dagster_divorder.models.batches import release
from dagster_divorder.models.checkpoint import tokenizer_fingerprint
from dagster_divorder.models.embed import CUT, NOT_FINITE, Embedder, Work, make_embedder
from dagster_divorder.models.spec import EmbeddingSpec, declared_lengths, modules_after_pooling, read_spec
from dagster_divorder.models.tensor_parallel import Group, processes_here
from dagster_divorder.models.tokenize import SAMPLE_BYTES, load_encoder
from dagster_divorder.pipeline.base_model import load_base_model
from dagster_divorder.pipeline.deep_model import DeepModel, load_deep_model
from dagster_divorder.pipeline.fragments import Delta, fill
from dagster_divorder.pipeline.raw_docs import load_view
from dagster_divorder.pipeline.run import Run, content_hash
from dagster_divorder.pipeline.sample import document_index, sample_texts
from dagster_divorder.pipeline.token_counts import Tokenize, token_files
from dagster_divorder.settings import CODE_VERSIONS
from dagster_divorder.store.ids import to_bytes
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.receipts import Receipt, load_receipt
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.view import Fragment, View

if TYPE_CHECKING:
    from dagster_divorder.models.tokenize import Engine

STAGE = "deep_embeddings"
IDS_SHOWN = 20
"""Of flagged documents."""
WORK = "work"
"""Under this name a computed fragment says what it took; it is not stored."""
HOW = ("model", "dim", "pooling", "max_tokens", "own_tokens", "device", "dtype")
"""What of the report says how vectors were made."""


def run(run: Run) -> Receipt:
    raw_docs, view = run.receipt("raw_docs"), load_view(run)
    model, tokens = load_deep_model(run), token_files(run)
    last, source = load_receipt(run.store, STAGE), source_of(run, model, tokens.key)
    if last and last.report["source"] == source and _is_whole(run, last.key, view):
        key = last.key
        delta = fill(run, StageFiles(run.store, STAGE, key), view, _nothing, "embedding")
        how = {name: last.report[name] for name in HOW}
        did: dict[str, Any] = {}
    else:
        embed = _prepare(run, model, tokens)
        key = embed.key(model.fingerprint)
        delta, did = _embed(run, embed, StageFiles(run.store, STAGE, key), view)
        how = {"model": run.settings.deep_model, "dim": _dim(run, key, view), **embed.how()}
    return Receipt(
        stage=STAGE,
        recipe=run.settings.recipe(STAGE),
        key=key,
        version=content_hash(key, raw_docs.version),
        uses={name: run.receipt(name).version for name in ("raw_docs", "base_model", "token_counts")},
        files={"fit": model.fit.folder} if model.fit else {},
        report={
            **delta.report(),
            **how,
            **_seen(run, key, view, how),
            **did,
            # Trained here, so how that went belongs here.
            ("decoder" if model.fit else "checkpoint"): model.info,
            "source": source,
        },
    )


def known_key(run: Run, base_model: str) -> str | None:
    """The stage key of the last run, where that had these settings and the base model of this version: the one that
    another run will have, as far as that can be told without looking at the model. For plans."""
    last = load_receipt(run.store, STAGE)
    fits = last and last.recipe == run.settings.recipe(STAGE) and last.uses["base_model"] == base_model
    return last.key if last and fits else None


def source_of(run: Run, model: DeepModel, tokens_key: str) -> str:
    """Names what vectors are made from and how, but for the device: what a run that computes nothing can tell."""
    said = declared_lengths(model.directory)
    return content_hash(run.settings.recipe(STAGE), model.fingerprint, said, tokens_key)


def _is_whole(run: Run, key: str, view: View) -> bool:
    present = StageFiles(run.store, STAGE, key).present()
    return all(fragment.name in present for fragment in view.documents)


def _nothing(fragment: Fragment) -> dict[str, np.ndarray]:
    raise AssertionError(f"fragment {fragment.name} was there a moment ago")


def _prepare(run: Run, model: DeepModel, tokens: StageFiles) -> _Embed:
    """How this machine computes vectors under these settings."""
    deep, base = run.settings.deep, load_base_model(run)
    spec = read_spec(
        model.directory,
        pooling=deep.pooling,
        max_tokens=deep.max_tokens,
        device=deep.device,
        dtype=deep.dtype,
    )
    if layers := modules_after_pooling(model.directory):
        run.progress.note(
            f"{model.directory} has layers after pooling ({', '.join(layers)}), which are not applied: vectors are its "
            "pooled hidden states"
        )
    embed = _Embed(
        store=run.store,
        directory=str(model.directory),
        spec=spec,
        chunk=deep.long_documents == "chunk",
        half=deep.stored == "float16",
        tokens_key=tokens.key,
        tokenizer=tokenizer_fingerprint(model.directory),
        engine=None,
        vocabulary=base.info["vocabulary"],
        processes=deep.tensor_parallel,
        threads=count_workers(run.settings.engine.workers),
    )
    if embed.tokenizer == base.info["tokenizer"]:
        return embed
    encoder = load_encoder(model.directory, sample=sample_texts(run.store, load_view(run), SAMPLE_BYTES))
    return replace(embed, engine=encoder.engine, vocabulary=encoder.vocab_size)


def _embed(run: Run, embed: _Embed, files: StageFiles, view: View) -> tuple[Delta, dict[str, Any]]:
    """Compute what is missing; what there was to compute, and what it took."""
    workers = _workers(embed)
    total, fragments = Work(), 0

    def keep(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        nonlocal fragments
        fragments += 1
        work = _unpack(arrays[WORK])
        total.add(work)
        if not here:
            advance(work.tokens)
        return {name: array for name, array in arrays.items() if name != WORK}

    here = workers == 1 and embed.processes == 1
    with run.progress("embedding", embed.tokens_to_do(files, view), "tokens") as advance:
        try:
            compute = functools.partial(embed.compute, advance=advance) if here else embed
            threads = max(1, embed.threads // workers)
            delta = fill(run, files, view, compute, "embedding", workers=workers, threads=threads, keep=keep)
        finally:
            _free(embed.spec.device)
    if total.out_of_memory:
        run.progress.note(f"memory ran out {total.out_of_memory} times; batches were made smaller")
    beside = min(workers, fragments)
    return delta, {
        "tokens_per_second": round(total.tokens * beside / total.seconds, 1) if total.tokens else None,
        "padding": round(1 - total.tokens / total.positions, 4) if total.positions else None,
        "batches": total.batches,
        "out_of_memory": total.out_of_memory,
    }


def _unpack(work: np.ndarray) -> Work:
    tokens, positions, batches, out_of_memory = (int(count) for count in work[:4])
    return Work(tokens, positions, batches, out_of_memory, float(work[4]))


def _workers(embed: _Embed) -> int:
    """Processes: one a GPU, or one a group of GPUs that share a model; one on a CPU, which runs all its cores."""
    if embed.spec.device != "cuda":
        return 1
    import torch

    gpus = torch.cuda.device_count()
    if gpus < embed.processes:
        raise SettingsError(
            f"deep.tensor_parallel is {embed.processes} and this machine has {gpus} GPUs; expected {gpus} at most"
        )
    return gpus // embed.processes


@dataclass(frozen=True, slots=True)
class _Embed:
    """Embeds a fragment; picklable, for workers and for the processes that share a model.

    `engine` None: the stored tokens of token_counts are the model's own; else that of its own tokenizer. `limit` as in
    `make_embedder`.
    """

    store: LocalStore
    directory: str
    spec: EmbeddingSpec
    chunk: bool
    half: bool
    tokens_key: str
    tokenizer: str
    engine: Engine | None
    vocabulary: int
    processes: int
    threads: int
    limit: int | None = None

    def key(self, fingerprint: str) -> str:
        """Stage key of deep_embeddings."""
        tokens = [self.tokens_key] if self.engine is None else [self.tokenizer, self.engine]
        spec = list(astuple(self.spec))
        return content_hash(CODE_VERSIONS[STAGE], fingerprint, tokens, spec, self.chunk, self.half)

    def how(self) -> dict[str, Any]:
        """What people want to know of it, as in HOW."""
        spec = self.spec
        return {
            "pooling": spec.pooling,
            "max_tokens": spec.window,
            "own_tokens": spec.window - spec.room,
            "device": spec.device,
            "dtype": spec.dtype,
        }

    def __call__(self, fragment: Fragment) -> dict[str, np.ndarray]:
        if self.processes == processes_here():
            return self.compute(fragment)
        group = _group(self.processes, self.spec.device)
        before = group.restarts
        arrays = group(lambda limit: replace(self, limit=limit), fragment)
        work = _unpack(arrays[WORK])
        work.out_of_memory += group.restarts - before
        return {**arrays, WORK: np.array(astuple(work))}

    def compute(self, fragment: Fragment, advance: Advance = lambda tokens: None) -> dict[str, np.ndarray]:
        """In this process; `advance` hears of tokens."""
        embedder = _embedder(
            self.directory,
            self.spec,
            self.chunk,
            self.vocabulary,
            self.processes,
            self.threads,
            self.limit,
        )
        start = time.perf_counter()
        ids, lengths = self._tokens(fragment)
        found = embedder.embed(ids, lengths, advance)
        found.work.seconds = time.perf_counter() - start
        return {
            "vectors": found.vectors.astype(np.float16) if self.half else found.vectors,
            "tokens": lengths,
            "flagged": found.flagged,
            WORK: np.array(astuple(found.work)),
        }

    def tokens_to_do(self, files: StageFiles, view: View) -> int | None:
        """Tokens of the documents whose fragment has no result in `files`; None where they are not counted yet."""
        present = files.present()
        missing = [fragment for fragment in view.documents if fragment.name not in present]
        if self.engine is not None or not missing:
            return None
        lengths = StageFiles(self.store, "token_counts", self.tokens_key).column(missing, "lengths")
        return int((lengths if self.chunk else np.minimum(lengths, self.spec.room)).sum())

    def _tokens(self, fragment: Fragment) -> tuple[np.ndarray, np.ndarray]:
        """Ids of a fragment's documents in the model's own tokens, end to end, and their lengths, int64 (rows,)."""
        if self.engine is None:
            ((_, arrays),) = StageFiles(self.store, "token_counts", self.tokens_key).each([fragment])
            return arrays["ids"], arrays["lengths"]
        arrays = Tokenize(self.store, self.directory, self.tokenizer, self.engine)(fragment)
        return arrays["ids"], arrays["lengths"]


@functools.lru_cache(maxsize=1)
def _embedder(
    directory: str,
    spec: EmbeddingSpec,
    chunk: bool,
    vocabulary: int,
    processes: int,
    threads: int,
    limit: int | None,
) -> Embedder:
    """The model, loaded once a process."""
    from dagster_divorder.models.deep import load

    if spec.device == "cuda" and processes == 1:
        import torch

        torch.cuda.set_device(worker_number())
    model = load(directory, spec, vocabulary=vocabulary, processes=processes)
    return make_embedder(model, chunk=chunk, threads=max(1, threads // processes), limit=limit)


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


def _dim(run: Run, key: str, view: View) -> int:
    ((_, arrays),) = StageFiles(run.store, STAGE, key).each(view.documents[:1])
    return int(arrays["vectors"].shape[1])


def _seen(run: Run, key: str, view: View, how: dict[str, Any]) -> dict[str, Any]:
    """Figures of all documents: their tokens, those that were not seen, and flags."""
    lengths, flagged = StageFiles(run.store, STAGE, key).columns(view.documents, "tokens", "flagged")
    used = view.used_documents()
    tokens = lengths[used]
    room = how["max_tokens"] - how["own_tokens"]
    unseen = (
        np.maximum(tokens - room, 0)
        if run.settings.deep.long_documents == "truncate"
        else np.zeros(1, np.int64)
    )
    report: dict[str, Any] = {
        "tokens": int(tokens.sum()),
        "truncated_documents": int((unseen > 0).sum()),
        "unseen_tokens": round(float(unseen.sum() / max(1, tokens.sum())), 4),
        "documents_read_in_parts": int(((flagged & CUT) > 0)[used].sum()),
    }
    flags = np.flatnonzero(((flagged & NOT_FINITE) > 0) & used)
    if len(flags) == len(tokens):
        raise InputError(
            f"the model of deep_embeddings ({run.settings.deep_model}) gives no finite vector for any of "
            f"{len(flags):,} documents; expected finite numbers: its weights are damaged, so fetch or save it again, "
            "or set deep.model to another one"
        )
    if len(flags):
        ids, _ = document_index(run.store, view)
        shown = [to_bytes(ids[row : row + 1]).hex() for row in flags[:IDS_SHOWN].tolist()]
        run.progress.note(
            f"{len(flags):,} documents have no finite vector and were given the mean of their fragment: "
            f"{', '.join(shown[:3])}{', ...' if len(flags) > 3 else ''}"
        )
        report["flagged_ids"] = shown
    return {**report, "flagged_documents": len(flags)}
