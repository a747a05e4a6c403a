"""Renders conversations with a model's chat template, and locates the trained characters of their turns.

Some templates mark their assistant turns (`{% generation %}`). For others transformers returns a mask of zeros. Here a
second rendering locates their turns, with a sentinel at the end of every assistant message. It differs from the real
one in the sentinels alone. A turn begins after the generation prompt and ends after the control tokens that close it.

Guarantee: the text is the same as from `apply_chat_template(tokenize=False)`. A turn that cannot be located is an
error, never a mask of zeros. A conversation gives the same text on every day: templates that print today's date print
DATE.
Cost: two renderings a conversation (one if the template has marks), some 50 us a turn; for an answer with tool calls,
or without one header before it, one or two more of that answer after a short question.
Sources: transformers' `apply_chat_template`; TRL's training templates, which add marks to templates of some thirty
models.
Known weakness: a control token that closes only turns of users is taken for one that closes all turns.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, lru_cache
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

import orjson
import xxhash

from dagster_divorder.chats.document import Chat, Conversation, Pair
from dagster_divorder.errors import InputError

if TYPE_CHECKING:
    from jinja2 import nodes

Message = Mapping[str, Any]
Span = tuple[int, int]

VERSION = 2
"""Of the spans that are located; part of a template's fingerprint."""
DATE = datetime(2024, 7, 26)
"""The date that templates print as today's; Llama 3's template prints it if there is no clock."""
DATE_PARTS = "aAbBcdDeFhHIjklmMpRSTuUVwWxXyY"
"""Format letters of `strftime`."""
REFUSALS = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError)
"""Errors that templates raise besides jinja's own."""

MARK = re.compile(r"\{%[-+]?\s*generation\b")
SENTINEL, ANSWER_END = "\ue000{}\ue001", "\ue002{}\ue003"
"""A number, which no template rewrites, between private code points, which occur in no template and hardly any
conversation. SENTINEL: a content. ANSWER_END: put where the content of an answer ends."""
ENDS = re.compile(ANSWER_END.format(r"(\d+)"))
QUESTION: Message = {"role": "user", "content": "a"}
PADS = (("\n ", " \n"), (" \n", "\n "))
"""White space before and after a content; shows what a template strips."""
STRIPPED: tuple[str | None, ...] = ("", "\n", None)
"""Arguments of `str.strip`; None: all white space."""
PROBE = (
    "{n} Ab ÄÖ ß ǆ é漢字😀 <b>&amp;</b> 'q' \"d\" {{x}} [y] (z) \\n 1. # * `c` _u_ ~ ^ $ % @"
    " http://a.bc/d?e=f  two\n\n\tend\r\n"
)
"""A content with letters and signs that filters such as `upper`, `escape` and `tojson` change."""
PROBE_TOOLS = ({"type": "function", "function": {"name": "a", "description": "a", "parameters": {}}},)
"""Tools for probing a template for conversations with tools."""
PROBE_TIMES = 40
"""Repetitions of PROBE; reveals a template that truncates contents."""
MOST_SHAPES = 1 << 12
"""Most shapes that are remembered."""
TAIL = 30
"""Characters at the end of an answer that identify its span."""
SEARCHES = {
    *("split", "rsplit", "partition", "rpartition", "replace", "find", "rfind", "index", "rindex", "count"),
    *("startswith", "endswith", "removeprefix", "removesuffix"),
}
STRIPS = {"strip", "lstrip", "rstrip", "trim"}
"""Methods and filters whose arguments a template searches in a content (SEARCHES), or strips from its ends (STRIPS)."""
REASONING = ("reasoning_content", "thinking", "reasoning")
"""Fields of a message with the model's reasoning before its answer."""
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{6,}>")


