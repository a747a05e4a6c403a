"""Orders along a schedule: the papers' orders, written slowly, and the laws of windows, epochs and copies."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_matrix

from dagster_divorder.core.kernels.turns import take_turns
from dagster_divorder.core.order import STRATEGIES, order
from dagster_divorder.core.order.curricula import SHAPES, pieces_of, windows_of
from dagster_divorder.core.order.epochs import epoch_orders
from dagster_divorder.core.order.schedule import asked_rank, due_times, folded, through, token_ranks
from dagster_divorder.core.order.spread import spread_order
from dagster_divorder.errors import InputError
from tests.conftest import examples
from tests.twins import turns as twin

every_shape = pytest.mark.parametrize("shape", SHAPES)
laws = settings(max_examples=examples(40), deadline=None)


def equal_items(items: int, tokens: int = 10) -> csr_matrix:
    return csr_matrix((np.full(items, tokens), np.arange(items) % 2, np.arange(items + 1)), shape=(items, 2))


def laid(shape: str, scores: Sequence[float] | NDArray[Any], **options: Any) -> list[float]:
    """The scores along the plain order of the papers."""
    values = np.asarray(scores, float)
    made = order(
        equal_items(len(values)), [0, 0], strategy=shape, scores=values, inside="original", **options
    )
    return values[made].tolist()


def slow_fold(ranked: list[float], folds: int, *, turning: bool) -> list[float]:
    out: list[float] = []
    for fold in range(folds):
        layer = [ranked[at] for at in range(len(ranked)) if at % folds == fold]
        out += layer[::-1] if turning and fold % 2 else layer
    return out


def slow_sections(
    ranked: list[float], sections: int, ratio: float, folds: int, *, turning: bool
) -> list[float]:
    """The rank of an item is its middle: item i of n stands at (i + 1/2) / n."""
    out: list[float] = []
    at = 0.0

    def between(low: float, high: float) -> list[float]:
        return [
            value
            for place, value in enumerate(ranked)
            if low - 1e-9 <= (place + 0.5) / len(ranked) < high - 1e-9
        ]

    for border in range(1, sections):
        low, high = max(at, border / sections - ratio), min(1.0, border / sections + ratio)
        out += between(at, low) + slow_fold(between(low, high), folds, turning=turning)
        at = high
    return out + between(at, 1.0 + 1.0)


@pytest.mark.parametrize("items", [1, 2, 7, 12, 60, 101])
@pytest.mark.parametrize("turning", [False, True])
@pytest.mark.parametrize("folds", [1, 2, 3, 5])
def test_fold_and_zigzag_are_those_of_the_papers(items: int, folds: int, turning: bool) -> None:
    if folds > items:
        return
    ranked = np.random.default_rng(items).permutation(items).astype(float)
    shape = "zigzag" if turning else "fold"
    assert laid(shape, ranked, folds=folds) == slow_fold(sorted(ranked), folds, turning=turning)
    down = laid(shape, ranked, folds=folds, descending=True)
    assert down == [items - 1 - value for value in laid(shape, items - 1 - ranked, folds=folds)]


@pytest.mark.parametrize("items", [1, 3, 40, 97, 240])
@pytest.mark.parametrize("turning", [False, True])
@pytest.mark.parametrize(
    ("sections", "ratio", "folds"),
    [(2, 0.225, 3), (3, 0.075, 2), (1, 0.2, 2), (4, 0.0, 3), (3, 0.4, 2), (5, 0.1, 4), (2, 1.0, 2)],
)
def test_stair_and_saw_are_those_of_the_papers(
    items: int, sections: int, ratio: float, folds: int, turning: bool
) -> None:
    ranked = np.random.default_rng(items).permutation(items).astype(float)
    options = {"sections": sections, "ratio": ratio, "folds": min(folds, items)}
    expected = slow_sections(sorted(ranked), sections, ratio, min(folds, items), turning=turning)
    assert laid("saw" if turning else "stair", ranked, **options) == expected


@pytest.mark.parametrize("ends", ["low-high", "high-low", "low-low", "high-high"])
@pytest.mark.parametrize(("first", "last"), [(0.1, 0.1), (0.25, 0.5), (0.0, 0.3), (1.0, 0.0), (0.5, 0.5)])
def test_segments_take_their_ends_of_the_ranking(ends: str, first: float, last: float) -> None:
    made = np.array(laid("segment", np.arange(200.0), ends=ends, first=first, last=last))
    begins, closes = round(200 * first), round(200 * last)
    front, middle, back = np.split(made, [begins, 200 - closes])
    one, other = ends.split("-")
    left = list(range(200))
    if one == other:
        both = left[: begins + closes] if one == "low" else left[200 - begins - closes :]
        assert sorted([*front, *back]) == both
        if begins > 9 and closes > 9:
            assert front.max() > back.min() and back.max() > front.min()
    else:
        assert sorted(front) == (left[:begins] if one == "low" else left[200 - begins :])
        assert sorted(back) == (left[:closes] if other == "low" else left[200 - closes :])
    for part in (front, middle, back):
        if len(part) > 9:
            assert abs(np.corrcoef(part, np.arange(len(part)))[0, 1]) < 0.7
    assert sorted(made) == left


@st.composite
def point_lists(draw: st.DrawFn) -> list[tuple[float, float]]:
    inner = draw(st.lists(st.integers(1, 19), max_size=4, unique=True))
    progress = [0.0, *sorted(at / 20 for at in inner), 1.0]
    return [(at, draw(st.integers(0, 20)) / 20) for at in progress]


@given(points=point_lists(), items=st.integers(1, 24), seed=st.integers(0, 3))
@laws
def test_points_are_followed_as_well_as_items_allow(
    points: list[tuple[float, float]], items: int, seed: int
) -> None:
    """Against the best assignment of ranks to places, in mean square of the distance from the asked rank."""
    values = np.random.default_rng(seed).permutation(items).astype(float)
    made = laid("points", values, points=points)
    ranks = (np.arange(items) + 0.5) / items
    # Each place asks for the ranks of all of its moments.
    moments = asked_rank(through(points), (np.arange(items * 64) + 0.5) / (items * 64)).reshape(items, 64)
    cost = ((ranks[:, np.newaxis, np.newaxis] - moments) ** 2).mean(axis=2)
    least = cost[linear_sum_assignment(cost)].sum()
    reached = cost[np.array(made, int), np.arange(items)].sum()
    # A line has a whole number of items in each stretch of ranks, so items stand at most as many places from their due
    # time as there are points.
    assert reached <= least + items * (len(points) / items) ** 2 + 1e-9
    assert sorted(made) == sorted(values)


@every_shape
@given(
    tokens=st.lists(st.one_of(st.integers(0, 40), st.just(100_000)), min_size=5, max_size=60),
    data=st.data(),
)
@laws
def test_no_item_leaves_its_window_and_the_input_order_does_not_matter(
    shape: str, tokens: list[int], data: st.DataObject
) -> None:
    items, random = len(tokens), np.random.default_rng(data.draw(st.integers(0, 99)))
    scores = random.permutation(items).astype(float)
    window = data.draw(st.sampled_from([0.05, 0.2, 1.0]))
    counts = csr_matrix((np.array(tokens), np.arange(items) % 3, np.arange(items + 1)), shape=(items, 3))
    inside = data.draw(st.sampled_from(["random", "balanced", "stratified"]))
    arguments = {"strategy": shape, "window": window, "scores": scores, "batch": 4}
    plain = order(counts, [0, 0, 0], inside="original", **arguments)
    moved = order(counts, [0, 0, 0], inside=inside, **arguments)
    again = order(counts, [0, 0, 0], inside=inside, **arguments)
    assert np.array_equal(moved, again)
    assert sorted(moved) == sorted(plain) == list(range(items))
    windows = windows_of(np.array(tokens)[plain], window, 4, pieces_of(shape, SHAPES[shape]().model_dump()))
    # Strategies that see traits may leave a window by a quarter of it, and never pass a jump of the schedule.
    for begin, end in pairwise(windows.bounds if inside == "random" else windows.cuts):
        assert set(moved[begin:end]) == set(plain[begin:end])
    window_of = np.empty((2, items), int)
    for row, made in zip(window_of, (plain, moved), strict=True):
        row[made] = np.searchsorted(windows.bounds, np.arange(items), side="right")
    assert np.abs(window_of[0] - window_of[1]).max() <= 1
    if shape not in ("segment", "points"):
        shuffle = random.permutation(items)
        other = order(
            counts[shuffle], [0, 0, 0], inside="original", **{**arguments, "scores": scores[shuffle]}
        )
        assert np.array_equal(scores[shuffle][other], scores[plain])


@given(
    sizes=st.lists(st.sampled_from([0.25, 1.0, 3.0, 50.0]), min_size=1, max_size=40),
    share=st.lists(st.integers(1, 6), min_size=2, max_size=6),
)
@laws
def test_turns_are_those_of_the_twin_and_even_by_token(sizes: list[float], share: list[int]) -> None:
    shares = np.array(share) / sum(share)
    made = take_turns(np.array(sizes), shares)
    assert made.tolist() == twin.take_turns(sizes, shares.tolist())
    reached = np.bincount(made, sizes, len(share)) / shares
    assert reached.max() - reached.min() <= 1.5 * max(sizes) / shares.min() + 1e-9


def test_folds_of_long_and_short_items_have_their_share_of_the_tokens() -> None:
    random = np.random.default_rng(8)
    tokens = np.ceil(random.lognormal(5, 2, 5_000)).astype(int)
    counts = csr_matrix((tokens, np.zeros(5_000, int), np.arange(5_001)), shape=(5_000, 1))
    scores = random.random(5_000)
    made = order(counts, [0], strategy="fold", folds=4, inside="original", scores=scores)
    falls = np.flatnonzero(np.diff(scores[made]) < 0) + 1
    assert np.allclose(np.cumsum(tokens[made])[falls - 1] / tokens.sum(), [0.25, 0.5, 0.75], atol=0.01)


@every_shape
def test_equal_scores_come_in_random_order(shape: str) -> None:
    counts = equal_items(3_000)
    made = order(counts, [0, 0], strategy=shape, inside="original", scores=np.full(3_000, 2.5))
    assert abs(np.corrcoef(made, np.arange(3_000))[0, 1]) < 4 / np.sqrt(3_000)
    assert (np.diff(made) == 1).mean() < 0.01


@every_shape
def test_items_without_a_score_are_spread_evenly(shape: str) -> None:
    random = np.random.default_rng(1)
    scores = np.where(random.random(4_000) < 0.2, np.nan, random.normal(size=4_000))
    made = order(equal_items(4_000), [0, 0], strategy=shape, inside="original", scores=scores)
    missing = np.isnan(scores[made]).reshape(20, -1).mean(axis=1)
    assert np.abs(missing - np.isnan(scores).mean()).max() < 0.02
    # The others follow the schedule as if they were alone.
    known = made[~np.isnan(scores[made])]
    if shape not in ("segment", "points"):
        alone = laid(shape, scores[~np.isnan(scores)])
        assert scores[known].tolist() == alone


@every_shape
@pytest.mark.parametrize("inside", ["random", "balanced"])
def test_strength_0_is_the_order_inside(shape: str, inside: str) -> None:
    random = np.random.default_rng(2)
    counts = csr_matrix(random.integers(0, 9, (400, 4)))
    copies = np.arange(400) // 2
    arguments: dict[str, Any] = {"strategy": shape, "inside": inside, "strength": 0.0}
    arguments["scores"] = random.normal(size=400)
    groups = [0, 0, 1, 1]
    assert np.array_equal(order(counts, groups, **arguments), order(counts, groups, strategy=inside))
    assert np.array_equal(
        spread_order(counts, groups, copies, **arguments),
        spread_order(counts, groups, copies, strategy=inside),
    )
    assert np.array_equal(
        epoch_orders(counts, groups, 2, together=True, **arguments),
        epoch_orders(counts, groups, 2, strategy=inside),
    )


@pytest.mark.parametrize("strength", [0.25, 0.5, 0.9])
def test_as_many_items_follow_the_schedule_as_asked(strength: float) -> None:
    items = 10_000
    scores = np.random.default_rng(3).permutation(items).astype(float)
    ranks = (np.array(laid("rise", scores, strength=strength)) + 0.5) / items
    places = (np.arange(items) + 0.5) / items
    # Of those that are spread, a share of about 0.04 is near its place by chance.
    near = (np.abs(ranks - places) < 0.02).mean()
    assert near == pytest.approx(strength + (1 - strength) * 0.04, abs=0.01)
    tenth = ranks[places < 0.1]
    assert (tenth >= 0.12).mean() == pytest.approx((1 - strength) * 0.88, abs=0.02)


@every_shape
def test_a_consumed_beginning_stays_and_the_rest_continues_the_schedule(shape: str) -> None:
    items = 2_000
    scores = np.random.default_rng(4).permutation(items).astype(float)
    whole = order(equal_items(items), [0, 0], strategy=shape, inside="original", scores=scores)
    frozen = whole[:700]
    made = order(equal_items(items), [0, 0], strategy=shape, inside="original", scores=scores, frozen=frozen)
    assert np.array_equal(made[:700], frozen)
    off = np.abs(scores[made] - scores[whole])[700:]
    if shape == "segment":
        off = np.abs(np.sort(scores[made[1800:]]) - np.sort(scores[whole[1800:]]))
    # What is left is spread over the ranks that the schedule still asks for.
    assert off.max() <= 5


def test_huge_items_stand_where_their_middle_is_due() -> None:
    tokens = np.array([1, 1, 1, 97, 1, 1, 1, 1])
    counts = csr_matrix((tokens, np.zeros(8, int), np.arange(9)), shape=(8, 1))
    made = order(counts, [0], strategy="rise", inside="original", scores=np.arange(8.0))
    assert made.tolist() == list(range(8))
    due = due_times(np.arange(8.0), tokens, pieces_of("fold", {"folds": 2}))
    assert ((due >= 0) & (due <= 1)).all()


def test_items_without_tokens_have_places_of_their_own() -> None:
    random = np.random.default_rng(5)
    tokens = np.where(random.random(500) < 0.5, 0, 8)
    counts = csr_matrix((tokens, np.zeros(500, int), np.arange(501)), shape=(500, 1))
    scores = random.permutation(500).astype(float)
    made = order(counts, [0], strategy="rise", inside="original", scores=scores)
    assert scores[made].tolist() == sorted(scores)


def test_ranks_are_by_token_and_within_what_is_kept() -> None:
    scores = np.array([3.0, 1.0, np.nan, 2.0, 2.0])
    tokens = np.array([1, 2, 5, 4, 1])
    assert np.allclose(
        token_ranks(scores, tokens), [7.5 / 8, 1 / 8, np.nan, 4.5 / 8, 4.5 / 8], equal_nan=True
    )
    kept = [np.array([0, 0, 0, 1, 1])]
    assert np.allclose(token_ranks(scores, tokens, kept), [2.5 / 3, 1 / 3, np.nan, 0.5, 0.5], equal_nan=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scores": None}, "strategy 'saw' follows a score, and scores is None"),
        ({"scores": [1.0, 2.0]}, r"shape \(2,\); expected numbers \(6,\)"),
        ({"scores": [[1.0] * 6]}, r"shape \(1, 6\)"),
        ({"scores": ["a"] * 6}, "expected numbers"),
        ({"scores": [np.inf, 1, 2, 3, 4, 5]}, "scores holds inf; expected finite numbers, or NaN"),
        ({"strategy": "fold", "folds": 7}, "folds is 7, and there are 6 items to order; expected 6 folds at most"),
        ({"strategy": "fold", "folds": 0}, "folds is 0; expected greater than or equal to 1"),
        ({"strength": 1.5}, "strength is 1.5; expected less than or equal to 1"),
        ({"window": 0.0}, "window is 0.0; expected greater than 0"),
        ({"inside": "balancd"}, "inside is 'balancd'; .* did you mean 'balanced'"),
        ({"inside": "rise"}, "inside is 'rise'; expected one of"),
        ({"fold": 2}, "strategy 'saw' has no option 'fold'; .* did you mean 'folds'"),
        ({"strategy": "segment", "first": 0.7, "last": 0.5}, "last is 0.5; with first = 0.7, expected 0.3 at most"),
        ({"strategy": "segment", "ends": "low"}, "ends is 'low'; expected 'low-high'"),
        ({"strategy": "points", "points": [(0, 0), (0.5, 1)]}, r"progress is \[0.0, 0.5\]; expected numbers"),
        ({"strategy": "points", "points": [(0, 0), (0.5, 1), (0.5, 0), (1, 0)]}, "expected numbers that rise"),
        ({"strategy": "points", "points": [(0, 0), (1, 1.5)]}, "rank is 1.5; expected a number from 0 to 1"),
        ({"strategy": "points", "points": [(0, 0), (1, float("nan"))]}, "rank is nan"),
        ({"strategy": "points", "points": []}, "expected numbers that rise"),
    ],
)  # fmt: skip
def test_bad_input_is_named(arguments: dict[str, Any], message: str) -> None:
    given = {"strategy": "saw", "scores": np.arange(6.0), **arguments}
    with pytest.raises(InputError, match=message):
        order(equal_items(6), [0, 0], **given)


def test_options_of_the_strategy_inside_are_taken() -> None:
    assert STRATEGIES["saw"].with_options(inside="f2", f2_lambda=3.0).options["f2_lambda"] == 3.0
    assert STRATEGIES["saw"].with_options(inside="balanced").takes_coordinates
    assert not STRATEGIES["saw"].with_options(inside="random").balances_norms


def mixed(items: int) -> tuple[csr_matrix, NDArray[np.int64], NDArray[np.float64]]:
    """(counts of two traits, groups, scores): the first trait goes with the score, the second does not."""
    random = np.random.default_rng(items)
    scores = random.permutation(items).astype(float)
    first = (scores + random.normal(0, items / 3, items) > items / 2).astype(int)
    second = 2 + random.integers(0, 6, items)
    indices = np.column_stack([first, second]).ravel()
    counts = csr_matrix((np.full(2 * items, 100), indices, np.arange(items + 1) * 2), shape=(items, 8))
    return counts, np.repeat([0, 1], [2, 6]), scores


def window_means(shape: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Means in the windows of an eighth, in whole batches of 8."""
    windows = windows_of(np.ones(len(values)), 1 / 8, 8, pieces_of(shape, SHAPES[shape]().model_dump()))
    return np.array([values[begin:end].mean() for begin, end in pairwise(windows.bounds)])


