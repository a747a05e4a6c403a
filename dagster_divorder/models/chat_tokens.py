"""Turns conversations into token ids, with the spans of tokens that a model may be trained on.

Letters: n documents, P texts (a pair is two), T tokens, K spans, V ids.
Guarantee: the ids are the same as from `apply_chat_template(tokenize=True)`: control tokens in a conversation become
control tokens. A plain text has the same ids as in a corpus of plain texts. A token belongs to a span of characters if
it holds one of them.
Cost: see benchmarks/chats. gigatoken returns no positions of tokens; they follow from the bytes of the tokens before. A
text whose tokens have other bytes than the text is tokenised by `tokenizers`, which is slower.
Known weakness: `tokenizers` also takes all texts of a tokenizer that is neither byte-level nor has byte fallback, and
texts with a control token that strips spaces.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args
from unicodedata import is_normalized

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dagster_divorder.chats.document import (
    Chat,
    Conversation,
    MarkedText,
    Pair,
    as_document,
    conversation_of,
    words,
)
from dagster_divorder.chats.template import ChatTemplate, Span
from dagster_divorder.engine.memory import is_out_of_memory
from dagster_divorder.errors import InputError
from dagster_divorder.models.chat_templates import control_tokens
from dagster_divorder.models.checkpoint import TOKENIZER
from dagster_divorder.models.conformance import conformance_texts
from dagster_divorder.models.tokenize import (
    Encode,
    Encoder,
    Engine,
    explained,
    gigatoken_encode,
    in_batches,
    in_utf8,
    load_encoder,
    load_reference,
    tokenizer_content,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TRAINED, LAST, COMPLETION, END = 1, 2, 4, 8
"""Bits of a span's kind: the record allows training on it; it is in the last answer; in the completion; it ends an
answer."""
SELECTED = {"assistant": TRAINED, "last": TRAINED | LAST, "completion": TRAINED | COMPLETION}
"""`chats.train_on` -> the kind that a span must have to be trained."""

Way = Literal["gigatoken", "tokenizers", "template"]
"""How conversations become tokens, the fastest first. `template` renders each conversation with the template; the
others fill contents into its remembered shape (`ChatTemplate.render`). `gigatoken` tokenises with gigatoken, the others
with `tokenizers`."""

ARRAYS: dict[str, Any] = {
    "ids": np.uint32,
    "lengths": np.int64,
    "turns": np.int32,
    "spans": np.int32,
    "span_first": np.uint32,
    "span_last": np.uint32,
    "span_kind": np.uint8,
}
UNKNOWN = 1 << 40
"""Bytes of a token whose text is unknown: more than any text has."""
KEEPING = {"NFC", "Replace"}
"""Normalizers after which the bytes of a text are known: a composed text is unchanged, and a space may become SPACE."""
SPACE, BYTE = "\u2581", re.compile("<0x[0-9A-F]{2}>")
"""How a vocabulary with byte fallback writes a space and a byte."""


class Marked(NamedTuple):
    """A text as a model reads it, and its spans: characters [first, last) and their kind, rising. plain: a plain text,
    one span; control tokens spelled out in it are text."""

    text: str
    spans: list[tuple[Span, int]]
    plain: bool = False


class Tokens(NamedTuple):
    """Texts as tokens. ids: of all texts, end to end, uint32 (T,). lengths: tokens of each, int64 (P,). part: the text
    of each span, rising, int64 (K,). first, last: tokens [first, last) of that text, int64 (K,). kind: uint8 (K,)."""

    ids: NDArray[np.uint32]
    lengths: NDArray[np.int64]
    part: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    kind: NDArray[np.uint8]


class ChatEncoder:
    """Encodes documents with the tokenizer of a checkpoint directory and a chat template. Every way that `fastest_way`
    may return gives the same tokens.

    Raises:
        InputError: no usable tokenizer.json.
    """

    def __init__(self, directory: Path, template: ChatTemplate, way: Way) -> None:
        self._directory, self._template, self._way = directory, template, way
        self._fast: Encode | None = None
        if way == "gigatoken":
            content = {**tokenizer_content(directory), "added_tokens": control_tokens(directory)}
            self._widths, self._composes = _token_bytes(content), "NFC" in _normalizers(content)
            self._fast = gigatoken_encode(content, control=True)

    @cached_property
    def _texts_encoder(self) -> Encoder:
        return load_encoder(self._directory, "gigatoken" if self._way == "gigatoken" else "tokenizers")

    @cached_property
    def _reference(self) -> Tokenizer:
        reference = load_reference(self._directory, control_tokens(self._directory))
        # Without special tokens it changes at most the positions of tokens: byte-level tokens lose their spaces.
        reference.post_processor = None
        return reference

    def encode(self, documents: pa.Array) -> dict[str, NDArray[np.generic]]:
        """Documents, large_string (n,), as tokens: `ids` uint32 (T,) and `lengths` int64 (n,); `turns` int32 (n,),
        messages of each; and `spans` int32 (n,), the number of its spans: `span_first`, `span_last` uint32 (K,),
        tokens [first, last) of the document, rising, and `span_kind` uint8 (K,).

        A plain text is one span without END, and has no turn. A pair is the prompt with the chosen answer, followed by
        the prompt with the rejected answer.

        Raises:
            InputError: the template refuses a conversation, or a text is not valid Unicode.
        """
        batches = [self._encode(batch) for batch in in_batches(documents.to_pylist())]
        return {
            name: np.concatenate([np.empty(0, dtype), *(batch[name].astype(dtype) for batch in batches)])
            for name, dtype in ARRAYS.items()
        }

    def _encode(self, documents: Sequence[str]) -> dict[str, NDArray[np.generic]]:
        conversations = [conversation_of(document) or document for document in documents]
        alone = self._way == "template"
        parts = [parts_of(conversation, self._template, alone=alone) for conversation in conversations]
        tokens = self.tokens(list(chain.from_iterable(parts)))
        counts = np.fromiter(map(len, parts), np.int64, len(parts))
        first_part = np.cumsum(counts) - counts
        begins = np.cumsum(tokens.lengths) - tokens.lengths
        # Number of the document's tokens before each of its texts.
        before = begins - begins[first_part].repeat(counts)
        owner = np.arange(len(parts)).repeat(counts)[tokens.part]
        return {
            "ids": tokens.ids,
            "lengths": np.add.reduceat(tokens.lengths, first_part),
            "turns": np.fromiter(map(_turns, conversations), np.int32, len(parts)),
            "spans": np.bincount(owner, minlength=len(parts)),
            "span_first": tokens.first + before[tokens.part],
            "span_last": tokens.last + before[tokens.part],
            "span_kind": tokens.kind,
        }

    def tokens(self, parts: Sequence[Marked]) -> Tokens:
        """
        Raises:
            InputError: a text is not valid Unicode.
        """
        plain = np.fromiter((part.plain for part in parts), bool, len(parts))
        if not plain.any():
            return self._rendered_tokens(parts)
        of_texts = self._plain_tokens(_chosen(parts, np.flatnonzero(plain)))
        if plain.all():
            return of_texts
        return _merged(~plain, self._rendered_tokens(_chosen(parts, np.flatnonzero(~plain))), of_texts)

    def _plain_tokens(self, parts: Sequence[Marked]) -> Tokens:
        ids, lengths = self._texts_encoder.encode([part.text for part in parts])
        lengths = lengths.astype(np.int64)
        part, first, kind = (
            np.arange(len(parts)),
            np.zeros_like(lengths),
            [part.spans[0][1] for part in parts],
        )
        return _held(Tokens(ids.astype(np.uint32), lengths, part, first, lengths, np.array(kind, np.uint8)))

    def _rendered_tokens(self, parts: Sequence[Marked]) -> Tokens:
        texts = in_utf8([part.text for part in parts])
        if self._fast is None:
            return self._by_reference(parts)
        ids, lengths = self._fast(texts)
        behind = np.cumsum(lengths)
        ends = np.concatenate([[0], np.cumsum(self._widths[ids])])
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        placed = (ends[behind] - ends[behind - lengths] == sizes) & [
            self._is_composed(part) for part in parts
        ]
        fast = _placed(
            ids[placed.repeat(lengths)], lengths[placed], self._widths, _chosen(parts, np.flatnonzero(placed))
        )
        if placed.all():
            return fast
        slow = self._by_reference(_chosen(parts, np.flatnonzero(~placed)))
        return _merged(placed, fast, slow)

    def _is_composed(self, part: Marked) -> bool:
        """Whether the tokenizer keeps the text's bytes."""
        return not self._composes or part.text.isascii() or is_normalized("NFC", part.text)

    def _by_reference(self, parts: Sequence[Marked]) -> Tokens:
        ids: list[NDArray[np.uint32]] = []
        places: list[NDArray[np.int64]] = []
        for batch in in_batches([part.text for part in parts]):
            with explained(self._directory / TOKENIZER, "cannot encode a text"):
                encodings = self._reference.encode_batch(batch, add_special_tokens=False)
            for encoding in encodings:
                starts, ends = np.maximum.accumulate(np.array(encoding.offsets, np.int64).reshape(-1, 2)).T
                part, first, last, _ = _spans_of(parts[len(ids) : len(ids) + 1])
                spans = np.searchsorted(ends, first, "right"), np.searchsorted(starts, last, "left")
                places.append(np.stack([part + len(ids), *spans]))
                ids.append(np.array(encoding.ids, np.uint32))
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        part, first, last = np.concatenate([np.empty((3, 0), np.int64), *places], axis=1)
        return _held(
            Tokens(
                np.concatenate([np.empty(0, np.uint32), *ids]),
                lengths,
                part,
                first,
                last,
                _spans_of(parts)[3],
            )
        )


