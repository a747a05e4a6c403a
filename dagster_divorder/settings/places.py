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

WEB = ("https", "http")
"""Schemes of web servers, which are read only, as datasets of the Hugging Face Hub (hf) are."""

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
    """One name for each place: a path with links resolved, or the URL, of the Hub with its revision."""
    if not is_url(str(place)):
        return os.path.realpath(place)
    return re.sub(r"^(hf://datasets/[^/@]+/[^/@]+)(?=/|$)", r"\1@main", str(place))


def as_place(text: str) -> Place:
    """The place that a text names. URLs are not checked further."""
    return Url(text.rstrip("/")) if is_url(text) else Path(text)


def checked_url(text: str, *, written: bool = True) -> Url:
    """A checked URL. written: it is a prefix of an object store, without wildcards; else any source of input.

    Raises:
        ValueError: the URL has another scheme, no bucket, or parts that settings refuse, such as a password. The
            message does not repeat the URL.
    """
    match = _URL.fullmatch(text)
    schemes = OBJECT_STORES if written else (*OBJECT_STORES, "hf", *WEB)
    if not match or match[1] not in schemes:
        known = ", ".join(f"{scheme}://" for scheme in schemes)
        raise ValueError(f"expected a {'folder' if written else 'path'}, or a URL that begins with {known}")
    scheme, name, path = match.groups()
    web = scheme in WEB
    expected = f"expected {scheme}://{'host/path' if web else 'bucket/prefix'}"
    if "@" in name or (":" in name and not web):
        raise ValueError(
            f"{expected}, without user{' and password' if web else ', password or port'}: give credentials and "
            "endpoint in the environment (such as AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL, HF_TOKEN)"
        )
    if web and re.search("[?#]", path):
        raise ValueError(f"{expected}, without query or fragment, which may hold secrets")
    if written and re.search(r"[\s%?#\\\x00-\x1f*\[\]]", name + path):
        raise ValueError(f"{expected}, without query, fragment, wildcard, space or escape")
    parts = [name, *path.rstrip("/").split("/")[1:]]
    if not all(parts) or not {".", ".."}.isdisjoint(parts):
        raise ValueError(f"{expected}, without empty parts, '.' or '..'")
    return Url(f"{scheme}://{'/'.join(parts)}")


def check_source(path: str) -> None:
    """Check an entry of `input.paths`: a path, or a URL of a source, with or without wildcards (ValueError)."""
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
