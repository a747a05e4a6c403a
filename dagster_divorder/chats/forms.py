"""Reads records of fine-tuning data as conversations: finds the form of a record, and reports what is wrong with it.

| form | fields |
|---|---|
| `pairs` | `chosen` and `rejected`: strings, turns or lists of turns; a prompt beside them, or as their beginning |
| `messages` | `messages`: a list of turns, each `role` and `content`, or `from` and `value`; `system`, `tools` |
| `conversations` | `conversations`: the same (ShareGPT) |
| `prompt_completion` | `prompt` and `completion`: strings, turns or lists of turns; `system`, `tools` |
| `alpaca` | one of QUESTIONS, CONTEXTS after it, and one of ANSWERS; `system` |

A prompt and a completion that are both strings make a text whose completion is trained; every other record is a chat.
An assistant turn is trained unless one of its TURN_FIELDS is 0 or false, or it belongs to a prompt.
Known weakness: images and sound are refused, because no tokenizer here reads them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import orjson

from dagster_divorder.chats.document import Chat, Conversation, MarkedText, Pair, common, tool_name
from dagster_divorder.errors import InputError

Form = Literal["pairs", "messages", "conversations", "prompt_completion", "alpaca"]
LISTS: tuple[Form, ...] = ("messages", "conversations")
QUESTIONS, CONTEXTS = ("instruction", "question", "query", "prompt"), ("input", "context")
ANSWERS, SYSTEMS = ("output", "response", "answer"), ("system", "system_prompt")
_CHOICES = ("choices", "options")
"""Fields of multiple-choice questions, whose answers are too short to train on."""
NAMES = frozenset(
    {
        *(*LISTS, *QUESTIONS, *CONTEXTS, *ANSWERS, *SYSTEMS, *_CHOICES),
        *("prompt", "completion", "chosen", "rejected", "history", "tools", "mask", "chat_template_kwargs"),
    }
)
"""The fields of a record that are read."""

SPEAKERS = {
    **{role: role for role in ("system", "developer", "user", "assistant", "tool")},
    **{"human": "user", "observation": "tool", "function_response": "tool"},
    **dict.fromkeys(("gpt", "chatgpt", "bot", "model"), "assistant"),
}
"""Speaker, in upper or lower case -> role."""
TURN_FIELDS = ("weight", "train", "training", "trainable", "loss", "loss_mask")
"""Fields of a turn that say whether it is trained; templates do not see them."""
_REFUSED = {
    "function_call": "write it as tool_calls",
    "train_detail": "expected a turn that is trained as a whole or not at all",
}
_RENAMED = ("role", "content", "from", "value", "tool_calls")
_WRITTEN = re.compile(
    rf"""\s*"?\[\s*\{{.*?\\?["'](?:role|from)\\?["']\s*:\s*\\?["'](?:{"|".join(SPEAKERS)})\\?["']""",
    re.DOTALL | re.IGNORECASE,
)
"""A list of turns written as a string: as JSON, as JSON twice, or as Python or NumPy shows it."""
_ANSWER_BEGINS = re.compile(
    r"\n\nAssistant:|### (?:Response|Assistant):\s*|\[/INST\]|<\|assistant\|>\s*"
    r"|<(?:\|im_start\||start_of_turn)>(?:assistant|model)\n"
    r"|<\|start_header_id\|>assistant<\|end_header_id\|>\n\n"
)
"""Precedes an answer in a text that includes its prompt."""


def form_of(record: Mapping[str, Any]) -> Form | None:
    """The form that a record's fields match, the first of the table; None if there is none, or if several fields may be
    its question or its answer."""
    if record.get("chosen") and record.get("rejected"):
        return "pairs"
    for name in LISTS:
        if is_turns(record.get(name)):
            return name
    if all(isinstance(part := record.get(name), str) or is_turns(part) for name in ("prompt", "completion")):
        return "prompt_completion"
    is_asked = (
        _only(record, QUESTIONS) and _only(record, ANSWERS) and not any(record.get(name) for name in _CHOICES)
    )
    whole = all(isinstance(record.get(name) or "", str) for name in CONTEXTS)
    return "alpaca" if is_asked and whole else None


