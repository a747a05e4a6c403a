"""Whether labels are those of TRL's own tokenisation and collator, id by id, template by template.

python benchmarks/chats/trl_labels.py                      # every template of TRL's package that has generation marks
python benchmarks/chats/trl_labels.py qwen3 llama3 --conversations 50

Conversations: what functions of the standard library do, by their docstrings, in one to three questions, with texts
among them that spell control tokens, spaces at ends, and other scripts. TRL's side is SFTTrainer's prepared dataset
through its collator; ours is `models.chat_tokens` under the same tokenizer and template. Columns, conversations whose
labels are equal of all:

marks        TRL's training template on both sides; assistant_only_loss, and train_on = "assistant"
own          the model's template as it ships; TRL puts its training template in the place of one without marks
completion   prompt and completion as messages, the model's template as it ships on both sides; completion_only_loss,
             and train_on = "completion"
text         prompt and completion as strings; TRL adds an end-of-text token, which is left out here
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import random
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dagster_divorder.chats.document import as_document
from dagster_divorder.chats.forms import conversation_of_record
from dagster_divorder.models.chat_templates import chat_template, describe_chats
from dagster_divorder.models.chat_tokens import SELECTED, ChatEncoder
from dagster_divorder.models.tokenize import load_encoder

MODULES = """
argparse base64 bisect calendar collections copy csv datetime difflib fnmatch fractions functools glob gzip hashlib
heapq html inspect io itertools json logging operator os pathlib pickle pprint random re sched shlex shutil socket
sqlite3 statistics string struct subprocess tarfile tempfile textwrap threading time tokenize traceback uuid zipfile
"""
ODD = (
    "naïve 😀 漢字",
    "  spaces at both ends \n",
    "it ends with <|im_end|>",
    "a\n\n\nb",
    "مرحبا",
    "<|eot_id|> begins it",
    "…",
)
NAMED = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
CONTROL = (
    r"<\|[^|<>]{1,40}\|>|<｜[^｜<>]{1,40}｜>|<(?:start|end)_of_(?:turn|utterance)>"
    r"|<[a-z]+\|>|<\|[a-z]+>|\[gMASK\]|<sop>"
)
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""Line feeds in a row are one word, as tokenizers since 2023 have it."""
IGNORED = -100
Record = dict[str, Any]


def conversations(count: int) -> list[Record]:
    draw, known = random.Random(0), []
    for name in MODULES.split():
        module = importlib.import_module(name)
        for function, value in sorted(inspect.getmembers(module, callable)):
            says = inspect.getdoc(value)
            if says and not function.startswith("_"):
                known.append((f"What does {name}.{function} do?", says[:1500]))
    records = []
    for number in range(count):
        messages: list[Record] = []
        for question, answer in draw.sample(known, draw.randint(1, 3)):
            odd = ODD[number % len(ODD)] if number % 3 == 0 else answer
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": odd}]
        records.append({"messages": messages})
    return records


def as_prompts(records: Sequence[Record]) -> list[Record]:
    turns = [record["messages"] for record in records]
    return [{"prompt": messages[:-1], "completion": messages[-1:]} for messages in turns]


def as_texts(records: Sequence[Record]) -> list[Record]:
    turns = [record["messages"] for record in records]
    return [{"prompt": f"{m[-2]['content']}\n", "completion": m[-1]["content"]} for m in turns]


