"""curriculum_comparison: one table of all shapes of schedules on the plan's sequences, with shuffled windows and with
windows ordered like the plan.

No other stage reads it. The shapes are all named ones, and `points` if they are set, each at strength 1 in one epoch;
shapes with more folds than sequences are left out. `curriculum.options` apply to the curriculum's own shape. Shuffled:
the mean of window shuffles (`core.measure.schedule`). Frozen beginnings and copies are ignored. Seconds are wall time
of one order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dagster_divorder.core.evidence.strategy_comparison import WARM_UP, timed
from dagster_divorder.core.measure.schedule import Lap, ScoredRuns, measure_along, of_sequences
from dagster_divorder.core.order.curricula import SHAPES
from dagster_divorder.core.packing.coordinates import with_coordinates
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Made, Table, WholeCorpus, versions
from dagster_divorder.settings import Settings
from dagster_divorder.stages.measure.schedule import asked_schedule, full_sequences, scored_runs
from dagster_divorder.stages.mix.repeats import load_stream, run_counter, stream_reads
from dagster_divorder.stages.order.packed_sequences import NOTHING, load_packed
from dagster_divorder.stages.order.scores import sequence_ranks
from dagster_divorder.stages.order.sequence_order import (
    Sequences,
    order_sequences,
    sequence_items,
    vector_sums,
    vectors_are_balanced,
)
from dagster_divorder.stages.topics.components import chosen_space_version, space_reads
from dagster_divorder.view.measures import AT_POINT

SHUFFLED = "shuffled"
CORPUS = "batch TV, clusters"


def load_curricula(run: Run) -> list[dict[str, Any]]:
    """Two rows a shape; see `_rows`."""
    return run.rows("curriculum_comparison", "table")


def _of_shape(settings: Settings, shape: str) -> Settings:
    """The settings of a plan that follows this shape."""
    own = settings.curriculum
    changed = {
        "shape": shape,
        "points": own.points if shape == "points" else None,
        "options": own.options if shape == own.form else {},
        "strength": 1.0,
    }
    return settings.model_copy(
        update={
            "curriculum": own.model_copy(update=changed),
            "sequence": settings.sequence.model_copy(update={"epochs": 1}),
        }
    )


def _folds(settings: Settings) -> int:
    """Least number of full sequences that the shape needs."""
    chosen = settings.curriculum
    return int(getattr(SHAPES[chosen.form](**chosen.shape_options), "folds", 1))


def _compare_curricula(run: Run) -> Made:
    settings, stream, packed = run.settings, load_stream(run), load_packed(run)
    items, _ = sequence_items(run, stream, packed)
    if vectors_are_balanced(settings):
        items = with_coordinates(items, packed, vector_sums(run, packed))
    ranks = sequence_ranks(run, stream, packed)
    sequences = Sequences(items, packed, None, NOTHING, ranks)
    counted = run_counter(run, stream.view)(packed)
    runs = scored_runs(run, stream, packed.document, counted, packed.indptr)
    shapes = [
        shape
        for shape in SHAPES
        if (shape != "points" or settings.curriculum.points)
        and _folds(_of_shape(settings, shape)) <= full_sequences(settings, packed).sum()
    ]
    # Compiles the kernels, so that no order's time includes it.
    end = min(WARM_UP, len(packed))
    few = Sequences(items.part(0, end), packed.part(0, end), None, NOTHING, ranks[:end])
    order_sequences(few, _of_shape(settings, "rise"), None)
    rows = []
    with run.progress("comparing curricula", len(shapes), "shapes") as advance:
        for shape in shapes:
            rows += _rows(sequences, runs, _of_shape(settings, shape))
            advance(1)
    return Made({"table": rows}, figures={"shapes": len(shapes)})


def _rows(sequences: Sequences, runs: ScoredRuns, settings: Settings) -> list[dict[str, Any]]:
    """The rows of these settings' curriculum: `windows` says how windows are ordered; other columns are measures, named
    as in `view.measures`."""
    (order,), cost = timed(lambda: order_sequences(sequences, settings, None))
    packed, chosen, seed = sequences.packed, settings.sequence, settings.seed
    schedule, edges = asked_schedule(settings), of_sequences(chosen.batch)
    arguments = settings.plan_arguments("original", int(packed.length.sum()), packed=True)
    assert sequences.scores is not None
    lap = Lap.of(
        order[full_sequences(settings, packed)[order]],
        sequences.scores,
        runs.sizes,
        schedule,
        window=arguments["window"],
        batch=chosen.batch,
        seed=seed,
    )
    _, shuffling = timed(lambda: lap.shuffled([seed]))
    along = measure_along(runs, [lap], schedule, edges, seed=seed)
    # A window of all tokens has the corpus's own mix.
    whole = measure_along(runs, [replace(lap, width=int(runs.tokens.sum()))], schedule, edges, seed=seed)
    if not along["traits"]:
        return []
    return [
        {
            "shape": settings.curriculum.form,
            "windows": windows,
            "off the schedule": along["off"][off],
            **{AT_POINT + trait: figures[batch] for trait, figures in along["traits"].items()},
            CORPUS: whole["traits"]["cluster"][batch],
            "seconds": seconds,
        }
        for windows, off, batch, seconds in (
            (SHUFFLED, "shuffled", "shuffled", shuffling.seconds),
            (chosen.strategy, "achieved", "batch", cost.seconds),
        )
    ]


def _curriculum_comparison_reads(settings: Settings) -> tuple[str, ...]:
    vectors = space_reads(settings) if vectors_are_balanced(settings) else ()
    source = ["fields"] if settings.input.source_field else []
    streams = stream_reads(settings)
    return ("raw_docs", "token_counts", *source, *vectors, "traits", *streams, "scores", "packed_sequences")


def _curriculum_comparison_settings(settings: Settings) -> dict[str, Any]:
    curriculum, sequence = settings.curriculum, settings.sequence
    return {
        "own": [curriculum.shape, curriculum.points, curriculum.options, curriculum.window],
        "inside": [sequence.strategy, settings.strategy_key(sequence.strategy)],
        "traits": settings.order.traits,
        "source_field": settings.input.source_field,
        "sequence": [sequence.length, sequence.batch, sequence.vectors],
        "packs": settings.packing.packs,
        **settings.within_key,
        **settings.counted_key,
        "seed": settings.seed,
    }


def _curriculum_comparison_inputs(run: Run) -> dict[str, Any]:
    vectors = chosen_space_version(run) if vectors_are_balanced(run.settings) else None
    read = ("raw_docs", "traits", *stream_reads(run.settings), "scores", "packed_sequences")
    return {**versions(run, *read), "vectors": vectors}


CURRICULUM_COMPARISON = WholeCorpus(
    name="curriculum_comparison",
    version=1,
    kinds={"numpy", "numba"},
    description="Which shape of curriculum to take. Every shape on the plan's sequences, shuffled in windows and "
    "ordered in windows: deviation from the schedule, mixes at its points, and seconds in one table.",
    evidence="shapes of curricula side by side on this plan's sequences",
    reads=_curriculum_comparison_reads,
    settings=_curriculum_comparison_settings,
    when=lambda settings: settings.needs_scores,
    # No `content`: the key decides everything but the seconds, so it is the version.
    inputs=_curriculum_comparison_inputs,
    compute=_compare_curricula,
    show=lambda run, receipt: {"curricula": Table(load_curricula(run))},
)
