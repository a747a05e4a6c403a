"""The JSON of a record: as orjson reads it, and the two things that are commonly written and that it does not read.

`NaN` and `Infinity`, which Python's json writes for such floats, are no JSON: they are read as null, so that a record
is not lost for a number that nobody uses. Whole numbers beyond 64 bits, which orjson makes floats of, keep their digits
where `with_exact_integers` is asked for.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_NO_NUMBER = re.compile(_STRING + rb"|-?\b(?:NaN|Infinity)\b", re.DOTALL)
_LARGE = re.compile(_STRING + rb"|(?<![\d.eE+-])-?\d{19,}(?![\d.eE])", re.DOTALL)


def parse(line: bytes) -> Any:
    """The JSON value of a line.

    Raises:
        orjson.JSONDecodeError: it is none.
    """
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        if b"NaN" not in line and b"Infinity" not in line:
            raise
        # A string stays as it is: what it holds must not be taken for such a literal.
        return orjson.loads(_NO_NUMBER.sub(lambda found: found[0] if found[0][:1] == b'"' else b"null", line))


def with_exact_integers(line: bytes) -> bytes:
    """The same line with whole numbers of 19 digits and more as strings."""
    return _LARGE.sub(lambda found: found[0] if found[0][:1] == b'"' else b'"%s"' % found[0], line)
