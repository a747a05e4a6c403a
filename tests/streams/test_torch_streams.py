"""balance over torch's IterableDataset and torchdata's nodes: a DataLoader takes it, and it resumes to the example."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dagster_divorder as divorder
from dagster_divorder.errors import InputError
from tests.conftest import examples
from tests.streams.resuming import resumes_exactly, resumes_twice, state_after

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, IterableDataset, get_worker_info  # noqa: E402

N = 200
EXAMPLES = [{"id": at, "source": "abc"[at * 3 // N], "tokens": 1 + at % 7} for at in range(N)]


class Counted(IterableDataset):
    """Every worker has its own examples; nothing is known about where it is."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        yield from EXAMPLES[worker.id :: worker.num_workers] if worker else EXAMPLES


class Stateful(Counted):
    """Says where it is, in a dict that goes on changing."""

    def __init__(self) -> None:
        self.state = {"next": 0}
        self.begun = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.begun, first = self.begun + 1, self.state["next"]
        for self.state["next"], example in enumerate(list(super().__iter__())[first:], first + 1):
            yield example
        self.state["next"] = 0

    def state_dict(self) -> dict[str, int]:
        return self.state

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.state = dict(state)


class WithIterator(Counted):
    """The iterator says where it is, not the dataset."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return Place(list(super().__iter__()))


class Place:
    def __init__(self, examples: list[dict[str, Any]]) -> None:
        self.examples, self.at = examples, 0

    def __iter__(self) -> Place:
        return self

    def __next__(self) -> dict[str, Any]:
        if self.at == len(self.examples):
            raise StopIteration
        self.at += 1
        return self.examples[self.at - 1]

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def nodes() -> Any:
    return pytest.importorskip("torchdata.nodes").IterableWrapper(EXAMPLES)


STREAMS: dict[str, Callable[[], Any]] = {
    "counted": Counted,
    "stateful": Stateful,
    "stateful iterator": WithIterator,
    "nodes": nodes,
}


def balanced(stream: Any, **options: Any) -> Any:
    return divorder.balance(stream, **{"by": "source", "buffer": 16, **options})


def numbers(examples: Any) -> list[int]:
    return [int(example["id"]) for example in examples]


@pytest.mark.parametrize("class_", [Counted, Stateful, WithIterator])
def test_the_result_is_a_torch_dataset(class_: type) -> None:
    data = balanced(class_())
    assert isinstance(data, IterableDataset)
    assert sorted(numbers(DataLoader(data, batch_size=None))) == list(range(N))
    assert numbers(pickle.loads(pickle.dumps(data))) == numbers(data)


@pytest.mark.parametrize("stream", STREAMS)
@settings(max_examples=examples(20))
@given(stop=st.integers(0, N), again=st.integers(0, 60))
def test_a_resumed_stream_goes_on_exactly(stream: str, stop: int, again: int) -> None:
    assert sorted(numbers(balanced(STREAMS[stream]()))) == list(range(N))
    resumes_twice(lambda: balanced(STREAMS[stream]()), stop, again, numbers)


def test_a_resumed_stream_begins_at_its_own_state_not_at_the_first_example() -> None:
    """And the epoch after it begins anew."""
    whole, state = numbers(balanced(Stateful())), state_after(balanced(Stateful()), 150)
    data = balanced(Stateful())
    data.load_state_dict(state)
    first = next(iter(data))
    assert first["id"] == whole[150]
    assert data.stream.state["next"] > 100
    assert data.stream.begun == 1
    data = balanced(Stateful())
    data.load_state_dict(state)
    assert [len(list(data)), len(list(data))] == [N - 150, N]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("class_", [Counted, Stateful, WithIterator])
def test_loaders_resume_exactly(class_: type, workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def loader() -> Any:
        return stateful.StatefulDataLoader(
            balanced(class_()), batch_size=8, num_workers=workers, collate_fn=numbers
        )

    batches = resumes_exactly(loader, (0, 17))
    assert sorted(number for batch in batches for number in batch) == list(range(N))


def test_each_worker_balances_its_own_part() -> None:
    order = numbers(
        DataLoader(balanced(Counted(), target={"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}), None, num_workers=2)
    )
    assert sorted(order[::2]) == list(range(0, N, 2))
    assert sorted(order[1::2]) == list(range(1, N, 2))


def test_a_stream_is_told_its_epoch_when_it_resumes() -> None:
    class ByEpoch(Counted):
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[dict[str, Any]]:
            yield from EXAMPLES[self.epoch :]

    data = balanced(ByEpoch())
    data.set_epoch(5)
    whole = numbers(data)
    assert min(whole) == 5
    resumed = balanced(ByEpoch())
    resumed.load_state_dict(state_after(data, 70))
    assert numbers(resumed) == whole[70:]


@pytest.mark.parametrize("kind", ["scalar", "vector"])
def test_labels_may_be_tensors(kind: str) -> None:
    """As decoded samples have them; webdataset's are tuples."""
    samples = [
        (torch.zeros(2), torch.tensor(at % 3 if kind == "scalar" else [at % 3, 7])) for at in range(30)
    ]
    labels = [at % 3 for at in range(30)]
    order = list(balanced(samples, by={"label": lambda sample: sample[1]}))
    assert [int(label.reshape(-1)[0]) for _, label in order] == [
        label for label, _ in balanced([(label, None) for label in labels], by=lambda sample: sample[0])
    ] or kind == "vector"
    with pytest.raises(InputError, match=r"of type tuple, which has no field 'label'.*lambda example"):
        list(balanced(samples, by="label"))


def test_tokens_may_be_tensors() -> None:
    examples = [{**example, "tokens": torch.tensor(example["tokens"])} for example in EXAMPLES]
    assert numbers(balanced(examples, tokens="tokens")) == numbers(balanced(EXAMPLES, tokens="tokens"))


def test_what_is_no_stream_is_refused() -> None:
    with pytest.raises(InputError, match="type int; expected an iterable"):
        balanced(3)