def _placed(
    ids: NDArray[Any], lengths: NDArray[np.int64], widths: NDArray[np.int64], parts: Sequence[Marked]
) -> Tokens:
    """Texts as tokens, from their ids alone. widths: bytes of each token, int64 (V,)."""
    characters = np.frombuffer("".join(part.text for part in parts).encode("utf-32-le"), np.uint32)
    size = 1 + (characters > 0x7F) + (characters > 0x7FF).astype(np.int64) + (characters > 0xFFFF)
    byte = np.concatenate([[0], np.cumsum(size)])
    of_parts = np.fromiter((len(part.text) for part in parts), np.int64, len(parts))
    part, first, last, kind = _spans_of(parts)
    first_byte, last_byte = (byte[(np.cumsum(of_parts) - of_parts)[part] + edge] for edge in (first, last))
    ends, begins = np.cumsum(widths[ids]), (np.cumsum(lengths) - lengths)[part]
    return _held(
        Tokens(
            ids.astype(np.uint32),
            lengths.astype(np.int64),
            part,
            np.searchsorted(ends, first_byte, "right") - begins,
            np.searchsorted(ends, last_byte, "left") + 1 - begins,
            kind,
        )
    )


def _merged(placed: NDArray[np.bool_], fast: Tokens, slow: Tokens) -> Tokens:
    """All texts, in order: from `fast` if `placed`, bool (P,), else from `slow`."""
    lengths = np.empty(len(placed), np.int64)
    lengths[placed], lengths[~placed] = fast.lengths, slow.lengths
    ids, of_fast = np.empty(lengths.sum(), np.uint32), placed.repeat(lengths)
    ids[of_fast], ids[~of_fast] = fast.ids, slow.ids
    part = np.concatenate([np.flatnonzero(placed)[fast.part], np.flatnonzero(~placed)[slow.part]])
    order = np.argsort(part, kind="stable")
    first, last, kind = (
        np.concatenate([getattr(fast, column), getattr(slow, column)])[order]
        for column in ("first", "last", "kind")
    )
    return Tokens(ids, lengths, part[order], first, last, kind)


