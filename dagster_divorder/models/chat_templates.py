"""The chat template of a base model (from the settings, from its checkpoint, or a default) and its control tokens.

Guarantee: the template, its names and the control tokens are the same as in transformers' `AutoTokenizer`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dagster_divorder.chats.template import ChatTemplate
from dagster_divorder.errors import InputError
from dagster_divorder.models.bootstrap import END
from dagster_divorder.models.checkpoint import TOKENIZER, read_object
from dagster_divorder.models.tokenize import IDS_IN, NAMES_IN, named_specials, tokenizer_content

DEFAULT = (
    "{% if tools %}<|tools|>\n{{ tools | tojson }}{{ eos_token }}\n{% endif %}"
    "{% for message in messages %}{% if message['role'] == 'assistant' %}<|assistant|>\n"
    "{% generation %}{{ message['content'] }}{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}"
    "{{ eos_token }}{% endgeneration %}\n"
    "{% else %}<|{{ message['role'] }}|>\n{{ message['content'] }}{{ eos_token }}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
"""The template for models without one. Roles are words of the text, tools and their calls are JSON, and an end-of-text
token, if there is one, ends each message."""
TEMPLATE, MORE = "chat_template.jinja", "additional_chat_templates"
"""The file of the default template, and the folder of templates with other names."""
PROCESSOR = "chat_template.json"
"""Older checkpoints of vision models have their template here."""
WITH_TOOLS = "tool_use"
"""The name of the template of conversations with tools."""
_SPECIALS = ("bos", "eos", "pad", "unk", "sep", "cls", "mask")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def chat_template(directory: Path | None, file: Path | None) -> ChatTemplate:
    """The chat template for conversations. directory: of the base model; None for the bootstrap model. file: holds a
    template to use instead of the model's own.

    Raises:
        InputError: the file does not exist; the checkpoint has several templates, but none is named "default"; a
            template is not valid Jinja; or a control token is not in tokenizer.json.
    """
    given = {} if file is None else {"default": _read(file, "chats.template: ")}
    if directory is None:
        names = {"eos_token": END, "bos_token": "", "pad_token": END}
        return ChatTemplate(given.get("default", DEFAULT), names, [END], [END])
    names = {
        f"{special}_token": str(tokens[0].value)
        for special, tokens in named_specials(directory, _SPECIALS).items()
        if tokens and isinstance(tokens[0].value, str)
    }
    names = {**_other_names(directory), **names}
    tokens = control_tokens(directory)
    ends = _end_ids(directory)
    stops = {token["content"] for token in tokens if token["id"] in ends} | {names.get("eos_token", "")} - {
        ""
    }
    templates = given or _of_checkpoint(directory) or {"default": DEFAULT}
    if "default" not in templates:
        raise InputError(
            f"{directory} has the chat templates {', '.join(sorted(templates))}, but none is named default; write one "
            "into a file and set chats.template to it"
        )
    return ChatTemplate(
        templates["default"], names, [token["content"] for token in tokens], stops, templates.get(WITH_TOOLS)
    )


def control_tokens(directory: Path) -> list[dict[str, Any]]:
    """The tokens that a checkpoint's tokenizer finds in a text, in the form of tokenizer.json's `added_tokens`, with
    the flags from tokenizer_config.json, and including special tokens that are ordinary tokens in tokenizer.json.

    Raises:
        InputError: there is no usable tokenizer.json, or it lacks one of the tokens.
    """
    content = tokenizer_content(directory)
    tokens = {token["content"]: token for token in content.get("added_tokens") or []}
    files = [directory / file for file in NAMES_IN]
    configs = [read_object(file) if file.is_file() else {} for file in files]
    flagged = list((configs[0].get("added_tokens_decoder") or {}).values())
    named = [
        name
        for config in configs
        for key, value in config.items()
        if (key.endswith("_token") or key in ("additional_special_tokens", "extra_special_tokens"))
        for name in _names(value)
    ]
    for token in [*flagged, *({"content": name} for name in named)]:
        name = token["content"]
        number = tokens[name]["id"] if name in tokens else _in_vocabulary(content, name)
        if number is None:
            raise InputError(
                f"{directory} names the control token {name!r}, which its {TOKENIZER} does not have; load the "
                "tokenizer with transformers and save it again, with a row for the token in the model's embedding"
            )
        if token in flagged:
            flags = {flag: bool(token.get(flag)) for flag in _FLAGS}
        else:
            flags = {**dict.fromkeys(_FLAGS, False), "special": True}
        if token in flagged or name not in tokens:
            tokens[name] = {"id": number, "content": name, **flags}
    return sorted(tokens.values(), key=lambda token: int(token["id"]))


def _names(value: Any) -> list[str]:
    """The tokens in the value of a key: one token, a list of tokens, or tokens by name."""
    values = value if isinstance(value, list) else [value]
    if isinstance(value, dict) and "content" not in value:
        values = list(value.values())
    contents = [each.get("content") if isinstance(each, dict) else each for each in values]
    return [name for name in contents if isinstance(name, str) and name]


def _other_names(directory: Path) -> dict[str, str]:
    """Further names of tokens that templates may use, such as image_token."""
    file = directory / NAMES_IN[0]
    config = read_object(file) if file.is_file() else {}
    more = config.get("extra_special_tokens")
    named = {**config, **(more if isinstance(more, dict) else {})}
    return {
        key: tokens[0] for key, value in named.items() if key.endswith("_token") and (tokens := _names(value))
    }


def _in_vocabulary(content: dict[str, Any], name: str) -> int | None:
    vocabulary = content["model"].get("vocab")
    if isinstance(vocabulary, dict):
        return vocabulary.get(name)
    # A Unigram's pieces, with their scores.
    return next((number for number, piece in enumerate(vocabulary or []) if piece[0] == name), None)


def _end_ids(directory: Path) -> set[int]:
    """Ids that end the model's generation."""
    ends: set[int] = set()
    for file in (directory / name for name in IDS_IN):
        value = read_object(file).get("eos_token_id") if file.is_file() else None
        ends |= {each for each in (value if isinstance(value, list) else [value]) if isinstance(each, int)}
    return ends


def _read(file: Path, setting: str = "") -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{setting}{file} cannot be read ({error}); expected a Jinja file") from None


def _of_checkpoint(directory: Path) -> dict[str, str]:
    """Name -> template of a checkpoint: from its files, else from tokenizer_config.json, as in transformers; else from
    a processor's file."""
    files = {"default": directory / TEMPLATE}
    files |= {file.stem: file for file in sorted((directory / MORE).glob("*.jinja"))}
    if templates := {name: _read(file) for name, file in files.items() if file.is_file()}:
        return templates
    for config in (directory / NAMES_IN[0], directory / PROCESSOR):
        value: Any = read_object(config).get("chat_template") if config.is_file() else None
        if isinstance(value, list):
            return {str(each["name"]): str(each["template"]) for each in value}
        if isinstance(value, dict):
            return {str(name): str(template) for name, template in value.items()}
        if value:
            return {"default": str(value)}
    return {}
