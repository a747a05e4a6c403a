"""The mix: shares that sum up, limits that hold, whole records that follow the plan, and messages that help. The share
held out of each source, as laws; copies."""

import re
import unicodedata

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dagster_divorder.core.mix.heldout import choose, folded
from dagster_divorder.core.mix.mixing import (
    POWERS,
    MixPlan,
    even_order,
    plan_mix,
    plan_phases,
    times_of,
)
from dagster_divorder.errors import InputError
from tests.conftest import examples

SIZES = {"news": 6000, "books": 3000, "law": 900, "tldr": 100}
some_sizes = st.lists(st.integers(0, 10**6), min_size=1, max_size=8).filter(any)


def named(sizes: list[int]) -> dict[str, int]:
    return {f"source {number}": size for number, size in enumerate(sizes)}


@given(
    sizes=some_sizes,
    rule=st.sampled_from(sorted(POWERS)) | st.floats(0, 2),
    total=st.none() | st.integers(1, 10**7),
    repeats=st.sampled_from([1, 1.5, 4, 100]),
)
@example(sizes=[291, 30_779_738_867], rule="natural", total=7_229_060_610_349_686, repeats=10**6)
def test_a_plan_sums_to_its_total_within_its_limit(sizes, rule, total, repeats):
    try:
        plan = plan_mix(rule, named(sizes), total_tokens=total, max_repeats=repeats)
    except InputError as error:
        assert "mixing.max_repeats" in str(error)
        # Either there is not enough of all, or the rule weighs values otherwise than by their size.
        assert (total or 0) > repeats * sum(sizes) or rule not in ("natural", "unimax")
        return
    wanted = sum(sizes) if total is None else total
    assert plan.tokens.sum() == wanted
    assert plan.shares.sum() == pytest.approx(1)
    assert np.abs(plan.tokens - plan.shares * wanted).max() <= 1
    assert (plan.tokens <= plan.sizes * repeats + 1).all()
    # More of a value is never fewer tokens of it.
    by_size = plan.shares[np.argsort(plan.sizes, kind="stable")]
    assert (np.diff(by_size) >= -1e-12).all()


def test_rules_give_the_shares_of_their_papers():
    assert plan_mix("natural", SIZES).shares == pytest.approx([0.6, 0.3, 0.09, 0.01])
    roots = np.sqrt([6000, 3000, 900, 100])
    assert plan_mix("sqrt", SIZES).shares == pytest.approx(roots / roots.sum())
    powers = np.array([6000, 3000, 900, 100]) ** 0.3
    assert plan_mix(0.3, SIZES).shares == pytest.approx(powers / powers.sum())
    assert plan_mix(0, SIZES).tokens.tolist() == [2500] * 4


def by_the_algorithm_of_unimax(sizes: list[int], budget: float, repeats: float) -> np.ndarray:
    """The budget dealt from the smallest source up, as in the paper."""
    tokens = np.zeros(len(sizes))
    for dealt, value in enumerate(np.argsort(sizes)):
        tokens[value] = min(budget / (len(sizes) - dealt), sizes[value] * repeats)
        budget -= tokens[value]
    return tokens


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=8), st.integers(1, 10**7), st.integers(1, 8))
def test_unimax_equals_its_twin(sizes, total, repeats):
    assume(total <= repeats * sum(sizes))
    plan = plan_mix("unimax", named(sizes), total_tokens=total, max_repeats=repeats)
    assert np.abs(plan.tokens - by_the_algorithm_of_unimax(sizes, total, repeats)).max() <= 1


def test_shares_of_a_table_are_divided_by_their_sum():
    plan = plan_mix({"tldr": 0.25, "law": 0.75}, SIZES, total_tokens=1200)
    assert plan.tokens.tolist() == [0, 0, 900, 300]
    assert plan.epochs.tolist() == [0, 0, 1, 3]
    plan = plan_mix({"tldr": 1, "law": 3, "news": 0}, SIZES, total_tokens=1200)
    assert plan.tokens.tolist() == [0, 0, 900, 300]
    # By default as many tokens as the values have that are in.
    assert plan_mix({"tldr": 0.2, "law": 0.8}, SIZES).tokens.tolist() == [0, 0, 800, 200]


