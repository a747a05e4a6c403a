"""Object stores by URL: what their errors mean, and that no secret is repeated."""

from __future__ import annotations

import sys

import pytest
from obstore.exceptions import AlreadyExistsError, GenericError, PermissionDeniedError, PreconditionError

from dagster_divorder.errors import DiskFullError, InputError, StoreError
from dagster_divorder.store.remote import connect, explain, explained

URL = "s3://bucket/prefix"


def answered(status: int, code: str = "", query: str = "") -> str:
    """A message as obstore's are."""
    body = (
        f'<?xml version="1.0"?>\n<Error><Code>{code}</Code><Message>Sesame99</Message></Error>'
        if code
        else ""
    )
    return (
        f"Generic S3 error: Error performing GET http://host:1/bucket/a{query} in 5.3ms - Server returned non-2xx "
        f"status code: {status} Something: {body}\n\nDebug source:\nGeneric {{ signature: Sesame99 }}"
    )


@pytest.mark.parametrize(
    ("message", "parts"),
    [
        (
            answered(403, "InvalidAccessKeyId"),
            ["InvalidAccessKeyId", "AWS_ACCESS_KEY_ID", "credentials are wrong"],
        ),
        (answered(403, "SignatureDoesNotMatch"), ["SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY"]),
        (answered(403, "RequestTimeTooSkewed"), ["RequestTimeTooSkewed", "clock", "NTP"]),
        (answered(404, "NoSuchBucket"), ["no bucket 'bucket'", "make it"]),
        (answered(404), ["404", "no such bucket or endpoint"]),
        (answered(503, "SlowDown"), ["SlowDown", "overloaded"]),
        (answered(500, "InternalError"), ["InternalError", "see to the server (is it full?)"]),
        (answered(507), ["no space left for s3://bucket/prefix", "quota"]),
        (answered(403, "QuotaExceeded"), ["no space left", "QuotaExceeded"]),
        (answered(418, query="?X-Amz-Signature=Sesame99"), ["418", "not expected"]),
        (
            "Generic S3 error: Error performing GET http://127.0.0.1:1/b?sig=Sesame99 in 1s, after 3 retries - HTTP "
            "error: error sending request\n\nDebug source:\nSesame99",
            ["cannot be reached", "AWS_ENDPOINT_URL", "error sending request"],
        ),
        (
            "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 3s - HTTP error",
            ["no credentials were found", "AWS_ACCESS_KEY_ID"],
        ),
    ],
)
def test_errors_say_what_to_do_and_no_secret(message: str, parts: list[str]) -> None:
    explanation = explain(GenericError(message), URL)
    assert URL in explanation and "Sesame99" not in explanation
    assert all(part in explanation for part in parts), explanation


def test_errors_become_ours_and_conditions_stay_what_they_are() -> None:
    with pytest.raises(InputError, match="AccessDenied") as caught, explained(URL, InputError):
        raise PermissionDeniedError(answered(403, "AccessDenied"))
    assert caught.value.__suppress_context__
    with pytest.raises(DiskFullError), explained(URL):
        raise GenericError(answered(507))
    with pytest.raises(StoreError, match="no bucket"), explained(URL):
        raise FileNotFoundError(answered(404, "NoSuchBucket"))
    for condition in (AlreadyExistsError, PreconditionError, FileNotFoundError):
        with pytest.raises(condition), explained(URL):
            raise condition(answered(412, "PreconditionFailed"))


def test_connecting_asks_for_nothing_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "Sesame99")
    with pytest.raises(
        InputError, match="Missing AccessKeyId; see to its variables, such as AWS_ACCESS_KEY_ID"
    ):
        connect(URL)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    assert "Sesame99" not in repr(connect(URL))
    with pytest.raises(InputError, match="AZURE_STORAGE_ACCOUNT_NAME"):
        connect("az://container/prefix")
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(InputError, match=r"pip install 'dagster-divorder\[objects\]'"):
        connect(URL)
