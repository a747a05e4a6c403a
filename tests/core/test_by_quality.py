"""Repeats by quality: they rise with it, keep within their cap, and leave each topic its tokens."""

import math
import re

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dagster_divorder.core.mix.by_quality import (
    LEFT_OUT,
    MISSING,
    STEEPEST,
    TIERS,
    Tiers,
    cut_tiers,
    plan_tiers,
    tier_name,
)
from dagster_divorder.core.mix.mixing import MixPlan, even_order, plan_mix, realised, times_of
from dagster_divorder.errors import InputError
from tests.conftest import examples

Records = list[tuple[int, int, float]]
records = st.lists(
    st.tuples(
        st.integers(0, 60) | st.integers(0, 3000),
        st.integers(0, 3),
        st.floats(-5, 5) | st.integers(0, 3).map(float) | st.just(math.nan),
    ),
    min_size=1,
    max_size=60,
)


def corpus(drawn: Records) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, int]]:
    """(tokens, topics, quality, sizes) of records."""
    tokens, topics = (np.array([record[part] for record in drawn], np.int64) for part in (0, 1))
    quality = np.array([record[2] for record in drawn])
    sizes = {f"topic {topic}": int(tokens[topics == topic].sum()) for topic in range(4)}
    return tokens, topics, quality, sizes


def planned(
    drawn: Records, rule: str | float, repeats: int, drop: float, total: int | None
) -> tuple[MixPlan, Tiers, MixPlan]:
    """(the plan of topics, tiers, their plan) of records; only what can be reached."""
    tokens, topics, quality, sizes = corpus(drawn)
    assume(tokens.sum())
    try:
        plan = plan_mix(rule, sizes, total_tokens=total, max_repeats=repeats, drop=drop)
    except InputError as error:
        assert "cannot be reached within mixing.max_repeats" in str(error)
        assume(False)
    tiers = cut_tiers(quality, tokens, topics, drop)
    return plan, tiers, plan_tiers(plan, tiers, repeats)


mixes = {
    "drawn": records,
    "rule": st.sampled_from(["natural", "sqrt", 0.3, "unimax"]),
    "repeats": st.sampled_from([1, 2, 4, 7]),
    "drop": st.sampled_from([0.0, 0.0, 0.1, 0.4, 0.8]),
    "total": st.none() | st.integers(1, 60_000),
}


@given(**mixes)
@settings(max_examples=examples(200))
def test_plans_rise_with_quality_within_the_cap_and_keep_the_tokens_of_topics(
    drawn, rule, repeats, drop, total
):
    plan, tiers, of_tiers = planned(drawn, rule, repeats, drop, total)
    assert (of_tiers.tokens >= 0).all()
    assert (of_tiers.tokens <= repeats * tiers.sizes).all()
    # A token is lost where rounding up would read a tier more often than it may be.
    spare = np.bincount(tiers.topic, of_tiers.tokens, 4) - plan.tokens
    assert (spare <= 0).all() and (spare >= -TIERS).all()
    if not (of_tiers.tokens == repeats * tiers.sizes).any():
        assert spare.tolist() == [0] * 4
    assert of_tiers.shares.sum() == pytest.approx(1)
    for topic in range(4):
        rising = (tiers.topic == topic) & (tiers.number >= LEFT_OUT) & (tiers.sizes > 0)
        # Tokens are whole, so that tiers may be off by one of their size.
        slack = 1 / tiers.sizes[rising]
        assert (np.diff(of_tiers.epochs[rising]) >= -(slack[1:] + slack[:-1])).all()
        without = (tiers.topic == topic) & (tiers.number == MISSING) & (tiers.sizes > 0)
        assert of_tiers.epochs[without] == pytest.approx(
            plan.epochs[topic], abs=1 / max(1, min(tiers.sizes[without], default=1))
        )
        assert not of_tiers.tokens[(tiers.topic == topic) & (tiers.number == LEFT_OUT)].any()