def _held(tokens: Tokens) -> Tokens:
    """The same without empty spans."""
    held = tokens.first < tokens.last
    of_spans = {column: getattr(tokens, column)[held] for column in ("part", "first", "last", "kind")}
    return tokens._replace(**of_spans)


def _spans_of(
    parts: Sequence[Marked],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    """The non-empty spans of texts: text, first, last, kind, (K,) each."""
    spans = [
        (number, first, last, kind)
        for number, part in enumerate(parts)
        for (first, last), kind in part.spans
        if first < last
    ]
    number, first, last, kind = np.array(spans, np.int64).reshape(-1, 4).T
    return number, first, last, kind.astype(np.uint8)


def _chosen(parts: Sequence[Marked], rows: NDArray[np.int64]) -> list[Marked]:
    return [parts[row] for row in rows]


def as_read(document: str, template: ChatTemplate | None, train_on: str) -> MarkedText:
    """A document as a model reads it, with its trained characters by `chats.train_on`; of a pair, the prompt with the
    chosen answer. template: None if no document holds a conversation.

    Raises:
        InputError: the template refuses the conversation.
    """
    text, spans, _ = parts_of(conversation_of(document) or document, template or ChatTemplate("", {}, ()))[0]
    if train_on == "all":
        return MarkedText(text, ((0, len(text)),))
    wanted = SELECTED[train_on]
    return MarkedText(text, tuple(span for span, kind in spans if kind & wanted == wanted))


def encode_trained(
    texts: Sequence[str], spans: Sequence[Sequence[Span]], directory: Path
) -> tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.bool_]]:
    """(ids of texts, end to end, uint32 (T,); number of ids of each text, int64 (n,); which are trained, bool (T,)).
    spans: trained characters [first, last) of each text, rising. directory: of the tokenizer."""
    parts = [
        Marked(text, [(span, TRAINED) for span in of_text])
        for text, of_text in zip(texts, spans, strict=True)
    ]
    tokens = ChatEncoder(directory, ChatTemplate("", {}, ()), "tokenizers").tokens(parts)
    begins = (np.cumsum(tokens.lengths) - tokens.lengths)[tokens.part]
    edges = np.zeros(len(tokens.ids) + 1, np.int64)
    np.add.at(edges, begins + tokens.first, 1)
    np.add.at(edges, begins + tokens.last, -1)
    return tokens.ids, tokens.lengths, np.cumsum(edges[:-1]) > 0


