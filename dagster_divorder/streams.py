"""Streams that never fit into memory, through a buffer that keeps the mix (core/kernels/order_buffer.py)."""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeVar

import numpy as np

from dagster_divorder.core.checks import whole_number
from dagster_divorder.core.fields import value_at, ways
from dagster_divorder.core.kernels.order_buffer import empty_buffer, pass_through
from dagster_divorder.core.order.problem import NORM_WEIGHT
from dagster_divorder.core.order.strategy import nearest
from dagster_divorder.errors import InputError

Example = TypeVar("Example")
Read = Callable[[Any], Any]
Readers = dict[str, tuple[Read, float]]  # Trait -> (reads its value; weight).

BLOCK = 64  # Examples that are read together, so that the cost of a kernel call is shared.
MAX_VALUES = 1000  # Of a trait; later ones become the value "(other)", with a warning.
GROWING = ("deviation", "seen", "held")  # Fields of a buffer, with new values.
LACKING = object()


def balance(
    stream: Iterable[Example],
    by: str | Read | Sequence[str] | Mapping[str, Any],
    *,
    tokens: str | Callable[[Example], int] | None = None,
    buffer: int = 1024,
    seed: int = 0,
) -> Balanced[Example]:
    """Yields each example of a stream once, in an order whose windows carry the mix of all examples so far.

    >>> stream = [{"source": source, "id": at} for at, source in enumerate("aaaaaabbbccc")]
    >>> "".join(example["source"] for example in balance(stream, by="source", buffer=12))
    'abcaabcaabca'

    stream: any iterable. Each `iter` reads it again if it can be read again. by: the traits to balance: a field,
    several fields, or a mapping from traits to weights above 0, to functions of an example, or to pairs (function,
    weight). Dots name nested fields, such as "meta.source". Values are labels: text, whole numbers, booleans; None and
    NaN are one label. tokens: a field, or a function of an
    example, for shares of tokens; without it shares are of examples. buffer: C, the number of examples held. Windows
    get nearer to the mix as it rises; no example waits for more than 8 C others. seed: orders equal examples. The
    result can be pickled. Its `state_dict` and `load_state_dict` resume at the exact example.

    Raises:
        InputError: an argument cannot be used. While iterating: an example lacks a field, or a value is no label.
    """
    if not hasattr(stream, "__iter__"):
        raise InputError(f"the stream is of type {type(stream).__name__}; expected an iterable of examples")
    if tokens is not None and not isinstance(tokens, str) and not callable(tokens):
        raise InputError(f"tokens is {tokens!r}; expected the field with the number of tokens, or a function")
    count = partial(_field, tokens) if isinstance(tokens, str) else tokens
    buffer, seed = whole_number("buffer", buffer, 1, 1 << 20), whole_number("seed", seed, 0, (1 << 63) - 1)
    return Balanced(stream, _readers(by), count, buffer, seed)


def _readers(by: Any) -> Readers:
    if callable(by):
        return {getattr(by, "__name__", "by"): (by, 1.0)}
    by_name = by if isinstance(by, Mapping) else dict.fromkeys([by] if isinstance(by, str) else by, 1.0)
    if not by_name:
        raise InputError("by is empty; expected a field of the examples, such as 'source', or a function")
    readers = {}
    for name, entry in by_name.items():
        read, weight = entry if isinstance(entry, tuple) and len(entry) == 2 else (entry, 1.0)
        if not callable(read):
            read, weight = partial(_field, name), read
        number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not (isinstance(name, str) and number and 0 < weight < math.inf):
            raise InputError(
                f"by[{name!r}] is {entry!r}; expected the name of a field, and a weight above 0, a function of an "
                "example, or a pair of both"
            )
        readers[name] = (read, float(weight))
    return readers


def _field(name: str, example: Any) -> Any:
    """A field of an example, named as in `core.fields`; None if a parent is null."""
    fields = example if isinstance(example, Mapping) else {}
    value = value_at(fields, name, LACKING)
    if value is not LACKING:
        return value
    if any(value_at(fields, parent, LACKING) is None for parent, _ in ways(name)):
        return None
    keys = [str(key) for key in fields]
    raise InputError(
        f"an example, of type {type(example).__name__}, has no field {name!r}; it has "
        f"{', '.join(map(repr, keys[:20])) or 'none'}{nearest(name, keys)}. If only some examples have it, or none are "
        f"dicts, give a function that covers all: by={{{name!r}: lambda example: ...}}"
    )


