"""Slow, obvious twins of `packing.py` and whole packing methods: plain loops. For tests only."""

from collections.abc import Sequence

Token = tuple[int, int]
"""(document, place in the document)."""


def tokens_of(runs: Sequence[tuple[int, int, int]]) -> list[Token]:
    """The tokens of runs of (document, start, length), one after another."""
    return [(document, start + i) for document, start, length in runs for i in range(length)]


def concat(runs: Sequence[tuple[int, int, int]], sequence_length: int) -> list[list[Token]]:
    tokens = tokens_of(runs)
    return [tokens[i : i + sequence_length] for i in range(0, len(tokens), sequence_length)]


def in_turn(
    runs: Sequence[tuple[int, int, int]], sequence_length: int, text: Sequence[int] | None = None
) -> list[int]:
    """Runs by index: those of more than half a sequence first, both kinds as they come. text, by document: before all
    others, those of texts that several documents have, text by text."""
    of_run = [document if text is None else text[document] for document, _, _ in runs]
    documents = {(of, document) for of, (document, _, _) in zip(of_run, runs, strict=True)}

    def turn(run: int) -> tuple[bool, bool, int]:
        if sum(of == of_run[run] for of, _ in documents) == 1:
            return True, 2 * runs[run][2] <= sequence_length, 0
        length = runs[run][2]
        if length < sequence_length:
            alike = [runs[other][2] for other in range(len(runs)) if of_run[other] == of_run[run]]
            length = max(of for of in alike if of < sequence_length)
        return False, 2 * length <= sequence_length, of_run[run]

    return sorted(range(len(runs)), key=turn)


def best_fit(
    runs: Sequence[tuple[int, int, int]],
    turns: Sequence[int],
    sequence_length: int,
    copies: Sequence[object] | None = None,
) -> list[list[int]]:
    """Runs (by index) of each sequence in the order in which sequences are opened, packed in these turns; every
    sequence is looked at for each run, and of equal room the one that was filled last is taken. copies, by run: a
    sequence takes one of equal ones."""
    sequences: list[list[int]] = []
    room: list[int] = []
    filled: list[int] = []
    copies = range(len(runs)) if copies is None else copies
    for time, run in enumerate(turns):
        length = runs[run][2]
        fits = [
            s
            for s in range(len(sequences))
            if room[s] >= length and copies[run] not in [copies[other] for other in sequences[s]]
        ]
        if fits:
            s = min(fits, key=lambda s: (room[s], -filled[s]))
        else:
            s = len(sequences)
            sequences.append([])
            room.append(sequence_length)
            filled.append(0)
        sequences[s].append(run)
        room[s] -= length
        filled[s] = time
    return sequences


def cut(runs: Sequence[tuple[int, int, int]], piece_tokens: int) -> list[tuple[int, int, int]]:
    pieces = []
    for document, start, length in runs:
        while length > piece_tokens:
            pieces.append((document, start, piece_tokens))
            start, length = start + piece_tokens, length - piece_tokens
        pieces.append((document, start, length))
    return pieces


def counts(sequences: Sequence[Sequence[Token]], codes: Sequence[int], n_values: int) -> list[list[int]]:
    """Tokens of each value in each sequence."""
    rows = []
    for tokens in sequences:
        row = [0] * n_values
        for document, _ in tokens:
            row[codes[document]] += 1
        rows.append(row)
    return rows


def nearest_first_path(cosines: Sequence[Sequence[float]], neighbours: Sequence[Sequence[int]]) -> list[int]:
    """cosines (n, n); neighbours: the points that each may lead to."""
    path: list[int] = []
    asked: list[int] = []
    for _ in range(len(cosines)):
        best = None
        while best is None and asked:
            at = asked[-1]
            left = [other for other in neighbours[at] if other not in path]
            if left:
                best = min(left, key=lambda other: (-cosines[at][other], other))
            else:
                asked.pop()
        if best is None:
            best = min(set(range(len(cosines))) - set(path))
        path.append(best)
        asked.append(best)
    return path
