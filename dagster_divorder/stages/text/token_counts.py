"""token_counts: tokenises every document once and keeps the ids for pooling, packing and exports.

Per document fragment: `ids` (uint16 or uint32, all documents end to end, no special tokens) and `lengths` int64
(rows,). If an input holds conversations, the chat template renders them, and the arrays also include `turns` and the
spans of tokens that may be trained on (`models.chat_tokens.ChatEncoder`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dagster_divorder.chats.template import ChatTemplate
from dagster_divorder.corpus.stored import Records
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Check, Finding, PerDocument
from dagster_divorder.stages.corpus.chat_template import template_of
from dagster_divorder.stages.text.base_model import load_base_model
from dagster_divorder.stages.text.loss_mask import mask_of
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.view import Fragment

if TYPE_CHECKING:
    from dagster_divorder.models.chat_tokens import ChatEncoder
    from dagster_divorder.models.tokenize import Encoder, Engine

MAX_SHARE_WITHOUT = 0.01


@lru_cache(maxsize=1)
def _kept_encoder(directory: Path, engine: Engine) -> Encoder:
    """The encoder that a process keeps: gigatoken is faster on words that it knows."""
    from dagster_divorder.models.tokenize import load_encoder

    return load_encoder(directory, engine)


def tokenize(records: Records, model: str, engine: Engine, fragment: Fragment) -> dict[str, np.ndarray]:
    """The tokens of a fragment's texts: `ids` and `lengths` as above. model: the fit that holds the tokenizer."""
    encoder = _kept_encoder(records.fragments.store.local(model), engine)
    ids, lengths = encoder.encode(records.words(fragment))
    return {"ids": ids, "lengths": lengths}


def tokenize_chats(
    records: Records,
    model: str,
    template: ChatTemplate | None,
    engine: Engine,
    id_dtype: np.dtype,
    fragment: Fragment,
) -> dict[str, np.ndarray]:
    """As `tokenize`, for fragments with conversations; adds `turns` and spans. engine: see `_chat_engine`."""
    encoder = _kept_chat_encoder(records.fragments.store.local(model), template, engine)
    arrays = encoder.encode(records.texts(fragment))
    return {**arrays, "ids": arrays["ids"].astype(id_dtype)}


@lru_cache(maxsize=1)
def _kept_chat_encoder(directory: Path, template: ChatTemplate | None, engine: Engine) -> ChatEncoder:
    """The encoder that a process keeps."""
    from dagster_divorder.models.chat_tokens import ChatEncoder

    return ChatEncoder(directory, template, engine)


def _tokenize_documents(run: Run) -> Callable[[Fragment], dict[str, np.ndarray]]:
    model = load_base_model(run)
    if run.settings.has_chats:
        from dagster_divorder.models.chat_templates import DEFAULT

        dtype = np.dtype(np.uint16 if model.info["vocabulary"] <= 1 << 16 else np.uint32)
        template = template_of(run)
        if template and template.template == DEFAULT and run.settings.model.base != "bootstrap":
            run.progress.note(
                f"{run.settings.model.base} has no chat template; conversations use DivOrder's own, which writes roles "
                "as words; to use another, set chats.template to its file"
            )
        if template and not template.trains_ends:
            run.progress.note(
                "what is trained of an answer holds no control token behind its content, so a model does not learn to "
                "end answers; set chats.template to a template that writes one, or that marks answers and their ends "
                "with {% generation %}"
            )
        return partial(tokenize_chats, run.records, model.place, template, model.info["chat_engine"], dtype)
    return partial(tokenize, run.records, model.place, model.info["engine"])


def _decided_by(run: Run) -> dict[str, Any]:
    names, template = ["tokenizer", "engine"], template_of(run)
    if run.settings.has_chats:
        names.append("chat_engine")
    model = {name: run.receipt("base_model").facts[name] for name in names}
    return {**model, **({"template": template.fingerprint} if template else {})}


def _token_counts_figures(run: Run, files: StageFiles) -> dict[str, Any]:
    # All documents are tokenised now, and the encoder takes 100 MB.
    _kept_encoder.cache_clear()
    _kept_chat_encoder.cache_clear()
    lengths, model = files.column(run.view.fragments, "lengths"), run.receipt("base_model").facts
    if not lengths.any():
        raise InputError(
            f"the tokenizer of {run.settings.model.base} makes no token of any of the {len(lengths):,} "
            'documents; expected a tokenizer for their languages: set model.base to another model, or to "bootstrap"'
        )
    return {
        "tokens": int(lengths.sum()),
        "longest_document": int(lengths.max()),
        "engine": model["engine"],
        **({"conversations": model["chat_engine"]} if run.settings.has_chats else {}),
    }


def _token_counts_figures_now(run: Run) -> dict[str, Any]:
    """Figures of the trained tokens, which depend on `chats.train_on`."""
    if not run.settings.has_chats:
        return {}
    files = TOKEN_COUNTS.files(run, TOKEN_COUNTS.key(run))
    train_on = run.settings.chats.train_on
    mask = mask_of(files, run.view.fragments, train_on)
    tokens = int(mask.begins[-1])
    trained = int(mask.within(np.arange(len(run.view)), 0, np.diff(mask.begins)).sum())
    return {"trained_tokens": trained, "trained_share": trained / tokens, "train_on": train_on}


def _documents_have_tokens(run: Run) -> Finding:
    empty = run.column("token_counts", "lengths") == 0
    share = float(empty.mean())
    first = f" (the first: record {int(empty.argmax()):,} of the input)" if empty.any() else ""
    return Finding(
        passed=share <= MAX_SHARE_WITHOUT,
        text=f"{int(empty.sum()):,} of {len(empty):,} documents have no token{first}, {share:.2%}; expected at most "
        f"{MAX_SHARE_WITHOUT:.0%}.",
        remedy="look at these documents; a tokenizer without bytes or an unknown token drops text that it does not "
        "know: set model.base to a model of these languages, or remove the documents from the input",
    )


TOKEN_COUNTS = PerDocument(
    name="token_counts",
    version=1,
    description="The token ids of every document, and their number. Each document is tokenised once.",
    reads=("raw_docs", "base_model"),
    settings=("chats.template",),
    decided_by=_decided_by,
    doing="tokenising",
    compute=_tokenize_documents,
    figures=_token_counts_figures,
    figures_now=_token_counts_figures_now,
    checks=(
        Check(
            name="documents_have_tokens",
            description="The tokenizer makes tokens from nearly every document. A document without tokens is in the "
            "output, but a model learns nothing from it.",
            check=_documents_have_tokens,
        ),
    ),
)
