"""Model folders as somebody else wrote them: loading runs or ends in a sentence, whatever their JSON files hold."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from dagster_divorder.errors import DivOrderError, InputError
from dagster_divorder.models.bootstrap import train
from dagster_divorder.models.checkpoint import INDEX, POOLING, SENTENCE, embedding_table, locate
from dagster_divorder.models.embed import load
from dagster_divorder.models.pretrained import save_tokenizer as save_checkpoint_tokenizer
from dagster_divorder.models.spec import (
    declared_lengths,
    read_spec,
    special_tokens_around,
)
from dagster_divorder.models.tokenize import load_encoder, special_ids
from tests.bad_input.conftest import SOUND, Outcome
from tests.conftest import examples
from tests.tiny_models import AFFIXES, EOS, PAD, save_model, save_tokenizer, write_json

TEXTS = ["boat and wave", "", "bread"]
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every file that is read of one."""
    folder = save_tokenizer(save_model(tmp_path_factory.mktemp("sound") / "llama"), *AFFIXES["llama"])
    write_json(folder / POOLING, {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False})
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
    locate(str(folder), all_weights=True)
    with TemporaryDirectory() as saved:
        save_checkpoint_tokenizer(folder, Path(saved))
        encoder = load_encoder(saved, sample=TEXTS)
        special_ids(Path(saved))
    embedding_table(folder, vocabulary=encoder.vocab_size)
    ids, lengths = encoder.encode(TEXTS)
    declared_lengths(folder), special_tokens_around(folder)
    spec = read_spec(folder, device="cpu")
    model = load(folder, spec, vocabulary=encoder.vocab_size)
    model.embed(ids, lengths)


CONFIGS = ["tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "config.json"]
PARTS = ["tokenizer.json", *CONFIGS, POOLING, SENTENCE, INDEX, WEIGHTS]
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
    # A million layers are built one by one, for an hour.
    assume(not ("layer" in str(place) and isinstance(value, int | float) and value > 1000))
    rewrite(folder, part, lambda content: put(content, place, value))
    try:
        load_all(folder)
    except DivOrderError as error:
        assert str(folder) in str(error)


def json_fault(part: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    return lambda folder: rewrite(folder, part, change)


def matrices(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], None]:
    """Changes every matrix of the weights."""

    def fault(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        changed = {key: np.ascontiguousarray(change(each)) for key, each in tensors.items() if each.ndim == 2}
        save_file(tensors | changed, folder / WEIGHTS)

    return fault


def adapter(folder: Path) -> None:
    write_json(
        folder / "adapter_config.json", {"peft_type": "LORA", "base_model_name_or_path": "org/whole-model"}
    )
    (folder / "config.json").unlink()
    (folder / WEIGHTS).rename(folder / "adapter_model.safetensors")


def moved_inside(folder: Path) -> None:
    """As a cache of the Hub has the files of two commits."""
    shutil.rmtree(folder / Path(POOLING).parent)
    for commit in ("1a2b", "3c4d"):
        shutil.copytree(folder, folder / "snapshots" / commit, ignore=shutil.ignore_patterns("snapshots"))
    (folder / "tokenizer.json").unlink()


VOCABULARY = ("model", "vocab", "b")
FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "deeply nested JSON": (json_fault(POOLING, lambda _: "[" * 100_000), "is not readable JSON"),
    "an id of four billion, which aborts tokenizers": (
        json_fault("tokenizer.json", lambda c: put(c, VOCABULARY, 4_000_000_000)),
        "gives the token 'b' the id 4000000000; expected a whole number",
    ),
    "tokenizer_config of a list": (json_fault("tokenizer_config.json", lambda _: []), "holds a JSON list"),
    "no rows": (
        matrices(lambda table: table[:0]),
        "a matrix of F32, F16, BF16 or F64 with a row for each token",
    ),
    "SentencePiece alone": (
        lambda folder: (folder / "tokenizer.json").rename(folder / "tokenizer.model"),
        "has no tokenizer.json; expected the folder of a checkpoint with a fast tokenizer.*Convert a slow one",
    ),
    "an adapter": (
        adapter,
        "is an adapter of org/whole-model and has no input embedding; name org/whole-model",
    ),
    "a cache of the Hub": (moved_inside, "model/snapshots/1a2b looks like one"),
    "GGUF": (
        lambda folder: (folder / WEIGHTS).rename(folder / "model-Q8_0.gguf"),
        "GGUF is llama.cpp's form; save the model again",
    ),
}


@pytest.mark.parametrize(("fault", "said"), FAULTS.values(), ids=FAULTS)
def test_what_is_wrong_is_said(
    sound: Path, tmp_path: Path, fault: Callable[[Path], object], said: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(sound, folder)
    (folder / INDEX).unlink()
    fault(folder)
    with pytest.raises(InputError, match=said) as caught:
        load_all(folder)
    assert str(folder) in str(caught.value)


def test_a_run_names_the_setting(tmp_path: Path, sound: Path, divorder: Callable[..., Outcome]) -> None:
    (tmp_path / "in/docs.jsonl").write_bytes(b"\n".join(SOUND))
    outcome = divorder(f'model.base = "{sound / WEIGHTS}"')
    assert outcome.status == 1
    assert f"model.base is '{sound / WEIGHTS}': it is a file; expected the folder" in outcome.error
    folder = shutil.copytree(sound, tmp_path / "model")
    matrices(lambda table: np.concatenate([table[:1] * np.nan, table[1:]]))(folder)
    outcome = divorder(f'model.base = "{folder}"')
    assert (outcome.status, outcome.output.exists()) == (1, False)
    assert f"{folder}" in outcome.error and "hold NaN or infinity; expected finite" in outcome.error


def test_a_table_may_have_more_rows_than_the_tokenizer_has_ids(
    tmp_path: Path, divorder: Callable[..., Outcome]
) -> None:
    """Most models pad their table to a round number of rows."""
    train([json.loads(line)["text"] for line in SOUND], tmp_path / "model", vocab_size=512, dim=8, seed=0)
    matrices(lambda table: np.pad(table, ((0, 58), (0, 0))))(tmp_path / "model")
    (tmp_path / "in/docs.jsonl").write_bytes(b"\n".join(SOUND))
    for pooling in ("idf", "mean"):
        assert (
            divorder(f'model.base = "{tmp_path / "model"}"', f'embedding.pooling = "{pooling}"').status == 0
        )
