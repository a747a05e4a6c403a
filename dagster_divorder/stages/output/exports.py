"""exports: the tokens of the training sequences, in their final order, in the formats that trainers read.

Each of `exports.formats` has a folder below `exports.path`; its files are in the order of training. A folder beside it
holds the tokenizer and manifest.json, which is written last (docs/exports.md). An export that is complete and up to
date stays unchanged, whatever other formats are set.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import orjson

from dagster_divorder import __version__
from dagster_divorder.core.distinct import distinct_values
from dagster_divorder.core.measure.runs import RunCounter
from dagster_divorder.core.order.traits import Traits
from dagster_divorder.core.packing import PackedSequences
from dagster_divorder.core.ranks import arranged, deal_to_ranks, slowest_rank
from dagster_divorder.errors import InputError
from dagster_divorder.models.checkpoint import TOKENIZER, TOKENIZER_FILES
from dagster_divorder.pipeline.published import record_plan
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import CONTENT, File, Link, Made, Table, WholeCorpus, content_hash
from dagster_divorder.settings import Settings
from dagster_divorder.settings.places import Place
from dagster_divorder.stages.mix.consumed import refuse_to_reorder
from dagster_divorder.stages.mix.repeats import item_records, load_stream, run_counter
from dagster_divorder.stages.order.packed_sequences import load_packed
from dagster_divorder.stages.order.sequence_order import load_sequence_order, output_order
from dagster_divorder.stages.text.base_model import check_end_of_text
from dagster_divorder.stages.text.loss_mask import has_loss_mask, load_loss_mask
from dagster_divorder.store.manifests import (
    EXPORT_MANIFEST,
    EXPORT_VERSION,
    MASKED_VERSION,
    NEIGHBOUR,
    ROWS,
    TRAINED,
)
from dagster_divorder.store.output_manifests import read_manifest, why_lacking
from dagster_divorder.store.state import Receipt
from dagster_divorder.trainers import Trainer, rows_for_contiguous_ranks, trainer_named
from dagster_divorder.trainers.replay import Shape, export_keys
from dagster_divorder.write.curated import RECORDS, OutputFolder, refuse_strangers, tidy
from dagster_divorder.write.exports import FORMATS
from dagster_divorder.write.exports.megatron import MEGATRON
from dagster_divorder.write.exports.parquet import PARQUET
from dagster_divorder.write.exports.row_table import stage_row_table
from dagster_divorder.write.exports.rows import Format, Options, Rows, Tokens
from dagster_divorder.write.permute import EXTENDED_SHARD_BYTES

EXPORT_SHARD_BYTES = 1 << 30
"""Approximate bytes of a file; Megatron reads one file."""

TAG_DIGITS = 8


def _write_exports(run: Run) -> Made:
    plan, fingerprint = load_packed(run), plan_fingerprint(run)
    order, batch, exports = load_sequence_order(run), run.settings.sequence.batch, run.settings.exports
    if exports.equal_ranks:
        # The rows of each whole global batch are dealt to equal ranks.
        to, padded = exports.dealt_to, not run.settings.packing.packs
        costs, read = row_costs(plan, padded=padded), order.reshape(-1).copy()
        for first in range(0, len(read) // batch * batch, batch):
            rows = read[first : first + batch]
            dealt = arranged(costs[rows], to["world_size"], to["micro_batch"], to["shares"], padded=padded)
            read[first : first + batch] = rows[dealt]
        order = read.reshape(order.shape)
    keys = {str(_folder(run, name)): _key(run, FORMATS[name]) for name in exports.formats}
    refuse_to_reorder(run, fingerprint)
    tokens = stored_tokens(run)
    for name in exports.formats:
        FORMATS[name].check(_rows(run, FORMATS[name], plan, order, tokens))
    record_plan(run, fingerprint, keys)
    stream = load_stream(run)
    held = stream.traits, run_counter(run, stream.record_of)
    for lacking in _lacks_each(run):
        _write(run, FORMATS[lacking], _rows(run, FORMATS[lacking], plan, order, tokens), order.size, *held)
    hashes, table = {}, []
    for name in exports.formats:
        folder = _folder(run, name)
        manifest = read_manifest(folder, EXPORT_MANIFEST) or {}
        hashes[name] = {file: entry["sha256"] for file, entry in manifest["files"].items()}
        table.append(
            {
                "format": name,
                "folder": str(folder),
                "sequences": manifest["rows"],
                "tokens": manifest["tokens"],
                **({"trained tokens": mask["trained_tokens"]} if (mask := manifest.get("loss_mask")) else {}),
                "files": len(manifest["files"]),
                "bytes": sum(entry["bytes"] for entry in manifest["files"].values()),
            }
        )
    facts = {"formats": list(hashes), "plan": fingerprint}
    return Made({"hashes": File(orjson.dumps(hashes), "json")}, facts, {"exports": table})


def row_costs(plan: PackedSequences, *, padded: bool) -> np.ndarray:
    """The cost of each sequence, float64 (S,): the squared lengths of its documents, which attend to themselves alone;
    or its length, if rows are padded."""
    amounts = plan.length if padded else plan.length.astype(np.float64) ** 2
    sums = np.concatenate([[0.0], np.cumsum(amounts, dtype=np.float64)])
    return np.diff(sums[plan.indptr])


def slowest_ranks(run: Run, trainer: Trainer, ranks: int, micro: int) -> dict[str, float]:
    """The slowest rank's attention cost over the mean rank's, as a mean over micro-steps (`core.ranks`): `come`,
    with rows as they come, and `dealt`, with `exports.equal_ranks`. ranks, micro: their product divides the batch."""
    settings, batch = run.settings, run.settings.sequence.batch
    order = load_sequence_order(run).reshape(-1)
    padded = not settings.packing.packs
    costs = row_costs(load_packed(run), padded=padded)[order[: len(order) // batch * batch]].reshape(
        -1, batch
    )
    dealt = [of_batch[deal_to_ranks(of_batch, ranks, micro, padded=padded)] for of_batch in costs]
    come = costs.reshape(-1, micro, ranks).transpose(0, 2, 1) if trainer.shares == "rows" else costs
    return {
        "come": slowest_rank(come.ravel(), ranks, micro, padded=padded),
        "dealt": slowest_rank(np.ravel(dealt), ranks, micro, padded=padded),
    }


def stored_tokens(run: Run) -> Tokens:
    """The token ids of the stream's items.

    Raises:
        InputError: the settings ask for an end-of-text token, but the tokenizer names none.
    """
    model = run.receipt("base_model")
    check_end_of_text(run, model)
    ids, vocabulary = model.facts["special"], model.facts["vocabulary"]
    padding = next((ids[name] for name in ("pad", "eos") if ids[name] is not None), 0)
    return Tokens(
        files=run.files("token_counts"),
        view=run.view,
        corpus=run.records,
        records=item_records(run),
        dtype=np.dtype(np.uint16 if vocabulary <= 1 << 16 else np.uint32),
        special={name: value for name, value in ids.items() if value is not None},
        end_of_text=ids["eos"] or 0,
        padding=padding or 0,
        vocabulary=vocabulary,
        engine=lambda: run.engine,
        progress=run.progress,
        trained=load_loss_mask(run).trained,
    )


def _rows(run: Run, format: Format, plan: PackedSequences, order: np.ndarray, tokens: Tokens) -> Rows:
    """The rows of an export. order: of the plan's sequences, int64 (E, S)."""
    if format.epochs == "index":
        # Dealt batches may cross the end of an epoch, and hold a sequence of the next one.
        sequence = order[0] if len(order) == 1 else load_sequence_order(run)[0]
        place = np.empty(len(sequence), np.int64)
        place[sequence] = np.arange(len(sequence))
        return Rows(plan, sequence, place[order], tokens)
    sequence, layout = order.reshape(-1), _layout(run.settings, format)
    if layout:
        laid = rows_for_contiguous_ranks(len(sequence), **layout)
        if not len(laid) and len(sequence):
            raise InputError(
                f"{format.name} would hold none of the plan's {len(sequence):,} sequences: they do not fill a "
                f"micro-batch of every worker of every rank, {export_keys(layout)}; lower these, or raise them once "
                "the corpus has grown"
            )
        sequence = sequence[laid]
    return Rows(plan, sequence, np.arange(len(sequence))[None], tokens)


