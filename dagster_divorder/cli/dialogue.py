"""The questions of `divorder init`. Enter takes the default; an unusable answer repeats the question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from dagster_divorder.core.order.strategy import one_of
from dagster_divorder.errors import DivOrderError, InputError, printable
from dagster_divorder.propose import BUILT_IN_TRAITS, InputBlock, Proposal, one_line
from dagster_divorder.trainers import TRAINERS

Answered = TypeVar("Answered")
NONE = "none"
RANKS = {
    "world_size": "Ranks (the world size)",
    "micro_batch": "Sequences that a rank reads at a time",
    "workers": "Loader processes of a rank",
}


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

    def read(answer: str) -> bool:
        return one_of("the answer", answer.lower(), ("yes", "no", "y", "n"))[0] == "y"

    return ask(f"{file} is there already. Replace it", "no", read)


def complete(proposal: Proposal) -> Proposal:
    """The proposal completed by answers: fields of each input, traits, and trainer and sizes unless given."""
    blocks = [
        _fields(block, f" of {block.paths[0]}" if proposal.several else "") for block in proposal.blocks
    ]
    proposal = replace(proposal, blocks=blocks)
    proposal = replace(proposal, traits=_traits(proposal))
    if not proposal.trainer:
        proposal = _trainer(proposal)
    if proposal.reads_parts:
        for name in [name for name in RANKS if name not in proposal.ranks]:
            proposal = _rank(proposal, name)
    for name, question in (("length", "Tokens of a sequence"), ("batch", "Sequences of a batch")):
        if getattr(proposal, name) is None:
            proposal = _size(proposal, name, question)
    return proposal


def _fields(block: InputBlock, of_input: str) -> InputBlock:
    if not block.read[0]:
        print(printable(f"\n{block.why}"))

    def text(answer: str) -> InputBlock:
        if not answer:
            raise InputError("name one of the fields")
        return block if answer == block.text else block.with_text(answer, "as you said")

    if not block.structure:
        block = ask(f"Text field{of_input}", block.text, text)

    def optional(answer: str) -> str | None:
        return None if answer == NONE and NONE not in block.fields else block.known(answer)

    own_id = ask(f"Field of your own ids{of_input}", block.own_id or NONE, optional)
    source = ask(f"Field of the source{of_input}", block.source or NONE, optional)
    return replace(block, own_id=own_id, source=source)


def _traits(proposal: Proposal) -> Sequence[str]:
    known = [*BUILT_IN_TRAITS, *proposal.sources, *proposal.fields]

    def read(answer: str) -> list[str]:
        if answer == default:
            # Names in the default may contain commas.
            return proposal.balanced
        names = [name.strip() for name in answer.split(",")]
        return list(dict.fromkeys(one_of("a trait", name, known) for name in names))

    default = ", ".join(map(one_line, proposal.balanced))
    more = f" (also {', '.join(map(one_line, proposal.candidates))})" if proposal.candidates else ""
    return ask(f"Traits to balance, separated by commas{more}", default, read)


def _trainer(proposal: Proposal) -> Proposal:
    def read(answer: str) -> Proposal:
        trainer = None if answer == NONE else one_of("trainer", answer, TRAINERS)
        return checked(replace(proposal, trainer=trainer))

    return ask(f"Trainer: {', '.join(TRAINERS)}", NONE, read)


def _rank(proposal: Proposal, name: str) -> Proposal:
    def read(answer: str) -> Proposal:
        return checked(replace(proposal, ranks={**proposal.ranks, name: _whole(answer)}))

    return ask(RANKS[name], "1", read)


def _size(proposal: Proposal, name: str, question: str) -> Proposal:
    def read(answer: str) -> Proposal:
        changed: dict[str, Any] = {name: _whole(answer)}
        return checked(replace(proposal, **changed))

    length, batch = proposal.sequence
    return ask(question, str(length if name == "length" else batch), read)


def checked(proposal: Proposal) -> Proposal:
    """The proposal, if its numbers are possible; the number of ranks may still be unknown.

    Raises:
        InputError, SettingsError: as `Proposal.layout` does.
    """
    _ = proposal.sequence
    if "world_size" in proposal.ranks or not proposal.reads_parts:
        _ = proposal.layout
    return proposal


def _whole(answer: str) -> int:
    try:
        return int(answer)
    except ValueError:
        raise InputError(f"{answer!r} is not a whole number") from None
