"""base_model: the tokenizer and token table that every later stage uses, with the pooling statistics of the corpus.

The base model is a pinned fit: appended documents use it as it is. Another checkpoint, or the same with other bytes, is
another fit. Where hardly any of the documents it was made on are left, every run says so. It is made again only as
`refit.model` says, since that makes everything after it again.

For a checkpoint the fit holds its tokenizer, as transformers reads it, and hashes of its content. The receipt holds its
place and the times of its files, by which the next run knows it without reading it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from dagster_divorder.core.sketch import left_share
from dagster_divorder.corpus.stored import MAX_DOCUMENTS, contents, sample_texts
from dagster_divorder.errors import InputError
from dagster_divorder.models.bootstrap import SAMPLE_BYTES
from dagster_divorder.pipeline.fit import MIN_SHARE_LEFT, SKETCH, Fitted, PinnedFit, another_corpus
from dagster_divorder.pipeline.published import last_published
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import content_hash
from dagster_divorder.settings.places import id_and_revision
from dagster_divorder.stages.corpus.chat_template import BOOTSTRAP, find_checkpoint, locate_base, template_of
from dagster_divorder.stages.mix.heldout import fit_inputs, fit_rows, leaves_out
from dagster_divorder.store.arrays import pack, unpack
from dagster_divorder.store.disk import scratch
from dagster_divorder.store.stages import model_path, read_fit
from dagster_divorder.store.state import Receipt, load_receipt, load_state

if TYPE_CHECKING:
    from dagster_divorder.models.tokenize import Encoder

INFO = "base_model.json"
STATISTICS = "statistics.safetensors"
RENDERED_BYTES = 8 << 20
"""Conversations that are rendered to count in how many a token occurs: some seconds."""
COMPARED = 256
"""Documents on which engines are compared."""


@dataclass(frozen=True, slots=True)
class BaseModel:
    """A loaded base model.

    `directory` holds its tokenizer, which other machines find in the store at `place`; `checkpoint` holds its weights;
    `info` names its content (fingerprints, encoder engine, width, ids of special tokens); `document_frequency` int64
    (V,) counts the sampled `documents` a token occurs in.
    """

    place: str
    directory: Path
    checkpoint: Path
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

        return embedding_table(self.checkpoint, vocabulary=self.info["vocabulary"]).weights


def load_base_model(run: Run) -> BaseModel:
    """The pinned base model.

    Raises:
        MissingStageError: base_model has not run with these settings.
    """
    files, receipt = run.fit("base_model"), run.receipt("base_model")
    place, statistics = receipt.files["fit"], unpack(files[STATISTICS])
    directory = model_path(run.store, place)
    return BaseModel(
        place=place,
        directory=directory,
        checkpoint=Path(receipt.facts.get("directory", directory)),
        info=orjson.loads(files[INFO]),
        document_frequency=statistics["document_frequency"],
        documents=int(statistics["documents"][0]),
    )


def _checkpoint(run: Run) -> dict[str, Any]:
    return find_checkpoint(run, "base_model", locate_base, _content_of)


def _content_of(directory: Path) -> dict[str, Any]:
    """Hashes of a checkpoint's embedding and of the files that decide its tokenizer.

    Raises:
        InputError: it has no usable embedding.
    """
    from dagster_divorder.models.checkpoint import (
        ADDED,
        SPECIAL,
        TOKENIZER_FILES,
        embedding_table,
        table_fingerprint,
    )

    table = embedding_table(directory)
    names = ("config.json", SPECIAL, ADDED, *TOKENIZER_FILES)
    files = [(name, (directory / name).read_bytes().hex()) for name in names if (directory / name).is_file()]
    return {
        "table_key": table.key,
        "table": table_fingerprint(table),
        "dim": int(table.weights.shape[1]),
        "rows": len(table.weights),
        "tokenizer_files": content_hash(*files),
    }


def _make_base_model(run: Run) -> Mapping[str, bytes]:
    from dagster_divorder.core.vectors.pool import document_frequency
    from dagster_divorder.models.bootstrap import train
    from dagster_divorder.models.checkpoint import TEMPLATE, check_vocabulary, tokenizer_fingerprint
    from dagster_divorder.models.pretrained import save_tokenizer
    from dagster_divorder.models.tokenize import load_encoder, special_ids

    advanced, template, checkpoint = run.settings.advanced, template_of(run), _checkpoint(run)
    rows = fit_rows(run, "base_model", MAX_DOCUMENTS)
    texts = sample_texts(run.records, run.view, rows, SAMPLE_BYTES)
    training: dict[str, Any] = {}
    with scratch() as folder:
        if checkpoint:
            directory, content = Path(checkpoint["directory"]), checkpoint["content"]
            save_tokenizer(directory, folder, template.template if template else None)
            encoder = load_encoder(folder, sample=texts)
            check_vocabulary(directory, content["rows"], encoder.vocab_size)
        else:
            run.progress.note(f"training the bootstrap model on {len(texts):,} documents")
            encoder, training = train(
                texts,
                folder,
                vocab_size=advanced.vocab_size,
                dim=advanced.token_dims,
                seed=run.settings.seed,
                progress=run.progress,
            )
            if template:
                (folder / TEMPLATE).write_text(template.template, encoding="utf-8")
            content = _content_of(folder)
        chat_engine = dict[str, str]()
        counted: tuple[Any, Any] | None = None
        if run.settings.has_chats:
            from dagster_divorder.models.chat_tokens import ChatEncoder, parts_of

            # The engine that gives the reference's tokens of conversations, and these tokens: what a template writes
            # into every conversation must not count as rare.
            total = np.cumsum(run.index("text_size")[rows])
            rows = rows[: max(1, int(np.searchsorted(total, RENDERED_BYTES, side="right")))]
            documents = contents(run.view.fragments, rows, run.records.texts)
            compared = documents[:COMPARED].to_pylist()
            parts = (parts_of(each, template) for each in compared)
            exact = encoder
            if encoder.engine == "gigatoken":
                sample = (part.text for own in parts for part in own)
                exact = load_encoder(folder, sample=sample, control=True)
            chat_engine = {"chat_engine": exact.engine, "chat_engine_reason": exact.reason}
            arrays = ChatEncoder(folder, template, exact.engine).encode(documents)
            counted = arrays["ids"], arrays["lengths"]
        ids, lengths = (template and counted) or encoder.encode(texts)
        special, tokenizer = special_ids(folder), tokenizer_fingerprint(folder)
        files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    info = {
        **content,
        "tokenizer": tokenizer,
        "vocabulary": encoder.vocab_size,
        "engine": encoder.engine,
        "engine_reason": encoder.reason,
        **chat_engine,
        "special": special,
        "sample_documents": len(lengths),
        "sample_tokens": int(lengths.sum()),
        "training": training,
    }
    frequency = document_frequency(ids, lengths, encoder.vocab_size)
    statistics = {"document_frequency": frequency, "documents": np.array([len(lengths)], dtype=np.int64)}
    return {**files, STATISTICS: pack(statistics), INFO: orjson.dumps(info)}


def _base_model_facts(run: Run, fitted: Fitted) -> dict[str, Any]:
    return {
        **orjson.loads(fitted.files[INFO]),
        **_checkpoint(run),
        "left_out": _decided_by(run).get("heldout"),
    }


def _base_model_figures(run: Run, receipt: Receipt) -> dict[str, Any]:
    hidden = {
        "training",
        "signature",
        "content",
        "special",
        "rows",
        "tokenizer_files",
        "left_out",
        "checked",
        "reason",
    }
    info = {name: receipt.facts[name] for name in receipt.facts if name not in {*hidden, "documents"}}
    if run.settings.exports.formats:
        check_end_of_text(run, receipt)
    last = load_receipt(run.store, "base_model")
    known = last and (last.version, last.facts["checked"]) == (
        receipt.version,
        run.receipt("raw_docs").version,
    )
    if last and known:
        share_left = last.figures["documents_left"]
    else:
        # Counting reads the hashes of all texts.
        made_on = unpack(read_fit(run.store, receipt.files["fit"])[SKETCH])["ids"]
        share_left = left_share(made_on, run.text_halves())
    note = None
    if share_left < MIN_SHARE_LEFT:
        note = (
            f"{share_left:.0%} of the documents that base_model was made on are left in the input; divorder run "
            "--refit model makes it from the present ones (everything is then computed again)"
        )
        run.progress.note(note)
    return {
        "base": run.settings.model.base,
        **info,
        **receipt.facts["training"],
        "documents_left": share_left,
        "note": note,
    }


def check_end_of_text(run: Run, base_model: Receipt) -> None:
    """
    Raises:
        InputError: `packing.end_of_text` asks for an end-of-text token, but the tokenizer names none.
    """
    if run.settings.packing.end_of_text and base_model.facts["special"]["eos"] is None:
        raise InputError(
            f"packing.end_of_text is true, but the tokenizer of {run.settings.model.base} names no end-of-text token; "
            "expected an `eos_token` in its tokenizer_config.json: add it there, or set packing.end_of_text = false"
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
    plan = last_published(load_state(run.store))
    left_out = plan.orders["packed_sequences"].facts.get("left_out") if plan else None
    return {**content, **({"heldout": left_out} if left_out else {})}


BASE_MODEL = PinnedFit(
    name="base_model",
    version=4,
    description="The tokenizer and token vectors of the model that you will train. Without a model, small ones are "
    "learnt from a sample of the corpus. Pinned: appended documents use them as they are.",
    reads=lambda settings: ("raw_docs", *(["heldout_copies"] if leaves_out(settings, "base_model") else [])),
    settings=("model", "chats.template", "advanced.vocab_size", "advanced.token_dims", "seed"),
    decided_by=_decided_by,
    doing="making the base model",
    check=lambda run: locate_base(run.settings),
    compute=_make_base_model,
    refit="model",
    drift=another_corpus,
    facts=_base_model_facts,
    figures=_base_model_figures,
)
