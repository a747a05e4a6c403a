"""Finding and reading the input embedding of checkpoints of many layouts; the Hub through a cache and a local
server."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import urllib.parse
from pathlib import Path

import numpy as np
import pytest

from dagster_divorder.errors import InputError
from dagster_divorder.models.checkpoint import (
    embedding_table,
    locate,
    table_fingerprint,
    tokenizer_fingerprint,
    weight_files,
)
from tests.store.remote import serving

TABLE = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
OTHER = np.ones((3, 4), np.float32)


@pytest.mark.parametrize(
    ("key", "others"),
    [
        ("model.embed_tokens.weight", ["model.layers.0.mlp.up_proj.weight", "lm_head.weight"]),
        ("wte.weight", ["wpe.weight", "h.0.attn.c_attn.weight"]),
        ("transformer.wte.weight", ["transformer.wpe.weight"]),
        (
            "bert.embeddings.word_embeddings.weight",
            ["bert.embeddings.position_embeddings.weight", "bert.embeddings.token_type_embeddings.weight"],
        ),
        ("embeddings.word_embeddings.weight", ["embeddings.position_embeddings.weight"]),
        ("word_embeddings.weight", ["word_embeddings_layernorm.weight"]),
        ("gpt_neox.embed_in.weight", ["embed_out.weight"]),
        ("shared.weight", ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"]),
        ("encoder.embed_tokens.weight", ["decoder.embed_tokens.weight"]),
        ("language_model.model.embed_tokens.weight", ["vision_tower.embeddings.patch_embedding.weight"]),
        ("model.embed_tokens.weight", ["model.layers.61.embed_tokens.weight"]),
        ("model.language_model.embed_tokens.weight", ["model.embed_vision.embedding.weight"]),
        ("model.embeddings.tok_embeddings.weight", ["model.embeddings.norm.weight"]),
        ("backbone.embeddings.weight", ["backbone.norm_f.weight"]),
    ],
)
@pytest.mark.parametrize("sharded", [False, True], ids=["one file", "sharded"])
def test_the_input_embedding_is_found_whatever_its_name(make_checkpoint, key, others, sharded):
    rest = dict.fromkeys(others, OTHER)
    directory = make_checkpoint(rest, {key: TABLE}) if sharded else make_checkpoint({**rest, key: TABLE})
    found = embedding_table(directory)
    assert found.key == key
    np.testing.assert_array_equal(found.weights, TABLE)


def test_of_a_sharded_checkpoint_only_the_needed_file_must_be_there(make_checkpoint):
    directory = make_checkpoint({"lm_head.weight": OTHER}, {"model.embed_tokens.weight": TABLE})
    (directory / "model-00001-of-00002.safetensors").unlink()
    np.testing.assert_array_equal(embedding_table(directory).weights, TABLE)
    (directory / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(InputError, match=r"model-00002-of-00002.safetensors, which is not there"):
        embedding_table(directory)


def test_an_index_that_lies_is_named(make_checkpoint):
    directory = make_checkpoint({"lm_head.weight": OTHER}, {"wte.weight": TABLE})
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"wte.weight": "model-00001-of-00002.safetensors"}}))
    with pytest.raises(InputError, match="which does not hold it"):
        embedding_table(directory)
    index.write_text(json.dumps({"weight_map": {"wte.weight": "../outside.safetensors"}}))
    with pytest.raises(InputError, match="no usable weight_map"):
        embedding_table(directory)


def test_files_of_any_name_are_read_where_there_is_no_index(make_checkpoint):
    directory = make_checkpoint({"wte.weight": TABLE})
    (directory / "model.safetensors").rename(directory / "weights.safetensors")
    np.testing.assert_array_equal(embedding_table(directory).weights, TABLE)


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (TABLE.astype(np.float16), TABLE.astype(np.float16).astype(np.float32)),
        (TABLE.astype(np.float64), TABLE),
        (
            (TABLE.view(np.uint32) >> 16).astype(np.uint16),
            (TABLE.view(np.uint32) & 0xFFFF0000).view(np.float32),
        ),
    ],
    ids=["float16", "float64", "bfloat16"],
)
def test_other_float_types_become_float32(make_checkpoint, stored, expected):
    weights = embedding_table(make_checkpoint({"wte.weight": stored})).weights
    assert weights.dtype == np.float32
    np.testing.assert_array_equal(weights, expected)


def test_without_an_embedding_the_keys_there_are_listed(make_checkpoint):
    keys = {f"layer.{at}.weight": OTHER for at in range(60)}
    with pytest.raises(
        InputError,
        match=r"no input embedding .* embed_tokens.weight.* there are layer.0.weight.* and 20 more",
    ):
        embedding_table(make_checkpoint(keys))


def test_two_embeddings_of_equal_standing_are_ambiguous(make_checkpoint):
    with pytest.raises(InputError, match=r"ambiguous: a.wte.weight, b.wte.weight"):
        embedding_table(make_checkpoint({"a.wte.weight": TABLE, "b.wte.weight": TABLE}))


def test_more_token_ids_than_rows_are_refused(make_checkpoint):
    directory = make_checkpoint({"wte.weight": TABLE})
    assert len(embedding_table(directory, vocabulary=7).weights) == 7
    with pytest.raises(InputError, match=r"ids up to 7 and the model's embedding has only 7 rows"):
        embedding_table(directory, vocabulary=8)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda content: content[:-1], "file not fully covered"),
        (lambda content: b"", "header too small"),
        (lambda content: content[:8] + b"x" + content[9:], "invalid JSON in header"),
        (lambda content: content.replace(b"[7, 4]", b"[9, 4]"), "invalid shape, data type, or offset"),
    ],
)
def test_a_damaged_file_is_named(make_checkpoint, damage, why):
    directory = make_checkpoint({"wte.weight": TABLE})
    path = directory / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=rf"{path} is not a whole safetensors file: .*{why}"):
        embedding_table(directory)


def test_a_damaged_index_is_named(make_checkpoint):
    directory = make_checkpoint({"wte.weight": TABLE}, {})
    (directory / "model.safetensors.index.json").write_text("{")
    with pytest.raises(InputError, match=r"index.json is not readable JSON"):
        embedding_table(directory)


def test_fingerprints_follow_content_alone(make_checkpoint):
    one, same = (make_checkpoint({"wte.weight": TABLE}, name=name) for name in ("one", "same"))
    other = make_checkpoint({"wte.weight": TABLE.reshape(4, 7)}, name="other")
    prints = [table_fingerprint(embedding_table(directory)) for directory in (one, same, other)]
    assert prints[0] == prints[1] != prints[2]
    assert len(prints[0]) == 32
    assert tokenizer_fingerprint(one) == tokenizer_fingerprint(same)
    (same / "tokenizer.json").write_text("{ }")
    assert tokenizer_fingerprint(one) != tokenizer_fingerprint(same)


def test_a_directory_that_cannot_be_used_says_what_is_missing(make_checkpoint):
    directory = make_checkpoint({"wte.weight": TABLE})
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(
        InputError, match=r"found none. Weights as .bin or .pt are pickle, .*safe_serialization=True"
    ):
        locate(str(directory))
    (directory / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"has no tokenizer.json; .* Convert a slow one with"):
        locate(str(directory))


@pytest.mark.parametrize("base", ["no/such/directory", "/no/such", "a b"])
def test_what_is_neither_a_directory_nor_an_id_says_so(base):
    with pytest.raises(InputError, match="there is no such directory, and it is not a Hugging Face id"):
        locate(base)


def test_an_id_that_is_not_in_the_cache_says_so_offline():
    with pytest.raises(
        InputError, match=r"'nobody/nothing-here': no such directory, and neither .* nor the local cache"
    ):
        locate("nobody/nothing-here")


COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(http.server.BaseHTTPRequestHandler):
    """Gives the files of a folder the way the Hub does, and remembers which were asked for."""

    folder: Path
    asked: list[str]

    def answer(self, status: int, data: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def do_GET(self) -> None:
        if self.path.startswith("/api/models/org/model"):
            names = [str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()]
            info = {"id": "org/model", "sha": COMMIT, "siblings": [{"rfilename": name} for name in names]}
            tree = [{"type": "file", "path": name, "size": 1, "oid": name} for name in names]
            data = json.dumps(tree if "/tree/" in self.path else info).encode()
            self.answer(200, data, Content_Type="application/json")
            return
        # /org/model/resolve/<revision>/<name>, which may lie in a folder.
        name = urllib.parse.unquote(self.path).removeprefix("/org/model/resolve/").partition("/")[2]
        if self.path.startswith("/org/gated/"):
            self.answer(403, b"", X_Error_Code="GatedRepo")
            return
        if not self.path.startswith("/org/model/resolve/") or not (self.folder / name).is_file():
            self.answer(
                404, b"", X_Error_Code="EntryNotFound" if "/org/model/" in self.path else "RepoNotFound"
            )
            return
        if self.command == "GET":
            self.asked.append(name)
        self.answer(200, (self.folder / name).read_bytes(), X_Repo_Commit=COMMIT, ETag=f'"{name}"')

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def hub(tmp_path):
    handler = type("Folder", (Hub,), {"folder": tmp_path / "served", "asked": []})
    with serving(handler) as url:
        yield handler, url


def locate_with(base: str, endpoint: str, cache: Path, offline: str = "0", **options: str) -> str:
    """What `locate` returns or complains in a process that sees this Hub and this cache."""
    script = (
        "import sys\nfrom dagster_divorder.errors import InputError\n"
        "from dagster_divorder.models.checkpoint import locate\n"
        f"try: print(locate(sys.argv[1], **{options}))\n"
        "except InputError as error: print('InputError:', error)"
    )
    variables = {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(cache),
        "HF_HUB_OFFLINE": offline,
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        variables[name] = ""
    run = subprocess.run(
        [sys.executable, "-c", script, base],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout.strip()


@pytest.mark.slow
def test_of_a_sharded_model_on_the_hub_one_weight_file_is_downloaded(hub, make_checkpoint, tmp_path):
    handler, endpoint = hub
    make_checkpoint({"lm_head.weight": OTHER}, {"model.embed_tokens.weight": TABLE}, name="served")
    found = Path(locate_with("org/model", endpoint, tmp_path / "cache"))
    np.testing.assert_array_equal(embedding_table(found).weights, TABLE)
    assert sorted(path.name for path in found.iterdir()) == [
        "config.json",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
    ]
    assert "model-00001-of-00002.safetensors" not in handler.asked
    # What is in the cache needs no network.
    assert locate_with("org/model", "http://127.0.0.1:9", tmp_path / "cache", offline="1") == str(found)


@pytest.mark.slow
def test_all_weight_files_of_a_sharded_model_are_downloaded_where_they_are_asked_for(
    hub, make_checkpoint, tmp_path
):
    handler, endpoint = hub
    served = make_checkpoint({"lm_head.weight": OTHER}, {"model.embed_tokens.weight": TABLE}, name="served")
    (served / "1_Pooling").mkdir()
    (served / "1_Pooling/config.json").write_text('{"pooling_mode_cls_token": true}')
    all_of_it = {"weights": "all", "setting": "deep.model"}
    (served / "model-00001-of-00002.safetensors").rename(served / "later")
    said = locate_with("org/model", endpoint, tmp_path / "a", **all_of_it)
    assert "its index places lm_head.weight in model-00001-of-00002.safetensors, which cannot be" in said
    (served / "later").rename(served / "model-00001-of-00002.safetensors")
    handler.asked.clear()
    found = Path(locate_with("org/model", endpoint, tmp_path / "cache", **all_of_it))
    assert [path.name for path in weight_files(found)] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    assert (found / "1_Pooling/config.json").read_bytes() == (served / "1_Pooling/config.json").read_bytes()
    assert handler.asked.count("model-00002-of-00002.safetensors") == 1
    assert locate_with("nobody/nothing", endpoint, tmp_path / "b", **all_of_it).startswith(
        "InputError: deep.model is 'nobody/nothing'"
    )


def test_a_directory_that_lacks_a_shard_is_enough_for_its_table_only(make_checkpoint):
    directory = make_checkpoint({"lm_head.weight": OTHER}, {"model.embed_tokens.weight": TABLE})
    assert locate(str(directory), weights="all") == directory
    assert len(weight_files(directory)) == 2
    (directory / "model-00001-of-00002.safetensors").unlink()
    assert locate(str(directory)) == directory
    with pytest.raises(InputError, match=r"names 2 weight files, but 1 of them are missing \(model-00001-of"):
        locate(str(directory), weights="all")


@pytest.mark.slow
def test_a_gated_model_is_refused(hub, tmp_path):
    said = locate_with("org/gated", hub[1], tmp_path / "cache")
    assert said.startswith("InputError: model.base is 'org/gated'")
    assert "log in for a gated model" in said


def test_a_slash_behind_a_directory_changes_nothing(make_checkpoint):
    directory = make_checkpoint({"wte.weight": TABLE})
    assert locate(f"{directory}/") == directory


@pytest.mark.slow
def test_a_revision_chooses_what_the_hub_or_the_cache_gives(make_checkpoint, tmp_path):
    """A cache as huggingface_hub lays it out, without network."""
    commits = {"main": "a" * 40, "v1": "b" * 40}
    repository = tmp_path / "cache/hub/models--org--model"
    (repository / "refs").mkdir(parents=True)
    for (name, commit), table in zip(commits.items(), (TABLE, OTHER), strict=True):
        (repository / "refs" / name).write_text(commit)
        (repository / "snapshots").mkdir(exist_ok=True)
        made = make_checkpoint({"model.embed_tokens.weight": table}, name=f"made-{name}")
        made.rename(repository / "snapshots" / commit)

    def found(model: str) -> str:
        return locate_with(model, "http://127.0.0.1:9", tmp_path / "cache", offline="1")

    snapshots = repository / "snapshots"
    assert found("org/model") == str(snapshots / commits["main"])
    assert found("org/model@v1") == found(f"org/model@{commits['v1']}") == str(snapshots / commits["v1"])
    said = found("org/model@v9")
    assert said.startswith("InputError: model.base is 'org/model' at 'v9': no such directory, and neither")
