"""Compares orders by training: differences with confidence intervals, and the seam between epochs.

Letters: R trainings of an order (seeds), T steps of all E epochs, e steps of one, S sources, W weight matrices.
Differences are paired by seed, which fixes the initial weights. Intervals are Student's at 95 %; with three trainings,
2.5 standard deviations each way. "Beyond noise" means that the interval excludes zero. `pairs_to_show` gives the number
of pairs that show a difference of NOTABLE in four of five cases.
Sources: Student 1908; the epoch boundary, Diversity-Ordered Training; the stable rank of batch gradients, Don't
Shuffle, Optimize; loss by source and along the data, TokenShard (On Shuffling Tokens).
Known weakness: trainings differ in weights and shuffles, not in the corpus, so an interval is valid for this corpus.
One in twenty differences without a cause is called beyond noise.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.floating]

CONFIDENCE = 0.95
POWER = 0.8
NOTABLE = 0.01
"""Difference, in nats a token, for which the necessary number of trainings is reported."""
MOST_PAIRS = 1_000_000
NO_DIFFERENCE = "no difference beyond noise"
SEAM = 0.05
"""Part of an epoch on either side of the seam whose losses are compared."""
SPIKE = 0.01
"""Part of an epoch after the seam in which the longest gradient is sought."""
SEEN = 1.5
"""Multiple of the median gradient at which a gradient after the seam counts as a jump."""
AROUND = 0.1
"""Part of an epoch on either side of the seam that pictures show."""
PLACES = 100
"""Parts in which losses along the data are averaged."""
RANKED_AT = (0.2, 1.0)
"""Parts of training after which gradients are measured."""
AVERAGES = ("average", "EMA")
"""Averages of the last weights: a plain one of some checkpoints, and an exponential moving one of all steps."""
WEIGHTS = ("last weights", *AVERAGES)
"""The weights that are validated at the end of a training."""


class Trained(NamedTuple):
    """Records of a training. failed: the first step whose loss was not finite; everything after it is NaN. -1 without
    one.

    losses, norms: float32 (T,), nats a token and gradient length of each batch, before its step. heldout: float64
    (E, S), loss after each epoch. averaged: float64 (2, S), loss at the end with each of AVERAGES. remembered: float64
    (10,), loss of the first tenth's sequences after each tenth of the first epoch. ranks: float64 (2, W), stable rank
    of batch gradients, at RANKED_AT. noise: float64 (2,), at the end of the first epoch: the variance of batch
    gradients (summed over entries), and the squared length of their mean.
    """

    losses: Floats
    norms: Floats
    heldout: Floats
    averaged: Floats
    remembered: Floats
    ranks: Floats
    noise: Floats
    failed: int


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


class SeamFigures(NamedTuple):
    """Mean loss `before` and `after` the first seam, and `spike`, the largest gradient norm after it relative to the
    median of the first epoch."""

    before: float
    after: float
    spike: float


def seam(trained: Trained, epoch: int) -> SeamFigures:
    """The first seam of a training with at least two epochs of `epoch` steps each."""
    losses, norms = trained.losses.astype(np.float64), trained.norms.astype(np.float64)
    near, close = max(1, round(SEAM * epoch)), max(1, round(SPIKE * epoch))
    return SeamFigures(
        before=float(losses[epoch - near : epoch].mean()),
        after=float(losses[epoch : epoch + near].mean()),
        spike=float(norms[epoch : epoch + close].max() / np.median(norms[:epoch])),
    )


def along(values: Floats, places: int = PLACES) -> NDArray[np.float64]:
    """Means of at most `places` consecutive parts."""
    parts = np.array_split(values.astype(np.float64), max(1, min(places, len(values))))
    return np.array([part.mean() for part in parts])


def largest_bump(
    losses: Sequence[Floats], reference: Sequence[Floats]
) -> tuple[dict[str, float | None], float]:
    """(estimate of the largest difference between the losses of an epoch in two orders, over parts; its place, 0 to 1).

    Both arguments: R times (e,), one a training. The first tenth, where losses fall fast, is ignored. The interval is
    that of the part with the largest mean difference.
    """
    differences = np.stack([along(own) - along(other) for own, other in zip(losses, reference, strict=True)])
    means = np.nan_to_num(mean(list(differences)))
    first = len(means) // 10
    at = first + int(np.argmax(np.abs(means[first:])))
    return estimate(differences[:, at]), (at + 0.5) / len(means)


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
    paired differences. Lines are lists: `losses` along all epochs, `remembered` after each tenth, and losses and norms
    around the seam.
    """
    last = [np.array([trained.heldout[-1].mean() for trained in each]) for each in (ours, shuffled)]
    figures: dict[str, Any] = {
        "held-out": estimate(last[0]),
        "less shuffled": estimate(last[0] - last[1]),
        "pairs": int(np.isfinite(last[0] - last[1]).sum()),
    }
    losses, norms = mean([trained.losses for trained in ours]), mean([trained.norms for trained in ours])
    if len(losses) >= 2 * epoch:
        seams, others = ([seam(trained, epoch) for trained in each] for each in (ours, shuffled))
        jumps, level = ([trained.after - trained.before for trained in each] for each in (seams, others))
        around = slice(epoch - max(1, round(AROUND * epoch)), epoch + max(1, round(AROUND * epoch)))
        figures |= {
            "before the seam": float(np.mean([trained.before for trained in seams])),
            "after the seam": float(np.mean([trained.after for trained in seams])),
            "jump": estimate(jumps),
            "jump, less shuffled": estimate(np.subtract(jumps, level)),
            "spike": estimate([trained.spike for trained in seams]),
            "spike, less shuffled": estimate(
                [trained.spike - its.spike for trained, its in zip(seams, others, strict=True)]
            ),
            "around the seam": losses[around],
            "norms around the seam": norms[around],
        }
    for kind, of_kind in (("attention", attention), ("feed-forward", ~attention)):
        for at, share in enumerate(RANKED_AT):
            values, of_shuffled = (
                np.array([trained.ranks[at][of_kind].mean() for trained in each]) for each in (ours, shuffled)
            )
            name = f"stable rank, {kind}, {share:.0%}"
            figures |= {name: estimate(values), f"{name}, less shuffled": estimate(values - of_shuffled)}
    noise, of_shuffled = (np.array([trained.noise[0] for trained in each]) for each in (ours, shuffled))
    bump, where = largest_bump(*([trained.losses[:epoch] for trained in each] for each in (ours, shuffled)))
    forgotten, of_others = (
        np.array([trained.remembered[-1] - trained.remembered[0] for trained in each])
        for each in (ours, shuffled)
    )
    return figures | {
        "noise": estimate(noise),
        "noise, less shuffled": estimate(noise - of_shuffled),
        # How much the loss on the first tenth has risen by the end of the epoch.
        "forgotten": estimate(forgotten),
        "forgotten, less shuffled": estimate(forgotten - of_others),
        "remembered": mean([trained.remembered for trained in ours]),
        "bump": bump,
        "bump at": where,
        "losses": along(losses, 2 * PLACES),
    }


