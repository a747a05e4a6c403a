"""Texts to token ids, with the fastest engine that is proved to give the reference's ids.

Letters: n texts, T tokens.
Guarantee: the ids of Hugging Face `tokenizers` without special tokens, truncation, padding or BPE dropout; special
tokens spelled out in a text are text. The same ids for any number of threads, processes and any division into calls.
Cost (mixture.jsonl on 2 cores): gigatoken some 110 MB/s for text not seen before, `tokenizers` 2.6. Memory: 4 bytes a
token beside the result, and up to BATCH_CHARACTERS of text in `tokenizers`' own objects.
Sources: gigatoken (Roed 2026); tokenizers (Hugging Face). Known weakness: gigatoken has no WordPiece or
Unigram.

Both use threads of their own, which RAYON_NUM_THREADS limits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dagster_divorder.engine.memory import is_out_of_memory
from dagster_divorder.errors import InputError
from dagster_divorder.models.checkpoint import TOKENIZER, read_object
from dagster_divorder.models.conformance import conformance_texts

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Engine = Literal["gigatoken", "tokenizers"]
Ids = tuple[NDArray[np.unsignedinteger], NDArray[np.int64]]
"""Ids of all texts end to end, (T,), and the number of each, int64 (n,)."""

Encode = Callable[["Sequence[bytes] | pa.Array"], Ids]
"""Of texts in UTF-8, one or more."""

SAMPLE_BYTES = 1 << 20
"""Of the corpus sample, this much is compared: half a second of the reference."""

SPECIALS = ("eos", "bos", "pad")
"""What ends a text, what begins it and what fills up a row."""
NAMES_IN = ("tokenizer_config.json", "special_tokens_map.json")
IDS_IN = ("generation_config.json", "config.json")
"""Files that name special tokens (`eos_token`), and files that give their ids (`eos_token_id`)."""

MAX_IDS = 1 << 24
"""No vocabulary is near it, and both engines still load one in seconds."""

BATCH_CHARACTERS = 1 << 20
"""`tokenizers` keeps some 100 bytes a token until a batch is read out."""


class Named(NamedTuple):
    """A special token as a file names it under a key: by the token, or by its id."""

    file: Path
    key: str
    value: str | int


class Encoder:
    """A tokenizer and the engine that runs it.

    `engine`, and `reason` why it is that one; `vocab_size`, one more than the largest id; `id_dtype`, uint16
    where every id fits, else uint32; `note`, what of tokenizer.json is off here and has to be said, or "".
    """

    def __init__(
        self,
        content: Mapping[str, Any],
        tokens: Mapping[str, int],
        encode: Encode,
        engine: Engine,
        reason: str,
    ) -> None:
        self._encode = encode
        self.engine = engine
        self.reason = reason
        self.vocab_size = 1 + max(tokens.values(), default=-1)
        self.id_dtype = np.dtype(np.uint16 if self.vocab_size <= 1 << 16 else np.uint32)
        dropout = content["model"].get("dropout")
        self.note = (
            f"tokenizer.json has BPE dropout {dropout}, which cuts a text into other tokens each time; it is off here"
            if dropout
            else ""
        )

    def encode(self, texts: Sequence[str] | pa.Array) -> Ids:
        """Ids as id_dtype. An Arrow array, large_string (n,) without nulls, is read where it lies.

        InputError for a text that is not valid Unicode (a lone surrogate).
        """
        if not len(texts):
            return np.empty(0, self.id_dtype), np.empty(0, np.int64)
        if not isinstance(texts, pa.Array):
            texts = _in_utf8(texts)
        ids, lengths = self._encode(texts)
        return ids.astype(self.id_dtype), lengths


def _in_utf8(texts: Sequence[str]) -> list[bytes]:
    try:
        return [text.encode() for text in texts]
    except UnicodeEncodeError as error:
        at = next(at for at, text in enumerate(texts) if re.search("[\ud800-\udfff]", text))
        raise InputError(
            f"text {at} of {len(texts)} holds a lone surrogate ({error.reason}); expected valid Unicode: "
            "replace it with text.encode('utf-8', 'replace').decode()"
        ) from error


def load_encoder(
    directory: Path | str,
    engine: Literal["auto", "gigatoken", "tokenizers"] = "auto",
    *,
    sample: Iterable[str] = (),
) -> Encoder:
    """The tokenizer of a checkpoint directory.

    `auto` takes gigatoken if it loads this tokenizer and gives the reference's ids on the conformance texts and
    on the first SAMPLE_BYTES of `sample`, else tokenizers. A named engine is taken as it is: workers name the
    one that `auto` found.

    Raises:
        InputError: no usable tokenizer.json, unknown engine, or gigatoken asked for by name and unable.
    """
    if engine not in ("auto", *get_args(Engine)):
        raise InputError(f"engine is {engine!r}; expected auto, {', '.join(get_args(Engine))}")
    directory = Path(directory)
    content = _content(directory)
    if engine == "gigatoken":
        try:
            fast = _gigatoken_encode(content)
            # Loading the reference for its vocabulary takes as long as tokenising a megabyte.
            added = {token["content"]: token["id"] for token in content.get("added_tokens") or []}
            tokens = {**added, **content["model"]["vocab"]}
        except Exception as error:
            raise InputError(
                f"gigatoken cannot run the tokenizer of {directory} ({error}); use tokenizers"
            ) from error
        return Encoder(content, tokens, fast, engine, "asked for")
    reference = _load_reference(directory)
    reference.encode_special_tokens = True
    tokens = reference.get_vocab(with_added_tokens=True)
    slow = _reference_encode(reference, directory)
    if engine == "tokenizers":
        return Encoder(content, tokens, slow, engine, "asked for")
    try:
        fast = _gigatoken_encode(content)
        texts = [
            *conformance_texts(token["content"] for token in content.get("added_tokens") or []),
            *capped(sample, SAMPLE_BYTES),
        ]
        reason = _difference(fast, slow, texts)
    except Exception as error:
        if is_out_of_memory(error):  # which engine a tokenizer has must not depend on that
            raise
        reason = f"gigatoken cannot run it: {str(error).partition(chr(10))[0]}"
    if reason:
        return Encoder(content, tokens, slow, "tokenizers", reason)
    return Encoder(content, tokens, fast, "gigatoken", f"gave the reference's ids on {len(texts):,} texts")


def _content(directory: Path) -> dict[str, Any]:
    """tokenizer.json, with ids that a table can have rows for: libraries make room for the largest one, or abort."""
    path = directory / TOKENIZER
    content = read_object(path)
    model, added = content.get("model"), content.get("added_tokens") or []
    objects = isinstance(added, list) and all(isinstance(token, dict) for token in added)
    if not isinstance(model, dict) or not objects:
        raise InputError(
            f"{path} is not a tokenizer that tokenizers can load; save it again with a recent transformers"
        )
    vocabulary = model.get("vocab")
    known = vocabulary.items() if isinstance(vocabulary, dict) else ()
    for token, number in (*known, *((token.get("content"), token.get("id")) for token in added)):
        if type(number) is not int or not 0 <= number < MAX_IDS:
            raise InputError(
                f"{path} gives the token {token!r} the id {number!r}; expected a whole number from 0 to "
                f"{MAX_IDS - 1:,}: fetch or save the model again"
            )
    return content


def load_reference(directory: Path) -> Tokenizer:
    """The tokenizer of a checkpoint as `tokenizers` runs it, with nothing on that would cut or lengthen a text, or draw
    its tokens at random.

    Raises:
        InputError: no usable tokenizer.json.
    """
    _content(directory)
    return _load_reference(directory)


def _load_reference(directory: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    with _explained(directory / TOKENIZER, "is not a tokenizer that tokenizers can load"):
        reference = Tokenizer.from_file(str(directory / TOKENIZER))
    reference.no_truncation()
    reference.no_padding()
    if getattr(reference.model, "dropout", None):
        reference.model.dropout = None
    return reference


@contextmanager
def _panics_as_errors() -> Iterator[None]:
    """A Rust panic, which is no Exception, becomes a RuntimeError."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ == "PanicException":
            raise RuntimeError(f"panic: {error}") from error
        raise


