"""Gradients of documents: how fast, how far the projection keeps their cosines, and how many blocks they need.

    .venv/bin/python benchmarks/gradients.py ../shared/data/newsgroups.jsonl.gz [--model DIRECTORY|small]
        [--documents 300] [--layers 2] [--dims 1024] [--repeat 2] [--device auto]
        [--parts speed projection blocks overlap]

`--model bootstrap` makes the bootstrap base model and its decoder from all of the input first, `--model small` a Llama
of 6 blocks of width 128 and 4,096 tokens, from nothing, on `--steps` batches of 16 x 256 tokens (`--keep` keeps them).

speed: transformers' forward and backward pass for a batch's mean loss with respect to the same parameters (plain), and
the gradients of documents without and with their projection. Wall and processor seconds, the best of --repeat; on a CPU
on one thread, so that processor seconds tell on a busy machine too.
projection: of --documents documents, how far cosines of projected gradients lie from those of whole ones, dense and
Kronecker-factored (signs for a layer's input and output each, whose products are entries of R).
blocks: Spearman's correlation of each document's cosines with the other ones, last n blocks against all parameters,
mean over 100 documents.
overlap: of --documents documents, projected to --dims dims (16,384, say), the share of what Spokes chooses that it
chooses by fewer dims of the same projection too, by the share of the documents that is chosen; and the Vendi score of
a tenth chosen, in all dims, beside a random tenth's.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from scipy.stats import rankdata, spearmanr

from dagster_divorder.core.blas import one_blas_thread
from dagster_divorder.core.measure.vendi import gram, vendi
from dagster_divorder.core.mix.selection import choose, spokes
from dagster_divorder.engine.progress import Silent
from dagster_divorder.models import bootstrap
from dagster_divorder.models.embed import CPU_BUDGET, batch_end
from dagster_divorder.models.gradients import (
    GradientModel,
    autograd,
    blocks_of,
    last_blocks,
    load,
    project,
    signs,
)
from dagster_divorder.models.pretrained import quiet
from dagster_divorder.models.spec import read_spec
from dagster_divorder.models.tokenize import load_encoder
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run, run_all
from dagster_divorder.stages.topics.deep_model import load_deep_model

PARTS = ("speed", "projection", "blocks", "overlap")
SHARES = (0.05, 0.1, 0.2, 0.5)
STUDIED = 100
"""Documents of the study by blocks."""

GROUP_BYTES = 4 << 30
"""Bytes of gradients in memory at once; a larger parameter is alone."""


def proxy_cosines(
    model: GradientModel, windows: Sequence[np.ndarray], blocks: Sequence[int], dims: Sequence[int]
) -> dict[str | int | tuple[str, int], np.ndarray]:
    """Cosines float64 (n, n) of the n documents whose gradient is finite and not zero: `"whole"`, by number of last
    blocks, and for the model's own last blocks by ("dims", number). windows: tokens of each, int64 (L,), at least 2."""
    sizes = {name: each.numel() for name, each in model.module.named_parameters()}
    projected, grams = torch.zeros(len(windows), max(dims)), {}
    for group in _groups(sizes, GROUP_BYTES // (4 * len(windows))):
        gradients = {name: torch.empty(len(windows), sizes[name]) for name in group}
        for row, window in enumerate(windows):
            tokens = torch.from_numpy(window[np.newaxis]).to(model.device)
            for name, gradient in autograd(model.module, tokens, group).items():
                gradients[name][row] = gradient.cpu()
        for name, gradient in gradients.items():
            grams[name] = (gradient @ gradient.T).double().numpy()
            if name in model.parameters:
                project(gradient, projected, seed=model.seed, name=name)
    found: dict[Any, np.ndarray] = {"whole": np.sum([*grams.values()], axis=0)}
    for count in blocks:
        found[count] = np.sum([grams[name] for name in last_blocks(model.module, count)], axis=0)
    for count in dims:
        found["dims", count] = (projected[:, :count] @ projected[:, :count].T).double().numpy()
    squares = np.diagonal(found["whole"])
    used = np.flatnonzero(np.isfinite(squares) & (squares > 0))
    return {key: _cosines(gram[np.ix_(used, used)]) for key, gram in found.items()}


def _groups(sizes: Mapping[str, int], most: int) -> list[list[str]]:
    """Names in order, in groups of `most` numbers at most, or of one name."""
    groups, room = list[list[str]](), 0
    for name, size in sizes.items():
        if size > room:
            groups.append([])
            room = most
        groups[-1].append(name)
        room -= size
    return groups


def _cosines(gram: np.ndarray) -> np.ndarray:
    """Cosines from inner products (n, n); 0 with vectors of zeros."""
    sizes = np.sqrt(np.maximum(np.diagonal(gram), np.finfo(float).tiny))
    return gram / sizes / sizes[:, np.newaxis]


def rank_agreement(proxy: np.ndarray, whole: np.ndarray) -> float:
    """Mean over documents of Spearman's correlation between the cosines by proxy and by full gradient with all other
    documents. NaN below three documents."""
    others = ~np.eye(len(whole), dtype=bool)
    ranks = [rankdata(each[others].reshape(len(whole), -1), axis=1) for each in (proxy, whole)]
    of_proxy, of_whole = (rank - rank.mean(axis=1, keepdims=True) for rank in ranks)
    sizes = np.linalg.norm(of_proxy, axis=1) * np.linalg.norm(of_whole, axis=1)
    products = np.sum(of_proxy * of_whole, axis=1)[sizes > 0] / sizes[sizes > 0]
    return float(products.mean()) if len(products) else float("nan")


def choice(cosines: np.ndarray, share: float) -> np.ndarray:
    """The selection of `spokes` by vectors with these cosines, bool (N,). share: of the documents."""
    with one_blas_thread():
        values, axes = np.linalg.eigh(cosines)
    # Vectors in N dims with the same angles.
    points = np.ascontiguousarray(axes * np.sqrt(np.maximum(values, 0)), np.float32)
    weights = spokes(points, np.arange(len(points))).weights
    return choose(weights, np.ones(len(points), np.int64), max(1, round(share * len(points))))


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("input", type=Path)
    made.add_argument("--model", default="bootstrap")
    made.add_argument("--keep", type=Path)
    made.add_argument("--steps", type=int, default=300)
    made.add_argument("--documents", type=int, default=300)
    made.add_argument("--layers", type=int, default=2)
    made.add_argument("--max-tokens", type=int, default=768)
    made.add_argument("--dims", type=int, default=1024)
    made.add_argument("--repeat", type=int, default=2)
    made.add_argument("--device", default="auto")
    made.add_argument("--parts", nargs="+", default=PARTS[:3], choices=PARTS)
    options = made.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        with gzip.open(options.input) as lines:
            texts = [orjson.loads(line)["text"] for line in lines]
        makers = {"bootstrap": bootstrap_decoder, "small": small_model}
        make = makers.get(options.model)
        directory = make(options, texts, folder) if make else Path(options.model)
        chosen = np.random.default_rng(0).permutation(len(texts))[: options.documents]
        ids, lengths = load_encoder(directory).encode([texts[at] for at in chosen.tolist()])
        if options.device != "cuda":
            torch.set_num_threads(1)
        with quiet():
            windows = cut(ids, lengths, options.max_tokens)
            if "speed" in options.parts:
                speed(opened(directory, options), windows, options)
            if "projection" in options.parts:
                projection(opened(directory, options), windows, options.dims)
            if "blocks" in options.parts:
                blocks(opened(directory, options), windows[:STUDIED], options.layers)
            if "overlap" in options.parts:
                overlap(opened(directory, options), windows)


def bootstrap_decoder(options: argparse.Namespace, texts: list[str], folder: Path) -> Path:
    """The decoder of the bootstrap base model of the input."""
    corpus = folder / "docs.jsonl"
    corpus.write_bytes(b"".join(orjson.dumps({"text": text}) + b"\n" for text in texts))
    settings = Settings(input={"paths": [str(corpus)]}, store={"path": folder / "store"})
    run_all(settings, Silent(), GRAPH.needed(settings, "deep_model"))
    return load_deep_model(open_run(settings)).directory


def small_model(options: argparse.Namespace, texts: list[str], folder: Path) -> Path:
    """A language model of several blocks, trained to predict the next token of documents of the input."""
    from transformers import LlamaConfig, LlamaForCausalLM

    if (folder / "small/model.safetensors").exists():
        return folder / "small"
    bootstrap.train(texts[::4], folder / "small", vocab_size=4096, dim=128)
    ids, _ = load_encoder(folder / "small").encode(texts[1::4])
    (folder / "small/model.safetensors").unlink()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=4096, tie_word_embeddings=True))
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95))
    rng = np.random.default_rng(0)
    for step in range(options.steps):
        for group in optimiser.param_groups:
            group["lr"] = 2e-3 * min((step + 1) / 30, 1.05 - step / options.steps)
        starts = rng.integers(0, len(ids) - 256, 16)
        tokens = torch.from_numpy(ids[starts[:, None] + np.arange(256)].astype(np.int64))
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        if step % 50 == 0 or step + 1 == options.steps:
            print(f"step {step + 1}: {loss.item():.3f} nats a token", flush=True)
    model.save_pretrained(folder / "small")
    return folder / "small"


