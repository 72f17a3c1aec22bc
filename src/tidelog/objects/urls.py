"""URLs of stores, and options about them, as people write them. Nothing is opened here."""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote, urlsplit

from tidelog.errors import InvalidRequest

OPTION_PREFIX: Final = "store."
# fsspec chains schemes with '::'.
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.:_-]*)://")


def is_url(path: str) -> bool:
    """Whether a path names a store (`s3://bucket/logs`) and not a file of this machine."""
    return _SCHEME.match(path) is not None


def scheme_of(url: str) -> str:
    """The scheme of a URL, in lower case.

    Raises:
        InvalidRequest: It is no URL, or one with a password inside.
    """
    found = _SCHEME.match(url)
    if found is None:
        raise InvalidRequest(f"{url!r} is no URL of a store, such as s3://bucket/logs")
    place = url[found.end() :].partition("/")[0]
    if ":" in place.rpartition("@")[0]:
        hidden = f"{found[0]}...@{place.rpartition('@')[2]}"
        raise InvalidRequest(
            f"{hidden}: credentials don't belong into a URL, which is shown and logged;"
            " give them by the environment or by options store.*"
        )
    return found[1].lower()


def local_path(path: str) -> str:
    """The path of a `file:///path` URL, or `file:/path` as Java has it; all else as it is."""
    if not path.lower().startswith("file:/"):
        return path
    parts = urlsplit(path)
    if parts.netloc not in ("", "localhost"):
        raise InvalidRequest(f"{path}: files of other machines can't be read; write file:///path")
    return unquote(parts.path) or "/"


def join_key(*parts: str) -> str:
    """Parts of a key, or a URL and a key, put together; empty ones are left out."""
    return "/".join(part for part in parts if part)


def store_options(options: Mapping[str, str]) -> dict[str, str]:
    """Those of `options` whose names begin with `store.`, without that; names in lower case."""
    return {
        name[len(OPTION_PREFIX) :].lower(): value
        for name, value in options.items()
        if name.lower().startswith(OPTION_PREFIX)
    }
