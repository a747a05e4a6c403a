"""Several streams in one, each with its share of the tokens in every window.

Letters: K streams, S tokens handed out, T_k from stream k, p_k its share, l_k the tokens of its next example.

Only streams that are not ahead of their share (T_k <= p_k S) may give the next example. The stream with the least (T_k
+ l_k) / p_k gives it: its next example would end first if stream k had its own line with p_k of the speed (worst-case
fair weighted fair queueing, Bennett and Zhang 1996).

Guarantee: after every example, |T_k - p_k S| is at most the tokens of the longest example; nothing is random.
Cost: O(K) an example; one example of each stream is read ahead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, get_args

from dagster_divorder.core.order.strategy import nearest
from dagster_divorder.errors import InputError
from dagster_divorder.streams.arguments import Target, count_of, of_manifest, shares_of
from dagster_divorder.streams.balancing import (
    STATE_VERSION,
    Example,
    Resumable,
    begin,
    state_of,
    token_counts,
)

Exhausted = Literal["stop", "repeat", "reweigh"]

SNAPSHOT = 1024
"""Examples of a stream between two saved states; a resumed stream reads up to this many again."""


class NamedStream(NamedTuple):
    """A stream and its share, above 0."""

    name: str
    stream: Iterable[Any]
    share: float


class Plan(NamedTuple):
    streams: tuple[NamedStream, ...]
    tokens: Callable[[Any], int] | None
    exhausted: Exhausted


def make_plan(
    streams: Mapping[str, Iterable[Any]],
    target: Target,
    tokens: str | Callable[[Any], int] | None,
    exhausted: Exhausted,
) -> Plan:
    """The streams and their shares, from the arguments of `balance`.

    Raises:
        InputError: an argument cannot be used.
    """
    names = list(streams)
    if exhausted not in get_args(Exhausted):
        raise InputError(f"exhausted is {exhausted!r}; expected 'stop', 'repeat' or 'reweigh'")
    if isinstance(target, str | Path) and target != "estimate":
        [(_, target)] = of_manifest(Path(target)).items()
    if not isinstance(target, Mapping):
        raise InputError(
            f"target is {target!r}; expected the share of each stream, such as "
            f"{{{', '.join(f'{name!r}: {1 / len(names):.2g}' for name in names[:3]) or repr('web') + ': 1'}}}"
        )
    for name in target:
        if name not in streams:
            raise InputError(
                f"target names {name!r}, and there is no such stream; there are {', '.join(map(repr, names))}"
                f"{nearest(str(name), [str(known) for known in names])}"
            )
    for name, stream in streams.items():
        if not isinstance(name, str):
            raise InputError(f"a stream is named {name!r}; expected text")
        if not target.get(name, 0):
            raise InputError(
                f"target gives the stream {name!r} no share; expected one above 0, or leave the stream out"
            )
        if exhausted == "repeat" and isinstance(stream, Iterator):
            raise InputError(
                f"the stream {name!r} is an iterator ({type(stream).__name__}), which cannot be read a second time; "
                "expected one that starts over at each iter(), such as a dataset or a list, or exhausted='stop' or "
                "'reweigh'"
            )
    shares = shares_of("streams", target)
    named = tuple(NamedStream(name, stream, shares[name]) for name, stream in streams.items())
    return Plan(named, count_of(tokens), exhausted)


class Mixed(Resumable[Example]):
    """Several streams as one; each `iter` reads them again. See `balance`."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan

    def _read(self, state: Mapping[str, Any] | None) -> Mixing[Example]:
        return Mixing(self.plan, self.epoch, state)

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        for named in self.plan.streams:
            if hasattr(named.stream, "set_epoch"):
                named.stream.set_epoch(epoch)


