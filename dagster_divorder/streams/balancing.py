"""balance: passes a stream through a buffer, which hands out the held example that best keeps the mix.

The buffer is `core.order.balanced_buffer`; this module turns examples into its rows. The value of a trait is what `by`
reads from an example: a label, or a list of labels that share the example's tokens. Shares count tokens, or examples.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from itertools import islice
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from dagster_divorder.core.order.balanced_buffer import empty_slots, empty_sums, keep
from dagster_divorder.core.order.problem import NORM_WEIGHT
from dagster_divorder.errors import InputError

Example = TypeVar("Example")
Yielded = TypeVar("Yielded", covariant=True)

BLOCK = 64
"""Examples that are read together, so that the cost of a kernel call is shared."""

MAX_VALUES = 1000
"""Most values of a trait; later ones become the value "(other)", with a warning."""

STATE_VERSION = 1


class Trait(NamedTuple):
    """read: from an example to its value, or list of values. target: the share of each value, or None for the shares of
    all examples so far."""

    name: str
    read: Callable[[Any], Any]
    weight: float
    target: Mapping[str, float] | None


class Recipe(NamedTuple):
    """Everything that decides an order of a stream."""

    traits: tuple[Trait, ...]
    tokens: Callable[[Any], int] | None
    buffer: int
    seed: int


class CsrRows(NamedTuple):
    """CSR rows of examples: indptr int64 (n + 1,), indices int32 and data float64 (entries,)."""

    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray


class Values:
    """Numbers the values of all traits in order of appearance. The first NORM_CLASSES numbers are norms of rows."""

    def __init__(self, traits: tuple[Trait, ...]) -> None:
        from dagster_divorder.core.kernels.order_buffer import NORM_CLASSES

        self.traits = traits
        self.numbers: list[dict[str, int]] = [{} for _ in traits]
        self.groups = [len(traits)] * NORM_CLASSES
        self.targets = [math.nan] * NORM_CLASSES
        for group, trait in enumerate(traits):
            for value in trait.target or ():
                self.number(group, value)

    def number(self, group: int, value: str) -> int:
        known, trait = self.numbers[group], self.traits[group]
        number = known.get(value)
        if number is not None:
            return number
        if trait.target is not None and value not in trait.target:
            raise InputError(
                f"{trait.name!r} of an example is {value!r}, which the target does not name; it names "
                f"{', '.join(map(repr, list(trait.target)[:10]))}: give {value!r} a share, or use target='estimate'"
            )
        if trait.target is None and len(known) >= MAX_VALUES and value != "(other)":
            if "(other)" not in known:
                warnings.warn(
                    f"{trait.name!r} has more than {MAX_VALUES:,} values in this stream; later ones, such as "
                    f"{value!r}, are balanced together as '(other)': balance values that repeat, such as a topic or "
                    "a site, or give rare values one name",
                    stacklevel=2,
                )
            return self.number(group, "(other)")
        known[value] = number = len(self.groups)
        self.groups.append(group)
        self.targets.append(math.nan if trait.target is None else trait.target[value])
        return number

    def numbers_of(self, group: int, value: Any) -> list[int]:
        """Numbers of a value's labels."""
        if hasattr(value, "tolist"):  # arrays, tensors, and scalars of either
            value = value.tolist()
        labels = list(value) if isinstance(value, list | tuple | set | frozenset) else [value]
        return [self.number(group, label_of(self.traits[group].name, label)) for label in labels or [None]]


def label_of(name: str, value: Any) -> str:
    """A value as text; None and NaN share one text. InputError if it is not a label."""
    if isinstance(value, str):
        return value
    if value is None:
        return "(missing)"
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower()
    if isinstance(value, int | np.integer):
        return str(int(value))
    if isinstance(value, float | np.floating):
        if math.isnan(value):
            return "(missing)"
        if float(value).is_integer():
            return str(int(value))
        raise InputError(
            f"{name!r} of an example is {value!r}; expected a label: text, a whole number or a boolean, or a list of "
            f"them: cut it into bins, such as by={{{name!r}: lambda example: str(round(example[{name!r}], 1))}}"
        )
    raise InputError(
        f"{name!r} of an example is of type {type(value).__name__}; expected a label: text, a whole number or a "
        "boolean, or a list of them"
    )


