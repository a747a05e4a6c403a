"""scores: the score of every record and its rank, which a curriculum follows.

`score` float64 (N,), NaN if a record has none. `rank` float64 (N,) in (0, 1): the share of tokens with a lower score.

A score is computed (`COMPUTED`), a column of the Parquet file in `curriculum.path`, or a field of the input. NaN,
infinity and null mean that a record has no score. Memory: some 60 bytes a record; a file is read block by block.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dagster_divorder.core.arrow import is_number
from dagster_divorder.core.order.schedule import token_ranks
from dagster_divorder.corpus.keyed import KeyedBy, key_column, key_values, read_columns, read_schema
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Made, WholeCorpus
from dagster_divorder.settings import Settings
from dagster_divorder.stages.corpus.fields import SCORES as COMPUTED
from dagster_divorder.stages.corpus.fields import computed_score, number_column, read_fields, score_field
from dagster_divorder.stages.corpus.ids import keyed_records
from dagster_divorder.stages.mix.repeats import TrainingStream
from dagster_divorder.stages.order.traits import load_traits

FEWEST = 0.5
"""Least share of the records that must have a score."""

BLOCK = 1 << 16
"""Most rows of a file of scores that are in memory at once."""

TIED = 0.01
"""Share of records with the same score from which the figures mention it."""


def score_reads(settings: Settings) -> tuple[str, ...]:
    """The stage of the scores, if orders follow them."""
    return ("scores",) if settings.curriculum.on else ()


def stream_ranks(run: Run, stream: TrainingStream) -> np.ndarray:
    """The rank of each item of the stream, float64 (M,), NaN for none."""
    return run.arrays("scores", "scores")["rank"][stream.record_of]


def _numbers(run: Run) -> np.ndarray:
    """The score of every record, float64 (N,); it may hold infinity."""
    if run.settings.curriculum.path is not None:
        return _numbers_of_file(run, run.settings.curriculum.path)
    if name := computed_score(run.settings):
        return run.column(*COMPUTED[name]).astype(np.float64)
    name = score_field(run.settings)
    assert name is not None
    column = read_fields(run.store, run.view, run.receipt("fields"), name).column(name)
    return number_column(column, "curriculum.score", name)


def _open_file(settings: Settings, path: Path) -> tuple[KeyedBy, str, str]:
    """(how the rows of the file of scores are keyed, the key's column, the column of scores)."""
    name = settings.curriculum.score
    assert name is not None
    if not path.is_file() or path.suffix.lower() != ".parquet":
        what = "is no .parquet file" if path.is_file() else "does not exist"
        raise InputError(
            f"curriculum.path: {str(path)!r} {what}; expected a Parquet file with the column {name!r} and record_id "
            "or your own ids"
        )
    schema, _ = read_schema(path)
    if (times := schema.names.count(name)) != 1:
        columns = ", ".join(f"{field.name}: {field.type}" for field in schema)
        raise InputError(
            f"curriculum.path: {path} has {times or 'no'} column{'s' * (times > 1)} {name!r}; its columns are "
            f"{columns}: name the one to follow in curriculum.score"
        )
    if not is_number(kind := schema.field(name).type):
        raise InputError(
            f"curriculum.path: the column {name!r} of {path} is of type {kind}; expected a number in each row: write "
            "it as double"
        )
    return *key_column(path, schema, settings.input.id_field, "score"), name


def _numbers_of_file(run: Run, path: Path) -> np.ndarray:
    """The scores of the records from the file at `path`, float64 (N,), NaN without a row; counts rows of no record."""
    keyed_by, key, column = _open_file(run.settings, path)
    records = keyed_records(run, keyed_by, path)
    places, scores = [np.zeros(0, np.int64)], [np.zeros(0)]
    for first, (keys, column_scores) in read_columns(path, (key, column), BLOCK):
        record = records.find(key_values(path, keyed_by, key, keys, first, "score"))
        run.memo["scores_of_no_record"] = run.memo.get("scores_of_no_record", 0) + int((record < 0).sum())
        places.append(records.key[record[record >= 0]])
        scores.append(number_column(column_scores, "curriculum.path", column)[record >= 0])
    place, score = np.concatenate(places), np.concatenate(scores)
    numbers = np.full(int(records.key.max()) + 2, np.nan)
    numbers[place] = score
    for at in np.flatnonzero((numbers[place] != score) & ~(np.isnan(numbers[place]) & np.isnan(score)))[:1]:
        raise InputError(
            f"{path}: record {np.flatnonzero(records.key == place[at])[0]:,} of the input has the scores {score[at]:g} "
            f"and {numbers[place[at]]:g}, in rows of the same {key}; expected one: leave out one of the rows"
        )
    return numbers[records.key]


def _file_key(run: Run) -> dict[str, Any]:
    """The content of the file of scores, for the key."""
    if (path := run.settings.curriculum.path) is None:
        return {}
    if "file" not in run.memo:
        with path.open("rb") as file:
            run.memo["file"] = hashlib.file_digest(file, "sha256").hexdigest()
    return {"file": run.memo["file"]}


def _rank_records(run: Run) -> Made:
    settings, traits = run.settings, load_traits(run)
    name, numbers = settings.curriculum.score, _numbers(run)
    path, notes = settings.curriculum.path, []
    if infinite := int(np.isinf(numbers).sum()):
        notes.append(f"{infinite:,} records have an infinite {name}: these count as missing")
    if path is not None and (extra := run.memo["scores_of_no_record"]):
        notes.append(f"rows of {path} that belong to no record and are not used: {extra:,}")
    said = "".join(f"; {note}" for note in notes)
    numbers = np.where(np.isinf(numbers), np.nan, numbers)
    known = numbers[~np.isnan(numbers)]
    missing = len(numbers) - len(known)
    if len(known) < FEWEST * len(numbers) or not len(known):
        remedy = "give the others one" if path is None else f"add rows to {path}"
        raise InputError(
            f"curriculum.score: {missing:,} of {len(numbers):,} records have no {name!r}; expected a score for at "
            f"least half of them: {remedy}, or name another score{said}"
        )
    values, often = np.unique(known, return_counts=True)
    if len(values) == 1:
        raise InputError(
            f"curriculum.score: {name!r} is {known[0]:g} in every record; expected scores that differ: name another, "
            f"or remove curriculum.score{said}"
        )
    rank = token_ranks(numbers, traits.counted)
    figures = {
        "score": name,
        "records": len(numbers),
        "missing": missing,
        "distinct": len(values),
        "most_frequent": float(often.max() / len(known)) if often.max() > 1 else 0.0,
        "lowest": float(values[0]),
        "highest": float(values[-1]),
    }
    notes.insert(0, sentence(figures))
    for note in notes:
        run.progress.note(note)
    return Made({"scores": {"score": numbers, "rank": rank}}, figures={**figures, "notes": notes})


def sentence(figures: Mapping[str, Any]) -> str:
    """The scores in a sentence, from the stage's figures."""
    missing = f"; the {figures['missing']:,} others are spread evenly" if figures["missing"] else ""
    often = figures["most_frequent"]
    tied = f", the most frequent in {often:.0%} of them" if often > TIED else ""
    return (
        f"The order follows {figures['score']}: {figures['records'] - figures['missing']:,} of "
        f"{figures['records']:,} records have one, from {figures['lowest']:,.5g} to {figures['highest']:,.5g}, "
        f"{figures['distinct']:,} different{tied}{missing}"
    )


def _scores_reads(settings: Settings) -> tuple[str, ...]:
    computed = computed_score(settings)
    stages = [COMPUTED[computed][0]] if computed else []
    stages += ["fields"] if score_field(settings) else []
    stages += ["ids"] if settings.curriculum.path is not None and settings.input.id_field else []
    return tuple(dict.fromkeys(["raw_docs", "token_counts", "traits", *stages]))


SCORES: WholeCorpus = WholeCorpus(
    name="scores",
    version=1,
    description="The score of every document that the curriculum follows.",
    reads=_scores_reads,
    settings=("curriculum", "chats"),
    decided_by=lambda run: {**SCORES.usual(run), **_file_key(run)},
    when=lambda settings: settings.curriculum.on,
    check=lambda run: run.settings.curriculum.path and _open_file(run.settings, run.settings.curriculum.path),
    compute=_rank_records,
)
