"""Documents dealt to parts: each once, parts of the sizes asked for, and the mix kept wherever a part ends."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.core.kernels.order_deal import deal_to_parts
from dagster_divorder.core.order.deal import deal
from dagster_divorder.core.order.traits import Traits, bin_codes, quantile_edges
from tests.conftest import examples
from tests.twins.deal import strayed

WEIGHTS = {"cluster": 1.0, "length": 0.5}


def made(tokens: np.ndarray, clusters: np.ndarray, bins: int = 4) -> Traits:
    lengths = bin_codes(tokens, quantile_edges(tokens, bins))
    codes = {"cluster": clusters.astype(np.int32), "length": lengths}
    return Traits(
        tokens, tokens, codes, {name: tuple(map(str, range(of.max() + 1))) for name, of in codes.items()}
    )


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


@given(corpora(), asked_shares(2), st.permutations(range(4)), st.data())
@settings(max_examples=examples(40), deadline=None)
def test_every_document_goes_to_a_part_of_its_class_whatever_values_are_called(
    traits: Traits, shares: np.ndarray, names: list[int], data: st.DataObject
) -> None:
    documents = len(traits.tokens)
    kind = np.array(data.draw(st.lists(st.integers(0, 1), min_size=documents, max_size=documents)))
    part, again = (deal(traits, WEIGHTS, shares, kind=kind, seed=3) for _ in range(2))
    np.testing.assert_array_equal(part, again)
    assert part.shape == (documents,) and (shares[kind, part] > 0).all()
    renamed = {**traits.codes, "cluster": np.array(names, np.int32)[traits.codes["cluster"]]}
    other = deal(
        Traits(traits.tokens, traits.tokens, renamed, traits.names), WEIGHTS, shares, kind=kind, seed=3
    )
    np.testing.assert_array_equal(part, other)


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
