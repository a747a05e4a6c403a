"""Documents dealt to shards: each once, none beyond the room, and the mix kept wherever a shard ends."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.core.kernels.order_deal import deal_to_shards, seam_products
from dagster_divorder.core.order.deal import shard_of_each
from dagster_divorder.core.order.traits import Traits, bin_codes, quantile_edges
from tests.conftest import examples
from tests.twins.deal import strayed

WEIGHTS = {"cluster": 1.0, "length": 0.5}


def made(tokens: np.ndarray, clusters: np.ndarray, bins: int = 4) -> Traits:
    lengths = bin_codes(tokens, quantile_edges(tokens, bins))
    codes = {"cluster": clusters.astype(np.int32), "length": lengths}
    return Traits(tokens, codes, {name: tuple(map(str, range(of.max() + 1))) for name, of in codes.items()})


def skewed(documents: int, clusters: int = 50, seed: int = 0) -> Traits:
    """Log-normal lengths, and clusters of very uneven size."""
    random = np.random.default_rng(seed)
    tokens = np.ceil(random.lognormal(5, 1.5, documents)).astype(np.int64)
    return made(tokens, random.choice(clusters, documents, p=random.dirichlet(np.full(clusters, 0.3))), 20)


@st.composite
def corpora(draw: st.DrawFn) -> Traits:
    documents = draw(st.integers(1, 30))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    tokens = random.choice([0, 1, 5, 5, 40, 2000, 1 << 40], documents).astype(np.int64)
    return made(tokens, np.append(random.integers(0, 4, documents - 1), 3))


@given(corpora(), st.integers(1, 9), st.data())
@settings(max_examples=examples(40), deadline=None)
def test_every_document_goes_to_one_shard_and_none_takes_too_many(
    traits: Traits, shards: int, data: st.DataObject
) -> None:
    documents = len(traits.tokens)
    frozen = np.array(data.draw(st.lists(st.integers(0, documents - 1), unique=True)), np.int64)
    copies = np.array(data.draw(st.lists(st.integers(0, 9), min_size=documents, max_size=documents)))
    of, again = (
        shard_of_each(traits, WEIGHTS, shards, seed=3, copies=copies, frozen=frozen) for _ in range(2)
    )
    np.testing.assert_array_equal(of, again)
    assert of.shape == (documents,)
    assert of.min() >= 0
    assert of.max() < shards
    assert (of[frozen] == 0).all()
    assert np.bincount(np.delete(of, frozen), minlength=1).max() <= -(-(documents - len(frozen)) // shards)


@given(corpora(), st.integers(1, 9), st.permutations(range(4)))
@settings(max_examples=examples(20), deadline=None)
def test_what_values_are_called_does_not_matter(traits: Traits, shards: int, names: list[int]) -> None:
    other = Traits(
        traits.tokens,
        {**traits.codes, "cluster": np.array(names, np.int32)[traits.codes["cluster"]]},
        traits.names,
    )
    np.testing.assert_array_equal(
        shard_of_each(traits, WEIGHTS, shards), shard_of_each(other, WEIGHTS, shards)
    )


@given(corpora(), st.integers(1, 6), st.booleans(), st.integers(0, 99))
@settings(max_examples=examples(20), deadline=None)
def test_each_text_goes_where_the_seams_then_stray_least(
    traits: Traits, shards: int, tight: bool, seed: int
) -> None:
    tokens, random = np.minimum(traits.tokens, 3000), np.random.default_rng(seed)
    codes = np.stack([traits.codes["cluster"], 4 + traits.codes["length"]])
    text = np.sort(random.integers(0, len(tokens), len(tokens)))
    queue, weights, document_weight = (
        random.permutation(len(tokens)).astype(np.uint32),
        random.choice([0.5, 1.0, 2.0], codes.max() + 2),
        7.0,
    )
    room = np.full(shards, -(-len(tokens) // shards) if tight else len(tokens))
    held = [np.zeros((codes.max() + 2, shards)) for _ in range(2)]
    of = deal_to_shards(queue, text, tokens, codes, weights, document_weight, *held, room.copy())

    def off(places: list[int], documents: list[int]) -> float:
        return strayed(places, documents, tokens, codes, weights, document_weight, shards)

    placed: list[int] = []
    while (at := len(placed)) < len(queue):
        left, before = room - np.bincount(placed, minlength=shards), off(placed, queue[:at])
        for copies in (int((text[at:] == text[at]).sum()), 1):
            turns = np.arange(copies) * shards // copies
            ways = [((first + turns) % shards).tolist() for first in range(shards)]
            if fits := [way for way in ways if (left[way] >= -(-copies // shards)).all()]:
                break
        # Copies do not see one another: each adds what it would alone.
        added = [
            sum(off([*placed, shard], [*queue[:at], queue[at + k]]) - before for k, shard in enumerate(way))
            for way in fits
        ]
        went = of[queue[at : at + copies]].tolist()
        assert added[fits.index(went)] <= min(added) + 1e-9 * (1 + before + max(map(abs, added)))
        placed += went


@given(st.integers(1, 40), st.data())
@settings(max_examples=examples(20), deadline=None)
def test_products_are_those_of_the_seams(shards: int, data: st.DataObject) -> None:
    of = [data.draw(st.integers(0, shards - 1)) for _ in range(2)]
    seams = np.arange(shards)
    one, other = ((shard <= seams) - (seams + 1) / shards for shard in of)
    assert seam_products(shards, of[0])[of[1]] == pytest.approx(one @ other, abs=1e-9)


def off_at_seams(traits: Traits, of: np.ndarray, shards: int) -> float:
    """Mean L2 deviation of the prefixes that end with a shard, in tokens."""
    found = []
    for codes in traits.codes.values():
        held = np.zeros((codes.max() + 1, shards))
        np.add.at(held, (codes, of), traits.tokens)
        prefixes = np.cumsum(held, axis=1)[:, :-1]
        found.append(prefixes - held.sum(axis=1, keepdims=True) * np.arange(1, shards) / shards)
    return float(np.linalg.norm(np.concatenate(found), axis=0).mean())


@pytest.mark.parametrize("shards", [2, 5, 16])
def test_seams_stray_far_less_than_at_random_or_dealt_by_cell(shards: int) -> None:
    traits = skewed(8_000)
    of = shard_of_each(traits, WEIGHTS, shards)
    at_random = np.random.default_rng(0).permutation(8_000) % shards
    cell = np.lexsort((traits.tokens, traits.codes["length"], traits.codes["cluster"]))
    by_cell = np.empty(8_000, int)
    by_cell[cell] = np.arange(8_000) % shards
    ours, others = (
        off_at_seams(traits, of, shards),
        [off_at_seams(traits, one, shards) for one in (at_random, by_cell)],
    )
    assert ours < 0.2 * others[0]
    assert ours < 0.35 * others[1]


def test_the_first_shard_makes_up_for_what_is_frozen() -> None:
    traits = skewed(4_000)
    frozen = np.flatnonzero(traits.codes["cluster"] == np.bincount(traits.codes["cluster"]).argmax())[:200]
    of = shard_of_each(traits, WEIGHTS, 4, frozen=frozen)
    whole, first, others = (
        np.bincount(traits.codes["cluster"][some], traits.tokens[some], 50) / traits.tokens[some].sum()
        for some in (slice(None), of == 0, np.setdiff1d(np.arange(4_000), frozen))
    )
    assert np.abs(first - whole).max() < 0.7 * np.abs(others - whole).max()


@pytest.mark.parametrize("longer", [0, 30], ids=["equal", "near"])
@pytest.mark.parametrize("shards", [2, 3, 8])
def test_copies_go_to_shards_at_even_distances(shards: int, longer: int) -> None:
    """Near copies, of which some are longer by some tokens, too."""
    random = np.random.default_rng(0)
    copies = random.integers(0, 300, 600)
    tokens = np.ceil(random.lognormal(5, 1.5, 300)).astype(np.int64)[copies]
    tokens += random.integers(0, longer + 1, 600)
    of = shard_of_each(made(tokens, random.integers(0, 5, 600)), WEIGHTS, shards, copies=copies)
    uneven = []
    for text in np.unique(copies):
        found = of[copies == text]
        turns = np.arange(len(found)) * shards // len(found)
        even = [sorted((first + turns) % shards) for first in range(shards)]
        uneven += [] if sorted(found) in even else [tokens[copies == text].max()]
    # The shortest come last, where there is room left.
    assert len(uneven) < 5
    assert max(uneven, default=0) < 0.1 * np.median(tokens) + longer
