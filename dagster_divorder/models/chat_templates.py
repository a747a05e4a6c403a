"""The chat template of a base model: from the settings, from its checkpoint, or a default.

Guarantee: template, named tokens and control tokens are those of transformers' `AutoTokenizer`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dagster_divorder.chats.template import ChatTemplate
from dagster_divorder.errors import InputError
from dagster_divorder.models.bootstrap import END
from dagster_divorder.models.checkpoint import read_object

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
BOOTSTRAP: dict[str, Any] = {
    "templates": {},
    "named": {"eos_token": END, "bos_token": "", "pad_token": END},
    "control": [END],
    "stops": [END],
}
"""As `describe_chats`, of the bootstrap model."""


def describe_chats(directory: Path) -> dict[str, Any]:
    """What a checkpoint says of conversations, as JSON: its chat `templates` by name, `named` tokens as templates read
    them, all `control` tokens, and those that end generation, `stops`.

    Raises:
        InputError: there is no usable tokenizer.json.
    """
    from dagster_divorder.models.pretrained import load_tokenizer

    tokenizer = load_tokenizer(directory)
    templates = tokenizer.chat_template or {}
    control = {number: token.content for number, token in tokenizer.added_tokens_decoder.items()}
    stops = {tokenizer.eos_token} - {None}
    for file in (directory / name for name in ("generation_config.json", "config.json")):
        ends = read_object(file).get("eos_token_id") if file.is_file() else None
        stops |= {control[end] for end in (ends if isinstance(ends, list) else [ends]) if end in control}
    return {
        "templates": {"default": templates} if isinstance(templates, str) else templates,
        "named": {
            name: token for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)
        },
        "control": list(control.values()),
        "stops": sorted(stops),
    }


def chat_template(model: dict[str, Any], file: Path | None) -> ChatTemplate:
    """The chat template for conversations. model: see `describe_chats`. file: holds a template to use instead of the
    model's own.

    Raises:
        InputError: the file does not exist; the model has several templates, or one that is not named "default"; or
            the template prints today's date in a form that is not written out.
    """
    templates = model["templates"] or {"default": DEFAULT}
    if file is not None:
        try:
            templates = {"default": file.read_text(encoding="utf-8")}
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"chats.template: {file} cannot be read ({error}); expected a Jinja file"
            ) from None
    if len(templates) > 1 or "default" not in templates:
        raise InputError(
            f"model.base has the chat templates {', '.join(sorted(templates))}; write the one for all conversations "
            "into a file and set chats.template to it"
        )
    return ChatTemplate(templates["default"], model["named"], model["control"], model["stops"])
