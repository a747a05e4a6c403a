"""Two clusterings held against each other."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_mutual_info_score

from dagster_divorder.core.topics import agreement as module
from dagster_divorder.core.topics.agreement import agreement, contingency, match, paired_cosines
from dagster_divorder.errors import InputError

LABELS = st.integers(1, 5).flatmap(
    lambda k: st.lists(st.tuples(st.integers(0, k - 1), st.integers(0, k - 1)), min_size=1, max_size=60)
)


@pytest.mark.slow
@settings(deadline=None)
@given(LABELS, st.permutations(range(5)))
def test_names_of_clusters_do_not_matter(labels: list[tuple[int, int]], numbers: list[int]) -> None:
    a, b = np.array(labels).T
    found = agreement(a, b)
    assert vars_of(agreement(np.array(numbers)[a], b)) == pytest.approx(vars_of(found), abs=1e-9)
    assert vars_of(agreement(b, a)) == pytest.approx(vars_of(found), abs=1e-9)
    assert vars_of(agreement(a, np.array(numbers)[a])) == pytest.approx((1, 1, 1), abs=1e-9)


def vars_of(found: module.Agreement) -> tuple[float, float, float]:
    return found.ari, found.ami, found.nmi


def test_a_clustering_drawn_at_random_agrees_with_none() -> None:
    random = np.random.default_rng(0)
    found = agreement(random.integers(0, 9, 5000), random.integers(0, 9, 5000))
    assert abs(found.ari) < 0.01 and abs(found.ami) < 0.01 and found.nmi > 0


def test_ami_of_many_documents_is_that_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    a = random.integers(0, 4, 1000)
    b = np.where(random.random(1000) < 0.5, a, random.integers(0, 4, 1000))
    monkeypatch.setattr(module, "AMI_STEPS", 400)
    assert agreement(a, b).ami == adjusted_mutual_info_score(a[:100], b[:100])


def test_labels_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match=r"shapes \(2,\) and \(3,\)"):
        agreement(np.zeros(2, int), np.zeros(3, int))
    with pytest.raises(InputError, match="at least one"):
        agreement(np.zeros(0, int), np.zeros(0, int))


@settings(deadline=None)
@given(LABELS)
def test_every_document_is_in_one_cell(labels: list[tuple[int, int]]) -> None:
    a, b = np.array(labels).T
    table = contingency(a, b, (5, 6)).toarray()
    assert table.dtype == np.int64
    for k in range(5):
        for j in range(6):
            assert table[k, j] == sum(pair == (k, j) for pair in labels)


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 10_000))
def test_matched_clusters_hold_the_most_documents_together(k: int, j: int, seed: int) -> None:
    table = np.random.default_rng(seed).integers(0, 9, (k, j))
    rows, columns = match(table)
    assert len(rows) == len(set(rows.tolist())) == len(set(columns.tolist())) == min(k, j)
    wide = table if k <= j else table.T
    best = max(
        sum(wide[at, to] for at, to in enumerate(chosen))
        for chosen in permutations(range(max(k, j)), min(k, j))
    )
    held = table[rows, columns]
    assert held.sum() == best
    assert (np.diff(held) <= 0).all()


def test_paired_cosines_are_those_of_the_two_vectors_of_each_row() -> None:
    a = np.array([[1, 0], [3, 4], [0, 0], [-2, 0], [1, 1]], np.float16)
    b = np.array([[2, 0], [4, 3], [1, 1], [5, 0], [0, 7]], np.float32)
    assert paired_cosines(a, b).tolist() == pytest.approx([1, 0.96, 0, -1, 0.5**0.5])
    assert len(paired_cosines(a[:0], b[:0])) == 0