def _layout(settings: Settings, format: Format) -> dict[str, int]:
    """`Exports.layout` if it applies to the format; else empty."""
    return settings.exports.layout if format.contiguous_ranks else {}


def _write(run: Run, format: Format, rows: Rows, planned: int, traits: Traits, counted: RunCounter) -> None:
    """Write an export. planned: rows of the plan, over all epochs. traits, counted: of the stream's items."""
    folder, extends = _folder(run, format.name), run.settings.order.extends
    left_out = 0 if format.epochs == "index" else planned - len(rows)
    if left_out:
        run.progress.note(
            f"{format.name}: the last {left_out:,} of {planned:,} sequences are left out, because they do not fill a "
            "micro-batch of every worker of every rank"
        )
    options = Options(
        tag=_tag(run, format),
        shard_bytes=min(EXPORT_SHARD_BYTES, EXTENDED_SHARD_BYTES) if extends else EXPORT_SHARD_BYTES,
        batch=run.settings.sequence.batch,
        labels=has_loss_mask(run.settings),
    )
    with run.progress(format.name), OutputFolder(run.store, folder, EXPORT_MANIFEST, extends) as output:
        of_format = format.write(rows, output, options)
        stage_row_table(output, f"{NEIGHBOUR}train.{options.tag}.{ROWS}", rows, traits, counted)
        for name, data in _tokenizer(run).items():
            output.stage(NEIGHBOUR + name, lambda file, data=data: file.write(data))  # type: ignore[misc]
        output.commit({**_manifest(run, format, rows, left_out), **of_format})