@given(
    sizes=st.lists(st.integers(1, 10**6), min_size=2, max_size=8),
    weights=st.lists(st.floats(1e-3, 1), min_size=8, max_size=8),
    total=st.integers(100, 10**7),
    repeats=st.sampled_from([1, 2.5, 4]),
)
def test_what_the_message_proposes_can_be_reached(sizes, weights, total, repeats):
    table = dict(zip(named(sizes), weights, strict=False))
    try:
        plan_mix(table, named(sizes), total_tokens=total, max_repeats=repeats)
        return
    except InputError as error:
        said = str(error)
    lower = int(re.search(r"mixing.total_tokens to (\d+)", said)[1])
    higher = int(re.search(r"set mixing.max_repeats to (\d+)", said)[1])
    plan_mix(table, named(sizes), total_tokens=total, max_repeats=higher)
    if lower:
        plan_mix(table, named(sizes), total_tokens=lower, max_repeats=repeats)


@pytest.mark.parametrize(
    ("weights", "options", "said"),
    [
        ({"blog": 1}, {}, "mixing.weights names 'blog', which no record has.*'books'"),
        ({"none": 1}, {}, "mixing.weights names 'none', but none of its records has tokens"),
        ({"tldr": 1}, {"total_tokens": 10**12}, "epochs of a value"),
        (
            {"tldr": 0.5, "law": 0.5},
            {"max_repeats": 2},
            "5 epochs of 'tldr' .100 tokens..*max_repeats to 5, or mixing.total_tokens to 400 or less",
        ),
        (
            "unimax",
            {"total_tokens": 30_000, "max_repeats": 2},
            "3 epochs of 'news'.*max_repeats to 3, or mixing.total_tokens to 20000",
        ),
    ],
)
def test_bad_input_is_refused_with_its_remedy(weights, options, said):
    with pytest.raises(InputError, match=said):
        plan_mix(weights, {**SIZES, "none": 0}, **options)


@pytest.mark.filterwarnings("error")
def test_nothing_to_mix_is_refused():
    for call in (plan_mix, lambda weights, sizes: plan_phases([(None, weights)], sizes)):
        with pytest.raises(InputError, match=r"nothing is left to train on.*expected some"):
            call("natural", {"news": 0})


records = st.lists(
    st.tuples(st.one_of(st.integers(0, 60), st.integers(0, 3000)), st.integers(0, 3)), min_size=1
)


def corpus(drawn: list[tuple[int, int]], seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict]:
    """(tokens, codes, a random order, sizes) of some records."""
    tokens, codes = np.array(drawn, np.int64).T
    sizes = named(np.bincount(codes, weights=tokens, minlength=4).astype(int).tolist())
    return tokens, codes, np.random.default_rng(seed).permutation(len(tokens)), sizes


