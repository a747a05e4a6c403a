"""All measures of one order as one value, for tables and comparisons."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.checks import positive
from dagster_divorder.core.measure.distinct import (
    PACKERS,
    Distinct,
    distinct_in_sequences,
    distinct_in_stream,
    summarize,
)
from dagster_divorder.core.measure.prefix import (
    PrefixDeviation,
    coverage_in_stream,
    prefix_of,
    squares_in_stream,
)
from dagster_divorder.core.measure.seam import Seam, seams
from dagster_divorder.core.measure.shares import ShareDeviation, aligned_windows, summarize_windows
from dagster_divorder.core.measure.stream import codes_in_order, token_shares, tokens_in_order
from dagster_divorder.core.measure.stretches import asked_mix, constant_mix
from dagster_divorder.core.measure.trait_errors import TraitErrors
from dagster_divorder.core.measure.whole_sequences import (
    LaidSequences,
    aligned_sequences,
    laid_end_to_end,
    sequence_seams,
    sliding_sequences,
)
from dagster_divorder.core.measure.window_deviation import WindowDeviation, windows_in_stream
from dagster_divorder.errors import InputError

if TYPE_CHECKING:
    from dagster_divorder.core.kernels.stretch_windows import AskedMix

Row = dict[str, str | float]

BATCHES = 10
"""Batches in the largest window measured."""
WINDOWS = ("sequence", "batch", f"{BATCHES} batches")
"""Windows that are measured at every position, by rising size."""


@dataclass(frozen=True, eq=False)
class Diversity:
    """All measures of one order, or their averages over several (see `average`).

    documents, tokens: in the order (packed sequences: documents with tokens). sequence_length: L in tokens.
    batch: sequences a batch.
    split, flush: distinct clusters per sequence under the two packers.
    sequence_shares, batch_shares: by trait, the share deviation in aligned windows of L and of L * batch tokens.
    windows: by window (see WINDOWS) and trait, the deviation over every position of the window.
    seam: by trait, windows of a batch across the end of an epoch and the beginning of the next.
    batch_tv: by trait, total variation of each aligned batch, float64 (B,); of all orders, if averaged.
    errors: by trait, in tokens, after every sequence and in every batch; of all orders, if averaged.
    prefix: the prefix deviation over all traits together, in tokens.
    coverage: share of the tokens after which every cluster has occurred.
    """

    documents: int
    tokens: int
    sequence_length: int
    batch: int
    split: Distinct
    flush: Distinct
    sequence_shares: Mapping[str, ShareDeviation]
    batch_shares: Mapping[str, ShareDeviation]
    windows: Mapping[str, Mapping[str, WindowDeviation]]
    seam: Mapping[str, Seam]
    batch_tv: Mapping[str, NDArray[np.float64]]
    errors: Mapping[str, TraitErrors]
    prefix: PrefixDeviation
    coverage: float

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values for JSON, without `batch_tv` and `errors`."""
        result = asdict(replace(self, batch_tv={}, errors={}))
        del result["batch_tv"], result["errors"]
        result["prefix"]["share"] = self.prefix.share.tolist()
        result["prefix"]["l2"] = self.prefix.l2.tolist()
        return result

    def rows(self) -> list[Row]:
        """One row {trait, window, measure, value} for each number, without the curve of `prefix`.

        window: "sequence" (as a splitting packer cuts), "sequence (flush)", "batch", "prefix" or "corpus"; for the
        deviation over every position, "sequence (anywhere)" and so on.
        """
        rows: list[Row] = []

        def add(trait: str, window: str, prefix: str, value: Any, names: Sequence[str]) -> None:
            rows.extend(
                {"trait": trait, "window": window, "measure": prefix + name, "value": getattr(value, name)}
                for name in names
            )

        statistics = ("mean", "min", "max", "std", "count")
        add("cluster", "sequence", "distinct_", self.split, statistics)
        add("cluster", "sequence (flush)", "distinct_", self.flush, statistics)
        for window, shares in (("sequence", self.sequence_shares), ("batch", self.batch_shares)):
            for trait, deviation in shares.items():
                names = ("mean_worst", "max_worst", "mean_tv", "max_tv", "mean_l2", "max_l2", "windows")
                add(trait, window, "", deviation, names)
        for window, traits in self.windows.items():
            for trait, anywhere in traits.items():
                measures = ("worst", "mean", "ideal", "worst_tv", "mean_tv", "ideal_tv", "positions")
                add(trait, f"{window} (anywhere)", "", anywhere, measures)
        for trait, across in self.seam.items():
            add(
                trait,
                "batch (across the seam)",
                "",
                across,
                ("worst", "mean", "worst_tv", "mean_tv", "head_tail"),
            )
        add("all", "prefix", "l2_", self.prefix, ("mean", "max"))
        add("cluster", "corpus", "", self, ("coverage",))
        return rows


