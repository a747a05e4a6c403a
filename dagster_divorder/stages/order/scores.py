"""scores: the score of every record and its rank, which a curriculum follows.

`score` float64 (N,), NaN if a record has none. `rank` float64 (N,) in (0, 1): the share of tokens with a lower score.

A score is computed (`COMPUTED`), or a field of the input. NaN, infinity and null mean that a record has no score.
Memory: some 60 bytes a record.
"""

from __future__ import annotations

import numpy as np

from dagster_divorder.core.order.schedule import token_ranks
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Made, WholeCorpus
from dagster_divorder.settings import Settings
from dagster_divorder.stages.corpus.fields import SCORES as COMPUTED
from dagster_divorder.stages.corpus.fields import computed_score, number_column, read_fields, score_field
from dagster_divorder.stages.mix.repeats import TrainingStream
from dagster_divorder.stages.order.traits import load_traits

FEWEST = 0.5
"""Least share of the records that must have a score."""


def stream_ranks(run: Run, stream: TrainingStream) -> np.ndarray:
    """The rank of each item of the stream, float64 (M,), NaN for none."""
    return run.arrays("scores", "scores")["rank"][stream.record_of]


def _rank_records(run: Run) -> Made:
    settings, traits = run.settings, load_traits(run)
    name, field = settings.curriculum.score, score_field(settings)
    if computed := computed_score(settings):
        numbers = run.column(*COMPUTED[computed]).astype(np.float64)
    else:
        assert field is not None
        column = read_fields(run.store, run.view, run.receipt("fields"), field).column(field)
        numbers = number_column(column, "curriculum.score", field)
    infinite = int(np.isinf(numbers).sum())
    numbers = np.where(np.isinf(numbers), np.nan, numbers)
    known = numbers[~np.isnan(numbers)]
    missing = len(numbers) - len(known)
    if len(known) < FEWEST * len(numbers) or not len(known):
        raise InputError(
            f"curriculum.score: {missing:,} of {len(numbers):,} records have no {name!r}, or an infinite one; expected "
            "a score for at least half of them: give the others one, or name another score"
        )
    values = np.unique(known)
    if len(values) == 1:
        raise InputError(
            f"curriculum.score: {name!r} is {known[0]:g} in every record; expected scores that differ: name another, "
            "or remove curriculum.score"
        )
    rank = token_ranks(numbers, traits.counted)
    figures = {
        "score": name,
        "records": len(numbers),
        "missing": missing,
        "distinct": len(values),
        "lowest": float(values[0]),
        "highest": float(values[-1]),
    }
    others = f"; the {missing:,} others are spread evenly" if missing else ""
    notes = [
        f"The order follows {name}: {len(known):,} of {len(numbers):,} records have one, from {values[0]:,.5g} to "
        f"{values[-1]:,.5g}, {len(values):,} different{others}"
    ]
    if infinite:
        notes.append(f"{infinite:,} records have an infinite {name}: these count as missing")
    for note in notes:
        run.progress.note(note)
    return Made({"scores": {"score": numbers, "rank": rank}}, figures={**figures, "notes": notes})


def _scores_reads(settings: Settings) -> tuple[str, ...]:
    computed = computed_score(settings)
    stages = [COMPUTED[computed][0]] if computed else []
    stages += ["fields"] if score_field(settings) else []
    return tuple(dict.fromkeys(["raw_docs", "token_counts", "traits", *stages]))


SCORES = WholeCorpus(
    name="scores",
    version=1,
    description="The score of every document that the curriculum follows.",
    reads=_scores_reads,
    settings=("curriculum", "chats"),
    when=lambda settings: settings.curriculum.on,
    compute=_rank_records,
)