def _tokenizer(run: Run) -> dict[str, bytes]:
    """The tokenizer's files beside each export, by name; they hold the template that rendered conversations."""
    if "tokenizer" not in run.memo:
        files = run.fit("base_model")
        run.memo["tokenizer"] = {name: files[name] for name in TOKENIZER_FILES if name in files}
    tokenizer: dict[str, bytes] = run.memo["tokenizer"]
    return tokenizer


def _manifest(run: Run, format: Format, rows: Rows, left_out: int) -> dict[str, Any]:
    settings, tokens, mask = run.settings, rows.stored, {}
    if trained := rows.trained:
        mask["loss_mask"] = {
            "train_on": settings.chats.train_on,
            "trained_tokens": int((trained.last - trained.first).sum()),
            "untrained_rows": len(rows) - len(distinct_values(trained.first // rows.length)),
        }
    return {
        "key": _key(run, format),
        "prefix": f"train-{_tag(run, format)}",
        "format": format.name,
        "format_version": MASKED_VERSION if mask else EXPORT_VERSION,
        "divorder_version": __version__,
        "plan": plan_fingerprint(run),
        "sequences": len(rows.plan),
        "epochs": settings.sequence.epochs,
        "epochs_stored": format.epochs,
        "rows": len(rows),
        "rows_left_out": left_out,
        "tokens": int(rows.tokens.sum()),
        **mask,
        "padded_rows": int((rows.tokens < rows.length).sum()),
        "sequence_length": rows.length,
        "batch": settings.sequence.batch,
        "layout": _layout(settings, format),
        "equal_ranks": settings.exports.dealt_to,
        "tokenizer": {
            "base": settings.model.base,
            "xxh3_128": run.receipt("base_model").facts["tokenizer"],
            "vocabulary": tokens.vocabulary,
            "end_of_text": tokens.special.get("eos"),
            "beginning_of_text": tokens.special.get("bos"),
            "padding": tokens.padding,
        },
        "packing": settings.packing.model_dump(),
        "sequence": settings.sequence.model_dump(),
        "order": settings.order.written,
        "seed": settings.seed,
    }


def planned_shape(run: Run, trainer: Trainer) -> Shape:
    """The shape of the export that a trainer would read under these settings, or of the curated output."""
    settings = run.settings
    if trainer.forms:
        return records_shape(run, settings.output.path)
    format = FORMATS[trainer.formats[0]]
    return Shape(
        path=str(_folder(run, format.name)),
        prefix=f"train-{_tag(run, format)}",
        sequences=run.receipt("packed_sequences").facts["sequences"],
        epochs=settings.sequence.epochs,
        sequence_length=settings.sequence.length,
        batch=settings.sequence.batch,
        layout=_layout(settings, format),
    )


def records_shape(run: Run, folder: Place) -> Shape:
    """The shape of the curated output in a folder; a row is a record."""
    written = (read_manifest(folder) or {}).get("files", {})
    names = [name for name in written if RECORDS.fullmatch(name)]
    kind = run.view.kind if run.settings.output.format == "auto" else run.settings.output.format
    return Shape(
        path=str(folder / (names[0] if len(names) == 1 else f"curated*.{kind}")),
        sequences=len(output_order(run)),
        sequence_length=0,
        batch=run.settings.sequence.batch,
    )


def plan_fingerprint(run: Run) -> str:
    """A hash of everything that decides the tokens that a trainer reads, in order: corpus, tokenizer, packing,
    order."""
    stages = (*(["repeats"] if run.settings.repeats else []), "packed_sequences", "sequence_order")
    return content_hash(
        run.receipt("raw_docs").version,
        # Other settings may give the same plan and order.
        [run.receipt(stage).facts[CONTENT] for stage in stages],
        run.receipt("token_counts").key,
        end_of_text(run),
        # So that exports without a mask keep their keys.
        *([run.settings.chats.train_on] if has_loss_mask(run.settings) else []),
    )


def end_of_text(run: Run) -> int | None:
    """The id of the token after every document; None without one."""
    eos: int | None = run.receipt("base_model").facts["special"]["eos"]
    return eos if run.settings.packing.end_of_text else None


def _key(run: Run, format: Format) -> str:
    """A hash of everything that decides the files and the manifest of a format's export."""
    settings = run.settings
    return content_hash(
        format.name,
        EXPORT_VERSION,
        plan_fingerprint(run),
        [
            format is not MEGATRON and EXPORT_SHARD_BYTES,
            settings.sequence.batch,
            _layout(settings, format),
            settings.exports.dealt_to,
            run.receipt("traits").facts[CONTENT],
        ],
        # The plan's fingerprint covers tokenizer.json; these files say which tokens begin, end and pad.
        {name: data.hex() for name, data in _tokenizer(run).items() if name != TOKENIZER},
        *([["labels"]] if format is PARQUET and has_loss_mask(settings) else []),
    )


def _tag(run: Run, format: Format) -> str:
    """The part of the key in the names of an export's files, so that other bytes have other names."""
    return _key(run, format)[:TAG_DIGITS]


def _folder(run: Run, name: str) -> Place:
    return run.settings.exports.path / name


def _lacks_each(run: Run) -> dict[str, str]:
    """Format -> why `exports.path` does not hold its export."""
    if "lacks" not in run.memo:
        whys = {
            name: why_lacking(
                _folder(run, name), f"exports.path/{name}", _key(run, FORMATS[name]), EXPORT_MANIFEST
            )
            for name in run.settings.exports.formats
        }
        run.memo["lacks"] = {name: why for name, why in whys.items() if why}
    return run.memo["lacks"]


def _publish_exports(run: Run, receipt: Receipt) -> None:
    for name in receipt.facts["formats"]:
        folder = _folder(run, name)
        manifest = read_manifest(folder, EXPORT_MANIFEST)
        assert manifest is not None
        tidy(run.store, folder, manifest["files"], EXPORT_MANIFEST)


def _check_settings(run: Run) -> None:
    """Refuses what a format cannot hold, what the trainer cannot read, and to overwrite a foreign file."""
    settings, named = run.settings, run.settings.exports.trainer
    formats, train_on = [FORMATS[name] for name in settings.exports.formats], settings.chats.train_on
    if "pairs" in settings.forms and formats:
        refused = ", ".join(repr(format.name) for format in formats)
        raise InputError(
            f"exports.formats names {refused}, but a sequence of tokens cannot hold a pair of answers; leave it out: "
            "preference trainers read the curated output and tokenise it themselves"
        )
    refused = ", ".join(repr(format.name) for format in formats if not format.masks)
    if refused and has_loss_mask(settings):
        able = ", ".join(format.name for format in FORMATS.values() if format.masks)
        raise InputError(
            f"exports.formats names {refused}, which cannot mark the tokens that chats.train_on = {train_on!r} leaves "
            f'untrained; use a format that can: {able}, or set chats.train_on = "all"'
        )
    if named and (why := unread(trainer_named(named), settings)):
        raise InputError(f"exports.trainer is {named!r}, and {why}; name another, or none")
    for format in formats:
        beside = "|".join(map(re.escape, ("manifest.json", *TOKENIZER_FILES)))
        written = re.compile(
            rf"{format.names}|{NEIGHBOUR}({beside}|train\..*({re.escape(TRAINED)}|{re.escape(ROWS)}))"
        )
        refuse_strangers(run.store, _folder(run, format.name), written.fullmatch, EXPORT_MANIFEST)


def unread(trainer: Trainer, settings: Settings) -> str:
    """Why a trainer cannot read what these settings write; "" if it can."""
    if trainer.forms:
        held, read = " and ".join(sorted(settings.forms)), " or ".join(trainer.forms)
        known = settings.forms & {*trainer.forms}
        return "" if known else f"it reads records of {read}, and the inputs hold {held}"
    if "pairs" in settings.forms:
        return "it reads exports, and a sequence of tokens cannot hold a pair of answers"
    labelled = has_loss_mask(settings)
    if labelled and not FORMATS[trainer.formats[0]].masks:
        train_on = settings.chats.train_on
        return f"{trainer.formats[0]} cannot say that chats.train_on = {train_on!r} leaves tokens untrained"
    return trainer.obstacle(labelled=labelled, short_rows=settings.packing.pads)


EXPORTS = WholeCorpus(
    name="exports",
    version=4,
    description="The training sequences in their final order, as token files in the formats that trainers read.",
    reads=(
        *("raw_docs", "base_model", "token_counts", "traits", "repeats"),
        *("packed_sequences", "sequence_order"),
    ),
    when=lambda settings: bool(settings.exports.formats),
    settings=("exports", "chats.train_on", "sequence.batch"),
    decided_by=lambda run: {name: _key(run, FORMATS[name]) for name in run.settings.exports.formats},
    lacks=lambda run, key: next(iter(_lacks_each(run).values()), None),
    publish=_publish_exports,
    doing="writing exports",
    check=_check_settings,
    compute=_write_exports,
    show=lambda run, receipt: {
        "exports_folder": Link(run.settings.exports.path),
        "exports": Table(receipt.figures["exports"]),
    },
)
