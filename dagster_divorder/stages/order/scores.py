"""scores: what a curriculum follows: the score of every record, and its rank.

`score` float64 (N,), NaN where a record has none. `rank` float64 (N,) in (0, 1): the share of the tokens with a lower
score, of those of equal values of `curriculum.keep`. A sequence has the mean rank of its tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from dagster_divorder.core.order.schedule import token_ranks
from dagster_divorder.core.packing import PackedSequences
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Made, WholeCorpus
from dagster_divorder.settings import Settings
from dagster_divorder.stages.corpus.fields import SCORES as COMPUTED
from dagster_divorder.stages.corpus.fields import load_fields, score_field
from dagster_divorder.stages.mix.repeats import TrainingStream, run_counter
from dagster_divorder.stages.order.bin_edges import computed_numbers, is_number
from dagster_divorder.stages.order.traits import load_traits

FEWEST = 0.5
"""Share of the records that must have a score."""


def score_reads(settings: Settings) -> tuple[str, ...]:
    """The stage of the scores, where orders follow them."""
    return ("scores",) if settings.curriculum.on else ()


def stream_scores(run: Run, stream: TrainingStream) -> np.ndarray | None:
    """What a curriculum follows, by item of the stream, float64 (M,); None without one."""
    return stream.of_items(run.arrays("scores", "scores")["rank"]) if run.settings.curriculum.on else None


def sequence_scores(run: Run, stream: TrainingStream, packed: PackedSequences) -> np.ndarray | None:
    """What a curriculum follows, by sequence, float64 (S,): `sequence_ranks`, or where not all tokens follow it, the
    places as packed; None without a curriculum."""
    if not run.settings.curriculum.on:
        return None
    if run.settings.curriculum.strength < 1.0:
        return np.arange(len(packed), dtype=np.float64)
    return sequence_ranks(run, stream, packed)


def sequence_ranks(run: Run, stream: TrainingStream, packed: PackedSequences) -> np.ndarray:
    """The mean rank of a sequence's tokens that have a score, float64 (S,), NaN where none has."""
    ranks = stream.of_items(run.arrays("scores", "scores")["rank"])
    rank, tokens = ranks[packed.document], run_counter(run, stream.view)(packed).astype(np.float64)
    tokens[np.isnan(rank)] = 0.0
    sequence = np.repeat(np.arange(len(packed)), np.diff(packed.indptr))
    totals = np.bincount(sequence, tokens, len(packed))
    sums = np.bincount(sequence, tokens * np.nan_to_num(rank), len(packed))
    return np.divide(sums, totals, out=np.full(len(packed), np.nan), where=totals > 0)


def _numbers(run: Run) -> np.ndarray:
    """The score of every record, float64 (N,)."""
    name = run.settings.curriculum.score
    assert name is not None
    if name in COMPUTED:
        return computed_numbers(run, name).astype(np.float64)
    column = load_fields(run, name).column(name)
    if not is_number(column.type):
        raise InputError(f"curriculum.score: field {name!r} holds {column.type}; expected a field of numbers")
    numbers = column.cast(pa.float64(), safe=False).fill_null(float("nan")).to_numpy()
    return np.where(np.isinf(numbers), np.nan, numbers)


def _rank_records(run: Run) -> Made:
    settings, traits = run.settings, load_traits(run)
    name, numbers = settings.curriculum.score, _numbers(run)
    missing = int(np.isnan(numbers).sum())
    if len(numbers) - missing < FEWEST * len(numbers):
        raise InputError(
            f"curriculum.score: {missing:,} of {len(numbers):,} records have no {name!r}; expected a score for at "
            "least half of them: give the others one, or name another score"
        )
    known = numbers[~np.isnan(numbers)]
    if len(known) and known.min() == known.max():
        raise InputError(
            f"curriculum.score: {name!r} is {known[0]:g} in every record; expected scores that differ: name another, "
            "or remove curriculum.score"
        )
    kept = [traits.codes[trait] for trait in settings.curriculum.keep]
    rank = token_ranks(numbers, traits.counted, kept)
    figures = {
        "score": name,
        "records": len(numbers),
        "missing": missing,
        "distinct": len(np.unique(known)),
        "lowest": float(known.min()) if len(known) else None,
        "highest": float(known.max()) if len(known) else None,
    }
    return Made({"scores": {"score": numbers, "rank": rank}}, figures=figures)


def _scores_reads(settings: Settings) -> tuple[str, ...]:
    named = {"difficulty": ("difficulty",)}.get(settings.curriculum.score or "", ())
    fields = ("fields",) if score_field(settings) else ()
    return ("raw_docs", "token_counts", "traits", *named, *fields)


def _scores_settings(settings: Settings) -> dict[str, Any]:
    return {"score": settings.curriculum.score, "keep": settings.curriculum.keep, **settings.counted_key}


SCORES = WholeCorpus(
    name="scores",
    version=1,
    asset=False,
    description="The scores that the curriculum follows.",
    reads=_scores_reads,
    settings=_scores_settings,
    when=lambda settings: settings.needs_scores,
    content=("scores",),
    pace=(0.02, 0.0002),
    compute=_rank_records,
)
