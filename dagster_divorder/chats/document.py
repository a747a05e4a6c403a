"""Documents of fine-tuning data: a store keeps conversations, texts with trained parts, and pairs as texts.

Such a document is MARK followed by a JSON object; every other document is a plain text. Its id depends on its content
alone: an edited turn makes a new document, another chat template does not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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

    # Keys keep their order, because templates write tools as JSON.
    def members(part: Conversation) -> dict[str, Any]:
        return {name: value for name in part.__slots__ if (value := getattr(part, name)) is not None}

    return MARK.encode() + orjson.dumps(conversation, members, orjson.OPT_PASSTHROUGH_DATACLASS)


def conversation_of(document: str) -> Conversation | None:
    """The conversation, marked text or pair of a document; None for a plain text."""
    return _from_json(orjson.loads(document[1:])) if document.startswith(MARK) else None


def _from_json(content: dict[str, Any]) -> Any:
    if "chosen" in content:
        return Pair(_from_json(content["chosen"]), _from_json(content["rejected"]))
    if "text" in content:
        return MarkedText(content["text"], tuple((first, last) for first, last in content["spans"]))
    tools = content.get("tools")
    messages, trained = tuple(content["messages"]), tuple(content["trained"])
    return Chat(messages, trained, content["completion"], tuple(tools) if tools else None)


def sides(conversation: Conversation) -> list[Chat | MarkedText]:
    """The conversation, or both of a pair."""
    return [conversation.chosen, conversation.rejected] if isinstance(conversation, Pair) else [conversation]


def words(document: str) -> str:
    """The text of a document without roles and control tokens: the contents of its messages, BETWEEN them."""
    if (conversation := conversation_of(document)) is None:
        return document
    better, *worse = sides(conversation)
    contents = _contents(better)
    for side in worse:
        # The prompt of two conversations counts once.
        contents += _contents(side, side.completion if isinstance(side, Chat) else 0)
    return BETWEEN.join(contents)


def _contents(part: Chat | MarkedText, first: int = 0) -> list[str]:
    if isinstance(part, MarkedText):
        return [part.text]
    return [message["content"] for message in part.messages[first:] if message["content"]]


def all_words(documents: pa.Array) -> pa.Array:
    """`words` of documents, large_string (n,). Plain texts are not copied."""
    import pyarrow as pa

    # The import of `pyarrow.compute` takes as long as 100 MB of texts.
    if re.search(MARK.encode(), documents.buffers()[2] or b"") is None:
        return documents
    return pa.array([words(document) for document in documents.to_pylist()], pa.large_string())


def common(a: Sequence[Any], b: Sequence[Any]) -> int:
    """The length of the common beginning of two sequences."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(a), len(b)))


def tool_name(tool: Any) -> str:
    """The name of a tool or of a called tool; "" if it has none."""
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else ""