@given(**mixes, seed=st.integers(0, 3))
@settings(max_examples=examples(100))
def test_records_rise_with_quality_within_the_cap_and_topics_keep_their_shares(
    drawn, rule, repeats, drop, total, seed
):
    plan, tiers, of_tiers = planned(drawn, rule, repeats, drop, total)
    tokens, topics, quality, _ = corpus(drawn)
    order = np.random.default_rng(seed).permutation(len(tokens))
    try:
        times = times_of(of_tiers, tokens, tiers.codes, order, topics=tiers.topic)
    except InputError:
        assert plan.tokens.sum() <= tokens.max()
        return
    assert times.max() <= repeats
    epochs = of_tiers.epochs[tiers.codes]
    counted = tokens > 0
    assert (times[counted] >= np.floor(epochs[counted])).all()
    assert (times[counted] <= np.ceil(epochs[counted])).all()
    for topic in range(4):
        ranked = np.flatnonzero((topics == topic) & ~np.isnan(quality) & counted)
        ranked = ranked[np.argsort(quality[ranked], kind="stable")]
        if len(ranked):
            # None is read more often than a better one, but for the once by which whole numbers differ.
            assert (times[ranked] >= np.maximum.accumulate(times[ranked]) - 1).all()
            below = np.array([tokens[ranked][quality[ranked] <= of].sum() for of in quality[ranked]])
            assert not times[ranked][below <= drop * tokens[ranked].sum() * (1 - 1e-9)].any()
        mine = topics == topic
        read = int(tokens[mine] @ times[mine])
        # Tiers make up for each other, so that nothing that fits is left to read.
        room = mine & counted & (times < np.ceil(epochs))
        assert (tokens[room] > of_tiers.tokens[tiers.topic == topic].sum() - read).all()
        assert abs(read - plan.tokens[topic]) <= tokens[mine].max(initial=0) + TIERS


def slow_tiers(drawn: Records, drop: float) -> list[int]:
    """Number of the tier of each record: by its topic's distinct qualities, from the worst up."""
    numbers = [MISSING] * len(drawn)
    for topic in {topic for _, topic, _ in drawn}:
        mine = [at for at, record in enumerate(drawn) if record[1] == topic and not math.isnan(record[2])]
        total = sum(drawn[at][0] for at in mine)
        left_out, groups = 0, []
        for value in sorted({drawn[at][2] for at in mine}):
            end = sum(drawn[at][0] for at in mine if drawn[at][2] <= value)
            size = sum(drawn[at][0] for at in mine if drawn[at][2] == value)
            if drop and end <= drop * total and end < total:
                left_out = end
            else:
                groups.append((value, end - size / 2))
        for at in mine:
            middle = dict(groups).get(drawn[at][2])
            if middle is None:
                numbers[at] = LEFT_OUT
            else:
                rank = (middle - left_out) / max(total - left_out, 1)
                numbers[at] = 1 + min(int(TIERS * rank + 1e-12), TIERS - 1)
    return numbers


@given(drawn=records, drop=st.sampled_from([0.0, 0.25, 0.5]))
def test_tiers_equal_those_of_their_slow_twin(drawn, drop):
    tokens, topics, quality, _ = corpus(drawn)
    tiers = cut_tiers(quality, tokens, topics, drop)
    assert tiers.number[tiers.codes].tolist() == slow_tiers(drawn, drop)
    assert tiers.topic[tiers.codes].tolist() == topics.tolist()
    assert tiers.sizes.sum() == tokens.sum()
    known = ~np.isnan(quality)
    assert (quality[known] >= tiers.lowest[tiers.codes[known]]).all()
    assert (quality[known] <= tiers.highest[tiers.codes[known]]).all()
    assert np.isnan(tiers.lowest[tiers.number == MISSING]).all()


@given(
    sizes=st.lists(st.integers(1, 2000), min_size=1, max_size=30),
    repeats=st.sampled_from([1, 2, 4, 7]),
    drop=st.sampled_from([0.0, 0.25, 0.4]),
    mean=st.floats(0.05, 7),
)
def test_epochs_are_the_mean_of_the_curve_over_each_tier(sizes, repeats, drop, mean):
    """Against a sum over many points of the curve, with its power found by bisection."""
    assume(mean <= repeats * (1 - drop))
    tokens = np.array(sizes)
    topics, quality = np.zeros(len(sizes), np.int64), np.arange(len(sizes)) / 1.0
    total = round(mean * int(tokens.sum()))
    assume(1 <= total <= repeats * (1 - drop) * tokens.sum())
    tiers = cut_tiers(quality, tokens, topics, drop)
    plan = plan_mix("natural", {"all": int(tokens.sum())}, total_tokens=total, max_repeats=repeats, drop=drop)
    made = plan_tiers(plan, tiers, repeats)
    lost = int(tiers.sizes[tiers.number == LEFT_OUT].sum()) / tokens.sum()
    mean = total / int(tokens.sum())
    low, high = 0.0, STEEPEST
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if mean * (middle + 1) / (1 - lost) < repeats else (low, middle)
    at, expected = lost, []
    for size, number in zip(tiers.sizes, tiers.number, strict=True):
        if number == LEFT_OUT:
            expected.append(0.0)
            continue
        points = at + (np.arange(2000) + 0.5) / 2000 * size / tokens.sum()
        expected.append(float(np.mean(mean * (low + 1) / (1 - lost) * ((points - lost) / (1 - lost)) ** low)))
        at += size / tokens.sum()
    assert np.abs(made.epochs - expected).max() <= 1e-3 + 1 / tiers.sizes.min()


