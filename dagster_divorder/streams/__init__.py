"""Streams that never fit into memory: `balance`, and topics of single examples."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from dagster_divorder.streams.arguments import By, Target, make_recipe
from dagster_divorder.streams.balancing import Balanced

Example = TypeVar("Example")


def balance(
    stream: Iterable[Example],
    by: By,
    *,
    tokens: str | Callable[[Example], int] | None = None,
    buffer: int = 1024,
    target: Target = "estimate",
    seed: int = 0,
) -> Balanced[Example]:
    """The examples of a stream, each once, in an order whose windows carry the mix: a balanced buffer in place
    of a shuffle buffer.

    >>> stream = [{"source": source, "id": at} for at, source in enumerate("aaaaaabbbccc")]
    >>> "".join(example["source"] for example in balance(stream, by="source", buffer=12))
    'abcaabcaabca'

    stream: any iterable; one that can be read again gives each epoch anew.
    by: what has to be balanced: a field, several, or a mapping from fields to weights above 0, to functions of an
        example, or to pairs (function, weight). Nested fields are named by the way, such as "meta.source". Values are
        labels (text, whole numbers, booleans; None and NaN are one), or lists of labels, which share the example's
        tokens.
    tokens: a field, or a function of an example; shares are then counted in tokens, else in examples.
    buffer: examples held, C: nearer to the mix as it rises. No example waits for more than 8 C others.
    target: "estimate", the shares of all that came so far; shares of values, {"web": 0.7, "code": 0.3}, by trait where
        there are several; or the curated_meta.json of a run with mixing.weights.
    seed: of the order of equal examples; the same stream and arguments give the same order.

    The result has `state_dict` and `load_state_dict`, exact to the example, and `set_epoch`; it can be pickled.

    Raises:
        InputError: an argument cannot be used; while iterating: an example lacks a field, or has a value that is no
            label or that the target does not name.
    """
    return Balanced(stream, make_recipe(by, tokens, buffer, target, seed))
