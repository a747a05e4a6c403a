"""schedule: how the orders follow the score of the curriculum, and which mixes they keep.

`measured` (JSON): the curriculum's `score`, `shape`, `options` and `strength`; `window`, in which items move, as a
`share` of training, in `sequences` and in `batches`; `records`, and records without a score (`missing`); `epochs`
("together", "each", None for one); and `scales`, the figures of `core.measure.schedule.measure_along` for `sequences`,
as a trainer gets them, and for `documents`, in batches of as many tokens. Each of their `traits` (the stored traits and
the source) has `balanced`. The consumed beginning and a partial last sequence are left out. Ranks are among all tokens
of training, whatever `curriculum.keep` is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson

from dagster_divorder.core.measure.schedule import (
    FEWEST,
    BatchEdges,
    Lap,
    Schedule,
    ScoredRuns,
    measure_along,
    of_sequences,
    of_tokens,
    out_of_reach,
    strays,
)
from dagster_divorder.core.order.curricula import SHAPES
from dagster_divorder.core.order.epochs import epoch_seed
from dagster_divorder.core.order.schedule import token_ranks
from dagster_divorder.core.order.traits import column_codes
from dagster_divorder.core.packing import FILLED, PackedSequences
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import File, Finding, Made, WholeCorpus
from dagster_divorder.settings import Settings
from dagster_divorder.stages.corpus.fields import load_fields
from dagster_divorder.stages.mix.repeats import TrainingStream, load_stream, run_counter, stream_reads
from dagster_divorder.stages.order.greedy_order import load_order
from dagster_divorder.stages.order.packed_sequences import consumed_reads, load_packed
from dagster_divorder.stages.order.scores import sequence_scores, stream_scores
from dagster_divorder.stages.order.sequence_order import load_sequence_order
from dagster_divorder.view.schedule import followed


def load_schedule(run: Run) -> dict[str, Any]:
    """The figures of the last run (module docstring).

    Raises:
        MissingStageError: there is no result under these settings.
    """
    measured: dict[str, Any] = orjson.loads(run.read("schedule", "measured"))
    return measured


def asked_schedule(settings: Settings) -> Schedule:
    """The schedule that the settings ask for."""
    return Schedule.of({"strategy": settings.curriculum.form, **settings.curriculum.shape_options})


def full_sequences(settings: Settings, packed: PackedSequences) -> np.ndarray:
    """Which sequences are full, bool (S,); all if packing fills none."""
    full = np.ones(len(packed), bool)
    if settings.packing.method in FILLED and len(packed):
        full[-1] = packed.padding[-1] == 0
    return full


def sequence_laps(
    run: Run, stream: TrainingStream, packed: PackedSequences, epochs: np.ndarray | None = None
) -> list[Lap]:
    """The laps of sequences in training. epochs: int64 (E, n), place in an epoch -> sequence, by default the plan's."""
    settings, frozen = run.settings, len(consumed_reads(run))
    counted = np.diff(np.append(0, np.cumsum(run_counter(run, stream.view)(packed)))[packed.indptr])
    scores = sequence_scores(run, stream, packed)
    assert scores is not None
    arguments = settings.plan_arguments("original", int(packed.length.sum()), packed=True)
    full = full_sequences(settings, packed)
    epochs = load_sequence_order(run) if epochs is None else epochs
    together = settings.schedule_epochs > 1
    rows = [epochs.ravel()] if together else list(epochs)
    laps, seed = [], settings.seed
    for number, row in enumerate(rows):
        consumed = 0 if number else frozen
        order = row[consumed:]
        order = order[full[order]]
        begin = counted[row[:consumed]].sum() / max(1, counted[row[full[row]]].sum())
        if number:
            seed = epoch_seed(settings.seed, number)
        laps.append(
            Lap.of(
                order,
                scores,
                counted,
                Schedule.of(arguments),
                window=arguments["window"],
                batch=settings.sequence.batch,
                begin=float(begin),
                epochs=len(epochs) if together else 1,
                seed=seed,
            )
        )
    return laps


def _document_lap(run: Run, stream: TrainingStream) -> Lap:
    """The lap of the documents in order."""
    settings, traits, scores = run.settings, stream.traits, stream_scores(run, stream)
    assert scores is not None
    frozen = run.receipt("greedy_order").figures["frozen_documents"]
    arguments = settings.plan_arguments("original", int(traits.tokens.sum()))
    fills = "sequence_length" in settings.strategy(settings.order.strategy).reads
    sizes, order = traits.tokens if fills else traits.counted, load_order(run)
    return Lap.of(
        order[frozen:],
        scores,
        sizes,
        Schedule.of(arguments),
        window=arguments["window"],
        batch=settings.sequence.batch,
        begin=float(sizes[order[:frozen]].sum() / max(1, sizes.sum())),
        seed=settings.seed,
    )


def scored_runs(
    run: Run, stream: TrainingStream, document: np.ndarray, tokens: np.ndarray, indptr: np.ndarray
) -> ScoredRuns:
    """Runs of tokens of the stream's items, document int64 (Q,), with all traits and the source."""
    raw = stream.of_items(run.arrays("scores", "scores")["score"])
    rank = token_ranks(raw, stream.traits.counted)
    sizes = stream.traits.sizes()
    coded = {trait: (codes, sizes[trait]) for trait, codes in stream.traits.codes.items()}
    source = run.settings.input.source_field
    if source and source not in coded:
        column = column_codes(load_fields(run, source).column(source), bins=1, name=f"field {source!r}")
        coded[source] = (stream.of_items(column.codes), len(column.names))
    return ScoredRuns(
        indptr,
        tokens,
        rank[document],
        raw[document],
        {trait: (codes[document], values) for trait, (codes, values) in coded.items()},
    )