def cut(ids: np.ndarray, lengths: np.ndarray, most: int) -> list[np.ndarray]:
    """The first tokens of each document that has two, int64."""
    return [part[:most].astype(np.int64) for part in np.split(ids, np.cumsum(lengths)[:-1]) if len(part) > 1]


def opened(directory: Path, options: argparse.Namespace) -> GradientModel:
    spec = read_spec(directory, pooling="last", device=options.device)
    spec = dataclasses.replace(spec, prefix=(), suffix=(), window=min(spec.window, options.max_tokens))
    return load(directory, spec, layers=options.layers, dims=options.dims, seed=0, setting="--model")


Batch = tuple[np.ndarray, np.ndarray]


def batches(windows: list[np.ndarray], positions: int) -> list[Batch]:
    """Windows longest first, padded: ids int64 (B, L) and lengths."""
    windows = sorted(windows, key=len, reverse=True)
    lengths, made, begin = np.array([len(window) for window in windows]), [], 0
    while begin < len(windows):
        end = batch_end(lengths, begin, positions)
        ids = np.zeros((end - begin, lengths[begin]), np.int64)
        for row, window in zip(ids, windows[begin:end], strict=True):
            row[: len(window)] = window
        made.append((ids, lengths[begin:end]))
        begin = end
    return made


