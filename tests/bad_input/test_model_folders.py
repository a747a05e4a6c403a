"""Model folders as somebody else wrote them: loading runs or ends in a sentence, whatever their JSON files hold."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_divorder.errors import DivOrderError, InputError
from dagster_divorder.models.checkpoint import INDEX, MODULES, POOLING, SENTENCE, embedding_table, locate
from dagster_divorder.models.deep import load
from dagster_divorder.models.embed import Embedder
from dagster_divorder.models.pretrained import save_tokenizer as save_checkpoint_tokenizer
from dagster_divorder.models.spec import (
    declared_lengths,
    modules_after_pooling,
    read_spec,
    special_tokens_around,
)
from dagster_divorder.models.tokenize import load_encoder, special_ids
from tests.conftest import examples
from tests.tiny_models import AFFIXES, EOS, PAD, save_model, save_tokenizer, write_json

TEXTS = ["boat and wave", "", "bread"]
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every file that is read of one."""
    folder = save_tokenizer(save_model(tmp_path_factory.mktemp("sound") / "llama"), *AFFIXES["llama"])
    write_json(folder / POOLING, {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False})
    write_json(folder / MODULES, [{"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"}])
    write_json(folder / SENTENCE, {"max_seq_length": 32})
    write_json(folder / "special_tokens_map.json", {"eos_token": {"content": EOS}, "pad_token": PAD})
    write_json(folder / "generation_config.json", {"bos_token_id": [0]})
    tensors = json.loads(header_of(folder)).keys() - {"__metadata__"}
    write_json(folder / INDEX, {"weight_map": dict.fromkeys(sorted(tensors), WEIGHTS)})
    return folder


def header_of(folder: Path) -> bytes:
    data = (folder / WEIGHTS).read_bytes()
    return data[8 : 8 + int.from_bytes(data[:8], "little")]


def load_all(folder: Path) -> None:
    """What a run does with a model that is both model.base and deep.model."""
    locate(str(folder), weights="all")
    with TemporaryDirectory() as saved:
        save_checkpoint_tokenizer(folder, Path(saved))
        encoder = load_encoder(saved, sample=TEXTS)
        special_ids(Path(saved))
    embedding_table(folder, vocabulary=encoder.vocab_size)
    ids, lengths = encoder.encode(TEXTS)
    modules_after_pooling(folder), declared_lengths(folder), special_tokens_around(folder)
    spec = read_spec(folder, device="cpu")
    model = load(folder, spec, vocabulary=encoder.vocab_size)
    Embedder(model, threads=1).embed(ids, lengths)


CONFIGS = ["tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "config.json"]
PARTS = ["tokenizer.json", *CONFIGS, POOLING, MODULES, SENTENCE, INDEX, WEIGHTS]
NUMBERS = [0, 1, -1, 7, 1 << 31, 4_000_000_000, 10**12, 10**30, 1.5, float("inf"), float("nan")]
VALUES = st.one_of(
    st.sampled_from(NUMBERS),
    st.sampled_from([None, True, "", "x", "../x", [], {}, [[]], [{}], {"x": 1}, ["x"], [0, 4], [-1, 2]]),
)


def places(content: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where there is something in a JSON value, the whole of it first; of many alike the first few."""
    inner = (
        content.items()
        if isinstance(content, dict)
        else enumerate(content)
        if isinstance(content, list)
        else ()
    )
    return [at, *(place for key, value in list(inner)[:40] for place in places(value, (*at, key)))]


def put(content: Any, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return value
    within = content
    for key in place[:-1]:
        within = within[key]
    within[place[-1]] = value
    return content


def rewrite(folder: Path, part: str, change: Callable[[Any], Any]) -> None:
    """Change what a JSON file holds, or the header of the weights."""
    if part != WEIGHTS:
        changed = change(json.loads((folder / part).read_bytes()))
        (folder / part).write_text(changed if isinstance(changed, str) else json.dumps(changed))
        return
    header, data = header_of(folder), (folder / part).read_bytes()
    changed = json.dumps(change(json.loads(header))).encode()
    (folder / part).write_bytes(len(changed).to_bytes(8, "little") + changed + data[8 + len(header) :])


@settings(
    max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(part=st.sampled_from(PARTS), data=st.data(), value=VALUES)
def test_loading_runs_or_ends_in_a_sentence(
    sound: Path, tmp_path: Path, part: str, data: st.DataObject, value: Any
) -> None:
    folder = tmp_path / "model"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sound, folder)
    content = json.loads(header_of(folder) if part == WEIGHTS else (folder / part).read_bytes())
    place = data.draw(st.sampled_from(places(content)))
    rewrite(folder, part, lambda content: put(content, place, value))
    try:
        load_all(folder)
    except DivOrderError as error:
        assert str(folder) in str(error)


FAULTS: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "deeply nested JSON": (POOLING, lambda _: "[" * 100_000, "is not readable JSON"),
    "an id of four billion, which aborts tokenizers": (
        "tokenizer.json",
        lambda c: put(c, ("model", "vocab", "b"), 4_000_000_000),
        "gives the token 'b' the id 4000000000; expected a whole number",
    ),
    "tokenizer_config of a list": (
        "tokenizer_config.json",
        lambda _: [],
        "cannot load",
    ),
    "modules of names": (MODULES, lambda _: ["Transformer"], "is not a list of modules"),
    "a million layers": (
        "config.json",
        lambda c: {**c, "num_hidden_layers": 10**6},
        "asks for 1,000,000 layers",
    ),
    "a wide model": ("config.json", lambda c: {**c, "hidden_size": 10**6}, "describes a model of"),
}


@pytest.mark.parametrize(("part", "change", "said"), FAULTS.values(), ids=FAULTS)
def test_what_is_wrong_is_said(
    sound: Path, tmp_path: Path, part: str, change: Callable[[Any], Any], said: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(sound, folder)
    rewrite(folder, part, change)
    with pytest.raises(InputError, match=said) as caught:
        load_all(folder)
    assert str(folder) in str(caught.value)