def fields_of(record: Mapping[str, Any], form: Form) -> tuple[str, ...]:
    """The fields of a record that make up its conversation."""
    fields: dict[Form, Sequence[str]] = {
        "pairs": ("prompt", *LISTS, "chosen", "rejected"),
        "prompt_completion": ("prompt", "completion"),
        "alpaca": (*QUESTIONS, *CONTEXTS, *ANSWERS),
    }
    return tuple(name for name in fields.get(form, (form,)) if record.get(name) is not None)


def conversation_of_record(record: Mapping[str, Any], form: str) -> Conversation:
    """The conversation of a record of a form.

    Raises:
        InputError: a field is missing, a turn cannot be used, or no turn is trained; the message is the reason in the
            rejects.
    """
    if record.get("chat_template_kwargs"):
        raise InputError(
            "chat_template_kwargs of a record is not read; render such records as texts first, or remove the field"
        )
    if form == "pairs":
        return _pair(record)
    if form in LISTS:
        return _chat(_turns(_given(record, form), form), record)
    name = "completion" if form == "prompt_completion" else _only(record, ANSWERS)
    if name is None:
        raise InputError(f"no answer: expected a string in exactly one of {', '.join(ANSWERS)}")
    prompt: Any = _given(record, "prompt") if form == "prompt_completion" else _asked(record)
    answer = _given(record, name)
    if isinstance(answer, str) and not answer.strip():
        raise InputError(f"the {name} is empty")
    if _are_texts(record, prompt, answer):
        return MarkedText(prompt + answer, ((len(prompt), len(prompt + answer)),))
    asked, answered = _turns(prompt, "prompt", "user"), _turns(answer, name, "assistant")
    if asked[-1]["role"] == answered[0]["role"] == "assistant":
        raise InputError(
            "the prompt ends with the beginning of the answer, which the completion continues; put the whole answer "
            "into the completion"
        )
    return _chat([*asked, *answered], record, given=len(asked))


# Lists of turns ------------------------------------------------------------------------------------------------------


def _turns(value: Any, name: str, role: str = "") -> list[dict[str, Any]]:
    """A list of turns, or with a `role` one turn or its text, as messages."""
    if role and isinstance(value, str):
        return [{"role": role, "content": value}]
    turns = [value] if role and isinstance(value, Mapping) else value
    if not isinstance(turns, list) or not turns:
        raise InputError(f"{name} is not a list of turns" if turns else f"{name} has no turn")
    return [_message(turn, number, name) for number, turn in enumerate(turns, 1)]


def _message(turn: Any, number: int, name: str) -> dict[str, Any]:
    """A turn with role, content, TURN_FIELDS and all other fields that a template may read."""
    if not isinstance(turn, Mapping):
        raise InputError(f"turn {number} of {name} is not an object")
    speaker, content = (
        turn.get(key) if turn.get(key) is not None else turn.get(other)
        for key, other in (("role", "from"), ("content", "value"))
    )
    role = SPEAKERS.get(speaker.lower()) if isinstance(speaker, str) else None
    if role is None:
        raise InputError(f"turn {number} has the role {speaker!r}; expected one of {', '.join(SPEAKERS)}")
    for field, remedy in _REFUSED.items():
        if turn.get(field):
            raise InputError(f"turn {number} has {field}; {remedy}")
    calls = turn.get("tool_calls")
    if calls and not (isinstance(calls, list) and all(map(tool_name, calls))):
        raise InputError(
            f"tool_calls of turn {number} is not a list of objects that each name a function, such as "
            '[{"type": "function", "function": {"name": "f", "arguments": {}}}]'
        )
    text = _text(content)
    if content in (None, []) and (calls or role == "tool"):
        text = None if calls else ""  # templates write an empty text beside calls differently
    elif text is None:
        raise InputError(
            f"the content of turn {number} is neither a string nor parts of text; images and sound are not read"
        )
    message = {"role": role, "content": text}
    message |= {key: value for key, value in turn.items() if key not in _RENAMED and value is not None}
    return {**message, "tool_calls": calls} if calls else message