def test_the_best_are_read_as_often_as_they_may_be_and_a_flat_curve_reads_all_alike():
    tokens, topics = np.full(2000, 10), np.zeros(2000, np.int64)
    quality = np.random.default_rng(0).permutation(2000).astype(float)

    def epochs(repeats: int, drop: float = 0.0, total: int = 20_000) -> list[float]:
        plan = plan_mix("natural", {"a": 20_000}, total_tokens=total, max_repeats=repeats, drop=drop)
        return plan_tiers(plan, cut_tiers(quality, tokens, topics, drop), repeats).epochs.tolist()

    # p = 1: twice the rank. p = 3: four times its third power.
    assert epochs(2) == pytest.approx([2 * (tier - 0.5) / 10 for tier in range(1, 11)], abs=1e-3)
    assert epochs(4)[-1] == pytest.approx(10 * (1 - 0.9**4), abs=1e-3)
    assert epochs(1) == pytest.approx([1.0] * 10)
    assert epochs(4, total=80_000) == pytest.approx([4.0] * 10)
    assert epochs(2, drop=0.5) == pytest.approx([0.0] + [2.0] * 10)
    # Of ten times as much as is read, the best are not read again: the curve has its limit.
    assert max(epochs(4, total=2_000)) == pytest.approx(0.1 * 10 * (1 - 0.9**5), abs=1e-3)


def test_equal_qualities_share_a_tier_and_a_topic_of_one_quality_is_read_alike():
    tokens = np.full(600, 7)
    topics = np.repeat([0, 1], 300)
    quality = np.where(topics == 0, np.tile([0.0, 1, 2, 3, 4, 5], 100), 3.0)
    plan = plan_mix("natural", {"a": 2100, "b": 2100}, max_repeats=4)
    tiers = cut_tiers(quality, tokens, topics)
    assert np.bincount(tiers.topic).tolist() == [6, 1]
    made = plan_tiers(plan, tiers, 4)
    assert made.epochs[tiers.topic == 1].tolist() == [1.0]
    assert (np.diff(made.epochs[tiers.topic == 0]) > 0).all()
    # What has one quality cannot be left out in part.
    assert cut_tiers(quality, tokens, topics, 0.9).number.tolist()[-1] > LEFT_OUT


def test_a_topic_of_fewer_tokens_than_tiers_and_one_without_quality():
    tokens, topics = np.array([1, 1, 1, 50, 50, 0]), np.array([0, 0, 0, 1, 1, 2])
    quality = np.array([1.0, 2.0, 3.0, math.nan, math.nan, 5.0])
    plan = plan_mix("natural", {"a": 3, "b": 100, "c": 0}, total_tokens=206, max_repeats=4)
    tiers = cut_tiers(quality, tokens, topics)
    made = plan_tiers(plan, tiers, 4)
    times = times_of(made, tokens, tiers.codes, np.arange(6), topics=tiers.topic)
    assert times[3:].tolist() == [2, 2, 1]
    assert times[:3].sum() == 6 and (np.diff(times[:3]) >= 0).all() and times.max() <= 4
    assert [tier_name(number) for number in tiers.number[tiers.topic == 1]] == ["without"]


