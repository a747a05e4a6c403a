"""Settings: three sources, one frozen object, errors that name the key."""

from __future__ import annotations

import re
import tomllib
from contextlib import nullcontext
from pathlib import Path
from typing import get_args

import pytest

from dagster_divorder.cli import main
from dagster_divorder.errors import InputError, SettingsError
from dagster_divorder.removed import SETTINGS as REMOVED
from dagster_divorder.removed import VERBS
from dagster_divorder.settings import Settings, load_settings
from dagster_divorder.settings.loading import refuse_overlap, set_key, valid_keys
from dagster_divorder.settings.places import Url
from dagster_divorder.settings.sections import RULES, Format
from dagster_divorder.write.exports import FORMATS


def test_environment_overrides_file_overrides_defaults(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text("[clusters]\nk = 5\n[order.traits]\ncluster = 1.0\nsource = 2.0\n")
    environ = {"DIVORDER_CONFIG": str(file), "DIVORDER_ORDER__TRAITS__SOURCE": "0.5", "DIVORDER_SEED": "3"}
    settings = load_settings(environ=environ)
    assert settings.clusters.k == 5
    assert settings.order.traits == {"cluster": 1.0, "source": 0.5}
    assert settings.seed == 3
    assert load_settings(environ={**environ, "DIVORDER_CLUSTERS__K": "6"}).clusters.k == 6


def test_relative_paths_are_seen_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/model").mkdir()
    file = tmp_path / "conf/own.toml"
    file.write_text(
        '[input]\npaths = ["in/*.jsonl", "/abs/x.jsonl"]\n[store]\npath = "../st"\n[model]\nbase = "model"\n'
    )
    settings = load_settings(file, environ={})
    assert settings.input.paths == (str(tmp_path / "conf/in/*.jsonl"), "/abs/x.jsonl")
    assert settings.store.path == tmp_path / "st"
    assert settings.model.base == str(tmp_path / "conf/model")


@pytest.mark.parametrize("given", ["/a.jsonl", '["/a.jsonl"]'])
def test_paths_in_the_environment_are_one_or_a_list(given: str) -> None:
    assert load_settings(environ={"DIVORDER_INPUT__PATHS": given}).input.paths == ("/a.jsonl",)


@pytest.mark.parametrize(
    ("environ", "parts"),
    [
        ({"DIVORDER_CLUSTERS__KK": "3"}, ["clusters.kk", "did you mean 'clusters.k'"]),
        ({"DIVORDER_CLUSTER__K": "3"}, ["DIVORDER_CLUSTER__K", "did you mean 'clusters'"]),
        ({"DIVORDER_ORDER__STRATEGY": "balancd"}, ["order.strategy", "balancd", "balanced"]),
        (
            {"DIVORDER_ORDER__TRAITS": '{"cluster": -1}'},
            ["order.traits.cluster", "-1", "greater than or equal to 0.000001"],
        ),
        ({"DIVORDER_ORDER__TRAITS": "{}"}, ["order.traits", "at least one trait"]),
        (
            {"DIVORDER_EVIDENCE__TOKENS": "1000"},
            ["evidence.tokens is set, but no documents are held out", "set heldout.documents"],
        ),
        (
            {"DIVORDER_SEQUENCE__STRATEGY": "f2", "DIVORDER_ORDER__OPTIONS__F2_LAMBDA": "-1"},
            ["order.options", "f2_lambda is '-1'", "greater than or equal to 0"],
        ),
        (
            {"DIVORDER_ORDER__OPTIONS": '{"shards": 8}'},
            ["order.options.shards is an option of none of the strategies in use, balanced", "remove it"],
        ),
        (
            {"DIVORDER_ORDER__OPTIONS": '{"within_claster": "original"}'},
            ["order.options.within_claster is an option of none", "did you mean 'within_cluster'"],
        ),
        (
            {"DIVORDER_CURRICULUM__SCORE": "q", "DIVORDER_CURRICULUM__SHAPE": "sow"},
            ["curriculum.shape", "'zigzag'"],
        ),
        (
            {
                "DIVORDER_CURRICULUM__SCORE": "q",
                "DIVORDER_MIXING__PHASE": '[{"until": 0.5, "weights": "sqrt"}, {"weights": "natural"}]',
            },
            [
                "curriculum.score is 'q', and mixing has phases; an order follows one of them: remove the other"
            ],
        ),
        ({"DIVORDER_CURRICULUM__SHAPE": "zigzag"}, ["shape is set, and score is not"]),
        ({"DIVORDER_ORDER__STRATEGY": "zigzag"}, ["name the score in curriculum.score"]),
        ({"DIVORDER_INPUT__PATHS": ""}, ["input.paths", "at least one"]),
        ({"DIVORDER_CONFIG": "/nowhere.toml"}, ["DIVORDER_CONFIG", "/nowhere.toml"]),
    ],
)
def test_errors_name_key_value_and_expectation(environ: dict[str, str], parts: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(environ=environ)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[mixing]\nweights = { a = -1.0 }",
            "mixing.weights = {'a': -1.0}: expected a number above 0, up to 1, natural, uniform, sqrt, unimax, or a",
        ),
        ("[mixing]\nweights = { a = 0.0 }", "mixing.weights = {'a': 0.0}: no value has a share; give values"),
        (
            '[mixing]\nphase = [{ until = 0.5, weights = {} }, { weights = "natural" }]',
            "mixing.phase.0.weights = {}: no value has a share; give values",
        ),
        (
            "[mixing]\nweights = 3",
            "mixing.weights = 3: expected a number above 0, up to 1, natural, uniform, sqrt, unimax, or a table",
        ),
        (
            "[order]\nseparate_copies = 2",
            "order.separate_copies = 2: Input should be a valid boolean, unable to ",
        ),
        (
            '[exports]\nformats = "ds"',
            "exports.formats = 'ds': Input should be a list, in the environment as JSON",
        ),
    ],
)
def test_a_field_of_several_types_is_refused_in_one_sentence_of_its_value(text: str, said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(tomllib.loads(text), environ={})
    message = str(caught.value).partition("settings: ")[2]
    assert message.startswith(said)
    assert ";" not in message.removeprefix(said), "one problem"
    assert not re.search(r"literal|constrained|dict\[|tuple", message)


HALF = '[[mixing.phase]]\nuntil = 0.5\nweights = "sqrt"\n'
LAST = '[[mixing.phase]]\nweights = "natural"\n'
BLOCKS = """
[[input]]
paths = ["books/*.parquet"]
source = "books"
max_reject_share = 0.5
[[input]]
paths = ["web", "s3://bucket/web"]
text_field = "body"
id_field = "url"
"""
EXTEND = '[order]\nappend = "extend"\n'
EQUAL = '[sequence]\nbatch = 4\n[exports]\nformats = ["mds", "parquet"]\nequal_ranks = true\n'
ORDERS = "[heldout]\ndocuments = 0.1\n[evidence]\norders = "
REFUSED = [
    ("[mixing]\ntotal_tokens = 9\nmax_repeats = 2", "total_tokens is 9, and weights is unset"),
    (
        HALF + HALF.replace("0.5", "0.4") + LAST,
        "phases end at until = 0.5 and then 0.4; expected ends that rise",
    ),
    (LAST + LAST, "phase 1 has no end; expected until in every phase but the last"),
    ('[[mixing.phase]]\nweights = "unimax"', 'no weights "unimax"; expected "uniform", and mixing.max_re'),
    (HALF + "tokens = 9\n" + LAST, "mixing.phase.tokens is no longer a setting: set until"),
    (HALF, "the last phase ends with training; remove its until"),
    ('[mixing]\nweights = "sqrt"\n' + HALF + LAST, "weights and phases are given; expected one of them"),
    (HALF + LAST + "[sequence]\nepochs = 2\n", "set sequence.epochs = 1, and mixing.total_tokens to the"),
    ('[refit]\nclusters = "now"', "refit.clusters = 'now': Input should be 'auto' or 'never'"),
    ('[refit]\ncluster = "auto"', "refit.cluster = 'cluster': Input should be 'model', 'bins'"),
    ("input = []", "at least one input is needed"),
    (BLOCKS + "txt_field = 1", "block 2: unknown key 'input.txt_field'; did you mean 'input.text_"),
    (BLOCKS + "[[input]]\npaths = []", "block 3: input.paths = []: at least one file"),
    (BLOCKS + "max_reject_share = 0.1", "max_reject_share is 0.1 and 0.5 in two [[input]] blocks"),
    (
        BLOCKS + 'source = "web"\nsource_field = "site"',
        "source is 'web', and source_field 'site'; remove",
    ),
    (BLOCKS + "[store]\npath = 'web'", "lies in store.path"),
    ("[selection]\ntokens = 3", 'tokens is 3, and method is "none"'),
    ('[selection]\nmethod = "random"', "tokens is unset"),
    ('[mixing]\nweights = "unimax"', "set mixing.max_repeats"),
    (EXTEND + "[sequence]\nepochs = 2", "sequence.epochs is 2"),
    (
        EXTEND + '[curriculum]\nscore = "length"',
        'later step is to read: remove it, or set order.append = "whole"',
    ),
    (EQUAL, "set exports.world_size and exports.micro_batch"),
    (
        EQUAL + "world_size = 3\nmicro_batch = 1",
        "sequence.batch = 4 is no whole number of steps with exports.world",
    ),
    (
        EQUAL + 'world_size = 2\nmicro_batch = 1\ntrainer = "mds"',
        'how ranks of "mds" share a batch is not modelled',
    ),
    (ORDERS + '["nope"]', "'nope' is not an order; expected original, "),
    (ORDERS + '["nope/random"]', "Input should be one of"),
    (ORDERS + '["curated", "curated"]', "named twice"),
    (ORDERS + "[]", "expected an order besides random_sequences"),
    (ORDERS + '["random_sequences"]', "expected an order besides random_sequences"),
    (ORDERS + '["curated/fold"]', "'fold' is a schedule of a score"),
]


@pytest.mark.parametrize(("text", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_tables_that_cannot_be_used_are_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(text)
    with pytest.raises(SettingsError, match=re.escape(said)):
        load_settings(tmp_path / "own.toml", environ={})


def test_the_formats_that_settings_know_are_those_that_are_written() -> None:
    assert get_args(Format) == tuple(FORMATS)


def test_a_strategy_takes_the_options_that_it_declares() -> None:
    options = {"block_strategy": "f2", "within_cluster": "original"}
    settings = Settings(
        order={"strategy": "block_shuffle", "options": options}, sequence={"strategy": "round_robin"}
    )
    assert settings.strategy_options("block_shuffle") == {"block_strategy": "f2"}
    assert settings.strategy_options("round_robin") == {"within_cluster": "original"}
    assert settings.strategy_options("within_shard") == {"shards": 64}
    assert settings.strategy_options("balanced") == {}


@pytest.mark.parametrize(("gone", "instead"), REMOVED.items())
def test_a_removed_setting_is_refused_with_what_to_do_instead(gone: str, instead: str) -> None:
    assert gone not in valid_keys() and gone not in Settings.model_fields
    section, _, key = gone.partition(".")
    said = re.escape(f"{gone} is no longer a setting: {instead}")
    with pytest.raises(SettingsError, match=f"settings: {said}"):
        load_settings({section: {key: "now"} if key else {}}, {})
    with pytest.raises(SettingsError, match=said if key else f"is not a setting: {said}"):
        load_settings(environ={f"DIVORDER_{section}{'__' if key else ''}{key}".upper(): "now"})


@pytest.mark.parametrize("verb", VERBS)
def test_a_removed_verb_is_refused_with_what_to_do_instead(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--config", "own.toml", verb, "--any", "thing"])
    assert f"`divorder {verb}` was removed: {VERBS[verb]}" in capsys.readouterr().err


def test_a_rule_is_of_a_fit_that_there_is() -> None:
    with pytest.raises(InputError, match=r"refit is 'cluster'; expected one of model, .* mean 'clusters'"):
        Settings().refitting("cluster")
    assert load_settings(environ={"DIVORDER_REFIT__BINS": "never"}).refit == {**RULES, "bins": "never"}


def test_several_inputs_are_one_with_the_paths_of_all(tmp_path: Path) -> None:
    file = tmp_path / "divorder.toml"
    file.write_text(BLOCKS)
    settings = load_settings(file, environ={})
    one, other = settings.input.each
    paths = (str(tmp_path / "books/*.parquet"), str(tmp_path / "web"), "s3://bucket/web")
    assert (one.paths, other.paths, settings.input.paths) == (paths[:1], paths[1:], paths)
    assert (settings.input.id_field, settings.input.source_field) == ("id", "source")
    assert settings.input.max_reject_share == 0.5
    assert Settings(**settings.model_dump(mode="json", exclude_defaults=True)) == settings
    from_python = Settings(
        input=[{"paths": list(block.paths), "source": block.source} for block in (one, other)]
    )
    assert from_python.input.each[0].source == "books"
    with pytest.raises(SettingsError, match="DIVORDER_INPUT__PATHS sets paths of one input, and there are"):
        load_settings(file, environ={"DIVORDER_INPUT__PATHS": "x"})


def test_urls_are_places_and_are_left_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text('[store]\npath = "s3://bucket/a/b/"\n[output]\npath = "gs://bucket/out"\n')
    settings = load_settings(file, environ={})
    assert isinstance(settings.store.path, Url) and settings.store.path == "s3://bucket/a/b"
    assert settings.store.path.scheme == "s3" and settings.store.path / "c" == "s3://bucket/a/b/c"
    assert settings.output.path == "gs://bucket/out"
    assert settings.exports.path == tmp_path / "data/exports"


@pytest.mark.parametrize(
    ("key", "url", "wrong"),
    [
        ("store.path", "s3://who:Sesame99@bucket/x", "without user, password or port"),
        ("store.path", "s3://bucket/x?X-Amz-Signature=Sesame99", "without query"),
        ("store.path", "s3://bucket/a/../b", "without empty parts"),
        ("store.path", "s3:///x", "without empty parts"),
        ("store.path", "s3://bucket//x", "without empty parts"),
        ("store.path", "s3://bucket/a*", "wildcard"),
        ("store.path", "S3://bucket/x", "begins with s3://"),
        ("store.path", "file:///x", "begins with s3://"),
        ("store.path", "hf://datasets/org/name", r"hf upload OWNER/NAME FOLDER \. --repo-type dataset"),
        ("input.paths", "ftp://host/a.jsonl", "begins with s3://.*, https://"),
        ("input.paths", "https://who:Sesame99@host/a.jsonl", "without user and password"),
        ("input.paths", "https://host/a.jsonl?sig=Sesame99", "without query"),
    ],
)
def test_urls_that_cannot_be_used_are_refused_and_secrets_not_repeated(
    key: str, url: str, wrong: str
) -> None:
    with pytest.raises(SettingsError, match=wrong) as caught:
        load_settings(environ={f"DIVORDER_{key.upper().replace('.', '__')}": url})
    assert key in str(caught.value) and "Sesame99" not in str(caught.value)


@pytest.mark.parametrize(
    ("store", "output", "inputs", "overlaps"),
    [
        ("s3://b/x", "s3://b/x/out", "/in", True),
        ("s3://b/x", "s3://b", "/in", True),
        ("s3://b/x", "s3://b/xy", "/in", False),
        ("s3://b/x", "gs://b/x", "/in", False),
        ("s3://b/x", "s3://b/y", "s3://b/y/in-*.jsonl", True),
        ("s3://b/x", "s3://b/y", "s3://b/in/*.jsonl", False),
    ],
)
def test_urls_that_overlap_are_refused(store: str, output: str, inputs: str, overlaps: bool) -> None:
    settings = Settings(store={"path": store}, output={"path": output}, input={"paths": [inputs]})
    with pytest.raises(SettingsError, match=r"overlap|lies in") if overlaps else nullcontext():
        refuse_overlap(settings)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "seed = 3 # mine\n",
        "[order] # own\nstrategy = 'f2' # k\ncut = ['x']\n\n[order.traits]\nlength = 1\n",
        "[order.traits] # c\nlength = 1.0\n\n[sequence]\nlength = 3\n",
        "[sequence]\nlength = 3\n[order.traits]\nlength = 2\n[embedding]\npca = 9\n",
        "order.traits.length = 1\n",
        'order = {cut = ["é"]}\n',
        "\ufeff[order]\r\nstrategy = 'f2'\r\n",
    ],
)
def test_keys_are_written_into_a_file_and_all_else_stays(tmp_path: Path, text: str) -> None:
    file = tmp_path / "divorder.toml"
    file.write_bytes(text.encode())
    set_key(file, "order.frozen_tokens", 5, {})
    before = tomllib.loads(text.removeprefix("\ufeff"))
    order = before.get("order", {}) | {"frozen_tokens": 5}
    assert tomllib.loads(file.read_text()) == before | {"order": order}
    written = file.read_text()
    for comment in ("# mine", "# own", "# k", "# c"):
        assert written.count(comment) == text.count(comment)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    set_key(file, "order.frozen_tokens", 5, {})
    assert file.read_text() == written


def test_a_key_that_the_environment_sets_is_not_written(tmp_path: Path) -> None:
    file = tmp_path / "divorder.toml"
    file.write_text("seed = 1\n")
    for variable, value in (
        ("divorder_order__frozen_tokens", "1"),
        ("DIVORDER_ORDER", '{"frozen_tokens": 1}'),
    ):
        with pytest.raises(SettingsError, match=r"sets order\.frozen_tokens in the environment"):
            set_key(file, "order.frozen_tokens", 5, {variable: value})
    assert file.read_text() == "seed = 1\n"


def test_a_variable_of_a_key_goes_before_one_of_its_section() -> None:
    section = {"DIVORDER_SEQUENCE": '{"length": 64}'}
    assert load_settings(environ={"DIVORDER_SEQUENCE__LENGTH": "32", **section}).sequence.length == 32
    assert load_settings(environ={**section, "DIVORDER_SEQUENCE__BATCH": "2"}).sequence.batch == 2
    with pytest.raises(
        SettingsError, match="DIVORDER_INPUT__TEXT_FIELD sets text_field of one input, and there are"
    ):
        load_settings(
            environ={"DIVORDER_INPUT": '[{"paths": ["a.jsonl"]}]', "DIVORDER_INPUT__TEXT_FIELD": "b"}
        )


SECTIONS = {
    section.lower(): known["properties"]
    for section, known in Settings.model_json_schema()["$defs"].items()
    if section.lower() in Settings.model_fields
}
NUMBERS: dict[str, object] = {
    f"{section}.{name}": True
    for section, fields in SECTIONS.items()
    for name, field in fields.items()
    if {kind.get("type") for kind in field.get("anyOf", [field])} & {"number", "integer"}
}
INSIDE: dict[str, object] = {
    "order.traits": {"cluster": True},
    "mixing.phase": [{"weights": True}],
    "order.options": {"f2_lambda": True},
    "mixing.weights": {"web": True, "books": 0.5},
    "clusters.k": [True, 5],
    "evidence.learning_rates": [True],
}


@pytest.mark.parametrize(("key", "value"), [*NUMBERS.items(), *INSIDE.items()])
def test_true_is_no_number(key: str, value: object) -> None:
    section, name = key.split(".")
    in_use = {"order.options": {"strategy": "f2"}}
    with pytest.raises(SettingsError, match="expected a number, not true or false"):
        load_settings({section: {name: value, **in_use.get(key, {})}}, environ={})
