"""Deep embeddings against the bare model on the same batches, and against one document at a time.

    .venv/bin/python benchmarks/deep/throughput.py ../shared/data/newsgroups.jsonl.gz --model DIRECTORY
        [--documents 1500] [--repeat 2] [--device auto] [--max-tokens 0]

bare: transformers' `model(ids, mask)` in a loop over batches that were padded before, nothing read, pooled or kept: the
limit. stage: what deep_embeddings does with a fragment, from
stored texts or tokens to vectors. one at a time: each document tokenised and put through the model by itself, as
Diversity-Ordered Training does; on a CPU also on one thread, whose processor time says what that costs where
no other work makes its threads wait for each other, and in float32 where the stage is in bfloat16. All see the same
windows. Loading the model is not counted. Variants take turns, the best of --repeat counts.
On a GPU also the share of what it reaches in a large bfloat16 matrix product.
`--model bootstrap` makes the bootstrap base model and its decoder from these documents first.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from transformers import AutoModel, AutoTokenizer

from dagster_divorder.engine.progress import Silent
from dagster_divorder.models.embed import Embedder, batch_end
from dagster_divorder.models.pretrained import quiet
from dagster_divorder.models.spec import EmbeddingSpec
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run, run_all
from dagster_divorder.stages.topics import deep_embeddings
from dagster_divorder.store.stages import model_path


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("input", type=Path)
    made.add_argument("--model", default="bootstrap")
    made.add_argument("--documents", type=int, default=1500)
    made.add_argument("--repeat", type=int, default=2)
    made.add_argument("--device", default="auto")
    made.add_argument("--max-tokens", type=int, default=0)
    made.add_argument("--scratch", type=Path)
    options = made.parse_args()
    with gzip.open(options.input) as lines:
        records = [orjson.loads(line) for line in lines]
    chosen = np.random.default_rng(0).permutation(len(records))[: options.documents]
    texts = list(dict.fromkeys(records[at]["text"] for at in chosen.tolist()))
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        report(measure(options, texts, Path(folder)))


def measure(options: argparse.Namespace, texts: list[str], folder: Path) -> dict[str, Any]:
    corpus = folder / "docs.jsonl"
    corpus.write_bytes(b"".join(orjson.dumps({"text": text}) + b"\n" for text in texts))
    deep = {"max_tokens": options.max_tokens}
    settings = Settings(
        input={"paths": [str(corpus)]},
        store={"path": folder / "store"},
        engine={"device": options.device},
        deep={**deep, "model": None if options.model == "bootstrap" else options.model},
    )
    run_all(settings, Silent(), GRAPH.needed(settings, "token_counts", "deep_model"))
    run = open_run(settings)
    embed = deep_embeddings._embed_of(run)
    (fragment,) = run.view.fragments
    tokens = embed.tokens.read(fragment)
    ids, lengths = tokens["ids"], tokens["lengths"]
    loaded = embed.load()
    directory = model_path(embed.records.fragments.store, embed.model.place)
    with quiet():
        plain = AutoModel.from_pretrained(directory, dtype=loaded.module.dtype).eval().to(loaded.device)
    batches, seen = padded(ids, lengths, loaded)
    variants: dict[str, Callable[[], object]] = {
        "bare": lambda: bare(plain, batches),
        "stage": lambda: embed(fragment),
        "one at a time": lambda: one_at_a_time(plain, texts, embed),
    }
    if loaded.device.type == "cpu":
        variants["one at a time, 1 thread"] = lambda: on_one_thread(
            lambda: one_at_a_time(plain, texts, embed)
        )
        if loaded.module.dtype != torch.float32:
            wide = copy.deepcopy(plain).float()
            variants["one at a time, float32"] = lambda: one_at_a_time(wide, texts, embed)
    embed(fragment)  # loads
    best: dict[str, tuple[float, float]] = {}
    for _ in range(options.repeat):
        for name, run in variants.items():
            found = timed(run, loaded.device.type)
            best[name] = (min(best.get(name, found)[0], found[0]), min(best.get(name, found)[1], found[1]))
            print(f"  {name}: {found[0]:.2f} s", flush=True)
    return {
        "best": best,
        "tokens": seen,
        "documents": len(texts),
        "padding": 1 - seen / sum(ids.numel() for ids, _ in batches),
        "batches": len(batches),
        "spec": embed.spec,
        "flops": flops(loaded, lengths, embed.spec),
        "ceiling": ceiling() if loaded.device.type == "cuda" else None,
    }


def padded(
    ids: np.ndarray, lengths: np.ndarray, embedder: Embedder
) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], int]:
    """The batches that the stage makes, on the device, and the real tokens in them."""
    spec, made, seen = embedder.spec, [], 0
    starts, read = np.cumsum(lengths) - lengths, np.minimum(lengths, spec.room)
    order = np.argsort(-read, kind="stable")
    sizes = read[order] + spec.window - spec.room
    begin = 0
    while begin < len(order):
        end = batch_end(sizes, begin, embedder.budget)
        rows = np.full((end - begin, sizes[begin]), spec.pad, dtype=np.int64)
        for row, window in enumerate(order[begin:end].tolist()):
            own = ids[starts[window] : starts[window] + read[window]]
            rows[row, : sizes[begin + row]] = [*spec.prefix, *own, *spec.suffix]
        mask = np.arange(sizes[begin]) < sizes[begin:end, None]
        seen += int(sizes[begin:end].sum())
        device = embedder.device
        made.append((torch.from_numpy(rows).to(device), torch.from_numpy(mask.astype(np.int64)).to(device)))
        begin = end
    return made, seen


def bare(model: torch.nn.Module, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for ids, mask in batches:
        with torch.inference_mode():
            model(input_ids=ids, attention_mask=mask)


def one_at_a_time(model: torch.nn.Module, texts: list[str], embed: deep_embeddings.Embed) -> np.ndarray:
    """A document at a time: tokenised, through the model, averaged, normalised."""
    with quiet():
        tokenizer = AutoTokenizer.from_pretrained(
            model_path(embed.records.fragments.store, embed.model.place)
        )
        vectors = []
        for text in texts:
            encoded = tokenizer(text, truncation=True, max_length=embed.spec.window, return_tensors="pt")
            with torch.inference_mode():
                hidden = model(
                    input_ids=encoded["input_ids"].to(model.device),
                    attention_mask=encoded["attention_mask"].to(model.device),
                ).last_hidden_state
                mean = hidden[0].float().mean(0)
                vectors.append((mean / mean.norm()).cpu().numpy())
    return np.stack(vectors)


def on_one_thread(run: Callable[[], object]) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    run()
    torch.set_num_threads(before)


def flops(model: Embedder, lengths: np.ndarray, spec: EmbeddingSpec) -> float:
    """Of all windows: two a weight outside the tables a token, and attention's products."""
    config = model.module.config.get_text_config()
    tables = {
        id(module.weight) for module in model.module.modules() if isinstance(module, torch.nn.Embedding)
    }
    weights = sum(each.numel() for each in model.module.parameters() if id(each) not in tables)
    sizes = np.minimum(lengths + spec.window - spec.room, spec.window).astype(np.float64)
    return float((2 * weights * sizes + 4 * config.hidden_size * config.num_hidden_layers * sizes**2).sum())