def _text(content: Any) -> str | None:
    """A string, or the joined texts of a list of parts; None for anything else."""
    if isinstance(content, str) or not content or not isinstance(content, list):
        return content if isinstance(content, str) else None
    texts = [part.get("text") if isinstance(part, Mapping) else None for part in content]
    return "".join(map(str, texts)) if all(isinstance(text, str) for text in texts) else None


def _chat(messages: Sequence[dict[str, Any]], record: Mapping[str, Any], *, given: int = 0) -> Chat:
    """given: number of messages of a prompt, which are not trained; 0 if the last answer is the completion."""
    system = _system(record)
    if system and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": system}, *messages]
        given += bool(given)
    answers: list[int] = []
    trained: list[bool] = []
    is_asked = False
    for number, message in enumerate(messages):
        role, content = message["role"], message["content"]
        if role == "assistant" and not is_asked:
            raise InputError(f"turn {number + 1} is the assistant's, but no question comes before it")
        is_asked = is_asked or role in ("user", "tool")
        if role not in ("system", "tool") and not message.get("tool_calls") and not content.strip():
            raise InputError(f"turn {number + 1} ({role}) is empty")
        if role == "assistant":
            weights = {name: message[name] for name in TURN_FIELDS if message.get(name) is not None}
            for name, value in weights.items():
                if value not in (0, 1):
                    raise InputError(
                        f"{name} of turn {number + 1} is {value!r}; expected true or false, or 1 or 0"
                    )
            answers.append(number)
            trained.append(number >= given and all(weights.values()))
    if not any(trained):
        raise InputError("no turn is trained on: there is no assistant turn, or every weight is 0")
    mask = record.get("mask")
    if isinstance(mask, str) and SPEAKERS.get(mask.lower()) not in ("user", "system", None):
        raise InputError(f"mask is {mask!r}: the assistant's turns are not trained on")
    tools = record.get("tools")
    if isinstance(tools, str):
        try:
            tools = orjson.loads(tools) if tools.strip() else None
        except orjson.JSONDecodeError as error:
            raise InputError(f"tools is a string that is not JSON: {error}") from None
    if tools and not isinstance(tools, list):
        raise InputError(f"tools is a JSON {type(tools).__name__}; expected a list")
    kept = ({key: value for key, value in each.items() if key not in TURN_FIELDS} for each in messages)
    return Chat(tuple(kept), tuple(trained), given or answers[-1], tuple(tools or ()) or None)


def _system(record: Mapping[str, Any]) -> str:
    """The system prompt in a field of the record; "" if there is none."""
    given = next(filter(None, map(record.get, SYSTEMS)), "")
    if (text := _text(given)) is None:
        raise InputError(f"the system prompt is {type(given).__name__}; expected a string or parts of text")
    return text if text.strip() else ""


# Questions and answers -----------------------------------------------------------------------------------------------


