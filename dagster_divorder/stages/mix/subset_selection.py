"""subset_selection: which records are trained on, chosen together for diversity and quality, within a budget.

`selection.method` fills a budget of documents or tokens. Candidates are the first records of each text
that have a vector and are not held out. With `selection.min_quality` the first record that reaches it is the candidate,
and if the candidates do not fill the budget, all are chosen. What a trainer has consumed (`order.frozen_tokens`) stays
chosen and counts.
Appended data compete with all other data, since the value of a record depends on the others; a run reports what moved.
The vectors are gathered into one file (`store.space.map_vectors`), mapped, and read in blocks in input order, so the
choice depends on neither fragments nor workers.

`selection`, Parquet, a row per accepted record in input order: record_id, weight (by which it was chosen; 0 if it was
not weighed), selected, reason. `choices`, Parquet, a row per way to choose, with figures of its choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from dagster_divorder.engine.progress import counted
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import File, Made, Picture, Shown, Table, WholeCorpus
from dagster_divorder.settings import Settings
from dagster_divorder.stages.corpus.fields import number_column, read_fields
from dagster_divorder.stages.corpus.ids import record_names
from dagster_divorder.stages.mix.consumed import consumed_record_mask, consumed_version
from dagster_divorder.stages.mix.heldout_copies import heldout_reads, load_heldout
from dagster_divorder.store.arrays import pack_parquet, row_array, unpack_parquet
from dagster_divorder.store.base import Store
from dagster_divorder.store.ids import hex_ids
from dagster_divorder.store.space import embeddings_file, map_vectors
from dagster_divorder.store.state import Receipt, load_receipt
from dagster_divorder.store.view import View

REASONS = (
    "selected",
    "consumed by a trainer",
    "lower weight",
    "copy of another record",
    "no vector",
    "held out, or near what is",
    "below selection.min_quality",
    "no quality",
)
SELECTED, CONSUMED, LOWER, COPY, NO_VECTOR, HELD_OUT, BELOW, NO_QUALITY = range(len(REASONS))
CANNOT = {
    COPY: "are copies of others",
    NO_VECTOR: "have no vector",
    HELD_OUT: "are held out, or near what is",
    BELOW: "are below selection.min_quality",
    NO_QUALITY: "have no quality",
}
"""Reason -> why records are no candidates, in messages."""
SPOKES = {"steps": 20, "rate": 1.0, "tolerance": 1e-4, "start": "uniform"}
"""Constants of `core.mix.selection.spokes`, part of the key."""


def load_selected(run: Run) -> np.ndarray:
    """Which records are trained on, bool (N,)."""
    return unpack_parquet(run.read("subset_selection", "selection"), ["selected"])["selected"].to_numpy()


def left_out(run: Run) -> pa.Table:
    """The records that are not trained on, in input order: `record` (its position), `id`, `weight`, `reason`."""
    selection = unpack_parquet(run.read("subset_selection", "selection"), ["selected", "weight", "reason"])
    records = np.flatnonzero(~selection["selected"].to_numpy())
    rows = row_array(records)
    names = pa.array(record_names(run, records), pa.large_string())
    columns = {name: selection[name].take(rows) for name in ("weight", "reason")}
    return pa.table({"record": rows, "id": names, **columns})


def selection_reads(settings: Settings) -> tuple[str, ...]:
    """The stages besides raw_docs that `load_selected` reads."""
    return ("subset_selection",) if settings.selects else ()


def vectors_stage(settings: Settings) -> str:
    """The stage whose vectors a selection compares."""
    return f"{settings.selection.vectors}_embeddings"


@dataclass(frozen=True, eq=False)
class _Pool:
    """The candidates. rows: their positions, int64 (n,). For each record: tokens and sizes (what the budget counts),
    int64 (N,); reasons int8 (N,), indices in REASONS; quality float64 (N,), if it counts. budget: for the candidates,
    without what is consumed. note: why they do not fill it; "" if they do."""

    vectors: np.ndarray
    rows: np.ndarray
    tokens: np.ndarray
    sizes: np.ndarray
    reasons: np.ndarray
    quality: np.ndarray | None
    budget: int
    note: str


def _pool(run: Run) -> _Pool:
    """
    Raises:
        InputError: the budget cannot be filled, or is already spent; or a quality is missing, or all are too low.
    """
    chosen, view = run.settings.selection, run.view
    vectors = map_vectors(run.store, view, run.receipt(vectors_stage(run.settings)))
    tokens = run.column("token_counts", "lengths").astype(np.int64)
    quality = _quality(run) if chosen.quality else None
    reasons = _reasons(run, view, vectors, quality)
    rows = np.flatnonzero(reasons == LOWER)
    if quality is not None:
        _check_quality(run, rows, quality, reasons)
    unit = "tokens" if chosen.tokens else "documents"
    sizes = tokens if chosen.tokens else np.ones_like(tokens)
    spent = int(sizes[reasons == CONSUMED].sum())
    available = spent + int(sizes[rows].sum())
    asked, note = getattr(chosen, unit) or available, ""
    if asked > available and chosen.min_quality is not None:
        note = (
            f"selection.{unit} is {asked:,}, and only {available:,} {unit} reach selection.min_quality = "
            f"{chosen.min_quality:g}{' or are consumed already' if spent else ''}: all of them are chosen"
        )
        run.progress.note(note)
    elif asked > available:
        numbers = np.bincount(reasons, minlength=len(REASONS))
        others = [f"{numbers[reason]:,} {CANNOT[reason]}" for reason in CANNOT if numbers[reason]]
        raise InputError(
            f"selection.{unit} is {asked:,}, and there are {available:,} {unit} to choose from"
            f"{f' (of {len(view):,} records ' if others else ''}{', '.join(others)}{')' if others else ''}; expected "
            f"fewer: lower selection.{unit}"
        )
    if asked < spent:
        raise InputError(
            f"selection.{unit} is {asked:,}, and a trainer has consumed {spent:,} {unit} (order.frozen_tokens); "
            f"expected more: raise selection.{unit}"
        )
    if rows.size and not spent and (shortest := int(sizes[rows].min())) > asked:
        raise InputError(
            f"selection.{unit} is {asked:,}, and the shortest record that can be chosen has {shortest:,}; expected "
            f"room for one at least: raise selection.{unit}"
        )
    return _Pool(vectors, rows, tokens, sizes, reasons, quality, asked - spent, note)


def _reasons(run: Run, view: View, vectors: np.ndarray, quality: np.ndarray | None) -> np.ndarray:
    """Index in REASONS of each record, int8 (N,): LOWER for the candidates."""
    from dagster_divorder.core.measure.vendi import each_block

    every = np.arange(len(view))
    has_vector = each_block(vectors, every, lambda part, block: np.einsum("nd,nd->n", block, block) > 0.5)
    consumed = consumed_record_mask(run)
    copies = run.copies
    taken = np.zeros(len(view), bool)
    taken[copies[consumed]] = True
    reasons = np.full(len(view), LOWER, np.int8)
    reasons[~np.concatenate(list(has_vector))] = NO_VECTOR
    first, least = copies, run.settings.selection.min_quality
    if quality is not None and least is not None:
        # The first copy that is good enough is the candidate.
        good = np.flatnonzero(quality >= least)[::-1]
        first_good = np.full(len(view), -1)
        first_good[copies[good]] = good
        first = first_good[copies]
    reasons[(first != every) | taken[copies]] = COPY
    if quality is not None and least is not None:
        reasons[quality < least] = BELOW
        reasons[np.isnan(quality)] = NO_QUALITY
    if run.settings.holds_out:
        reasons[load_heldout(run).removed] = HELD_OUT
    reasons[consumed] = CONSUMED
    return reasons


def _quality(run: Run) -> np.ndarray:
    """Quality of each record, float64 (N,), NaN if it has none."""
    name = run.settings.selection.quality
    assert name is not None
    if run.settings.selection.quality_model:
        return run.column("quality_scores", "quality").astype(np.float64)
    column = read_fields(run.store, run.view, run.receipt("fields"), name).column(name)
    return number_column(column, "selection.quality", name)


def _check_quality(run: Run, rows: np.ndarray, quality: np.ndarray, reasons: np.ndarray) -> None:
    """Check that `selection.min_quality` leaves candidates, `rows`, and that they have a usable quality. reasons: see
    `_reasons`.

    Raises:
        InputError: they do not.
    """
    name, least = run.settings.selection.quality, run.settings.selection.min_quality
    below, none = quality[reasons == BELOW], int((reasons == NO_QUALITY).sum())
    if least is not None and not len(rows) and len(below) + none:
        numbers = (
            f"{name} goes from {below.min():g} to {below.max():g}" if len(below) else f"{name} has no number"
        )
        raise InputError(
            f"selection.min_quality is {least:g}, and no record reaches it: of {len(below) + none:,} records {numbers}"
            f"{f' ({none:,} have none)' if none and len(below) else ''}; expected a number in this range: lower it"
        )
    bad = rows[~(np.isfinite(quality[rows]) & (quality[rows] >= 0))]
    if len(bad):
        raise InputError(
            f"selection.quality: record {record_names(run, bad[:1])[0]} has {name} = {quality[bad[0]]:g} (nan: none), "
            f"and so have {len(bad) - 1:,} others; expected a finite number of 0 or more: correct or add it, or remove "
            "such records from the input"
        )
    if len(rows) and not quality[rows].any():
        raise InputError(
            f"selection.quality: {name} is 0 for all {len(rows):,} records that can be chosen; expected at least one "
            "above 0: set another field or model, or none"
        )


def _optimise(
    store: Store, file: str, task: tuple[float, np.ndarray, np.ndarray | None]
) -> tuple[np.ndarray, int]:
    """(the weights of some candidates, the number of steps). task: alpha, the candidates' rows, their quality."""
    from dagster_divorder.core.mix.selection import spokes

    alpha, rows, quality = task
    if quality is not None and not quality.any():
        quality = np.ones(len(rows))  # if all candidates are equally bad, none is preferred
    vectors = np.load(store.local(file), mmap_mode="r", allow_pickle=False)
    optimum = spokes(vectors, rows, quality, alpha=alpha)
    return optimum.weights, len(optimum.objective) - 1