class Passage(Generic[Example]):
    """Takes examples in the stream's order and returns them in the buffer's order."""

    def __init__(self, recipe: Recipe) -> None:
        from dagster_divorder.core.kernels.order_buffer import BufferMix

        self.recipe = recipe
        self.values = Values(recipe.traits)
        self.examples: dict[int, Example] = {}
        groups = len(recipe.traits) + 1
        self.slots = empty_slots(recipe.buffer, groups, groups)
        self.sums = empty_sums(0)
        weights = [trait.weight for trait in recipe.traits]
        self.mix = BufferMix(
            groups=np.empty(0, np.int32),
            weights=np.array([*weights, NORM_WEIGHT * max(weights)]),
            target=np.empty(0),
            norm=0,
            keep=keep(recipe.buffer),
            seed=recipe.seed,
        )
        self._make_room(0)

    @property
    def entered(self) -> int:
        """Number of examples that have come in."""
        return int(self.sums.counts[0])

    def push(self, examples: list[Example], ended: bool = False) -> list[int]:
        """Takes `examples` in, and returns the stream positions of those that go out next; all held ones if the stream
        has `ended`. The caller removes them from `self.examples`."""
        from dagster_divorder.core.kernels.order_buffer import pass_through

        rows = self._rows(examples)
        out = np.empty(len(examples) + self.recipe.buffer, np.int64)
        self.examples.update(enumerate(examples, self.entered))
        going = pass_through(
            np.arange(len(examples)),
            *rows,
            np.empty((0, 0), np.float32),
            self.mix,
            self.slots,
            self.sums,
            ended,
            out,
        )
        for trait, known in zip(self.recipe.traits, self.values.numbers, strict=True):
            if ended and len(known) == 1 < self.entered:
                told = f"{trait.name!r} is {min(known)!r} in all examples, so it balances nothing"
                warnings.warn(told, stacklevel=2)
        return out[:going].tolist()

    def _rows(self, examples: list[Example]) -> CsrRows:
        traits = self.recipe.traits
        values, amounts = self.values, np.ones(len(examples))
        if self.recipe.tokens is not None:
            amounts = token_counts(self.recipe.tokens, examples)
        columns: list[list[int | list[int]]] = []
        several = False
        for group, trait in enumerate(traits):
            known = values.numbers[group]
            column: list[int | list[int]] = []
            for example in examples:
                value = trait.read(example)
                if type(value) is str and value in known:
                    column.append(known[value])
                    continue
                numbers = values.numbers_of(group, value)
                several = several or len(numbers) > 1
                column.append(numbers if len(numbers) > 1 else numbers[0])
            columns.append(column)
        if not several:
            indices = np.array(columns, np.int32).reshape(len(traits), -1).T.ravel()
            indptr = np.arange(0, len(indices) + 1, len(traits))
            data = amounts.repeat(len(traits))
        else:
            entries: list[tuple[int, float]] = []
            ends = [0]
            for amount, row in zip(amounts.tolist(), zip(*columns, strict=True), strict=True):
                for number in row:
                    labels = number if isinstance(number, list) else [number]
                    share = amount / len(labels)
                    entries += [(label, share * labels.count(label)) for label in dict.fromkeys(labels)]
                ends.append(len(entries))
            indices = np.array([label for label, _ in entries], np.int32)
            data = np.array([share for _, share in entries])
            indptr = np.array(ends)
        self._make_room(int(np.diff(indptr).max(initial=0)))
        return CsrRows(indptr, indices, data)

    def _make_room(self, entries: int) -> None:
        """Grows the arrays for the values known now, and for rows of `entries` entries."""
        values = len(self.values.groups)
        if new_values := values - len(self.mix.groups):
            self.mix = self.mix._replace(
                groups=np.array(self.values.groups, np.int32), target=np.array(self.values.targets)
            )
            grown = {
                name: np.pad(getattr(self.sums, name), (0, new_values))
                for name in ("deviation", "seen", "held")
            }
            self.sums = self.sums._replace(**grown)
        if (new_entries := entries + 1 - self.slots.value.shape[1]) > 0:
            wider = {
                name: np.pad(getattr(self.slots, name), ((0, 0), (0, new_entries)))
                for name in ("value", "amount")
            }
            self.slots = self.slots._replace(**wider)

    def state(self) -> dict[str, Any]:
        """Everything but the held examples, as plain numbers and lists; `resume` takes it."""
        from dagster_divorder.core.kernels.order_buffer import NORM_CLASSES

        by_number = np.argsort(self.slots.number[: self.sums.counts[0] - self.sums.counts[1]])
        groups = len(self.recipe.traits)
        names: list[tuple[int, str]] = [(0, "")] * (len(self.values.groups) - NORM_CLASSES)
        for group, numbers in enumerate(self.values.numbers):
            for name, number in numbers.items():
                names[number - NORM_CLASSES] = (group, name)
        return {
            "arguments": self._arguments(),
            "values": [list(name) for name in names],
            "held": self.slots.number[by_number].tolist(),
            "norms": self.slots.norm[by_number].tolist(),
            "norm_amounts": self.slots.lengths[by_number, groups].tolist(),
            "sums": {name: array.tolist() for name, array in self.sums._asdict().items()},
        }

    def _arguments(self) -> dict[str, Any]:
        recipe = self.recipe
        return {"by": [trait.name for trait in recipe.traits], "buffer": recipe.buffer, "seed": recipe.seed}

    def resume(self, state: Mapping[str, Any], examples: Mapping[int, Example]) -> None:
        """Restores a `state`. examples: by number, those still held, or chosen but not handed out.

        Raises:
            InputError: the state has another buffer, seed or traits.
        """
        theirs, ours = state["arguments"], self._arguments()
        if changed := [
            f"{name} was {theirs[name]}, is {ours[name]}" for name in ours if theirs[name] != ours[name]
        ]:
            raise InputError(
                f"the state was saved with other arguments of balance: {'; '.join(changed)}; expected the same "
                "arguments"
            )
        for group, name in state["values"]:
            self.values.number(group, name)
        self.examples.update(examples)
        numbers = state["held"]
        rows = self._rows([examples[number] for number in numbers])
        for slot, number in enumerate(numbers):
            row = slice(rows.indptr[slot], rows.indptr[slot + 1])
            indices, data = rows.indices[row], rows.data[row]
            lengths = np.bincount(self.mix.groups[indices], data, self.slots.lengths.shape[1])
            if (norm := state["norms"][slot]) >= 0:
                lengths[-1] = amount = state["norm_amounts"][slot]
                indices, data = np.append(indices, norm), np.append(data, amount)
            self.slots.number[slot], self.slots.norm[slot] = number, norm
            self.slots.entries[slot] = len(indices)
            self.slots.value[slot, : len(indices)] = indices
            self.slots.amount[slot, : len(data)] = data
            self.slots.lengths[slot] = lengths
            self.slots.single[slot] = len(np.unique(self.mix.groups[indices])) == len(indices)
        for name, array in self.sums._asdict().items():
            array[:] = state["sums"][name]


