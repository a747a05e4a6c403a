"""Steps of a training whose loss stands out, and what they read: `divorder where --loss FILE`.

A loss stands out if it exceeds the median of the losses around it by more than SPREADS standard deviations (from the
median absolute deviation of neighbouring differences), and by more than TOLERANCE of it. Windows are symmetric, so
a loss that falls steadily does not stand out.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dagster_divorder.errors import InputError
from dagster_divorder.forensics import where
from dagster_divorder.settings import Settings

STEPS = ("step", "global_step", "iteration", "iter", "_step", "trainer/global_step")
LOSSES = (
    "loss",
    "train_loss",
    "train/loss",
    "lm loss",
    "lm_loss",
    "training_loss",
    "loss_metrics/global_avg_loss",
)
"""Names that trainers give to steps and to the training loss, the most common first."""
SIDE, FEWEST = 25, 3
"""Most and fewest logged losses on each side of one that it is compared with."""
SPREADS, TOLERANCE = 6.0, 0.01
"""Standard deviations, and part of the expected loss, that an excess has to exceed."""
SIGMA = 1.4826
"""The standard deviation of normal numbers over their median absolute deviation."""
MOST_SPIKES, MOST_VALUES, MOST_DOCUMENTS = 5, 3, 5
AROUND = 10
"""Steps before and after a spike whose mix it is compared with."""


class Losses(NamedTuple):
    """A log: loss k is the mean over the steps [first[k], end[k]), from 0. first, end: int64 (n,); loss: float64
    (n,)."""

    first: np.ndarray
    end: np.ndarray
    loss: np.ndarray


def read_losses(file: Path) -> Losses:
    """The losses that a trainer has logged: JSON lines or CSV with a step and a loss, or transformers'
    trainer_state.json. Lines without a loss, such as those of evaluations, are left out; of several with one step, as
    after a resume, the last counts.

    Trainers count finished steps: step 1 in the log is step 0 of the plan. A log that begins with step 0 counts from 0.

    Raises:
        InputError: the file cannot be read, or holds fewer than two losses.
    """
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read ({error}); expected a log of steps and losses") from None
    losses: dict[int, float] = {}
    for row in _rows(text):
        step, loss = _named(row, STEPS), _named(row, LOSSES)
        if step is not None and loss is not None:
            losses[int(step)] = loss
    if len(losses) < 2:
        raise InputError(
            f"{file} names {len(losses)} losses; expected lines of JSON, or CSV, with a step ({', '.join(STEPS)}) and "
            f"a loss ({', '.join(LOSSES)})"
        )
    steps = np.array(sorted(losses), np.int64)
    done = steps + (steps[0] == 0)
    # The first logged loss is the mean over as many steps as the second.
    before = np.append(max(2 * done[0] - done[1], 0), done[:-1])
    return Losses(before, done, np.array([losses[step] for step in steps.tolist()]))


def _rows(text: str) -> Iterable[Mapping[str, Any]]:
    # Python's own parser reads NaN and Infinity, which trainers write.
    try:
        state = json.loads(text)
    except json.JSONDecodeError:
        state = None
    if isinstance(state, dict):
        return [row for row in state.get("log_history", [state]) if isinstance(row, dict)]
    if not text.lstrip().startswith("{"):
        return csv.DictReader(text.splitlines())
    rows = []
    for line in text.splitlines():
        # The last line may still be being written.
        with contextlib.suppress(json.JSONDecodeError):
            rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict)]


def _named(row: Mapping[str, Any], names: Sequence[str]) -> float | None:
    for name in names:
        with contextlib.suppress(TypeError, ValueError):
            if row.get(name) not in (None, ""):
                return float(row[name])
    return None


class Spike(NamedTuple):
    """Losses next to each other that stand out: their places [first, last], that of the highest, and the loss expected
    there."""

    first: int
    last: int
    peak: int
    expected: float


def outstanding(loss: Sequence[float] | np.ndarray) -> list[Spike]:
    """The losses (n,) that stand out above those around them, the farthest first. A loss that is no finite number
    stands out most."""
    values = np.asarray(loss, np.float64)
    known = np.flatnonzero(np.isfinite(values))
    finite, scores = values[known], dict[int, tuple[float, float]]()
    steps = np.diff(finite)
    for at in range(FEWEST, len(finite) - FEWEST):
        side = min(SIDE, at, len(finite) - 1 - at)
        expected = float(np.median(finite[at - side : at + side + 1]))
        excess = float(finite[at]) - expected
        if excess <= 0 or excess < TOLERANCE * abs(expected):
            continue
        # The noise of neighbouring differences, which a trend hardly changes.
        near = steps[max(0, at - SIDE) : at + SIDE]
        if excess > SPREADS * SIGMA / math.sqrt(2) * np.median(np.abs(near - np.median(near))):
            scores[int(known[at])] = (excess, expected)
    for at in np.flatnonzero(~np.isfinite(values)).tolist():
        before = known[known < at]
        scores[at] = (math.inf, float(values[before[-1]]) if len(before) else math.nan)
    places = np.array(sorted(scores), np.int64)
    spikes = []
    for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1) if len(places) else []:
        peak = max(run.tolist(), key=lambda at: scores[at][0])
        spikes.append(Spike(int(run[0]), int(run[-1]), peak, scores[peak][1]))
    return sorted(spikes, key=lambda spike: -scores[spike.peak][0])[:MOST_SPIKES]


def loss_spikes(settings: Settings, file: Path, plan: str | None = None) -> list[dict[str, Any]]:
    """The steps of a training whose loss stands out, the farthest first, as plain values: `steps` [first, last] of the
    plan, from 0; `loss`, the highest of them; `expected`, the median around it; `mix`, the sources and clusters whose
    share of the tokens exceeds that of the steps around most, each {"trait", "value", "share", "around"}; `documents`,
    those with the most tokens in these steps and values: {"id", "tokens", "source", "cluster_name", "first_words"}.

    Raises:
        InputError: see `read_losses` and `where`.
    """
    log, spikes = read_losses(file), []
    named = outstanding(log.loss)
    standing_out = {step for spike in named for step in range(log.first[spike.first], log.end[spike.last])}
    for spike in named:
        first, end = int(log.first[spike.first]), int(log.end[spike.last])
        read = where(settings, steps=range(first, end), plan=plan)
        near = range(max(0, first - AROUND), min(int(log.end[-1]), end + AROUND))
        around = where(settings, steps=[step for step in near if step not in standing_out], plan=plan)
        mix = []
        for trait in ("source", "cluster_name"):
            shares, others = (part.groupby(trait).tokens.sum() / part.tokens.sum() for part in (read, around))
            for value, share in shares.items():
                row = {"trait": trait, "value": value, "share": share, "around": others.get(value, 0.0)}
                mix += [row] if row["share"] > row["around"] else []
        mix = sorted(mix, key=lambda row: row["around"] - row["share"])[:MOST_VALUES]
        of_mix = [read[row["trait"]] == row["value"] for row in mix]
        suspects = read[np.logical_or.reduce(of_mix)] if mix else read
        grouped = suspects.groupby("id", sort=False).agg(
            {"tokens": "sum", "source": "first", "cluster_name": "first", "first_words": "first"}
        )
        spikes.append(
            {
                "steps": [first, end - 1],
                "loss": float(log.loss[spike.peak]),
                "expected": spike.expected,
                "mix": mix,
                "documents": grouped.nlargest(MOST_DOCUMENTS, "tokens").reset_index().to_dict("records"),
            }
        )
    return spikes