def _spokes(run: Run, pool: _Pool, alphas: list[float]) -> tuple[list[np.ndarray], int]:
    """(weights of the candidates, an array per alpha; the largest number of steps)."""
    settings, rows = run.settings.selection, pool.rows
    file = embeddings_file(run.receipt(vectors_stage(run.settings)))
    quality = None if pool.quality is None else pool.quality[rows]
    count = min(settings.partitions, len(rows))
    parts = [(alpha, slice(first, None, count)) for alpha in alphas for first in range(count)]
    items = [(alpha, rows[part], None if quality is None else quality[part]) for alpha, part in parts]
    optimised = run.engine.each(partial(_optimise, run.store, file), items, threads=0)
    optima = list(counted(run.progress, "choosing", optimised, len(items), "parts"))
    weights = {alpha: np.empty(len(rows)) for alpha in alphas}
    for (alpha, part), (in_part, _) in zip(parts, optima, strict=True):
        weights[alpha][part] = in_part * (len(in_part) / len(rows))
    return list(weights.values()), max(steps for _, steps in optima)


def _random(run: Run, rows: np.ndarray) -> np.ndarray:
    """A number from 0 to 1 for each candidate, from its text's id and the seed, so that appends change none."""
    ids = run.records.text_ids(run.view.fragments)
    mask, factor = np.random.SeedSequence([run.settings.seed, 3]).generate_state(2, np.uint64)
    return ((ids[rows, 0] ^ mask) * (factor | np.uint64(1))) / 2.0**64


