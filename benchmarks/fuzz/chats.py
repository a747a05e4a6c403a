"""Random histories of tiny corpora of conversations: every token and every label is that of a slow reference.

A history as in histories.py, whose records are chats in every form, prompts with completions, pairs and texts, in up to
three [[input]] blocks of JSONL or Parquet, some of them refused; templates, checkpoints, `train_on` and `too_long`
change, too. After each run also:

- the ids are those of transformers' `apply_chat_template`; labels are -100 but for the characters that a template with
  generation marks, or the record, marks;
- every piece that `packing.too_long` and `chats.train_on` leave is in a sequence as often as `repeats` says, and
  nothing else is;
- no file of an output holds a document as the store keeps it;
- a second run computes nothing and changes no file; an edited turn is one new document.

python benchmarks/fuzz/chats.py [--histories 150] [--first 0] [--folder /dev/shm]
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import histories
import numpy as np
import orjson
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from histories import WORDS, History, Sections

from dagster_divorder import run_all
from dagster_divorder.corpus.formats import recognised
from dagster_divorder.engine.progress import Silent
from dagster_divorder.models.chat_templates import DEFAULT
from dagster_divorder.readers.export import read_export_manifest
from dagster_divorder.settings import Settings
from dagster_divorder.stages import open_run
from dagster_divorder.stages.text.base_model import load_base_model

ODD = (
    "naïve",
    "漢字",
    "😀",
    "👩‍👩‍👧",
    "a\u0301",
    "\r\n",
    "\n\n",
    "\t",
    "{{ x }}",
    "<|im_end|>",
    "<|endoftext|>",
    "assistant",
)
FORMS = ("messages", "conversations", "prompt_completion", "alpaca", "pairs", "text")
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>\n' }}{% endgeneration %}{% else %}"
    "{{ message['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
STRIPPING = (
    "{{ bos_token }}{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] | trim + '<|im_end|>' }}"
    "{% endgeneration %}{% else %}{{ message['content'] | trim + '<|im_end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n\n' }}{% endif %}"
)
MERGING = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set before = messages[0]['content'] + '\n\n' %}"
    "{% set rest = messages[1:] %}{% else %}{% set before = '' %}{% set rest = messages %}{% endif %}"
    "{% for message in rest %}{% if message['role'] == 'assistant' %}<|im_start|>model\n"
    "{% generation %}{{ message['content'] + '<|im_end|>\n' }}{% endgeneration %}{% else %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + (before if loop.first else '') }}"
    "{{ message['content'] + '<|im_end|>\n' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>model\n' }}{% endif %}"
)
FORGETTING = (
    "{% for message in messages %}{% set said = message['content'] %}{% if message['role'] == 'assistant' %}"
    "{% if '</think>' in said and not loop.last %}{% set said = said.split('</think>')[-1] %}{% endif %}"
    "<|im_start|>assistant\n{% generation %}{{ said + '<|im_end|>\n' }}{% endgeneration %}{% else %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + said + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PLAIN = (
    "{% for message in messages %}{{ message['role'] + ': ' }}{% if message['role'] == 'assistant' %}{% generation %}"
    "{{ message['content'] + eos_token + '\n' }}{% endgeneration %}{% else %}{{ message['content'] + '\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
TEMPLATES = {
    "chatml": CHATML,
    "stripping": STRIPPING,
    "merging": MERGING,
    "forgetting": FORGETTING,
    "plain": PLAIN,
}
TEXT_FILES = {".json", ".jsonl", ".html", ".txt", ".md", ".csv"}
TRAIN_ON = ("assistant", "last", "completion", "all")


class Part(NamedTuple):
    """A text of a document. messages: of a conversation, with the `trained` ones of its answers; else None, and the
    text is `prompt`, not trained on, and `said`."""

    messages: list[dict[str, str]] | None
    trained: tuple[bool, ...] = ()
    completion: int = 0
    prompt: str = ""
    said: str = ""


class Item(NamedTuple):
    """A record of an input block, and its texts; no text: the record is to be refused."""

    block: int
    row: dict[str, Any]
    parts: tuple[Part, ...]


class Reference(NamedTuple):
    """A document as tokens: ids and trained, (T,). breaks: ends of all answers but the last."""

    ids: np.ndarray
    trained: np.ndarray
    breaks: list[int]


def without_marks(template: str) -> str:
    return template.replace("{% generation %}", "").replace("{% endgeneration %}", "")


class Chats(History):
    """A corpus of conversations."""

    def __init__(self, number: int, folder: Path) -> None:
        self.parquet = number % 3 == 0
        self.forms: list[str] = []
        for name, template in TEMPLATES.items():
            (folder / f"{name}.jinja").write_text(without_marks(template))
            (folder / f"{name} marked.jinja").write_text(template)
        make_checkpoint(folder / "model")
        super().__init__(number, folder)

    # The corpus ----------------------------------------------------------------------------------------------------

    def record(self) -> Item:
        if not self.forms:
            choices = [*FORMS, "messages", "conversations"]
            self.forms = list(dict.fromkeys(self.draw.choices(choices, k=self.draw.choice([1, 1, 2, 3]))))
        self.made += 1
        block = self.draw.randrange(len(self.forms))
        return self.of_form(block, refused=self.made > 4 and self.draw.random() < 0.04)

    def words(self, source: str) -> str:
        words = self.draw.choices(WORDS[source].split(), k=self.draw.choice([1, 2, 4, 10, 25]))
        if self.draw.random() < 0.3:
            words.insert(self.draw.randrange(len(words) + 1), self.draw.choice(ODD))
        space = self.draw.choice(["", "", "", " ", "\n"])
        return f"{space}{' '.join(words)}{self.draw.choice(['', '', space])}{self.draw.choice(['', '', '.'])}"

    def turns(self, source: str) -> list[dict[str, str]]:
        draw = self.draw
        said = [("system", self.words(source))] if draw.random() < 0.3 else []
        for _ in range(draw.choice([1, 1, 2, 3])):
            thought = f"<think>{self.words(source)}</think>" if draw.random() < 0.1 else ""
            said += [
                ("user", f"{self.made} {self.words(source)}"),
                ("assistant", f"{thought}{self.words(source)}"),
            ]
        if draw.random() < 0.1:
            said.append(("user", self.words(source)))
        messages = [{"role": role, "content": content} for role, content in said]
        return [
            message if message["content"].strip() else {**message, "content": "x"} for message in messages
        ]

    def of_form(self, block: int, *, refused: bool) -> Item:
        form, draw, source = self.forms[block], self.draw, self.draw.choice("aaabbc")
        row: dict[str, Any] = {"id": f"d{self.made}", "source": source, "good": draw.randrange(4)}
        messages = self.turns(source)
        answers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
        weights = [draw.random() < 0.8 for _ in answers]
        weights[0] |= not any(weights)
        if form in ("messages", "conversations"):
            weighted = draw.random() < 0.3
            trained = tuple(weights) if weighted else (True,) * len(answers)
            written: list[dict[str, Any]] = [dict(message) for message in messages]
            if weighted:
                for number, weight in zip(answers, weights, strict=True):
                    written[number]["weight"] = int(weight)
            if refused:
                written = draw.choice(
                    [written[: answers[0]], [], [{"role": "user", "content": ""}, *written]]
                )
            if form == "conversations":
                names = {"user": "human", "assistant": "gpt"}
                written = [
                    {
                        **{key: value for key, value in turn.items() if key == "weight"},
                        "from": names.get(turn["role"], turn["role"]),
                        "value": turn["content"],
                    }
                    for turn in written
                ]
            row[form] = json.dumps(written) if block else written
            part = Part(messages, trained, answers[-1])
            return Item(block, row, () if refused else (part,))
        if form == "pairs":
            return self.pair(block, row, messages[: answers[-1]], source, refused=refused)
        if form == "text":
            text = "" if refused else f"{self.made} {self.words(source)}"
            return Item(block, {**row, "text": text}, () if refused else (Part(None, said=text),))
        prompt = f"{self.made} {self.words(source)}"
        said = "" if refused else "x" + self.words(source)
        if form == "prompt_completion":
            part = Part(None, prompt=prompt, said=said)
            return Item(block, {**row, "prompt": prompt, "completion": said}, () if refused else (part,))
        context = draw.choice(["", self.words(source)])
        asked = prompt + (f"\n\n{context}" if context.strip() else "")
        chat = [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]
        row |= {"instruction": prompt, "input": context, "output": said}
        return Item(block, row, () if refused else (Part(chat, (True,), 1),))

    def pair(
        self, block: int, row: dict[str, Any], asked: list[dict[str, str]], source: str, *, refused: bool
    ) -> Item:
        sides = [[{"role": "assistant", "content": f"{self.words(source)} {name}"}] for name in "ab"]
        if refused:
            sides[1] = sides[0]
        trained = (False,) * sum(message["role"] == "assistant" for message in asked)
        parts = tuple(Part([*asked, *side], (*trained, True), len(asked)) for side in sides)
        row |= {"prompt": asked, "chosen": sides[0], "rejected": sides[1]}
        return Item(block, row, () if refused else parts)

    def edited(self, record: Item) -> Item:
        self.made += 1
        new = self.of_form(record.block, refused=False)
        return new._replace(row={**new.row, "id": record.row["id"]})

    def copied(self, record: Item) -> Item:
        return record._replace(row=super().copied(record.row))

    # The settings --------------------------------------------------------------------------------------------------

    def draw_settings(self) -> Sections:
        draw, sections = self.draw, super().draw_settings()
        base = draw.choice(["bootstrap", "bootstrap", "model"])
        templates = ["plain", "plain marked"] if base == "bootstrap" else [*TEMPLATES, "merging marked"]
        packing: dict[str, Any] = {
            "method": draw.choice(["best_fit", "best_fit", "none", "none", "concat", "cluster_packed"]),
            "too_long": draw.choice(["cut", "truncate", "truncate", "drop", "error"]),
        }
        if "pairs" in self.forms:
            packing["method"] = draw.choice(["none", "none", "none", "best_fit"])
            packing["too_long"] = draw.choice(["truncate", "drop", "truncate", "error", "cut"])
        sections["packing"] |= packing
        sections["sequence"]["length"] = draw.choice([32, 64, 128, 256])
        sections |= {
            "model": {"base": "bootstrap" if base == "bootstrap" else str(self.folder / "model")},
            "chats": {
                "template": draw.choice([None, *(str(self.folder / f"{name}.jinja") for name in templates)]),
                "train_on": draw.choice(TRAIN_ON),
            },
            "exports": {
                "formats": ("parquet", *draw.choice([(), ("olmo",), ("mds",)])),
            },
        }
        if "pairs" in self.forms:
            # A sequence of tokens holds no pair.
            sections["exports"]["formats"] = ()
        if sections["heldout"]["documents"] is not None and not isinstance(
            sections["heldout"]["documents"], float
        ):
            sections["heldout"] = {"documents": None}
        return sections

    def change_the_settings(self) -> None:
        if self.sections["order"]["frozen_tokens"]:
            self.forget()
        super().change_the_settings()
        # A template goes with its model.
        if self.sections["model"]["base"] == "bootstrap" and "plain" not in str(
            self.sections["chats"]["template"]
        ):
            self.sections["chats"] = self.sections["chats"] | {"template": None}

    def settings(self, place: str = "", **sections: dict[str, Any]) -> Settings:
        settings = super().settings(
            place, **sections, exports={"path": self.folder / f"{place}exports", **self.sections["exports"]}
        )
        fields = {name: self.sections["input"][name] for name in ("source_field", "id_field")}
        blocks = [
            {"paths": [str(self.path(number))], "max_reject_share": 1.0, **fields}
            for number, form in enumerate(self.forms)
            if any(item.block == number for item in self.records)
        ]
        given = {name: getattr(settings, name) for name in type(settings).model_fields if name != "input"}
        return recognised(Settings(**{**given, "input": blocks}))

    def path(self, block: int) -> Path:
        return self.folder / f"in{block}.{'parquet' if self.parquet else 'jsonl'}"

    def consume(self) -> None:
        super().consume()
        if self.consumed and self.sections["packing"]["method"] == "none":
            # A trainer reads records as sequences: these alone say which.
            self.consumed = self.consumed._replace(documents=[])

    # The laws ------------------------------------------------------------------------------------------------------

    def accepted(self) -> list[Item]:
        """In the input's order."""
        return [
            item
            for block in range(len(self.forms))
            for item in self.records
            if item.block == block and item.parts
        ]

    def write(self) -> None:
        for block in range(len(self.forms)):
            rows = [item.row for item in self.records if item.block == block]
            if self.parquet and rows:
                pq.write_table(pa.Table.from_pylist(rows), self.path(block))
            elif not self.parquet:
                self.path(block).write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))

    def lines(self) -> list[bytes]:
        return [_line(item.row) if self.parquet else orjson.dumps(item.row) for item in self.accepted()]

    def written(self) -> list[bytes]:
        if not self.parquet:
            return super().written()
        # Parquet files of unlike columns come out as JSON lines.
        if (lines := self.folder / "out/curated.jsonl").exists():
            return [_line(orjson.loads(line)) for line in lines.read_bytes().splitlines()]
        return [_line(row) for row in pq.read_table(self.folder / "out/curated.parquet").to_pylist()]

    def references(self) -> list[Reference]:
        reader = self.reader()
        return [reader.read(item.parts) for item in self.accepted()]

    def check_tokens(self, documents: pd.DataFrame, plan: pd.DataFrame, sequences: np.ndarray) -> None:
        self.check_sequences(plan, sequences)
        settings, repeats, references = self.settings(), documents.repeats.to_numpy(), self.references()
        assert documents.tokens.tolist() == [len(reference.ids) for reference in references], "other tokens"
        masked = settings.masked and settings.chats.train_on != "all"
        cut = documents.record_id.isin(settings.order.cut).to_numpy()
        laid = [np.zeros(len(reference.ids) + settings.packing.end_of_text, int) for reference in references]
        for document, start, length in zip(plan.document, plan.start, plan.length, strict=True):
            laid[document][start : start + length] += 1
        for at, (counts, reference) in enumerate(zip(laid, references, strict=True)):
            if settings.order.frozen_tokens:
                assert (counts <= repeats[at]).all(), "tokens are doubled"
                continue
            expected = np.zeros(len(counts), int)
            for first, last in pieces(reference, len(counts), settings, masked=masked):
                expected[first:last] += 0 if cut[at] else repeats[at]
            assert counts.tolist() == expected.tolist(), f"tokens of record {at} are lost, or doubled"
        self.check_export(plan, sequences, references)
        self.check_files()

    def check_export(self, plan: pd.DataFrame, sequences: np.ndarray, references: list[Reference]) -> None:
        settings = self.settings()
        if "parquet" not in settings.exports.formats:
            return
        files = sorted((settings.exports.path / "parquet").glob("*.parquet"))
        rows = pa.concat_tables([pq.read_table(file) for file in files]).to_pylist()
        end = read_export_manifest(settings.exports.path / "parquet")["tokenizer"]["end_of_text"]
        runs: dict[int, list[tuple[int, int, int]]] = {}
        for sequence, document, start, length in plan.itertuples(index=False):
            runs.setdefault(sequence, []).append((document, start, length))
        order = sequences.reshape(-1).tolist()
        assert len(rows) == len(order)
        for row, sequence in zip(rows, order, strict=True):
            ids: list[int] = []
            trained: list[bool] = []
            for document, start, length in runs[sequence]:
                reference = references[document]
                ids += [*reference.ids.tolist(), end][start : start + length]
                flags = reference.trained.tolist()
                trained += [*flags, flags[-1]][start : start + length]
            assert row["input_ids"] == ids, "other ids"
            assert row["seq_lengths"] == [length for _, _, length in runs[sequence]]
            if "labels" in row:
                labels = [token if flag else -100 for token, flag in zip(ids, trained, strict=True)]
                assert row["labels"] == labels, "other labels"
        if settings.masked and settings.chats.train_on != "all":
            assert "labels" in rows[0], "no labels"

    def check_files(self) -> None:
        for file in self.files():
            if file.suffix in TEXT_FILES:
                said = file.read_bytes()
                assert b"\x1e" not in said and b"\\u001e" not in said, f"{file} holds a mark"
                assert b'"trained":[' not in said, f"{file} holds a document of the store"
            elif file.suffix == ".parquet":
                said = str(pq.read_table(file).to_pylist())
                assert "\\x1e" not in said and '"trained":' not in said, (
                    f"{file} holds a document of the store"
                )

    def files(self) -> Iterator[Path]:
        for folder in (self.folder / "out", self.folder / "exports"):
            yield from sorted(path for path in folder.rglob("*") if path.is_file())

    def check_training(
        self, documents: pd.DataFrame, plan: pd.DataFrame, order: np.ndarray, sequences: np.ndarray
    ) -> None:
        super().check_training(documents, plan, order, sequences)
        self.check_edit()
        if self.draw.random() < 0.4:
            self.check_again()

    def check_edit(self) -> None:
        """One changed record since the last good run is one new document at most."""
        records, sections, _ = self.good or ([], {}, None)
        same = sections == self.sections and sections["heldout"].get("documents") is None
        if same and len(records) == len(self.records):
            changed = sum(was is not now for was, now in zip(records, self.records, strict=True))
            new = open_run(self.settings()).receipt("token_counts").figures["new_documents"]
            assert changed != 1 or new <= 1, f"one edited record, and {new} new documents"

    def check_again(self) -> None:
        before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in self.files()}
        receipts = run_all(self.settings(), Silent())
        after = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in self.files()}
        assert before == after, "a second run writes anew"
        new = {stage: receipt.figures.get("new_documents") for stage, receipt in receipts.items()}
        assert not any(new.values()), f"a second run computes {new}"

    def texts(self) -> list[str]:
        reader = self.reader()
        return [reader.text(item.parts[0]) for item in self.accepted()]

    def reader(self) -> Reader:
        named = self.sections["chats"]["template"]
        if named is None:
            template = DEFAULT if self.sections["model"]["base"] == "bootstrap" else CHATML
        else:
            template = TEMPLATES[Path(named).stem.removesuffix(" marked")]
        directory = load_base_model(open_run(self.settings())).directory
        return Reader(directory, template, self.sections["chats"]["train_on"])

    def compare_with_a_fresh_run(self) -> None:
        super().compare_with_a_fresh_run()
        expected, found = (
            {
                str(path.relative_to(folder)): path.read_bytes()
                for path in folder.rglob("*")
                if path.is_file() and path.name != "manifest.json"
            }
            for folder in (self.folder / "fresh_exports", self.folder / "exports")
        )
        # An export whose format is no longer named stays where it is.
        formats = self.settings().exports.formats
        differing = [
            name
            for name in {*expected, *found}
            if expected.get(name) != found.get(name) and name.split("/")[0].lstrip("_") in formats
        ]
        assert differing == [], f"other exports: {differing}"


