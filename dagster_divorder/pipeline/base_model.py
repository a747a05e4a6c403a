"""base_model: the tokenizer and token table that every later stage uses, with the pooling statistics of the corpus.

The base model is a pinned fit: appended documents use it as it is. It is made again when its settings change, when
`model.refit = "now"`, or when the checkpoint it was made from has other bytes. Where hardly any of the documents it was
made on are left, every run says so: what follows from another one is too much to compute unasked.

Of a checkpoint the fit holds hashes of its content alone, wherever it lies; where it lies, and the times of its files,
by which the next run knows it without reading it, are in the receipt.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from dagster_divorder.models.bootstrap import SAMPLE_BYTES
from dagster_divorder.pipeline.raw_docs import load_view
from dagster_divorder.pipeline.refresh import MIN_SHARE_LEFT, corpus_sketch, documents_left, sketch_file
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.sample import sample_texts
from dagster_divorder.store.arrays import pack, unpack
from dagster_divorder.store.fits import Fit, fit_path, pin, pinned, read_fit
from dagster_divorder.store.receipts import Receipt, load_receipt
from dagster_divorder.store.view import View

if TYPE_CHECKING:
    from dagster_divorder.models.tokenize import Encoder

BOOTSTRAP = "bootstrap"
INFO = "base_model.json"
STATISTICS = "statistics.safetensors"


@dataclass(frozen=True, slots=True)
class BaseModel:
    """A loaded base model.

    `directory` holds an ordinary Hugging Face checkpoint; `info` names its content (fingerprints, encoder engine,
    width); `document_frequency` int64 (V,) counts the sampled `documents` a token occurs in.
    """

    fit: Fit
    directory: Path
    info: dict[str, Any]
    document_frequency: np.ndarray
    documents: int

    def encoder(self) -> Encoder:
        """The tokenizer, run by the engine that was proved equal to the reference when the model was pinned."""
        from dagster_divorder.models.tokenize import load_encoder

        return load_encoder(self.directory, engine=self.info["engine"])

    def table(self) -> np.ndarray:
        """Token table, float32 (V, D)."""
        from dagster_divorder.models.checkpoint import embedding_table

        return embedding_table(self.directory).weights


def run(run: Run) -> Receipt:
    from dagster_divorder.models.checkpoint import signature

    recipe = run.settings.recipe("base_model")
    raw_docs, view = run.receipt("raw_docs"), load_view(run)
    fit = load_pin(run)
    directory = find_checkpoint(run)
    # Before anything is read: what changes meanwhile is noticed next time.
    files = signature(directory) if directory else None
    reason = reason_to_fit(run, fit, directory)
    model = run.settings.model
    timing: dict[str, float] = {}
    if reason:
        texts = sample_texts(run.store, view, SAMPLE_BYTES)
        with run.store.scratch(4 * model.vocab_size * model.dim, "the base model") as folder:
            made_files, timing = _fit(run, texts, directory, folder)
        made_files |= sketch_file(corpus_sketch(run, view))
        fit = pin(run.store, "base_model", recipe, made_files, reason)
    assert fit is not None
    made = load_pinned(run, fit, directory)
    left = _documents_left(run, view, fit)
    if warning := warn_of_another_corpus(left):
        run.progress.note(warning)
    return Receipt(
        stage="base_model",
        recipe=recipe,
        key=fit.hash,
        version=fit.hash,
        # The corpus decides the fit only when it is made, so a grown corpus does not make the model stale.
        uses={},
        files={"fit": fit.folder},
        report={
            "documents": made.documents,
            "new_documents": made.documents if reason else 0,
            "reused_documents": 0 if reason else made.documents,
            "fitted": reason or f"no: pinned ({fit.reason})",
            "corpus": raw_docs.version,
            "documents_left": left,
            "note": warning,
            **{name: value for name, value in made.info.items() if name != "training"},
            **made.info.get("training", {}),
            **timing,
            **({"base": model.base, "directory": str(directory), "checkpoint": files} if directory else {}),
        },
    )


def warn_of_another_corpus(left: float) -> str | None:
    """What to say where a share `left` of the documents that the model was made on is left, None if it is enough."""
    if left >= MIN_SHARE_LEFT:
        return None
    return (
        f"{left:.0%} of the documents that base_model was made on are left in the input; "
        'set model.refit = "now" for one run to make it from the present ones (everything is then computed again)'
    )


def _documents_left(run: Run, view: View, fit: Fit) -> float:
    """See `documents_left`; known already if the last run had this corpus and this fit."""
    last = load_receipt(run.store, "base_model")
    if last and (last.version, last.report["corpus"]) == (fit.hash, run.receipt("raw_docs").version):
        return float(last.report.get("documents_left", 1.0))
    return documents_left(run, view, fit)


def load_pin(run: Run) -> Fit | None:
    """The pin of these settings, None if there is none yet; StoreError where it is lost and no refit is asked for."""
    model = run.settings.model
    return pinned(run.store, "base_model", run.settings.recipe("base_model"), refit=model.refit == "now")


def load_base_model(run: Run) -> BaseModel:
    """The pinned base model.

    Raises:
        MissingStageError: base_model has not run with these settings.
    """
    receipt = run.receipt("base_model")
    bootstrap = run.settings.model.base == BOOTSTRAP
    directory = None if bootstrap else Path(receipt.report["directory"])
    return load_pinned(run, Fit("base_model", receipt.version, ""), directory)


def find_checkpoint(run: Run) -> Path | None:
    """Directory of the checkpoint that `model.base` names; None for `bootstrap`, which lies in the fit itself."""
    from dagster_divorder.models.checkpoint import locate

    model = run.settings.model
    return None if model.base == BOOTSTRAP else locate(model.base, revision=model.revision)


def load_pinned(run: Run, fit: Fit, checkpoint: Path | None) -> BaseModel:
    """The base model of a fit, of the checkpoint that `find_checkpoint` finds."""
    files = read_fit(run.store, fit)
    info = orjson.loads(files[INFO])
    statistics = unpack(files[STATISTICS])
    directory = checkpoint or fit_path(run.store, fit)
    return BaseModel(fit, directory, info, statistics["document_frequency"], int(statistics["documents"][0]))


def reason_to_fit(run: Run, fit: Fit | None, checkpoint: Path | None) -> str | None:
    """Why the pinned base model has to be made (again), None where it has not."""
    if run.settings.model.refit == "now":
        return "asked for by model.refit"
    if fit is None:
        return "first run with these settings"
    if checkpoint and not _known(run, fit, checkpoint):
        pinned_info = orjson.loads(read_fit(run.store, fit)[INFO])
        found, _ = _content_of(checkpoint)
        if any(pinned_info.get(name) != value for name, value in found.items()):
            return "the checkpoint has changed"
    return None


def _known(run: Run, fit: Fit, checkpoint: Path) -> bool:
    """Whether the files of a checkpoint are, by sizes and times, those that the last run found to be the fit's."""
    from dagster_divorder.models.checkpoint import signature

    last = load_receipt(run.store, "base_model")
    if last is None or last.version != fit.hash or last.report.get("directory") != str(checkpoint):
        return False
    files = signature(checkpoint)
    return files is not None and last.report.get("checkpoint") == files


