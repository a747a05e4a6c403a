"""Every error this package raises on purpose.

    DivOrderError
    ├── SettingsError    a setting has an unknown key, a wrong type or an impossible value
    ├── InputError       a corpus, a model directory or an argument cannot be used as it is
    │   ├── RejectLimitError   more records were refused than input.max_reject_share allows
    │   └── MissingPackageError   a package of an extra is not installed
    ├── StoreError       a stored file is damaged, from another version, or cannot be written
    │   ├── StoreBusyError     another run holds the store's lease
    │   ├── LeaseLostError     another run has taken it over from this one
    │   ├── DamagedFileError   a file that can be made again is missing or not what was written
    │   └── DiskFullError      the disk is full
    ├── WorkerError      a worker process died
    ├── MemoryLimitError   memory, or what a process is allowed of it, does not suffice
    └── MissingStageError      a result is asked for before the stage that makes it has run

A message names the value found, what was expected, and what to do about it. It never holds what is secret in a URL, and
what it quotes may be anybody's: control characters of it are shown as escapes.
"""

import re

_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters but for tab and line feed, those that turn the direction of a line, and halves of characters."""


def printable(text: str) -> str:
    """A text that a terminal only shows: no file name, field or id in it moves the cursor or reorders a line. What
    would is written as JSON and TOML escape it, so that printed settings stay what they are."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


_USER = re.compile(r"(?<=://)[^/?#\s]*@")
_QUERY = re.compile(
    r"(?<=\?)(?<!\s\?)[^\s'\"?]*(?:sig|signature|token|credential|key|password|secret)=[^\s'\"]*",
    re.IGNORECASE,
)
_WEB_QUERY = re.compile(r"(https?://[^\s'\"?]*\?)[^\s'\"]*")


def without_secrets(text: str) -> str:
    """A text whose URLs have no user, password or signed query: what reaches a message, a log or a result of a URL that
    is not one of checked settings."""
    return _WEB_QUERY.sub(r"\1...", _QUERY.sub("...", _USER.sub("...@", text)))


class DivOrderError(Exception):
    """Base of every error of this package."""

    def __init__(self, message: object = "", *more: object) -> None:
        super().__init__(without_secrets(message) if isinstance(message, str) else message, *more)

    def __str__(self) -> str:
        return printable(super().__str__())


class SettingsError(DivOrderError, ValueError):
    """A setting cannot be used."""


class InputError(DivOrderError, ValueError):
    """Data, a model or an argument handed in cannot be used."""


class RejectLimitError(InputError):
    """The share of refused records exceeds `input.max_reject_share`."""


class MissingPackageError(InputError):
    """What is asked for needs a package that is not installed; the message says how to install it."""


class StoreError(DivOrderError):
    """The store, or a file in it, cannot be used."""


class StoreBusyError(StoreError):
    """Another run holds the store's lease."""


class LeaseLostError(StoreError):
    """This run was silent for so long that another one has taken the store over; it publishes nothing any more."""


class DamagedFileError(StoreError):
    """A file of the store is missing or not what was written. A run makes it again, so it is not the end of one.

    `name` is its name in the store.
    """

    # A default, since an exception that comes from another process is made with the message alone.
    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class DiskFullError(StoreError):
    """The disk is full. What was there is whole, and a run after some space is freed goes on from there.

    `row_bytes`: of the result that did not fit, where it is one of many.
    """

    row_bytes = 0.0


class WorkerError(DivOrderError):
    """A worker process died. Finished fragments are kept."""


class MemoryLimitError(DivOrderError):
    """Memory, or what this process is allowed of it, does not suffice. Finished fragments are kept."""


class MissingStageError(DivOrderError):
    """A stage's result is needed and not there yet."""
