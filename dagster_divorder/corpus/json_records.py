"""JSON as orjson reads it, plus two common cases that orjson does not read.

`NaN` and `Infinity`, which Python's json writes for such floats, are not JSON. They are read as null, so that no record
is lost for a number that nobody uses. orjson turns whole numbers beyond 64 bits into floats; `with_exact_integers`
keeps their digits.
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
        orjson.JSONDecodeError: the line is not JSON.
    """
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        if b"NaN" not in line and b"Infinity" not in line:
            raise
        # Strings match too and stay unchanged: words in them are not literals.
        return orjson.loads(_NO_NUMBER.sub(lambda match: match[0] if match[0][:1] == b'"' else b"null", line))


def with_exact_integers(line: bytes) -> bytes:
    """The line with whole numbers of 19 digits and more as strings."""
    return _LARGE.sub(lambda match: match[0] if match[0][:1] == b'"' else b'"%s"' % match[0], line)