def _measure_schedule(run: Run) -> Made:
    settings, stream = run.settings, load_stream(run)
    packed, counted = load_packed(run), stream.traits.counted
    asked = asked_schedule(settings)

    def figures(runs: ScoredRuns, laps: list[Lap], edges: BatchEdges) -> dict[str, Any]:
        measured = measure_along(runs, laps, asked, edges, seed=settings.seed)
        for trait, values in measured["traits"].items():
            values["balanced"] = trait in settings.order.traits
        return measured

    laps = sequence_laps(run, stream, packed)
    tokens = run_counter(run, stream.view)(packed)
    runs = scored_runs(run, stream, packed.document, tokens, packed.indptr)
    scales = {"sequences": figures(runs, laps, of_sequences(settings.sequence.batch))}
    if settings.packing.packs:
        items = np.arange(len(counted))
        runs = scored_runs(run, stream, items, counted, np.arange(len(counted) + 1))
        batch = settings.sequence.batch * settings.sequence.length
        scales["documents"] = figures(runs, [_document_lap(run, stream)], of_tokens(batch))
    else:
        scales["documents"] = scales["sequences"]
    scores, curriculum = run.receipt("scores").figures, settings.curriculum
    sequences = float(np.mean(np.diff(laps[0].bounds)))
    share = settings.plan_arguments("original", int(packed.length.sum()), packed=True)["window"]
    measured = {
        "score": curriculum.score,
        "shape": curriculum.form,
        "options": SHAPES[curriculum.form](**curriculum.shape_options).model_dump(
            exclude={"inside", "strength", "window"}
        ),
        "strength": curriculum.strength,
        "window": {
            "share": share,
            "sequences": sequences,
            "batches": sequences / settings.sequence.batch,
        },
        "records": scores["records"],
        "missing": scores["missing"],
        "epochs": curriculum.epochs if settings.sequence.epochs > 1 else None,
        "scales": scales,
    }
    return Made({"measured": File(orjson.dumps(measured), "json")})


def follows_the_schedule(run: Run) -> Finding:
    """Compares the ranks along both orders with the schedule, and with window shuffles and the plain order. The output
    is complete and can be trained on even if this fails."""
    settings, measured = run.settings, load_schedule(run)
    scale, window, name = measured["scales"]["sequences"], measured["window"], followed(measured)
    sequences = round(window["sequences"] / window["share"])
    if sequences < FEWEST or not scale["traits"]:
        text = f"{sequences:,} sequences are too few to tell whether they follow {name}; expected {FEWEST} or more."
        return Finding(passed=True, text=text)
    off = scale["off"]
    figures = (
        f"the mean rank is {off['achieved']:.3f} off the schedule, {off['shuffled']:.3f} after window shuffles, "
        f"{off['achievable']:.3f} at best"
    )
    astray = [items for items, of_items in measured["scales"].items() if strays(of_items)]
    gap = out_of_reach(scale, sequences)
    if astray:
        text = f"The {' and the '.join(astray)} do not follow {name}: {figures}."
        remedy = (
            "set a smaller curriculum.window, and order.separate_copies = false if there are many copies; if the "
            "deviation stays, delete the store's results of greedy_order and sequence_order and run again"
        )
    elif gap is not None:
        text = f"The order cannot follow {name}: tenths of training are at best {gap:.3f} off the schedule."
        remedy = _remedy_out_of_reach(settings)
    else:
        text, remedy = f"The order follows {name}: {figures}.", ""
    deviations = [{"items": items, **of_items["deviation"]} for items, of_items in measured["scales"].items()]
    return Finding(
        passed=not astray and gap is None,
        text=text,
        remedy=remedy,
        figures={"deviation": deviations, "off": [{"items": "sequences", **off}]},
    )


def _remedy_out_of_reach(settings: Settings) -> str:
    curriculum = settings.curriculum
    if curriculum.points is not None:
        return (
            "every document has one place, so ranks average 0.5 over training: let curriculum.points pass through all "
            "ranks, each for its share of training"
        )
    if curriculum.keep:
        return f"curriculum.keep fixes shares of {', '.join(curriculum.keep)}, which depend on the score: keep fewer"
    if settings.order.frozen_tokens:
        return "the consumed tokens (order.frozen_tokens) leave no better schedule; nothing needs to be done"
    return (
        "sequences hold documents of different scores: shorter sequences (sequence.length), or packing.method = "
        '"concat", keep similar scores together'
    )


def _schedule_reads(settings: Settings) -> tuple[str, ...]:
    fields = ["fields"] if settings.input.source_field else []
    return (
        *("raw_docs", "token_counts", *fields, "traits", *stream_reads(settings)),
        *("scores", "greedy_order", "packed_sequences", "sequence_order"),
    )


def _schedule_settings(settings: Settings) -> dict[str, Any]:
    return {
        "traits": sorted(settings.order.traits),
        "source_field": settings.input.source_field,
        "packs": settings.packing.packs,
        "seed": settings.seed,
        **settings.counted_key,
        **settings.curriculum_key,
    }


SCHEDULE = WholeCorpus(
    name="schedule",
    version=1,
    asset=False,
    description="How the orders follow the score of the curriculum, and which mixes they keep.",
    reads=_schedule_reads,
    settings=_schedule_settings,
    when=lambda settings: settings.curriculum.on,
    content=("measured",),
    doing="measuring the order along its score",
    compute=_measure_schedule,
)