def speed(model: GradientModel, windows: list[np.ndarray], options: argparse.Namespace) -> None:
    on_gpu = model.spec.device == "cuda"
    passes = batches(windows, 1 << 14 if on_gpu else CPU_BUDGET)
    whole = batches(windows, model.rows * model.spec.window)
    variants: dict[str, Callable[[], object]] = {
        "plain": lambda: plain(model, passes),
        "gradients": lambda: [model.gradients(*batch) for batch in passes],
        "projected": lambda: [model(*batch) for batch in whole],
    }
    best: dict[str, tuple[float, float]] = {}
    for _ in range(options.repeat):
        for name, run in variants.items():
            start, processor = time.perf_counter(), time.process_time()
            run()
            if on_gpu:
                torch.cuda.synchronize()
            found = time.perf_counter() - start, time.process_time() - processor
            best[name] = tuple(min(pair) for pair in zip(best.get(name, found), found, strict=True))
    print(
        f"{len(windows):,} documents, {sum(map(len, windows)):,} tokens, "
        f"{sum(model.parameters.values()):,} parameters, "
        f"K = {model.dims:,}, {model.rows} documents projected together; {model.spec.device}, {model.spec.dtype}; "
        f"load {os.getloadavg()[0]:.1f}"
    )
    print(f"{'':15}{'wall, s':>9}{'processor, s':>14}{'tokens/s (processor)':>22}{'of plain':>10}")
    clock = 0 if on_gpu else 1
    rate = {name: sum(map(len, windows)) / seconds[clock] for name, seconds in best.items()}
    for name, seconds in best.items():
        print(
            f"{name:15}{seconds[0]:9.2f}{seconds[1]:14.2f}{rate[name]:22,.0f}{rate[name] / rate['plain']:10.0%}",
            flush=True,
        )
    if on_gpu:
        print(f"peak {torch.cuda.max_memory_allocated() / 1e9:.1f} GB")


def parameters_of(model: GradientModel) -> dict[str, Any]:
    return {name: each for name, each in model.module.named_parameters() if name in model.parameters}


def plain(model: GradientModel, passes: list[Batch]) -> None:
    chosen = [each.requires_grad_() for each in parameters_of(model).values()]
    for ids, lengths in passes:
        tokens = torch.from_numpy(ids).to(model.device)
        mask = torch.arange(ids.shape[1]) < torch.from_numpy(lengths)[:, None]
        labels = tokens.masked_fill(~mask.to(model.device), -100)
        torch.autograd.grad(model.module(input_ids=tokens, labels=labels).loss, chosen)
    model.module.requires_grad_(False)


def whole_gradients(model: GradientModel, windows: list[np.ndarray]) -> dict[str, torch.Tensor]:
    """Of each window, in the order of `batches`, float32 (n, size) by parameter, on the CPU."""
    parts = [model.gradients(*batch) for batch in batches(windows, 1 << 14)]
    return {name: torch.cat([part[name].cpu() for part in parts]) for name in parts[0]}


def cosines(vectors: torch.Tensor) -> np.ndarray:
    """Of pairs, (n (n - 1) / 2,)."""
    units = torch.nn.functional.normalize(vectors.double(), dim=1)
    return (units @ units.T).numpy()[np.triu_indices(len(units), 1)]