@dataclass(frozen=True, slots=True)
class Rendered:
    """text: the conversation. turns: for each assistant message, the spans [first, last) of its trained characters."""

    text: str
    turns: tuple[tuple[Span, ...], ...]


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a template writes around the contents of conversations with the same roles.

    pieces: before, between and after the contents. strips: for each message, the arguments of `str.lstrip` and
    `str.rstrip` for its content. turns: for each assistant message, its number and its spans, each edge as (whether it
    is counted from the end of the content, characters from there).
    """

    pieces: tuple[str, ...]
    strips: tuple[tuple[str | None, str | None], ...]
    turns: tuple[tuple[int, tuple[tuple[tuple[bool, int], tuple[bool, int]], ...]], ...]

    def filled(self, contents: Sequence[str]) -> Rendered:
        """The conversation with these contents."""
        text, starts, ends = self.pieces[0], [], []
        for content, (left, right), piece in zip(contents, self.strips, self.pieces[1:], strict=True):
            written = content.lstrip(left).rstrip(right)
            starts.append(len(text))
            ends.append(len(text) + len(written))
            text += written + piece
        return Rendered(
            text,
            tuple(
                tuple(
                    ((ends if behind else starts)[number] + first, (ends if after else starts)[number] + last)
                    for (behind, first), (after, last) in spans
                )
                for number, spans in self.turns
            ),
        )


UNSHAPED = _Shape((), (), ())
"""The shape of conversations whose contents change what the template writes around them."""


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
        named: Mapping[str, str] | Iterable[tuple[str, str]],
        control: Collection[str],
        stops: Collection[str] = (),
        with_tools: str | None = None,
    ) -> None:
        self._source = (
            template,
            tuple(sorted(dict(named).items())),
            tuple(sorted(control)),
            tuple(sorted(stops)),
            *([] if with_tools is None else [with_tools]),
        )
        self.with_tools: ChatTemplate | None = None
        self._probe_tools: Sequence[Any] | None = None
        if with_tools is not None:
            self.with_tools = ChatTemplate(with_tools, named, control, stops)
            self.with_tools._probe_tools = PROBE_TOOLS
        self._tree = _parsed(template)
        if any(called.name == "random" for called in _filters(self._tree)):
            raise InputError(
                "the chat template uses random values; expected one that writes the same text each time"
            )
        self.template = _dated(template)
        self.marked = MARK.search(template) is not None
        self._named = dict(named)
        self._stops = frozenset(stops)
        self._control = frozenset(control) | self._stops
        self._controls = re.compile(_any_of(self._control) or "(?!)")
        self._shapes: dict[tuple[tuple[str, ...], bytes], _Shape | None] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChatTemplate) and self._source == other._source

    def __hash__(self) -> int:
        return hash(self.template)

    def __reduce__(self) -> tuple[Any, ...]:
        # A process keeps a template with its shapes for all its tasks.
        return _kept, self._source

    @property
    def fingerprint(self) -> str:
        """A hash of everything but the conversation that decides a rendering."""
        return xxhash.xxh3_128_hexdigest(repr((VERSION, *self._source)).encode())

    @cached_property
    def trains_ends(self) -> bool:
        """Whether a trained turn includes the token that ends it; True if a probe cannot tell."""
        content = SENTINEL.format(1)
        try:
            rendered = self.render([QUESTION, {"role": "assistant", "content": content}, QUESTION])
        except InputError:
            return True
        (spans,) = rendered.turns
        behind = rendered.text.find(content) + len(content)
        return bool(spans) and self._controls.search(rendered.text, behind, spans[-1][1]) is not None

    def check(self, conversation: Conversation) -> None:
        """
        Raises:
            InputError: the template refuses the conversation, or an assistant turn cannot be located.
        """
        if isinstance(conversation, Chat):
            messages, tools = conversation.messages, conversation.tools
            template = self.with_tools if tools and self.with_tools is not None else self
            if template._known_shape(messages, tools) is None:
                template._rendered_alone(messages, tools)
        elif isinstance(conversation, Pair):
            self.check(conversation.chosen)
            self.check(conversation.rejected)

    def render(
        self, messages: Sequence[Message], tools: Sequence[Any] | None = None, *, alone: bool = False
    ) -> Rendered:
        """The text of a conversation, with the spans of each assistant message.

        messages: role, content (a string, or None beside tool_calls), and any other fields that the template reads.
            alone:
        render with the template itself, never with a remembered shape.

        Raises:
            InputError: the template refuses the conversation, or an assistant turn cannot be located.
        """
        if tools and self.with_tools is not None:
            return self.with_tools.render(messages, tools, alone=alone)
        if not alone and (shape := self._known_shape(messages, tools)) is not None:
            return shape.filled([message["content"] for message in messages])
        return self._rendered_alone(messages, tools)

    def _known_shape(self, messages: Sequence[Message], tools: Sequence[Any] | None) -> _Shape | None:
        """The shape of a conversation; None if it may depend on the contents, and for the first conversation of a kind:
        finding a shape takes several renderings, and some kinds occur only once."""
        if not all(self._is_plain(message) for message in messages):
            return None
        kind = (tuple(message["role"] for message in messages), orjson.dumps(tools) if tools else b"")
        if kind not in self._shapes:
            if len(self._shapes) == MOST_SHAPES:
                self._shapes.clear()
            self._shapes[kind] = None
        elif self._shapes[kind] is None:
            self._shapes[kind] = self._shape(kind[0], tools) or UNSHAPED
        shape = self._shapes[kind]
        return None if shape is UNSHAPED else shape

    def _rendered_alone(self, messages: Sequence[Message], tools: Sequence[Any] | None) -> Rendered:
        """`render` with the template itself."""
        rendered = self._located(messages, tools)
        self._check_all_is_written(rendered, messages, tools)
        return rendered

    def _check_all_is_written(
        self, rendered: Rendered, messages: Sequence[Message], tools: Sequence[Any] | None
    ) -> None:
        """
        Raises:
            InputError: the template leaves out tools, tool calls or reasoning.
        """
        if left_out := [name for name in map(_tool_name, tools or ()) if name not in rendered.text]:
            raise InputError(
                f"the chat template does not write the record's tool {left_out[0]!r}; use a template that writes "
                "tools, or remove the field tools"
            )
        answers = (message for message in messages if message["role"] == "assistant")
        for message, turn in zip(answers, rendered.turns, strict=True):
            said = "".join(rendered.text[first:last] for first, last in turn)
            if left_out := [
                name for name in map(_tool_name, message.get("tool_calls") or ()) if name not in said
            ]:
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

    def _located(self, messages: Sequence[Message], tools: Sequence[Any] | None) -> Rendered:
        """The rendered text and the spans of its answers."""
        answers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
        if not self.marked:
            text = self._text(messages, tools)
            return Rendered(text, tuple((turn,) for turn in self._turns(text, messages, answers, tools)))
        text, spans = self._marked(messages, tools)
        if not spans:
            raise InputError("the chat template marks no part of the conversation as the assistant's")
        if len(spans) == len(answers) and all(
            _content(messages[number]).rstrip()[-TAIL:] in text[first:last]
            for number, (first, last) in zip(answers, spans, strict=True)
        ):
            return Rendered(text, tuple((span,) for span in spans))
        # A template may mark several parts of a turn, or none.
        ends = [end for _, end in self._turns(text, messages, answers, tools)]
        return Rendered(
            text,
            tuple(
                tuple(span for span in spans if lower <= span[0] < upper)
                for lower, upper in pairwise([0, *ends[:-1], len(text)])
            ),
        )

    def _is_plain(self, message: Message) -> bool:
        """Whether the template must treat the message like any other content."""
        content = message.get("content")
        return (
            message.keys() <= {"role", "content"}
            and isinstance(content, str)
            and bool(content.strip())
            and content not in self._constants
            and self._telling.search(content) is None
        )

    @cached_property
    def _constants(self) -> set[str]:
        """The template's own strings."""
        from jinja2 import nodes

        return _strings(self._tree.find_all(nodes.Const))

    @cached_property
    def _telling(self) -> re.Pattern[str]:
        """Texts that may change how the template treats a content: its own strings, such as "</think>", and
        sentinels."""
        strings = self._constants
        marks = {part for text in strings for part in text.split() if len(part) > 2 and not part.isalpha()}
        return re.compile(_any_of({*marks, *_searched(self._tree), SENTINEL[0]}))

    def _shape(self, roles: tuple[str, ...], tools: Sequence[Any] | None) -> _Shape | None:
        """The shape of messages with these roles; None if it depends on their contents."""

        def rendered(contents: Iterable[str]) -> Rendered:
            pairs = zip(roles, contents, strict=True)
            return self._rendered_alone(
                [{"role": role, "content": content} for role, content in pairs], tools
            )

        contents = [SENTINEL.format(number) for number in range(len(roles))]
        probes = [
            self._telling.sub("", PROBE.format(n=number) * PROBE_TIMES) + "." for number in range(len(roles))
        ]
        try:
            bare, of_probes = rendered(contents), rendered(probes)
            pads = [rendered(before + content + after for content in contents) for before, after in PADS]
        except InputError:
            return None
        shape = self._by_pads(roles, contents, bare, [each.text for each in pads])
        return shape if shape is not None and shape.filled(probes) == of_probes else None

    def _by_pads(
        self, roles: tuple[str, ...], contents: Sequence[str], bare: Rendered, texts: Sequence[str]
    ) -> _Shape | None:
        """The shape, from renderings with sentinels as contents: bare, and padded with each of PADS."""
        pieces = _pieces(bare.text, contents)
        padded = [_pieces(text, contents) for text in texts]
        if pieces is None or None in padded:
            return None
        # For each piece: what is stripped from the end of the content before it and the beginning of the content after.
        stripped = [
            {
                (behind, before)
                for behind, before in product(STRIPPED, repeat=2)
                if others is not None
                and others[place] == pads[1].rstrip(behind) + piece + pads[0].lstrip(before)
            }
            for place, piece in enumerate(pieces)
            for pads, others in zip(PADS, padded, strict=True)
        ]
        same = [first & second for first, second in zip(stripped[::2], stripped[1::2], strict=True)]
        if not all(same):
            return None
        sides = [min(each, key=repr) for each in same]
        strips = tuple((sides[number][1], sides[number + 1][0]) for number in range(len(roles)))
        starts = [bare.text.index(content) for content in contents]
        ends = [start + len(content) for start, content in zip(starts, contents, strict=True)]
        answers = [number for number, role in enumerate(roles) if role == "assistant"]
        turns = []
        for number, spans in zip(answers, bare.turns, strict=True):
            edges = [edge for span in spans for edge in span]
            if any(starts[number] < edge < ends[number] for edge in edges):
                return None
            anchored = [
                (True, edge - ends[number]) if edge >= ends[number] else (False, edge - starts[number])
                for edge in edges
            ]
            turns.append((number, tuple(zip(anchored[::2], anchored[1::2], strict=True))))
        return _Shape(pieces, strips, tuple(turns))

    def _turns(
        self, text: str, messages: Sequence[Message], answers: Sequence[int], tools: Sequence[Any] | None
    ) -> list[Span]:
        """The span of each assistant message in the conversation's text.

        Raises:
            InputError: the text does not hold an answer, or the end of its tool calls cannot be located.
        """
        contents, marked = self._contents(text, messages, answers, tools)
        lead = [*(message for message in messages[:1] if message["role"] != "user"), QUESTION]

        def rendered(before: Sequence[Message], prompt: bool) -> str:
            with suppress(InputError):
                return self._text(before, tools, prompt=prompt)
            return ""

        def after(number: int, following: Sequence[Message], prompt: bool) -> str:
            """What the template writes after the sentinel of an answer with these messages behind it."""
            own = [marked[number], *following]
            # A question and an answer take the same time in every conversation, but some templates refuse them.
            text = rendered([*lead, *own], prompt) or rendered([*messages[:number], *own], prompt)
            return ENDS.sub("", text.partition(ANSWER_END.format(number))[2])

        turns: list[Span] = []
        for number, last in zip(answers, [None, *answers], strict=False):
            (start, end), begin = contents[number], turns[-1][1] if turns else 0
            at, opening = self._header_between(text, begin, start)
            if not opening or text.find(opening, begin) < at:
                # There is no header, or several, for example before the reasoning and before the answer itself.
                if last is None:
                    place, asked = 0, rendered(messages[:number], True)
                else:
                    place, asked = contents[last][1], after(last, messages[last + 1 : number], True)
                if asked and place + len(asked) >= begin and text.startswith(asked, place):
                    at, opening = place, asked
            begin = at + len(opening)
            # A template may write nothing of a content.
            known = bool(opening) or start < end
            if messages[number].get("tool_calls"):
                # The end may differ from that of a last message: Gemma 4 writes contents behind the results of calls.
                end = self._same(text, after(number, (), False), start)
                known = start + len(_tool_name(messages[number]["tool_calls"][0])) < end
            if not known:
                raise InputError(
                    f"the turn of message {number + 1} cannot be located; use a chat template with "
                    "{% generation %} marks"
                )
            turns.append((begin, self._closed(text, end)))
        return turns

    def _header_between(self, text: str, begin: int, start: int) -> tuple[int, str]:
        """(place, header) of the last header that begins between the end of an answer and the content of the next;
        (start, "") if there is none."""
        openings = ((text.rfind(each, begin, start + len(each) - 1), each) for each in self._openings)
        return next(((at, each) for at, each in openings if at >= 0), (start, ""))

    def _contents(
        self, text: str, messages: Sequence[Message], answers: Sequence[int], tools: Sequence[Any] | None
    ) -> tuple[dict[int, Span], list[Message]]:
        """(the span of each answer's content, or of nothing before the first name that it calls; the messages with
        ANSWER_END at the end of these spans).

        Raises:
            InputError: the text does not hold an answer.
        """
        spoken = {number for number in answers if not messages[number].get("tool_calls")}
        # A template may strip contents. If it cuts or replaces them, sentinels take their place.
        for strip, replaced in (*product(STRIPPED, (set[int](),)), ("", spoken)):
            marked = list(messages)
            for number in answers:
                marked[number] = _with_end(messages[number], number, strip, number in replaced)
            spans = _aligned(text, self._text(marked, tools), replaced)
            if spans.keys() >= set(answers):
                break
        for number in answers:
            if number not in spans:
                raise InputError(f"the chat template does not write the content of message {number + 1}")
            start, end = spans[number]
            if number not in spoken:
                end = start
            elif not replaced:
                written = _content(messages[number]).rstrip(strip)
                starts = (
                    end - len(each) for each in (written, written.lstrip()) if text.endswith(each, 0, end)
                )
                # A template that rewrites letters hides where they begin.
                start = next(starts, end)
            spans[number] = start, end
        return spans, marked

    def _closed(self, text: str, end: int) -> int:
        """The end of a turn whose content ends at `end`: after the control tokens that close it."""
        closed = self._closing.match(text, end)
        return closed.end() if closed else end

    @cached_property
    def _header(self) -> str:
        """The template's generation prompt."""
        asked = self._text([QUESTION], self._probe_tools, prompt=True)
        return asked[self._same(asked, self._text([QUESTION], self._probe_tools)) :]

    def _same(self, text: str, other: str, start: int = 0) -> int:
        """The end of what is the same in a text from `start` on and in another, not inside a control token of the
        text."""
        same = start + _common(text[start : start + len(other)], other)
        for token in self._controls.finditer(text, start):
            if token.end() > same:
                return min(same, token.start())
        return same

    @cached_property
    def _openings(self) -> list[str]:
        """What may stand before an answer, the longest first: the generation prompt, or a beginning of it, which the
        template may write before some answers, such as answers without reasoning."""
        header = self._header
        edges = re.finditer(rf"\s+|{self._controls.pattern}", header) if self._control else ()
        # A cut before a word is left out: the word may be the role.
        cuts = {edge for token in edges for edge in token.span() if not header[edge : edge + 1].isalnum()}
        return sorted({header, *(header[:cut] for cut in cuts)} - {""}, key=len, reverse=True)

    def _between(self, role: str) -> str:
        """What the template writes between an answer and a message with a role; "" if it refuses the role there."""
        question, answer = SENTINEL.format(2), SENTINEL.format(1)
        messages = [QUESTION, {"role": "assistant", "content": answer}, {"role": role, "content": question}]
        try:
            probe = self._text(messages, self._probe_tools)
        except InputError:
            if role == "user":
                raise
            return ""
        between, found, _ = probe.partition(answer)[2].partition(question)
        return between if found else ""

    @cached_property
    def _closing(self) -> re.Pattern[str]:
        """Matches what closes a turn: control tokens, except those that begin one, and any text before them."""
        opener = self._first_control(self._header)
        answer = SENTINEL.format(1)
        ended = [QUESTION, {"role": "assistant", "content": answer}]
        last = self._text(ended, self._probe_tools).partition(answer)[2]
        openers = {opener, self._named.get("bos_token")}
        betweens = [self._between(role) for role in ("user", "system", "tool")]
        for between in betweens:
            at = between.find(opener) if opener else -1
            openers.add(self._first_control(between[at if at >= 0 else self._same(between, last) :]))
        closing, opening = self._control - openers, self._stops & openers
        ways = [rf"(?:{_any_of(closing)})(?:\s*(?:{_any_of(closing)}))*\s*"] if closing else []
        # Some models, such as GLM, stop by beginning the next turn; they are trained to.
        ways += [_any_of(opening)] if opening else []
        # What the template writes after an answer, up to the token that ends the turn.
        texts = {self._controls.split(each)[0] for each in (*betweens, last)}
        return re.compile(rf"(?:\s*|{_any_of(texts)})(?:{'|'.join(ways)})")

    def _first_control(self, text: str) -> str | None:
        found = self._controls.search(text)
        return found.group() if found else None

    def _text(self, messages: Sequence[Message], tools: Sequence[Any] | None, *, prompt: bool = False) -> str:
        return self._rendered(messages, tools, add_generation_prompt=prompt)[0][0]

    def _marked(self, messages: Sequence[Message], tools: Sequence[Any] | None) -> tuple[str, list[Span]]:
        texts, spans = self._rendered(messages, tools, return_assistant_tokens_mask=True)
        return texts[0], [span for span in spans[0] if span[0] < span[1]]

    def given(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Messages as the template reads them."""
        # As in transformers, templates do not see null values.
        given = [{name: value for name, value in each.items() if value is not None} for each in messages]
        return [_in_parts(message) for message in given] if self._takes_parts else given

    def _rendered(self, messages: Sequence[Message], tools: Sequence[Any] | None, **options: Any) -> Any:
        from jinja2 import TemplateError
        from transformers.utils.chat_template_utils import render_jinja_template

        given = self.given(messages)
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
        question = SENTINEL.format(1)
        for as_parts in (False, True):
            self.__dict__["_takes_parts"] = as_parts
            try:
                text = self._text([{"role": "user", "content": question}], self._probe_tools)
                if ADDRESS.search(text):
                    raise InputError(
                        "the chat template writes an address in memory, which differs in each process; expected a "
                        "template that calls its functions"
                    )
                if question in text:
                    return as_parts
            except InputError:
                if as_parts:
                    raise
        raise InputError(
            "the chat template does not write the user's messages; expected the content of every message"
        )


@lru_cache(maxsize=4)
def _kept(*source: Any) -> ChatTemplate:
    return ChatTemplate(*source)


def _parsed(template: str) -> nodes.Template:
    """
    Raises:
        InputError: the template is not valid Jinja.
    """
    from jinja2 import Environment, TemplateSyntaxError

    # Jinja does not know the tags of marks.
    known = re.sub(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}", "", template)
    try:
        return Environment(extensions=["jinja2.ext.loopcontrols"]).parse(known)
    except (TemplateSyntaxError, RecursionError) as error:
        raise InputError(f"the chat template is not Jinja: {error}") from None


def _filters(tree: nodes.Template) -> Iterator[nodes.Filter]:
    from jinja2 import nodes

    return tree.find_all(nodes.Filter)


def _searched(tree: nodes.Template) -> set[str]:
    """The texts that a template searches in other texts, or strips from their ends."""
    from jinja2 import nodes

    whole: list[nodes.Node] = []
    stripped: list[nodes.Node] = []
    for compared in tree.find_all(nodes.Compare):
        sides = [compared.expr, *(operand.expr for operand in compared.ops)]
        if compared.ops[0].op in ("in", "notin"):
            whole += sides[:1]
        elif any(isinstance(side, nodes.Getitem) and not _is_key(side) for side in sides):
            whole += sides
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr) and call.node.attr in SEARCHES | STRIPS:
            (whole if call.node.attr in SEARCHES else stripped).extend(call.args)
    for called in _filters(tree):
        if called.name in ("replace", *STRIPS):
            (whole if called.name == "replace" else stripped).extend(called.args)
    # Left out: PADS show how line breaks and spaces are stripped.
    return {*_strings(whole), *"".join(_strings(stripped))} - {"", " ", "\n"}


def _is_key(item: nodes.Getitem) -> bool:
    """Whether an item is a member of an object, not a slice of a text."""
    return isinstance(getattr(item.arg, "value", None), str)


def _strings(expressions: Iterable[Any]) -> set[str]:
    """The strings among expressions and in tuples of expressions."""
    members = [member for each in expressions for member in getattr(each, "items", [each])]
    return {member.value for member in members if isinstance(getattr(member, "value", None), str)}


def _dated(template: str) -> str:
    """The template with DATE instead of today's date, so that its text is the same on every day.

    A macro replaces the function, because transformers passes no functions to a template.
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


def _pieces(text: str, contents: Sequence[str]) -> tuple[str, ...] | None:
    """The text before, between and after contents; None unless it holds each content once, in their order."""
    pieces = []
    for content in contents:
        piece, found, text = text.partition(content)
        if not found or content in text:
            return None
        pieces.append(piece)
    return (*pieces, text)


def _content(message: Message) -> str:
    """The content of a message; "" if it is not a string."""
    content = message.get("content")
    return content if isinstance(content, str) else ""


def _with_end(message: Message, number: int, strip: str | None, replace: bool) -> dict[str, Any]:
    """An answer with ANSWER_END after its content without the end that `strip` strips, in place of it, or before the
    names of the tools that it calls."""
    end, content = ANSWER_END.format(number), _content(message)
    if not message.get("tool_calls"):
        written = content.rstrip(strip)
        return {**message, "content": end if replace else written + end + content[len(written) :]}
    calls = [
        {**call, "function": {**call["function"], "name": end + call["function"]["name"]}}
        if "function" in call
        else {**call, "name": end + call["name"]}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _aligned(text: str, marked: str, replaced: Collection[int]) -> dict[int, Span]:
    """What stands in a text for each ANSWER_END of another rendering: nothing, except for those in `replaced`. Empty if
    the two differ elsewhere."""
    text, (piece, *rest) = text + ANSWER_END[-1], ENDS.split(marked + ANSWER_END[-1])
    spans, place = dict[int, Span](), len(piece)
    if not text.startswith(piece):
        return {}
    for number, piece in zip(map(int, rest[::2]), rest[1::2], strict=True):
        at = text.find(piece, place) if number in replaced and piece else place
        if at < place or not text.startswith(piece, at):
            return {}
        spans[number] = (spans[number][0] if number in spans else place), at
        place = at + len(piece)
    return spans


def _tool_name(tool: Any) -> str:
    """The name of a tool or of a called tool; "" if it has none."""
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else ""


def _common(a: str, b: str) -> int:
    """Length of the common beginning of two texts."""
    return next(
        (place for place, (one, other) in enumerate(zip(a, b, strict=False)) if one != other),
        min(len(a), len(b)),
    )


def _in_parts(message: Message) -> dict[str, Any]:
    content = message.get("content")
    return (
        {**message, "content": [{"type": "text", "text": content}]}
        if isinstance(content, str)
        else dict(message)
    )


def _any_of(tokens: Collection[str]) -> str:
    # The longest first, since one token may be the beginning of another.
    return "|".join(re.escape(token) for token in sorted(tokens, key=lambda token: (-len(token), token)))