def _label(name: str, value: Any) -> str:
    """A value as text; None and NaN share one text."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, str):
        return value
    if value is None or value != value:
        return "(missing)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return str(int(value))
    raise InputError(
        f"{name!r} of an example is {repr(value)[:80]} of type {type(value).__name__}; expected a label: text, a whole "
        "number or a boolean; to cut numbers into bins, or name one of several values, give a function of an example: "
        f"by={{{name!r}: lambda example: str(round(example[{name!r}], 1))}}"
    )


def _amount(tokens: Any) -> float:
    try:
        if 0 <= (amount := float(tokens)) < math.inf:
            return amount
    except (TypeError, ValueError):
        pass
    raise InputError(f"tokens of an example are {tokens!r}; expected a number of tokens, 0 or more")


class Balanced(Generic[Example]):
    """A stream in the order of a balanced buffer; each `iter` reads it again. See `balance`."""

    def __init__(
        self, stream: Iterable[Example], readers: Readers, tokens: Read | None, buffer: int, seed: int
    ) -> None:
        self.stream, self.readers, self.tokens = stream, readers, tokens
        weights = {name: weight for name, (_, weight) in readers.items()}
        self.arguments: Any = {"version": 2, "by": weights, "buffer": buffer, "seed": seed}
        self.epoch = 0
        self._reading: Reading[Example] | None = None
        self._state: Mapping[str, Any] = {}

    def __iter__(self) -> Iterator[Example]:
        self._reading, self._state = Reading(self, self._state), {}
        return iter(self._reading)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch, here and in a stream that has `set_epoch`. Equal examples get a new order in each epoch."""
        self.epoch = epoch
        if hasattr(self.stream, "set_epoch"):
            self.stream.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position of the last `iter`: numbers, text and lists, and the stream's own state, but no examples."""
        begun = self._reading.state() if self._reading else self._state
        return {**begun, "epoch": self.epoch, "arguments": self.arguments}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next `iter` resume at a state, exactly if the stream gives the same examples again. Reading begins
        at the oldest held example: by the stream's own state if it has one, else by counting.

        Raises:
            InputError: the state is of another release or of other arguments.
        """
        if (theirs := state.get("arguments")) != self.arguments:
            raise InputError(
                f"the state was saved with {theirs} and this is balance with {self.arguments}; load it with the same "
                "arguments, and the release that wrote it, or start over"
            )
        self._reading, self._state = None, state
        self.set_epoch(state["epoch"])

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the current pass: a copy begins where `iter` would."""
        return {**self.__dict__, "_reading": None}