def realised(plan: MixPlan, tokens: np.ndarray, codes: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The tokens of each value in the stream."""
    return np.bincount(codes, tokens * times, len(plan.names)).astype(int)


@given(
    drawn=records,
    rule=st.sampled_from(["natural", "sqrt", 0.3]),
    total=st.integers(1, 200_000),
    seed=st.integers(0, 3),
)
@settings(max_examples=examples(80))
def test_records_follow_the_plan_within_half_a_document(drawn, rule, total, seed):
    tokens, codes, order, sizes = corpus(drawn, seed)
    assume(tokens.sum())
    plan = plan_mix(rule, sizes, total_tokens=total)
    try:
        times = times_of(plan, tokens, codes, order)
    except InputError as error:
        assert "less than half" in str(error)
        shortest = [tokens[(codes == value) & (tokens > 0)].min(initial=3000) for value in range(4)]
        assert (plan.tokens <= np.array(shortest) / 2).all()
        return
    assert times.tobytes() == times_of(plan, tokens, codes, order).tobytes()
    found = realised(plan, tokens, codes, times)
    assert found.any()
    for value in range(4):
        mine = (codes == value) & (tokens > 0)
        whole = plan.tokens[value] // max(1, plan.sizes[value])
        assert set(times[mine]) <= {whole, whole + 1}
        # Within half of every record that stands no more often than the others.
        left_out = tokens[mine & (times == whole)]
        if left_out.size:
            assert abs(found[value] - plan.tokens[value]) <= left_out.min() / 2
        # Of a value whose share is less than a token nothing is in.
        assert (times[(codes == value) & (tokens == 0)] == (plan.epochs[value] > 0)).all()


def test_the_first_of_the_order_come_once_more_and_what_is_too_long_is_passed_over():
    tokens = np.array([50, 10, 1000, 30, 20])
    plan = plan_mix({"one": 1}, {"one": 1110}, total_tokens=1110 + 85)
    times = times_of(plan, tokens, np.zeros(5, int), np.array([3, 2, 0, 1, 4]))
    # 30 and 50 fit, 1000 does not, 10 would be five too many and nothing five too few: 10 is as near, so it stays out.
    assert times.tolist() == [2, 1, 1, 2, 1]


def test_a_source_with_a_book_that_is_much_of_it_has_its_share():
    """Temperature over three sources, one with a book of 39 % of its tokens, wherever it comes in the order."""
    random = np.random.default_rng(0)
    tokens = np.ceil(random.lognormal(4, 0.8, 1200)).astype(np.int64)
    codes = random.choice(3, 1200, p=[0.6, 0.3, 0.1])
    tokens[np.flatnonzero(codes == 2)[0]] = 0
    tokens[np.flatnonzero(codes == 2)[0]] = tokens[codes == 2].sum() * 39 // 61
    sizes = named(np.bincount(codes, tokens).astype(int).tolist())
    plan = plan_mix(0.5, sizes, total_tokens=int(tokens.sum() * 0.55))
    assert 0.61 < plan.epochs[2] < 1
    for seed in range(20):
        times = times_of(plan, tokens, codes, np.random.default_rng(seed).permutation(1200))
        found = realised(plan, tokens, codes, times)
        assert found / found.sum() == pytest.approx(plan.shares, abs=1e-3)


@given(
    drawn=records,
    rule=st.sampled_from(["natural", "sqrt", 0.3]),
    total=st.integers(1, 20_000),
    seed=st.integers(0, 9),
)
@settings(max_examples=examples(80))
def test_what_is_consumed_stands_as_often_and_counts_first(drawn, rule, total, seed):
    tokens, codes, order, sizes = corpus(drawn, seed)
    assume(tokens.sum())
    plan = plan_mix(rule, sizes, total_tokens=total)
    consumed = np.random.default_rng(seed).choice([0, 0, 0, 1, 3], len(tokens))
    assume(tokens @ consumed)
    times = times_of(plan, tokens, codes, order, consumed)
    assert (times >= consumed).all()
    found = realised(plan, tokens, codes, times)
    for value in range(4):
        mine = (codes == value) & (tokens > 0)
        spent = int(tokens[mine] @ consumed[mine])
        if spent >= plan.tokens[value]:
            assert found[value] == spent
        left_out = tokens[mine & (times == times[mine].min(initial=0))]
        if spent < plan.tokens[value] and left_out.size:
            assert abs(found[value] - plan.tokens[value]) <= left_out.max()


def drawn_traits(records: int, seed: int = 0) -> tuple[list[np.ndarray], np.ndarray, list[np.ndarray]]:
    """(hashes of the values of a source, a cluster and a length bin; draws; their codes) of records."""
    random = np.random.default_rng(seed)
    codes = [random.integers(0, count, records) for count in (3, 10, 20)]
    hashes = [random.integers(1 << 64, size=count, dtype=np.uint64) for count in (3, 10, 20)]
    draws = random.integers(1 << 64, size=records, dtype=np.uint64)
    return [of[code] for of, code in zip(hashes, codes, strict=True)], draws, codes


def test_every_beginning_of_a_source_is_even_in_its_clusters_and_lengths():
    values, draws, (source, cluster, length) = drawn_traits(3000)
    order = even_order(values, draws)
    assert sorted(order) == list(range(3000))
    for value in range(3):
        mine = order[source[order] == value]
        whole = np.bincount(cluster[mine], minlength=10)
        for count in range(len(mine) + 1):
            beginning = np.bincount(cluster[mine[:count]], minlength=10)
            assert np.abs(beginning - whole * count / len(mine)).max() <= 2
        # In both at once no worse than at random, and in the second better.
        at_random = np.random.default_rng(value).permutation(mine)

        def off(some: np.ndarray, mine: np.ndarray = mine) -> float:
            share = np.bincount(length[some], minlength=20) / len(some)
            return float(np.abs(share - np.bincount(length[mine], minlength=20) / len(mine)).sum())

        counts = range(50, len(mine), 50)
        assert np.mean([off(mine[:at]) for at in counts]) < 0.8 * np.mean(
            [off(at_random[:at]) for at in counts]
        )


@given(seed=st.integers(0, 99), records=st.integers(0, 60))
def test_the_even_order_does_not_depend_on_that_of_the_records(seed, records):
    values, draws, _ = drawn_traits(records, seed)
    moved = np.random.default_rng(seed).permutation(records)
    order = even_order(values, draws)
    assert moved[even_order([of[moved] for of in values], draws[moved])].tolist() == order.tolist()


COUNTS = st.lists(st.integers(0, 60), min_size=1, max_size=6).filter(any)
SHARES = st.one_of(st.floats(0.001, 0.5), st.sampled_from([0.01, 0.1, 0.25, 0.5]))


def documents(sizes: list[int], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(ids of documents, their sources), of so many documents each, mixed."""
    rng = np.random.default_rng(seed)
    codes = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    return rng.integers(0, 1 << 64, (len(codes), 2), np.uint64), codes


def none(codes: np.ndarray) -> np.ndarray:
    return np.zeros(len(codes), bool)


@settings(max_examples=examples(30), deadline=None)
@given(COUNTS, SHARES, st.integers(0, 99))
@example([1, 3], 0.5, 0)
def test_of_each_source_its_share_is_held_out_and_never_all_whatever_the_order(
    sizes: list[int], share: float, seed: int
) -> None:
    ids, codes = documents(sizes, seed)
    order = np.random.default_rng(seed + 1).permutation(len(codes))
    first = choose(ids, codes, share, seed, none(codes), none(codes))
    again = choose(ids[order], len(sizes) - 1 - codes[order], share, seed, none(codes), none(codes))
    assert_array_equal(first[order], again)
    for code, size in enumerate(sizes):
        held = first[codes == code].sum()
        assert abs(held - share * size) <= 0.5 and (held < size or not size)


@settings(max_examples=examples(30), deadline=None)
@given(COUNTS, COUNTS, SHARES, st.integers(0, 99))
def test_what_is_held_out_stays_and_what_is_barred_never_comes(
    sizes: list[int], more: list[int], share: float, seed: int
) -> None:
    ids, codes = documents(sizes, seed)
    kept = choose(ids, codes, share, seed, none(codes), none(codes))
    new_ids, new_codes = documents(more, seed + 1000)
    ids, codes = np.concatenate([ids, new_ids]), np.concatenate([codes, new_codes])
    kept = np.concatenate([kept, none(new_codes)])
    barred = np.random.default_rng(seed).random(len(codes)) < 0.3
    chosen = choose(ids, codes, share, seed, kept, barred)
    assert chosen[kept].all()
    assert not (chosen & barred & ~kept).any()
    for code in np.unique(codes):
        here = codes == code
        quota = min(np.floor(share * here.sum() + 0.5), here.sum() - 1)
        free = kept[here].sum() + (here & ~kept & ~barred).sum()
        assert chosen[here].sum() == max(kept[here].sum(), min(quota, free))


@settings(max_examples=examples(30), deadline=None)
@example("\ufb01\u0301")
@given(st.text(alphabet=st.sampled_from("aé ßÉﬁ\t\n\u0301İk")))
def test_copies_differ_in_case_white_space_or_normal_form(text: str) -> None:
    slow = re.sub(r"\s+", " ", unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold()))
    assert folded(text) == slow.strip()
    forms = [unicodedata.normalize(form, text) for form in ("NFC", "NFD")]
    assert {folded(f" {form}\n") for form in forms} == {folded(text)}
