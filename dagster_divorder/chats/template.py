"""Renders conversations with a model's chat template, and locates the trained characters of their turns.

A template may mark its assistant turns (`{% generation %}`), and transformers' tracker reads the marks. Of any other
template, a second rendering locates the contents: every message has a sentinel in it, and the two renderings differ in
the sentinels alone. A turn begins where a rendering of the messages before it, with the generation prompt, ends, and it
ends where a rendering of itself does; both are compared with the text behind the sentinels.

Guarantee: the text is the same as from `apply_chat_template(tokenize=False)`. A turn that cannot be located is an
error, never a mask of zeros. A conversation gives the same text on every day: templates that print today's date print
DATE.
Cost: two renderings of a conversation (one if the template has marks), and one or two of each answer with the messages
since the one before it: linear in its turns.
Source: transformers' `apply_chat_template`.
Known weakness: a template that cuts contents by their length is refused, because sentinels are cut, too.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import xxhash

from dagster_divorder.chats.document import common, tool_name
from dagster_divorder.errors import InputError

Message = Mapping[str, Any]
Span = tuple[int, int]

VERSION = 6
"""Of the spans that are located; part of a template's fingerprint."""
DATE = datetime(2024, 7, 26)
"""The date that templates print as today's; Llama 3's template prints it if there is no clock."""
TODAY = re.compile(r"""strftime_now\(\s*(["'])(.*?)\1\s*\)""")
REFUSALS = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError)
"""Errors that templates raise besides jinja's own."""

MARK = re.compile(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}")
SENTINEL = "\ue002{}\ue003"
"""The number of a message, inverted (~) for a content beside calls, between private code points, which occur in no
template and hardly any conversation."""
SENTINELS = re.compile(SENTINEL.format(r"(-?\d+)"))
ASKED, ANSWERED = "\ue000", "\ue001"
"""Contents of conversations that show what a template writes around contents."""
QUESTION: Message = {"role": "user", "content": ASKED}
ANSWER: Message = {"role": "assistant", "content": ANSWERED}
TAIL = 30
"""Characters at the end of an answer that identify its span."""
REASONING = ("reasoning_content", "thinking", "reasoning")
"""Fields of a message with the model's reasoning before its answer."""


class Rendered(NamedTuple):
    """text: the conversation. turns: for each assistant message, the spans [first, last) of its trained characters."""

    text: str
    turns: tuple[tuple[Span, ...], ...]


