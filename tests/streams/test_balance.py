"""balance: each example of a stream once, the mix in every window, exact to the example wherever it is stopped."""

from __future__ import annotations

import itertools
import json
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dagster_divorder import balance
from dagster_divorder.errors import InputError

laws = settings(max_examples=25, deadline=None)


def examples(count: int, seed: int = 0) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    return [
        {
            "id": at,
            "source": draw.choice(["web", "web", "web", "code", None]),
            "topic": draw.choice(["a", "b", "c", "d"]),
            "meta": {"lang": draw.choice([1, 2, True])},
            "tokens": draw.choice([0, 3, 10, 400]),
        }
        for at in range(count)
    ]


def ids(stream: Any) -> list[int]:
    return [example["id"] for example in stream]


class Counted:
    """A stream with a state of its own, that counts what is read of it."""

    def __init__(self, items: list[dict[str, Any]]) -> None:
        self.items, self.at, self.begin, self.read, self.epoch = items, 0, 0, 0, 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.at, self.begin = self.begin, 0
        while self.at < len(self.items):
            self.at += 1
            self.read += 1
            yield self.items[self.at - 1]

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.begin = state["at"]

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


ALL = {"source": 2, "topic": 1, "meta.lang": 0.5}


@given(
    count=st.integers(0, 300),
    buffer=st.integers(1, 400),
    tokens=st.sampled_from([None, "tokens"]),
    by=st.sampled_from(["source", ["source", "topic"], ALL]),
    stops=st.lists(st.integers(0, 300), min_size=1, max_size=3),
    own=st.booleans(),
)
@example(count=2, buffer=1, tokens=None, by="source", stops=[2, 0], own=True)
@laws
def test_each_example_comes_once_and_a_stop_anywhere_changes_nothing(
    count: int, buffer: int, tokens: str | None, by: Any, stops: list[int], own: bool
) -> None:
    stream = examples(count)

    def begun() -> Any:
        return balance(Counted(stream) if own else stream, by, tokens=tokens, buffer=buffer, seed=3)

    whole = ids(begun())
    assert sorted(whole) == list(range(count))
    assert all(place <= number + 8 * buffer for place, number in enumerate(whole))
    read: list[int] = []
    balanced = begun()
    for stop in stops:
        read += ids(itertools.islice(iter(balanced), stop))
        state = json.loads(json.dumps(balanced.state_dict()))
        balanced = begun()
        balanced.load_state_dict(state)
    assert read + ids(balanced) == whole


def test_a_stream_with_a_state_is_read_from_the_oldest_that_was_held() -> None:
    stream = examples(20_000)
    balanced = balance(Counted(stream), "source", buffer=100)
    read = ids(itertools.islice(balanced, 15_000))
    state = balanced.state_dict()
    source = Counted(stream)
    balanced = balance(source, "source", buffer=100)
    balanced.load_state_dict(state)
    assert read + ids(balanced) == ids(balance(stream, "source", buffer=100))
    assert source.read < 5_000 + 8 * 100 + 200
    assert len(json.dumps(state)) < 20_000


class Place(Counted):
    """An iterator that says where it is, of a stream that does not."""

    def __iter__(self) -> Place:
        return self

    def __next__(self) -> dict[str, Any]:
        if self.at == len(self.items):
            raise StopIteration
        self.at += 1
        return self.items[self.at - 1]

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class WithPlaces:
    def __init__(self, items: list[dict[str, Any]]) -> None:
        self.items = items

    def __iter__(self) -> Place:
        return Place(self.items)


def of_datasets(items: list[dict[str, Any]]) -> Any:
    datasets = pytest.importorskip("datasets")
    return datasets.IterableDataset.from_generator(lambda: iter(items))


@pytest.mark.parametrize("make", [Counted, WithPlaces, list, of_datasets])
@pytest.mark.parametrize("stop", [0, 3, 150, 297, 299, 300])
def test_the_rest_is_exact_and_the_epoch_after_it_is_whole(make: Callable[[Any], Any], stop: int) -> None:
    """Also in a second pass, before the stream knows that it began, and in the pass after a state at the end."""

    def begun() -> Any:
        return balance(make(examples(300)), "source", buffer=20)

    balanced = begun()
    whole = ids(balanced)
    assert ids(itertools.islice(balanced, stop)) == whole[:stop]
    state = pickle.loads(pickle.dumps(balanced.state_dict()))
    balanced = begun()
    balanced.load_state_dict(state)
    assert ids(balanced) == whole[stop:]
    assert ids(balanced) == whole
    balanced.set_epoch(1)
    assert sorted(ids(balanced)) == list(range(300))