def token_counts(tokens: Callable[[Any], int], examples: list[Any]) -> np.ndarray:
    """Tokens of each example, float64 (n,). InputError if one is not a number of 0 or more."""
    counts = [tokens(example) for example in examples]
    try:
        amounts = np.array(counts, np.float64)
    except (TypeError, ValueError):
        amounts = np.array([math.nan])
    if amounts.shape != (len(examples),) or not ((amounts >= 0) & np.isfinite(amounts)).all():
        wrong = next(
            count
            for count in counts
            if not (isinstance(count, int | float | np.number) and 0 <= count < math.inf)
        )
        raise InputError(f"tokens of an example are {wrong!r}; expected a number of tokens, 0 or more")
    return amounts


class Snapshot(NamedTuple):
    """A place to resume reading: after `position` examples. state: the stream's own, or None."""

    position: int
    state: Any


def begin(stream: Iterable[Example], state: Any) -> Iterator[Example]:
    """Reads a stream from a state that `state_of` returned, or from its first example if that is None."""
    loads = hasattr(stream, "load_state_dict")
    if loads and (state is not None or hasattr(stream, "_starting_state_dict")):
        # A `datasets` stream begins every later pass at a loaded state too; None clears it.
        stream.load_state_dict(state)  # type: ignore[attr-defined]
    source = iter(stream)
    if state is not None and not loads:
        source.load_state_dict(state)  # type: ignore[attr-defined]
    return source


def state_of(stream: Iterable[Any], source: Iterator[Any]) -> Any:
    """The state of a stream, or of its iterator; None if neither has one."""
    for stateful in (stream, source):
        if hasattr(stateful, "state_dict") and hasattr(stateful, "load_state_dict"):
            return deepcopy(stateful.state_dict())
    return None


class Pass(Protocol[Yielded]):
    """One pass over a stream, or over several."""

    def __iter__(self) -> Iterator[Yielded]: ...

    def state(self) -> dict[str, Any]: ...


