"""Places of files: a local folder, or the URL of a prefix in an object store.

URLs hold no credentials. Credentials and endpoints come from the provider's environment variables, so that no settings
file or log holds a secret.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import PlainValidator

OBJECT_STORES = ("s3", "gs", "az")
"""Schemes of object stores: Amazon's, Google's and Microsoft's interfaces."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)(.*)", re.DOTALL)


class Url(str):
    """A checked URL without credentials, query or final slash: `scheme://name/path`."""

    __slots__ = ()

    @property
    def scheme(self) -> str:
        return self.partition("://")[0]

    def __truediv__(self, name: str) -> Self:
        return type(self)(f"{self}/{name}")


Place = Path | Url


def is_url(text: str) -> bool:
    """Whether a text is a URL of any scheme, not a path."""
    return _URL.match(text) is not None


def real_place(place: Place | str) -> str:
    """One name for each place: a path with links resolved, or the URL."""
    return str(place) if is_url(str(place)) else os.path.realpath(place)


def as_place(text: str) -> Place:
    """The place that a text names. URLs are not checked further."""
    return Url(text.rstrip("/")) if is_url(text) else Path(text)


def checked_url(text: str, *, written: bool = True) -> Url:
    """A checked URL of an object store. written: it is a prefix without wildcards.

    Raises:
        ValueError: the URL has another scheme, no bucket, or parts that settings refuse, such as a password. The
            message does not repeat the URL.
    """
    match = _URL.fullmatch(text)
    if not match or match[1] not in OBJECT_STORES:
        known = ", ".join(f"{scheme}://" for scheme in OBJECT_STORES)
        raise ValueError(f"expected a {'folder' if written else 'path'}, or a URL that begins with {known}")
    scheme, name, path = match.groups()
    expected = f"expected {scheme}://bucket/prefix"
    if "@" in name or ":" in name:
        raise ValueError(
            f"{expected}, without user, password or port: give credentials and endpoint in the environment (such as "
            "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL)"
        )
    if written and re.search(r"[\s%?#\\\x00-\x1f*\[\]]", name + path):
        raise ValueError(f"{expected}, without query, fragment, wildcard, space or escape")
    parts = [name, *path.rstrip("/").split("/")[1:]]
    if not all(parts) or not {".", ".."}.isdisjoint(parts):
        raise ValueError(f"{expected}, without empty parts, '.' or '..'")
    return Url(f"{scheme}://{'/'.join(parts)}")


_FETCHED = {
    "hf": "`hf download OWNER/NAME --repo-type dataset --local-dir FOLDER`",
    "https": "`curl --remote-name URL`",
    "http": "`curl --remote-name URL`",
}
"""Scheme -> what fetches such input."""


def check_source(path: str) -> None:
    """Check an entry of `input.paths`: a path, or a URL of an object store, with or without wildcards (ValueError)."""
    if fetched := _FETCHED.get(path.partition("://")[0] if is_url(path) else ""):
        raise ValueError(
            f"expected a path, or a URL of an object store; fetch such input with {fetched} first"
        )
    if is_url(path):
        checked_url(path, written=False)


def why_unusable(path: str) -> str | None:
    """Why no file can have this path; None if one can."""
    try:
        os.fsencode(path)
        path.encode()
    except UnicodeEncodeError:
        return (
            f"the path {path!a} has letters outside {sys.getfilesystemencoding()}, the encoding of file names here, or "
            "is not valid UTF-8; rename it, or set PYTHONUTF8=1"
        )
    return None


def id_and_revision(model: str) -> tuple[str, str | None]:
    """(model, revision) of a setting such as `org/name@revision`; None without a revision."""
    name, _, revision = model.partition("@")
    return (model, None) if os.path.isabs(model) or not revision else (name, revision)


def no_empty_path(value: Any) -> Any:
    """Refuses empty paths, which would mean the working directory. value: one path or several."""
    for path in [value] if isinstance(value, (str, Path)) else value or ():
        if not str(path).strip() or path == Path() or "\0" in str(path):
            raise ValueError("the path is empty or contains a NUL; give the path of a file or folder")
    return value


def _place(value: Any) -> Place:
    if not isinstance(value, (str, Path)):
        raise ValueError("expected the path of a folder, or a URL")
    if not isinstance(value, str) or not is_url(value):
        return Path(no_empty_path(value))
    if value.startswith("hf://"):
        raise ValueError(
            "expected a folder, or a URL that begins with s3://, gs:// or az://; a finished output is sent to the Hub "
            "with `hf upload OWNER/NAME FOLDER . --repo-type dataset`"
        )
    return checked_url(value)


WrittenPlace = Annotated[Place, PlainValidator(_place)]
"""A folder, or a prefix of an object store."""
