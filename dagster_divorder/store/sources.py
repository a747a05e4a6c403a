"""Input files: local, or at a URL of an object store, a web server or the Hugging Face Hub.

A source is a `Path` or a `RemoteFile`. Both have `name`, `suffix` and `str()`, and `open_source` opens a raw, seekable
file. A RemoteFile is one version of a file. Its tag names the version: the ETag; size and date if the server gives no
ETag; the blob on the Hub.

Datasets of the Hub have URLs `hf://datasets/owner/name[@revision][/path]`; a slash in a revision is written %2F. All
reads use one commit. Endpoint and token are huggingface_hub's: HF_ENDPOINT, HF_TOKEN, or the token of `hf auth login`.

Opening a RemoteFile fetches it whole into the temporary folder (TMPDIR), or raises InputError if its tag has changed.
A process keeps the file that it fetched last: columns, first records and then all records of a file take one fetch.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from dagster_divorder.errors import InputError
from dagster_divorder.extras import load_extra
from dagster_divorder.store.disk import DISK_FULL, explaining_full_disk, temporary_folder
from dagster_divorder.store.remote import RETRY_SECONDS, connect, explained
from dagster_divorder.units import SETTLED_NS

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

PIECE_BYTES = 8 << 20
WEB = ("http", "https")
"""Schemes of web servers."""
_HUB = re.compile(r"hf://datasets/([\w.-]+/[\w.-]+)(?:@([^/]+))?(?:/(.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A version of a file at a URL. size: bytes. tag: names the version. commit: only on the Hub. modified: elsewhere,
    the time of writing in seconds since 1970."""

    url: str
    size: int
    tag: str
    commit: str = ""
    modified: float = 0.0

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        return PurePosixPath(self.url).name

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.url).suffix

    def fetch(self, folder: Path) -> Path:
        """Fetches the file into a folder; returns its path there. Raises InputError: the file has changed, or
        reading from the server fails; FileNotFoundError: the file is gone; DiskFullError: the folder is full."""
        with explaining_full_disk(folder, self.size, f"a copy of {self.url}"):
            if self.commit:
                name, _, path = dataset(self.url)
                at: dict[str, Any] = {"repo_type": "dataset", "revision": self.commit}
                with explained_hub(self.url):
                    return Path(hub().hf_hub_download(name, path, local_dir=folder, **at))
            with explained(self.url, InputError), open(folder / "copy", "wb") as file:
                self._stream(file)
            return folder / "copy"

    def _stream(self, file: IO[bytes]) -> None:
        obstore, (store, key) = load_extra("obstore"), bucket(self.url)
        changed = InputError(
            f"{self.url} was changed since it was listed; run again when nothing writes to it"
        )
        # Weak tags, W/"...", and tags of size and date match no condition; the answer's tag is compared too.
        is_strong = not self.tag.startswith("W/") and " bytes of " not in self.tag
        try:
            answer = obstore.get(store, key, options={"if_match": f'"{self.tag}"'} if is_strong else {})
        except obstore.exceptions.PreconditionError:
            raise changed from None
        if _tag(answer.meta) != self.tag:
            raise changed
        for part in answer.stream(min_chunk_size=PIECE_BYTES):
            file.write(part)


class _Copy:
    """A file at a URL on this machine's disk."""

    def __init__(self, file: RemoteFile) -> None:
        self.path = file.fetch(temporary_folder(self))


_copy = functools.lru_cache(maxsize=1)(_Copy)

Source = Path | RemoteFile


def open_source(source: Source) -> io.FileIO:
    """A raw, seekable file. Raises OSError: a local file cannot be opened, or a file at a URL is gone; InputError,
    DiskFullError: see `RemoteFile.fetch`."""
    if isinstance(source, Path):
        return open(source, "rb", buffering=0)
    copy = _copy(source)  # stays while it is opened, whatever another thread fetches
    return open(copy.path, "rb", buffering=0)