def spread_of(order_: NDArray[np.int64], items: int) -> NDArray[np.int64]:
    """The least distance of two places of each item, int64 (items,)."""
    places = np.argsort(order_, kind="stable")
    times = np.bincount(order_, minlength=items)
    assert (times == times[0]).all()
    return np.diff(places.reshape(items, -1), axis=1).min(axis=1)


@every_shape
@pytest.mark.parametrize("inside", ["random", "balanced", "original"])
@pytest.mark.parametrize("epochs", [2, 3])
def test_one_schedule_over_all_epochs(shape: str, inside: str, epochs: int) -> None:
    items = 960
    counts, groups, scores = mixed(items)
    options = {"strategy": shape, "inside": inside, "scores": scores, "window": 1 / 8, "batch": 8}
    rows = epoch_orders(counts, groups, epochs, together=True, **options)
    assert rows.shape == (epochs, items)
    assert np.array_equal(rows, epoch_orders(counts, groups, epochs, together=True, **options))
    assert (np.bincount(rows.ravel(), minlength=items) == epochs).all()
    # Every window has the scores that one pass has there.
    plain = order(counts, groups, **{**options, "inside": "original"})
    wanted, reached = (window_means(shape, scores[row]) for row in (plain, rows.ravel()))
    assert np.abs(reached - wanted).max() <= (0.1 if shape == "segment" else 0.01) * items
    apart = spread_of(rows.ravel(), items)
    if shape in ("rise", "fall"):
        # A window has each of its items so often, and an item comes again a part of the window later.
        assert apart.min() >= items // 8 - 2
    else:
        assert np.median(apart) >= items // 8 - 2


