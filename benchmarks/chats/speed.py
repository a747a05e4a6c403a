"""Rendering, tokenising and masking of conversations beside `datasets.map` with `apply_chat_template`, in turn.

    .venv/bin/python benchmarks/chats/speed.py FILE.jsonl [--conversations 10_000] [--templates qwen3_training llama3]
        [--cores 1 2] [--repeat 3]

FILE.jsonl has a `text` in each line; conversations of one to six turns are cut from the texts, with questions of some
300 characters and answers of some 900. The tokenizer is a byte-level BPE of 16,000 tokens that is trained on them. The
templates are those of TRL's package. Each way runs in a process of its own, and starts from a file of conversations:

ours: `ChatEncoder`, as the workers of `token_counts` run it, a fragment of 1,000 conversations at a time; arrays saved.
    With two cores two processes share the fragments.
mask: `datasets.map` of `apply_chat_template(tokenize=True, return_dict=True, return_assistant_tokens_mask=True)`.
plain: the same without the mask. text: `apply_chat_template(tokenize=False)`, which makes no token.

Processor seconds are those of the process and its children, from the first conversation to the last, without imports
and loading; the best of the repetitions. The ids and, where the template has marks, the masks are compared.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson

NAMED = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
WAYS = ("ours", "mask", "plain", "text")
FRAGMENT = 1_000


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("input", type=Path)
    made.add_argument("--conversations", type=int, default=10_000)
    made.add_argument(
        "--templates", nargs="+", default=["qwen3_training", "llama3_training", "qwen3", "gemma3"]
    )
    made.add_argument("--cores", nargs="+", type=int, default=[1, 2])
    made.add_argument("--repeat", type=int, default=3)
    made.add_argument("--way", choices=WAYS, help="for the processes that this script starts")
    options = made.parse_args()
    if options.way:
        print(orjson.dumps(measured(options.way, options.input, options.cores[0])).decode())
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        megabytes = write_conversations(options.input, folder, options.conversations)
        print(f"{options.conversations:,} conversations, {megabytes:.1f} MB of contents")
        heads = "".join(f"{way:>10}" for way in WAYS)
        print(
            f"{'processor s':26}{'cores':>6}{heads}{'mask/ours':>12}{'plain/ours':>12}   wall s of ours, mask"
        )
        for template in options.templates:
            write_tokenizer(folder, template)
            for cores in options.cores:
                compare(folder, template, cores, options.repeat)


def compare(folder: Path, template: str, cores: int, repeat: int) -> None:
    best: dict[str, dict[str, float]] = {}
    for _ in range(repeat):
        for way in WAYS:
            figures = started(way, folder, cores)
            known = best.get(way, figures)
            best[way] = {name: min(known[name], figures[name]) for name in figures}
    assert best["ours"]["ids"] == best["mask"]["ids"] == best["plain"]["ids"], "the ids differ"
    if "training" in template:
        assert best["ours"]["trained"] == best["mask"]["trained"], "the masks differ"
    shown = "".join(f"{best[way]['processor']:10.2f}" for way in WAYS)
    ours = best["ours"]["processor"]
    ratios = "".join(f"{best[way]['processor'] / ours:12.1f}" for way in ("mask", "plain"))
    print(
        f"{template:26}{cores:6}{shown}{ratios}   {best['ours']['wall']:.2f}, {best['mask']['wall']:.2f}",
        flush=True,
    )


def started(way: str, folder: Path, cores: int) -> dict[str, float]:
    # Threads of tokenizers and gigatoken, and of linear algebra.
    threads = {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, str(folder), "--way", way, "--cores", str(cores)]
    run = subprocess.run(
        command, env={**os.environ, **threads}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True
    )
    figures: dict[str, float] = orjson.loads(run.stdout.splitlines()[-1])
    return figures


def write_conversations(file: Path, folder: Path, count: int) -> float:
    """Conversations from the texts of a file, as records and as documents of a store; returns their megabytes."""
    import gzip

    import datasets
    import pyarrow as pa

    from dagster_divorder.chats.document import Chat, as_document

    rng = np.random.default_rng(0)
    with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as lines:
        text = "\n".join(orjson.loads(line)["text"] for _, line in zip(range(count * 4), lines, strict=False))
    place, chats = 0, []
    for _ in range(count):
        messages = []
        for _ in range(rng.integers(1, 7)):
            for role, size in (("user", 300), ("assistant", 900)):
                size = int(rng.integers(size // 2, size * 3 // 2))
                content = text[place : place + size].strip() or "nothing"
                place = (place + size) % (len(text) - 2_000)
                messages.append({"role": role, "content": content})
        chats.append(messages)
    datasets.Dataset.from_dict({"messages": chats}).save_to_disk(str(folder / "dataset"))
    documents = [as_document(Chat(tuple(chat), (True,) * (len(chat) // 2), 1)).decode() for chat in chats]
    table = pa.table({"content": pa.array(documents, pa.large_string())})
    with pa.ipc.new_file(folder / "documents.arrow", table.schema) as writer:
        writer.write_table(table, FRAGMENT)
    (folder / "text.txt").write_text(text[:8_000_000])
    return sum(len(message["content"].encode()) for chat in chats for message in chat) / 1e6


def write_tokenizer(folder: Path, template: str) -> None:
    import trl
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from dagster_divorder.chats.template import ChatTemplate

    sys.path.insert(0, str(Path(__file__).parent))
    from masks import CONTROL

    content = (Path(trl.__file__).parent / "chat_templates" / f"{template}.jinja").read_text(encoding="utf-8")
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=16_000, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator((folder / "text.txt").read_text().split("\n"), trainer)
    control = sorted({*CONTROL.findall(content), *NAMED.values()})
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    # The date is ours, so that ids can be compared.
    dated = ChatTemplate(content, NAMED, control).template
    PreTrainedTokenizerFast(tokenizer_object=made, chat_template=dated, **NAMED).save_pretrained(
        folder / "model"
    )


def measured(way: str, folder: Path, cores: int) -> dict[str, float]:
    """Processor and wall seconds, and sums of ids and of the mask, by which ways are compared."""
    work = prepared_ours(folder, cores) if way == "ours" else prepared_datasets(way, folder, cores)
    before, wall = sum(os.times()[:4]), time.perf_counter()
    result = work()
    processor, wall = sum(os.times()[:4]) - before, time.perf_counter() - wall
    ids, trained = (0, 0) if way == "text" else sums(way, result)
    return {"processor": processor, "wall": wall, "ids": ids, "trained": trained}


def prepared_ours(folder: Path, cores: int) -> Any:
    import pyarrow as pa
    from transformers.utils.chat_template_utils import render_jinja_template  # noqa: F401

    encoder = encoder_of(folder)
    column = pa.ipc.open_file(pa.memory_map(str(folder / "documents.arrow"))).read_all().column("content")
    encoder.encode(column.chunk(0)[:50])  # what a process loads once

    def part(number: int) -> list[Path]:
        files = []
        for at in range(number, column.num_chunks, cores):
            files.append(folder / f"ours-{at:05}.npz")
            np.savez(files[-1], **encoder.encode(column.chunk(at)))
        return files

    def work() -> list[Path]:
        children = []
        for number in range(1, cores):
            if not (child := os.fork()):
                part(number)
                os._exit(0)
            children.append(child)
        part(0)
        for child in children:
            os.waitpid(child, 0)
        return sorted(folder.glob("ours-*.npz"))

    return work


def encoder_of(folder: Path) -> Any:
    from dagster_divorder.models.chat_templates import chat_template, describe_chats
    from dagster_divorder.models.chat_tokens import ChatEncoder
    from dagster_divorder.models.tokenize import load_encoder

    template = chat_template(describe_chats(folder / "model"), None)
    encoder = load_encoder(folder / "model", control=True)
    print(encoder.engine, encoder.reason)
    return ChatEncoder(folder / "model", template, encoder.engine)


def prepared_datasets(way: str, folder: Path, cores: int) -> Any:
    import datasets
    from transformers import AutoTokenizer

    datasets.disable_progress_bars()
    records = datasets.load_from_disk(str(folder / "dataset"))
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    options = {"return_assistant_tokens_mask": True} if way == "mask" else {}
    applied = partial(_applied, tokenizer=tokenizer, options={"tokenize": way != "text", **options})
    applied(records[0])
    file = str(folder / f"{way}.arrow")
    return partial(
        records.map,
        applied,
        remove_columns="messages",
        num_proc=cores if cores > 1 else None,
        cache_file_name=file,
        load_from_cache_file=False,
    )


def _applied(record: dict[str, Any], tokenizer: Any, options: dict[str, Any]) -> dict[str, Any]:
    result = tokenizer.apply_chat_template(record["messages"], **options)
    return {"text": result} if isinstance(result, str) else dict(result)


def sums(way: str, result: Any) -> tuple[int, int]:
    """(sum of ids by their place in the corpus, tokens that are trained on)."""
    if way != "ours":
        ids = np.concatenate(result.with_format("numpy")["input_ids"][:])
        trained = int(sum(map(sum, result["assistant_masks"]))) if way == "mask" else 0
    else:
        files = [np.load(file) for file in result]
        ids = np.concatenate([file["ids"] for file in files])
        trained = int(sum((file["span_last"].astype(int) - file["span_first"]).sum() for file in files))
    return int(
        (ids.astype(np.uint64) * np.arange(1, 1 + len(ids), dtype=np.uint64)).sum() % (1 << 53)
    ), trained


if __name__ == "__main__":
    main()
