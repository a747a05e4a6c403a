"""What 0.3.0 no longer has, and what to do instead. Kept for this release only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SETTINGS: dict[str, str] = {
    "store.cache": "copies of a store in a bucket lie in the temporary folder while a run lasts; set TMPDIR to a disk "
    "that holds them",
    "order.targets": "[[mixing.phase]] gives each phase of training a mix of its own; a ramp is several phases "
    "(docs/sections.md)",
    "curriculum.strength": "leave out the scores of records that shall not follow the schedule: they are spread evenly",
    "curriculum.keep": "rank the scores inside each value in your own file, curriculum.path",
    "evidence.budget_seconds": "lower evidence.tokens, evidence.seeds or the number of evidence.orders",
    "advanced.silhouette_documents": "silhouettes are computed on 10,000 documents, as in Diversity-Ordered Training; "
    "leave it out",
    "mixing.drop": "leave the worst records out of the input, or choose records by [selection]",
}
"""A key (`section.key`), or a whole section -> what to do instead, as a sentence without its full stop."""

_BUFFER = {"balanced_buffer": 'use "balanced"; for a stream, divorder.balance'}
_SHAPES = ("rise", "fall", "segment", "fold", "zigzag", "stair", "saw", "points")
_SHAPE = "set curriculum.score and curriculum.shape, and train curated, which follows them"
VALUES: dict[str, dict[str, str]] = {
    "order.strategy": _BUFFER,
    "sequence.strategy": _BUFFER,
    "comparison.documents": _BUFFER,
    "comparison.sequences": _BUFFER,
    "evidence.orders": {
        "repeated_shuffle": "random_sequences shuffles anew in each epoch",
        "curated_epochs": "set sequence.epochs, and train curated, which reads the plan of each epoch",
        **{name: _SHAPE for shape in _SHAPES for name in (shape, f"{shape}_balanced")},
    },
    "exports.formats": {"text": "trainers that tokenise text read the curated output, in output.path"},
    "mixing.weights": {"by_quality": "shares of one trait: a table, natural, sqrt, unimax or a number"},
    "order.separate_copies": {
        "near": "true sets records of equal text apart; remove near copies before (docs/recipes.md)"
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
    for section, keys in given.items():
        for key, value in keys.items() if isinstance(keys, Mapping) else [("", None)]:
            name = f"{section}.{key}".rstrip(".")
            problems.append(removed_setting(name))
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
