"""What trainings in several orders tell of the orders: differences with their noise, and the seam between epochs.

Letters: R trainings of an order (seeds), T steps of all E epochs, e steps of one, S sources, W weight matrices.
Differences are paired: the same seed, so the same weights to begin with, on either side. An interval is Student's, of
95 %: with three trainings 2.5 standard deviations each way, so that what is called beyond noise seldom is noise.
Power is that of the same interval: how many pairs show a difference of NOTABLE four times in five.
Sources: Student 1908; the epoch boundary, Diversity-Ordered Training; the stable rank of batch gradients, Don't
Shuffle, Optimize; loss by source and along the data, TokenShard (On Shuffling Tokens).
Known weakness: trainings differ in weights and shuffles and not in the corpus: an interval tells of this corpus. Of
twenty differences that are none, one is called beyond noise.
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
"""Nats a token: the difference whose price in trainings is told where none is beyond noise."""
MOST_PAIRS = 1_000_000
SEAM = 0.05
"""Part of an epoch on either side of the seam whose losses are compared."""
SPIKE = 0.01
"""Part of an epoch behind the seam in which the longest gradient is looked for."""
SEEN = 1.5
"""Times its median from which on a gradient at the seam says that there is one."""
AROUND = 0.1
"""Part of an epoch on either side of the seam that is drawn."""
PLACES = 100
"""Parts in which losses along the data are averaged."""
RANKED_AT = (0.2, 1.0)
"""Parts of training at whose end gradients are looked at."""


class Trained(NamedTuple):
    """What a training noted; NaN from the step `failed` on, where the loss was no number, -1 where it always was.

    losses, norms: float32 (T,), of each batch before its step: nats a token, length of the gradient. heldout: float64
    (E, S), after each epoch. remembered: float64 (10,), loss of the first tenth's sequences after each tenth of the
    first epoch. ranks: float64 (2, W), stable rank of batch gradients, at RANKED_AT. noise: float64 (2,): how far the
    gradients of batches vary about their mean at the end of the first epoch (the sum of the variances of all numbers),
    and the squared length of that mean.
    """

    losses: Floats
    norms: Floats
    heldout: Floats
    remembered: Floats
    ranks: Floats
    noise: Floats
    failed: int


def estimate(values: ArrayLike) -> dict[str, float | None]:
    """`mean` of the R values of one thing, or of differences, its standard `error`, and the ends `low` and `high` of
    its interval. Values that are NaN are left out; what too few of them tell is None."""
    from scipy.special import stdtrit

    known = np.asarray(values, np.float64)
    known = known[~np.isnan(known)]
    mean = float(known.mean()) if known.size else None
    if mean is None or known.size < 2:
        return {"mean": mean, "error": None, "low": None, "high": None}
    error = float(known.std(ddof=1) / math.sqrt(known.size))
    # Student's quantile. `scipy.stats` asks the same function, and takes half a second to import.
    reach = float(stdtrit(known.size - 1, (1 + CONFIDENCE) / 2)) * error
    return {"mean": mean, "error": error, "low": mean - reach, "high": mean + reach}


def is_beyond_noise(difference: Mapping[str, float | None]) -> bool:
    """Whether the interval of an estimate is known and leaves out zero."""
    low, high = difference["low"], difference["high"]
    return low is not None and high is not None and (low > 0 or high < 0)


def power(pairs: int, difference: float, spread: float) -> float:
    """How often R = `pairs` paired trainings call a true difference beyond noise, in its own direction:

        P(t > q) = 1 - F(q; R - 1, difference sqrt(R) / spread)

    where q is Student's quantile of 97.5 % at R - 1 degrees of freedom, and F the noncentral t distribution.

    spread: standard deviation of the differences of pairs, above 0.
    """
    from scipy.special import nctdtr, stdtrit

    quantile = stdtrit(pairs - 1, (1 + CONFIDENCE) / 2)
    return 1.0 - float(nctdtr(pairs - 1, difference * math.sqrt(pairs) / spread, quantile))


def pairs_to_show(difference: float, spread: float) -> int | None:
    """The fewest pairs with a `power` of POWER, 2 at least; None where they are more than MOST_PAIRS.

    For many pairs ((z_0.975 + z_0.8) spread / difference)^2, where z are the normal distribution's quantiles; Student's
    are larger, so the search begins there.
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
    """Mean loss `before` and `after` the first seam, and the gradient's `spike`: the greatest norm right behind it over
    the median of the first epoch."""

    before: float
    after: float
    spike: float