def ceiling() -> float:
    """Multiplications and additions a second of a bfloat16 product of 8192 x 8192 matrices."""
    side, rounds = 8192, 20
    left, right = (torch.randn(side, side, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    left @ right
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(rounds):
        left @ right
    torch.cuda.synchronize()
    return rounds * 2 * side**3 / (time.perf_counter() - start)


def timed(run: Callable[[], object], device: str) -> tuple[float, float]:
    """Wall and processor seconds."""
    start, processor = time.perf_counter(), time.process_time()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, time.process_time() - processor


def report(found: dict[str, Any]) -> None:
    best, spec = found["best"], found["spec"]
    limit = min(seconds for name, (seconds, _) in best.items() if name.startswith("bare"))
    print(
        f"\n{found['documents']:,} documents, {found['tokens']:,} tokens in {found['batches']:,} batches, "
        f"{found['padding']:.2%} padding; {spec.device}, {spec.dtype}, windows of {spec.window}; "
        f"load {os.getloadavg()[0]:.1f}\n"
    )
    print(f"{'':21}{'s':>8}{'processor, s':>14}{'tokens/s':>10}{'of the limit':>14}{'GFLOP/s':>9}")
    for name, (seconds, processor) in best.items():
        print(
            f"{name:21}{seconds:8.2f}{processor:14.2f}{found['tokens'] / seconds:10,.0f}{limit / seconds:14.0%}"
            f"{found['flops'] / seconds / 1e9:9,.0f}"
        )
    stage, alone = best["stage"], best["one at a time"]
    one = best.get("one at a time, 1 thread", alone)
    print(
        f"\nstage: {limit / stage[0]:.0%} of the limit, {alone[0] / stage[0]:.1f} times one document at a time",
        end="",
    )
    print(f" ({one[1] / stage[1]:.1f} in processor time, that on one thread)")
    if found["ceiling"]:
        share = found["flops"] / stage[0] / found["ceiling"]
        print(
            f"bfloat16 matrix products: {found['ceiling'] / 1e12:,.0f} TFLOP/s; the stage reaches {share:.1%} of them"
        )


if __name__ == "__main__":
    main()
