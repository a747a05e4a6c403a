"""base_model: the tokenizer and token table that every later stage uses, with the pooling statistics of the corpus.

The base model is a pinned fit: appended documents use it as it is. Another checkpoint, or the same with other bytes, is
another fit. Where hardly any of the documents it was made on are left, every run says so. It is made again only as
`refit.model` says, since that makes everything after it again.

For a checkpoint the fit holds only hashes of its content. The receipt holds its place and the times of its files, by
which the next run knows it without reading it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from dagster_divorder.corpus.sample import MAX_DOCUMENTS, contents, sample_texts
from dagster_divorder.models.bootstrap import SAMPLE_BYTES
from dagster_divorder.pipeline.drift import MIN_SHARE_LEFT, another_corpus, documents_left
from dagster_divorder.pipeline.fit import Fitted, PinnedFit
from dagster_divorder.pipeline.published import published_plan
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Check, Finding
from dagster_divorder.settings import Settings
from dagster_divorder.settings.places import id_and_revision
from dagster_divorder.stages.corpus.chat_template import template_of
from dagster_divorder.stages.mix.heldout import fit_inputs, fit_reads, fit_rows
from dagster_divorder.store.arrays import pack, unpack
from dagster_divorder.store.fits import model_path
from dagster_divorder.store.state import Receipt, load_receipt

if TYPE_CHECKING:
    from dagster_divorder.models.tokenize import Encoder

BOOTSTRAP = "bootstrap"
INFO = "base_model.json"
STATISTICS = "statistics.safetensors"
RENDERED_BYTES = 8 << 20
"""Conversations that are rendered to count in how many a token occurs: some seconds."""


@dataclass(frozen=True, slots=True)
class BaseModel:
    """A loaded base model.

    `directory` holds an ordinary Hugging Face checkpoint, which other machines find at `place`; `info` names its
    content (fingerprints, encoder engine, width); `document_frequency` int64 (V,) counts the sampled `documents` a
    token occurs in.
    """

    place: str | Path
    directory: Path
    info: dict[str, Any]
    document_frequency: np.ndarray
    documents: int

    def encoder(self) -> Encoder:
        """The tokenizer, with the engine that was found equal to the reference when the model was pinned."""
        from dagster_divorder.models.tokenize import load_encoder

        return load_encoder(self.directory, engine=self.info["engine"])

    def table(self) -> np.ndarray:
        """Token table, float32 (V, D)."""
        from dagster_divorder.models.checkpoint import embedding_table

        return embedding_table(self.directory).weights


def load_base_model(run: Run) -> BaseModel:
    """The pinned base model.

    Raises:
        MissingStageError: base_model has not run with these settings.
    """
    files, place = run.fit("base_model"), _place(run)
    statistics = unpack(files[STATISTICS])
    return BaseModel(
        place=place,
        directory=model_path(run.store, place),
        info=orjson.loads(files[INFO]),
        document_frequency=statistics["document_frequency"],
        documents=int(statistics["documents"][0]),
    )


def _place(run: Run) -> str | Path:
    """The folder of the pinned base model: of a fit in the store, or the user's own."""
    receipt = run.receipt("base_model")
    bootstrap = run.settings.model.base == BOOTSTRAP
    return receipt.files["fit"] if bootstrap else Path(receipt.facts["directory"])


def model_directory(run: Run) -> Path:
    """The folder of the pinned base model on this machine (`BaseModel.directory`)."""
    return model_path(run.store, _place(run))


def is_unchanged(run: Run) -> bool:
    """Whether `model.base` is still the checkpoint that the last run pinned, by its place and the times of its
    files."""
    from dagster_divorder.models.checkpoint import signature

    directory, facts = _locate(run.settings), run.receipt("base_model").facts
    if directory is None or str(directory) != facts["directory"]:
        return False
    files = signature(directory)
    return files is not None and files == facts["signature"]