def source_figures(
    ours: Sequence[Trained], shuffled: Sequence[Trained], sources: Sequence[str]
) -> list[dict[str, Any]]:
    """Held-out loss of each source after the last epoch, and its difference from shuffled sequences."""
    rows = []
    for at, source in enumerate(sources):
        losses, others = (
            np.array([trained.heldout[-1, at] for trained in each]) for each in (ours, shuffled)
        )
        rows.append({"source": source, "loss": estimate(losses), "less shuffled": estimate(losses - others)})
    return rows


def schedule_figures(
    trained: Mapping[tuple[str, str], Sequence[Trained]],
    shuffled: Mapping[str, str],
    windows: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Held-out losses, mean over sources, at the end of training: a row for each order, learning-rate schedule and kind
    of WEIGHTS.

    trained: the R trainings of each (order, schedule). shuffled: by order, the shuffled sequences it is compared with.
    windows: by order with balanced windows, the order with shuffled windows, if it is trained. Paired differences:
    `less shuffled`, with the same schedule and weights; `less the best shuffled`, with the schedule and weights that
    suit the shuffled sequences best; `less windows shuffled`, for orders in `windows`.
    """
    losses = {
        key: np.array([np.vstack([one.heldout[-1], one.averaged]).mean(axis=1) for one in several]).T
        for key, several in trained.items()
    }

    def best(order: str) -> Floats:
        own = [row for (name, _), rows in losses.items() if name == order for row in rows]
        return min(own, key=lambda row: estimate(row)["mean"] or math.inf)

    rows = []
    for (order, schedule), of_weights in losses.items():
        for at, weights in enumerate(WEIGHTS):
            others = {
                "less shuffled": losses[shuffled[order], schedule][at],
                "less the best shuffled": best(shuffled[order]),
                **(
                    {"less windows shuffled": losses[windows[order], schedule][at]}
                    if order in windows
                    else {}
                ),
            }
            differences = {name: estimate(of_weights[at] - other) for name, other in others.items()}
            key = {"order": order, "schedule": schedule, "weights": weights, "shuffled": shuffled[order]}
            rows.append({**key, "held-out": estimate(of_weights[at]), **differences})
    return rows


def curriculum_verdict(
    rows: Sequence[Mapping[str, Any]], orders: Sequence[Mapping[str, Any]], names: Collection[str], score: str
) -> list[str]:
    """Sentences on what trainings show for orders along a score. rows: `schedule_figures`. orders: `order_figures`,
    with their `order`. names: the orders that follow the score."""
    rows = [row for row in rows if row["less shuffled"]["mean"] is not None]
    along = [row for row in rows if row["order"] in names]
    sentences = []
    for schedule in dict.fromkeys(row["schedule"] for row in along):
        last = [row for row in along if (row["schedule"], row["weights"]) == (schedule, WEIGHTS[0])]
        sentences.append(
            f"Along {score}, learning rate {schedule}, less shuffled: {_sorted_out(last, 'less shuffled')}."
        )
        if pairs := [row for row in last if "less windows shuffled" in row]:
            sentences.append(
                f"Windows balanced less shuffled: {_sorted_out(pairs, 'less windows shuffled')}."
            )
    for shuffled in dict.fromkeys(row["shuffled"] for row in along):
        base, ours = (
            min(
                (row for row in every if row["shuffled"] == shuffled), key=lambda row: row["held-out"]["mean"]
            )
            for every in ([row for row in rows if row["order"] == shuffled], along)
        )
        tried = sum(row["shuffled"] == shuffled for row in along)
        less = ours["less the best shuffled"]
        sentences.append(
            f"{shuffled} does best with learning rate {base['schedule']}, {base['weights']}: "
            f"{base['held-out']['mean']:.4f}; of {tried} results along {score} the best is {ours['order']} with "
            f"{ours['schedule']}, {ours['weights']}: {ours['held-out']['mean']:.4f}, difference {with_interval(less)}: "
            f"{_kind(less)}."
        )
    jumps = [row for row in orders if row["order"] in names and "jump" in row]
    if seen := [row for row in jumps if (row["jump, less shuffled"]["low"] or 0) > 0]:
        listed = ", ".join(f"{row['order']} {with_interval(row['jump, less shuffled'], 3)}" for row in seen)
        sentences.append(f"At the seam the loss jumps by more than that of shuffled sequences: {listed}.")
    return sentences


def _sorted_out(rows: Sequence[Mapping[str, Any]], figure: str) -> str:
    """The orders of rows, grouped by whether a difference is beyond noise; with its interval if it is."""
    kinds: dict[str, list[str]] = {}
    for row in rows:
        kind = _kind(row[figure])
        interval = "" if kind == NO_DIFFERENCE else f" {with_interval(row[figure])}"
        kinds.setdefault(kind, []).append(f"{row['order']}{interval}")
    return "; ".join(f"{kind}: {', '.join(listed)}" for kind, listed in sorted(kinds.items()))


def _kind(difference: Mapping[str, Any]) -> str:
    if difference["low"] is None:
        return "one training each, so the noise is unknown"
    if not is_beyond_noise(difference):
        return NO_DIFFERENCE
    return f"{'better' if difference['mean'] < 0 else 'worse'} beyond noise"


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
    sentences = [
        f"Held-out loss, mean over sources: {name} {ours['held-out']['mean']:.4f}, the same sequences shuffled "
        f"{shuffled['held-out']['mean']:.4f}, difference {with_interval(less)}: {_kind(less)}."
    ]
    if "spike" not in ours:
        return [*sentences, "One epoch, so there is no seam."]
    shown = [order for order in dict.fromkeys(["original", name, reference]) if order in rows]
    jumps, spikes = ([rows[order][what]["mean"] for order in shown] for what in ("jump", "spike"))
    seen = [order for order in shown if is_seam(rows[order])]
    return [
        *sentences,
        f"At the seam of the epochs the loss jumps by {_listed(shown, jumps, '+.3f')}, and the gradient is "
        f"{_listed(shown, spikes, '.2f')} times its median: a seam is seen in {' and '.join(seen) or 'none'}.",
    ]


def sensitivity(figures: Mapping[str, Any], tokens: int) -> str:
    """How many trainings would show a difference of NOTABLE; "" if the order differs from shuffled sequences beyond
    noise.

    figures: `order_figures` of the order. tokens: read by a training.
    """
    less, pairs = figures["less shuffled"], figures["pairs"]
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
        f"{needed:,} seeds (evidence.seeds, now {pairs}) show {shown}, {by}: {needed * tokens:,} tokens of training "
        "for each order; more tokens a training (evidence.tokens) lower the spread."
    )


def is_seam(figures: Mapping[str, Any]) -> bool:
    """Whether, beyond noise, the loss jumps at the seam by more than with shuffled sequences, or the gradient reaches
    SEEN times its median."""
    low, spike = figures["jump, less shuffled"]["low"], figures["spike"]["mean"]
    return (low is not None and low > 0) or (spike is not None and spike >= SEEN)


def _listed(names: Sequence[str], values: Sequence[float | None], form: str) -> str:
    return ", ".join(
        f"{name} {'–' if value is None else format(value, form)}"
        for name, value in zip(names, values, strict=True)
    )
