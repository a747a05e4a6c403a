"""Documents of fine-tuning data: a store keeps conversations, texts with trained parts, and pairs as texts.

Such a document is MARK followed by a JSON object; every other document is a plain text. Its id depends on its content
alone: an edited turn makes a new document, another chat template does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    import pyarrow as pa

MARK = "\x1e"
"""First character of a document that is not a plain text; RFC 7464 begins JSON texts with it."""
BETWEEN = "\n\n"
"""Separates messages in `words`."""


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation.

    messages: role, content and any other fields that a template reads. trained: for each assistant message, whether the
    record allows training on it. completion: index of the first message of the completion. tools: as in the record,
    None if it has none.
    """

    messages: tuple[dict[str, Any], ...]
    trained: tuple[bool, ...]
    completion: int
    tools: tuple[Any, ...] | None = None


@dataclass(frozen=True, slots=True)
class MarkedText:
    """A text and its trained parts: characters [first, last), rising."""

    text: str
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """A better and a worse answer to one prompt, each with the prompt."""

    chosen: Chat | MarkedText
    rejected: Chat | MarkedText


Conversation = Chat | MarkedText | Pair


def as_document(conversation: Conversation) -> bytes:
    """The document of a conversation, UTF-8.

    Raises:
        orjson.JSONEncodeError: a message holds a value that is not JSON, or a lone surrogate.
    """
    return MARK.encode() + orjson.dumps(_as_json(conversation))


def _as_json(conversation: Conversation) -> dict[str, Any]:
    if isinstance(conversation, Pair):
        return {"chosen": _as_json(conversation.chosen), "rejected": _as_json(conversation.rejected)}
    if isinstance(conversation, MarkedText):
        return {"text": conversation.text, "spans": conversation.spans}
    # Keys keep their order, because templates write tools as JSON.
    return {
        "messages": conversation.messages,
        "trained": conversation.trained,
        "completion": conversation.completion,
        **({"tools": conversation.tools} if conversation.tools else {}),
    }


def conversation_of(document: str) -> Conversation | None:
    """The conversation, marked text or pair of a document; None for a plain text."""
    return _from_json(orjson.loads(document[1:])) if document.startswith(MARK) else None


def _from_json(content: dict[str, Any]) -> Any:
    if "chosen" in content:
        return Pair(_from_json(content["chosen"]), _from_json(content["rejected"]))
    if "text" in content:
        return MarkedText(content["text"], tuple((first, last) for first, last in content["spans"]))
    tools = content.get("tools")
    return Chat(
        messages=tuple(content["messages"]),
        trained=tuple(content["trained"]),
        completion=content["completion"],
        tools=tuple(tools) if tools else None,
    )


def words(document: str) -> str:
    """The text of a document without roles and control tokens: the contents of its messages, BETWEEN them."""
    conversation = conversation_of(document)
    return document if conversation is None else _words(conversation)


def _words(conversation: Conversation) -> str:
    if isinstance(conversation, MarkedText):
        return conversation.text
    if isinstance(conversation, Chat):
        return BETWEEN.join(message["content"] for message in conversation.messages if message["content"])
    chosen, rejected = conversation.chosen, conversation.rejected
    if isinstance(chosen, Chat) and isinstance(rejected, Chat):
        return BETWEEN.join([_words(chosen), *_contents(rejected, rejected.completion)])
    return BETWEEN.join([_words(chosen), _words(rejected)])


def _contents(chat: Chat, first: int) -> list[str]:
    return [message["content"] for message in chat.messages[first:] if message["content"]]


def all_words(documents: pa.ChunkedArray) -> pa.ChunkedArray:
    """`words` of documents, large_string (n,). Plain texts are not copied."""
    import pyarrow as pa

    chunks: Sequence[pa.Array] = documents.chunks
    return pa.chunked_array([_chunk_words(chunk) for chunk in chunks], pa.large_string())


def _chunk_words(chunk: pa.Array) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    # The import of `pyarrow.compute` takes as long as 100 MB of texts.
    _, offsets, data = chunk.buffers()
    bounds = np.frombuffer(offsets, np.int64)[chunk.offset :][: len(chunk) + 1]
    first = bounds[:-1][bounds[1:] > bounds[:-1]]
    if not len(first) or not (np.frombuffer(data, np.uint8)[first] == ord(MARK)).any():
        return chunk
    return pa.array([words(document) for document in chunk.to_pylist()], pa.large_string())