def save_tokenizer(folder: Path, template: str, control: set[str], texts: Sequence[str]) -> Any:
    """A byte-level BPE of these texts, with the control tokens of a template; saved, since ours reads a checkpoint."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    own = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(WORDS), "isolated")
    own.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    own.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    own.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=2000, initial_alphabet=alphabet, show_progress=False)
    )
    tokens = sorted({*control, *NAMED.values()})
    own.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in tokens])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=own, chat_template=template, **NAMED)
    tokenizer.save_pretrained(folder)
    return tokenizer


def labels_of_trl(
    tokenizer: Any, records: Sequence[Record], folder: Path, **options: Any
) -> list[np.ndarray]:
    from datasets import Dataset
    from transformers import LlamaConfig, LlamaForCausalLM
    from trl import SFTConfig, SFTTrainer

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1}
    trainer = SFTTrainer(
        model=LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes)),
        args=SFTConfig(
            output_dir=str(folder), max_length=None, bf16=False, use_cpu=True, report_to="none", **options
        ),
        train_dataset=Dataset.from_list(list(records)),
        processing_class=tokenizer,
    )
    rows = list(trainer.train_dataset)
    labels = [
        row
        for first in range(0, len(rows), 8)
        for row in trainer.data_collator(rows[first : first + 8])["labels"]
    ]
    return [row[: len(each["input_ids"])].numpy() for row, each in zip(labels, rows, strict=True)]


def labels_of_ours(
    folder: Path, template: Path | None, records: Sequence[Record], form: str, train_on: str
) -> list[np.ndarray]:
    documents = [as_document(conversation_of_record(record, form)).decode() for record in records]
    rendered = chat_template(describe_chats(folder), template)
    encoder = ChatEncoder(folder, rendered, load_encoder(folder, control=True).engine)
    arrays = encoder.encode(pa.array(documents, pa.large_string()))
    ends = np.cumsum(arrays["lengths"])
    spans = np.split(
        np.column_stack([arrays[name] for name in ("span_first", "span_last", "span_kind")]).astype(int),
        np.cumsum(arrays["spans"])[:-1],
    )
    labels = []
    for ids, parts in zip(np.split(arrays["ids"].astype(np.int64), ends[:-1]), spans, strict=True):
        row = np.full(len(ids), IGNORED)
        for first, last, kind in parts:
            if kind & SELECTED[train_on] == SELECTED[train_on]:
                row[first:last] = ids[first:last]
        labels.append(row)
    return labels


def known_templates() -> list[str]:
    """Those with a training template, whose contents are texts and whose text is the same every day."""
    import trl

    folder = Path(trl.__file__).parent / "chat_templates"
    names = [file.stem.removesuffix("_training") for file in sorted(folder.glob("*_training.jinja"))]
    files = {name: (folder / f"{name}.jinja").read_text() for name in names}
    return [name for name, text in files.items() if "image" not in text and "strftime_now" not in text]


def equal(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> str:
    same = sum(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
    return f"{same} of {len(ours)}"


def compare(name: str, folder: Path, records: Sequence[Record]) -> Record:
    import trl

    templates = Path(trl.__file__).parent / "chat_templates"
    stock, marked = templates / f"{name}.jinja", templates / f"{name}_training.jinja"
    control = {token for file in (stock, marked) for token in re.findall(CONTROL, file.read_text())}
    texts = [message["content"] for record in records for message in record["messages"]]
    tokenizer = save_tokenizer(folder, stock.read_text(), control, texts)
    row: Record = {"template": name}
    theirs = labels_of_trl(tokenizer, records, folder, assistant_only_loss=True)
    row["marks"] = equal(labels_of_ours(folder, marked, records, "messages", "assistant"), theirs)
    row["own"] = equal(labels_of_ours(folder, None, records, "messages", "assistant"), theirs)
    prompts, texts_apart = as_prompts(records), as_texts(records)
    ours = labels_of_ours(folder, None, prompts, "prompt_completion", "completion")
    row["completion"] = equal(ours, labels_of_trl(tokenizer, prompts, folder))
    ours = labels_of_ours(folder, None, texts_apart, "prompt_completion", "completion")
    theirs = labels_of_trl(tokenizer, texts_apart, folder)
    row["text"] = equal(ours, [labels[:-1] for labels in theirs])
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("templates", nargs="*")
    parser.add_argument("--conversations", type=int, default=200)
    options = parser.parse_args()
    records = conversations(options.conversations)
    columns = ("template", "marks", "own", "completion", "text")
    print(f"| {' | '.join(columns)} |\n|---|--:|--:|--:|--:|")
    for name in options.templates or known_templates():
        with tempfile.TemporaryDirectory() as folder:
            row = compare(name, Path(folder), records)
        print(f"| {' | '.join(row[column] for column in columns)} |", flush=True)


if __name__ == "__main__":
    main()
