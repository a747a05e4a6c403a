"""The share held out of each source, as laws; copies."""

import re
import unicodedata

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dagster_divorder.core.mix.heldout import choose, folded
from tests.conftest import examples

SIZES = st.lists(st.integers(0, 60), min_size=1, max_size=6).filter(any)
SHARES = st.one_of(st.floats(0.001, 0.5), st.sampled_from([0.01, 0.1, 0.25, 0.5]))


def corpus(sizes: list[int], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(ids of documents, their sources), of so many documents each, mixed."""
    rng = np.random.default_rng(seed)
    codes = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    return rng.integers(0, 1 << 64, (len(codes), 2), np.uint64), codes


def none(codes: np.ndarray) -> np.ndarray:
    return np.zeros(len(codes), bool)


@settings(max_examples=examples(60), deadline=None)
@given(SIZES, SHARES, st.integers(0, 99))
def test_of_each_source_its_share_within_one_document_and_never_all(
    sizes: list[int], share: float, seed: int
) -> None:
    ids, codes = corpus(sizes, seed)
    chosen = choose(ids, codes, share, seed, none(codes), none(codes))
    for code, size in enumerate(sizes):
        held = chosen[codes == code].sum()
        assert abs(held - share * size) <= 0.5
        assert held < size or not size


@settings(max_examples=examples(30), deadline=None)
@given(SIZES, SHARES, st.integers(0, 99))
def test_the_order_of_documents_and_of_sources_does_not_matter(
    sizes: list[int], share: float, seed: int
) -> None:
    ids, codes = corpus(sizes, seed)
    order = np.random.default_rng(seed + 1).permutation(len(codes))
    first = choose(ids, codes, share, seed, none(codes), none(codes))
    again = choose(ids[order], len(sizes) - 1 - codes[order], share, seed, none(codes), none(codes))
    assert_array_equal(first[order], again)


@settings(max_examples=examples(30), deadline=None)
@given(SIZES, SIZES, SHARES, st.integers(0, 99))
def test_what_is_held_out_stays_and_what_is_barred_never_comes(
    sizes: list[int], more: list[int], share: float, seed: int
) -> None:
    ids, codes = corpus(sizes, seed)
    kept = choose(ids, codes, share, seed, none(codes), none(codes))
    new_ids, new_codes = corpus(more, seed + 1000)
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
@given(st.text(alphabet=st.sampled_from("aé ßÉﬁ\t\n\u0301İk")))
def test_copies_differ_in_case_white_space_or_normal_form(text: str) -> None:
    slow = re.sub(r"\s+", " ", unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold()))
    assert folded(text) == slow.strip()
    forms = [unicodedata.normalize(form, text) for form in ("NFC", "NFD")]
    assert {folded(f" {form}\n") for form in forms} == {folded(text)}


def test_a_text_in_other_case_and_compatible_letters_is_a_copy() -> None:
    text = "Un café très élégant à côté de la forêt enneigée où naît la rivière près du ﬁer château"
    forms = [unicodedata.normalize(form, text) for form in ("NFC", "NFD", "NFKC", "NFKD")]
    forms += [text.upper(), text.casefold(), unicodedata.normalize("NFD", text.upper())]
    assert len({*map(folded, forms)}) == 1