def _select_subset(run: Run) -> Made:
    from dagster_divorder.core.mix.selection import choose, semdedup
    from dagster_divorder.view.pictures import selection_sweep

    settings, pool = run.settings.selection, _pool(run)
    if not len(pool.rows):
        raise InputError(
            f"selection.method: none of {len(pool.reasons):,} records has a vector; expected at least one to choose "
            "from: set selection.vectors to another kind, or model.base to a model that knows the words of the texts"
        )
    rows, quality = pool.rows, None if pool.quality is None else pool.quality[pool.rows]
    alphas = list(settings.alphas) if settings.method == "spokes" else []
    sweep = len(alphas) > 1
    scores: dict[str, np.ndarray] = {"random": _random(run, rows)}
    if quality is not None and (sweep or settings.method == "quality"):
        scores["quality"] = quality
    if sweep or settings.method == "semdedup":
        scores["semdedup"] = semdedup(pool.vectors, rows, seed=run.settings.seed)
    figures: dict[str, Any] = {}
    if alphas:
        # Other choices are compared with the choice by diversity alone.
        alphas += [0.0] if sweep and 0.0 not in alphas else []
        weights_by_alpha, figures["steps"] = _spokes(run, pool, alphas)
        scores |= {_name(alpha): weights for alpha, weights in zip(alphas, weights_by_alpha, strict=True)}
    used = _name(alphas[0]) if alphas else settings.method
    chosen = {name: choose(score, pool.sizes[rows], pool.budget) for name, score in scores.items()}
    columns = {"overlap with diversity alone": _name(0.0), "overlap with quality alone": "quality"}
    references = {column: chosen[name] for column, name in columns.items() if sweep and name in chosen}
    choices = {"all": np.ones(len(rows), bool), **chosen}
    table = [{**_row(pool, name, mask, references), "used": name == used} for name, mask in choices.items()]
    pool.reasons[rows[chosen[used]]] = SELECTED
    selected = pool.reasons <= CONSUMED
    weight = np.zeros(len(selected))
    weight[rows] = scores[used]
    names = pa.array(hex_ids(run.records.ids(run.view.fragments)), pa.string())
    reasons = pa.DictionaryArray.from_arrays(
        pa.array(pool.reasons), REASONS if settings.min_quality is not None else REASONS[:BELOW]
    )
    selection = {"record_id": names, "weight": weight, "selected": selected, "reason": reasons}
    scored = {row["choice"]: row["vendi"] for row in table}
    numbers = np.bincount(pool.reasons, minlength=len(REASONS)).tolist()
    figures |= {
        "method": settings.method,
        "selected_records": int(selected.sum()),
        "selected_tokens": int(pool.tokens[selected].sum()),
        "vendi_all": scored["all"],
        "vendi_selected": scored[used],
        "vendi_random": scored["random"],
        **({"note": pool.note} if pool.note else {}),
        "reasons": {reason: number for reason, number in zip(REASONS, numbers, strict=True) if number},
        **_moved(run, names, selected),
    }
    files: dict[str, Any] = {
        "selection": File(pack_parquet(pa.table(selection), "zstd"), "parquet"),
        "choices": table,
    }
    if sweep:
        files["picture"] = File(selection_sweep(table, [_name(alpha) for alpha in sorted(alphas)]), "png")
    return Made(files, {}, figures)