def _content_of(checkpoint: Path) -> tuple[dict[str, Any], int]:
    """What names a checkpoint's content, and the rows of its table: often more than the tokenizer has ids."""
    from dagster_divorder.models.checkpoint import embedding_table, table_fingerprint, tokenizer_fingerprint

    table = embedding_table(checkpoint)
    info = {
        "table_key": table.key,
        "table": table_fingerprint(table),
        "tokenizer": tokenizer_fingerprint(checkpoint),
        "dim": int(table.weights.shape[1]),
    }
    return info, len(table.weights)


def _fit(
    run: Run, texts: list[str], checkpoint: Path | None, folder: Path
) -> tuple[dict[str, bytes], dict[str, float]]:
    from dagster_divorder.core.pool import document_frequency
    from dagster_divorder.models.bootstrap import train
    from dagster_divorder.models.checkpoint import embedding_table
    from dagster_divorder.models.tokenize import load_encoder

    model = run.settings.model
    files: dict[str, bytes] = {}
    training: dict[str, Any] = {}
    timing: dict[str, float] = {}
    directory = checkpoint or folder
    if checkpoint is None:
        run.progress.note(f"training the bootstrap model on {len(texts):,} documents")
        report = train(texts, folder, vocab_size=model.vocab_size, dim=model.dim, seed=run.settings.seed)
        timing = {name: value for name, value in report.items() if name.endswith("seconds")}
        training = {name: value for name, value in report.items() if name not in timing}
        files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    content, rows = _content_of(directory)
    info: dict[str, Any] = {} if checkpoint else {"base": BOOTSTRAP, "directory": "."}
    info |= content
    encoder = load_encoder(directory, sample=texts)
    if encoder.vocab_size > rows:
        embedding_table(directory, vocabulary=encoder.vocab_size)  # raises, and says what to do
    ids, lengths = encoder.encode(texts)
    frequency = document_frequency(ids, lengths, rows)
    info |= {
        "engine": encoder.engine,
        "engine_reason": encoder.reason,
        "vocabulary": encoder.vocab_size,
        "sample_documents": len(texts),
        "sample_tokens": int(lengths.sum()),
        "training": training,
    }
    statistics = {"document_frequency": frequency, "documents": np.array([len(texts)], dtype=np.int64)}
    return {**files, STATISTICS: pack(statistics), INFO: orjson.dumps(info)}, timing
