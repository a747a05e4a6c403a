"""Balancing of streams that never fit into memory: `balance`, and topics of single examples."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dagster_divorder.errors import InputError
from dagster_divorder.streams.arguments import By, Target, make_recipe
from dagster_divorder.streams.balancing import Balanced
from dagster_divorder.streams.several import Exhausted, Mixed, make_plan

BUFFER = 1024


def balance(
    stream: Iterable[Any] | Mapping[str, Iterable[Any]],
    by: By | None = None,
    *,
    tokens: str | Callable[[Any], int] | None = None,
    buffer: int = BUFFER,
    target: Target = "estimate",
    exhausted: Exhausted = "stop",
    seed: int = 0,
) -> Any:
    """Yields each example of a stream once, in an order whose windows carry the stream's mix.

    A balanced buffer takes the place of a shuffle buffer. Several streams become one, each with its share of every
    window.

    >>> stream = [{"source": source, "id": at} for at, source in enumerate("aaaaaabbbccc")]
    >>> "".join(example["source"] for example in balance(stream, by="source", buffer=12))
    'abcaabcaabca'
    >>> "".join(balance({"web": "w" * 12, "code": "c" * 9}, target={"web": 0.75, "code": 0.25}))
    'wcwwwcwwwcwwwcww'

    stream: any iterable, or a mapping from names to iterables. Each `iter` reads it again if it can be read again.
    by: the traits to balance: a field, several fields, or a mapping from traits to weights above 0, to functions of an
        example, or to pairs (function, weight). Dots name nested fields, such as "meta.source". Values are labels
        (text, whole numbers, booleans; None and NaN are one label), or lists of labels, which share the example's
        tokens. Values after the first 1,000 of a trait are balanced together, with a warning. Several streams take
        no `by`; each may be the result of its own `balance`.
    tokens: a field, or a function of an example, for shares of tokens; without it shares are of examples.
    buffer: C, the number of examples held. Windows get nearer to the mix as it rises. No example waits for more than 8
        C others.
    target: "estimate" takes the shares of all examples so far. Or shares of values, {"web": 0.7, "code": 0.3}, by trait
        if there are several traits. Or the curated_meta.json of a run with mixing.weights. For several streams: the
        share of each, kept after every example to within the tokens of one example.
    exhausted: what to do when one of several streams runs out. "stop" ends the result, "repeat" begins that stream
        again, "reweigh" gives its share to the others.
    seed: orders equal examples. The same stream and arguments give the same order.

    The result can be pickled. It has `set_epoch`, and `state_dict` and `load_state_dict`, which resume at the exact
    example. A `datasets.IterableDataset` or `datasets.Dataset` gives an `IterableDataset`; for a `Dataset`, `reorder`
    sees all rows and orders them better. A torch `IterableDataset` gives a torch one. Each DataLoader worker and each
    rank balances its own part of the stream.

    Raises:
        InputError: an argument cannot be used. While iterating: an example lacks a field; a value is no label, or the
            target does not name it; one of several streams is empty.
    """
    if isinstance(stream, Mapping):
        if by is not None or buffer != BUFFER:
            raise InputError(
                f"by and buffer apply to one stream, and there are {len(stream)}: {', '.join(map(repr, stream))}. "
                "Take one, stream['...'], or balance each, then mix: balance({'web': balance(web, by=...), ...}, "
                "target={'web': 0.7, ...})"
            )
        streams = {name: _readable(part) for name, part in stream.items()}
        plan = make_plan(streams, target, tokens, exhausted)
        if any(_is_of("torch.utils.data", "IterableDataset", part) for part in streams.values()):
            from dagster_divorder.streams.torch_streams import MixedDataset

            return MixedDataset(plan)
        return Mixed(plan)
    if by is None:
        raise InputError(
            "by is missing; expected a field of the examples, such as 'source', or a function of one"
        )
    if exhausted != "stop":
        raise InputError(f"exhausted is {exhausted!r}; expected several streams, {{'web': ..., 'code': ...}}")
    recipe = make_recipe(by, tokens, buffer, target, seed)
    stream = _readable(stream)
    if _is_of("datasets", "Dataset", stream) or _is_of("datasets", "IterableDataset", stream):
        from dagster_divorder.streams.hugging_face import balance_dataset

        return balance_dataset(stream, recipe)
    if _is_of("torch.utils.data", "IterableDataset", stream):
        from dagster_divorder.streams.torch_streams import BalancedDataset

        return BalancedDataset(stream, recipe)
    return Balanced(stream, recipe)


def _is_of(module: str, name: str, stream: Any) -> bool:
    """Whether a stream is an instance of class `name` of `module`, without loading the module."""
    return isinstance(stream, getattr(sys.modules.get(module), name, ()))


def _readable(stream: Any) -> Iterable[Any]:
    if _is_of("torchdata.nodes", "BaseNode", stream):
        stream = sys.modules["torchdata.nodes"].Loader(stream)
    if not hasattr(stream, "__iter__"):
        raise InputError(f"the stream is of type {type(stream).__name__}; expected an iterable of examples")
    return stream