class Reading(Generic[Example]):
    """One pass over a stream. numbers: of each trait's labels. examples: by number, those held or `going` next.
    places: where reading can go on, as the number of examples before it and the stream's own state."""

    def __init__(self, balanced: Balanced[Example], state: Mapping[str, Any]) -> None:
        self.readers, self.tokens = balanced.readers, balanced.tokens
        capacity, seed = balanced.arguments["buffer"], balanced.arguments["seed"]
        if balanced.epoch:
            seed = int(np.random.SeedSequence([seed, balanced.epoch]).generate_state(1, np.uint64)[0] >> 1)
        weights, rows = [weight for _, weight in self.readers.values()], state.get("buffer", {})
        new = empty_buffer(capacity, [*weights, NORM_WEIGHT * max(weights)], seed)
        self.buffer = new._replace(**{name: np.array(rows[name], getattr(new, name).dtype) for name in rows})
        self.groups: list[int] = self.buffer.groups.tolist()
        self.numbers: list[dict[str, int]] = deepcopy(state.get("numbers", [{} for _ in weights]))
        self.going, self.ended = deque[int](state.get("going", ())), state.get("ended", False)
        position, place = state.get("place", (0, None))
        # The first place has no state: a stream may return an old one until its first example is read.
        self.places: deque[tuple[int, Any]] = deque([(position, place)])
        read, gone = self.buffer.counts.tolist()
        wanted = {*self.going, *self.buffer.number[self.buffer.slots[: read - gone]].tolist()}
        # With nothing to read, a loaded place would be where the stream begins its next pass.
        stream: Any = () if self.ended and not wanted else balanced.stream
        by_stream = hasattr(stream, "load_state_dict")
        # `datasets` begins every later pass at a loaded state, too; None clears it.
        if by_stream and (place is not None or type(stream).__module__.startswith("datasets.")):
            stream.load_state_dict(place)
        self.source = iter(stream)
        self.stateful: Any = stream if by_stream else self.source
        if place is not None and not by_stream and stream is balanced.stream:
            self.stateful.load_state_dict(place)
        first = position if place is None else 0
        again = enumerate(islice(self.source, first, first + read - position), position)
        self.examples: dict[int, Example] = {number: example for number, example in again if number in wanted}
        if len(self.examples) < len(wanted):
            raise InputError(f"the stream has ended before example {read:,}, read before the state was saved")

    def __iter__(self) -> Iterator[Example]:
        capacity = len(self.buffer.slots)
        while True:
            while self.going:
                yield self.examples.pop(self.going.popleft())
            if self.ended:
                return
            read = int(self.buffer.counts[0])
            if read - self.places[-1][0] >= capacity:
                stateful = hasattr(self.stateful, "load_state_dict")
                self.places.append((read, deepcopy(self.stateful.state_dict()) if stateful else None))
                first = min(self.examples, default=read)
                while len(self.places) > 1 and self.places[1][0] <= first:
                    self.places.popleft()
            block = list(islice(self.source, min(BLOCK, capacity)))
            self.ended = len(block) < min(BLOCK, capacity)
            rows, out = self._rows(block), np.empty(len(block) + capacity, np.int64)
            self.examples.update(enumerate(block, read))
            for name, known in zip(self.readers, self.numbers, strict=True):
                if self.ended and len(known) == 1 < read + len(block):
                    told = f"{name!r} is {min(known)!r} in all examples, so it balances nothing"
                    warnings.warn(told, stacklevel=2)
            self.going.extend(out[: pass_through(*rows, self.buffer, self.ended, out)].tolist())

    def _rows(self, examples: list[Example]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Examples as CSR rows with a value a trait: indptr, indices, data. Makes room for new values in the buffer."""
        tokens = [1.0 if self.tokens is None else _amount(self.tokens(example)) for example in examples]
        readers = [(group, name, read) for group, (name, (read, _)) in enumerate(self.readers.items())]
        indices = [
            self._number(name, group, read(example)) for example in examples for group, name, read in readers
        ]
        if more := len(self.groups) - len(self.buffer.groups):
            grown = {name: np.pad(getattr(self.buffer, name), (0, more)) for name in GROWING}
            self.buffer = self.buffer._replace(groups=np.array(self.groups, np.int32), **grown)
        data = np.array(tokens, np.float64).repeat(len(readers))
        return len(readers) * np.arange(len(examples) + 1), np.array(indices, np.int32), data

    def _number(self, name: str, group: int, value: Any) -> int:
        """The number of a value's label; a new label gets the next one."""
        known = self.numbers[group]
        if type(value) is str and value in known:
            return known[value]
        label = _label(name, value)
        if label not in known and label != "(other)" and len(known) >= MAX_VALUES:
            if "(other)" not in known:
                text = f"{name!r} has more than {MAX_VALUES:,} values; later ones, such as {label!r}, are '(other)'"
                warnings.warn(text, stacklevel=2)
            label = "(other)"
        if label not in known:
            known[label] = len(self.groups)
            self.groups.append(group)
        return known[label]

    def state(self) -> dict[str, Any]:
        arrays = {name: getattr(self.buffer, name).tolist() for name in self.buffer._fields[:-2]}
        state = {"place": list(self.places[0]), "going": list(self.going), "ended": self.ended}
        return {**state, "numbers": deepcopy(self.numbers), "buffer": arrays}
