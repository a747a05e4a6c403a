"""Records of fine-tuning data as conversations: which form they have, and what is wrong with one.

| form | fields |
|---|---|
| `messages` | `messages`: role and content of each turn; `tools` |
| `conversations` | `conversations`: from and value of each turn (ShareGPT); `system`, `tools` |
| `prompt_completion` | `prompt` and `completion`, strings or lists of messages; `tools` |
| `alpaca` | `instruction`, `input`, `output` |

A turn of the model is trained on unless its `weight`, `train` or `loss_mask` is 0 or false.
Known weakness: images and sound are refused, as no tokenizer here reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from dagster_divorder.chats.document import Chat, Conversation, MarkedText, Pair
from dagster_divorder.errors import InputError

Form = Literal["messages", "conversations", "prompt_completion", "alpaca", "pairs"]

ROLES = ("system", "developer", "user", "assistant", "tool")
SPEAKERS = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "assistant": "assistant",
    "function_call": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
}
"""ShareGPT's speakers, and the roles that they have."""

TURN_FIELDS = ("weight", "train", "loss_mask")
"""Fields of a turn that say whether it is trained on; templates do not see them."""


def form_of(record: Mapping[str, Any]) -> Form | None:
    """The form of a record, by its fields; None for a record that is none of them."""
    if _is_list_of(record.get("messages"), "role"):
        return "messages"
    if _is_list_of(record.get("conversations"), "from"):
        return "conversations"
    if "prompt" in record and "completion" in record:
        return "prompt_completion"
    if isinstance(record.get("instruction"), str) and isinstance(record.get("output"), str):
        return "alpaca"
    return None


def conversation_of_record(record: Mapping[str, Any], form: str) -> Conversation:
    """What a record of a form holds.

    Raises:
        InputError: a field is missing, a turn cannot be used, or no turn is trained on; the message is a reason for the
            rejects.
    """
    return _CONVERSATIONS[form](record)


def _messages(record: Mapping[str, Any]) -> Chat:
    return _chat(_turns(record, "messages"), record)


def _share_gpt(record: Mapping[str, Any]) -> Chat:
    said = [_spoken(turn, number) for number, turn in enumerate(_turns(record, "conversations"))]
    system = record.get("system")
    if isinstance(system, str) and system.strip() and said[0].get("role") != "system":
        said = [{"role": "system", "content": system}, *said]
    return _chat(said, record)


def _prompt_completion(record: Mapping[str, Any]) -> Chat | MarkedText:
    prompt, completion = record.get("prompt"), record.get("completion")
    if isinstance(prompt, str) and isinstance(completion, str):
        if not completion.strip():
            raise InputError("the completion is empty")
        return MarkedText(prompt + completion, ((len(prompt), len(prompt + completion)),))
    prompt, completion = _turns(record, "prompt"), _turns(record, "completion")
    return _chat([*prompt, *completion], record, completion=len(prompt))


def _alpaca(record: Mapping[str, Any]) -> Chat:
    parts = [record.get("instruction"), record.get("input") or "", record.get("output")]
    if not all(isinstance(part, str) for part in parts):
        raise InputError("instruction, input or output is no string")
    question = "\n\n".join(part for part in parts[:2] if part.strip())
    return _chat(
        [{"role": "user", "content": question}, {"role": "assistant", "content": parts[2]}],
        record,
        completion=1,
    )


def _pair(record: Mapping[str, Any]) -> Pair:
    raise InputError("pairs are not read yet")


_CONVERSATIONS: dict[str, Callable[[Mapping[str, Any]], Conversation]] = {
    "messages": _messages,
    "conversations": _share_gpt,
    "prompt_completion": _prompt_completion,
    "alpaca": _alpaca,
    "pairs": _pair,
}


def templated(record: Mapping[str, Any], jinja: str) -> MarkedText:
    """The text that `input.template` makes of a record."""
    raise InputError("input.template is not read yet")


def without_nulls(value: Any) -> Any:
    """A value of a Parquet row without null members of its objects, at any depth."""
    if isinstance(value, dict):
        return {name: without_nulls(member) for name, member in value.items() if member is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def _turns(record: Mapping[str, Any], name: str) -> Sequence[Any]:
    turns = record.get(name)
    if isinstance(turns, str):
        raise InputError(
            f"{name} is a string; expected a list of turns: parse it as JSON before you write the record"
        )
    if not isinstance(turns, Sequence) or not turns:
        raise InputError(f"{name} is no list of turns" if turns else f"{name} has no turn")
    for number, turn in enumerate(turns):
        if not isinstance(turn, Mapping):
            raise InputError(f"turn {number + 1} of {name} is no object")
    return turns


def _spoken(turn: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A turn of ShareGPT as a message."""
    speaker = turn.get("from")
    role = SPEAKERS.get(speaker) if isinstance(speaker, str) else None
    if role is None:
        raise InputError(f"turn {number + 1} is from {speaker!r}; expected one of {', '.join(SPEAKERS)}")
    others = {name: value for name, value in turn.items() if name not in ("from", "value")}
    return {"role": role, "content": turn.get("value"), **others}


def _chat(
    turns: Sequence[Mapping[str, Any]], record: Mapping[str, Any], *, completion: int | None = None
) -> Chat:
    messages: list[dict[str, Any]] = []
    weights = []
    for number, turn in enumerate(turns):
        role = turn.get("role")
        if role not in ROLES:
            raise InputError(f"turn {number + 1} has the role {role!r}; expected one of {', '.join(ROLES)}")
        if role == "assistant" and not any(message["role"] in ("user", "tool") for message in messages):
            raise InputError(f"turn {number + 1} is the assistant's, and nobody has asked before")
        message = {
            name: value for name, value in turn.items() if name not in TURN_FIELDS and value is not None
        }
        content = _content(turn, number)
        if not content.strip() and role != "system" and not message.get("tool_calls"):
            raise InputError(f"turn {number + 1} ({role}) is empty")
        messages.append({**message, "content": content})
        if role == "assistant":
            weights.append(_weight(turn, number))
    if not any(weights):
        raise InputError("no turn is trained on: the assistant says nothing, or every weight is 0")
    tools = record.get("tools") or None
    if isinstance(tools, str):
        raise InputError("tools is a string; expected a list: parse it as JSON before you write the record")
    first = completion
    if first is None:
        first = max(number for number, message in enumerate(messages) if message["role"] == "assistant")
    return Chat(tuple(messages), tuple(weights), first, tuple(tools) if tools else None)


def _content(turn: Mapping[str, Any], number: int) -> str:
    content = turn.get("content")
    if content is None and turn.get("tool_calls"):
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence) and content and all(isinstance(part, Mapping) for part in content):
        others = sorted({str(part.get("type")) for part in content if not isinstance(part.get("text"), str)})
        if others:
            raise InputError(
                f"turn {number + 1} has parts of the type {', '.join(others)}; expected text alone"
            )
        return "".join(part["text"] for part in content)
    raise InputError(
        f"the content of turn {number + 1} is {type(content).__name__}; expected a string or parts of text"
    )


def _weight(turn: Mapping[str, Any], number: int) -> bool:
    given = {name: turn[name] for name in TURN_FIELDS if turn.get(name) is not None}
    for name, value in given.items():
        if value not in (0, 1):
            raise InputError(f"{name} of turn {number + 1} is {value!r}; expected true or false, or 1 or 0")
    return all(given.values())


def _is_list_of(value: Any, key: str) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping) and key in value[0]
