"""What 0.3.0 no longer has, and what to do instead. Kept for this release only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_FILTER = "leave the worst records out of the input"
_SMALL = "`divorder prove` makes three trainings an order, of two epochs each, with one small model"
SETTINGS: dict[str, str] = {
    "advanced.decoder_tokens": "it is 2,000,000",
    "advanced.film_frames": "it is 150",
    "advanced.map_documents": "it is 20,000",
    "advanced.settle_seconds": "the sensor waits for files that are being written",
    "advanced.silhouette_documents": "it is 10,000",
    "advanced.stored": "vectors are stored as float32",
    "chats.balance": "shares count trained tokens; chats.train_on says which those are",
    "clusters.method": "k-means goes by cosine",
    "comparison": "`divorder compare` measures the same strategies for everyone, and those of your settings",
    "curriculum.epochs": "a schedule is passed in every epoch",
    "curriculum.keep": "rank the scores inside each value in your own file, curriculum.path",
    "curriculum.options": "write ranks of your own as scores in curriculum.path",
    "curriculum.points": "write ranks of your own as scores in curriculum.path",
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
    "mixing.drop": f"{_FILTER}, or choose records by [selection]",
    "order.length_bins": "it is 100",
    "order.shards_of": "it is 10,000,000",
    "order.targets": "[[mixing.phase]] gives each phase of training a mix of its own",
    "order.within": "it is 1; orders of tables have it as an argument",
    "output.shard_bytes": "it is 2 GiB",
    "refit.decoder": "the bootstrap decoder is made again with the base model (refit.model)",
    "selection.alpha": 'spokes chooses for diversity alone, method = "quality" for quality alone',
    "selection.documents": "give the budget in tokens, as selection.tokens",
    "selection.min_quality": _FILTER,
    "selection.partitions": "all documents are optimised together",
    "selection.vectors": "selections compare gradients of the last two blocks of deep.model",
    "sequence.vectors": "it is 64",
    "store.cache": "copies of a store in a bucket lie in TMPDIR while a run lasts",
    "store.wait": "a second run on a store waits for the first",
}
"""A key (`section.key`), or a whole section -> what to do instead, as a sentence without its full stop."""

_BUFFER = {"balanced_buffer": 'use "balanced"; for a stream, divorder.balance'}
_TRAINED = ("original", "random_documents", "random_sequences", "curated")
_SHAPES = ("rise", "fall", "segment", "fold", "zigzag", "stair", "saw", "points")
VALUES: dict[str, dict[str, str]] = {
    "order.strategy": _BUFFER,
    "sequence.strategy": _BUFFER,
    "evidence.orders": {
        "repeated_shuffle": "random_sequences shuffles anew in each epoch",
        "cluster_packed": 'prove a plan with packing.method = "cluster_packed"',
        "curated_epochs": "set sequence.epochs, and train curated, which reads the plan of each epoch",
        **{f"{name}_apart": "attention crosses documents in all of them" for name in _TRAINED},
        **{
            f"{shape}{of}": "set curriculum.score and curriculum.shape, and train curated, which follows them"
            for shape in _SHAPES
            for of in ("", "_balanced")
        },
    },
    "exports.formats": {"text": "trainers that tokenise text read the curated output, in output.path"},
    "exports.trainer": {
        "nanotron": "its repository has had no change of code since June 2025; datatrove reads the same files",
        "torchtune": "its development stopped in July 2025; trl, axolotl, llama-factory and ms-swift read the records",
        "torchtitan-streaming": "torchtitan and torchtitan-grain read the export",
    },
    "mixing.weights": {"by_quality": "shares of one trait: a table, natural, sqrt, unimax or a number"},
    "curriculum.shape": dict.fromkeys(
        ("stair", "saw", "segment"),
        'expected "rise", "fall", "fold" or "zigzag"; for another course, write its ranks in curriculum.path',
    ),
    "packing.too_long": {
        "split_turns": 'expected "truncate", "drop", "cut" or "error"; split conversations before'
    },
    "packing.method": {"related": 'it is called "cluster_packed"'},
    "output.sidecars": {"arrays": "`load_results` has tokens, vectors and the map (docs/results.md)"},
    "order.separate_copies": {
        "subsets": "true deals copies to different parts of training",
        "near": "true sets records of equal text apart; remove near copies before (docs/recipes.md)",
    },
}
"""A key that stays -> its removed values, each with what to do instead."""

VERBS: dict[str, str] = {
    "explore": "`divorder run STAGE` makes any stage and shows it, such as k_calibration",
    "stats": "`divorder run diversity_metrics stationarity` measures the order without an output",
    "grid-shuffle": 'sequence.strategy = "grid_shuffle" shuffles as it did',
    "shards": "`dagster_divorder.torch.rotate_shards(export, sequences)` gives the files from a step on",
    "cut": "`divorder where --step A..B --json` lists the `ids` to paste into order.cut; `divorder freeze --step N` "
    "keeps what was read before",
    "loss": "`dagster_divorder.loss_by_source(model, heldout)` in Python (docs/exports.md)",
    "estimate": "README.md has a table of costs; `divorder plan` counts the documents that each stage would compute",
}
"""A verb of the command line -> what to do instead."""


OPTIONS: dict[str, str] = {
    "--dagster": "`dagster dev -m dagster_divorder.definitions` shows the corpus (docs/dagster.md)",
    "--open": "open the page that `divorder report` names",
    "--report-to": "set DAGSTER_HOME, and `divorder run` is a run of Dagster",
    "--key-prefix": "a corpus with a key prefix is run by its job, such as `dg launch --job news_curate`",
}
"""An option of the command line -> what to do instead."""


def removed_setting(key: str) -> str:
    """The message for a removed key or one of a removed section; "" for any other key."""
    instead = SETTINGS.get(key) or SETTINGS.get(key.split(".")[0])
    return f"{key} is no longer a setting: {instead}" if instead else ""


def refuse_removed(given: Mapping[str, Any]) -> None:
    """
    Raises:
        ValueError: settings name what was removed; the message names all of it with what to do instead.
    """
    problems = []
    # [[input]] blocks are a list of tables.
    tables = [(name, table) for name, of in given.items() for table in (of if isinstance(of, list) else [of])]
    for section, keys in tables:
        for key, value in keys.items() if isinstance(keys, Mapping) else [("", None)]:
            name = f"{section}.{key}".rstrip(".")
            problems.append(removed_setting(name))
            if name == "mixing.trait" and not isinstance(value, str) and isinstance(value, Sequence):
                problems.append(
                    f"{name} = {value!r} is no longer possible: it is one trait, so write pairs of values as a field"
                )
            values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
            problems += [
                f'{name} = "{gone}" is no longer possible: {instead}'
                for gone, instead in VALUES.get(name, {}).items()
                if gone in values
            ]
    if any(problems):
        raise ValueError("; ".join(filter(None, problems)))


def removed_verb(arguments: Sequence[str]) -> str:
    """The message for a command line with a removed verb or option; "" for any other."""
    for option in (argument.split("=")[0] for argument in arguments):
        if option in OPTIONS:
            return f"{option} was removed: {OPTIONS[option]}"
    at = 0
    while at < len(arguments) and arguments[at].startswith("-"):
        at += 2 if arguments[at] == "--config" else 1
    verb = arguments[at] if at < len(arguments) else ""
    return f"`divorder {verb}` was removed: {VERBS[verb]}" if verb in VERBS else ""