class Mixing(Generic[Example]):
    """One pass over several streams."""

    def __init__(self, plan: Plan, epoch: int, state: Mapping[str, Any] | None = None) -> None:
        self.exhausted = plan.exhausted
        states = (state or {}).get("streams", {})
        names = [named.name for named in plan.streams]
        if states and set(states) != set(names):
            raise InputError(f"the state is of the streams {', '.join(states)}; expected {', '.join(names)}")
        self.lines = [Line(named, plan.tokens, epoch, states.get(named.name)) for named in plan.streams]

    def __iter__(self) -> Iterator[Example]:
        waiting = [line for line in self.lines if line.share]
        going = list(waiting)
        while True:
            for line in going:
                while not line.read_ahead():
                    if self.exhausted == "stop":
                        return
                    if self.exhausted == "repeat":
                        line.begin_anew()
                        continue
                    waiting.remove(line)
                    if not waiting:
                        return
                    remaining = math.fsum(other.share for other in waiting)
                    for other in waiting:
                        other.share /= remaining
                        other.behind += other.share * line.behind
                    line.share = line.behind = 0.0
                    break
            least = min(0.0, max(line.behind for line in waiting))
            line = min((line for line in waiting if line.behind >= least), key=Line.end)
            for other in waiting:
                other.behind += other.share * line.length
            going = [line]
            yield line.take()

    def state(self) -> dict[str, Any]:
        """See `Resumable.state_dict`."""
        return {"version": STATE_VERSION, "streams": {line.name: line.state() for line in self.lines}}


class Line:
    """A stream that is being read.

    share: its part of the tokens from now on; 0 once it has ended. behind: p_k S - T_k. passes: completed passes. gone:
    examples since `snapshot`. handed: tokens of this pass that have gone out. ahead: the next example, of `length`
    tokens.
    """

    def __init__(
        self,
        named: NamedStream,
        tokens: Callable[[Any], int] | None,
        epoch: int,
        state: Mapping[str, Any] | None,
    ) -> None:
        self.name, self.stream, self.share = named
        self.tokens, self.epoch, self.behind = tokens, epoch, 0.0
        self.passes = self.gone = 0
        self.handed = 0.0
        self.snapshot: Any = None
        self.ahead: list[Any] = []
        self.length = 0.0
        if state is not None:
            self.share, self.behind, self.handed = state["share"], state["behind"], state["handed"]
            self.passes, self.gone, self.snapshot = state["passes"], state["gone"], state["source"]
        if not self.share:
            return
        self._begin()
        skipped = sum(1 for _ in islice(self.source, self.gone))
        if skipped < self.gone:
            raise InputError(
                f"the stream {self.name!r} has ended at example {skipped:,} of the {self.gone:,} that were read "
                "before the state was saved; expected the same stream"
            )

    def _begin(self) -> None:
        if self.passes and hasattr(self.stream, "set_epoch"):
            self.stream.set_epoch(self.epoch + self.passes)
        self.source = begin(self.stream, self.snapshot)

    def begin_anew(self) -> None:
        """Begins the next pass over the stream; it is another epoch if the stream has epochs."""
        self.passes, self.gone, self.handed, self.snapshot = self.passes + 1, 0, 0.0, None
        self._begin()

    def read_ahead(self) -> bool:
        """Reads the next example; returns whether there is one."""
        if self.gone >= SNAPSHOT and (state := state_of(self.stream, self.source)) is not None:
            self.snapshot, self.gone = state, 0
        self.ahead = list(islice(self.source, 1))
        if self.ahead:
            self.length = 1.0 if self.tokens is None else float(token_counts(self.tokens, self.ahead)[0])
        elif not self.handed:
            raise InputError(
                f"the stream {self.name!r} has {'no tokens' if self.gone else 'no example'}; expected some. In a "
                "DataLoader's workers each stream needs a shard for every worker"
            )
        return bool(self.ahead)

    def end(self) -> float:
        """The time at which the next example would end, less S."""
        return (self.length - self.behind) / self.share

    def take(self) -> Any:
        self.behind -= self.length
        self.handed += self.length
        self.gone += 1
        return self.ahead.pop()

    def state(self) -> dict[str, Any]:
        return {
            "source": self.snapshot,
            "passes": self.passes,
            "gone": self.gone,
            "handed": self.handed,
            "share": self.share,
            "behind": self.behind,
        }