def find_checkpoint(
    run: Run, stage: str, locate: Callable[[Settings], Path | None], describe: Callable[[Path], Any]
) -> dict[str, Any]:
    """The checkpoint that `locate` finds: its `directory`, the `signature` of its files, and their `content` as
    `describe` gives it, or as the stage's last run knew it for the same files. Empty where `locate` finds none."""
    from dagster_divorder.models.checkpoint import signature

    if "checkpoint" not in run.memo:
        directory = locate(run.settings)
        if directory is None:
            return {}
        # Before anything is read: the next run sees what changes meanwhile.
        files, last = signature(directory), load_receipt(run.store, stage)
        identity = {"directory": str(directory), "signature": files}
        known = last.facts if last and files else {}
        same = "content" in known and identity.items() <= known.items()
        run.memo["checkpoint"] = {**identity, "content": known["content"] if same else describe(directory)}
    checkpoint: dict[str, Any] = run.memo["checkpoint"]
    return checkpoint


def _locate(settings: Settings) -> Path | None:
    """The folder of the checkpoint that `model.base` names; None for the bootstrap model, which the fit holds."""
    from dagster_divorder.models.checkpoint import locate

    return None if settings.model.base == BOOTSTRAP else locate(settings.model.base)


def _checkpoint(run: Run) -> dict[str, Any]:
    return find_checkpoint(run, "base_model", _locate, _content_of)


def _content_of(directory: Path) -> dict[str, Any]:
    """Fingerprints of a checkpoint's content, and the rows of its table: often more than the tokenizer has ids."""
    from dagster_divorder.models.checkpoint import embedding_table, table_fingerprint, tokenizer_fingerprint

    table = embedding_table(directory)
    return {
        "table_key": table.key,
        "table": table_fingerprint(table),
        "tokenizer": tokenizer_fingerprint(directory),
        "dim": int(table.weights.shape[1]),
        "rows": len(table.weights),
    }


def _make_base_model(run: Run) -> Mapping[str, bytes]:
    from dagster_divorder.core.vectors.pool import document_frequency
    from dagster_divorder.models.bootstrap import train
    from dagster_divorder.models.chat_templates import TEMPLATE
    from dagster_divorder.models.checkpoint import embedding_table
    from dagster_divorder.models.tokenize import load_encoder

    advanced = run.settings.advanced
    rows = fit_rows(run, "base_model", MAX_DOCUMENTS)
    texts = sample_texts(run.records, run.view, rows, SAMPLE_BYTES)
    checkpoint = _checkpoint(run)
    files: dict[str, bytes] = {}
    training: dict[str, Any] = {}
    with run.store.scratch(4 * advanced.vocab_size * advanced.token_dims, "the base model") as folder:
        if checkpoint:
            directory, content = Path(checkpoint["directory"]), checkpoint["content"]
            encoder = load_encoder(directory, sample=texts)
            engine_reason = encoder.reason
            if encoder.note:
                run.progress.note(f"{directory}: {encoder.note}")
        else:
            run.progress.note(f"training the bootstrap model on {len(texts):,} documents")
            training = train(
                texts,
                folder,
                vocab_size=advanced.vocab_size,
                dim=advanced.token_dims,
                seed=run.settings.seed,
                progress=run.progress,
            )
            if template := template_of(run):
                (folder / TEMPLATE).write_text(template.template, encoding="utf-8")
            files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
            directory, content = folder, _content_of(folder)
            # Training has compared the engines on these texts.
            encoder = load_encoder(folder, training.pop("engine"))
            engine_reason = training.pop("engine_reason")
        if encoder.vocab_size > content["rows"]:
            embedding_table(directory, vocabulary=encoder.vocab_size)  # raises, and says what to do
        ids, lengths = _as_read(run, rows, directory) or encoder.encode(texts)
        frequency = document_frequency(ids, lengths, content["rows"])
    info = {
        **content,
        "engine": encoder.engine,
        "engine_reason": engine_reason,
        "vocabulary": encoder.vocab_size,
        "sample_documents": len(lengths),
        "sample_tokens": int(lengths.sum()),
        "training": training,
    }
    statistics = {"document_frequency": frequency, "documents": np.array([len(lengths)], dtype=np.int64)}
    return {**files, STATISTICS: pack(statistics), INFO: orjson.dumps(info)}


