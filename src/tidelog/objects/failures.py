"""What a store's failure is told as: one error, with the URL, the key and the next step."""

import re
from typing import Final

from tidelog.errors import StorageFailure

_QUERY: Final = re.compile(r"\?[^\s\"')]+")
_REASON_LIMIT: Final = 300

_CREDENTIALS: Final = {
    "s3": "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and AWS_REGION,"
    " or set AWS_PROFILE",
    "gs": "check GOOGLE_APPLICATION_CREDENTIALS",
    "az": "check AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_ENDPOINT: Final = {
    "s3": "check the bucket's name, AWS_REGION and AWS_ENDPOINT_URL",
    "gs": "check the bucket's name and the network",
    "az": "check the account's and the container's name",
}
_ALSO: Final = " (or give options store.*; docs/objects.md)"


def family_of(scheme: str) -> str:
    """Which of s3, gs, az a scheme is another word for; itself otherwise."""
    if scheme in ("s3", "s3a", "s3n"):
        return "s3"
    if scheme in ("az", "azure", "adl", "abfs", "abfss"):
        return "az"
    return "gs" if scheme == "gcs" else scheme


def credentials_step(family: str) -> str:
    """What to do where a store does not let us in."""
    return _CREDENTIALS.get(family, "check the credentials") + _ALSO


def endpoint_step(family: str) -> str:
    """What to do where a store is not reached."""
    return _ENDPOINT.get(family, "check the address and the network") + _ALSO


def without_queries(text: str) -> str:
    """A message's first line, without what follows a question mark: signatures stand there."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
    return _QUERY.sub("?...", first)[:_REASON_LIMIT]


def failure(where: str, operation: str, error: BaseException, step: str = "") -> StorageFailure:
    """The typed error of a failed call; `where` is URL and key."""
    reason = without_queries(str(error)) if str(error) else type(error).__name__
    return StorageFailure(where, operation, f"{reason}; {step}" if step else reason)
