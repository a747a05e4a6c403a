"""The path of the totals: straight, along a mix that moves, or from a frozen prefix back to the mix.

Letters: M items, J trait values, G groups, P rows of the table or segments of the path, W totals of the whole.

A table of targets gives shares sigma_j at points of progress p, the consumed share of group 0's tokens. Shares are
linear in between, so the wanted totals X_j(p) = W_g integral of sigma_j are piecewise quadratic and have a closed form.
All items are consumed in the end, so X_j(1) must be the whole's total W_j. The table is scaled to it: sigma'_ij = a_i
b_j sigma_ij with rows that still sum to 1 in each group (iterative proportional fitting, which keeps odds ratios).

If a frozen prefix has too much of a value, its total T_j stays until the mix has caught up, and the other values share
the
rest: Y_j = max(T_j, X_j(theta)) in each group, with theta such that the Y_j sum to the tokens consumed. No total falls,
and all meet X as soon as the items allow.

Source: Deming and Stephan 1940 for the fitting. Known weakness: groups are fitted separately, so a table may ask for
clusters and lengths that no items combine; the order then follows as closely as it can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.order.problem import Problem, Targets, mix
from dagster_divorder.errors import InputError

if TYPE_CHECKING:
    from dagster_divorder.core.kernels.order_greedy import Path

Floats = NDArray[np.float64]

SEGMENTS = 64
"""Straight pieces of the way back from a frozen prefix; also the most segments that items are dealt to."""

# Shares of a group must sum to 1 within SUM_TOLERANCE. The fit ends at FIT_TOLERANCE or after FIT_ROUNDS.
SUM_TOLERANCE = 1e-6
FIT_TOLERANCE = 1e-9
FIT_ROUNDS = 10_000


def check_targets(targets: Targets, groups: NDArray[np.int32]) -> None:
    """InputError if progress does not rise from 0 to 1, or shares are negative or do not sum to 1."""
    progress, shares = np.asarray(targets.progress), np.asarray(targets.shares)
    if progress.ndim != 1 or len(progress) < 2 or shares.shape != (len(progress), len(groups)):
        raise InputError(
            f"targets have progress of shape {progress.shape} and shares of shape {shares.shape}; expected (P,) with "
            f"P >= 2 and (P, {len(groups)}), one share for each column of counts"
        )
    if progress[0] != 0 or progress[-1] != 1 or not (np.diff(progress) > 0).all():
        raise InputError(
            f"targets.progress is {progress.tolist()}; expected numbers rising from 0 to 1, both included"
        )
    if (wrong := np.argwhere(~(np.isfinite(shares) & (shares >= 0)))).size:
        row, value = wrong[0]
        raise InputError(
            f"targets ask for a share of {shares[row, value]} of trait value {value} at progress {progress[row]}; "
            "expected 0 or more"
        )
    for group in range(groups.max(initial=-1) + 1):
        sums = shares[:, groups == group].sum(axis=1)
        if (off := np.flatnonzero(np.abs(sums - 1) > SUM_TOLERANCE)).size:
            raise InputError(
                f"the targets of group {group} at progress {progress[off[0]]} sum to {sums[off[0]]:.6g}; expected 1: "
                "divide them by their sum"
            )


def fitted_shares(targets: Targets, groups: NDArray[np.int32], totals: Floats) -> Floats:
    """Shares of the table, scaled to the totals, float64 (P, J): the integral over progress is each value's share of
    its group.

    totals: float64 (J,), of the whole. A group without tokens keeps its shares.

    Raises:
        InputError: a value has tokens but a share of 0 throughout, or the table leaves no way to place all tokens.
    """
    progress, fitted = np.asarray(targets.progress, np.float64), np.array(targets.shares, np.float64)
    # The integral of a piecewise linear function is this weighted sum of its values at the knots.
    widths = np.diff(progress)
    parts = 0.5 * (np.append(widths, 0.0) + np.append(0.0, widths))
    for group in range(groups.max(initial=-1) + 1):
        columns = np.flatnonzero(groups == group)
        wanted = totals[columns]
        if not wanted.sum() > 0:
            continue
        wanted = wanted / wanted.sum()
        shares = fitted[:, columns] * (wanted > 0)
        missing = (shares.sum(axis=0) == 0) & (wanted > 0)
        if missing.any():
            value = columns[np.argmax(missing)]
            raise InputError(
                f"trait value {value} (group {group}) has {totals[value]:g} tokens but a target share of 0 throughout; "
                "expected a share above 0 somewhere, or its items left out"
            )
        if (empty := np.flatnonzero(shares.sum(axis=1) == 0)).size:
            raise InputError(
                f"at progress {progress[empty[0]]} the targets of group {group} ask only for trait values without "
                "tokens; expected at least one value that has tokens"
            )
        error = np.inf
        for _ in range(FIT_ROUNDS):
            shares /= shares.sum(axis=1, keepdims=True)
            reached = parts @ shares
            error = np.abs(reached - wanted).max()
            if error <= FIT_TOLERANCE:
                break
            shares *= np.divide(wanted, reached, out=np.zeros_like(wanted), where=reached > 0)
        if not error <= SUM_TOLERANCE:
            reached = parts @ (shares / shares.sum(axis=1, keepdims=True))
            worst = int(np.argmax(np.abs(reached - wanted)))
            raise InputError(
                f"the targets of group {group} cannot place everything: trait value {columns[worst]} has "
                f"{wanted[worst]:.4g} of its group's tokens and room for {reached[worst]:.4g}; expected shares above 0 "
                "in more places"
            )
        fitted[:, columns] = shares
    return fitted


def straight_path(problem: Problem) -> Path:
    """The whole's own mix from beginning to end, one segment."""
    from dagster_divorder.core.kernels.order_greedy import Path

    totals = _group_totals(problem.whole.values, problem)
    none = np.zeros((1, len(problem.groups)))
    return Path(
        at=np.zeros(1),
        reached=none,
        share=mix(problem.whole.values, problem.groups)[np.newaxis],
        drift=none,
        passed=np.zeros((1, len(totals))),
        growth=(totals / (totals[0] or 1.0))[np.newaxis],
    )