class ChatTemplate:
    """A chat template with its model's control tokens.

    template: Jinja. named: bos_token, eos_token and others, by their names in the template. control: the strings of all
    control tokens. stops: control tokens that end generation.

    Raises:
        InputError: the template prints today's date in a form that is not written out.
    """

    def __init__(
        self,
        template: str,
        named: Mapping[str, str],
        control: Collection[str],
        stops: Collection[str] = (),
    ) -> None:
        self.template = TODAY.sub(lambda call: repr(DATE.strftime(call[2])), template)
        if re.search(r"strftime_now\(", self.template):
            raise InputError(
                "the chat template prints today's date in a form that is not a string; expected one such as "
                "strftime_now('%Y-%m-%d')"
            )
        self.marked = MARK.search(template) is not None
        self._named, self._stops = dict(named), frozenset(stops)
        self._controls = re.compile(_any_of({*control, *stops}) or "(?!)")
        self._stop = re.compile(rf"\s*(?:{_any_of(stops) or '(?!)'})")
        self._edges = re.compile(rf"\s+|{self._controls.pattern}")
        decides = (VERSION, template, *(tuple(sorted(part)) for part in (named.items(), control, stops)))
        self.fingerprint = xxhash.xxh3_128_hexdigest(repr(decides).encode())
        """A hash of everything but the conversation that decides a rendering."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChatTemplate) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @cached_property
    def trains_ends(self) -> bool:
        """Whether a trained turn includes the token that ends it; True if the template refuses the question."""
        with suppress(InputError):
            text, (spans,) = self.render([QUESTION, ANSWER, QUESTION])
            end = max((last for _, last in spans), default=0)
            return self._controls.search(text, text.find(ANSWERED), end) is not None
        return True

    def render(self, messages: Sequence[Message], tools: Sequence[Any] | None = None) -> Rendered:
        """The text of a conversation, with the spans of each assistant message.

        messages: role, content (a string, or None beside tool_calls), and any other fields that the template reads.

        Raises:
            InputError: the template refuses the conversation, leaves out a part of it, or an assistant turn cannot be
                located.
        """
        answers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
        text, marks = self._rendered(messages, tools, return_assistant_tokens_mask=self.marked)
        spans = [(first, last) for first, last in marks if first < last]
        if self.marked and not spans:
            raise InputError("the chat template marks no part of the conversation as the assistant's")
        turns: list[tuple[Span, ...]] = [(span,) for span in spans]
        if len(spans) != len(answers) or not all(
            _content(messages[number]).rstrip()[-TAIL:] in text[first:last]
            for number, (first, last) in zip(answers, spans, strict=True)
        ):
            turns = self._located(text, messages, answers, tools)
            if self.marked:
                # A template may mark several parts of a turn, or none.
                bounds = pairwise([0, *(turn[-1][1] for turn in turns[:-1]), len(text)])
                turns = [tuple(span for span in spans if first <= span[0] < last) for first, last in bounds]
        # What a template leaves out would be silently missing.
        if unwritten := [name for name in map(tool_name, tools or ()) if name not in text]:
            raise InputError(
                f"the chat template does not write the record's tool {unwritten[0]!r}; use a template that writes "
                "tools, or remove the field tools"
            )
        for number, turn in zip(answers, turns, strict=True):
            message, said = messages[number], "".join(text[first:last] for first, last in turn)
            names = [*map(tool_name, message.get("tool_calls") or ())]
            if unwritten := [name for name in names if said.count(name) < names.count(name)]:
                raise InputError(
                    f"the chat template does not write the call of {unwritten[0]!r} into its answer; use a template "
                    "that writes tool calls"
                )
            # transformers passes the reasoning under the first two names, whatever the field's name.
            unread = [name for name in REASONING if message.get(name) and name not in self.template]
            if unread and not any(name in self.template for name in REASONING[:2]):
                raise InputError(
                    f"the chat template does not read {unread[0]} of a message; write it into the content, or remove it"
                )
        return Rendered(text, tuple(turns))

    def _located(
        self, text: str, messages: Sequence[Message], answers: Sequence[int], tools: Sequence[Any] | None
    ) -> list[tuple[Span, ...]]:
        """The spans of each assistant message in the conversation's text.

        Raises:
            InputError: the text does not hold an answer, or its beginning or end cannot be located.
        """
        marked = [_with_sentinel(message, number) for number, message in enumerate(messages)]
        pieces = SENTINELS.split(self._rendered(marked, tools)[0])
        if "".join(pieces[::2]) != text:
            raise InputError(
                "no turn can be located, because the chat template cuts or replaces contents; use one with "
                "{% generation %} marks"
            )
        places: dict[int, int] = {}
        for number, place in zip(map(int, pieces[1::2]), accumulate(map(len, pieces[::2])), strict=False):
            places.setdefault(number, place)
        system = [message for message in messages[:1] if message["role"] != "user"]

        def behind(number: int, first: int, own: Sequence[Message], *, prompt: bool = False) -> str:
            """What a rendering of `own`, messages from `first` on, has behind the sentinel of message `number`."""
            lead = [] if not first else system if messages[first]["role"] == "user" else [*system, QUESTION]
            shown, _ = self._rendered([*lead, *own], tools, add_generation_prompt=prompt)
            return SENTINELS.sub("", shown.partition(SENTINEL.format(number))[2])

        def first_of(number: int, earlier: int, before: Sequence[Span]) -> int | None:
            """The first character of an answer's turn: after the generation prompt. before: the earlier answer's."""
            if before and (messages[number - 1]["role"] == "assistant" or len(before) > 1):
                return self._same(text, self._prompt, before[-1][1])
            asked = max((each for each in range(earlier, number) if each in places), default=None)
            if asked is None:
                return None
            begin = asked if messages[asked]["role"] == "user" else earlier
            header = behind(asked, begin, marked[begin:number], prompt=True)
            first = self._same(text, header, places[asked])
            if self._opener not in header and first == places[asked] + len(header):
                # A template may write a header that it does not ask for, as Gemma 4's does after a result.
                return self._same(text, self._prompt, first)
            is_opened = first >= places[asked] + header.rfind(self._opener) + len(self._opener)
            return first if self._opener in header and is_opened else None

        def end_of(number: int) -> int | None:
            """The end of an answer's turn: after what ends it."""
            message, place = messages[number], places[number]
            if message.keys() == ANSWER.keys() and not _content(message)[-1].isspace():
                ending = self._ending
            else:
                ending = behind(number, number, [marked[number]])
            end = self._same(text, ending, place)
            is_ended = self._controls.search(self._ending)
            if (end < place + len(ending) or not is_ended) and number + 1 in places:
                # An answer in the middle may end otherwise: before the header of the next message.
                following = _content(marked[number + 1]).partition(SENTINEL[0])[0]
                until = places[number + 1] - len(following)
                at = text.find(self._opener, end, until) if self._opener else -1
                end = at if at >= 0 and text.startswith(following, until) else end
            if not is_ended and (stop := self._stop.match(text, end)):
                # Some models, such as GLM, stop by beginning the next turn; they are trained to.
                end = stop.end()
            calls = message.get("tool_calls")
            return None if calls and end <= place + len(tool_name(calls[0])) else end

        turns: list[tuple[Span, ...]] = []
        for number, earlier in zip(answers, [0, *answers], strict=False):
            if number not in places:
                raise InputError(f"the chat template does not write the content of message {number + 1}")
            first, end = first_of(number, earlier, turns[-1] if turns else ()), end_of(number)
            if first is None or end is None:
                raise InputError(
                    f"the turn of message {number + 1} cannot be located; use a chat template with "
                    "{% generation %} marks"
                )
            spans = [(first, end)]
            if (said := places.get(~number, end)) > end:
                # Some templates, such as Gemma 4's, write what is said beside a call after the call's result.
                spans.append(
                    (said - len(_content(messages[number]).strip()), self._same(text, self._ending, said))
                )
            turns.append(tuple(spans))
        return turns

    @cached_property
    def _prompt(self) -> str:
        """The generation prompt; "" if the template has none."""
        asked = self._rendered([QUESTION], None, add_generation_prompt=True)[0]
        return asked[self._same(asked, self._rendered([QUESTION], None)[0], 0) :]

    @cached_property
    def _opener(self) -> str:
        """The first control token of the generation prompt, or the prompt; "" if the template has none."""
        opener = self._controls.search(self._prompt)
        return opener.group() if opener else self._prompt.strip()

    @cached_property
    def _ending(self) -> str:
        """What the template writes behind a last answer."""
        return self._rendered([QUESTION, ANSWER], None)[0].partition(ANSWERED)[2]

    def _same(self, text: str, other: str, start: int) -> int:
        """The end of what is the same in a text from `start` on and in another: the other's end, or an edge of a
        control token or of white space in it."""
        if text.startswith(other, start):
            return start + len(other)
        same = common(text[start : start + len(other)], other)
        edges = (edge for found in self._edges.finditer(other) for edge in found.span() if edge <= same)
        # Where both go on with a word, the words may be roles.
        cuts = (edge for edge in edges if not (text[start + edge : start + edge + 1] + other[edge]).isalnum())
        return start + max(cuts, default=0)

    def _rendered(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any] | None,
        *,
        in_parts: bool | None = None,
        **options: Any,
    ) -> tuple[str, list[Span]]:
        """(the text of a conversation; the spans of its marks, if they are asked for)."""
        from jinja2 import TemplateError
        from transformers.utils.chat_template_utils import render_jinja_template

        # As in transformers, templates do not see null values.
        given = [{name: value for name, value in each.items() if value is not None} for each in messages]
        if self._takes_parts if in_parts is None else in_parts:
            for message in given:
                if isinstance(content := message.get("content"), str):
                    message["content"] = [{"type": "text", "text": content}]
        named: dict[str, Any] = {"tools": tools, **options, **self._named}
        try:
            rendered: Any = render_jinja_template([given], chat_template=self.template, **named)
        except (TemplateError, *REFUSALS) as error:
            raise InputError(f"the chat template refuses the conversation: {error}") from None
        texts, marks = rendered
        return texts[0], marks[0] if marks else []

    @cached_property
    def _takes_parts(self) -> bool:
        """Whether the template reads contents only as lists of parts, as the templates of vision models do.

        Raises:
            InputError: the template writes the content of a question in neither form.
        """
        with suppress(InputError):
            if ASKED in self._rendered([QUESTION], None, in_parts=False)[0]:
                return False
        if ASKED in self._rendered([QUESTION], None, in_parts=True)[0]:
            return True
        raise InputError(
            "the chat template does not write the user's messages; expected the content of every message"
        )


def _content(message: Message) -> str:
    """The content of a message; "" if it is not a string."""
    content = message.get("content")
    return content if isinstance(content, str) else ""


def _with_sentinel(message: Message, number: int) -> dict[str, Any]:
    """A message with its sentinel: before the names of the tools that it calls, at the end of an answer, inside any
    other content."""
    sentinel, content = SENTINEL.format(number), _content(message)
    if calls := message.get("tool_calls"):
        named = [
            {**call, "function": {**call["function"], "name": sentinel + call["function"]["name"]}}
            if "function" in call
            else {**call, "name": sentinel + call["name"]}
            for call in calls
        ]
        message = {**message, "tool_calls": named}
        sentinel = SENTINEL.format(~number)
    if not content.strip():
        return dict(message)
    # White space stays outside, since templates strip it; both ends of a question stay, since templates compare them.
    in_half = 0 if message["role"] == "assistant" else (len(content.strip()) + 1) // 2
    at = len(content.rstrip()) - in_half
    return {**message, "content": content[:at] + sentinel + content[at:]}


def _any_of(tokens: Collection[str]) -> str:
    # The longest first, since one token may be the beginning of another.
    return "|".join(re.escape(token) for token in sorted(tokens, key=lambda token: (-len(token), token)))