def encoded_chats(
    documents: pa.Array, directory: Path, template: ChatTemplate
) -> list[tuple[list[dict[str, Any]], tuple[Any, ...] | None, list[int]]]:
    """(messages as transformers reads them, tools, ids) of the conversations among documents. directory: of the
    tokenizer."""
    chats = [chat for each in documents.to_pylist() if isinstance(chat := conversation_of(each), Chat)]
    encoded = ChatEncoder(directory, template, "template").encode(
        pa.array([as_document(chat).decode() for chat in chats], pa.large_string())
    )
    ids = np.split(encoded["ids"], np.cumsum(encoded["lengths"]))[:-1]
    return [
        (template.given(chat.messages), chat.tools, of_chat.tolist())
        for chat, of_chat in zip(chats, ids, strict=True)
    ]


def _turns(conversation: Conversation | str) -> int:
    if isinstance(conversation, Pair):
        return _turns(conversation.chosen)
    return len(conversation.messages) if isinstance(conversation, Chat) else 0


def parts_of(
    conversation: Conversation | str, template: ChatTemplate, *, alone: bool = False
) -> list[Marked]:
    """The texts of a document, which are tokenised separately. alone: see `ChatTemplate.render`.

    Raises:
        InputError: the template refuses the conversation.
    """
    if isinstance(conversation, str):
        kind = TRAINED | LAST | COMPLETION
        return [Marked(conversation, [((0, len(conversation)), kind)], plain=True)]
    if isinstance(conversation, MarkedText):
        return [
            Marked(conversation.text, [(span, TRAINED | LAST | COMPLETION) for span in conversation.spans])
        ]
    if isinstance(conversation, Pair):
        sides = (conversation.chosen, conversation.rejected)
        return [part for side in sides for part in parts_of(side, template, alone=alone)]
    return [Marked(*_of_chat(conversation, template, alone=alone))]


def _of_chat(chat: Chat, template: ChatTemplate, *, alone: bool) -> tuple[str, list[tuple[Span, int]]]:
    rendered = template.render(chat.messages, chat.tools, alone=alone)
    answers = [number for number, message in enumerate(chat.messages) if message["role"] == "assistant"]
    spans = []
    for number, trained, turn in zip(answers, chat.trained, rendered.turns, strict=True):
        kind = TRAINED * trained | LAST * (number == answers[-1]) | COMPLETION * (number >= chat.completion)
        spans += [(span, kind | END * (span == turn[-1])) for span in turn]
    return rendered.text, spans