def _asked(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The question of a record with its context."""
    question = _only(record, QUESTIONS)
    if question is None:
        raise InputError(f"no question: expected a string in exactly one of {', '.join(QUESTIONS)}")
    if record.get("history"):
        raise InputError("history is not read; write its turns and the answer into messages")
    parts = [_given(record, name) for name in (question, *CONTEXTS) if record.get(name)]
    if not all(isinstance(part, str) for part in parts):
        raise InputError(f"{', '.join(CONTEXTS)}: expected strings")
    return [{"role": "user", "content": "\n\n".join(part for part in parts if part.strip())}]


def _only(record: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The only field of these names, QUESTIONS or ANSWERS, that holds a string; None if several do or none. Beside the
    first name of the other table, the first name wins over the others."""
    beside = record.get(ANSWERS[0] if names is QUESTIONS else QUESTIONS[0])
    held = [name for name in names if isinstance(record.get(name), str)]
    is_first = held[:1] == [names[0]] and isinstance(beside, str)
    return held[0] if len(held) == 1 or is_first else None


def _are_texts(record: Mapping[str, Any], *parts: Any) -> bool:
    """Whether a prompt and its answers are strings, and nothing asks for a chat template."""
    return all(isinstance(part, str) for part in parts) and not (_system(record) or record.get("tools"))


# Pairs ---------------------------------------------------------------------------------------------------------------


def _pair(record: Mapping[str, Any]) -> Pair:
    sides = {name: _given(record, name) for name in ("chosen", "rejected")}
    chosen, rejected = sides.values()
    if chosen == rejected:
        raise InputError("chosen and rejected are the same")
    for name, side in sides.items():
        if not side or (isinstance(side, str) and not side.strip()):
            raise InputError(f"{name} is empty")
    asked = _prompt_of_pair(record)
    if _are_texts(record, "" if asked is None else asked, chosen, rejected):
        return _pair_of_texts(asked, chosen, rejected)
    before = [] if asked is None else _turns(asked, "prompt", "user")
    better, worse = (_turns(side, name, "assistant") for name, side in sides.items())
    if "assistant" in (better[0]["role"], worse[0]["role"]):
        better, worse = [*before, *better], [*before, *worse]
    alike = common(better, worse)
    for name, messages in zip(sides, (better, worse), strict=True):
        if alike == len(messages):
            raise InputError(f"{name} is only the beginning of the other side: it has no own answer")
    if not any(message["role"] == "user" for message in better[:alike]):
        raise InputError("chosen and rejected have no common prompt")
    said = [(message["content"] or "").strip() for message in better[:alike]]
    if before and (before[-1]["content"] or "").strip() not in said:
        raise InputError("chosen and rejected do not begin with the prompt")
    return Pair(*(_chat(messages, record, given=alike) for messages in (better, worse)))


def _prompt_of_pair(record: Mapping[str, Any]) -> Any:
    if record.get("prompt"):
        return _given(record, "prompt")
    for name in LISTS:
        # A list that ends with an answer is not a prompt.
        if (
            isinstance(record.get(name), list)
            and (turns := _turns(record[name], name))[-1]["role"] != "assistant"
        ):
            return turns
    return _asked(record) if _only(record, QUESTIONS) is not None else None


def _pair_of_texts(prompt: str | None, chosen: str, rejected: str) -> Pair:
    if not prompt:
        begins = [found.end() for found in _ANSWER_BEGINS.finditer(chosen[: common(chosen, rejected)])]
        if not begins:
            raise InputError(
                "the record has no field prompt, and no header of an answer, such as '\\n\\nAssistant:', in the common "
                "beginning of chosen and rejected; add a prompt"
            )
        prompt = chosen[: begins[-1]]
    elif not (chosen.startswith(prompt) and rejected.startswith(prompt)):
        chosen, rejected = prompt + chosen, prompt + rejected
    for name, text in (("chosen", chosen), ("rejected", rejected)):
        if not text[len(prompt) :].strip():
            raise InputError(f"{name} is only the prompt: it has no answer")
    return Pair(*(MarkedText(text, ((len(prompt), len(text)),)) for text in (chosen, rejected)))


# Values --------------------------------------------------------------------------------------------------------------


def without_nulls(value: Any) -> Any:
    """A value of a Parquet row; null members of objects are removed at every depth."""
    if isinstance(value, dict):
        return {name: without_nulls(member) for name, member in value.items() if member is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def _given(record: Mapping[str, Any], name: str) -> Any:
    """A field that is present, and not a list of turns written as a string."""
    value = record.get(name)
    if value is None:
        raise InputError(f"no field {name!r}")
    refuse_written(value, name)
    return value


def refuse_written(value: Any, name: str) -> None:
    """
    Raises:
        InputError: a field holds a list of turns written as a string.
    """
    if isinstance(value, str) and _WRITTEN.match(value):
        raise InputError(
            f"{name} is a list of turns as a string; parse it before you write the record, with json.loads or "
            "ast.literal_eval"
        )


def is_turns(value: Any) -> bool:
    """Whether a field holds turns."""
    first = value[0] if isinstance(value, list) and value else None
    return isinstance(first, Mapping) and (
        {"role", "content"} <= first.keys() or {"from", "value"} <= first.keys()
    )