@contextmanager
def _explained(path: Path, what: str) -> Iterator[None]:
    """An error of tokenizers becomes an InputError, unless memory ran out."""
    try:
        with _panics_as_errors():
            yield
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise InputError(
            f"{path} {what} ({error}); save it again with a recent transformers, or update tokenizers"
        ) from error


def _reference_encode(reference: Tokenizer, directory: Path) -> Encode:
    def encode(texts: Sequence[bytes] | pa.Array) -> Ids:
        each: list[NDArray[np.uint32]] = []
        plain = texts.to_pylist() if isinstance(texts, pa.Array) else [text.decode() for text in texts]
        for batch in _batches(plain):
            with _explained(directory / TOKENIZER, "cannot encode a text"):
                found = reference.encode_batch_fast(batch, add_special_tokens=False)
            each += [np.array(encoding.ids, np.uint32) for encoding in found]
        return np.concatenate(each), np.fromiter(map(len, each), np.int64, len(each))

    return encode


def _gigatoken_encode(content: dict[str, Any]) -> Encode:
    """gigatoken without the special tokens, so that it cannot find them in a text."""
    import gigatoken

    plain = [token for token in content.get("added_tokens") or [] if not token["special"]]
    off = dict.fromkeys(("truncation", "padding", "post_processor"))
    content = {**content, **off, "added_tokens": plain, "model": {**content["model"], "dropout": None}}
    with _panics_as_errors():
        encode_batch = gigatoken.Tokenizer.from_json(json.dumps(content)).backend.encode_batch

    def encode(texts: Sequence[bytes] | pa.Array) -> Ids:
        import awkward

        with _panics_as_errors():
            found = encode_batch(awkward.from_arrow(texts) if isinstance(texts, pa.Array) else texts)
        return awkward.to_numpy(awkward.flatten(found)), awkward.to_numpy(awkward.num(found))

    return encode


