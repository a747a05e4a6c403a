"""Signatures and shingles against a twin of Python sets, and the estimate against the similarity itself."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.core.kernels.minhash import ALONE, KINDS, LETTER, SEPARATOR
from dagster_divorder.core.text.minhash import SLOTS, shingles, signatures
from tests.conftest import examples, topic_text
from tests.golden import digest
from tests.twins import minhash as slow

TEXTS = st.lists(
    st.one_of(
        st.text(min_size=1, max_size=60),
        st.text("ab Z9.-\n", min_size=1, max_size=80),
        st.text("aßẞ éÉe\u0301日本語한국어ไทยЖж「」、　ﬁＡｶﾞ½İſ", min_size=1, max_size=60),
    ),
    max_size=8,
)


@settings(max_examples=examples(40), deadline=None)
@given(TEXTS, st.sampled_from([pa.string(), pa.large_string()]), st.integers(0, 2))
def test_they_equal_the_twin(texts: list[str], kind: pa.DataType, skipped: int) -> None:
    array = pa.array(texts, kind)[skipped:]
    some = texts[skipped:]
    assert [found.tolist() for found in shingles(array)] == [slow.shingles(text) for text in some]
    assert signatures(array).tolist() == [slow.signature(text, SLOTS) for text in some]


@pytest.mark.slow
def test_every_character_is_what_the_twin_takes_it_for() -> None:
    points = [point for point in range(0x110000) if not 0xD800 <= point < 0xE000]
    found = [len(slow.words(f"a{chr(point)}a")) for point in points]
    assert np.array_equal(np.array([2, 1, 3], np.uint8)[KINDS[points]], found)
    assert [KINDS[ord(one)] for one in "a.語"] == [LETTER, SEPARATOR, ALONE]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("The cat sat, on the mat.", "the CAT sat on\nthe mat", True),
        ("我们去海边看日出", "我们去,海边看 日出。", True),
        ("yes", "Yes!", True),
        ("???", "!!!", False),
        ("one two three four", "one two three", False),
        ("a b", "ab", False),
        (
            "Un café très élégant à côté",
            "UN CAFE\u0301 TRE\u0300S E\u0301LE\u0301GANT A\u0300 CO\u0302TE\u0301",
            True,
        ),
        ("Это было давно", "ЭТО БЫЛО ДАВНО", True),
        ("Ο Οδυσσεύς", "Ο ΟΔΥΣΣΕΎΣ", True),
        ("große Straße", "GROSSE STRASSE", True),
        ("ﬁrst ＡＢＣ 𝐛𝐨𝐥𝐝 ｶﾞ", "first abc bold ガ", True),
        ("café", "cafe", False),
    ],
)
def test_case_form_and_punctuation_count_for_nothing(one: str, other: str, same: bool) -> None:
    first, second = signatures(pa.array([one, other]))
    assert np.array_equal(first, second) == same


def test_equal_slots_estimate_the_similarity() -> None:
    rng = np.random.default_rng(0)
    words = np.array([f"word{number}" for number in range(500)])
    texts, expected = [], []
    for changed in (0, 2, 5, 10, 20, 40, 80) * 12:
        text = rng.choice(words, 300)
        edited = text.copy()
        edited[rng.choice(300, changed, replace=False)] = "other"
        texts += [" ".join(text), " ".join(edited)]
        expected.append(slow.similarity(*texts[-2:]))
    found = signatures(pa.array(texts)).reshape(-1, 2, SLOTS)
    error = (found[:, 0] == found[:, 1]).mean(axis=1) - expected
    deviation = np.sqrt(np.array(expected) * (1 - np.array(expected)) / SLOTS)
    assert (np.abs(error) <= 4.5 * deviation + 1e-12).all()
    assert abs(error.sum()) < 4 * np.sqrt((deviation**2).sum())


def test_a_signature_is_the_same_for_good() -> None:
    texts = [topic_text(topic, 7, 40) for topic in ("sea", "rail")] + ["短い文です。", "ok"]
    assert digest(signatures(pa.array(texts))) == "ace2a9e5c3c9f4eb"
