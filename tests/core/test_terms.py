"""Characteristic terms: what clusters are named by, in scripts with spaces and without."""

from itertools import combinations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.core.topics.terms import cluster_names, find_words
from tests.conftest import examples

TOPICS = ("harbour anchor gull reef", "oven yeast crust dough", "soil hedge mulch spade")
FUNCTION = ["the", "and", "that", "with", "from", "this"]


def counted(*texts: str) -> dict[str, int]:
    """Words of all texts together and how many texts use them."""
    used, vocabulary = find_words(pa.array(texts, pa.large_string()))
    return dict(zip(vocabulary, used.sum(axis=0).tolist(), strict=True))


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


def terms_of(texts: list[str], labels: np.ndarray, clusters: int) -> list[list[str]]:
    """The words of the name of each cluster, without its number."""
    names = cluster_names(*find_words(pa.array(texts, pa.large_string())), labels, clusters)
    assert len(set(names)) == len(names) == clusters
    return [name.split(" (cluster")[0].split(", ") for name in names]


def test_clusters_are_named_by_their_topics_and_not_by_function_words() -> None:
    texts, labels = topical()
    for topic, terms in zip(TOPICS, terms_of(texts, labels, 3), strict=True):
        assert len(terms) == 3 and set(terms) <= set(topic.split())


def test_words_in_all_of_a_clusters_documents_give_way_to_others() -> None:
    texts, labels = topical()
    headed = [
        f"pagina {text} pagina" if label == 0 else text for text, label in zip(texts, labels, strict=True)
    ]
    assert set(terms_of(headed, labels, 3)[0]) <= set(TOPICS[0].split())


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
        ("Straße STRAßE", {"straße": 1}),
        ("1,204 B2B x _self_ n_samples mp3 2월", {"self": 1, "samples": 1, "mp": 1}),
        ("don't l'eau", {"don": 1, "eau": 1}),
        ("x" * 41 + " " + "y" * 40, {"y" * 40: 1}),
        ("хлеб ХЛЕБ", {"хлеб": 1}),
        ("हिन्दी", {"हिन्दी": 1}),
        ("cafe\u0301 caf\u00e9", {"caf\u00e9": 1}),
        ("면적은 1,234", {"면적은": 1}),
        ("烏克蘭的日", {"烏克": 1, "蘭的": 1}),
        ("コマンドを表示する", {"コマンド": 1, "表示": 1}),
        ("", {}),
    ],
)
def test_what_counts_as_a_word(text: str, words: dict[str, int]) -> None:
    assert counted(text) == words


def test_words_count_once_in_a_document() -> None:
    used, vocabulary = find_words(pa.array(["salt salt bread", "", "bread"], pa.string()))
    table = used.toarray()
    assert {word: table[:, at].tolist() for at, word in enumerate(vocabulary)} == {
        "salt": [1, 0, 0],
        "bread": [1, 0, 1],
    }


def test_pairs_of_characters_that_overlap_are_one_term() -> None:
    # Half of the cluster: words in all of its documents say little.
    texts = [["在烏克蘭。", "天地玄黃"][at % 2] for at in range(30)] + ["宇宙洪荒"] * 60
    terms = terms_of(texts, np.repeat([0, 1, 2], 30), 3)[0]
    assert not any(set(one) & set(other) for one, other in combinations(terms, 2)), terms


def test_clusters_without_words_and_of_the_same_words_have_their_numbers() -> None:
    texts = pa.array(["salt bread"] * 6 + ["", "1 2"], pa.string())
    names = cluster_names(*find_words(texts), np.array([0, 0, 0, 2, 2, 2, 3, 1]), 5)
    assert names[1:2] + names[3:] == ["cluster 1", "cluster 3", "cluster 4"]
    assert names[2] == f"{names[0]} (cluster 2)"


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 1000), st.permutations(range(4)))
def test_the_number_of_a_cluster_changes_none_of_its_terms(seed: int, numbers: list[int]) -> None:
    texts, labels = topical(8, seed)
    before = terms_of(texts, labels, 4)[:3]
    after = terms_of(texts, np.array(numbers)[labels], 4)
    assert [after[number] for number in numbers[:3]] == before
