"""Ids and masks of conversations beside transformers', for every chat template that TRL's package has.

    .venv/bin/python benchmarks/chats/masks.py [--conversations 200] [--templates qwen3 llama3]
        [--tokenizers byte-level]

Conversations have one to six turns: with a system turn, tools, tool calls and their results, reasoning, code, several
scripts, spaces alone at the ends, and texts that spell out control tokens and words of templates. Tokenizers are
trained here, with each template's control tokens: byte-level BPE, BPE with byte fallback (as SentencePiece makes it),
Unigram and WordPiece. Each conversation is tokenised by the engine that the pipeline would choose.

Columns count conversations, and turns in `prefix` and `equal`:
ids: equal to those of `apply_chat_template(tokenize=True)`.
masks: equal to those of `return_assistant_tokens_mask=True`, of templates with marks.
ends: equal to the template's marks, but not to transformers' mask, which is wrong at the ends of spans: it has the
first token alone of a last character of several tokens; and where the tokenizer gives an edge to no token, as
byte-level ones do with spaces, it trains on all that follows, or on nothing more.
prefix: turns of templates without marks where the conversation up to the turn, with the generation prompt, and the
one through the turn are both the beginning of the whole. equal: those of them whose mask is what lies between.
refused: by the template itself. not located: rejected here, though the template takes them.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dagster_divorder.chats.document import Chat, as_document
from dagster_divorder.chats.template import ChatTemplate
from dagster_divorder.errors import InputError
from dagster_divorder.models.chat_tokens import ChatEncoder
from dagster_divorder.models.tokenize import Engine, load_encoder

NAMED = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
CONTROL = re.compile(
    r"<\|[^|<>]{1,40}\|>|<｜[^｜<>]{1,40}｜>|<(?:start|end)_of_(?:turn|utterance)>|<[a-z]+\|>|<\|[a-z]+>|\[gMASK\]|<sop>"
)
WORDS = (
    "a",
    "the answer is",
    "def f(x):\n    return x + 1\n",
    '{"a": [1, 2], "b": "c"}',
    "naïve café",
    "漢字かな交じり文",
    "😀👍🏽",
    "مرحبا",
    "e\u0301 o\u0308",
    "user",
    "assistant\n",
    "system",
    "\n\n",
    "  ",
    "1.",
    "{{ messages }}",
    "{% raw %}",
    "</s>",
    "<|im_end|>",
    "<|im_start|>assistant\n",
    "<|eot_id|>",
    "<|end|>",
    "<end_of_turn>",
    "<think>",
    "</think>",
    "<tool_call>",
    "<｜Assistant｜>",
)
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "description": "one"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}
Row = dict[str, Any]


@cache
def folder() -> Path:
    import trl

    return Path(trl.__file__).parent / "chat_templates"


def template(name: str) -> ChatTemplate:
    content = (folder() / f"{name}.jinja").read_text(encoding="utf-8")
    return ChatTemplate(content, NAMED, {*CONTROL.findall(content), *NAMED.values()}, ["</s>"])


def conversations(count: int, seed: int = 0) -> list[Chat]:
    rng = np.random.default_rng(seed)
    return [_conversation(rng) for _ in range(count)]


def _conversation(rng: np.random.Generator) -> Chat:
    messages: list[dict[str, Any]] = []
    if rng.random() < 0.3:
        messages.append({"role": "system", "content": _text(rng)})
    tools = (TOOL,) if rng.random() < 0.2 else None
    for _ in range(rng.integers(1, 7)):
        messages.append({"role": "user", "content": _text(rng)})
        if tools and rng.random() < 0.5:
            arguments: Any = {"a": 1, "b": int(rng.integers(9))}
            call = {"type": "function", "function": {"name": "add", "arguments": arguments}}
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            messages.append({"role": "tool", "name": "add", "content": _text(rng)})
        answer = {"role": "assistant", "content": _text(rng)}
        if rng.random() < 0.1:
            answer["content"] = f"<think>\n{_text(rng)}\n</think>\n\n{answer['content']}"
        elif rng.random() < 0.1:
            answer["reasoning_content"] = _text(rng)
        messages.append(answer)
    answers = sum(message["role"] == "assistant" for message in messages)
    return Chat(tuple(messages), (True,) * answers, len(messages) - 1, tools)


def _text(rng: np.random.Generator) -> str:
    while not (text := _words(rng)).strip():
        pass
    return text


def _words(rng: np.random.Generator) -> str:
    return rng.choice(["", " "]).join(rng.choice(WORDS, rng.integers(1, 12)).tolist())


def byte_level() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.ByteLevel(trim_offsets=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return _trained(made, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False))


def byte_fallback() -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers, trainers

    made = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    special = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    return _trained(
        made,
        trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False, max_token_length=6),
    )


def unigram() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    return _trained(
        made,
        trainers.UnigramTrainer(
            vocab_size=200, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
        ),
    )


def wordpiece() -> Any:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return _trained(
        made, trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]"], show_progress=False)
    )


def _trained(made: Any, trainer: Any) -> Any:
    made.train_from_iterator([" ".join(WORDS[:14]) * 20], trainer)
    return made


TOKENIZERS: dict[str, Callable[[], Any]] = {
    "byte-level": byte_level,
    "byte fallback": byte_fallback,
    "unigram": unigram,
    "wordpiece": wordpiece,
}


def tokenizer(own: ChatTemplate, kind: str) -> Any:
    """A tokenizer of transformers, with the control tokens of a template."""
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    made = TOKENIZERS[kind]()
    control = sorted({*CONTROL.findall(own.template), *NAMED.values()})
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return PreTrainedTokenizerFast(tokenizer_object=made, chat_template=own.template, **NAMED)


def compared(
    name: str, kind: str, chats: Sequence[Chat], engine: Engine | None = None
) -> tuple[Row, list[str]]:
    """(counts of conversations, what differs or is not located) for a template and a tokenizer. engine: by default the
    one that the pipeline would choose."""
    own = template(name)
    theirs, counts = tokenizer(own, kind), Counter[str]()
    remarks = []
    with tempfile.TemporaryDirectory() as directory:
        theirs.backend_tokenizer.save(f"{directory}/tokenizer.json")
        engine = engine or load_encoder(directory, sample=rendered(own, chats), control=True).engine
        encoder = ChatEncoder(Path(directory), own, engine)
        for chat in chats:
            try:
                expected = _applied(theirs, own, chat)
            except Exception:
                counts["refused"] += 1
                continue
            try:
                arrays = encoder.encode(pa.array([as_document(chat).decode()], pa.large_string()))
            except InputError as error:
                counts["not located"] += 1
                remarks.append(f"{error}: {roles(chat)}")
                continue
            mask = mask_of(arrays)
            counts["compared"] += 1
            counts["ids"] += (same := arrays["ids"].tolist() == expected["input_ids"])
            if not same:
                remarks.append(f"ids differ: {chat.messages}")
            elif own.marked:
                if mask == expected["assistant_masks"]:
                    counts["masks"] += 1
                elif mask == _by_characters(theirs, own, chat, expected):
                    counts["ends"] += 1
                else:
                    remarks.append(f"masks differ: {chat.messages}")
            else:
                for prefixes, equal in _by_prefixes(theirs, own, chat, expected, mask):
                    counts["prefix"] += prefixes
                    counts["equal"] += prefixes and equal
                    if prefixes and not equal:
                        remarks.append(f"prefix rendering differs: {chat.messages}")
    return {"template": name, "tokenizer": kind, "engine": engine, **counts}, remarks


def rendered(own: ChatTemplate, chats: Sequence[Chat]) -> Iterator[str]:
    for chat in chats:
        with suppress(InputError):
            yield own.render(chat.messages, chat.tools).text


def roles(chat: Chat) -> str:
    return " ".join(message["role"] for message in chat.messages)


def mask_of(arrays: dict[str, Any]) -> list[int]:
    """Whether each token of one document is trained on."""
    mask = np.zeros(len(arrays["ids"]), int)
    for first, last in zip(arrays["span_first"], arrays["span_last"], strict=True):
        mask[first:last] = 1
    return mask.tolist()


def _messages(own: ChatTemplate, chat: Chat) -> list[dict[str, Any]]:
    def as_parts(message: dict[str, Any]) -> dict[str, Any]:
        return {**message, "content": [{"type": "text", "text": message["content"]}]}

    return [as_parts(message) if own._takes_parts else message for message in chat.messages]


def _applied(theirs: Any, own: ChatTemplate, chat: Chat) -> Any:
    return theirs.apply_chat_template(
        _messages(own, chat),
        tools=chat.tools and list(chat.tools),
        return_dict=True,
        return_assistant_tokens_mask=own.marked,
    )


def _by_characters(theirs: Any, own: ChatTemplate, chat: Chat, expected: Any) -> list[int]:
    """The mask of the template's own marks: a token is trained on if it holds one of their characters."""
    from transformers.utils.chat_template_utils import render_jinja_template

    texts, spans = render_jinja_template(
        [_messages(own, chat)],
        tools=chat.tools and list(chat.tools),
        chat_template=own.template,
        return_assistant_tokens_mask=True,
        **NAMED,
    )
    return _held(_places(theirs, texts[0]), spans[0])


