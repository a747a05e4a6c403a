"""What 0.3.0 no longer has, and what to do instead. Kept for this release only."""

from __future__ import annotations

from collections.abc import Sequence

_FILTER = "leave the worst records out of the input"
_SMALL = "`divorder prove` makes three trainings an order, of two epochs each, with one small model"
SETTINGS: dict[str, str] = {
    "advanced.decoder_tokens": "it is 2,000,000",
    "advanced.film_frames": "it is 150",
    "advanced.map_documents": "it is 10,000",
    "advanced.settle_seconds": "the sensor waits for files that are being written",
    "advanced.silhouette_documents": "it is 10,000",
    "advanced.stored": "vectors are stored as float32",
    "chats.balance": "shares count trained tokens; chats.train_on says which those are",
    "clusters.method": "k-means goes by cosine",
    "comparison": "`divorder compare` measures the same strategies for everyone, and those of your settings",
    "curriculum.epochs": "a schedule is passed in every epoch",
    "curriculum.keep": "rank the scores inside each value in a field of your records",
    "curriculum.options": "write ranks of your own as scores into a field of your records",
    "curriculum.path": "join the scores to your records as a field, and name it in curriculum.score",
    "curriculum.points": "write ranks of your own as scores into a field of your records",
    "packing.piece_tokens": 'documents are packed whole; packing.method = "best_fit" cuts only those longer than a '
    "sequence",
    "curriculum.strength": "leave out the scores of records that shall not follow the schedule: they are spread evenly",
    "curriculum.window": "it is a 32nd of training, between 4 and 64 batches",
    "deep.dtype": "models run in their own number type on a GPU, in the fastest exact enough one on a CPU",
    "deep.long_documents": "the first deep.max_tokens tokens count; embedding.path takes vectors of whole books",
    "deep.pooling": "the checkpoint's 1_Pooling/config.json says it; without that file it is the mean",
    "embedding.nan_as_zero": "write zeros for documents without a vector",
    "embedding.pca": "components gave no better clusters; project your vectors before, and set embedding.path",
    "evidence.batch": "an epoch has 250 steps or more, of sequence.batch sequences at most",
    "evidence.budget_seconds": "lower evidence.tokens or the number of evidence.orders",
    "evidence.epochs": _SMALL,
    "evidence.model": _SMALL,
    "evidence.schedule": _SMALL,
    "evidence.seeds": _SMALL,
    "exports.columns": "exports of `parquet` have labels if there is a loss mask",
    "exports.shard_bytes": "it is 1 GiB",
    "gradients": "selections compare gradients of the last two blocks of deep.model",
    "input.max_record_bytes": "it is 64 MiB",
    "input.template": "make one text a record with pandas or a script, and name its field in input.text_field",
    "mixing.phase.tokens": "set until, a share of mixing.total_tokens",
    "mixing.drop": f"{_FILTER}, or choose records by [selection]",
    "order.length_bins": "it is 100",
    "order.shards_of": "it is 10,000,000",
    "order.targets": "[[mixing.phase]] gives each phase of training a mix of its own",
    "order.within": "it is 1; orders of tables have it as an argument",
    "output.shard_bytes": "it is 2 GiB",
    "selection.alpha": "spokes chooses for diversity alone",
    "selection.documents": "give the budget in tokens, as selection.tokens",
    "selection.min_quality": _FILTER,
    "selection.quality": _FILTER,
    "selection.partitions": "all documents are optimised together",
    "selection.vectors": "selections compare gradients of the last two blocks of deep.model",
    "sequence.repack": "mixing.total_tokens of all epochs, with order.separate_copies = true, packs them apart",
    "sequence.vectors": "it is 64",
    "store.cache": "copies of a store in a bucket lie in TMPDIR while a run lasts",
    "store.wait": "a second run on a store waits for the first",
}
"""A key (`section.key`), or a whole section -> what to do instead, as a sentence without its full stop."""

VERBS: dict[str, str] = {
    "explore": "`divorder run STAGE` makes any stage and shows it, such as k_calibration",
    "stats": "`divorder run diversity_metrics stationarity` measures the order without an output",
    "grid-shuffle": 'sequence.strategy = "grid_shuffle" shuffles as it did',
    "shards": "`SequenceStream` of dagster_divorder.torch resumes at any sequence",
    "cut": "`divorder where --step A..B --json` lists the `ids` to paste into order.cut; `divorder freeze --step N` "
    "keeps what was read before",
    "loss": "`dagster_divorder.loss_by_source(model, heldout)` in Python (docs/exports.md)",
    "estimate": "README.md has a table of costs; `divorder plan` counts the documents that each stage would compute",
}
"""A verb of the command line -> what to do instead."""


def removed_setting(key: str) -> str:
    """The message for a removed key or one of a removed section; "" for any other key."""
    instead = SETTINGS.get(key) or SETTINGS.get(key.split(".")[0])
    return f"{key} is no longer a setting: {instead}" if instead else ""


def removed_verb(arguments: Sequence[str]) -> str:
    """The message for a command line with a removed verb; "" for any other."""
    at = 0
    while at < len(arguments) and arguments[at].startswith("-"):
        at += 2 if arguments[at] == "--config" else 1
    verb = arguments[at] if at < len(arguments) else ""
    return f"`divorder {verb}` was removed: {VERBS[verb]}" if verb in VERBS else ""