def test_copies_in_other_folds_are_a_fold_apart() -> None:
    items = 960
    counts, groups, scores = mixed(items)
    rows = epoch_orders(counts, groups, 2, together=True, strategy="fold", folds=4, scores=scores)
    # Each item comes in two of the four folds, which are half an epoch long.
    assert spread_of(rows.ravel(), items).min() > items / 2 - 2 * items / 32 - 2


@every_shape
def test_a_schedule_in_each_epoch(shape: str) -> None:
    items = 960
    counts, groups, scores = mixed(items)
    options = {"strategy": shape, "inside": "balanced", "scores": scores, "window": 1 / 8, "batch": 8}
    rows = epoch_orders(counts, groups, 3, **options)
    assert np.array_equal(rows[:2], epoch_orders(counts, groups, 2, **options))
    assert np.array_equal(rows[0], order(counts, groups, **options))
    assert (np.sort(rows, axis=1) == np.arange(items)).all()
    means = np.array([window_means(shape, scores[row]) for row in rows])
    assert np.abs(means - means[0]).max() < items / 10
    assert (rows[1] == rows[0]).mean() < 0.1


@given(
    items=st.integers(3, 60),
    epochs=st.integers(1, 4),
    frozen=st.integers(0, 70),
    shape=st.sampled_from(sorted(SHAPES)),
    inside=st.sampled_from(["random", "balanced"]),
    strength=st.sampled_from([0.3, 1.0]),
    missing=st.sampled_from([0.0, 0.3, 1.0]),
)
@laws
def test_what_was_read_of_a_schedule_over_all_epochs_stays(
    items: int, epochs: int, frozen: int, shape: str, inside: str, strength: float, missing: float
) -> None:
    counts, groups, scores = mixed(items)
    scores[np.random.default_rng(0).random(items) < missing] = np.nan
    folds = {"folds": min(2, items)} if "folds" in SHAPES[shape].model_fields else {}
    options: dict[str, Any] = {"strategy": shape, "inside": inside, "scores": scores, "strength": strength}
    options |= folds
    rows = epoch_orders(counts, groups, epochs, together=True, **options)
    consumed = rows.ravel()[:frozen]
    again = epoch_orders(counts, groups, epochs, together=True, frozen=consumed, **options)
    assert np.array_equal(again.ravel()[: len(consumed)], consumed)
    assert (np.bincount(again.ravel(), minlength=items) == epochs).all()


