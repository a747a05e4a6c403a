"""The questions of `divorder init`. Enter takes the default; an unusable answer repeats the question."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from dagster_divorder.core.order.strategy import one_of
from dagster_divorder.errors import DivOrderError, InputError, printable
from dagster_divorder.propose import BUILT_IN_TRAITS, NUMBERS, RANKS, InputBlock, Proposal, one_line
from dagster_divorder.trainers import TRAINERS

Answered = TypeVar("Answered")
NONE = "none"


def ask(question: str, default: str, read: Callable[[str], Answered]) -> Answered:
    """The answer to a question, as `read` parses it. default: "" if there is none.

    Raises:
        InputError: the input ends.
    """
    while True:
        try:
            answer = input(printable(f"{question}{f' [{default}]' if default else ''}: ")).strip()
            return read(answer or default)
        except EOFError:
            print()
            raise InputError(
                "the input ended before the questions did; nothing was written; --yes takes every default"
            ) from None
        except KeyboardInterrupt:
            print()
            raise
        except UnicodeDecodeError:
            print("  this is not text in the terminal's encoding")
        except DivOrderError as error:
            print(f"  {error}")


def replaces(file: str) -> bool:
    """Whether an existing file may be replaced."""
    known = ("yes", "no", "y", "n")
    question = f"{file} is there already. Replace it"
    return ask(question, "no", lambda answer: one_of("the answer", answer.lower(), known)[0] == "y")


def complete(proposal: Proposal) -> Proposal:
    """The proposal completed by answers: fields of each input, traits, and trainer and numbers unless given."""
    several = len(proposal.blocks) > 1
    blocks = [_fields(block, f" of {block.paths[0]}" if several else "") for block in proposal.blocks]
    proposal = _traits(replace(proposal, blocks=blocks))
    if not proposal.trainer:

        def trainer(answer: str) -> Proposal:
            return replace(proposal, trainer=None if answer == NONE else one_of("trainer", answer, TRAINERS))

        proposal = ask(f"Trainer: {', '.join(TRAINERS)}", NONE, trainer)
    for name in NUMBERS:
        if name not in proposal.numbers and (name not in RANKS or proposal.reads_parts):
            proposal = _number(proposal, name)
    return proposal


def _fields(block: InputBlock, of_input: str) -> InputBlock:
    def text(answer: str) -> InputBlock:
        if not answer:
            raise InputError("name one of the fields")
        return block if answer == block.text else block.with_text(answer, "as you said")

    def optional(answer: str) -> str | None:
        return (
            None if answer == NONE and NONE not in block.fields else one_of("the field", answer, block.fields)
        )

    if not block.read:
        print(printable(f"\n{block.why}"))
    if not block.structure:
        block = ask(f"Text field{of_input}", block.text, text)
    own_id = ask(f"Field of your own ids{of_input}", block.own_id or NONE, optional)
    source = ask(f"Field of the source{of_input}", block.source or NONE, optional)
    return replace(block, own_id=own_id, source=source)


def _traits(proposal: Proposal) -> Proposal:
    default = ", ".join(map(one_line, proposal.balanced))
    known = [
        *BUILT_IN_TRAITS,
        *proposal.balanced,
        *(name for block in proposal.blocks for name in block.fields),
    ]

    def read(answer: str) -> Proposal:
        # Names in the default may contain commas.
        if answer == default:
            return proposal
        names = [one_of("a trait", name.strip(), known) for name in answer.split(",")]
        return replace(proposal, traits=list(dict.fromkeys(names)))

    return ask("Traits to balance, separated by commas", default, read)


def _number(proposal: Proposal, name: str) -> Proposal:
    def read(answer: str) -> Proposal:
        if not answer.isdecimal():
            raise InputError(f"{answer!r} is not a whole number")
        return replace(proposal, numbers={**proposal.numbers, name: int(answer)})

    default = 1 if name in RANKS else getattr(proposal, name)
    return ask(NUMBERS[name][0], str(default), read)
