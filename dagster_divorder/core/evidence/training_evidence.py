"""Compares orders by training: differences with confidence intervals, and the seam between epochs.

Letters: R trainings of an order (seeds), T steps of all E epochs, e steps of one, S sources, W weight matrices.
Differences are paired by seed, which fixes the initial weights. Intervals are Student's at 95 %. "Beyond noise" means
that the interval excludes zero.
Sources: Student 1908; the epoch boundary, Diversity-Ordered Training; the stable rank of batch gradients, Don't
Shuffle, Optimize; loss by source and along the data, TokenShard (On Shuffling Tokens).
Known weakness: trainings differ in weights and shuffles, not in the corpus, so an interval is valid for this corpus.
One in twenty differences without a cause is called beyond noise.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.floating]

CONFIDENCE = 0.95
POWER = 0.8
NOTABLE = 0.01
"""Difference, in nats a token, for which the necessary number of trainings is reported."""
SEAM, SPIKE, AROUND = 0.05, 0.01, 0.1
"""Parts of an epoch: on either side of the seam whose losses are compared; after it, in which the longest gradient
is sought; on either side of the seam, which pictures show."""
SEEN = 1.5
"""Multiple of the median gradient at which a gradient after the seam counts as a jump."""
PLACES = 200
"""Parts in which pictures show losses along the data."""
RANKED_AT = (0.2, 1.0)
"""Parts of training after which gradients are ranked."""

HELD_OUT, JUMP, SPIKE_SIZE = "held-out loss", "jump at the seam", "gradient at the seam, of its median"
Estimate = dict[str, float | None]
Comparison = dict[str, dict[str, Estimate]]
"""Figure -> its estimate for an order, `value`, and of its paired differences from shuffled sequences, `less
shuffled`."""


class Trained(NamedTuple):
    """Records of a training; NaN from the first step on whose loss is not finite.

    losses, norms: float32 (T,), nats a token and gradient length of each batch, before its step. heldout: float64
    (E, S), loss after each epoch. ranks: float64 (2, W), stable rank of batch gradients, at RANKED_AT.
    """

    losses: Floats
    norms: Floats
    heldout: Floats
    ranks: Floats


def estimate(values: ArrayLike) -> Estimate:
    """`mean` of R values, its standard `error`, and its interval from `low` to `high`. NaN is ignored; figures that
    need more values are None."""
    from scipy.special import stdtrit

    known = np.asarray(values, np.float64)
    known = known[~np.isnan(known)]
    mean = float(known.mean()) if known.size else None
    if mean is None or known.size < 2:
        return {"mean": mean, "error": None, "low": None, "high": None}
    error = float(known.std(ddof=1) / math.sqrt(known.size))
    # Student's quantile. `scipy.stats` calls the same function, but takes half a second to import.
    reach = float(stdtrit(known.size - 1, (1 + CONFIDENCE) / 2)) * error
    return {"mean": mean, "error": error, "low": mean - reach, "high": mean + reach}


def is_beyond_noise(difference: Estimate) -> bool:
    """Whether the interval of an estimate is known and excludes zero."""
    low, high = difference["low"], difference["high"]
    return low is not None and high is not None and (low > 0 or high < 0)


def pairs_to_show(difference: float, spread: float) -> int:
    """Fewest pairs, at least 2, that show a true difference beyond noise with the probability POWER, by Guenther's
    approximation of the t test: normal quantiles, and half a squared one more.

    spread: standard deviation of the differences of pairs.
    """
    from scipy.special import ndtri

    reach = float(ndtri((1 + CONFIDENCE) / 2))
    many = ((reach + float(ndtri(POWER))) * spread / difference) ** 2
    return max(2, math.ceil(many + (reach**2 / 2 if spread else 0.0)))


def mean(values: Sequence[Floats]) -> NDArray[np.float64]:
    """Mean over trainings, ignoring NaN."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # NaN if all failed
        averages: NDArray[np.float64] = np.nanmean(np.stack(values).astype(np.float64), axis=0)
    return averages


def figures_of(
    trained: Trained, epoch: int, sources: Sequence[str], parts: Mapping[str, NDArray[np.bool_]]
) -> dict[str, float]:
    """Figures of a training, by name: the held-out loss after the last epoch, mean over sources and of each source; the
    mean loss after the first seam less that before it; the largest gradient after it, relative to the median of the
    first epoch; the mean stable rank of the matrices of each part, at RANKED_AT.

    epoch: e. parts: name -> bool (W,), the matrices in it.
    """
    losses, norms, last = trained.losses.astype(np.float64), trained.norms, trained.heldout[-1]
    near, close = (max(1, round(share * epoch)) for share in (SEAM, SPIKE))
    figures = {
        HELD_OUT: float(last.mean()),
        JUMP: float(losses[epoch : epoch + near].mean() - losses[epoch - near : epoch].mean()),
        SPIKE_SIZE: float(norms[epoch : epoch + close].max() / np.median(norms[:epoch])),
    }
    for part, matrices in parts.items():
        for share, ranks in zip(RANKED_AT, trained.ranks, strict=True):
            figures[f"stable rank, {part}, {share:.0%}"] = float(ranks[matrices].mean())
    return figures | {by_source(source): float(loss) for source, loss in zip(sources, last, strict=True)}


def by_source(source: str) -> str:
    """The name of a source's figure."""
    return f"{HELD_OUT}, {source}"