def measure(
    order: ArrayLike,
    tokens: ArrayLike,
    traits: Mapping[str, ArrayLike],
    n_values: Mapping[str, int],
    *,
    sequence_length: int,
    batch: int,
    sequences: NDArray[np.int64] | None = None,
    next_epochs: Sequence[ArrayLike] = (),
    bounds: Sequence[NDArray[np.int64]] | None = None,
    stretch: NDArray[np.integer] | None = None,
) -> Diversity:
    """Every measure of `order` over the corpus.

    tokens: int (N,) by document. traits: by name, int (N,) codes in [0, n_values[name]); one is "cluster".
    sequence_length: L in tokens. batch: sequences a batch. A few passes over the documents for each trait.
    sequences: int64 (S + 1,), for packed runs of tokens: sequence s holds the runs order[sequences[s]:sequences[s+1]].
        `split` and `flush` then both count the clusters of these sequences. Windows count tokens without padding.
    next_epochs: orders of later epochs. `windows` and `seam` continue into them; all other measures use `order` alone.
    bounds: for each epoch, the tokens before each sequence and in all, int64 (S + 1,). Windows are then whole sequences
        of any length (`core.measure.whole_sequences`); prefixes still have L tokens.
    stretch: int (N,), the stretch of each document (`core.measure.stretches`), with whose mix windows and prefixes are
        compared; None: one stretch, the corpus's mix.
    """
    if "cluster" not in traits:
        raise InputError(
            f"the traits are {sorted(traits)}; 'cluster' must be one, since sequences are counted by it"
        )
    if missing := sorted(set(traits) - set(n_values)):
        raise InputError(f"n_values lacks {missing}; expected the number of values of every trait")
    length = positive("sequence_length", sequence_length)
    positive("batch", batch)
    documents = len(np.asarray(tokens))
    epochs = [
        (
            tokens_in_order(epoch, tokens),
            {
                trait: codes_in_order(epoch, values, n_values[trait], documents)
                for trait, values in traits.items()
            },
        )
        for epoch in (order, *next_epochs)
    ]
    stream, codes = epochs[0]
    if sequences is None:
        split, flush = (
            distinct_in_stream(stream, codes["cluster"], n_values["cluster"], length, packer)
            for packer in PACKERS
        )
    else:
        split = flush = distinct_in_sequences(sequences, codes["cluster"], n_values["cluster"])
    total = int(stream.sum())
    along = None
    if stretch is not None and np.ptp(stretch):
        # A single epoch is followed by itself.
        rows = [np.asarray(epoch) for epoch in (order, *(next_epochs or [order]))]
        along = stretch[np.concatenate(rows)].astype(np.int64)
    by_trait = {
        trait: _measure_trait(
            [(epoch, values[trait]) for epoch, values in epochs],
            n_values[trait],
            length,
            batch,
            along,
            bounds,
        )
        for trait in traits
    }
    squares = sum((measured.squares for measured in by_trait.values()), np.zeros(-(-total // length)))
    return Diversity(
        documents=len(stream),
        tokens=total,
        sequence_length=length,
        batch=batch,
        split=summarize(split),
        flush=summarize(flush),
        sequence_shares={trait: measured.sequence_shares for trait, measured in by_trait.items()},
        batch_shares={trait: measured.batch_shares for trait, measured in by_trait.items()},
        windows={
            name: {trait: measured.windows[name] for trait, measured in by_trait.items()} for name in WINDOWS
        },
        seam={trait: measured.seam for trait, measured in by_trait.items()},
        batch_tv={trait: measured.batch_tv for trait, measured in by_trait.items()},
        errors={trait: measured.errors for trait, measured in by_trait.items()},
        prefix=prefix_of(squares, total, length),
        coverage=coverage_in_stream(stream, codes["cluster"], n_values["cluster"]),
    )


class _TraitMeasures(NamedTuple):
    """The measures of one trait, as in `Diversity`. squares: float64, squared deviation after each sequence."""

    sequence_shares: ShareDeviation
    batch_shares: ShareDeviation
    windows: Mapping[str, WindowDeviation]
    seam: Seam
    batch_tv: NDArray[np.float64]
    errors: TraitErrors
    squares: NDArray[np.float64]


def _measure_trait(
    epochs: Sequence[tuple[NDArray[np.int64], NDArray[Any]]],
    values: int,
    length: int,
    batch: int,
    stretch: NDArray[np.int64] | None,
    bounds: Sequence[NDArray[np.int64]] | None,
) -> _TraitMeasures:
    """epochs: tokens int64 (N,) and codes (N,) of each. length: tokens a sequence. batch: sequences a batch. stretch:
    int64, of each document in all epochs, of which there are at least two."""
    stream, codes = epochs[0]
    total, window = int(stream.sum()), length * batch
    mix = None
    if stretch is not None:
        every = epochs if len(epochs) > 1 else [*epochs, *epochs]
        all_tokens, all_codes = (np.concatenate(columns) for columns in zip(*every, strict=True))
        mix = asked_mix(all_tokens, all_codes, values, stretch)
    squares = squares_in_stream(stream, codes, values, length, mix)
    if bounds is not None:
        laid = [LaidSequences(*epoch, edges) for epoch, edges in zip(epochs, bounds, strict=True)]
        return _measure_sequences(laid, values, batch, mix, squares)
    history, history_codes = stream, codes
    if len(epochs) > 1:
        history, history_codes = (np.concatenate(columns) for columns in zip(*epochs, strict=True))
    in_sequences, in_batches = (
        aligned_windows(stream, codes, values, max(1, min(size, total)), mix) for size in (length, window)
    )
    batches = total // window
    return _TraitMeasures(
        sequence_shares=summarize_windows(*in_sequences, partial=0 < total < length),
        batch_shares=summarize_windows(*in_batches, partial=0 < total < window),
        windows={
            name: windows_in_stream(history, history_codes, values, size, mix)
            for name, size in zip(WINDOWS, (length, window, BATCHES * window), strict=True)
        },
        seam=seams(epochs, values, window, mix),
        batch_tv=in_batches[1][:batches],
        errors=_trait_errors(squares, window * in_batches[2][:batches]),
        squares=squares,
    )


def _measure_sequences(
    epochs: Sequence[LaidSequences],
    values: int,
    batch: int,
    mix: AskedMix | None,
    squares: NDArray[np.float64],
) -> _TraitMeasures:
    """As `_measure_trait`, in windows of whole sequences."""
    first, history = epochs[0], laid_end_to_end(epochs)
    sequences, share = len(first.bounds) - 1, token_shares(first.tokens, first.codes, values)
    constant = constant_mix(share)
    in_sequences, in_batches = (
        aligned_sequences(first, max(1, min(size, sequences)), mix or constant) for size in (1, batch)
    )
    full = sequences // batch
    return _TraitMeasures(
        sequence_shares=summarize_windows(*in_sequences[:3], partial=False),
        batch_shares=summarize_windows(*in_batches[:3], partial=0 < sequences < batch),
        windows={
            name: sliding_sequences(history, share, size, mix or constant)
            for name, size in zip(WINDOWS, (1, batch, BATCHES * batch), strict=True)
        },
        seam=sequence_seams(epochs, values, batch, mix, constant),
        batch_tv=in_batches[1][:full],
        errors=_trait_errors(squares, in_batches[3][:full] * in_batches[2][:full]),
        squares=squares,
    )


def _trait_errors(squares: NDArray[np.float64], batches: NDArray[np.float64]) -> TraitErrors:
    """squares: see `_TraitMeasures`; batches: the error of each full batch, in tokens."""
    return TraitErrors(
        cumulative=np.sqrt(squares)[np.newaxis].astype(np.float32),
        batch=batches[np.newaxis].astype(np.float32),
    )


def worse_batches(others: Diversity, ours: Diversity) -> dict[str, float]:
    """By trait, the share of the batches of `others` whose total variation exceeds that of our worst batch. 1.0: our
    worst batch is better than their best. 0.0 without a full batch."""
    return {
        trait: float((tv > ours.batch_tv[trait].max(initial=0.0)).mean()) if tv.size else 0.0
        for trait, tv in others.batch_tv.items()
    }


def average(orders: Sequence[Diversity]) -> Diversity:
    """The mean of every number over several orders of one corpus, such as shuffles with three seeds.

    Minima and maxima are averaged too: an extreme over all orders would grow with their number. Curves are averaged
    point by point. `worst_window` and `worst_start` are -1 if the orders disagree. `batch_tv` and `errors` are
    concatenated, errors only for as many batches as every order has, since packed shuffles may differ by one.
    """
    if not orders:
        raise InputError("average got no order to average; expected at least one Diversity")
    first = orders[0]
    corpora = {(d.documents, d.tokens, d.sequence_length, d.batch, tuple(d.batch_shares)) for d in orders}
    if len(corpora) > 1:
        raise InputError(f"average got orders of {len(corpora)} different corpora or settings; expected one")
    batches = {t: min(d.errors[t].batch.shape[1] for d in orders) for t in first.errors}
    return replace(
        _mean([replace(d, batch_tv={}, errors={}) for d in orders]),
        batch_tv={t: np.concatenate([d.batch_tv[t] for d in orders]) for t in first.batch_tv},
        errors={
            t: TraitErrors(
                np.concatenate([d.errors[t].cumulative for d in orders]),
                np.concatenate([d.errors[t].batch[:, : batches[t]] for d in orders]),
            )
            for t in first.errors
        },
    )


def _mean(values: Sequence[Any], name: str = "") -> Any:
    """The mean of numbers, arrays, mappings or dataclasses; equal values stay as they are, so counts stay whole
    numbers. name: the field's name."""
    first = values[0]
    if len(values) == 1:
        return first
    if isinstance(first, Mapping):
        return {key: _mean([value[key] for value in values]) for key in first}
    if is_dataclass(first) and not isinstance(first, type):
        means = {
            field.name: _mean([getattr(value, field.name) for value in values], field.name)
            for field in fields(first)
        }
        return replace(first, **means)
    same = np.array_equal if isinstance(first, np.ndarray) else operator.eq
    if all(same(first, other) for other in values[1:]):
        return first
    if name in ("worst_window", "worst_start"):
        return -1
    mean = np.mean(values, axis=0)
    return mean if isinstance(first, np.ndarray) else float(mean)
