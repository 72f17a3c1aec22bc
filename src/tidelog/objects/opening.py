"""From a URL to its store."""

from collections.abc import Mapping
from typing import Final

from tidelog.objects.failures import family_of
from tidelog.objects.folder_store import open_folder
from tidelog.objects.fsspec_store import open_fsspec
from tidelog.objects.obstore_store import open_obstore
from tidelog.objects.store import ObjectStore
from tidelog.objects.urls import scheme_of

OBSTORE_FAMILIES: Final = frozenset({"s3", "gs", "az", "memory"})


def open_store(url: str, options: Mapping[str, str] | None = None) -> ObjectStore:
    """The store at a URL; nothing is asked of it yet.

    Args:
        url: `s3://bucket/prefix`, `gs://`, `az://container/prefix`, `memory://name` (of this
            process), `file:///path`, or any URL that fsspec knows.
        options: Settings by name, without `store.`: see docs/objects.md. What is not given comes
            from the environment.

    Raises:
        InvalidRequest: No URL, or credentials inside of it.
        ConfigError: An option that the store doesn't have.
        MissingDependency: obstore, fsspec or fsspec's package for that scheme is not installed.
    """
    scheme = scheme_of(url)
    if scheme == "file":
        return open_folder(url, options or {})
    if family_of(scheme) in OBSTORE_FAMILIES:
        return open_obstore(url.rstrip("/"), family_of(scheme), options or {})
    return open_fsspec(url.rstrip("/"), options or {})