def seam(trained: Trained, epoch: int) -> SeamFigures:
    """Of a training of two epochs or more, of `epoch` steps each."""
    losses, norms = trained.losses.astype(np.float64), trained.norms.astype(np.float64)
    near, close = max(1, round(SEAM * epoch)), max(1, round(SPIKE * epoch))
    return SeamFigures(
        before=float(losses[epoch - near : epoch].mean()),
        after=float(losses[epoch : epoch + near].mean()),
        spike=float(norms[epoch : epoch + close].max() / np.median(norms[:epoch])),
    )


def along(values: Floats, places: int = PLACES) -> NDArray[np.float64]:
    """Means of consecutive parts, as many as places where there are so many values."""
    parts = np.array_split(values.astype(np.float64), max(1, min(places, len(values))))
    return np.array([part.mean() for part in parts])


def largest_bump(
    losses: Sequence[Floats], reference: Sequence[Floats]
) -> tuple[dict[str, float | None], float]:
    """(how far the losses of an epoch stray at most from those of another order, by parts; where, 0 to 1).

    Both R times (e,), training by training; the first tenth, in which both fall fast, is left out. The interval is that
    of the part which strays most on average.
    """
    differences = np.stack([along(own) - along(other) for own, other in zip(losses, reference, strict=True)])
    means = np.nan_to_num(mean(list(differences)))
    first = len(means) // 10
    at = first + int(np.argmax(np.abs(means[first:])))
    return estimate(differences[:, at]), (at + 0.5) / len(means)


def mean(values: Sequence[Floats]) -> NDArray[np.float64]:
    """Over trainings, whatever failed left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of all that failed the mean is NaN
        averages: NDArray[np.float64] = np.nanmean(np.stack(values).astype(np.float64), axis=0)
    return averages


def order_figures(
    ours: Sequence[Trained], shuffled: Sequence[Trained], epoch: int, attention: NDArray[np.bool_]
) -> dict[str, Any]:
    """What the R trainings of an order show, beside those of shuffled sequences from the same weights.

    epoch: e. attention: bool (W,), which matrices are attention's. Estimates are as of `estimate`; `less shuffled` are
    differences. Lines are lists: `losses` along all epochs, `remembered` after each tenth, and around the seam.
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
        # What the first tenth costs at the end of the epoch more than right after it was read.
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
    """The held-out loss of each source after the last epoch, and less that of shuffled sequences."""
    rows = []
    for at, source in enumerate(sources):
        losses, others = (
            np.array([trained.heldout[-1, at] for trained in each]) for each in (ours, shuffled)
        )
        rows.append({"source": source, "loss": estimate(losses), "less shuffled": estimate(losses - others)})
    return rows


def verdict(rows: Mapping[str, Mapping[str, Any]], name: str, reference: str) -> list[str]:
    """Two sentences: whether the models of an order differ from those of shuffled sequences in what they have learnt,
    and the seam. rows: `order_figures` by order."""
    ours, shuffled = rows[name], rows[reference]
    less = ours["less shuffled"]
    if less["mean"] is None:
        return [f"Nothing can be said of {name}: its trainings, or those in random order, failed.", ""]
    if less["low"] is None:
        finding = "one training each, which says nothing of noise"
    else:
        interval = f"({less['low']:+.4f} to {less['high']:+.4f})"
        better = "better" if less["mean"] < 0 else "worse"
        beyond = f"{better} beyond noise" if is_beyond_noise(less) else "no difference beyond noise"
        finding = f"{interval}: {beyond}"
    sentences = [
        f"Held-out loss, mean over sources: {name} {ours['held-out']['mean']:.4f}, the same sequences shuffled "
        f"{shuffled['held-out']['mean']:.4f}, difference {less['mean']:+.4f} {finding}."
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
    """Where an order does not differ beyond noise from shuffled sequences: how many trainings would show a difference
    of NOTABLE; else "". figures: `order_figures` of the order. tokens: that a training reads."""
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
    """Whether the loss jumps at the seam by more than under shuffled sequences, beyond noise, or the gradient is SEEN
    times its median."""
    low, spike = figures["jump, less shuffled"]["low"], figures["spike"]["mean"]
    return (low is not None and low > 0) or (spike is not None and spike >= SEEN)


def _listed(names: Sequence[str], values: Sequence[float | None], form: str) -> str:
    return ", ".join(
        f"{name} {'–' if value is None else format(value, form)}"
        for name, value in zip(names, values, strict=True)
    )
