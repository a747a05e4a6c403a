"""Conversations as token ids, with the tokens that a model may be trained on.

Letters: n documents, T tokens, K spans.
Guarantee: the ids of `apply_chat_template(tokenize=True)`: control tokens in a text become control tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dagster_divorder.chats.document import Chat, Conversation, MarkedText, Pair, conversation_of
from dagster_divorder.chats.template import ChatTemplate, Span

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TRAINED, LAST, COMPLETION, END = 1, 2, 4, 8
"""Of a span of tokens: the record lets it be trained on; it is of the last answer; of the completion; an answer ends
with it."""
SELECTED = {"assistant": TRAINED, "last": TRAINED | LAST, "completion": TRAINED | COMPLETION}
"""What a span must be to be trained on, by `chats.train_on`."""


class Marked(NamedTuple):
    """A text as a model reads it, and its spans: characters [first, last) and their kind, rising."""

    text: str
    spans: list[tuple[Span, int]]


def encode_documents(
    documents: pa.Array, tokenizer: Tokenizer, template: ChatTemplate
) -> dict[str, NDArray[np.generic]]:
    """Documents, large_string (n,), as tokens: `ids` uint32 (T,) and `lengths` int64 (n,); `turns` int32 (n,), messages
    of each; and `spans` int32 (n,), the number of its spans: `span_first`, `span_last` uint32 (K,), tokens [first,
    last) of the document, rising, and `span_kind` uint8 (K,).

    A plain text is one span without END, and has no turn. Of a pair the prompt with the chosen answer comes first,
    and the prompt with the rejected one behind it.
    """
    conversations = [conversation_of(document) or document for document in documents.to_pylist()]
    parts = [_parts(conversation, template) for conversation in conversations]
    encoded = [_encode(tokenizer, document) for document in parts]
    spans = [spans for _, spans in encoded]
    first, last, kind = (
        np.array([span[column] for document in spans for span in document], dtype)
        for column, dtype in enumerate((np.uint32, np.uint32, np.uint8))
    )
    return {
        "ids": np.concatenate([np.empty(0, np.uint32), *(ids for ids, _ in encoded)]),
        "lengths": np.fromiter((len(ids) for ids, _ in encoded), np.int64, len(encoded)),
        "turns": np.fromiter(map(_turns, conversations), np.int32, len(conversations)),
        "spans": np.fromiter(map(len, spans), np.int32, len(spans)),
        "span_first": first,
        "span_last": last,
        "span_kind": kind,
    }


def _turns(conversation: Conversation | str) -> int:
    if isinstance(conversation, Pair):
        return _turns(conversation.chosen)
    return len(conversation.messages) if isinstance(conversation, Chat) else 0


def _parts(conversation: Conversation | str, template: ChatTemplate) -> list[Marked]:
    """The texts of a document, which are tokenised apart."""
    if isinstance(conversation, str):
        return [Marked(conversation, [((0, len(conversation)), TRAINED | LAST | COMPLETION)])]
    if isinstance(conversation, MarkedText):
        return [
            Marked(conversation.text, [(span, TRAINED | LAST | COMPLETION) for span in conversation.spans])
        ]
    if isinstance(conversation, Pair):
        return [*_parts(conversation.chosen, template), *_parts(conversation.rejected, template)]
    return [Marked(*_of_chat(conversation, template))]


def _of_chat(chat: Chat, template: ChatTemplate) -> tuple[str, list[tuple[Span, int]]]:
    rendered = template.render(chat.messages, chat.tools)
    answers = [number for number, message in enumerate(chat.messages) if message["role"] == "assistant"]
    spans = []
    for number, trained, turn in zip(answers, chat.trained, rendered.turns, strict=True):
        kind = TRAINED * trained | LAST * (number == answers[-1]) | COMPLETION * (number >= chat.completion)
        spans += [(span, kind | END * (span == turn[-1])) for span in turn]
    return rendered.text, spans


def _encode(
    tokenizer: Tokenizer, parts: Sequence[Marked]
) -> tuple[NDArray[np.uint32], list[tuple[int, int, int]]]:
    """The ids of the texts of a document, end to end, and its spans: first token, the one behind the last, kind. A
    token belongs to a span from the one that holds its first character to the one that holds its last."""
    ids: list[int] = []
    spans = []
    for part in parts:
        encoding = tokenizer.encode(part.text, add_special_tokens=False)
        for (first, last), kind in part.spans:
            begins, ends = encoding.char_to_token(first), encoding.char_to_token(last - 1)
            if begins is not None:
                end = len(encoding) if ends is None else ends + 1
                spans.append((len(ids) + begins, len(ids) + end, kind))
        ids += encoding.ids
    return np.array(ids, np.uint32), spans