def _places(theirs: Any, text: str) -> list[tuple[int, int]]:
    backend = theirs.backend_tokenizer
    kept, backend.post_processor = backend.post_processor, None
    places = backend.encode(text, add_special_tokens=False).offsets
    backend.post_processor = kept
    return places


def _held(places: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> list[int]:
    return [int(any(start < last and end > first for first, last in spans)) for start, end in places]


def _by_prefixes(
    theirs: Any, own: ChatTemplate, chat: Chat, expected: Any, mask: Sequence[int]
) -> Iterator[tuple[bool, bool]]:
    """Of each answer whether the conversation to its beginning, with the generation prompt, and the one to its end are
    prefixes of the whole; and whether the mask has the tokens between the two, and no other up to the next question."""
    messages, tools = _messages(own, chat), chat.tools and list(chat.tools)

    def rendered(last: int, prompt: bool) -> str:
        return theirs.apply_chat_template(
            messages[:last], tools=tools, tokenize=False, add_generation_prompt=prompt
        )

    whole = rendered(len(messages), False)
    places = _places(theirs, whole)
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        try:
            before, through = rendered(number, True), rendered(number + 1, False)
        except Exception:
            yield False, False
            continue
        right = whole.startswith(through) and through.startswith(before)
        if not right:
            yield False, False
            continue
        of_turn = _held(places, [(len(before), len(through))])
        bare = rendered(number, False)
        inside = [start >= len(bare) and end <= len(through) for start, end in places]
        yield (
            True,
            all(not here or one == other for here, one, other in zip(inside, of_turn, mask, strict=True)),
        )


def names() -> list[str]:
    return sorted(file.stem for file in folder().glob("*.jinja"))


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--conversations", type=int, default=200)
    made.add_argument("--templates", nargs="+", default=names())
    made.add_argument("--tokenizers", nargs="+", default=list(TOKENIZERS), choices=list(TOKENIZERS))
    made.add_argument("--remarks", type=int, default=1, help="of each template and tokenizer")
    options = made.parse_args()
    heads = ["compared", "ids", "masks", "ends", "prefix", "equal", "refused", "not located"]
    print(f"{'template':34}{'tokenizer':15}{'engine':12}{''.join(f'{head:>13}' for head in heads)}")
    chats = conversations(options.conversations)
    totals = Counter[str]()
    for name in options.templates:
        for kind in options.tokenizers:
            row, remarks = compared(name, kind, chats)
            totals.update({head: row.get(head, 0) for head in heads})
            print(
                f"{name:34}{kind:15}{row['engine']:12}{''.join(f'{row.get(head, 0):13,}' for head in heads)}",
                flush=True,
            )
            for remark in remarks[: options.remarks]:
                print(f"    {remark[:600]}")
    print(f"{'all':61}{''.join(f'{totals[head]:13,}' for head in heads)}")


if __name__ == "__main__":
    main()
