"""Turns conversations into token ids, with the spans of tokens that a model may be trained on.

Letters: n documents, T tokens, K spans, V ids.
Guarantee: the ids are those of `apply_chat_template(tokenize=True)`; a plain text has the same ids as in a corpus of
plain texts. A token belongs to a span of characters if it holds one of them.
Cost: see benchmarks/chats. gigatoken returns no positions of tokens; they follow from the bytes of the tokens before.
Known weakness: `tokenizers`, which is slower, takes texts that their tokens do not spell: of a tokenizer that composes
letters or has unknown ones, and texts with a control token that strips spaces.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dagster_divorder.chats.document import Chat, Conversation, MarkedText, Pair, conversation_of
from dagster_divorder.chats.template import ChatTemplate, Span
from dagster_divorder.models.tokenize import (
    Encoder,
    Engine,
    check_ids,
    gigatoken_encode,
    in_batches,
    in_utf8,
    load_encoder,
    load_gigatoken,
    load_reference,
    panics_as_errors,
)

if TYPE_CHECKING:
    import gigatoken
    from tokenizers import Tokenizer

TRAINED, LAST, COMPLETION = 1, 2, 4
"""Bits of a span's kind: the record allows training on it; it is in the last answer; in the completion."""
SELECTED = {"assistant": TRAINED, "last": TRAINED | LAST, "completion": TRAINED | COMPLETION}
"""`chats.train_on` -> the kind that a span must have to be trained."""

ARRAYS: dict[str, Any] = {
    **{"ids": np.uint32, "lengths": np.int64, "turns": np.int32, "spans": np.int32},
    **{"span_first": np.uint32, "span_last": np.uint32, "span_kind": np.uint8},
}


class Marked(NamedTuple):
    """A text as a model reads it, and its spans, rising: characters [first, last) and the kind. plain: a plain text,
    one span; control tokens spelled out in it are text."""

    text: str
    spans: list[tuple[int, int, int]]
    plain: bool = False


class Tokens(NamedTuple):
    """A text as tokens. ids: uint32 (T,). spans: tokens [first, last) and the kind of each non-empty span, rising,
    int64 (K, 3)."""

    ids: NDArray[np.uint32]
    spans: NDArray[np.int64]


class ChatEncoder:
    """Encodes documents with a saved tokenizer and a chat template. template: None if no document holds a conversation.
    engine: one that gives the reference's ids of plain texts and of rendered ones, as `load_encoder` chooses it without
    and with `control`; the result is the same with each.

    Raises:
        InputError: no usable tokenizer.json.
    """

    def __init__(self, directory: Path, template: ChatTemplate | None, engine: Engine) -> None:
        self._directory, self._template, self._engine = directory, template, engine
        self._fast: gigatoken.Tokenizer | None = None
        if engine == "gigatoken":
            self._fast = load_gigatoken(check_ids(directory), control=True)
            texts = self._fast.vocab
            self._widths = np.zeros(1 + max(texts), np.int64)
            # Where tokens are not bytes, a space is U+2581.
            self._widths[[*texts]] = [len(text.replace("\u2581".encode(), b" ")) for text in texts.values()]

    @cached_property
    def _reference(self) -> Tokenizer:
        return load_reference(self._directory)

    @cached_property
    def _texts_encoder(self) -> Encoder:
        return load_encoder(self._directory, self._engine)

    def encode(self, documents: pa.Array) -> dict[str, NDArray[np.generic]]:
        """Documents, large_string (n,), as tokens: `ids` uint32 (T,) and `lengths` int64 (n,); `turns` int32 (n,),
        messages of each; and `spans` int32 (n,), the number of its spans: `span_first`, `span_last` uint32 (K,),
        tokens [first, last) of the document, rising, and `span_kind` uint8 (K,).

        A plain text is one span, and has no turn. A pair is the prompt with the chosen answer, followed by
        the prompt with the rejected answer.

        Raises:
            InputError: the template refuses a conversation, or a text is not valid Unicode.
        """
        ids, spans = [np.empty(0, np.uint32)], [np.empty((0, 3), np.int64)]
        counts: list[tuple[int, int, int]] = []
        for batch in in_batches(documents.to_pylist()):
            conversations = [conversation_of(document) or document for document in batch]
            parts = [parts_of(conversation, self._template) for conversation in conversations]
            tokens = iter(self.tokens(list(chain.from_iterable(parts))))
            for conversation, own in zip(conversations, parts, strict=True):
                length = span_count = 0
                for part in islice(tokens, len(own)):
                    ids.append(part.ids)
                    spans.append(part.spans + np.array([length, length, 0]))
                    length, span_count = length + len(part.ids), span_count + len(part.spans)
                first = conversation.chosen if isinstance(conversation, Pair) else conversation
                counts.append((length, len(first.messages) if isinstance(first, Chat) else 0, span_count))
        lengths, turns, span_counts = np.array(counts, np.int64).reshape(-1, 3).T
        arrays = (np.concatenate(ids), lengths, turns, span_counts, *np.concatenate(spans).T)
        return {name: array.astype(ARRAYS[name]) for name, array in zip(ARRAYS, arrays, strict=True)}

    def tokens(self, parts: Sequence[Marked]) -> list[Tokens]:
        """
        Raises:
            InputError: a text is not valid Unicode.
        """
        tokens = dict[int, Tokens]()
        if plain := [at for at, part in enumerate(parts) if part.plain]:
            ids, lengths = self._texts_encoder.encode([parts[at].text for at in plain])
            for at, own in zip(plain, np.split(ids, np.cumsum(lengths)[:-1]), strict=True):
                tokens[at] = _placed(own, np.arange(len(own)), 1, [(0, len(own), parts[at].spans[0][2])])
        rendered = [at for at, part in enumerate(parts) if not part.plain]
        if self._fast and rendered:
            texts = in_utf8([parts[at].text for at in rendered])
            ids, lengths = gigatoken_encode(self._fast)(texts)
            for at, text, own in zip(rendered, texts, np.split(ids, np.cumsum(lengths)[:-1]), strict=True):
                widths = self._widths[own]
                if self._fast.decode(own) == text and widths.sum() == len(text):
                    begins = np.flatnonzero((np.frombuffer(text, np.uint8) & 0xC0) != 0x80)
                    byte = [*begins.tolist(), len(text)]
                    spans = [(byte[first], byte[last], kind) for first, last, kind in parts[at].spans]
                    tokens[at] = _placed(own, np.cumsum(widths) - widths, widths, spans)
        if slow := [at for at in rendered if at not in tokens]:
            tokens |= zip(slow, _tokens([parts[at] for at in slow], self._reference), strict=True)
        return [tokens[at] for at in range(len(parts))]