def test_tiers_are_read_evenly_in_lengths_and_a_long_record_costs_its_topic_no_share():
    random = np.random.default_rng(2)
    tokens = np.ceil(random.lognormal(5, 1, 6000)).astype(np.int64)
    topics, quality = np.repeat(np.arange(30), 200), random.normal(size=6000)
    # Each topic has a record of a tenth of its tokens, the best or another one.
    for topic in range(30):
        mine = np.flatnonzero(topics == topic)
        tokens[mine[0]] = tokens[mine].sum() // 10
        quality[mine[0]] = 9.0 if topic % 2 else quality[mine[0]]
    sizes = {str(topic): int(tokens[topics == topic].sum()) for topic in range(30)}
    plan, tiers = plan_mix("natural", sizes, max_repeats=4), cut_tiers(quality, tokens, topics)
    made = plan_tiers(plan, tiers, 4)
    times = times_of(made, tokens, tiers.codes, random.permutation(6000), topics=tiers.topic)
    read = np.bincount(topics, tokens * times)
    assert np.abs(read / plan.tokens - 1).max() < 0.01
    number = tiers.number[tiers.codes]
    usual = tokens < 2000
    for tier in range(4, 10):
        mine = usual & (number == tier)
        there, chosen = tokens[mine].mean(), np.average(tokens[mine], weights=times[mine])
        assert chosen == pytest.approx(there, rel=0.25)


@pytest.mark.parametrize("drop", [0.0, 0.4])
def test_a_cap_that_binds_is_an_error_whose_remedies_hold(drop):
    sizes = {"a": 1000, "b": 100}
    with pytest.raises(InputError) as caught:
        plan_mix({"a": 0.5, "b": 0.5}, sizes, total_tokens=1000, max_repeats=4, drop=drop)
    said = str(caught.value)
    assert ("of what mixing.drop = 0.4 leaves" in said) == bool(drop)
    repeats = int(re.search(r"max_repeats to (\d+)", said)[1])
    less = int(re.search(r"total_tokens to (\d+)", said)[1])
    for options in ({"max_repeats": repeats, "total_tokens": 1000}, {"max_repeats": 4, "total_tokens": less}):
        plan = plan_mix({"a": 0.5, "b": 0.5}, sizes, drop=drop, **options)
        assert (plan.epochs <= options["max_repeats"] * (1 - drop) + 1e-9).all()


def test_added_records_change_the_times_of_about_as_many():
    random = np.random.default_rng(1)
    tokens = np.ceil(random.lognormal(5, 1, 10_100)).astype(np.int64)
    topics, quality = random.choice(3, 10_100, p=[0.6, 0.3, 0.1]), random.normal(size=10_100)
    draws = random.integers(1 << 64, size=10_100, dtype=np.uint64)
    cluster = random.integers(1 << 64, size=10, dtype=np.uint64)[random.integers(0, 10, 10_100)]

    def times(count: int) -> np.ndarray:
        sizes = np.bincount(topics[:count], tokens[:count]).astype(int).tolist()
        plan = plan_mix("natural", dict(zip("abc", sizes, strict=True)), max_repeats=4)
        tiers = cut_tiers(quality[:count], tokens[:count], topics[:count])
        named = (tiers.topic * 100 + tiers.number).astype(np.uint64)[tiers.codes]
        order = even_order([named, cluster[:count]], draws[:count])
        return times_of(plan_tiers(plan, tiers, 4), tokens[:count], tiers.codes, order, topics=tiers.topic)

    before, after = times(10_000), times(10_100)
    assert (before != after[:10_000]).mean() < 0.03
    assert np.abs(before - after[:10_000]).max() <= 1


@given(drawn=records, seed=st.integers(0, 9))
@settings(max_examples=examples(60))
def test_consumed_records_keep_their_times_and_count_first(drawn, seed):
    plan, tiers, of_tiers = planned(drawn, "natural", 4, 0.0, None)
    tokens, topics, *_ = corpus(drawn)
    order, consumed = np.arange(len(tokens)), np.random.default_rng(seed).choice([0, 0, 0, 1, 3], len(tokens))
    times = times_of(of_tiers, tokens, tiers.codes, order, consumed, tiers.topic)
    assert (times >= consumed).all()
    assert times.max() <= 4
    # What is read beyond a tier's plan is taken from the better tiers, as far as their whole numbers go.
    read = np.bincount(topics, tokens * times, 4)
    spent = np.bincount(topics, tokens * consumed, 4)
    plain = realised(plan, tokens, topics, times_of(of_tiers, tokens, tiers.codes, order, topics=tiers.topic))
    assert (read <= np.maximum(plain.tokens, plan.tokens) + spent).all()
