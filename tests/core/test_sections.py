"""Sections: equal parts with copies apart, records of a mix dealt to spans, and quotas of phases. The deal: each text
once, parts of the sizes asked for, and the mix kept wherever a part ends."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.core.kernels.order_deal import deal_to_parts
from dagster_divorder.core.mix.mixing import plan_phases
from dagster_divorder.core.order.deal import deal
from dagster_divorder.core.order.sections import equal_parts, spans_of_values
from dagster_divorder.core.order.traits import Traits, bin_codes, quantile_edges
from dagster_divorder.errors import InputError
from tests.conftest import examples
from tests.twins.order import strayed

laws = settings(max_examples=examples(40), deadline=None)
lengths = st.lists(st.sampled_from([1, 3, 3, 20, 150]), min_size=1, max_size=60).map(np.array)


def traits_of(tokens, **codes):
    codes = {"cluster": np.arange(len(tokens)) % 3, **codes}
    codes = {name: np.asarray(of, np.int32) for name, of in codes.items()}
    names = {name: tuple(map(str, range(of.max(initial=0) + 1))) for name, of in codes.items()}
    sizes = np.asarray(tokens, np.int64)
    return Traits(sizes, sizes, codes, names)


@given(records=st.integers(1, 200), most=st.integers(1, 70), least=st.integers(1, 60), seed=st.integers(0, 9))
@laws
def test_parts_are_equal_and_copies_far_apart(records, most, least, seed):
    random = np.random.default_rng(seed)
    copies = random.integers(0, 1 + records // 3, records)
    traits = traits_of(random.choice([1, 3], records)[copies])
    part, again = (
        equal_parts(traits, {"cluster": 1.0}, most=most, least=least, copies=copies, seed=seed)
        for _ in range(2)
    )
    assert (part == again).all() and part.min() >= 0
    parts = int(part.max()) + 1
    assert parts == 1 or parts * max(least, 8 * traits.tokens.max()) <= traits.tokens.sum()
    for text in np.unique(copies):
        of_text = np.sort(part[copies == text])
        if len(of_text) <= parts:
            assert (np.diff(of_text) >= parts // len(of_text)).all()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"most": 101}, 6),
        ({"most": 1, "least": 100}, 60),  # of 6,000 tokens
        ({"most": 1}, 75),  # eight times the longest document, of 10 tokens
        # 2 parts a copy; nearly all copied texts have 6, one has 30.
        ({"most": 600, "copies": True}, 12),
        ({"most": 600, "copies": True, "steady": True}, 10),
    ],
)
def test_the_number_of_parts(arguments, parts):
    if arguments.pop("copies", False):
        arguments["copies"] = np.repeat(np.arange(96), [30, *[6] * 95])
    part = equal_parts(traits_of(np.full(600, 10)), {"cluster": 1.0}, **{"least": 1, **arguments})
    assert np.unique(part).tolist() == list(range(parts))


def test_too_many_parts_are_refused():
    with pytest.raises(InputError, match=r"80,000 records make .* sections of at most 1; expected at most"):
        equal_parts(traits_of(np.ones(80_000)), {"cluster": 1.0}, most=1, least=1)


@given(tokens=lengths, spans=st.integers(1, 4), data=st.data())
@pytest.mark.filterwarnings("error")
@laws
def test_passes_of_a_value_fill_its_spans_one_after_another(tokens, spans, data):
    some = st.lists(st.integers(0, 2), min_size=len(tokens), max_size=len(tokens)).map(np.array)
    value, passes = data.draw(some), data.draw(some)
    rows = st.lists(st.integers(0, 4), min_size=spans, max_size=spans)
    parts = np.array([data.draw(rows) for _ in range(3)])
    parts[:, 0] += (parts == 0).all(axis=1)
    quotas = parts / parts.sum(axis=1, keepdims=True) * np.bincount(value, tokens, 3)[:, np.newaxis]
    weights = {"cluster": 1.0, "source": 1.0}
    span = spans_of_values(traits_of(tokens, source=value), weights, value, passes, quotas)
    # Every record is in a span in which its value has a share.
    assert ((span >= 0) & (span < spans)).all() and (parts[value, span] > 0).all()
    for of_value in range(3):
        reached = [span[(value == of_value) & (passes == number)] for number in range(3)]
        for earlier, later in itertools.pairwise(filter(len, reached)):
            assert earlier.max() <= later.min()


@pytest.mark.parametrize("seed", range(5))
def test_each_span_has_the_tokens_of_a_value_that_are_asked_within_a_record(seed):
    random = np.random.default_rng(seed)
    tokens, value = np.ceil(random.lognormal(3, 1, 300)), random.integers(0, 3, 300)
    quotas = random.dirichlet(np.ones(3), 3) * np.bincount(value, tokens)[:, np.newaxis]
    traits = traits_of(tokens, source=value)
    span = spans_of_values(traits, {"cluster": 1.0, "source": 1.0}, value, random.integers(0, 2, 300), quotas)
    held, longest = np.zeros((3, 3)), np.zeros(3)
    np.add.at(held, (value, span), tokens)
    np.maximum.at(longest, value, tokens)
    assert (np.abs(held - quotas) <= longest[:, np.newaxis]).all()


def test_rests_are_read_first_and_stay_unread_beyond_their_quota():
    # Rests of the first value: 30 of 50 tokens come nearest to 32. All of the second value's come, in its first span.
    value, passes = np.repeat([0, 1, 1], [5, 3, 9]), np.repeat([-1, -1, 0], [5, 3, 9])
    traits = traits_of(np.full(17, 10), source=value)
    span = spans_of_values(traits, {"cluster": 1.0}, value, passes, np.array([[32.0, 0.0], [30.0, 90.0]]))
    assert span.tolist() == [0] * 3 + [-1] * 2 + [0] * 3 + [1] * 9


@given(
    sizes=st.lists(st.integers(1, 5000), min_size=2, max_size=4),
    ends=st.lists(st.integers(1, 19), max_size=2, unique=True).map(sorted),
    total=st.integers(200, 20_000),
    read=st.integers(0, 20_000),
    repeats=st.sampled_from([None, 1, 4]),
    data=st.data(),
)
@laws
def test_quotas_of_phases_sum_to_the_plan_and_repeats_hold_over_all(sizes, ends, total, read, repeats, data):
    values = {str(number): size for number, size in enumerate(sizes)}
    share = st.fixed_dictionaries({name: st.integers(1, 9) for name in values})
    weights = [data.draw(share) for _ in range(len(ends) + 1)]
    until = [round(end / 20 * total) for end in ends]
    before = np.zeros(len(values), np.int64)
    before[0] = min(read, total)
    try:
        plan, quotas = plan_phases(
            list(zip([*(end / 20 for end in ends), None], weights, strict=True)),
            values,
            total_tokens=total,
            max_repeats=repeats,
            read=before,
        )
    except InputError as error:
        assert "cannot be reached within mixing.max_repeats" in str(error) and repeats
        return
    assert (plan.tokens - before == quotas.sum(axis=1)).all() and (quotas >= 0).all()
    if repeats:
        assert (quotas.sum(axis=1) <= np.maximum(repeats * np.array(sizes) - before, 0) + 1).all()
    # Read tokens fill the first phases; what is left of a phase has its shares.
    left = np.diff(np.clip([0, *until, total], before.sum(), None))
    asked = left * np.array([[of[name] / sum(of.values()) for of in weights] for name in values])
    assert np.abs(quotas - asked[:, -quotas.shape[1] :]).max() <= 1


def test_phases_that_do_not_follow_each_other_are_refused():
    with pytest.raises(InputError, match=r"phase 2 of mixing ends at 400 tokens; expected more than 500"):
        plan_phases([(0.5, {"a": 1}), (0.4, {"a": 1}), (None, {"a": 1})], {"a": 1000})


WEIGHTS = {"cluster": 1.0, "length": 0.5}


def made(tokens: np.ndarray, clusters: np.ndarray) -> Traits:
    return traits_of(tokens, cluster=clusters, length=bin_codes(tokens, quantile_edges(tokens, 4)))


@st.composite
def corpora(draw: st.DrawFn) -> Traits:
    documents = draw(st.integers(1, 30))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    tokens = random.choice([0, 1, 5, 5, 40, 2000, 1 << 40], documents).astype(np.int64)
    return made(tokens, np.append(random.integers(0, 4, documents - 1), 3))


@st.composite
def asked_shares(draw: st.DrawFn, classes: int) -> np.ndarray:
    """Shares of 1 to 6 parts, (classes, parts); a class may have none of a part."""
    parts = draw(st.integers(1, 6))
    row = st.lists(st.integers(0, 4), min_size=parts, max_size=parts).filter(any)
    return np.array([draw(row) for _ in range(classes)], float)


@given(corpora(), asked_shares(2), st.booleans(), st.integers(0, 99))
@settings(max_examples=examples(40), deadline=None)
def test_each_text_goes_where_the_seams_then_stray_least(
    traits: Traits, shares: np.ndarray, copied: bool, seed: int
) -> None:
    tokens, random = np.minimum(traits.tokens, 3000), np.random.default_rng(seed)
    codes = np.stack([traits.codes["cluster"], 4 + traits.codes["length"]])
    # Copies are for parts that all classes reach.
    shares = shares + copied
    text = np.sort(random.integers(0, len(tokens), len(tokens))) if copied else np.arange(len(tokens))
    queue, weights = random.permutation(len(tokens)), random.choice([0.5, 1.0, 2.0], codes.max() + 2)
    kind, parts = random.integers(0, 2, len(tokens)).astype(np.int32), shares.shape[1]
    reached = np.cumsum(shares, axis=1) / shares.sum(axis=1, keepdims=True)
    part = deal_to_parts(queue.astype(np.uint32), text, tokens, codes, weights, 7.0, kind, reached)

    def off(places: list[int], documents: np.ndarray) -> float:
        return strayed(places, documents, tokens, codes, weights, 7.0, reached[kind])

    placed: list[int] = []
    while (at := len(placed)) < len(queue):
        before, copies = off(placed, queue[:at]), int((text[at:] == text[at]).sum())
        ways = (np.arange(parts)[:, np.newaxis] + np.arange(copies) * parts // copies) % parts
        ways = ways[(shares[kind[queue[at : at + copies]], ways] > 0).all(axis=1)].tolist()
        # Copies do not see one another: each adds what it would alone.
        added = [
            sum(off([*placed, to], [*queue[:at], queue[at + k]]) - before for k, to in enumerate(way))
            for way in ways
        ]
        went = part[queue[at : at + copies]].tolist()
        assert added[ways.index(went)] <= min(added) + 1e-9 * (1 + before + max(map(abs, added)))
        placed += went


@pytest.mark.parametrize("longer", [0, 30], ids=["equal", "near"])
@pytest.mark.parametrize("parts", [2, 3, 8])
def test_copies_go_to_parts_at_even_distances(parts: int, longer: int) -> None:
    """Near copies, of which some are longer by some tokens, too."""
    random = np.random.default_rng(0)
    copies = random.integers(0, 300, 600)
    tokens = np.ceil(random.lognormal(5, 1.5, 300)).astype(np.int64)[copies]
    tokens += random.integers(0, longer + 1, 600)
    part = deal(made(tokens, random.integers(0, 5, 600)), WEIGHTS, np.ones(parts), copies=copies)
    for text in np.unique(copies):
        found = part[copies == text]
        turns = np.arange(len(found)) * parts // len(found)
        assert sorted(found) in [sorted((first + turns) % parts) for first in range(parts)]
