"""The chat template of a base model: that of the settings, its checkpoint's, or a default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dagster_divorder.chats.template import ChatTemplate
from dagster_divorder.errors import InputError
from dagster_divorder.models.bootstrap import END
from dagster_divorder.models.checkpoint import TOKENIZER, read_object
from dagster_divorder.models.tokenize import NAMES_IN, named_specials

DEFAULT = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}<|assistant|>\n"
    "{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}\n"
    "{% else %}<|{{ message['role'] }}|>\n{{ message['content'] + eos_token }}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
"""The template of a model without one. Roles are words of the text, and an end-of-text token ends each message."""
TEMPLATE = "chat_template.jinja"
_SPECIALS = ("bos", "eos", "pad", "unk", "sep", "cls", "mask")


def chat_template(directory: Path | None, file: Path | None) -> ChatTemplate:
    """The chat template for conversations. directory: of the base model; None for the bootstrap model. file: holds the
    template in place of the model's own.

    Raises:
        InputError: the file is not there, or the checkpoint has several templates and none of the name "default".
    """
    given = None if file is None else _read(file)
    if directory is None:
        return ChatTemplate(
            given or DEFAULT, {"eos_token": END, "bos_token": "", "pad_token": END}, [END], [END]
        )
    added = read_object(directory / TOKENIZER).get("added_tokens") or []
    control = [token["content"] for token in added]
    names = {
        f"{special}_token": str(tokens[0].value)
        for special, tokens in named_specials(directory, _SPECIALS).items()
        if tokens and isinstance(tokens[0].value, str)
    }
    stops = [names["eos_token"]] if "eos_token" in names else []
    template = given or _of_checkpoint(directory)
    if template is None:
        return ChatTemplate(DEFAULT, {"eos_token": "", **names}, control, stops)
    return ChatTemplate(template, names, control, stops)


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"chats.template: {file} cannot be read ({error}); give the path of a Jinja file"
        ) from None


def _of_checkpoint(directory: Path) -> str | None:
    """chat_template.jinja, else `chat_template` in tokenizer_config.json, as transformers reads them."""
    if (directory / TEMPLATE).is_file():
        return _read(directory / TEMPLATE)
    config = directory / NAMES_IN[0]
    template: Any = read_object(config).get("chat_template") if config.is_file() else None
    if isinstance(template, list):
        named = {each["name"]: each["template"] for each in template}
        if "default" not in named:
            raise InputError(
                f"{config} has the chat templates {', '.join(named)}, and none is named default; write one into a file "
                "and name it in chats.template"
            )
        return str(named["default"])
    return template
