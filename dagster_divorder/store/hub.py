"""Datasets of the Hugging Face Hub by URL, `hf://datasets/owner/name[@revision][/path]`: commits, and parts of files.

Endpoint and token are huggingface_hub's: HF_ENDPOINT, HF_TOKEN, or the token of `hf auth login`. All reads use one
commit. A slash in a revision is written %2F.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from dagster_divorder.errors import DivOrderError, InputError

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
def explained(url: str, error_class: type[DivOrderError] = InputError) -> Iterator[None]:
    """Turns errors of huggingface_hub into errors of this package.

    Raises:
        EntryNotFoundError: there is no such file or folder, unchanged.
    """
    from huggingface_hub.errors import (
        EntryNotFoundError,
        HfHubHTTPError,
        HFValidationError,
        HTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        yield
    except EntryNotFoundError:
        raise
    except RevisionNotFoundError:
        raise error_class(
            f"{url}: the dataset has no revision {dataset(url).revision!r}; name an existing one"
        ) from None
    except RepositoryNotFoundError:
        raise error_class(
            f"{url}: there is no dataset {dataset(url).name} on the Hub, or your token may not read it; check the "
            f"name, HF_TOKEN (or `hf auth login`) and the dataset's terms"
        ) from None
    except HfHubHTTPError as error:
        status = error.response.status_code
        hint = "; the token in HF_TOKEN may not do this" if status in (401, 403) else "; run again later"
        raise error_class(f"{url}: the Hub answered {status}{hint}") from None
    except HFValidationError as error:
        raise error_class(f"{url}: this name is not allowed for a dataset: {error}") from None
    except (HTTPError, OSError, RuntimeError) as error:
        raise error_class(
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


def fetch(url: str, commit: str, start: int, end: int) -> bytes:
    """Bytes [start, end) of a file of a commit.

    Raises:
        InputError: the Hub cannot be read from.
        FileNotFoundError: there is no such file.
    """
    from huggingface_hub import hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_backoff

    parsed = dataset(url)
    at = hf_hub_url(parsed.name, parsed.path, repo_type="dataset", revision=commit, endpoint=api().endpoint)
    try:
        with explained(url):
            answer = http_backoff(
                "GET", at, headers={**build_hf_headers(), "range": f"bytes={start}-{end - 1}"}, timeout=60
            )
            hf_raise_for_status(answer)
    except EntryNotFoundError:
        raise FileNotFoundError(url) from None
    return answer.content
