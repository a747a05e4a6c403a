"""Turns conversations into token ids, with the spans of tokens that a model may be trained on.

Letters: n documents, T tokens, K spans, V ids.
Guarantee: the ids are those of `apply_chat_template(tokenize=True)`; a plain text has the same ids as in a corpus of
plain texts. A token belongs to a span of characters if it holds one of them.
Cost: see benchmarks/chats. gigatoken returns no positions of tokens; they follow from the bytes of the tokens before.
Known weakness: `tokenizers`, which is slower, takes texts whose tokens have other bytes than the text: those of a
tokenizer that is neither byte-level nor has byte fallback, and texts with a control token that strips spaces.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unicodedata import is_normalized

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from dagster_divorder.chats.document import Chat, Conversation, MarkedText, Pair, conversation_of
from dagster_divorder.chats.template import ChatTemplate, Span
from dagster_divorder.models.tokenize import (
    Encoder,
    Engine,
    check_ids,
    in_batches,
    in_utf8,
    load_encoder,
    load_reference,
    panics_as_errors,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TRAINED, LAST, COMPLETION = 1, 2, 4
"""Bits of a span's kind: the record allows training on it; it is in the last answer; in the completion."""
SELECTED = {"assistant": TRAINED, "last": TRAINED | LAST, "completion": TRAINED | COMPLETION}
"""`chats.train_on` -> the kind that a span must have to be trained."""

ARRAYS: dict[str, Any] = {
    **{"ids": np.uint32, "lengths": np.int64, "turns": np.int32, "spans": np.int32},
    **{"span_first": np.uint32, "span_last": np.uint32, "span_kind": np.uint8},
}
UNKNOWN = 1 << 40
"""Bytes of a token whose text is unknown: more than any text has."""


class Marked(NamedTuple):
    """A text as a model reads it, and its spans: characters [first, last) and their kind, rising. plain: a plain text,
    one span; control tokens spelled out in it are text."""

    text: str
    spans: list[tuple[Span, int]]
    plain: bool = False


class Tokens(NamedTuple):
    """A text as tokens. ids: uint32 (T,). spans: tokens [first, last) and the kind of each non-empty span, rising,
    int64 (K, 3)."""

    ids: NDArray[np.uint32]
    spans: NDArray[np.int64]


class ChatEncoder:
    """Encodes documents with a saved tokenizer and a chat template. The result is the same with every engine that
    `exact_engine` returns. template: None if no document holds a conversation.

    Raises:
        InputError: no usable tokenizer.json.
    """

    def __init__(self, directory: Path, template: ChatTemplate | None, engine: Engine) -> None:
        self._directory, self._template, self._engine = directory, template, engine
        self._fast: Encoder | None = None
        if engine == "gigatoken":
            content = check_ids(directory)
            widths = _token_bytes(content)
            assert widths is not None, "exact_engine has seen to it"
            self._widths, self._composes = widths, "NFC" in _types(content, "normalizer")
            self._fast = load_encoder(directory, engine, control=True)

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
        plain = [at for at, part in enumerate(parts) if part.plain]
        if plain:
            ids, lengths = self._texts_encoder.encode([parts[at].text for at in plain])
            for at, own in zip(plain, np.split(ids.astype(np.uint32), np.cumsum(lengths)[:-1]), strict=True):
                whole = [[0, len(own), parts[at].spans[0][1]]] if len(own) else []
                tokens[at] = Tokens(own, np.array(whole, np.int64).reshape(-1, 3))
        rendered = [at for at, part in enumerate(parts) if not part.plain]
        if self._fast and rendered:
            ids, lengths = self._fast.encode([parts[at].text for at in rendered])
            for at, own in zip(rendered, np.split(ids, np.cumsum(lengths)[:-1]), strict=True):
                part, text, widths = parts[at], parts[at].text.encode(), self._widths[own]
                keeps_bytes = not self._composes or part.text.isascii() or is_normalized("NFC", part.text)
                if keeps_bytes and widths.sum() == len(text):
                    begins = np.flatnonzero((np.frombuffer(text, np.uint8) & 0xC0) != 0x80)
                    tokens[at] = _placed(part, own, np.cumsum(widths), widths, np.append(begins, len(text)))
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
        starts, ends = np.maximum.accumulate(np.array(encoding.offsets, np.int64).reshape(-1, 2)).T
        tokens.append(_placed(part, np.array(encoding.ids), ends, ends - starts))
    return tokens


