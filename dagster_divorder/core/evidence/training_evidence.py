"""Compares orders by training: differences with confidence intervals, and the seam between epochs.

Letters: R trainings of an order (seeds), T steps of all E epochs, e steps of one, S sources, W weight matrices.
Differences are paired by seed, which fixes the initial weights. Intervals are Student's at 95 %. "Beyond noise" means
that the interval excludes zero. `pairs_to_show` gives the number of pairs that show a difference of NOTABLE in four of
five cases.
Sources: Student 1908; the epoch boundary, Diversity-Ordered Training; the stable rank of batch gradients, Don't
Shuffle, Optimize; loss by source and along the data, TokenShard (On Shuffling Tokens).
Known weakness: trainings differ in weights and shuffles, not in the corpus, so an interval is valid for this corpus.
One in twenty differences without a cause is called beyond noise.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.floating]

CONFIDENCE = 0.95
POWER = 0.8
NOTABLE = 0.01
"""Difference, in nats a token, for which the necessary number of trainings is reported."""
MOST_PAIRS = 1_000_000
SEAM = 0.05
"""Part of an epoch on either side of the seam whose losses are compared."""
SPIKE = 0.01
"""Part of an epoch after the seam in which the longest gradient is sought."""
SEEN = 1.5
"""Multiple of the median gradient at which a gradient after the seam counts as a jump."""
AROUND = 0.1
"""Part of an epoch on either side of the seam that pictures show."""
PLACES = 200
"""Parts in which pictures show losses along the data."""
RANKED_AT = (0.2, 1.0)
"""Parts of training after which gradients are ranked."""


class Trained(NamedTuple):
    """Records of a training; NaN from the first step on whose loss is not finite.

    losses, norms: float32 (T,), nats a token and gradient length of each batch, before its step. heldout: float64
    (E, S), loss after each epoch. ranks: float64 (2, W), stable rank of batch gradients, at RANKED_AT.
    """

    losses: Floats
    norms: Floats
    heldout: Floats
    ranks: Floats


def estimate(values: ArrayLike) -> dict[str, float | None]:
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


def is_beyond_noise(difference: Mapping[str, float | None]) -> bool:
    """Whether the interval of an estimate is known and excludes zero."""
    low, high = difference["low"], difference["high"]
    return low is not None and high is not None and (low > 0 or high < 0)


def power(pairs: int, difference: float, spread: float) -> float:
    """Probability that R = `pairs` paired trainings find a true difference beyond noise, with its sign:

        P(t > q) = 1 - F(q; R - 1, difference sqrt(R) / spread)

    where q is Student's quantile of 97.5 % at R - 1 degrees of freedom, and F the noncentral t distribution.

    spread: standard deviation of the differences of pairs, above 0.
    """
    from scipy.special import nctdtr, stdtrit

    quantile = stdtrit(pairs - 1, (1 + CONFIDENCE) / 2)
    return 1.0 - float(nctdtr(pairs - 1, difference * math.sqrt(pairs) / spread, quantile))


def pairs_to_show(difference: float, spread: float) -> int | None:
    """The fewest pairs, at least 2, with a `power` of POWER; None above MOST_PAIRS.

    The search starts at ((z_0.975 + z_0.8) spread / difference)^2, with z the quantiles of the normal distribution,
    because Student's are larger.
    """
    from scipy.special import ndtri

    many = ((ndtri((1 + CONFIDENCE) / 2) + ndtri(POWER)) * spread / difference) ** 2
    if many > MOST_PAIRS:
        return None
    pairs = max(2, math.ceil(many))
    while spread and power(pairs, difference, spread) < POWER:
        pairs += 1
    return pairs


def mean(values: Sequence[Floats]) -> NDArray[np.float64]:
    """Mean over trainings, ignoring NaN."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # NaN if all failed
        averages: NDArray[np.float64] = np.nanmean(np.stack(values).astype(np.float64), axis=0)
    return averages


def order_figures(
    ours: Sequence[Trained], shuffled: Sequence[Trained], epoch: int, attention: NDArray[np.bool_]
) -> dict[str, Any]:
    """Figures of an order's R trainings beside those of shuffled sequences, from the same initial weights.

    epoch: e. attention: bool (W,), the matrices of attention. Estimates come from `estimate`; `less shuffled` are
    paired differences. `jump`: mean loss after the first seam less that before it. `spike`: the largest gradient after
    it, relative to the median of the first epoch. Lines are lists: `losses` along all epochs, and losses and norms
    around the seam.
    """

    def paired(name: str, figure: Callable[[Trained], float]) -> dict[str, Any]:
        own, others = (np.array([figure(trained) for trained in each]) for each in (ours, shuffled))
        return {name: estimate(own), f"{name}, less shuffled": estimate(own - others)}

    def jump(trained: Trained) -> float:
        near, losses = max(1, round(SEAM * epoch)), trained.losses.astype(np.float64)
        return float(losses[epoch : epoch + near].mean() - losses[epoch - near : epoch].mean())

    def spike(trained: Trained) -> float:
        close = max(1, round(SPIKE * epoch))
        return float(trained.norms[epoch : epoch + close].max() / np.median(trained.norms[:epoch]))

    losses, norms = mean([trained.losses for trained in ours]), mean([trained.norms for trained in ours])
    figures = paired("held-out", lambda trained: float(trained.heldout[-1].mean()))
    figures["less shuffled"] = figures.pop("held-out, less shuffled")
    if len(losses) >= 2 * epoch:
        near = max(1, round(AROUND * epoch))
        figures |= paired("jump", jump) | paired("spike", spike)
        figures["around the seam"] = losses[epoch - near : epoch + near]
        figures["norms around the seam"] = norms[epoch - near : epoch + near]
    for kind, matrices in (("attention", attention), ("feed-forward", ~attention)):
        for at, share in enumerate(RANKED_AT):

            def rank(trained: Trained, at: int = at, matrices: NDArray[np.bool_] = matrices) -> float:
                return float(trained.ranks[at, matrices].mean())

            figures |= paired(f"stable rank, {kind}, {share:.0%}", rank)
    parts = np.array_split(losses, min(PLACES, len(losses)))
    return figures | {"losses": np.array([part.mean() for part in parts])}