def identity(source: Source) -> tuple[int | str, ...]:
    """Values that differ once a file is changed or replaced; the size comes first. Raises OSError: a local file
    cannot be inspected."""
    if isinstance(source, RemoteFile):
        return source.size, source.tag
    status = os.stat(source)
    # Programs cannot set the change time, so it reveals a replaced file that has the old modification time.
    return status.st_size, status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def settled_identity(file: Path) -> tuple[int | str, ...] | None:
    """`identity` of a local file; None if it is missing, or so young that a later write may not change its times."""
    with contextlib.suppress(OSError):
        *_, changed = found = identity(file)
        if int(changed) <= time.time_ns() - SETTLED_NS:
            return found
    return None


def described(url: str, meta: ObjectMeta) -> RemoteFile:
    """The file at a URL, from a server's description."""
    return RemoteFile(url, meta["size"], _tag(meta), modified=meta["last_modified"].timestamp())


def _tag(meta: ObjectMeta) -> str:
    """A tag without quotes: Azure's lists have none, but Azure's other answers do."""
    tag = meta["e_tag"]
    if not tag:
        return f"{meta['size']} bytes of {meta['last_modified']:%Y-%m-%dT%H:%M:%S}"
    return tag if tag.startswith("W/") else tag.strip('"')


def bucket(url: str, retry_seconds: float = RETRY_SECONDS) -> tuple[ObjectStore, str]:
    """The bucket or server of a URL, and the key in it. Connections are reused, since opening one takes about 20 ms.
    retry_seconds, and errors: as in `connect`."""
    parts = urlsplit(url)
    # Object store keys are not quoted.
    key = unquote(parts.path) if parts.scheme in WEB else url.partition("://")[2].partition("/")[2]
    pairs = tuple(item for item in os.environ.items() if item[0].startswith(("AWS_", "AZURE_", "GOOGLE_")))
    return _connected(f"{parts.scheme}://{parts.netloc}", os.getpid(), pairs, retry_seconds), key.strip("/")


@functools.lru_cache(maxsize=16)
def _connected(
    origin: str, process: int, environment: tuple[tuple[str, str], ...], retry_seconds: float
) -> ObjectStore:
    return connect(origin, retry_seconds)


class Dataset(NamedTuple):
    """A dataset `owner/name`, a revision of it, and a path in it ("" for all of it)."""

    name: str
    revision: str
    path: str


def dataset(url: str) -> Dataset:
    """Raises InputError: the URL names no dataset."""
    match = _HUB.fullmatch(url)
    if not match:
        raise InputError(
            f"{url} names no dataset of the Hub; expected hf://datasets/owner/name, perhaps with @revision, and a path"
        )
    return Dataset(match[1], unquote(match[2] or "main"), (match[3] or "").strip("/"))


def hub() -> HfApi:
    from huggingface_hub import HfApi

    return HfApi(endpoint=os.environ.get("HF_ENDPOINT"))


@contextlib.contextmanager
def explained_hub(url: str) -> Iterator[None]:
    """Turns errors of huggingface_hub into InputError. Raises FileNotFoundError: there is no such file or folder;
    OSError: the disk is full, unchanged."""
    from huggingface_hub import errors

    try:
        yield
        return
    except errors.RemoteEntryNotFoundError:
        raise FileNotFoundError(url) from None
    except errors.RevisionNotFoundError:
        why = f"the dataset has no revision {dataset(url).revision!r}; name an existing one"
    except errors.RepositoryNotFoundError:
        why = (
            f"there is no dataset {dataset(url).name} on the Hub, or your token (HF_TOKEN, `hf auth login`) may not "
            "read it; check both, and the dataset's terms"
        )
    except errors.HfHubHTTPError as error:
        why = (
            f"the Hub answered {error.response.status_code}; check the token in HF_TOKEN, or run again later"
        )
    except (errors.HFValidationError, errors.HTTPError, OSError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            raise
        why = (
            f"the Hub cannot be reached: {error}; check the name, the network, HF_ENDPOINT and HF_HUB_OFFLINE"
        )
    raise InputError(f"{url}: {why}")