def _tokens(parts: Sequence[Marked], reference: Tokenizer) -> list[Tokens]:
    """Rendered texts as tokens of `tokenizers`."""
    # Without special tokens it changes at most the positions of tokens: byte-level tokens lose their spaces.
    reference.post_processor = None
    in_utf8([part.text for part in parts])
    encodings: list[Any] = []
    for batch in in_batches([part.text for part in parts]):
        with panics_as_errors():
            encodings += reference.encode_batch(batch, add_special_tokens=False)
    tokens = []
    for part, encoding in zip(parts, encodings, strict=True):
        begins, ends = np.maximum.accumulate(np.array(encoding.offsets, np.int64).reshape(-1, 2)).T
        tokens.append(_placed(np.array(encoding.ids), begins, ends - begins, part.spans))
    return tokens


def _placed(
    ids: NDArray[np.integer],
    begins: NDArray[np.int64],
    widths: NDArray[np.int64] | int,
    spans: Sequence[tuple[int, int, int]],
) -> Tokens:
    """Tokens with their non-empty spans. begins, widths: of the tokens, in the unit of the spans."""
    first, last, kind = np.array([each for each in spans if each[0] < each[1]], np.int64).reshape(-1, 3).T
    first, last = np.searchsorted(begins + widths, first, "right"), np.searchsorted(begins, last, "left")
    return Tokens(ids.astype(np.uint32), np.stack([first, last, kind], axis=1)[first < last])


def as_read(document: str, template: ChatTemplate | None, train_on: str) -> MarkedText:
    """A document as a model reads it, with its trained characters by `chats.train_on`; of a pair, the prompt with the
    chosen answer. template: None if no document holds a conversation.

    Raises:
        InputError: the template refuses the conversation.
    """
    text, spans, _ = parts_of(document, template)[0]
    wanted = SELECTED.get(train_on, 0)
    chosen = [(first, last) for first, last, kind in spans if kind & wanted == wanted]
    return MarkedText(text, tuple(chosen) if wanted else ((0, len(text)),))


def encode_trained(
    texts: Sequence[str], spans: Sequence[Sequence[Span]], reference: Tokenizer
) -> tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.bool_]]:
    """(ids of texts, end to end, uint32 (T,); number of ids of each text, int64 (n,); which are trained, bool (T,)).
    spans: trained characters [first, last) of each text, rising. reference: a saved tokenizer."""
    parts = (Marked(text, [(*span, TRAINED) for span in own]) for text, own in zip(texts, spans, strict=True))
    tokens = _tokens([*parts], reference)
    lengths = np.fromiter((len(each.ids) for each in tokens), np.int64, len(tokens))
    trained = np.zeros(lengths.sum(), bool)
    for begin, each in zip(np.cumsum(lengths) - lengths, tokens, strict=True):
        for first, last, _ in begin + each.spans:
            trained[first:last] = True
    return np.concatenate([np.empty(0, np.uint32), *(each.ids for each in tokens)]), lengths, trained


def parts_of(conversation: Conversation | str, template: ChatTemplate | None) -> list[Marked]:
    """The texts of a document or its conversation, which are tokenised separately.

    Raises:
        InputError: the template refuses the conversation.
    """
    whole = TRAINED | LAST | COMPLETION
    if isinstance(conversation, str):
        kept = conversation_of(conversation)
        if kept is None:
            return [Marked(conversation, [(0, len(conversation), whole)], plain=True)]
        conversation = kept
    if isinstance(conversation, MarkedText):
        return [Marked(conversation.text, [(*span, whole) for span in conversation.spans])]
    if isinstance(conversation, Pair):
        return [*parts_of(conversation.chosen, template), *parts_of(conversation.rejected, template)]
    assert template is not None
    rendered = template.render(conversation.messages, conversation.tools)
    answers = [number for number, each in enumerate(conversation.messages) if each["role"] == "assistant"]
    spans = []
    for number, trained, turn in zip(answers, conversation.trained, rendered.turns, strict=True):
        kind = TRAINED * trained | LAST * (number == answers[-1])
        kind |= COMPLETION * (number >= conversation.completion)
        spans += [(*span, kind) for span in turn]
    return [Marked(rendered.text, spans)]