class Resumable(Generic[Example]):
    """A stream whose passes can be saved and resumed."""

    def __init__(self) -> None:
        self.epoch = 0
        self._reading: Pass[Example] | None = None
        self._state: Mapping[str, Any] | None = None

    def _read(self, state: Mapping[str, Any] | None) -> Pass[Example]:
        """A pass that begins at a state, or at the first example if that is None."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Example]:
        self._reading = self._read(self._state)
        self._state = None
        return iter(self._reading)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch, here and in streams that have `set_epoch`. Equal examples get a new order in each epoch."""
        self.epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """The position of the last `iter`: numbers, text and lists, and the stream's own state, but no examples."""
        if self._reading is None:
            return dict(self._state or {"version": STATE_VERSION, "epoch": self.epoch})
        return {"epoch": self.epoch, **self._reading.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next `iter` resume at a state. It is exact if the stream gives the same examples again.

        Reading begins at the oldest held example: by the stream's own state if it has one, else by counting.

        Raises:
            InputError: the state has another version.
        """
        if state.get("version") != STATE_VERSION:
            raise InputError(
                f"the state of a balanced stream has version {state.get('version')!r}; expected {STATE_VERSION}: "
                "load it with the release that wrote it, or start over"
            )
        self._reading, self._state = None, state
        self.set_epoch(state["epoch"])

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the current pass: a copy begins where `iter` would."""
        return {**self.__dict__, "_reading": None}


class Balanced(Resumable[Example]):
    """A stream in the order of a balanced buffer; each `iter` reads it again. See `balance`."""

    def __init__(self, stream: Iterable[Example], recipe: Recipe) -> None:
        super().__init__()
        self.stream, self.recipe = stream, recipe

    def _read(self, state: Mapping[str, Any] | None) -> StreamPass[Example]:
        return StreamPass(self.stream, shifted(self.recipe, self.epoch), state)

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        if hasattr(self.stream, "set_epoch"):
            self.stream.set_epoch(epoch)


def shifted(recipe: Recipe, epoch: int) -> Recipe:
    """The recipe of an epoch. Every epoch but the first has another seed, below 2**63."""
    if epoch == 0:
        return recipe
    state = np.random.SeedSequence([recipe.seed, epoch]).generate_state(1, np.uint64)
    return recipe._replace(seed=int(state[0] >> 1))


class StreamPass(Generic[Example]):
    """One pass over a stream. going: numbers of the examples that go out next. handed: how many of them have gone
    out."""

    def __init__(
        self, stream: Iterable[Example], recipe: Recipe, state: Mapping[str, Any] | None = None
    ) -> None:
        self.stream = stream
        self.passage: Passage[Example] = Passage(recipe)
        self.going: list[int] = []
        self.handed = 0
        # `state_of` will not do: a stream may return an old state until its first example is read.
        self.snapshots = deque([Snapshot(0, None)])
        self.ended = False
        if state and "passage" in state:
            self._resume(state)
        else:
            self.source = begin(stream, None)

    def __iter__(self) -> Iterator[Example]:
        passage, every = self.passage, self.passage.recipe.buffer
        block_size = min(BLOCK, every)
        while True:
            while self.handed < len(self.going):
                number = self.going[self.handed]
                self.handed += 1
                yield passage.examples.pop(number)
            if self.ended:
                return
            self.going, self.handed = [], 0
            if passage.entered - self.snapshots[-1].position >= every:
                self.snapshots.append(Snapshot(passage.entered, state_of(self.stream, self.source)))
                self._forget()
            block = list(islice(self.source, block_size))
            self.ended = len(block) < block_size
            self.going = passage.push(block, self.ended)

    def _forget(self) -> None:
        """Drops snapshots that no held or outgoing example needs."""
        first = min(self.passage.examples, default=self.passage.entered)
        while len(self.snapshots) > 1 and self.snapshots[1].position <= first:
            self.snapshots.popleft()

    def state(self) -> dict[str, Any]:
        """See `Balanced.state_dict`."""
        self._forget()
        return {
            "version": STATE_VERSION,
            "position": self.snapshots[0].position,
            "source": self.snapshots[0].state,
            "read": self.passage.entered,
            "going": self.going[self.handed :],
            "ended": self.ended,
            "passage": self.passage.state(),
        }

    def _resume(self, state: Mapping[str, Any]) -> None:
        position, source = state["position"], state["source"]
        self.snapshots = deque([Snapshot(position, source)])
        self.source = begin(self.stream, source)
        if source is None:
            next(islice(self.source, position, position), None)
        wanted = {*state["going"], *state["passage"]["held"]}
        examples = {
            number: example
            for number, example in enumerate(islice(self.source, state["read"] - position), position)
            if number in wanted
        }
        if len(examples) < len(wanted):
            raise InputError(
                f"the stream has ended before example {state['read']:,}, which was read before the state was saved; "
                "expected the same stream"
            )
        self.passage.resume(state["passage"], examples)
        self.going, self.ended = list(state["going"]), state["ended"]
