"""balance of several streams: the shares hold after every example, and a resumed mix goes on exactly."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import dagster_divorder as divorder
from dagster_divorder.errors import InputError
from tests.conftest import examples
from tests.streams.resuming import resumes_exactly, state_after

TARGET = {"web": 0.7, "code": 0.2, "books": 0.1}


def stream(name: str, lengths: list[int]) -> list[dict[str, Any]]:
    return [{"of": name, "id": at, "tokens": length} for at, length in enumerate(lengths)]


def streams(number: int = 60) -> dict[str, list[dict[str, Any]]]:
    return {
        name: stream(name, [1 + (at * step) % 9 for at in range(number)])
        for step, name in enumerate(TARGET, 2)
    }


def mixed(parts: Any, **options: Any) -> Any:
    return divorder.balance(parts, **{"target": TARGET, "tokens": "tokens", **options})


def named(examples: Any) -> list[tuple[str, int]]:
    return [(example["of"], example["id"]) for example in examples]


class Epochs:
    """A stream that begins elsewhere in each epoch, and knows where it is. As those of `datasets`, it keeps the state
    that it has loaded for every pass over the same epoch."""

    def __init__(self, examples: list[dict[str, Any]]) -> None:
        self.examples = examples
        self.epoch = self.at = 0
        self._starting_state_dict: dict[str, int] | None = None

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        loaded = self._starting_state_dict
        self.at = loaded["at"] if loaded and loaded["epoch"] == self.epoch else 0
        turned = self.examples[self.epoch % 7 :] + self.examples[: self.epoch % 7]
        for example in turned[self.at :]:
            self.at += 1
            yield example

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int] | None) -> None:
        self._starting_state_dict = state


@given(
    lengths=st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=40), min_size=1, max_size=5),
    weights=st.lists(st.integers(1, 20), min_size=5, max_size=5),
    counted=st.booleans(),
)
def test_every_prefix_is_within_one_example_of_the_shares(
    lengths: list[list[int]], weights: list[int], counted: bool
) -> None:
    assume(all(map(any, lengths)))
    names = [str(number) for number in range(len(lengths))]
    total = sum(weights[: len(names)])
    target = {name: weight / total for name, weight in zip(names, weights, strict=False)}
    parts = {name: stream(name, its) for name, its in zip(names, lengths, strict=True)}
    out = list(divorder.balance(parts, target=target, tokens="tokens" if counted else None))
    amounts = [example["tokens"] if counted else 1 for example in out]
    longest = (
        max((example["tokens"] for part in parts.values() for example in part), default=1) if counted else 1
    )
    for name in names:
        own = accumulate(
            amount * (example["of"] == name) for amount, example in zip(amounts, out, strict=True)
        )
        for part, whole in zip(own, accumulate(amounts), strict=True):
            assert abs(part - target[name] * whole) <= longest + 1e-9


def test_each_stream_keeps_its_own_order() -> None:
    out = named(mixed(streams()))
    for name in TARGET:
        numbers = [number for of, number in out if of == name]
        assert numbers == list(range(len(numbers)))
    assert named(mixed(streams())) == out


def test_it_stops_as_soon_as_one_runs_out() -> None:
    out = list(mixed(streams()))
    counts = Counter(example["of"] for example in out)
    assert [name for name in TARGET if counts[name] == 60] == ["web"]
    assert out[-1]["of"] == "web"


def test_one_that_runs_out_is_repeated() -> None:
    out = list(islice(mixed(streams(), exhausted="repeat"), 1000))
    tokens = Counter[str]()
    for example in out:
        tokens[example["of"]] += example["tokens"]
    assert all(abs(tokens[name] - share * tokens.total()) <= 9 for name, share in TARGET.items())
    web = [example["id"] for example in out if example["of"] == "web"]
    assert web == [at % 60 for at in range(len(web))]


def test_each_pass_over_a_stream_is_another_epoch_of_it() -> None:
    parts = {name: Epochs(examples) for name, examples in streams(20).items()}
    mix = mixed(parts, exhausted="repeat")
    for epoch in (0, 2):
        mix.set_epoch(epoch)
        web = [example["id"] for example in islice(mix, 300) if example["of"] == "web"]
        assert web[:45] == [*islice(turned_order(epoch), 45)]


def turned_order(epoch: int) -> Iterator[int]:
    while True:
        yield from ((at + epoch) % 20 for at in range(20))
        epoch += 1


def test_the_others_share_what_one_that_has_run_out_had() -> None:
    parts = {
        "web": stream("web", [1] * 70),
        "code": stream("code", [1] * 2000),
        "books": stream("books", [1] * 2000),
    }
    out = list(mixed(parts, exhausted="reweigh"))
    assert sorted(named(out)) == sorted(named(example for part in parts.values() for example in part))
    assert Counter(example["of"] for example in out[:100]) == {"web": 70, "code": 20, "books": 10}
    for first in range(100, 2800, 256):
        counts = Counter(example["of"] for example in out[first : first + 256])
        assert abs(counts["code"] - 256 * 2 / 3) <= 2


@pytest.mark.parametrize("exhausted", ["stop", "repeat", "reweigh"])
@pytest.mark.parametrize("kind", ["lists", "epochs", "balanced", "balanced epochs"])
@settings(max_examples=examples(25))
@given(stop=st.integers(0, 130), again=st.integers(0, 100), epoch=st.integers(0, 2))
def test_a_resumed_mix_goes_on_exactly(exhausted: Any, kind: str, stop: int, again: int, epoch: int) -> None:
    """At two stops, the second in the resumed mix; and the pass after it begins anew."""

    def make() -> Any:
        parts: dict[str, Any] = streams(30)
        if "epochs" in kind:
            parts = {name: Epochs(examples) for name, examples in parts.items()}
        if "balanced" in kind:
            parts = {name: divorder.balance(part, by="tokens", buffer=8) for name, part in parts.items()}
        return mixed(parts, exhausted=exhausted)

    def begun(state: Any = None) -> Any:
        mix = make()
        mix.set_epoch(epoch)
        if state is not None:
            mix.load_state_dict(state)
        return mix

    whole = named(islice(begun(), 300))
    mix = begun()
    for at, more in ((stop, stop), (stop + again, again)):
        iterator = iter(mix)
        for _ in range(more):
            next(iterator, None)
        mix = begun(json.loads(json.dumps(mix.state_dict())))
        assert named(islice(pickle.loads(pickle.dumps(mix)), 300 - at)) == whole[at:]
    if kind == "epochs" and exhausted != "repeat":
        list(mix)
        assert named(mix) == whole


def test_a_stream_is_resumed_by_its_own_state_once_it_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagster_divorder.streams.several.SNAPSHOT", 8)

    def mix() -> Any:
        return mixed({name: Epochs(examples) for name, examples in streams().items()})

    stops = range(0, len(named(mix())), 5)
    resumes_exactly(mix, stops, named)
    for stop in stops:
        assert all(state["gone"] <= 8 for state in state_after(mix(), stop)["streams"].values())


def test_no_batch_leaves_its_share_to_chance() -> None:
    """Beside interleave_datasets, which draws the stream of each example."""
    datasets = pytest.importorskip("datasets")
    parts = {
        name: datasets.Dataset.from_list(stream(name, [1] * 900)).to_iterable_dataset() for name in TARGET
    }
    drawn = datasets.interleave_datasets(list(parts.values()), probabilities=list(TARGET.values()), seed=1)
    errors = [worst_error(data) for data in (drawn, mixed(parts))]
    assert errors[1] <= 1 / 128 < errors[0]


def worst_error(data: Any) -> float:
    """Of the shares of the batches of 128 examples."""
    names = [example["of"] for example in data]
    return max(
        abs(Counter(names[first:last])[name] / 128 - share)
        for first, last in pairwise(range(0, len(names) + 1, 128))
        for name, share in TARGET.items()
    )


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_streams_of_datasets_in_a_loader_resume_exactly(workers: int) -> None:
    datasets = pytest.importorskip("datasets")
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    utils = pytest.importorskip("torch.utils.data")

    def loader() -> Any:
        parts = {
            name: divorder.balance(
                datasets.Dataset.from_list(examples).to_iterable_dataset(2), by="tokens", buffer=8
            )
            for name, examples in streams().items()
        }
        mix = mixed(parts)
        assert isinstance(mix, utils.IterableDataset)
        return stateful.StatefulDataLoader(mix, batch_size=8, num_workers=workers, collate_fn=named)

    resumes_exactly(loader, (0, 3, len(list(loader())) - 1))


def test_shares_of_a_run_are_taken_from_its_manifest(tmp_path: Path) -> None:
    values = [{"value": name, "share": share} for name, share in TARGET.items()]
    manifest = tmp_path / "curated_meta.json"
    manifest.write_text(json.dumps({"mixing": {"trait": "source", "values": values}}))
    assert named(mixed(streams(), target=manifest)) == named(mixed(streams()))


def test_a_mix_can_be_balanced() -> None:
    parts = {name: stream(name, [1 + at % 3 for at in range(30)]) for name in TARGET}
    out = named(divorder.balance(mixed(parts, exhausted="reweigh"), by="of", buffer=16))
    assert sorted(out) == sorted(named(example for part in parts.values() for example in part))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"by": "topic"},
            r"by and buffer apply to one stream, and there are 3: 'web', 'code', 'books'.*balance each",
        ),
        ({"buffer": 7}, "by and buffer apply to one stream"),
        ({"target": "estimate"}, r"target is 'estimate'; expected the share of each stream, such as \{'web'"),
        ({"target": {"web": 0.7, "code": 0.3}}, "gives the stream 'books' no share"),
        ({"target": {**TARGET, "books": 0}}, "gives the stream 'books' no share"),
        ({"target": {**TARGET, "book": 0.1}}, "target names 'book', and there is no such stream.*'books'"),
        ({"target": {**TARGET, "web": 0.9}}, "sum to 1.2; expected 1"),
        ({"target": {**TARGET, "web": "much"}}, "the share 'much'; expected a number"),
        ({"tokens": 3}, "tokens is 3"),
        ({"tokens": "length"}, "no field 'length'"),
        ({"exhausted": "go on"}, "exhausted is 'go on'; expected 'stop', 'repeat' or 'reweigh'"),
    ],
)
def test_what_cannot_be_mixed_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        list(mixed(streams(), **change))


def test_streams_that_cannot_be_mixed_are_refused() -> None:
    once = {**streams(), "code": iter([])}
    with pytest.raises(InputError, match=r"'code' is an iterator .*cannot be read a second time"):
        mixed(once, exhausted="repeat")
    for exhausted in ("stop", "repeat", "reweigh"):
        with pytest.raises(InputError, match="'code' has no example"):
            list(mixed({**streams(), "code": []}, exhausted=exhausted))
        with pytest.raises(InputError, match="'code' has no tokens"):
            list(mixed({**streams(), "code": stream("code", [0, 0])}, exhausted=exhausted))
    with pytest.raises(InputError, match="a stream is named 3"):
        mixed({3: []}, target={3: 1.0})
    with pytest.raises(InputError, match="expected the share of each stream"):
        mixed({}, target="estimate")
    with pytest.raises(InputError, match="by is missing"):
        divorder.balance([])
    with pytest.raises(InputError, match="exhausted is 'repeat'; expected several streams"):
        divorder.balance([], by="of", exhausted="repeat")


def test_a_state_of_other_streams_is_refused() -> None:
    mix = mixed(streams())
    next(iter(mix))
    other = divorder.balance({"web": [1, 2]}, target={"web": 1})
    other.load_state_dict(mix.state_dict())
    with pytest.raises(InputError, match="state is of the streams web, code, books; expected web"):
        list(other)
    shorter = mixed({**streams(), "web": streams()["web"][:2]})
    iterator = iter(mix)
    for _ in range(30):
        next(iterator)
    shorter.load_state_dict(mix.state_dict())
    with pytest.raises(InputError, match="'web' has ended at example 2 of the"):
        list(shorter)