def _name(alpha: float) -> str:
    """The name of the choice by spokes with an alpha."""
    return f"spokes, alpha {alpha:g}"


def _row(pool: _Pool, name: str, chosen: np.ndarray, references: dict[str, np.ndarray]) -> dict[str, Any]:
    """A choice among the candidates, bool (n,), as a row of the table. references: column -> another choice, bool (n,);
    the column has the share of the reference that is in this choice."""
    from dagster_divorder.core.measure.vendi import gram, vendi

    rows = pool.rows[chosen]
    return {
        "choice": name,
        "documents": len(rows),
        "tokens": int(pool.tokens[rows].sum()),
        "mean tokens": float(pool.tokens[rows].mean()) if len(rows) else None,
        "vendi": round(vendi(gram(pool.vectors, rows)), 4),
        "mean quality": float(pool.quality[rows].mean()) if pool.quality is not None and len(rows) else None,
        **{
            column: int((chosen & reference).sum()) / max(1, int(reference.sum()))
            for column, reference in references.items()
        },
    }


def _moved(run: Run, names: pa.Array, selected: np.ndarray) -> dict[str, Any]:
    """Changes since the last choice on this store, in records: `joined` the choice; `joined_new_records`, of these new
    in the corpus; `left` the choice, but are still in the corpus."""
    last = load_receipt(run.store, "subset_selection")
    if last is None or not run.store.exists(last.files["selection"]):
        return {}
    import pyarrow.compute as pc

    before = unpack_parquet(run.store.read_verified(last.files["selection"]), ["record_id", "selected"])
    known = before["record_id"]
    now, old = names.filter(pa.array(selected)), known.filter(before["selected"])
    joined = now.filter(pc.invert(pc.is_in(now, value_set=old)))
    moved = {
        "joined": len(joined),
        "joined_new_records": int(pc.sum(pc.invert(pc.is_in(joined, value_set=known))).as_py() or 0),
        "left": int(pc.sum(pc.is_in(names.filter(pa.array(~selected)), value_set=old)).as_py() or 0),
    }
    run.progress.note(
        f"{len(now):,} records are chosen; {moved['joined']:,} joined the choice, {moved['joined_new_records']:,} of "
        f"them new in the corpus, and {moved['left']:,} left it"
    )
    return moved


def load_choices(run: Run) -> list[dict[str, Any]]:
    """One row per way to choose; see `_row`."""
    return run.rows("subset_selection", "choices")


def _show_subset_selection(run: Run, receipt: Receipt) -> Shown:
    shown: dict[str, Table | Picture] = {"choices": Table(load_choices(run))}
    if "picture" in receipt.files:
        title = "quality, diversity, overlap and length of the choice, by the weight of quality"
        shown["alphas"] = Picture(run.store.local(receipt.files["picture"]), title)
    return shown


def _subset_selection_reads(settings: Settings) -> tuple[str, ...]:
    chosen = settings.selection
    return (
        *("raw_docs", "token_counts", vectors_stage(settings)),
        *(["fields"] if chosen.quality_field else []),
        *(["quality_scores"] if chosen.quality_model else []),
        *(["ids"] if settings.input.id_field else []),
        *(["traits", *heldout_reads(settings)] if settings.holds_out else []),
    )


SUBSET_SELECTION: WholeCorpus = WholeCorpus(
    name="subset_selection",
    version=3,
    description="Which records are trained on: chosen together for diversity and quality within a budget, or in a "
    "simpler way. A table compares what each way would choose.",
    reads=_subset_selection_reads,
    settings=("selection", "seed"),
    decided_by=lambda run: {**SUBSET_SELECTION.usual(run), "consumed": consumed_version(run)},
    when=lambda settings: settings.selects,
    doing="choosing what is trained on",
    compute=_select_subset,
    show=_show_subset_selection,
)