def test_what_is_pickled_begins_anew_and_another_seed_or_epoch_is_another_order() -> None:
    stream = examples(500)
    balanced = balance(stream, "source", buffer=50)
    whole = ids(balanced)
    assert ids(balanced) == whole
    ids(itertools.islice(iter(balanced), 123))
    assert ids(pickle.loads(pickle.dumps(balanced))) == whole
    assert ids(balance(stream, "source", buffer=50, seed=1)) != whole
    counted = balance(Counted(stream), "source", buffer=50)
    counted.set_epoch(1)
    assert counted.stream.epoch == 1
    another = ids(counted)
    assert another != whole and sorted(another) == sorted(whole)
    state = counted.state_dict()
    counted.set_epoch(0)
    counted.load_state_dict(state)
    assert counted.epoch == 1


def shares(stream: list[dict[str, Any]], window: int) -> np.ndarray:
    """The share of "web" in the tokens of each window."""
    tokens = np.array([example["tokens"] for example in stream], float)
    web = tokens * [example["source"] == "web" for example in stream]
    ends = np.arange(window, len(stream) + 1, window)
    return np.add.reduceat(web, ends - window) / np.add.reduceat(tokens, ends - window)


def test_windows_keep_the_mix_by_token_and_lengths_do_not_drift() -> None:
    draw = random.Random(1)
    stream = [
        {"id": at, "source": draw.choice(["web", "code"]), "tokens": round(draw.lognormvariate(5, 1))}
        for at in range(8_000)
    ]
    made = list(balance(stream, "source", tokens="tokens", buffer=512))
    assert np.std(shares(made, 128)) < 0.25 * np.std(shares(stream, 128))
    lengths = np.array([example["tokens"] for example in made])
    chance = lengths.std() / np.sqrt(800)
    assert lengths.reshape(10, -1).mean(axis=1).std() < 2 * chance


def test_values_are_labels_whatever_their_type() -> None:
    kinds: list[Any] = ["1", 1, 1.0, np.int64(1), True, np.True_, None, float("nan")]
    stream = [{"label": kind} for kind in kinds] * 3
    balanced = balance(stream, "label", buffer=7)
    assert set(balanced.state_dict()) == {"epoch", "arguments"}
    assert len(list(balanced)) == len(stream)
    (names,) = balanced.state_dict()["numbers"]
    assert set(names) == {"1", "true", "(missing)"}


def test_more_values_than_are_kept_are_others_with_a_warning() -> None:
    stream = [{"id": at, "label": f"v{at}"} for at in range(3_000)]
    balanced = balance(stream, "label", buffer=20)
    with pytest.warns(UserWarning, match=r"'label' has more than 1,000 values.*such as 'v1000'") as warned:
        assert sorted(ids(balanced)) == list(range(3_000))
    assert len(warned) == 1
    assert len(balanced.state_dict()["numbers"][0]) == 1001


ONE = [{"source": "a", "tags": ["a"], "score": 0.73, "text": b"x", "tokens": -1}]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"by": "sorce"}, "no field 'sorce'; it has 'source', .*did you mean 'source'"),
        ({"by": "score"}, "0.73 of type float; expected a label: .*to cut numbers into bins"),
        ({"by": "tags"}, "of type list; expected a label: .*name one of several values"),
        ({"by": "source.deep"}, "no field 'source.deep'"),
        ({"by": []}, "by is empty"),
        ({"by": {"source": 0}}, r"by\['source'\] is 0; expected .*a weight above 0"),
        ({"by": {"source": float("nan")}}, "a weight above 0"),
        ({"by": "source", "buffer": 0}, "buffer is 0; expected a whole number from 1"),
        ({"by": "source", "seed": -1}, "seed is -1"),
        ({"by": "source", "tokens": 5}, "tokens is 5; expected the field"),
        ({"by": "source", "tokens": "tokens"}, "tokens of an example are -1; expected a number of tokens"),
        ({"by": "source", "tokens": "text"}, "tokens of an example are b'x'"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_with_what_to_do(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        list(balance(ONE, **arguments))


def test_examples_that_are_no_dicts_need_a_function_and_what_is_no_stream_is_refused() -> None:
    pairs = [(f"{at}.txt", {"cls": at % 3}) for at in range(30)]
    with pytest.raises(InputError, match=r"of type tuple, has no field 'cls'.*by=\{'cls': lambda example"):
        list(balance(pairs, "cls"))
    assert sorted(balance(pairs, lambda pair: pair[1]["cls"], buffer=5)) == sorted(pairs)
    with pytest.raises(InputError, match="type int; expected an iterable"):
        balance(3, "source")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "other", [{"by": "topic"}, {"by": {"source": 2}}, {"buffer": 9}, {"seed": 1}, {"version": 1}], ids=str
)
def test_a_state_of_other_arguments_is_refused(other: dict[str, Any]) -> None:
    balanced = balance(examples(100), "source", buffer=10)
    next(iter(balanced))
    state = balanced.state_dict()
    if "version" in other:
        state["arguments"] = state["arguments"] | other
        other = {}
    another = balance(examples(100), **{"by": "source", "buffer": 10, **other})
    with pytest.raises(
        InputError, match=r"saved with .*'seed': 0\} and this is balance with \{'version': 2, "
    ):
        another.load_state_dict(state)
