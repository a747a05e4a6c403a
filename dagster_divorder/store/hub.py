"""Datasets of the Hugging Face Hub by URL, `hf://datasets/owner/name[@revision][/path]`: commits and files.

Endpoint and token are huggingface_hub's: HF_ENDPOINT, HF_TOKEN, or the token of `hf auth login`. All reads use one
commit. A slash in a revision is written %2F.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from dagster_divorder.errors import InputError
from dagster_divorder.store.disk import DISK_FULL

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_URL = re.compile(r"hf://datasets/([\w.-]+/[\w.-]+)(?:@([^/]+))?(?:/(.*))?", re.DOTALL)


class Dataset(NamedTuple):
    """A dataset `owner/name`, a revision of it, and a path in it ("" for all of it)."""

    name: str
    revision: str
    path: str


def dataset(url: str) -> Dataset:
    """
    Raises:
        InputError: the URL names no dataset.
    """
    match = _URL.fullmatch(url)
    if not match:
        raise InputError(
            f"{url} names no dataset of the Hub; expected hf://datasets/owner/name, perhaps with @revision, and a path"
        )
    return Dataset(match[1], unquote(match[2] or "main"), (match[3] or "").strip("/"))


def api() -> HfApi:
    from huggingface_hub import HfApi

    return HfApi(endpoint=os.environ.get("HF_ENDPOINT"))


@contextlib.contextmanager
def explained(url: str) -> Iterator[None]:
    """Turns errors of huggingface_hub into InputError.

    Raises:
        RemoteEntryNotFoundError: there is no such file or folder, unchanged.
        OSError: the disk is full, unchanged.
    """
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        HTTPError,
        RemoteEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        yield
    except RemoteEntryNotFoundError:
        raise
    except RevisionNotFoundError:
        raise InputError(
            f"{url}: the dataset has no revision {dataset(url).revision!r}; name an existing one"
        ) from None
    except RepositoryNotFoundError:
        raise InputError(
            f"{url}: there is no dataset {dataset(url).name} on the Hub, or your token may not read it; check the "
            f"name, HF_TOKEN (or `hf auth login`) and the dataset's terms"
        ) from None
    except HfHubHTTPError as error:
        status = error.response.status_code
        hint = "; the token in HF_TOKEN may not do this" if status in (401, 403) else "; run again later"
        raise InputError(f"{url}: the Hub answered {status}{hint}") from None
    except HFValidationError as error:
        raise InputError(f"{url}: this name is not allowed for a dataset: {error}") from None
    except (HTTPError, OSError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            raise
        raise InputError(
            f"{url}: the Hub cannot be reached: {error}; check the network, HF_ENDPOINT and HF_HUB_OFFLINE"
        ) from None


def commit_of(url: str) -> str:
    """The current commit of a URL's revision.

    Raises:
        InputError: there is no such dataset or revision, or the Hub cannot be reached.
    """
    parsed = dataset(url)
    with explained(url):
        return str(api().dataset_info(parsed.name, revision=parsed.revision).sha)


def fetch(url: str, commit: str, folder: Path) -> Path:
    """Fetches a file of a commit into a folder; returns its path there.

    Raises:
        InputError: the Hub cannot be read from.
        FileNotFoundError: there is no such file.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import RemoteEntryNotFoundError

    parsed = dataset(url)
    try:
        with explained(url):
            path = hf_hub_download(
                parsed.name,
                parsed.path,
                repo_type="dataset",
                revision=commit,
                local_dir=folder,
                endpoint=api().endpoint,
            )
    except RemoteEntryNotFoundError:
        raise FileNotFoundError(url) from None
    return Path(path)