def target_path(problem: Problem) -> Path:
    """The path along `problem.targets` if there are any (and any tokens), else straight."""
    from dagster_divorder.core.kernels.order_greedy import Path

    totals = _group_totals(problem.whole.values, problem)
    if problem.targets is None or not totals[0] > 0:
        return straight_path(problem)
    # Arrays in column order would make kernels compile again.
    shares = np.ascontiguousarray(fitted_shares(problem.targets, problem.groups, problem.whole.values))
    progress = np.asarray(problem.targets.progress, np.float64)
    widths = np.diff(progress)[:, np.newaxis]
    steps = 0.5 * (shares[1:] + shares[:-1]) * widths
    reached = (np.cumsum(steps, axis=0) - steps) * totals[problem.groups]
    growth = np.broadcast_to(totals / totals[0], (len(widths), len(totals))).copy()
    return Path(
        at=progress[:-1] * totals[0],
        reached=reached,
        share=shares[:-1].copy(),
        drift=np.diff(shares, axis=0) / (widths * totals[0]),
        passed=progress[:-1, np.newaxis] * totals,
        growth=growth,
    )


def reached_at(path: Path, groups: NDArray[np.int32], tokens: Floats) -> Floats:
    """X, float64 (n, J): the wanted totals after `tokens` of group 0, float64 (n,), if every group keeps its pace."""
    segment: Any = 0  # a straight path has only this one
    if len(path.at) > 1:
        segment = np.maximum(np.searchsorted(path.at, tokens, side="right") - 1, 0)
    x = (tokens - path.at[segment])[:, np.newaxis]
    grown = path.growth[segment][..., groups]
    return path.reached[segment] + grown * x * (path.share[segment] + 0.5 * x * path.drift[segment])


def path_back(problem: Problem) -> Path:
    """From `problem.placed` to the end, straight between SEGMENTS + 1 points: Y in the module's docstring."""
    from dagster_divorder.core.kernels.order_greedy import Path, where_sums_are

    groups = problem.groups
    begin, end = (_group_totals(t.values, problem) for t in (problem.placed, problem.whole))
    if not end[0] > begin[0]:
        return target_path(problem)
    towards = target_path(problem)
    portion = np.linspace(0.0, 1.0, SEGMENTS + 1)
    sums = begin + portion[:, np.newaxis] * (end - begin)
    points = np.empty((SEGMENTS + 1, len(groups)))
    for group in range(len(begin)):
        columns = np.flatnonzero(groups == group)
        of_group = towards._replace(
            reached=towards.reached.take(columns, axis=1),
            share=towards.share.take(columns, axis=1),
            drift=towards.drift.take(columns, axis=1),
        )
        placed = problem.placed.values[columns]
        theta = where_sums_are(sums[:, group].copy(), of_group, group, placed, end[0])
        points[:, columns] = np.maximum(placed, reached_at(of_group, groups[columns], theta))
    points[0], points[-1] = problem.placed.values, problem.whole.values
    rises = np.diff(points, axis=0)
    return Path(
        at=sums[:-1, 0].copy(),
        reached=points[:-1].copy(),
        share=np.stack([mix(rise, groups) for rise in rises]),
        drift=np.zeros_like(rises),
        passed=sums[:-1].copy(),
        growth=np.broadcast_to((end - begin) / (end[0] - begin[0]), (SEGMENTS, len(begin))).copy(),
    )


def _group_totals(values: Floats, problem: Problem) -> Floats:
    return np.bincount(problem.groups, weights=values, minlength=len(problem.weights)).astype(np.float64)