def _as_read(run: Run, rows: np.ndarray, directory: Path) -> tuple[np.ndarray, np.ndarray] | None:
    """(ids of the first RENDERED_BYTES of documents, end to end; the number of each one's) as a model reads them; None
    where no input holds conversations. What a template writes into every conversation must not count as rare."""
    from dagster_divorder.models.chat_tokens import ChatEncoder

    template = template_of(run)
    if template is None:
        return None
    total = np.cumsum(run.records.fragments.column(run.view.fragments, "text_size")[rows])
    rows = rows[: max(1, int(np.searchsorted(total, RENDERED_BYTES, side="right")))]
    documents = contents(run.view.fragments, rows, run.records.texts)
    arrays = ChatEncoder(directory, template, "tokenizers").encode(documents)
    return arrays["ids"], arrays["lengths"]


def _base_model_facts(run: Run, fitted: Fitted) -> dict[str, Any]:
    return {
        **orjson.loads(fitted.files[INFO]),
        **_checkpoint(run),
        "left_out": _decided_by(run).get("heldout"),
    }


def _base_model_figures(run: Run, receipt: Receipt) -> dict[str, Any]:
    info = {
        name: value
        for name, value in receipt.facts.items()
        if name
        not in ("training", "signature", "content", "rows", "left_out", "checked", "reason", "documents")
    }
    last = load_receipt(run.store, "base_model")
    known = last and (last.version, last.facts["checked"]) == (receipt.version, run.corpus.version)
    # Counting reads the hashes of all texts.
    share_left = last.figures["documents_left"] if last and known else documents_left(run, receipt)
    note = _another_corpus(share_left)
    if note:
        run.progress.note(note)
    return {
        "base": run.settings.model.base,
        **info,
        **receipt.facts["training"],
        "documents_left": share_left,
        "note": note,
    }


def _another_corpus(share_left: float) -> str | None:
    """What to say where too small a share of the documents that the model was made on is left, else None."""
    if share_left >= MIN_SHARE_LEFT:
        return None
    return (
        f"{share_left:.0%} of the documents that base_model was made on are left in the input; "
        "divorder run --refit model makes it from the present ones (everything is then computed again)"
    )


def _is_of_this_corpus(run: Run) -> Finding:
    """A corpus that replaces another keeps that one's tokenizer, or its weights of tokens, and gets more tokens than
    need be."""
    share_left = documents_left(run, run.receipt("base_model"))
    return Finding(
        passed=_another_corpus(share_left) is None,
        text=f"{share_left:.0%} of the documents that the base model was trained on are still in the input.",
        remedy="divorder run --refit model, or keep another corpus in a store of its own (store.path)",
        figures={"documents_left": share_left},
    )


def _decided_by(run: Run) -> dict[str, Any]:
    template, base, advanced = template_of(run), run.settings.model.base, run.settings.advanced
    learnt = [advanced.vocab_size, advanced.token_dims, run.settings.seed]
    content = {
        "model": learnt if base == BOOTSTRAP else id_and_revision(base),
        "content": _checkpoint(run).get("content"),
        **({"template": template.fingerprint} if template else {}),
    }
    if not run.settings.order.frozen_tokens:
        return {**content, **fit_inputs(run, "base_model")}
    # A trainer has consumed tokens of the published plan, so its base model stays, whatever documents that left out.
    plan = published_plan(run.store)
    left_out = plan.orders["packed_sequences"].facts.get("left_out") if plan else None
    return {**content, **({"heldout": left_out} if left_out else {})}


BASE_MODEL = PinnedFit(
    name="base_model",
    version=3,
    description="The tokenizer and token vectors of the model that you will train. Without a model, small ones are "
    "learnt from a sample of the corpus. Pinned: appended documents use them as they are.",
    reads=lambda settings: ("raw_docs", *fit_reads(settings, "base_model")),
    settings=("model", "chats.template", "advanced.vocab_size", "advanced.token_dims", "seed"),
    decided_by=_decided_by,
    doing="making the base model",
    check=lambda run: _locate(run.settings),
    compute=_make_base_model,
    refit="model",
    drift=another_corpus,
    facts=_base_model_facts,
    figures=_base_model_figures,
    checks=(
        Check(
            name="base_model_is_of_this_corpus",
            description="The base model was trained on documents that are still in the input. A model of another "
            "corpus cuts these texts into more tokens than necessary.",
            check=_is_of_this_corpus,
        ),
    ),
)
