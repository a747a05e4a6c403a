"""Renders conversations with a model's chat template, and locates the trained characters of their turns.

Templates may mark their assistant turns (`{% generation %}`); transformers' own tracker reads these marks. For the
others transformers returns a mask of zeros. Here a second rendering locates their turns: it has a sentinel in every
message, and differs from the real one in the sentinels alone. A turn begins after the generation prompt, and ends after
the control tokens that close it.

Guarantee: the text is the same as from `apply_chat_template(tokenize=False)`. A turn that cannot be located is an
error, never a mask of zeros. A conversation gives the same text on every day: templates that print today's date print
DATE.
Cost: two renderings a conversation (one if the template has marks), some 50 us a turn, linear in its turns. An answer
with tool calls, or with no header before it, costs a short rendering more.
Source: transformers' `apply_chat_template`.
Known weakness: a template that cuts contents by their length is refused, because sentinels are cut, too. A control
token that closes only turns of users is taken for one that closes all turns.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import accumulate, pairwise, takewhile
from typing import Any

import xxhash

from dagster_divorder.chats.document import Chat, Conversation, Pair
from dagster_divorder.errors import InputError

Message = Mapping[str, Any]
Span = tuple[int, int]

WITH_TOOLS = "tool_use"
"""The name of the template of conversations with tools."""
VERSION = 3
"""Of the spans that are located; part of a template's fingerprint."""
DATE = datetime(2024, 7, 26)
"""The date that templates print as today's; Llama 3's template prints it if there is no clock."""
DATE_PARTS = "aAbBcdDeFhHIjklmMpRSTuUVwWxXyY"
"""Format letters of `strftime`."""
REFUSALS = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError)
"""Errors that templates raise besides jinja's own."""

MARK = re.compile(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}")
SENTINEL = "\ue002{}\ue003"
"""The number of a message between private code points, which occur in no template and hardly any conversation."""
SENTINELS = re.compile(SENTINEL.format(r"(\d+)"))
ASKED, ANSWERED, NEXT = "\ue000", "\ue001", "\ue004"
"""Contents of conversations that show what a template writes around contents."""
QUESTION: Message = {"role": "user", "content": ASKED}
ANSWER: Message = {"role": "assistant", "content": ANSWERED}
PROBE_TOOLS = ({"type": "function", "function": {"name": "a", "description": "a", "parameters": {}}},)
"""Tools of such conversations for a template of conversations with tools."""
TAIL = 30
"""Characters at the end of an answer that identify its span."""
REASONING = ("reasoning_content", "thinking", "reasoning")
"""Fields of a message with the model's reasoning before its answer."""
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{6,}>")


@dataclass(frozen=True, slots=True)
class Rendered:
    """text: the conversation. turns: for each assistant message, the spans [first, last) of its trained characters."""

    text: str
    turns: tuple[tuple[Span, ...], ...]