def test_more_than_all_epochs_cannot_be_consumed() -> None:
    counts, groups, scores = mixed(4)
    options: dict[str, Any] = {"strategy": "rise", "scores": scores, "together": True}
    with pytest.raises(InputError, match="frozen names item 1 more than 2 times, once an epoch"):
        epoch_orders(counts, groups, 2, frozen=[1, 1, 1], **options)
    with pytest.raises(InputError, match="frozen names 9 items of 8"):
        epoch_orders(counts, groups, 2, frozen=[0] * 9, **options)


@every_shape
@pytest.mark.parametrize("inside", ["random", "balanced"])
def test_copies_are_spread_inside_windows(shape: str, inside: str) -> None:
    """Everything twice: copies stand half a window apart, or in other folds, and the schedule is followed as without
    copies."""
    items, window = 4_096, 1 / 8
    counts, groups, scores = mixed(items // 2)
    copies = np.tile(np.arange(items // 2), 2)
    counts, scores = counts[copies], scores[copies]
    options: dict[str, Any] = {"strategy": shape, "inside": inside, "scores": scores, "window": window}
    options["batch"] = 16
    made = spread_order(counts, groups, copies, **options)
    plain = order(counts, groups, **options)
    assert sorted(made) == list(range(items))
    apart, together = (spread_of(copies[row], items // 2) for row in (made, plain))
    windows = windows_of(np.ones(items), window, 16, pieces_of(shape, SHAPES[shape]().model_dump()))
    # Not those at the border of two windows, or where the schedule turns.
    assert np.quantile(apart, 0.1) >= 0.9 * np.diff(windows.bounds).min() / 2
    if shape not in ("fold", "zigzag"):
        assert np.quantile(together, 0.1) < 0.2 * items * window
    for begin, end in pairwise(windows.bounds if inside == "random" else windows.cuts):
        assert sorted(scores[made[begin:end]]) == sorted(scores[plain[begin:end]])


def test_items_without_tokens_at_the_end_are_in_the_last_window() -> None:
    windows = windows_of(np.array([5, 0, 4, 6, 0, 0]), 0.5, 2, folded(1))
    assert windows.bounds[[0, -1]].tolist() == windows.cuts[[0, -1]].tolist() == [0, 6]
