"""Characteristic terms: what clusters are named by, in scripts with spaces and without."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.core.topics.terms import TERMS, characteristic_terms, count_words, short_names
from tests.conftest import examples

TOPICS = ("harbour anchor gull reef", "oven yeast crust dough", "soil hedge mulch spade")
FUNCTION = ["the", "and", "that", "with", "from", "this"]


def counted(*texts: str) -> dict[str, int]:
    """Words of all texts together and how often they are used."""
    words = count_words(pa.array(texts, pa.large_string()))
    return dict(zip(words.vocabulary, words.counts.sum(axis=0).tolist(), strict=True))


def topical(per_topic: int = 40, seed: int = 0) -> tuple[list[str], np.ndarray]:
    """Texts that are mostly function words, with a burst of two words of their topic, in a random order."""
    random = np.random.default_rng(seed)
    texts, labels = [], []
    for label, words in enumerate(TOPICS):
        for _ in range(per_topic):
            own = random.choice(words.split(), 2, replace=False)
            texts.append(" ".join(random.permutation([*random.choice(FUNCTION, 40), *np.repeat(own, 3)])))
            labels.append(label)
    order = random.permutation(len(texts))
    return [texts[at] for at in order], np.array(labels)[order]


def terms_of(texts: list[str], labels: np.ndarray, clusters: int) -> list[tuple[str, ...]]:
    return characteristic_terms(count_words(pa.array(texts, pa.large_string())), labels, clusters)


def test_clusters_are_named_by_their_topics_and_not_by_function_words() -> None:
    texts, labels = topical()
    for topic, terms in zip(TOPICS, terms_of(texts, labels, 3), strict=True):
        assert set(terms[:4]) == set(topic.split())


def test_a_single_cluster_is_named_too() -> None:
    texts, labels = topical()
    (terms,) = terms_of(texts, np.zeros_like(labels), 1)
    assert set(terms) <= set(" ".join(TOPICS).split())
    assert len(terms) == TERMS


def test_words_in_all_of_a_clusters_documents_give_way_to_others() -> None:
    texts, labels = topical()
    headed = [
        f"pagina {text} pagina" if label == 0 else text for text, label in zip(texts, labels, strict=True)
    ]
    assert set(terms_of(headed, labels, 3)[0][:4]) == set(TOPICS[0].split())


def test_one_document_that_repeats_itself_names_nothing() -> None:
    texts, labels = topical()
    first = int(np.flatnonzero(labels == 0)[0])
    texts[first] += " zebra" * 500
    assert "zebra" not in terms_of(texts, labels, 3)[0]


def test_forms_of_one_word_are_one_term() -> None:
    texts, labels = topical()
    many = [text.replace("anchor anchor", "anchor anchors") for text in texts]
    assert any("anchors" in text for text in many)
    terms = terms_of(many, labels, 3)[0]
    assert sum(term.startswith("anchor") for term in terms) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Straße STRAßE", {"straße": 2}),
        ("1,204 B2B x 7 _self_ n_samples 2월", {"b2b": 1, "self": 1, "samples": 1}),
        ("don't l'eau", {"don": 1, "eau": 1}),
        ("x" * 41 + " " + "y" * 40, {"y" * 40: 1}),
        ("хлеб ХЛЕБ", {"хлеб": 2}),
        ("हिन्दी", {"हिन्दी": 1}),
        ("cafe\u0301 caf\u00e9", {"caf\u00e9": 2}),
        ("면적은 1,234", {"면적은": 1}),
        ("烏克蘭的", {"烏克": 1, "克蘭": 1, "蘭的": 1}),
        ("コマンドを表示する", {"コマンド": 1, "表示": 1}),
        ("see https://a.example/b?c=d, www.x.example or me@x.example", {"see": 1, "or": 1}),
        ("<p class='x'>bold</p> &nbsp;&#39; a < b", {"bold": 1}),
        (r"\frac{alpha}{beta} C:\WINDOWS\SYSTEM", {"alpha": 1, "beta": 1, "windows": 1, "system": 1}),
        ("0xdeadbeef a1b2c3d4e5f6 20041118 facade 486dx", {"facade": 1}),
        ("QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWZnaGlqa2xtbm9w== key", {"key": 1}),
        ("", {}),
    ],
)
def test_what_counts_as_a_word(text: str, words: dict[str, int]) -> None:
    assert counted(text) == words


def test_words_are_counted_by_document() -> None:
    words = count_words(pa.array(["salt salt bread", "", "bread"], pa.string()))
    table = words.counts.toarray()
    assert {word: table[:, at].tolist() for at, word in enumerate(words.vocabulary)} == {
        "salt": [2, 0, 0],
        "bread": [1, 0, 1],
    }


def test_pairs_of_characters_that_go_together_are_one_term() -> None:
    # Half of the cluster: words in all of its documents say little.
    texts = [["在烏克蘭。", "天地玄黃"][at % 2] for at in range(30)] + ["宇宙洪荒"] * 60
    terms = terms_of(texts, np.repeat([0, 1, 2], 30), 3)
    assert "烏克蘭" in terms[0][0], terms


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 1000), st.permutations(range(4)))
def test_the_number_of_a_cluster_changes_none_of_its_terms(seed: int, numbers: list[int]) -> None:
    texts, labels = topical(8, seed)
    before = terms_of(texts, labels, 4)
    after = terms_of(texts, np.array(numbers)[labels], 4)
    assert [after[number] for number in numbers] == before
    assert before[3] == ()


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(0, 1000), st.integers(1, 12))
def test_terms_are_words_of_several_documents_of_their_cluster(seed: int, clusters: int) -> None:
    random = np.random.default_rng(seed)
    texts, _ = topical(10, seed)
    labels = random.integers(0, clusters, len(texts))
    for label, terms in enumerate(terms_of(texts, labels, clusters)):
        own = [text.split() for text, of in zip(texts, labels, strict=True) if of == label]
        assert len(set(terms)) == len(terms) <= TERMS
        for term in terms:
            assert sum(term in words for words in own) >= min(3, len(own))


@given(st.lists(st.lists(st.sampled_from("abcdef"), max_size=5, unique=True), max_size=30))
def test_no_two_clusters_have_the_same_name(terms: list[list[str]]) -> None:
    names = short_names(terms)
    assert len(set(names)) == len(names) == len(terms)
    for number, (name, of) in enumerate(zip(names, terms, strict=True)):
        assert name in (", ".join(of[:3]), f"{', '.join(of[:3])} (cluster {number})", f"cluster {number}")