class ChatTemplate:
    """A chat template with its model's control tokens.

    template: Jinja. named: bos_token, eos_token and others, by their names in the template. control: the strings of all
    control tokens. stops: control tokens that end generation. with_tools: a separate template for conversations with
    tools.

    Raises:
        InputError: the template is not valid Jinja, or gives another text each time.
    """

    def __init__(
        self,
        template: str,
        named: Mapping[str, str],
        control: Collection[str],
        stops: Collection[str] = (),
        with_tools: str | None = None,
    ) -> None:
        parts = (template, tuple(sorted(named.items())), tuple(sorted(control)), tuple(sorted(stops)))
        self._source = parts if with_tools is None else (*parts, with_tools)
        self._probe_tools: Sequence[Any] | None = None
        self.with_tools: ChatTemplate | None = None
        if with_tools is not None:
            self.with_tools = ChatTemplate(with_tools, named, control, stops)
            self.with_tools._probe_tools = PROBE_TOOLS
        _check_jinja(template)
        self.template = _dated(template)
        self.marked = MARK.search(template) is not None
        self._named, self._stops = dict(named), frozenset(stops)
        self._control = frozenset(control) | self._stops
        self._controls = re.compile(_any_of(self._control) or "(?!)")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChatTemplate) and self._source == other._source

    def __hash__(self) -> int:
        return hash(self.template)

    @property
    def templates(self) -> dict[str, str]:
        """The templates by their names in transformers."""
        with_tools = {WITH_TOOLS: self.with_tools.template} if self.with_tools else {}
        return {"default": self.template, **with_tools}

    @property
    def fingerprint(self) -> str:
        """A hash of everything but the conversation that decides a rendering."""
        return xxhash.xxh3_128_hexdigest(repr((VERSION, *self._source)).encode())

    @cached_property
    def trains_ends(self) -> bool:
        """Whether a trained turn includes the token that ends it; True if the template refuses the question."""
        try:
            rendered = self.render([QUESTION, ANSWER, QUESTION])
        except InputError:
            return True
        (spans,) = rendered.turns
        behind = rendered.text.find(ANSWERED) + len(ANSWERED)
        return bool(spans) and self._controls.search(rendered.text, behind, spans[-1][1]) is not None

    def check(self, conversation: Conversation) -> None:
        """
        Raises:
            InputError: the template refuses the conversation, or an assistant turn cannot be located.
        """
        if isinstance(conversation, Chat):
            self.render(conversation.messages, conversation.tools)
        elif isinstance(conversation, Pair):
            self.check(conversation.chosen)
            self.check(conversation.rejected)

    def render(self, messages: Sequence[Message], tools: Sequence[Any] | None = None) -> Rendered:
        """The text of a conversation, with the spans of each assistant message.

        messages: role, content (a string, or None beside tool_calls), and any other fields that the template reads.

        Raises:
            InputError: the template refuses the conversation, leaves out a part of it, or an assistant turn cannot be
                located.
        """
        if tools and self.with_tools is not None:
            return self.with_tools.render(messages, tools)
        answers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
        texts, marks = self._rendered(self.given(messages), tools, return_assistant_tokens_mask=self.marked)
        text: str = texts[0]
        if self.marked:
            spans = [span for span in marks[0] if span[0] < span[1]]
            turns = self._marked_turns(text, spans, messages, answers, tools)
        else:
            turns = [(turn,) for turn in self._turns(text, messages, answers, tools)]
        self._check_all_is_written(text, turns, [messages[number] for number in answers], tools)
        return Rendered(text, tuple(turns))

    def _check_all_is_written(
        self,
        text: str,
        turns: Sequence[Sequence[Span]],
        answers: Sequence[Message],
        tools: Sequence[Any] | None,
    ) -> None:
        """
        Raises:
            InputError: the template leaves out tools, tool calls or reasoning.
        """
        if left_out := [name for name in map(_tool_name, tools or ()) if name not in text]:
            raise InputError(
                f"the chat template does not write the record's tool {left_out[0]!r}; use a template that writes "
                "tools, or remove the field tools"
            )
        for message, turn in zip(answers, turns, strict=True):
            said = "".join(text[first:last] for first, last in turn)
            names = map(_tool_name, message.get("tool_calls") or ())
            if left_out := [name for name in names if name not in said]:
                raise InputError(
                    f"the chat template does not write the call of {left_out[0]!r} into its answer; use a template "
                    "that writes tool calls"
                )
            # transformers passes the reasoning under the first two names, whatever the field's name.
            unread = [name for name in REASONING if message.get(name) and name not in self.template]
            if unread and not any(name in self.template for name in REASONING[:2]):
                raise InputError(
                    f"the chat template does not read {unread[0]} of a message; write it into the content, or remove it"
                )

    def _marked_turns(
        self,
        text: str,
        spans: Sequence[Span],
        messages: Sequence[Message],
        answers: Sequence[int],
        tools: Sequence[Any] | None,
    ) -> list[tuple[Span, ...]]:
        """The spans of a template's marks, by answer."""
        if not spans:
            raise InputError("the chat template marks no part of the conversation as the assistant's")
        if len(spans) == len(answers) and all(
            _content(messages[number]).rstrip()[-TAIL:] in text[first:last]
            for number, (first, last) in zip(answers, spans, strict=True)
        ):
            return [(span,) for span in spans]
        # A template may mark several parts of a turn, or none.
        ends = [end for _, end in self._turns(text, messages, answers, tools)]
        return [
            tuple(span for span in spans if lower <= span[0] < upper)
            for lower, upper in pairwise([0, *ends[:-1], len(text)])
        ]

    def _turns(
        self, text: str, messages: Sequence[Message], answers: Sequence[int], tools: Sequence[Any] | None
    ) -> list[Span]:
        """The span of each assistant message in the conversation's text.

        Raises:
            InputError: the text does not hold an answer, or its beginning or end cannot be located.
        """
        marked = [_with_sentinel(message, number) for number, message in enumerate(messages)]
        places = _places(text, self._text(marked, tools))
        lead = [*(message for message in messages[:1] if message["role"] != "user"), QUESTION]

        def behind(number: int, last: int, *, prompt: bool) -> str:
            """What the template writes behind an answer's sentinel, after a short question, up to message `last`."""
            own = self._tried([*lead, marked[number], *messages[number + 1 : last]], tools, prompt=prompt)
            return SENTINELS.sub("", own.partition(SENTINEL.format(number))[2])

        turns: list[Span] = []
        for number, last in zip(answers, [None, *answers], strict=False):
            if number not in places:
                raise InputError(f"the chat template does not write the content of message {number + 1}")
            start = end = places[number]
            calls, content = messages[number].get("tool_calls"), _content(messages[number]).strip()
            if not calls and text.endswith(content, 0, end):
                start -= len(content)
            turn_before = turns[-1][1] if turns else 0
            asked = places.get(number - 1, 0)
            # Without a generation prompt white space may be all that closes a question.
            asked = _content_end(text, messages[number - 1], asked, stripped=bool(self._prompt))
            first = asked if turn_before < asked <= start else turn_before
            at, opening = self._header_between(text, first, start)
            if not opening:
                # A template may write no header here, for example after the results of calls.
                at = 0 if last is None else places[last]
                opening = (
                    self._tried(messages[:number], tools, prompt=True)
                    if last is None
                    else behind(last, number, prompt=True)
                )
                if at + len(opening) < turn_before or not text.startswith(opening, at):
                    opening = ""
            if calls:
                # What a last message ends with may differ.
                end = self._same(text, behind(number, number + 1, prompt=False), start)
                is_located = bool(opening) and start + len(_tool_name(calls[0])) < end
            else:
                is_located = bool(opening) or start < end
            if not is_located:
                raise InputError(
                    f"the turn of message {number + 1} cannot be located; use a chat template with "
                    "{% generation %} marks"
                )
            if closed := self._closing.match(text, end):
                end = closed.end()
            elif not calls:
                spaces = _content(messages[number])[len(_content(messages[number]).rstrip()) :]
                end += len(spaces) if text.startswith(spaces, end) else 0
            turns.append((at + len(opening) if opening else start, end))
        return turns

    def _header_between(self, text: str, first: int, last: int) -> tuple[int, str]:
        """(place, header) of the header that begins in [first, last); (last, "") if there is none."""
        found = ((text.find(each, first, last + len(each) - 1), each) for each in self._openings)
        return next(((at, each) for at, each in found if at >= 0), (last, ""))

    @cached_property
    def _prompt(self) -> str:
        """The generation prompt; "" if the template has none."""
        asked = self._text([QUESTION], self._probe_tools, prompt=True)
        return asked[self._same(asked, self._text([QUESTION], self._probe_tools)) :]

    @cached_property
    def _openings(self) -> list[str]:
        """What may stand before an answer, the longest first: the generation prompt, or a beginning of it, which the
        template may write before some answers, such as answers without reasoning. Without a generation prompt: what
        closes the question."""
        if not self._prompt:
            closed = self._text([QUESTION], self._probe_tools).partition(ASKED)[2]
            return [closed] if closed else []
        edges = re.finditer(rf"\s+|{self._controls.pattern}", self._prompt)
        # A cut before a word is left out: the word may be the role.
        cuts = {cut for edge in edges for cut in edge.span() if not self._prompt[cut : cut + 1].isalnum()}
        return sorted({self._prompt, *(self._prompt[:cut] for cut in cuts)} - {""}, key=len, reverse=True)

    @cached_property
    def _closing(self) -> re.Pattern[str]:
        """Matches what closes a turn: control tokens, except those that begin one, and any text before them."""

        def behind(*following: Message) -> str:
            text = self._tried([QUESTION, ANSWER, *following], self._probe_tools)
            between, is_written, _ = text.partition(ANSWERED)[2].partition(NEXT)
            return between if is_written or not following else ""

        def first_control(text: str) -> str | None:
            found = self._controls.search(text)
            return found.group() if found else None

        last = behind()
        betweens = [behind({"role": role, "content": NEXT}) for role in ("user", "system", "tool")]
        opener = first_control(self._prompt)
        openers = {opener, self._named.get("bos_token")}
        for between in betweens:
            at = between.find(opener) if opener else -1
            openers.add(first_control(between[at if at >= 0 else self._same(between, last) :]))
        closing, opening = _any_of(self._control - openers), _any_of(self._stops & openers)
        ways = [rf"(?:{closing})(?:\s*(?:{closing}))*\s*"] if closing else []
        # Some models, such as GLM, stop by beginning the next turn; they are trained to.
        ways += [opening] if opening else []
        # What the template writes after an answer, up to the token that ends the turn.
        ended = [each for each in (*betweens, last) if self._controls.search(each)]
        texts = _any_of({self._controls.split(each)[0] for each in ended})
        return re.compile(rf"\s*(?:{texts})?(?:{'|'.join(ways)})" if ways else r"\s*")

    def _same(self, text: str, other: str, start: int = 0) -> int:
        """The end of what is the same in a text from `start` on and in another, not inside a control token of the
        text."""
        letters = zip(text[start : start + len(other)], other, strict=False)
        same = start + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], letters))
        for token in self._controls.finditer(text, start):
            if token.end() > same:
                return min(same, token.start())
        return same

    def _text(self, messages: Sequence[Message], tools: Sequence[Any] | None, *, prompt: bool = False) -> str:
        text: str = self._rendered(self.given(messages), tools, add_generation_prompt=prompt)[0][0]
        return text

    def _tried(
        self, messages: Sequence[Message], tools: Sequence[Any] | None, *, prompt: bool = False
    ) -> str:
        """As `_text`; "" if the template refuses the messages."""
        with suppress(InputError):
            return self._text(messages, tools, prompt=prompt)
        return ""

    def given(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Messages as the template reads them."""
        # As in transformers, templates do not see null values.
        given = [{name: value for name, value in each.items() if value is not None} for each in messages]
        return [_in_parts(message) for message in given] if self._takes_parts else given

    def _rendered(self, given: list[dict[str, Any]], tools: Sequence[Any] | None, **options: Any) -> Any:
        from jinja2 import TemplateError
        from transformers.utils.chat_template_utils import render_jinja_template

        named: dict[str, Any] = {"tools": tools, **options, **self._named}
        try:
            return render_jinja_template([given], chat_template=self.template, **named)
        except (TemplateError, *REFUSALS) as error:
            raise InputError(f"the chat template refuses the conversation: {error}") from None

    @cached_property
    def _takes_parts(self) -> bool:
        """Whether the template reads contents only as lists of parts, as the templates of vision models do.

        Raises:
            InputError: the template writes the content of a question in neither form.
        """
        for as_parts in (False, True):
            try:
                question = _in_parts(QUESTION) if as_parts else dict(QUESTION)
                text = self._rendered([question], self._probe_tools)[0][0]
            except InputError:
                if as_parts:
                    raise
                continue
            if ADDRESS.search(text):
                raise InputError(
                    "the chat template writes an address in memory, which differs in each process; expected a template "
                    "that calls its functions"
                )
            if ASKED in text:
                return as_parts
        raise InputError(
            "the chat template does not write the user's messages; expected the content of every message"
        )


def _check_jinja(template: str) -> None:
    """
    Raises:
        InputError: the template is not valid Jinja, or uses random values.
    """
    from jinja2 import Environment, TemplateSyntaxError, nodes

    try:
        # Jinja does not know the tags of marks.
        tree = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(MARK.sub("", template))
    except (TemplateSyntaxError, RecursionError) as error:
        raise InputError(f"the chat template is not Jinja: {error}") from None
    if any(called.name == "random" for called in tree.find_all(nodes.Filter)):
        raise InputError(
            "the chat template uses random values; expected one that writes the same text each time"
        )


def _dated(template: str) -> str:
    """The template with DATE instead of today's date, so that its text is the same on every day.

    A macro replaces the function, because the template beside an export must print the same date.
    """
    if "strftime_now" not in template:
        return template
    parts = {
        f"%{flag}{letter}": DATE.strftime(f"%{flag}{letter}") for flag in ("-", "") for letter in DATE_PARTS
    }
    return (
        "{%- macro strftime_now(form) -%}{%- set date = namespace(text=form) -%}"
        f"{{%- for part, text in {parts!r}.items() -%}}"
        "{%- set date.text = date.text.replace(part, text) -%}"
        "{%- endfor -%}{{- date.text -}}{%- endmacro %}\n" + template  # the line break ends with the macro
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
        return {**message, "tool_calls": named}
    if not content.strip():
        return dict(message)
    at = _cut(message)
    return {**message, "content": content[:at] + sentinel + content[at:]}


def _cut(message: Message) -> int:
    """The place of the sentinel in a message's content."""
    # White space stays outside, since templates strip it; both ends of a question stay, since templates compare them.
    content = _content(message)
    in_half = 0 if message["role"] == "assistant" else (len(content.strip()) + 1) // 2
    return len(content.rstrip()) - in_half


def _places(text: str, marked: str) -> dict[int, int]:
    """The place in a text of each sentinel of its second rendering, by number.

    Raises:
        InputError: the two differ in more than sentinels.
    """
    pieces = SENTINELS.split(marked)
    if "".join(pieces[::2]) != text:
        raise InputError(
            "no turn can be located, because the chat template cuts or replaces contents; use one with "
            "{% generation %} marks"
        )
    places: dict[int, int] = {}
    for number, place in zip(map(int, pieces[1::2]), accumulate(map(len, pieces[::2])), strict=False):
        places.setdefault(number, place)
    return places


def _content_end(text: str, message: Message, place: int, *, stripped: bool) -> int:
    """The end of a message's content in a text, if the template writes it as it is. place: of its sentinel. stripped:
    without white space at the end."""
    rest = _content(message)[_cut(message) :]
    if stripped or not text.startswith(rest, place):
        rest = rest.rstrip()
    return place + len(rest) if text.startswith(rest, place) else place


def _tool_name(tool: Any) -> str:
    """The name of a tool or of a called tool; "" if it has none."""
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else ""


def _in_parts(message: Message) -> dict[str, Any]:
    content = message.get("content")
    in_parts = {"content": [{"type": "text", "text": content}]} if isinstance(content, str) else {}
    return {**message, **in_parts}


def _any_of(tokens: Collection[str]) -> str:
    # The longest first, since one token may be the beginning of another.
    return "|".join(re.escape(token) for token in sorted(tokens, key=lambda token: (-len(token), token)))