def compare(ours: Sequence[Mapping[str, float]], shuffled: Sequence[Mapping[str, float]]) -> Comparison:
    """Figures of an order's R trainings beside those of shuffled sequences, from the same initial weights."""
    compared: Comparison = {}
    for name in ours[0]:
        own, others = (np.array([figures[name] for figures in each]) for each in (ours, shuffled))
        compared[name] = {"value": estimate(own), "less shuffled": estimate(own - others)}
    return compared


def lines_of(trainings: Sequence[Trained], epoch: int) -> dict[str, NDArray[np.float64]]:
    """Means over trainings to draw: `losses` along all epochs, in at most PLACES parts; `norms around the seam`, AROUND
    of an epoch on either side."""
    losses, norms = (mean([getattr(each, name) for each in trainings]) for name in ("losses", "norms"))
    near = max(1, round(AROUND * epoch))
    parts = np.array_split(losses, min(PLACES, len(losses)))
    return {
        "losses": np.array([part.mean() for part in parts]),
        "norms around the seam": norms[epoch - near : epoch + near],
    }


def summarise(
    trained: Mapping[tuple[str, float], Sequence[Trained]],
    reference: str,
    epoch: int,
    sources: Sequence[str],
    parts: Mapping[str, NDArray[np.bool_]],
    tokens: int,
) -> dict[str, Any]:
    """What R trainings of each order at each learning rate show, at the rate that suits the order `reference`, of
    shuffled sequences, best. epoch, sources, parts: see `figures_of`. tokens: read by a training."""
    orders = list(dict.fromkeys(order for order, _ in trained))
    heldout = {key: estimate([each.heldout[-1].mean() for each in of]) for key, of in trained.items()}
    means = {rate: of["mean"] for (order, rate), of in heldout.items() if order == reference}
    best = min(means, key=lambda rate: means[rate] or math.inf)
    figures = {
        name: [figures_of(each, epoch, sources, parts) for each in trained[name, best]] for name in orders
    }
    compared = {name: compare(figures[name], figures[reference]) for name in orders}
    first = "curated" if "curated" in orders else next(name for name in orders if name != reference)
    pairs = zip(figures[first], figures[reference], strict=True)
    power = sensitivity([ours[HELD_OUT] - shuffled[HELD_OUT] for ours, shuffled in pairs], tokens)
    return {
        "verdict": [*verdict(compared, first, reference), *([power] if power else [])],
        "orders": [
            {"order": name, "figures": compared[name], **lines_of(trained[name, best], epoch)}
            for name in orders
        ],
        "sources": sources,
        "rates": [{"order": name, "learning rate": rate, **of} for (name, rate), of in heldout.items()],
        "layers": {name: mean([each.ranks[-1] for each in trained[name, best]]) for name in orders},
        "learning rate": best,
    }


def with_interval(difference: Estimate) -> str:
    """An estimate in words: its mean, and its interval if known."""
    mean, low, high = (_signed(difference[name], "+.4f") for name in ("mean", "low", "high"))
    return mean if difference["low"] is None else f"{mean} ({low} to {high})"


def verdict(orders: Mapping[str, Comparison], name: str, reference: str) -> list[str]:
    """Two sentences: whether an order's held-out loss differs from shuffled sequences', and what its seam shows."""
    ours, shuffled = orders[name][HELD_OUT], orders[reference][HELD_OUT]
    less = ours["less shuffled"]
    if less["mean"] is None:
        return [f"There is no result for {name}: its trainings, or those in random order, failed."]
    if less["low"] is None:
        kind = "one training each, so the noise is unknown"
    elif is_beyond_noise(less):
        kind = f"{'better' if less['mean'] < 0 else 'worse'} beyond noise"
    else:
        kind = "no difference beyond noise"
    sentence = (
        f"Held-out loss, mean over sources: {name} {ours['value']['mean']:.4f}, the same sequences shuffled "
        f"{shuffled['value']['mean']:.4f}, difference {with_interval(less)}: {kind}."
    )
    shown = [order for order in dict.fromkeys(["original", name, reference]) if order in orders]
    jumps, spikes = (
        ", ".join(f"{order} {_signed(orders[order][figure]['value']['mean'], form)}" for order in shown)
        for figure, form in ((JUMP, "+.3f"), (SPIKE_SIZE, ".2f"))
    )
    # Beyond noise the loss jumps by more than with shuffled sequences, or the gradient reaches SEEN times its median.
    seen = [
        order
        for order in shown
        if (orders[order][JUMP]["less shuffled"]["low"] or 0) > 0
        or (orders[order][SPIKE_SIZE]["value"]["mean"] or 0) >= SEEN
    ]
    return [
        sentence,
        f"At the seam of the epochs the loss jumps by {jumps}, and the gradient is {spikes} times its median: a seam "
        f"is seen in {' and '.join(seen) or 'none'}.",
    ]


def sensitivity(differences: ArrayLike, tokens: int) -> str:
    """How many trainings would show a difference of NOTABLE; "" if these differences from shuffled sequences, one a
    seed, are beyond noise or too few. tokens: read by a training."""
    less, pairs = estimate(differences), int(np.isfinite(differences).sum())
    if less["error"] is None or is_beyond_noise(less):
        return ""
    needed = pairs_to_show(NOTABLE, less["error"] * math.sqrt(pairs))
    return (
        f"{needed:,} seeds (now {pairs}) show a difference of {NOTABLE:g} nats in {POWER:.0%} of such comparisons, by "
        f"the spread of these {pairs} pairs: {needed * tokens:,} tokens of training for each order; more tokens a "
        "training (evidence.tokens) lower the spread."
    )


def _signed(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
