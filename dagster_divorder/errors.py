"""Every error that this package raises on purpose.

    DivOrderError
    ├── SettingsError    a setting has an unknown key, a wrong type or an impossible value
    ├── InputError       a corpus, a model directory or an argument cannot be used
    ├── StoreError       a stored file is damaged, from another version, or cannot be written
    │   ├── StoreBusyError     another run holds the store's lock
    │   ├── DamagedFileError   a file that a run can make again is missing or altered
    │   └── DiskFullError      the disk is full
    ├── WorkerError      a worker process died
    └── MissingStageError      a needed stage has not run yet

A message names the value, the expectation and the remedy. It never holds a URL's secrets, and it escapes control
characters of quoted texts.
"""

import re

_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters except tab and line feed, characters that turn the direction of a line, and lone surrogates."""


def printable(text: str) -> str:
    """The text with characters escaped that could move a terminal's cursor or reorder a line. The escapes are valid in
    JSON and TOML, so printed settings keep their values."""
    return _CONTROLS.sub(lambda control: f"\\u{ord(control[0]):04x}", text)


_USER = re.compile(r"(?<=://)[^/?#\s]*@")
_QUERY = re.compile(
    r"(?<=\?)(?<!\s\?)[^\s'\"?]*(?:sig|signature|token|credential|key|password|secret)=[^\s'\"]*",
    re.IGNORECASE,
)
_WEB_QUERY = re.compile(r"(https?://[^\s'\"?]*\?)[^\s'\"]*")


def without_secrets(text: str) -> str:
    """The text without users, passwords and signed queries in its URLs, for messages, logs and results."""
    return _WEB_QUERY.sub(r"\1...", _QUERY.sub("...", _USER.sub("...@", text)))


class DivOrderError(Exception):
    """Base of all errors of this package."""

    def __init__(self, message: object = "", *more: object) -> None:
        super().__init__(without_secrets(message) if isinstance(message, str) else message, *more)

    def __str__(self) -> str:
        return printable(super().__str__())


class SettingsError(DivOrderError, ValueError):
    """A setting cannot be used."""


class InputError(DivOrderError, ValueError):
    """Data, a model or an argument cannot be used."""


class StoreError(DivOrderError):
    """The store, or a file in it, cannot be used."""


class StoreBusyError(StoreError):
    """Another run holds the store's lock."""


class DamagedFileError(StoreError):
    """A file of the store is missing or altered; after its removal the next run makes it again.

    `name` is its name in the store.
    """

    # The default is for exceptions of other processes: pickle makes them from the message alone.
    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class DiskFullError(StoreError):
    """The disk is full. Earlier files are complete, and a later run continues from them."""


class WorkerError(DivOrderError):
    """A worker process died. Finished fragments are kept."""


class MissingStageError(DivOrderError):
    """A needed stage has not run yet."""