def projection(model: GradientModel, windows: list[np.ndarray], most: int) -> None:
    found = whole_gradients(model, windows)
    whole = torch.cat(list(found.values()), dim=1)
    exact, n = cosines(whole), len(whole)
    share = np.percentile(exact, (1, 50, 99))
    print(f"\n{n} gradients; cosines: 1 % at {share[0]:.3f}, half at {share[1]:.3f}, 99 % at {share[2]:.3f}")
    print(
        f"{'K':>6} {'':10}{'eps of JL':>10}{'inside':>8}{'mean error':>12}{'99 %':>8}{'largest':>9}{'Spearman':>10}"
    )
    for dims in (256, 1024, 4096):
        if dims > 4 * most:
            continue
        for kind, projection in (("dense", dense), ("kronecker", kronecker)):
            projected = cosines(projection(model, found, dims))
            off = np.abs(projected - exact)
            eps = next(
                e for e in np.arange(0.01, 2, 0.01) if e**2 / 2 - e**3 / 3 >= 6 * np.log(n) / dims or e > 1
            )
            print(
                f"{dims:6} {kind:10}{eps:10.3f}{(off <= eps).mean():8.1%}{off.mean():12.4f}"
                f"{np.percentile(off, 99):8.3f}{off.max():9.3f}{spearmanr(projected, exact).statistic:10.3f}",
                flush=True,
            )


def dense(model: GradientModel, found: dict[str, torch.Tensor], dims: int) -> torch.Tensor:
    made = torch.zeros(len(next(iter(found.values()))), dims)
    for name, each in found.items():
        for first in range(0, each.shape[1], 1024):
            entries = range(first, min(first + 1024, each.shape[1]))
            made += each[:, entries.start : entries.stop] @ signs(1, name, entries, dims)
    return made


def kronecker(model: GradientModel, found: dict[str, torch.Tensor], dims: int) -> torch.Tensor:
    """Matrices as signs for rows times signs for columns, all else as `dense`."""
    side = int(dims**0.5)
    parameters = parameters_of(model)
    matrices = {name: each for name, each in found.items() if parameters[name].ndim == 2}
    made = dense(model, {name: each for name, each in found.items() if name not in matrices}, side**2)
    for name, each in matrices.items():
        rows, columns = parameters[name].shape
        left, right = (
            signs(1, name + " rows", range(rows), side),
            signs(1, name + " columns", range(columns), side),
        )
        made += (left.T @ each.view(-1, rows, columns) @ right).reshape(len(each), -1)
    return made


def blocks(model: GradientModel, windows: list[np.ndarray], layers: int) -> None:
    """Against the gradient of all parameters, the tables of tokens among them."""
    counts = range(1, len(blocks_of(model.module)) + 1)
    found = proxy_cosines(model, windows, counts, [model.dims])
    whole = found.pop("whole")
    print(f"\n{len(whole)} documents\n{'n':>12}{'Spearman':>10}")
    for key, cosines in found.items():
        name = f"{layers}, {key[1]:,} dims" if isinstance(key, tuple) else key
        print(f"{name:>12}{rank_agreement(cosines, whole):10.3f}")


def overlap(model: GradientModel, windows: list[np.ndarray]) -> None:
    vectors = torch.cat([model(*batch) for batch in batches(windows, model.rows * model.spec.window)])
    found = {}
    dims = [512 * 2**power for power in range(9) if 512 * 2**power <= model.dims]
    for k in dims:
        units = torch.nn.functional.normalize(vectors[:, :k].double(), dim=1).numpy()
        found[k] = [choice(units @ units.T, share) for share in SHARES]
        print(f"{k} dims", flush=True)
    rows, tenth = np.arange(len(vectors)), SHARES.index(0.1)
    some = np.random.default_rng(0).permutation(len(rows))[: found[k][tenth].sum()]
    print(
        f"\n{len(rows)} documents; Vendi of a tenth at random, {k:,} dims: {vendi(gram(units, np.sort(some))):.1f}"
    )
    print(f"{'dims':>7}{''.join(f'{share:>8.0%}' for share in SHARES)}{'Vendi':>8}")
    for few, masks in found.items():
        shares = [(one & of).sum() / of.sum() for one, of in zip(masks, found[k], strict=True)]
        score = vendi(gram(units, rows[masks[tenth]]))
        print(f"{few:7,}{''.join(f'{share:8.3f}' for share in shares)}{score:8.1f}", flush=True)


if __name__ == "__main__":
    main()