def pieces(reference: Reference, size: int, settings: Settings, *, masked: bool) -> list[tuple[int, int]]:
    """What is packed of a document of `size` tokens, (first, last) each."""
    length, rule = settings.sequence.length, settings.packing.too_long
    parts = [(0, size)]
    if rule == "truncate":
        parts = [(0, min(size, length))]
    elif rule == "drop":
        parts = parts if size <= length else []
    if settings.masked and settings.packing.method in ("none", "best_fit"):
        parts = [
            (first, min(last, first + length))
            for begin, last in parts
            for first in range(begin, last, length)
        ]
    flags = reference.trained
    return [part for part in parts if not masked or flags[slice(*part)].any()]


def _line(row: dict[str, Any]) -> bytes:
    return orjson.dumps(_sparse(row), option=orjson.OPT_SORT_KEYS)


def _sparse(value: Any) -> Any:
    """Without nulls, which Parquet files have for what rows lack."""
    if isinstance(value, dict):
        return {name: _sparse(member) for name, member in value.items() if member is not None}
    return [_sparse(item) for item in value] if isinstance(value, list) else value


class Reader:
    """Slow: transformers renders and tokenises one conversation at a time."""

    def __init__(self, directory: Path, template: str, train_on: str) -> None:
        self.tokenizer, self.offsets = tokenizers_of(directory)
        self.template, self.train_on = template, train_on

    def read(self, parts: tuple[Part, ...]) -> Reference:
        each = [self.part(part) for part in parts]
        return Reference(
            np.concatenate([reference.ids for reference in each]),
            np.concatenate([reference.trained for reference in each]),
            each[0].breaks,
        )

    def text(self, part: Part) -> str:
        return self.rendered(part)[0]

    def rendered(self, part: Part) -> tuple[str, list[tuple[int, int]]]:
        if part.messages is None:
            text = part.prompt + part.said
            return text, [(len(part.prompt), len(text))]
        from transformers.utils.chat_template_utils import render_jinja_template

        named = {
            name: value for name, value in self.tokenizer.special_tokens_map.items() if isinstance(value, str)
        }
        named = {"bos_token": "", **named}
        texts, spans = render_jinja_template(
            [part.messages], chat_template=self.template, return_assistant_tokens_mask=True, **named
        )
        return texts[0], [(first, last) for first, last in spans[0]]

    def part(self, part: Part) -> Reference:
        text, spans = self.rendered(part)
        # A control token that is spelled out in a plain text is text.
        self.offsets.encode_special_tokens = part.messages is None and not part.prompt
        encoding = self.offsets.encode(text, add_special_tokens=False)
        ids = np.array(encoding.ids)
        if part.messages is not None:
            theirs = self.tokenizer.apply_chat_template(
                part.messages, chat_template=self.template, tokenize=True, return_dict=False
            )
            assert ids.tolist() == list(theirs), "the reference differs from itself"
        last = len(spans) - 1
        answers = [
            number for number, message in enumerate(part.messages or []) if message["role"] == "assistant"
        ]
        trained, ends = np.zeros(len(ids), bool), []
        for number, (begin, end) in enumerate(spans):
            inside = np.array([first < end and begin < after for first, after in encoding.offsets], bool)
            ends.append(int(np.flatnonzero(inside)[-1]) + 1)
            if part.messages is None or (
                part.trained[number]
                and (self.train_on != "last" or number == last)
                and (self.train_on != "completion" or answers[number] >= part.completion)
            ):
                trained |= inside
        if self.train_on == "all":
            trained[:] = True
        whole = part.messages is None and not part.prompt
        return Reference(ids, trained, [-1] if whole else ends[:-1])


@lru_cache(maxsize=4)
def tokenizers_of(directory: Path) -> tuple[Any, Any]:
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    plain = Tokenizer.from_file(str(directory / "tokenizer.json"))
    plain.post_processor = None
    return AutoTokenizer.from_pretrained(directory), plain


def make_checkpoint(folder: Path) -> None:
    """A checkpoint of a few bytes, with control tokens and a chat template."""
    import torch
    from safetensors.torch import save_file
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    folder.mkdir()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([*WORDS.values(), *ODD] * 5, trainer)
    special = ("<s>", "<|im_start|>", "<|im_end|>", "<pad>")
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"bos_token": "<s>", "eos_token": "<|im_end|>", "pad_token": "<pad>"}
    config = {**named, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(without_marks(CHATML))
    size = tokenizer.get_vocab_size()
    weights = torch.randn(size, 8, generator=torch.Generator().manual_seed(0))
    save_file({"model.embed_tokens.weight": weights}, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(
        json.dumps(
            {
                "model_type": "llama",
                "vocab_size": size,
                "hidden_size": 8,
                "num_attention_heads": 2,
                "architectures": ["LlamaForCausalLM"],
            }
        )
    )


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    histories.main(Chats, 150, __doc__)
