"""deep_model: the model of deep_embeddings and gradient_embeddings: a checkpoint, or the decoder of the bootstrap base
model.

The decoder is made when a stage first needs it, and then pinned. It is made again only if the base model or the
seed changes. For a checkpoint the fit holds fingerprints of its content, and its tokenizer if it is another one than
the base model's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path
from typing import Any

import orjson

from dagster_divorder.core.vectors.pool import token_weights
from dagster_divorder.corpus.stored import MAX_DOCUMENTS, sample_texts
from dagster_divorder.errors import SettingsError
from dagster_divorder.models.checkpoint import (
    CONFIG,
    POOLING,
    TOKENIZER,
    locate,
    tokenizer_fingerprint,
    weight_files,
)
from dagster_divorder.models.pretrained import save_tokenizer
from dagster_divorder.models.tokenize import SAMPLE_BYTES, load_encoder
from dagster_divorder.pipeline.fit import PinnedFit
from dagster_divorder.pipeline.run import Run
from dagster_divorder.settings import Settings
from dagster_divorder.settings.places import id_and_revision
from dagster_divorder.stages.corpus.chat_template import BOOTSTRAP, find_checkpoint
from dagster_divorder.stages.mix.heldout import fit_rows
from dagster_divorder.stages.text.base_model import load_base_model
from dagster_divorder.store.disk import scratch
from dagster_divorder.store.stages import model_path

INFO = "deep_model.json"
STAGE = "deep_model"


@dataclass(frozen=True, slots=True)
class DeepModel:
    """A loaded model. directory: an ordinary Hugging Face checkpoint, which other machines find at `place`.
    fingerprint: of its content. tokenizer: the fit that holds its tokenizer. engine: runs it; None if its tokens are
    those of token_counts. vocabulary: number of ids of the tokenizer. narrow: the bootstrap decoder."""

    place: str | Path
    directory: Path
    fingerprint: str
    tokenizer: str
    engine: Any
    vocabulary: int
    narrow: bool


def load_deep_model(run: Run) -> DeepModel:
    """The current model.

    Raises:
        MissingStageError: the stage has no result under these settings.
    """
    receipt = run.receipt(STAGE)
    facts = receipt.facts
    place = Path(facts["directory"]) if "directory" in facts else receipt.files["fit"]
    return DeepModel(
        place=place,
        directory=model_path(run.store, place),
        fingerprint=facts.get("content", receipt.version),
        tokenizer=receipt.files["fit"],
        engine=facts["engine"],
        vocabulary=facts["vocabulary"],
        narrow="directory" not in facts,
    )


def locate_model(settings: Settings) -> Path | None:
    """The folder of the checkpoint that the settings name; None for the bootstrap decoder.

    Raises:
        SettingsError: the model is `bootstrap` and `model.base` is not.
        InputError: there is no checkpoint, or parts of it are missing.
    """
    if settings.deep_model != BOOTSTRAP:
        return locate(
            settings.deep_model,
            all_weights=True,
            setting="deep.model" if settings.deep.model else "model.base",
        )
    if settings.model.base != BOOTSTRAP:
        raise SettingsError(
            f'deep.model is "{BOOTSTRAP}" and model.base is {settings.model.base!r}; the bootstrap decoder reads the '
            f'bootstrap token table: set model.base = "{BOOTSTRAP}" too, or leave deep.model out to use model.base'
        )
    return None


def _checkpoint(run: Run) -> dict[str, Any]:
    return find_checkpoint(run, STAGE, locate_model, checkpoint_fingerprint)


def checkpoint_fingerprint(directory: Path) -> str:
    """xxh3-128, in hex, of the files that decide a model's hidden states and their pooling. About a second a gigabyte,
    once for the same files."""
    from xxhash import xxh3_128

    state = xxh3_128()
    for name in ("config.json", TOKENIZER, CONFIG, POOLING):
        path = directory / name
        state.update(name.encode())
        if path.is_file():
            state.update(path.read_bytes())
    for path in weight_files(directory):
        state.update(f"{path.name} {path.stat().st_size} ".encode())
        with path.open("rb") as file:
            file_digest(file, lambda: state)
    return state.hexdigest()


def _make_deep_model(run: Run) -> Mapping[str, bytes]:
    from dagster_divorder.models.decoder import make_decoder

    base, checkpoint = load_base_model(run), _checkpoint(run)
    info = {name: base.info[name] for name in ("tokenizer", "vocabulary")} | {"engine": None}
    if not checkpoint:
        weights = token_weights(base.document_frequency, base.documents, "idf")
        with scratch() as folder:
            make_decoder(base.directory, folder, weights, seed=run.settings.seed)
            files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
        return {**files, INFO: orjson.dumps(info)}
    with scratch() as folder:
        save_tokenizer(Path(checkpoint["directory"]), folder)
        info["tokenizer"] = tokenizer_fingerprint(folder)
        if info["tokenizer"] == base.info["tokenizer"]:
            return {INFO: orjson.dumps(info)}
        rows = fit_rows(run, STAGE, MAX_DOCUMENTS)
        encoder = load_encoder(folder, sample=sample_texts(run.records, run.view, rows, SAMPLE_BYTES))
        info |= {"engine": encoder.engine, "vocabulary": encoder.vocab_size}
        return {**{path.name: path.read_bytes() for path in folder.iterdir()}, INFO: orjson.dumps(info)}


def _decided_by(run: Run) -> dict[str, Any]:
    checkpoint, base = _checkpoint(run), run.receipt("base_model")
    if checkpoint:
        named = id_and_revision(run.settings.deep_model)
        return {"model": named, "checkpoint": checkpoint["content"], "tokenizer": base.facts["tokenizer"]}
    return {"base_model": base.version, "seed": run.settings.seed}


DEEP_MODEL = PinnedFit(
    name=STAGE,
    version=5,
    asset=False,
    description="The model whose hidden states deep_embeddings pools, and whose gradients gradient_embeddings takes.",
    reads=("raw_docs", "base_model", "heldout_copies"),
    settings=("model", "deep.model", "seed"),
    decided_by=_decided_by,
    doing="making the deep model",
    check=lambda run: locate_model(run.settings),
    compute=_make_deep_model,
    facts=lambda run, fitted: {**orjson.loads(fitted.files[INFO]), **_checkpoint(run)},
)