def source_figures(
    ours: Sequence[Trained], shuffled: Sequence[Trained], sources: Sequence[str]
) -> list[dict[str, Any]]:
    """Held-out loss of each source after the last epoch, and its difference from shuffled sequences."""
    losses, others = (np.array([trained.heldout[-1] for trained in each]) for each in (ours, shuffled))
    return [
        {"source": source, "loss": estimate(own), "less shuffled": estimate(own - other)}
        for source, own, other in zip(sources, losses.T, others.T, strict=True)
    ]


def with_interval(difference: Mapping[str, Any], digits: int = 4) -> str:
    """An estimate in words: its mean, and its interval if known."""
    mean, low, high = (
        "–" if difference[name] is None else f"{difference[name]:+.{digits}f}"
        for name in ("mean", "low", "high")
    )
    return mean if difference["low"] is None else f"{mean} ({low} to {high})"


def verdict(rows: Mapping[str, Mapping[str, Any]], name: str, reference: str) -> list[str]:
    """Two sentences: whether an order's held-out loss differs from shuffled sequences', and what its seam shows. rows:
    `order_figures` by order."""
    ours, shuffled = rows[name], rows[reference]
    less = ours["less shuffled"]
    if less["mean"] is None:
        return [f"There is no result for {name}: its trainings, or those in random order, failed.", ""]
    if less["low"] is None:
        kind = "one training each, so the noise is unknown"
    elif is_beyond_noise(less):
        kind = f"{'better' if less['mean'] < 0 else 'worse'} beyond noise"
    else:
        kind = "no difference beyond noise"
    sentence = (
        f"Held-out loss, mean over sources: {name} {ours['held-out']['mean']:.4f}, the same sequences shuffled "
        f"{shuffled['held-out']['mean']:.4f}, difference {with_interval(less)}: {kind}."
    )
    if "spike" not in ours:
        return [sentence, "One epoch, so there is no seam."]
    shown = [order for order in dict.fromkeys(["original", name, reference]) if order in rows]
    jumps = ", ".join(f"{order} {_signed(rows[order]['jump']['mean'], '+.3f')}" for order in shown)
    spikes = ", ".join(f"{order} {_signed(rows[order]['spike']['mean'], '.2f')}" for order in shown)
    seen = [order for order in shown if is_seam(rows[order])]
    return [
        sentence,
        f"At the seam of the epochs the loss jumps by {jumps}, and the gradient is {spikes} times its median: a seam "
        f"is seen in {' and '.join(seen) or 'none'}.",
    ]


def is_seam(figures: Mapping[str, Any]) -> bool:
    """Whether, beyond noise, the loss jumps at the seam by more than with shuffled sequences, or the gradient reaches
    SEEN times its median."""
    low, spike = figures["jump, less shuffled"]["low"], figures["spike"]["mean"]
    return (low is not None and low > 0) or (spike is not None and spike >= SEEN)


def sensitivity(differences: ArrayLike, tokens: int) -> str:
    """How many trainings would show a difference of NOTABLE; "" if these differences from shuffled sequences, one a
    seed, are beyond noise or too few. tokens: read by a training."""
    less, pairs = estimate(differences), int(np.isfinite(differences).sum())
    if less["error"] is None or is_beyond_noise(less):
        return ""
    needed = pairs_to_show(NOTABLE, less["error"] * math.sqrt(pairs))
    shown = f"a difference of {NOTABLE:g} nats in {POWER:.0%} of such comparisons"
    by = f"by the spread of these {pairs} pairs"
    if needed is not None and needed <= pairs:
        return f"These {pairs} seeds show {shown}, {by}: a real one is probably smaller."
    if needed is None:
        return f"More than {MOST_PAIRS:,} seeds show {shown}, {by}: raise evidence.tokens, which lowers the spread."
    return (
        f"{needed:,} seeds (now {pairs}) show {shown}, {by}: {needed * tokens:,} tokens of training for each order; "
        "more tokens a training (evidence.tokens) lower the spread."
    )


def _signed(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