def _difference(fast: Encode, slow: Encode, texts: list[str]) -> str:
    """Where two engines first differ, in words, or ""."""
    given = _in_utf8(texts)
    found, expected = (
        np.split(ids, np.cumsum(lengths)[:-1]) for ids, lengths in (encode(given) for encode in (fast, slow))
    )
    for text, one, other in zip(texts, found, expected, strict=True):
        if not np.array_equal(one, other):
            return f"gigatoken differs from tokenizers on {text[:60]!r}"
    return ""


def capped(texts: Iterable[str], limit: int) -> Iterator[str]:
    """The texts of the first `limit` bytes, the last one cut."""
    for text in texts:
        text = text[:limit]
        yield text
        limit -= len(text.encode(errors="replace"))
        if limit <= 0:
            break


def _batches(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Texts in parts of some BATCH_CHARACTERS."""
    part = np.cumsum([len(text) for text in texts]) // BATCH_CHARACTERS
    _, starts = np.unique(part, return_index=True)
    for first, last in pairwise([*starts.tolist(), len(texts)]):
        yield texts[first:last]


def token_spans(
    directory: Path, texts: Sequence[str]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Where the tokens of each text begin and end in it, in characters, int64 (tokens,) each. Tokens of one character,
    of which a byte-level tokenizer may make several, all have its place.

    Raises:
        InputError: tokenizer.json cannot be read, or cannot encode a text.
    """
    reference = _load_reference(directory)
    reference.encode_special_tokens = True
    for batch in _batches(texts):
        with _explained(directory / TOKENIZER, "cannot encode a text"):
            found = reference.encode_batch(batch, add_special_tokens=False)
        for encoding in found:
            spans = np.array(encoding.offsets, np.int64).reshape(-1, 2)
            yield spans[:, 0], spans[:, 1]


def named_specials(directory: Path, specials: Sequence[str] = SPECIALS) -> dict[str, list[Named]]:
    """Special tokens, such as `eos`, as a checkpoint's files name them: first what counts first.

    A name goes before an id. As transformers reads them, special_tokens_map.json goes before a tokenizer_config.json
    without `added_tokens_decoder`, and behind one that has it.

    Raises:
        InputError: no such folder, a damaged file, a name that is no token, an id that is no whole number.
    """
    if not directory.is_dir():
        raise InputError(
            f"{directory} is not there; expected the folder of model.base: run again, or bring it back"
        )
    contents = {
        file: read_object(directory / file) if (directory / file).is_file() else {}
        for file in (*NAMES_IN, *IDS_IN)
    }
    of_names = NAMES_IN if "added_tokens_decoder" in contents[NAMES_IN[0]] else NAMES_IN[::-1]
    return {
        special: [
            Named(directory / file, key, value)
            for key, files in ((f"{special}_token", of_names), (f"{special}_token_id", IDS_IN))
            for file in files
            if (value := _named(directory / file, key, contents[file].get(key))) is not None
        ]
        for special in specials
    }


def _named(path: Path, key: str, value: Any) -> str | int | None:
    """A token, or its id, as a file gives it under a key: added tokens are objects, and of several ids the first
    counts. None where it gives none, which older files write as "" or -1."""
    kind: type[int] | type[str] = int if key.endswith("_id") else str
    given = value
    if kind is int and isinstance(given, list):
        given = given[0] if given else None
    elif kind is str and isinstance(given, dict):
        given = given.get("content", given)
    if given in (None, "" if kind is str else -1):
        return None
    if isinstance(given, bool) or not isinstance(given, kind):
        expected = "the id of a token, a whole number" if kind is int else "a token"
        raise InputError(f"{path} gives {key} {json.dumps(value)}; expected {expected}, or null for none")
    return given


def special_ids(directory: Path) -> dict[str, int | None]:
    """Ids of the `eos`, `bos` and `pad` tokens of a tokenizer's directory (see `named_specials`), None of one that it
    does not name. An id of an ordinary token names none: it is a default of the model's class.

    Raises:
        InputError: tokenizer.json cannot be read, or lacks a token that is named; an id that no token has.
    """
    reference = load_reference(directory)
    tokens, added = reference.get_vocab(with_added_tokens=True), reference.get_added_tokens_decoder()
    return {
        special: next(
            (
                number
                for named in every
                if (number := _id_of(named, tokens, directory / TOKENIZER)) in added
                or isinstance(named.value, str)
            ),
            None,
        )
        for special, every in named_specials(directory).items()
    }


def _id_of(named: Named, tokens: Mapping[str, int], path: Path) -> int:
    """The id of a special token; `tokens` are those of the tokenizer.json at `path`."""
    if isinstance(named.value, str):
        if named.value in tokens:
            return tokens[named.value]
        raise InputError(
            f"{named.file} gives {named.key} {named.value!r}, which {path} does not have; add it there as a special "
            "token (and a row to the model's embedding), or name one of its tokens"
        )
    if named.value in tokens.values():
        return named.value
    raise InputError(
        f"{named.file} gives {named.key} {named.value}, which no token of {path} has; expected an id from 0 to "
        f"{max(tokens.values(), default=-1):,}: correct it there, or set it to null and name the token in {NAMES_IN[0]}"
    )
