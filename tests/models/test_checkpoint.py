"""Finding and reading the input embedding of checkpoints of many layouts, here and on the Hub."""

from __future__ import annotations

import fnmatch
import json
import shutil

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

TABLE = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
OTHER = np.ones((3, 4), np.float32)


@pytest.mark.parametrize(
    ("key", "others"),
    [
        ("model.embed_tokens.weight", ["model.layers.0.mlp.up_proj.weight", "lm_head.weight"]),
        ("transformer.wte.weight", ["transformer.wpe.weight"]),
        (
            "bert.embeddings.word_embeddings.weight",
            ["bert.embeddings.position_embeddings.weight", "bert.embeddings.token_type_embeddings.weight"],
        ),
        ("gpt_neox.embed_in.weight", ["embed_out.weight"]),
        ("shared.weight", ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"]),
        ("encoder.embed_tokens.weight", ["decoder.embed_tokens.weight"]),
        ("language_model.model.embed_tokens.weight", ["vision_tower.embeddings.patch_embedding.weight"]),
        ("model.embed_tokens.weight", ["model.layers.61.embed_tokens.weight"]),
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


def test_a_directory_that_lacks_a_shard_is_enough_for_its_table_only(make_checkpoint):
    directory = make_checkpoint({"lm_head.weight": OTHER}, {"model.embed_tokens.weight": TABLE})
    assert locate(str(directory), all_weights=True) == directory
    assert len(weight_files(directory)) == 2
    (directory / "model-00001-of-00002.safetensors").unlink()
    assert locate(str(directory)) == directory
    np.testing.assert_array_equal(embedding_table(directory).weights, TABLE)
    with pytest.raises(InputError, match=r"names 2 weight files, but 1 of them are missing \(model-00001-of"):
        locate(str(directory), all_weights=True)
    (directory / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(InputError, match=r"model-00002-of-00002.safetensors, which is not there"):
        embedding_table(directory)


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ({"weight_map": {"wte.weight": "model-00001-of-00002.safetensors"}}, "which does not hold it"),
        ({"weight_map": {"wte.weight": "../outside.safetensors"}}, "no usable weight_map"),
    ],
)
def test_an_index_that_cannot_be_used_is_named(make_checkpoint, index, reason):
    directory = make_checkpoint({"lm_head.weight": OTHER}, {"wte.weight": TABLE})
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match=reason):
        embedding_table(directory)


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


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        (
            {f"layer.{at}.weight": OTHER for at in range(60)},
            r"no input embedding .* embed_tokens.weight.* there are layer.0.weight.* and 20 more",
        ),
        ({"a.wte.weight": TABLE, "b.wte.weight": TABLE}, "ambiguous: a.wte.weight, b.wte.weight"),
        ({"wte.weight": TABLE}, "ids up to 7 and the model's embedding has only 7 rows"),
    ],
    ids=["none", "two", "too few rows"],
)
def test_weights_without_one_table_for_all_ids_are_refused(make_checkpoint, tensors, said):
    with pytest.raises(InputError, match=said):
        embedding_table(make_checkpoint(tensors), vocabulary=8)


def test_fingerprints_follow_content_alone(make_checkpoint):
    one, same = (make_checkpoint({"wte.weight": TABLE}, name=name) for name in ("one", "same"))
    other = make_checkpoint({"wte.weight": TABLE.reshape(4, 7)}, name="other")
    prints = [table_fingerprint(embedding_table(directory)) for directory in (one, same, other)]
    assert prints[0] == prints[1] != prints[2]
    assert len(prints[0]) == 32
    assert tokenizer_fingerprint(one) == tokenizer_fingerprint(same)
    (same / "tokenizer.json").write_text("{ }")
    assert tokenizer_fingerprint(one) != tokenizer_fingerprint(same)


def test_what_is_neither_a_directory_nor_a_known_id_says_so():
    with pytest.raises(InputError, match="there is no such directory; expected the folder of a Hugging Face"):
        locate("no/such/directory")
    with pytest.raises(InputError, match=r"'nobody/nothing-here': no such directory, and neither .* nor the"):
        locate("nobody/nothing-here")


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A repository that huggingface_hub knows: the files of a folder, of which a snapshot has those that were asked
    for."""

    def snapshot_download(name, *, revision, allow_patterns):
        if name != "org/model":
            raise OSError("404: no such repository")
        for path in (tmp_path / "served").rglob("*"):
            inside = path.relative_to(tmp_path / "served")
            if path.is_file() and any(fnmatch.fnmatch(str(inside), pattern) for pattern in allow_patterns):
                (tmp_path / COMMIT / inside).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, tmp_path / COMMIT / inside)
        asked.append(revision)
        return str(tmp_path / COMMIT)

    asked = []
    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    return asked


def test_of_a_sharded_model_on_the_hub_one_weight_file_is_downloaded(hub, make_checkpoint, tmp_path):
    make_checkpoint({"lm_head.weight": OTHER}, {"model.embed_tokens.weight": TABLE}, name="served")
    found = locate("org/model@v1")
    np.testing.assert_array_equal(embedding_table(found).weights, TABLE)
    assert sorted(path.name for path in found.iterdir()) == [
        "config.json",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
    ]
    # The repository may change after the first answer.
    assert hub == ["v1", COMMIT]


def test_all_weight_files_of_a_model_are_downloaded_where_they_are_asked_for(hub, make_checkpoint):
    served = make_checkpoint({"lm_head.weight": OTHER}, {"model.embed_tokens.weight": TABLE}, name="served")
    (served / "1_Pooling").mkdir()
    (served / "1_Pooling/config.json").write_text('{"pooling_mode_cls_token": true}')
    found = locate("org/model", all_weights=True)
    assert len(weight_files(found)) == 2
    assert (found / "1_Pooling/config.json").read_bytes() == (served / "1_Pooling/config.json").read_bytes()
    with pytest.raises(
        InputError, match=r"^deep.model is 'nobody/nothing' at 'v9': .*log in for a gated model"
    ):
        locate("nobody/nothing@v9", all_weights=True, setting="deep.model")