def _placed(
    part: Marked,
    ids: NDArray[np.integer],
    ends: NDArray[np.int64],
    widths: NDArray[np.int64],
    places: NDArray[np.int64] | None = None,
) -> Tokens:
    """The tokens of a text with its non-empty spans. ends, widths: of the tokens, in characters, or in units of which
    `places` has the number before each character, and in all."""
    spans = [(first, last, kind) for (first, last), kind in part.spans if first < last]
    first, last, kind = np.array(spans, np.int64).reshape(-1, 3).T
    if places is not None:
        first, last = places[first], places[last]
    first, last = np.searchsorted(ends, first, "right"), np.searchsorted(ends - widths, last, "left")
    return Tokens(ids.astype(np.uint32), np.stack([first, last, kind], axis=1)[first < last])


def as_read(document: str, template: ChatTemplate | None, train_on: str) -> MarkedText:
    """A document as a model reads it, with its trained characters by `chats.train_on`; of a pair, the prompt with the
    chosen answer. template: None if no document holds a conversation.

    Raises:
        InputError: the template refuses the conversation.
    """
    text, spans, _ = parts_of(document, template)[0]
    if train_on == "all":
        return MarkedText(text, ((0, len(text)),))
    wanted = SELECTED[train_on]
    return MarkedText(text, tuple(span for span, kind in spans if kind & wanted == wanted))


def encode_trained(
    texts: Sequence[str], spans: Sequence[Sequence[Span]], reference: Tokenizer
) -> tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.bool_]]:
    """(ids of texts, end to end, uint32 (T,); number of ids of each text, int64 (n,); which are trained, bool (T,)).
    spans: trained characters [first, last) of each text, rising. reference: a saved tokenizer."""
    marked = zip(texts, spans, strict=True)
    tokens = _tokens([Marked(text, [(span, TRAINED) for span in own]) for text, own in marked], reference)
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
    if isinstance(conversation, str) and (kept := conversation_of(conversation)):
        conversation = kept
    if isinstance(conversation, str):
        return [Marked(conversation, [((0, len(conversation)), whole)], plain=True)]
    if isinstance(conversation, MarkedText):
        return [Marked(conversation.text, [(span, whole) for span in conversation.spans])]
    if isinstance(conversation, Pair):
        return [*parts_of(conversation.chosen, template), *parts_of(conversation.rejected, template)]
    assert template is not None
    rendered = template.render(conversation.messages, conversation.tools)
    answers = [number for number, each in enumerate(conversation.messages) if each["role"] == "assistant"]
    spans = []
    for number, trained, turn in zip(answers, conversation.trained, rendered.turns, strict=True):
        kind = TRAINED * trained | LAST * (number == answers[-1])
        kind |= COMPLETION * (number >= conversation.completion)
        spans += [(span, kind) for span in turn]
    return [Marked(rendered.text, spans)]


def exact_engine(directory: Path, engine: Engine, texts: Iterable[str] = ()) -> tuple[Engine, str]:
    """(the fastest engine for rendered texts; why). engine: the fastest for plain texts. texts: a sample of rendered
    ones.

    Raises:
        InputError: no usable tokenizer.json.
    """
    if engine != "gigatoken":
        return engine, f"{engine} is the engine of plain texts"
    if _token_bytes(check_ids(directory)) is None:
        return "tokenizers", "gigatoken gives no places of tokens: the bytes of its tokens are not known"
    encoder = load_encoder(directory, sample=texts, control=True)
    return encoder.engine, encoder.reason


def _token_bytes(content: Mapping[str, Any]) -> NDArray[np.int64] | None:
    """Bytes of the text of each token, int64 (V,), UNKNOWN if the number is not fixed; None if the form of the
    tokenizer's tokens is unknown."""
    byte_level = "ByteLevel" in _types(content, "decoder")
    vocabulary, spelled = content["model"].get("vocab"), byte_level or content["model"].get("byte_fallback")
    # A composed text is unchanged, and a space may become U+2581.
    keeps = _types(content, "normalizer") <= {"Sequence", "NFC", "Replace"}
    if not (spelled and keeps and isinstance(vocabulary, dict)):
        return None
    added = {token["id"]: token for token in content.get("added_tokens") or []}
    widths = np.full(1 + max([*vocabulary.values(), *added]), UNKNOWN, np.int64)
    for text, number in vocabulary.items():
        if byte_level:
            widths[number] = len(text)
        else:
            is_byte = re.fullmatch("<0x[0-9A-F]{2}>", text)
            widths[number] = 1 if is_byte else len(text.replace("\u2581", " ").encode())
    for number, token in added.items():
        widths[number] = len(token["content"].encode())
    return widths


def _types(content: Mapping[str, Any], part: str) -> set[str]:
    """The types in a part of tokenizer.json."""
    return set(re.findall(r'"type":"(\w+)"', orjson.dumps(content.get(part)).decode()))
