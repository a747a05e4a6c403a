"""The questions of `divorder init`: each has a default that Enter takes, and is asked again after an answer that cannot
be used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from dagster_divorder.core.order.strategy import one_of
from dagster_divorder.errors import DivOrderError, InputError, printable
from dagster_divorder.propose import BUILT_IN_TRAITS, Block, Proposal, one_line
from dagster_divorder.trainers import TRAINERS

Answered = TypeVar("Answered")
NONE = "none"
RANKS = {
    "world_size": "Ranks (the world size)",
    "micro_batch": "Sequences that a rank reads at a time",
    "workers": "Loader processes of a rank",
}


def ask(question: str, default: str, read: Callable[[str], Answered]) -> Answered:
    """The answer to a question, as it is read. default: "" where there is none.

    Raises:
        InputError: nobody answers.
    """
    while True:
        try:
            given = input(printable(f"{question}{f' [{default}]' if default else ''}: ")).strip()
            return read(given or default)
        except EOFError:
            print()
            raise InputError(
                "the input ended before the questions did; nothing was written; --yes takes every default"
            ) from None
        except KeyboardInterrupt:
            print()
            raise
        except UnicodeDecodeError:
            print("  that is no text in the encoding of this terminal")
        except DivOrderError as error:
            print(f"  {error}")


def replaces(file: str) -> bool:
    """Whether a file that is there may be replaced."""

    def read(given: str) -> bool:
        return one_of("the answer", given.lower(), ("yes", "no", "y", "n"))[0] == "y"

    return ask(f"{file} is there already. Replace it", "no", read)


def complete(proposal: Proposal) -> Proposal:
    """The proposal with what is answered: fields of each input, traits, and of trainer and sizes what is not given."""
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


def _fields(block: Block, beside: str) -> Block:
    if not block.text:
        print(printable(f"\n{block.why}"))

    def text(given: str) -> Block:
        if not given:
            raise InputError("name one of the fields")
        return block if given == block.text else block.with_text(given, "as you said")

    block = ask(f"Text field{beside}", block.text, text)

    def optional(given: str) -> str | None:
        return None if given == NONE and NONE not in block.fields else block.known(given)

    own_id = ask(f"Field of your own ids{beside}", block.own_id or NONE, optional)
    source = ask(f"Field of the source{beside}", block.source or NONE, optional)
    return replace(block, own_id=own_id, source=source)


def _traits(proposal: Proposal) -> Sequence[str]:
    known = [*BUILT_IN_TRAITS, *proposal.sources, *proposal.fields]

    def read(given: str) -> list[str]:
        if given == default:
            # A name in it may have a comma of its own.
            return proposal.balanced
        names = [name.strip() for name in given.split(",")]
        return list(dict.fromkeys(one_of("a trait", name, known) for name in names))

    default = ", ".join(map(one_line, proposal.balanced))
    more = f" (also {', '.join(map(one_line, proposal.candidates))})" if proposal.candidates else ""
    return ask(f"Traits to balance, a comma between{more}", default, read)


def _trainer(proposal: Proposal) -> Proposal:
    def read(given: str) -> Proposal:
        return checked(
            replace(proposal, trainer=None if given == NONE else one_of("trainer", given, TRAINERS))
        )

    return ask(f"Trainer, of {', '.join(TRAINERS)}", NONE, read)


def _rank(proposal: Proposal, name: str) -> Proposal:
    def read(given: str) -> Proposal:
        return checked(replace(proposal, ranks={**proposal.ranks, name: _whole(given)}))

    return ask(RANKS[name], "1", read)


def _size(proposal: Proposal, name: str, question: str) -> Proposal:
    def read(given: str) -> Proposal:
        changed: dict[str, Any] = {name: _whole(given)}
        return checked(replace(proposal, **changed))

    return ask(question, str(dict(zip(("length", "batch"), proposal.sequence, strict=True))[name]), read)


def checked(proposal: Proposal) -> Proposal:
    """The proposal, if its numbers can be; the ranks of a trainer that reads its part of an export may be unknown yet.

    Raises:
        InputError, SettingsError: as `Proposal.layout` does.
    """
    _ = proposal.sequence
    if "world_size" in proposal.ranks or not proposal.reads_parts:
        _ = proposal.layout
    return proposal


def _whole(given: str) -> int:
    try:
        return int(given)
    except ValueError:
        raise InputError(f"{given!r} is no whole number") from None