def fastest_way(
    directory: Path, template: ChatTemplate, engine: Engine, sample: Iterable[str] = ()
) -> tuple[Way, str]:
    """(the fastest way that gives the same tokens and spans as the template and `tokenizers`, on fixed conversations
    and on a sample of documents; why no faster way, or ""). engine: the fastest engine for plain texts.

    Raises:
        InputError: no usable tokenizer.json.
    """
    documents = [*conformance_documents([token["content"] for token in control_tokens(directory)]), *sample]
    reference = ChatEncoder(directory, template, "template")
    expected = [_outcome(reference, document) for document in documents]
    reason = "" if engine == "gigatoken" else "tokenizers is the engine of plain texts"
    for way in get_args(Way)[engine == "tokenizers" : -1]:
        try:
            encoder = ChatEncoder(directory, template, way)
            differing = [
                document
                for document, outcome in zip(documents, expected, strict=True)
                if _outcome(encoder, document) != outcome
            ]
        except Exception as error:
            if is_out_of_memory(error):  # the way must not depend on free memory
                raise
            reason = reason or f"{way} cannot run it: {error}"
            continue
        if not differing:
            return way, reason
        reason = reason or f"{way} differs from the reference on {words(differing[0])[:60]!r}"
    return "template", reason


def conformance_documents(control: Iterable[str]) -> list[str]:
    """Fixed conversations of one to four turns with the conformance texts as contents, and the same as marked texts.
    control: tokens that the texts spell out."""
    texts = conformance_texts(control)
    groups = [texts[first:last] for first, last in pairwise([0, *_ends(len(texts))])]
    return [
        as_document(conversation).decode()
        for group in groups
        if len(group) > 1
        for conversation in (_conversation(group), _marked_text(group))
    ]


def _ends(count: int) -> Iterator[int]:
    """Ends of groups of 2, 4, 6, 8, 2, ... of `count` texts."""
    sizes = np.cumsum(np.arange(count) % 4 * 2 + 2)
    yield from sizes[sizes <= count].tolist()


def _conversation(contents: Sequence[str]) -> Chat:
    """Turns of user and assistant; conversations of two turns each have a system turn too."""
    turns = zip(("user", "assistant") * (len(contents) // 2), contents, strict=True)
    system = [("system", contents[0])] if len(contents) == 4 else []
    messages = tuple({"role": role, "content": content} for role, content in [*system, *turns])
    return Chat(messages, (True,) * (len(contents) // 2), len(messages) - 1)


def _marked_text(contents: Sequence[str]) -> MarkedText:
    """Contents end to end, every second one marked."""
    ends = np.cumsum([len(content) for content in contents]).tolist()
    return MarkedText("".join(contents), tuple(zip(ends[::2], ends[1::2], strict=True)))


def _outcome(encoder: ChatEncoder, document: str) -> Any:
    try:
        arrays = encoder.encode(pa.array([document], pa.large_string()))
    except InputError as error:
        return str(error)
    return {name: array.tolist() for name, array in arrays.items()}


def _token_bytes(content: Mapping[str, Any]) -> NDArray[np.int64]:
    """Bytes of the text of each token, int64 (V,); UNKNOWN if the number is not fixed.

    Raises:
        InputError: the form of the tokenizer's tokens is unknown.
    """
    byte_level = _types(content.get("decoder")) & {"ByteLevel"}
    vocabulary, spelled = content["model"].get("vocab"), byte_level or content["model"].get("byte_fallback")
    if not spelled or not isinstance(vocabulary, dict) or not _normalizers(content) <= KEEPING:
        raise InputError("the bytes of its tokens are not known")
    added = {token["id"]: token for token in content.get("added_tokens") or []}
    widths = np.full(1 + max([*vocabulary.values(), *added]), UNKNOWN, np.int64)
    for text, number in vocabulary.items():
        if byte_level:
            widths[number] = len(text)
        else:
            widths[number] = 1 if BYTE.fullmatch(text) else len(text.replace(SPACE, " ").encode())
    for number, token in added.items():
        widths[number] = len(token["content"].encode())
    return widths


def _normalizers(content: Mapping[str, Any]) -> set[str]:
    return _types(content.get("normalizer"))


def _types(part: Mapping[str, Any] | None) -> set[str]:
    """The type of a part of tokenizer.json, or the types in it if it is a sequence."""
    if not part:
        return set()
    if part["type"] == "Sequence":
        members = part.get("normalizers") or part.get("decoders") or []
        return {name for member in members for name in _types(member)}
    return {part["type"]}
